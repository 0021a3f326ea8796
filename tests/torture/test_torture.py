"""`make torture` in short: every phase once for a moment, and proof that it sees a server that is broken on purpose."""

from __future__ import annotations

import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.crash.killed_server import KilledServer
from tests.torture.__main__ import PHASES, Torture, main
from tests.torture.fault_phases import inject, missing_strace
from tests.torture.rounds import Result, Round
from tests.torture.sabotaged_server import SABOTAGES

# What shows it: others may show as well, since one fault has many signs.
SIGNS = {
    "forget-producers": "duplicate",
    "lose-cursors": "cursor went back",
    "drop-entries": "",
    "reuse-offsets": "offset",
    "compare-nothing": "stale compare-and-set",
    "skip-records": "skipped poll",
}


@pytest.mark.slow("tortures a server")
@pytest.mark.timeout(150)
def test_a_server_that_is_paused_broken_and_killed_keeps_its_promises(tmp_path: Path) -> None:
    """The short form of the phases with a real server: one round, and a little of each."""
    rng = random.Random(1)
    one = Round(tmp_path, KilledServer(tmp_path), rng)
    with one.working():
        time.sleep(1)
        one.server.signal(signal.SIGSTOP)
        time.sleep(0.1)
        one.server.signal(signal.SIGCONT)
        if not missing_strace(tmp_path):
            inject(one, "fdatasync,fsync", "error=EIO", passes=False)
        one.end_server(signal.SIGKILL)
        one.start_server()
        one.finish(endings=(signal.SIGTERM,))
    assert one.result.broken == []
    assert one.result.counts["appends acknowledged"]


@pytest.mark.slow("tortures a server")
@pytest.mark.timeout(150)
@pytest.mark.parametrize("name", ["sequences", "bit-flips"])
def test_a_phase_without_a_server_holds_for_a_moment(tmp_path: Path, name: str) -> None:
    hold(tmp_path, name)


@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", PHASES)
def test_every_phase_holds_for_a_round(tmp_path: Path, name: str) -> None:
    hold(tmp_path, name, seconds=10)


def hold(directory: Path, name: str, seconds: float = 0.5) -> None:
    """Run a round of a phase, which keeps every promise."""
    result = PHASES[name](directory, random.Random(1), seconds)
    if result.skipped:
        pytest.skip(result.skipped)
    assert result.broken == []
    assert result.counts


@pytest.mark.slow("tortures a server")
@pytest.mark.timeout(150)
def test_a_server_that_is_broken_on_purpose_is_found(tmp_path: Path) -> None:
    find_sabotage(tmp_path, "lose-cursors", kills=0)


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
        # Long enough for the clients to have done something; how much does not matter.
        time.sleep(2)
        for _ in range(kills):
            time.sleep(2)
            one.end_server(signal.SIGKILL)
            one.start_server()
        one.finish(endings=(signal.SIGTERM,))
    assert any(SIGNS[how] in problem for problem in one.result.broken), one.result


def test_a_broken_promise_is_reported_with_how_to_reproduce_it(tmp_path: Path) -> None:
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


def test_an_unknown_phase_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--phases", "kills,lightning"])
    assert ended.value.code == 2
    assert "there is no phase lightning" in capsys.readouterr().err
