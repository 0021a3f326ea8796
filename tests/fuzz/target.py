"""What a fuzz target is, and the bounds that every input is run within.

A target is a function from bytes to nothing whose docstring states its invariant. It takes the errors that are
documented for the code under test and lets everything else out: any exception that leaves it is a finding, and so is an
input that takes more processor time or memory than the target's bounds.
"""

from __future__ import annotations

import math
import resource
import time
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Final

import attrs

Run = Callable[[bytes], None]
Repair = Callable[[bytes], bytes]

MAX_INPUT_BYTES: Final = 4096
MAX_CPU_S: Final = 1.0
MAX_GROWTH_BYTES: Final = 32 << 20
RUNS_OF_SLOW_INPUT: Final = 3
"""How often an input is run that takes too long: the least of these is what it costs, the rest is the machine's."""


class SlowInputError(Exception):
    """An input took more processor time than its target allows."""


class LargeInputError(Exception):
    """An input took more memory than its target allows."""


@attrs.frozen
class Target:
    """One kind of input.

    Attributes:
        name: Of the command line, and of the directory of its cases.
        run: Runs one input; its docstring states the invariant.
        seeds: Makes good inputs to begin with.
        repair: Makes checksums and sizes of a changed input right again, so that what is behind them is reached.
        tokens: Byte strings that mean something in the format.
        max_input_bytes: Longest input that a fuzzer makes.
        max_cpu_s: Bound on the processor time of one input.
        max_growth_bytes: Bound on the memory that one input may take.
        is_slow: One input takes about a millisecond, so short runs make fewer of them.
    """

    name: str
    run: Run
    seeds: Callable[[], Sequence[bytes]]
    repair: Repair = bytes
    tokens: tuple[bytes, ...] = ()
    max_input_bytes: int = MAX_INPUT_BYTES
    max_cpu_s: float = MAX_CPU_S
    max_growth_bytes: int = MAX_GROWTH_BYTES
    is_slow: bool = False


def text_of(data: bytes) -> str:
    """Bytes as a text of any characters, lone surrogates among them."""
    return data.decode("utf-8", "surrogateescape").replace("\udced\udca0\udc80", "\ud800")


def run_bounded(target: Target, data: bytes) -> None:
    """Run an input; the growth of the process's greatest size stands for its memory, which costs next to nothing.

    So an input is not seen that takes no more than an earlier one did; `run_measured` sees each by itself.

    Raises:
        SlowInputError: It took too much processor time.
        LargeInputError: It took too much memory.
        Exception: Whatever else leaves the target.
    """
    before_kib = _peak_kib()
    took_s = _processor_time_s(target, data)
    grown_bytes = (_peak_kib() - before_kib) << 10
    _check(target, data, took_s, grown_bytes)


def run_measured(target: Target, data: bytes) -> None:
    """Run an input as `run_bounded`, with its memory counted allocation by allocation: several times slower."""
    before_kib = _peak_kib()
    tracemalloc.start()
    try:
        target.run(data)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    took_s = _processor_time_s(target, data)
    _check(target, data, took_s, max(peak_bytes, (_peak_kib() - before_kib) << 10))


def _processor_time_s(target: Target, data: bytes) -> float:
    """The least of some runs: a virtual machine that was paused counts that time as the process's."""
    least_s = math.inf
    for _ in range(RUNS_OF_SLOW_INPUT):
        began_s = time.process_time()
        target.run(data)
        least_s = min(least_s, time.process_time() - began_s)
        if least_s <= target.max_cpu_s:
            break
    return least_s


def _check(target: Target, data: bytes, took_s: float, grown_bytes: int) -> None:
    if took_s > target.max_cpu_s:
        raise SlowInputError(f"{len(data)} bytes took {took_s:.2f} s of processor time, allowed {target.max_cpu_s} s")
    if grown_bytes > target.max_growth_bytes:
        raise LargeInputError(
            f"{len(data)} bytes took {grown_bytes} bytes of memory, allowed {target.max_growth_bytes}"
        )


def _peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
