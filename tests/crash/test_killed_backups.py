"""Backups of a real server under load: it is killed, and so is the backup; what comes out is read back.

Server, workload, backup and checker are processes of their own. What a restored directory must hold is what the
workload had noted as acknowledged when the backup began.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from journal.check import check_directory
from tests.crash.killed_server import KilledServer
from tests.crash.test_killed_server import check, workload
from tests.patience import PATIENCE_S

JOURNAL = [sys.executable, "-m", "journal.cli.main"]


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.002)


def line_count(log: Path) -> int:
    return log.read_bytes().count(b"\n") if log.exists() else 0


class Site:
    """A server under load with a backup directory beside it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log = directory / "acknowledged.log"
        self.backup = directory / "backup"
        self.server = KilledServer(directory)
        self._restored = 0

    def wait_for_appends(self, count: int) -> None:
        wanted = line_count(self.log) + count
        wait_until(lambda: line_count(self.log) >= wanted, f"{count} more appends acknowledged")

    def note_acknowledged(self) -> Path:
        """Keep what is acknowledged by now: a backup that begins later holds it."""
        noted = self.directory / "before.log"
        shutil.copyfile(self.log, noted)
        return noted

    def start_backup(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*JOURNAL, "backup", str(self.directory / "data"), str(self.backup), "--keep", "2"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def object_count(self) -> int:
        return sum(1 for _ in self.backup.glob("objects/*/*"))

    def back_up(self) -> None:
        with self.start_backup() as process:
            out, errors = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, errors
        assert out.startswith("backup ")

    def check_restored(self, noted: Path) -> None:
        """Restore the newest backup, check it, serve it, and read everything back."""
        self._restored += 1
        place = self.directory / f"restored-{self._restored}"
        place.mkdir()
        restored = subprocess.run(
            [*JOURNAL, "restore", str(self.backup), str(place / "data")],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert restored.returncode == 0, restored.stderr
        assert check_directory(str(place / "data")).damages == []
        server = KilledServer(place)
        server.start()
        try:
            check(server.address, noted)
            assert server.end(signal.SIGTERM) == 0
        finally:
            server.end(signal.SIGKILL)
        assert check_directory(str(place / "data")).damages == []
        shutil.rmtree(place)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.slow("kills backups and servers")
@pytest.mark.timeout(180)
def test_a_backup_under_load_holds_what_was_acknowledged_before_it_began(site: Site) -> None:
    site.server.start()
    try:
        with workload(site.server.address, site.log, seed=7):
            for _ in range(2):
                site.wait_for_appends(150)
                noted = site.note_acknowledged()
                site.back_up()
                site.check_restored(noted)
        assert check_directory(str(site.backup)).damages == []
        assert len(list((site.backup / "manifests").iterdir())) == 2
        assert list((site.directory / "data/snapshots").iterdir()) == []
        assert site.server.end(signal.SIGTERM) == 0
    finally:
        site.server.end(signal.SIGKILL)


def kill_backups(site: Site, seed: int, rounds: int) -> None:
    """Kill each backup when it has copied a little more; then let it come to its end."""
    rng = random.Random(seed)
    site.server.start()
    try:
        with workload(site.server.address, site.log, seed):
            site.wait_for_appends(150)
            noted = site.note_acknowledged()
            site.back_up()
            for _ in range(rounds):
                site.wait_for_appends(100)
                there = site.object_count()
                wanted = there + rng.randrange(1, 8)
                with site.start_backup() as process:
                    wait_until(
                        lambda process=process, wanted=wanted: (  # type: ignore[misc]
                            site.object_count() >= wanted or process.poll() is not None
                        ),
                        "a backup under way",
                    )
                    process.kill()
                # Nothing of it counts, and what was there before is as good as ever.
                site.check_restored(noted)
                later = site.note_acknowledged()
                site.back_up()
                site.check_restored(later)
                noted = later
        assert check_directory(str(site.backup)).damages == []
        wait_until(lambda: not list((site.directory / "data/snapshots").iterdir()), "the snapshots let go")
        assert site.server.end(signal.SIGTERM) == 0
    finally:
        site.server.end(signal.SIGKILL)


def kill_servers(site: Site, seed: int, rounds: int) -> None:
    """Kill the server while a backup copies from it: it fails and says so, or has all it needs by then."""
    rng = random.Random(seed)
    site.server.start()
    try:
        with workload(site.server.address, site.log, seed):
            for _ in range(rounds):
                site.wait_for_appends(150)
                noted = site.note_acknowledged()
                wanted = site.object_count() + rng.randrange(8)
                with site.start_backup() as process:
                    wait_until(
                        lambda process=process, wanted=wanted: (  # type: ignore[misc]
                            site.object_count() >= wanted or process.poll() is not None
                        ),
                        "a backup under way",
                    )
                    site.server.end(signal.SIGKILL)
                    site.server.start()
                    _, errors = process.communicate(timeout=PATIENCE_S)
                assert process.returncode in (0, 1), errors
                assert (process.returncode == 1) == errors.startswith("journal: "), errors
                assert "Traceback" not in errors
                if process.returncode == 1:
                    noted = site.note_acknowledged()
                    site.back_up()
                site.check_restored(noted)
        assert check_directory(str(site.backup)).damages == []
        assert site.server.end(signal.SIGTERM) == 0
        assert list((site.directory / "data/snapshots").iterdir()) == []
    finally:
        site.server.end(signal.SIGKILL)


@pytest.mark.slow("kills backups and servers")
@pytest.mark.timeout(180)
def test_a_killed_backup_leaves_the_one_before_and_continues(site: Site) -> None:
    kill_backups(site, seed=3, rounds=1)


@pytest.mark.slow("kills backups and servers")
@pytest.mark.timeout(180)
def test_a_server_killed_during_a_backup_spoils_nothing(site: Site) -> None:
    kill_servers(site, seed=5, rounds=1)


@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.parametrize("kill", [kill_backups, kill_servers])
def test_many_kills_spoil_nothing(tmp_path: Path, kill: Callable[[Site, int, int], None]) -> None:
    for seed in range(100, 104):
        directory = tmp_path / str(seed)
        directory.mkdir()
        kill(Site(directory), seed, 6)
