"""`make fuzz`: every target in turn by coverage, with a line a minute; and single inputs once more.

``python -m tests.fuzz --minutes 60`` runs all targets, ``--target NAME`` some of them. ``python -m tests.fuzz replay
NAME FILE...`` runs inputs again and shows what they lead to. The exit status is 1 if something was found.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import select
import sys
import time
from pathlib import Path
from typing import Final

import attrs

from tests.fuzz import findings
from tests.fuzz.target import Target
from tests.fuzz.targets import NAMES, load

_WORK: Final = Path(".fuzz")
_LINE_EVERY_S: Final = 60.0
_MOST_RESTARTS: Final = 20
_STATUS: Final = re.compile(r"#(\d+)\t(\w+).*cov: (\d+)")
_EXECUTED: Final = re.compile(r"stat::number_of_executed_units: (\d+)")
_ARTIFACT: Final = re.compile(r"Test unit written to (\S+)")
_LEAST_S: Final = 2


@attrs.define
class _Progress:
    """What a target did so far.

    Attributes:
        executions: Inputs run, those of the corpus included.
        begun_coverage: Places in the code that the corpus reached by itself.
        coverage: Places reached until now.
        found: Files of findings.
        has_failed: The fuzzer itself did, so that not all of the time was used.
    """

    name: str
    executions: int = 0
    before_executions: int = 0
    begun_coverage: int | None = None
    coverage: int = 0
    found: list[str] = attrs.Factory(list)
    has_failed: bool = False

    def take(self, line: str) -> None:
        if status := _STATUS.search(line):
            self.executions = self.before_executions + int(status[1])
            self.coverage = max(self.coverage, int(status[3]))
            if status[2] == "INITED" and self.begun_coverage is None:
                self.begun_coverage = self.coverage
        elif executed := _EXECUTED.search(line):
            self.executions = self.before_executions + int(executed[1])
        elif line.startswith("FOUND "):
            self.found.append(line.split()[1])
            print(f"{self.name}: {line.strip()}", flush=True)
        elif artifact := _ARTIFACT.search(line):
            self.found.append(artifact[1])
            print(f"{self.name}: FOUND {artifact[1]} the process ended", flush=True)

    def tell(self, elapsed_s: float) -> str:
        new = self.coverage - (self.begun_coverage or self.coverage)
        return (
            f"{self.name}: {elapsed_s:.0f} s, {self.executions} executions "
            f"({self.executions / max(elapsed_s, 1):.0f} a second), coverage {self.coverage} ({new} new), "
            f"{len(self.found)} found"
        )


def main() -> int:
    """Run the command line; returns the exit status."""
    if sys.argv[1:2] == ["replay"]:
        return _replay(sys.argv[2], [Path(name) for name in sys.argv[3:]])
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="for all targets together")
    parser.add_argument("--seed", type=int, default=None, help="makes a run with an empty .fuzz the same again")
    parser.add_argument("--target", action="append", choices=NAMES, help="only this one; may be given again")
    options = parser.parse_args()
    try:
        from tests.fuzz.coverage_run import load_instrumented
    except ImportError:
        print("make fuzz: atheris is not installed; it has wheels for Linux on x86_64 alone", file=sys.stderr)
        return 2
    seed = random.randrange(1, 1 << 31) if options.seed is None else options.seed
    names = options.target or list(NAMES)
    seconds = max(_LEAST_S, round(options.minutes * 60 / len(names)))
    print(f"seed {seed}, {len(names)} targets, {seconds} s each; corpus and findings in {_WORK}/", flush=True)
    targets = load_instrumented(names)
    done = [_run(targets[name], seconds, seed) for name in names]
    print("-- all targets --")
    for progress, elapsed_s in done:
        print(progress.tell(elapsed_s))
    found = [(progress.name, path) for progress, _ in done for path in progress.found]
    for name, path in found:
        print(f"found: {path}\n  again: python -m tests.fuzz replay {name} {path}")
    if found:
        print("when it is mended, keep the input in tests/fuzz/cases/TARGET/ under a name that says what it is")
    failed = [progress.name for progress, _ in done if progress.has_failed]
    if failed:
        print(f"the fuzzer itself failed for {', '.join(failed)}")
    return 1 if found or failed else 0


def _run(target: Target, seconds: int, seed: int) -> tuple[_Progress, float]:
    progress = _Progress(target.name)
    began_s = time.monotonic()
    for _ in range(_MOST_RESTARTS):
        left_s = round(seconds - (time.monotonic() - began_s))
        if left_s < 1:
            break
        if _run_once(progress, target, left_s, seed, began_s) == 0 or progress.has_failed:
            break
        # The process ended with an input: go on behind it, by another way.
        progress.before_executions = progress.executions
        seed += 1
    elapsed_s = time.monotonic() - began_s
    print(progress.tell(elapsed_s), flush=True)
    return progress, elapsed_s


def _run_once(progress: _Progress, target: Target, seconds: int, seed: int, began_s: float) -> int:
    from tests.fuzz import coverage_run

    pid, reading = coverage_run.start(target, seconds=seconds, seed=seed, work=_WORK / target.name)
    last: list[str] = []
    found_before = len(progress.found)
    tell_at_s = time.monotonic() + _LINE_EVERY_S
    rest = b""
    while True:
        ready, _, _ = select.select([reading], [], [], max(0.0, tell_at_s - time.monotonic()))
        if ready:
            received = os.read(reading, 1 << 16)
            if not received:
                break
            *lines, rest = (rest + received).split(b"\n")
            for line in lines:
                text = line.decode(errors="replace")
                last = [*last[-30:], text]
                progress.take(text)
        if time.monotonic() >= tell_at_s:
            tell_at_s += _LINE_EVERY_S
            print(progress.tell(time.monotonic() - began_s), flush=True)
    os.close(reading)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status and len(progress.found) == found_before:
        print(f"{target.name}: the fuzzer itself failed with status {status}:", *last, sep="\n", flush=True)
        progress.has_failed = True
    return status


def _replay(name: str, paths: list[Path]) -> int:
    target = load(name)
    status = 0
    for path in paths:
        finding = findings.find(target, path.read_bytes())
        print(f"{path}: {'holds' if finding is None else finding.words}")
        status = status or int(finding is not None)
    return status


if __name__ == "__main__":
    sys.exit(main())
