"""Targets under atheris: imported once with instrumentation, and each run in a process that is forked from there.

libFuzzer chooses inputs by the code and comparisons that they reach. A finding is written to a file and does not end
the run. An input that ends the process (a crash in native code, or no end within the time limit) libFuzzer writes.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import resource
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

import atheris

from tests.fuzz import findings
from tests.fuzz.mutation import mutate, repaired
from tests.fuzz.target import Target, run_bounded

INSTRUMENTED: Final = ("shards", "journal", "broker_adapter")
HANGS_AFTER_S: Final = 20
_ROOM_BYTES: Final = 2 << 30
_LONGEST_WORD_BYTES: Final = 64
_FROM_LIBFUZZER: Final = 0.4
_FAILED: Final = 70


def load_instrumented(names: Sequence[str]) -> dict[str, Target]:
    """The targets of these names; what they import is instrumented while it is imported, which takes seconds."""
    with contextlib.redirect_stderr(io.StringIO()), atheris.instrument_imports(include=list(INSTRUMENTED)):
        from tests.fuzz.targets import load

        return {name: load(name) for name in names}


def start(target: Target, *, seconds: int, seed: int, work: Path) -> tuple[int, int]:
    """Fork a process that runs a target.

    Args:
        seconds: When it ends.
        seed: Of libFuzzer.
        work: Directory that takes corpus, seeds and findings.

    Returns:
        Its process id, and a file descriptor that gives what it says until it ends.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    try:
        os.close(reading)
        os.dup2(writing, sys.__stderr__.fileno() if sys.__stderr__ else 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        _fuzz(target, seconds, seed, work)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(_FAILED)


def _fuzz(target: Target, seconds: int, seed: int, work: Path) -> NoReturn:
    seeds = list(target.seeds())
    for data in seeds:
        run_bounded(target, data)
    _bound_memory()
    seen: set[str] = set()

    def run(data: bytes) -> None:
        finding = findings.find(target, data)
        if finding is not None and finding.place not in seen:
            seen.add(finding.place)
            path = findings.save(finding, work / "found")
            print(f"FOUND {path} {finding.place}", file=sys.stderr, flush=True)

    def mutator(data: bytes, max_size: int, seed: int) -> bytes:
        random_ = random.Random(seed)
        if random_.random() < _FROM_LIBFUZZER:
            return repaired(target, random_, atheris.Mutate(data, max_size))[:max_size]
        return mutate(target, random_, data, seeds)[:max_size]

    atheris.Setup([sys.argv[0], *_arguments(target, seconds, seed, work, seeds)], run, custom_mutator=mutator)
    atheris.Fuzz()
    raise RuntimeError("libFuzzer came back")


def _arguments(target: Target, seconds: int, seed: int, work: Path, seeds: list[bytes]) -> list[str]:
    corpus, beginning = work / "corpus", work / "seeds"
    for directory in (corpus, beginning, work / "found"):
        directory.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(seeds):
        (beginning / str(number)).write_bytes(data)
    # libFuzzer takes no longer words, and no file without any.
    short = [token for token in target.tokens if len(token) <= _LONGEST_WORD_BYTES]
    dictionary = work / "tokens"
    escaped = ["".join(f"\\x{byte:02x}" for byte in token) for token in short]
    dictionary.write_text("".join(f'"{token}"\n' for token in escaped))
    return [
        *([f"-dict={dictionary}"] if short else []),
        str(corpus),
        str(beginning),
        f"-max_total_time={seconds}",
        f"-seed={seed}",
        f"-max_len={target.max_input_bytes}",
        f"-timeout={HANGS_AFTER_S}",
        f"-artifact_prefix={work / 'found'}/",
        "-rss_limit_mb=3000",
        "-use_value_profile=1",
        "-print_final_stats=1",
        "-len_control=0",
    ]


def _bound_memory() -> None:
    """Refuse allocations far beyond every limit of the formats: they become findings even if the memory is not used."""
    with open("/proc/self/statm") as statm:
        size_bytes = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size_bytes + _ROOM_BYTES, resource.RLIM_INFINITY))
