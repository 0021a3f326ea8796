"""Files are their owner's alone, whatever the umask. These tests look at modes, which are the same for root."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from journal.access.audit import AuditLog
from journal.engine import open_engine
from journal.engine.directory.placement import open_to_others
from shards.seams.os_file_system import OsFileSystem
from tests.deployment.test_systemd_units import use
from tests.faults.processes import running
from tests.server.serving import small_config

FOR_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def open_ones(directory: Path) -> list[str]:
    """What others than the owner may use in a directory, and the directory itself."""
    found = []
    # A running server removes files meanwhile: os.walk leaves out what is gone.
    for parent, _, names in os.walk(directory):
        for each in (Path(parent), *(Path(parent) / name for name in names)):
            with suppress(FileNotFoundError):
                if mode(each) & FOR_OTHERS:
                    found.append(str(each))
    return found


@pytest.mark.usefixtures("open_umask")
def test_what_the_file_system_creates_is_for_its_owner(tmp_path: Path) -> None:
    files = OsFileSystem()
    files.mkdir(f"{tmp_path}/a/b/c/")
    files.open(f"{tmp_path}/a/b/file", create=True).close()
    files.lock(f"{tmp_path}/a").release()
    assert mode(tmp_path / "a") == mode(tmp_path / "a" / "b" / "c") == 0o700
    assert mode(tmp_path / "a" / "b" / "file") == mode(tmp_path / "a" / "LOCK") == 0o600


def test_a_directory_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a").chmod(0o750)
    OsFileSystem().mkdir(f"{tmp_path}/a")
    assert mode(tmp_path / "a") == 0o750
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        OsFileSystem().mkdir(f"{tmp_path}/file")


@pytest.mark.parametrize(
    ("top", "part", "reached_by"),
    [
        (0o700, 0o777, ""),
        (0o755, 0o700, ""),
        (0o750, 0o700, ""),
        (0o755, 0o755, "all users"),
        (0o711, 0o755, "all users"),
        (0o777, 0o700, "all users"),
        (0o750, 0o755, "its group"),
        (0o770, 0o700, "its group"),
        (0o744, 0o755, ""),
    ],
)
def test_who_can_reach_what_is_stored_follows_from_both_modes(
    tmp_path: Path, top: int, part: int, reached_by: str
) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(part)
    tmp_path.chmod(top)
    told = open_to_others(str(tmp_path))
    if reached_by:
        assert f"{tmp_path} is open to {reached_by} of the machine (mode {top:04o})" in told
        assert f"`chmod -R go= {tmp_path}`" in told
    else:
        assert told == ""


def test_a_directory_that_is_not_there_is_open_to_nobody(tmp_path: Path) -> None:
    assert open_to_others(str(tmp_path / "none")) == ""


async def test_a_start_warns_of_a_directory_that_is_open_to_others_until_it_is_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    warned: list[bool] = []
    for change in (None, "go+rx", "go="):
        if change is not None:
            subprocess.run(["chmod", "-R", change, str(data)], check=True)
        caplog.clear()
        async with open_engine(str(data), small_config()):
            pass
        warned.append("is open to all users" in caplog.text)
    assert warned == [False, True, False]


@pytest.mark.parametrize(("umask", "expected"), [(0o022, 0o640), (0o027, 0o640), (0o077, 0o600), (0, 0o640)])
def test_the_audit_log_is_for_the_group_if_the_umask_at_the_start_allows_it(
    tmp_path: Path, umask: int, expected: int
) -> None:
    path = tmp_path / "audit"
    before = os.umask(umask)
    try:
        audit = AuditLog(str(path))
        os.umask(0o077)
        path.rename(tmp_path / "audit.1")
        audit.reopen()
        audit.close()
        path.chmod(0o604)
        AuditLog(str(path)).close()
    finally:
        os.umask(before)
    assert mode(tmp_path / "audit.1") == expected
    assert mode(path) == 0o604


@pytest.mark.slow("runs a server, a backup and a restore")
def test_nothing_that_a_server_a_backup_and_a_restore_write_is_open_to_others(tmp_path: Path) -> None:
    data, backup, restored = (tmp_path / name for name in ("data", "backup", "restored"))
    under = ("sh", "-c", 'umask 0; exec "$@"', "sh")
    with running(data, "conversion.max_age_s=1", under=under) as server:
        with server.client() as client:
            use(client)
        assert open_ones(data) == []
        command = [*under, sys.executable, "-m", "journal.cli.main"]
        subprocess.run([*command, "backup", str(data), str(backup)], check=True, capture_output=True)
        assert server.stop() == 0
    subprocess.run([*command, "restore", str(backup), str(restored)], check=True, capture_output=True)
    assert list(data.rglob("*.parquet"))
    assert list(data.rglob("*.sst")) or list((data / "state").glob("*.log"))
    assert {directory: open_ones(directory) for directory in (data, backup, restored)} == {
        data: [],
        backup: [],
        restored: [],
    }
