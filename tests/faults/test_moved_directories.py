"""A part of the data directory is moved away, replaced or mounted over while a server uses it, then put back."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from journal.protocol import Op, messages
from shards.errors import StorageError
from shards.model import ShardConfig
from tests.faults.processes import Client, ServerProcess, running
from tests.patience import PATIENCE_S

SETTINGS = (
    "storage.journal_file_bytes=1 MiB",
    "storage.journal_budget_bytes=2 MiB",
    "limits.max_batch_bytes=256 KiB",
    "limits.max_frame_bytes=1 MiB",
    "storage.segment_bytes=64 KiB",
    "conversion.max_age_s=1",
)
PARTS = ("", "journal", "log", "sealed", "sealing", "snapshots", "state")
VALUE_BYTES = 20_000
FULL_ROUND = 150
"""So many records fill the journal: a checkpoint is made, and journal files are recycled."""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


class Moved:
    """A directory that is moved aside, and put back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.aside = path.with_name(f"{path.name}.aside")

    def away(self) -> None:
        self.path.rename(self.aside)

    def replaced_by_an_empty_one(self) -> None:
        self.path.rename(self.aside)
        self.path.mkdir()

    def replaced_by_a_copy(self) -> None:
        copy = self.path.with_name(f"{self.path.name}.copy")
        # The server may remove or rename a file between its name and its copy: it lacks in the copy then.
        subprocess.run(["cp", "-a", str(self.path), str(copy)], capture_output=True, check=False)
        self.path.rename(self.aside)
        copy.rename(self.path)

    def mounted_over(self) -> None:
        if os.geteuid() != 0 or shutil.which("mount") is None:
            pytest.skip("needs root and the mount program")
        done = subprocess.run(["mount", "-t", "tmpfs", "none", str(self.path)], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")

    def back(self) -> None:
        if os.path.ismount(self.path):
            subprocess.run(["umount", "-l", str(self.path)], check=True)
        if self.aside.exists():
            if self.path.exists():
                # In one step: the server may create files in it while one after the other is removed.
                replacement = self.path.with_name(f"{self.path.name}.replacement")
                self.path.rename(replacement)
                self.aside.rename(self.path)
                shutil.rmtree(replacement)
            else:
                self.aside.rename(self.path)


MISHAPS: dict[str, tuple[Callable[[Moved], None], str]] = {
    "away": (Moved.away, "nothing is there"),
    "empty": (Moved.replaced_by_an_empty_one, "an empty directory is there"),
    "copy": (Moved.replaced_by_a_copy, "another directory is there"),
    "mount": (Moved.mounted_over, "an empty directory of another file system is there"),
}
OTHERS = ("away", "copy", "mount")


def value(number: int) -> bytes:
    return b"%06d" % number * (VALUE_BYTES // 6)


def append(client: Client, name: str, count: int, acknowledged: list[bytes]) -> None:
    """Append records, which are numbered, until all are acknowledged or the server refuses one."""
    handle = client.open(name, ShardConfig())
    for number in range(len(acknowledged), len(acknowledged) + count):
        client.append(handle, value(number))
        acknowledged.append(value(number))


def append_until_it_fails(server: ServerProcess, acknowledged: list[bytes]) -> None:
    with server.client() as client, pytest.raises((StorageError, EOFError, ConnectionError)):
        append(client, "a", 100_000, acknowledged)


def require_everything(data: Path, acknowledged: list[bytes]) -> None:
    """A start has every acknowledged record, and at most one more."""
    with running(data, *SETTINGS) as server, server.client() as client:
        found = client.read(client.open("a"))
        assert server.stop() == 0
    assert found[: len(acknowledged)] == acknowledged
    assert len(found) <= len(acknowledged) + 1


@pytest.mark.slow("starts servers and writes some MB")
@pytest.mark.parametrize(
    ("part", "mishap"),
    [
        *(pytest.param(part, "empty", id=f"{part or 'data'} empty") for part in PARTS),
        *(pytest.param(part, mishap, id=f"{part} {mishap}") for part in ("journal", "log") for mishap in OTHERS),
        pytest.param("", "away", id="data away"),
    ],
)
def test_a_directory_that_is_moved_or_replaced_under_a_server_ends_it_and_has_everything_once_it_is_put_back(
    data: Path, part: str, mishap: str
) -> None:
    """New files were created in the replacement. When the old directory was put back, acknowledged records lacked."""
    moved = Moved(data / part if part else data)
    act, found = MISHAPS[mishap]
    acknowledged: list[bytes] = []
    try:
        with running(data, *SETTINGS) as server:
            with server.client() as client:
                append(client, "a", FULL_ROUND, acknowledged)
            act(moved)
            append_until_it_fails(server, acknowledged)
            assert server.process.wait(PATIENCE_S) == 74
            log = server.log.read_text()
            assert f"the storage failed ({moved.path} is not the directory that was opened: {found}." in log
            assert "Stop the server, put that directory back under its name or mount it again, and start again" in log
            assert "Traceback" not in log
    finally:
        moved.back()
    require_everything(data, acknowledged)


@pytest.mark.slow("starts servers and writes some MB")
@pytest.mark.parametrize("part", ["journal", "log"])
def test_a_quiet_server_notices_within_moments_that_a_directory_was_moved(data: Path, part: str) -> None:
    moved = Moved(data / part)
    with running(data, *SETTINGS) as server:
        moved.replaced_by_an_empty_one()
        assert server.process.wait(PATIENCE_S) == 74
        assert f"{moved.path} is not the directory that was opened" in server.log.read_text()
        assert list(moved.path.iterdir()) == []


@pytest.mark.slow("starts servers and writes some MB")
@pytest.mark.parametrize("part", ["", "journal", "log"], ids=["data", "journal", "log"])
def test_a_directory_that_is_moved_for_moments_again_and_again_is_found_or_has_what_was_written_meanwhile(
    data: Path, part: str
) -> None:
    moved = Moved(data / part if part else data)
    acknowledged: list[bytes] = []
    with running(data, *SETTINGS) as server:
        with server.client() as client, contextlib.suppress(StorageError, EOFError, ConnectionError):
            for _ in range(30):
                append(client, "a", 3, acknowledged)
                moved.replaced_by_an_empty_one()
                append(client, "a", 3, acknowledged)
                moved.back()
        moved.back()
        assert server.stop() in (0, 74)
        assert "Traceback" not in server.log.read_text()
    require_everything(data, acknowledged)


@pytest.mark.slow("starts servers and writes some MB")
@pytest.mark.parametrize("mishap", ["empty", "copy"])
def test_a_directory_of_log_files_that_is_replaced_ends_the_server(data: Path, mishap: str) -> None:
    acknowledged: list[bytes] = []
    with running(data, *SETTINGS, "conversion.enabled=false") as server:
        with server.client() as client:
            append(client, "a", FULL_ROUND, acknowledged)
        (path,) = {file.parent for file in (data / "log").glob("*/*.log")}
        moved = Moved(path)
        MISHAPS[mishap][0](moved)
        append_until_it_fails(server, acknowledged)
        assert server.process.wait(PATIENCE_S) == 74
        assert f"{path} is not the directory that was opened" in server.log.read_text()
        moved.back()
    require_everything(data, acknowledged)


@pytest.mark.slow("starts servers and writes some MB")
def test_a_log_file_that_was_replaced_by_a_copy_is_not_taken_for_the_one_that_was_written(data: Path) -> None:
    acknowledged: list[bytes] = []
    with running(data, *SETTINGS, "conversion.enabled=false", "storage.flush_interval_ms=20") as server:
        with server.client() as client:
            append(client, "a", FULL_ROUND, acknowledged)
            append(client, "a", 10, acknowledged)
        newest = max((data / "log").glob("*/*.log"), key=lambda file: file.stat().st_mtime_ns)
        aside, copy = newest.with_name("aside"), newest.with_name("copy")
        # Replaced in one step: between two the check could find that there is no file.
        os.link(newest, aside)
        shutil.copyfile(newest, copy)
        copy.replace(newest)
        status = server.stop()
        log = server.log.read_text()
        assert status == 74 or "is not the file that was written" not in log
        if status == 74:
            assert f"{newest} is not the file that was written: another file is there" in log
            aside.replace(newest)
        else:
            # What was synced by then is in the copy, and what came later was written to it.
            aside.unlink()
    require_everything(data, acknowledged)


@pytest.mark.slow("starts servers and writes some MB")
@pytest.mark.parametrize("mishap", ["away", "empty"])
def test_no_file_is_moved_into_another_directory_than_that_of_its_day(data: Path, mishap: str) -> None:
    """Its log file was removed then, and the Parquet file was not in the directory that was put back."""
    acknowledged: list[bytes] = []
    with running(data, *SETTINGS) as server, server.client() as client:
        append(client, "a", FULL_ROUND, acknowledged)
        # Once a commit names a file of the day: a file that nothing counts on yet may lack in the directory put back.
        wait_for(lambda: list((data / "sealed" / "_delta_log").glob("*.json")))
        (path,) = (data / "sealed").glob("date=*")
        moved = Moved(path)
        MISHAPS[mishap][0](moved)
        append(client, "a", FULL_ROUND, acknowledged)
        wait_for(lambda: f"{path} is not the directory that it was" in server.log.read_text())
        moved.back()
        assert server.stop() == 0
    require_everything(data, acknowledged)


@pytest.mark.slow("starts servers")
def test_a_server_that_stays_for_readers_refuses_writes_and_says_why(data: Path) -> None:
    moved = Moved(data / "log")
    acknowledged: list[bytes] = []
    with running(data, *SETTINGS, "storage.on_failure=read_only") as server:
        with server.client() as client:
            append(client, "a", 10, acknowledged)
        moved.away()
        append_until_it_fails(server, acknowledged)
        status, said = server.http("/readyz")
        assert status == 503
        assert f"{moved.path} is not the directory that was opened: nothing is there" in said
        with server.client() as client:
            assert client.read(client.open("a"))[: len(acknowledged)] == acknowledged
        assert server.stop() == 0
    moved.back()
    require_everything(data, acknowledged)


@pytest.mark.slow("starts servers")
def test_a_stop_finds_a_directory_that_was_replaced_just_before(data: Path) -> None:
    """The last checkpoint recorded what was in the replacement, and the journal was not needed any more."""
    moved = Moved(data / "log")
    acknowledged: list[bytes] = []
    with running(data, *SETTINGS, "storage.flush_interval_ms=60000") as server:
        with server.client() as client:
            append(client, "a", 10, acknowledged)
        moved.replaced_by_an_empty_one()
        assert server.stop() == 74
        assert f"{moved.path} is not the directory that was opened" in server.log.read_text()
    moved.back()
    require_everything(data, acknowledged)


@pytest.mark.slow("starts servers")
def test_a_backup_of_a_server_whose_directory_was_replaced_is_refused(data: Path) -> None:
    moved = Moved(data / "log")
    acknowledged: list[bytes] = []
    with running(data, *SETTINGS, "storage.flush_interval_ms=60000") as server:
        with server.client() as client:
            append(client, "a", 10, acknowledged)
            moved.replaced_by_an_empty_one()
            with pytest.raises(StorageError, match="is not the directory that was opened"):
                client.call(Op.SNAPSHOT, messages.Empty())
        assert server.process.wait(PATIENCE_S) == 74
    moved.back()
    require_everything(data, acknowledged)


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
