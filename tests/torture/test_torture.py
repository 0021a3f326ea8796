"""`make torture` in short: every phase once for a moment, and proof that it sees a server that is broken on purpose."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.crash.killed_server import KilledServer
from tests.torture.__main__ import PHASES, Torture
from tests.torture.rounds import Result, Round
from tests.torture.sabotaged_server import SABOTAGES

# What shows it: others may show as well, since one fault has many signs.
SIGNS = {
    "forget-producers": "duplicate",
    "lose-cursors": "cursor went back",
    "drop-entries": "",
    "reuse-offsets": "offset",
    "compare-nothing": "stale compare-and-set",
}


@pytest.mark.parametrize("name", PHASES)
@pytest.mark.timeout(150)
def test_a_phase_holds_for_a_moment(tmp_path: Path, name: str) -> None:
    result = PHASES[name](tmp_path, random.Random(1), 0.5)
    if result.skipped:
        pytest.skip(result.skipped)
    assert result.broken == []
    assert result.counts


@pytest.mark.parametrize("how", ["lose-cursors"])
@pytest.mark.timeout(150)
def test_a_server_that_is_broken_on_purpose_is_found(tmp_path: Path, how: str) -> None:
    find_sabotage(tmp_path, how, kills=1)


@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.parametrize("how", SABOTAGES)
def test_every_sabotage_is_found(tmp_path: Path, how: str) -> None:
    find_sabotage(tmp_path, how, kills=4)


def find_sabotage(directory: Path, how: str, kills: int) -> None:
    """Let clients work with a sabotaged server that is killed some times; the history shows what is wrong with it."""
    launch = (sys.executable, "-m", "tests.torture.sabotaged_server", how)
    one = Round(directory, KilledServer(directory, launch=launch), random.Random(how))
    with one.working():
        for _ in range(kills):
            # Long enough for the clients to have done something; how much does not matter.
            time.sleep(2)
            one.end_server(signal.SIGKILL)
            one.start_server()
        one.finish()
    assert any(SIGNS[how] in problem for problem in one.result.broken), one.result


def test_a_broken_promise_is_told_with_how_to_meet_it_again(tmp_path: Path) -> None:
    """A run that finds something ends with status 1, names seed and round, and keeps the directory of the round."""
    lines: list[str] = []

    def broken(directory: Path, rng: random.Random, seconds: float) -> Result:
        (directory / "evidence").write_text(f"{rng.random()}")
        return Result(Counter(rounds=1), ["lost write: s: offset 7"])

    phases = {
        "fine": lambda *_: Result(Counter(kills=2)),
        "broken": broken,
        "missing": lambda *_: Result(skipped="strace is not installed"),
    }
    torture = Torture(5, tmp_path, phases, 1, lines.append)
    assert torture.run(0) == 1
    assert "BROKEN: broken: lost write: s: offset 7" in lines
    assert any("SEED=5 PHASES=broken TURN=0" in line for line in lines)
    assert "skipped: missing: strace is not installed" in lines
    assert (tmp_path / "broken-0/evidence").exists()
    assert not (tmp_path / "fine-0").exists()


def test_a_run_without_a_broken_promise_ends_with_status_0(tmp_path: Path) -> None:
    lines: list[str] = []
    phases = {"fine": lambda *_: Result(Counter(kills=2)), "missing": lambda *_: Result(skipped="no mount")}
    assert Torture(5, tmp_path, phases, 1, lines.append).run(0) == 0
    assert "2 kills" in next(line for line in lines if "in all" in line)
    assert lines[-1].startswith("HELD")


def test_a_phase_that_fails_by_itself_is_no_kept_promise(tmp_path: Path) -> None:
    def fails(directory: Path, rng: random.Random, seconds: float) -> Result:
        raise OSError("no room for the round")

    lines: list[str] = []
    assert Torture(5, tmp_path, {"fails": fails}, 1, lines.append).run(0) == 1
    assert any("no room for the round" in line for line in lines)


def test_an_unknown_phase_is_refused_by_name() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.torture", "--phases", "kills,lightning"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "there is no phase lightning" in done.stderr
