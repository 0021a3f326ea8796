"""The fuzzing itself: a target that breaks is noticed, whatever it breaks by, and inputs can be made again."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from tests.fuzz import findings
from tests.fuzz.mutation import input_number
from tests.fuzz.target import LargeInputError, SlowInputError, Target, run_bounded, run_measured
from tests.fuzz.targets import NAMES, load

ROOT = Path(__file__).parents[2]


def _checked_number(data: bytes) -> None:
    if len(data) >= 8 and struct.unpack_from("<I", data)[0] == zlib.crc32(data[4:]) and b"\xfe\xff" in data[4:]:
        raise KeyError("reached")


def _repair(data: bytes) -> bytes:
    return struct.pack("<I", zlib.crc32(data[4:])) + data[4:]


def _use_time(data: bytes) -> None:
    sum(range(int.from_bytes(data, "little")))


def _use_memory(data: bytes) -> None:
    bytes(int.from_bytes(data, "little"))


def _target(**changes: object) -> Target:
    given: dict[str, object] = {
        "name": "made",
        "run": _checked_number,
        "seeds": lambda: [_repair(bytes(12))],
        "tokens": (b"\xfe\xff",),
    }
    return Target(**{**given, **changes})  # type: ignore[arg-type]


def test_an_input_of_a_seed_and_number_is_always_the_same() -> None:
    target = load("frames")
    seeds = list(target.seeds())
    made = [input_number(target, seeds, 7, number) for number in range(50)]
    assert made == [input_number(target, seeds, 7, number) for number in range(50)]
    assert len(set(made)) > 40
    assert made != [input_number(target, seeds, 8, number) for number in range(50)]


def test_a_repair_gets_behind_a_checksum() -> None:
    seeds = [_repair(bytes(12))]

    def count_found(target: Target) -> int:
        return sum(findings.find(target, input_number(target, seeds, 1, number)) is not None for number in range(3000))

    assert count_found(_target()) == 0
    assert count_found(_target(repair=_repair)) > 0


def test_an_input_that_takes_too_long_is_a_finding() -> None:
    target = _target(run=_use_time, max_cpu_s=0.05)
    run_bounded(target, b"\x10")
    with pytest.raises(SlowInputError):
        run_bounded(target, (1 << 24).to_bytes(4, "little"))


def test_a_machine_that_stood_still_during_an_input_is_no_finding() -> None:
    """A pause of the virtual machine was taken for an input of 1,254 bytes that took 2.65 s."""
    sizes = iter([1 << 24, 1])
    target = _target(run=lambda data: _use_time(next(sizes).to_bytes(4, "little")), max_cpu_s=0.05)
    run_bounded(target, b"any")
    assert next(sizes, None) is None


def test_an_input_that_takes_too_much_memory_is_a_finding() -> None:
    target = _target(run=_use_memory, max_growth_bytes=1 << 20)
    run_measured(target, b"\x10")
    with pytest.raises(LargeInputError):
        run_measured(target, (1 << 23).to_bytes(4, "little"))


def test_a_finding_is_kept_with_what_it_led_to(tmp_path: Path) -> None:
    finding = findings.find(_target(run=lambda data: {}[data]), b"absent")
    assert finding is not None
    assert finding.place.startswith("KeyError at test_fuzzing.py:")
    path = findings.save(finding, tmp_path / "found")
    assert path.read_bytes() == b"absent"
    assert "KeyError" in path.with_suffix(".txt").read_text()


def test_every_target_states_its_invariant() -> None:
    for name in NAMES:
        assert len(load(name).run.__doc__ or "") > 80, name


@pytest.mark.slow("fuzzes by coverage")
def test_a_run_by_coverage_reaches_code_that_the_good_inputs_do_not(tmp_path: Path) -> None:
    """The whole of `make fuzz`, on one target for a moment."""
    pytest.importorskip("atheris", reason="atheris has wheels for Linux on x86_64 alone")
    command = [sys.executable, "-m", "tests.fuzz", "--minutes", "0.05", "--seed", "1", "--target", "frames"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "frames: " in done.stdout
    assert " executions " in done.stdout
    assert list((tmp_path / ".fuzz" / "frames" / "corpus").iterdir())


@pytest.mark.slow("starts the program several times")
def test_a_run_by_coverage_continues_behind_findings_and_behind_inputs_that_end_the_process(tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="atheris has wheels for Linux on x86_64 alone")
    program = """
import os
from tests.fuzz import __main__ as fuzzing
from tests.fuzz.target import Target

def run(data):
    if data[:1] == b"a":
        os.abort()
    if data[:1] == b"b":
        raise KeyError("found")

progress, _ = fuzzing._run(Target("made", run, lambda: [b"xyz"]), 3, 1)
print(sorted({os.path.basename(path).partition("-")[0] == "crash" for path in progress.found}))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1:] == ["[False, True]"], done.stdout + done.stderr
