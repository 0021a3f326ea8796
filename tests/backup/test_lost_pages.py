"""Backups and restores after the kernel could not write their files back and reported that to another process.

The pages of such a file count as clean: it reads well, every later sync succeeds, and a power loss takes its content.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Callable

import pytest

from journal.backup import BackupResult, Source, back_up, restore
from journal.check import check_directory
from shards.model import ShardConfig
from tests.journal.engines import DATA, append, open_simulated, values_of
from tests.simulation.disk import Content, Directory
from tests.simulation.file_system import (
    CrashNow,
    Fault,
    SimulatedDirectory,
    SimulatedFileSystem,
    Trigger,
    everything_lost,
)
from tests.simulation.store import SimulatedStore

BACKUP, RESTORED = "/backup", "/restored"
VALUES = [b"one" * 3000, b"two" * 3000, b"three" * 3000]


class WatchedDirectory(SimulatedDirectory):
    """A directory that gets the error of a failed write back while it is open, once."""

    error = False

    def sync_all(self) -> None:
        if self.error:
            self.error = False
            raise OSError(errno.EIO, "syncfs: Input/output error", "/backup")
        super().sync_all()


class WritingBack(SimulatedFileSystem):
    """A file system whose kernel may fail to write back, and reports that to the files that are open at that moment."""

    directory: WatchedDirectory | None = None

    def open_directory(self, path: str) -> SimulatedDirectory:
        super().open_directory(path)
        self.directory = WatchedDirectory(self, path)
        return self.directory


async def filled(*values: bytes, files: SimulatedFileSystem | None = None) -> SimulatedFileSystem:
    files = files or WritingBack()
    async with open_simulated(files) as engine:
        await engine.create_shard("plant", ShardConfig(), exist_ok=True)
        for value in values:
            await append(engine, "plant", value)
            await engine.roll("plant")
    return files


def make(
    files: SimulatedFileSystem, progress: Callable[[int], None] | None = None, part_bytes: int = 1 << 30
) -> BackupResult:
    return back_up(files, Source(DATA, 1), BACKUP, now_us=1, keep=3, progress=progress, part_bytes=part_bytes)


def killed(files: SimulatedFileSystem) -> SimulatedFileSystem:
    """What the next process finds."""
    return WritingBack(disk=files.kill(everything_lost).disk)


def without_power(files: SimulatedFileSystem) -> SimulatedFileSystem:
    return WritingBack(disk=files.crash(everything_lost).disk)


def lose_pages(files: SimulatedFileSystem, below: str) -> int:
    """Fail to write back all dirty pages of the files below a directory; returns how many files that were."""
    lost = 0
    waiting = [files.disk.directory(below)]
    while waiting:
        for node in waiting.pop().volatile.values():
            if isinstance(node, Directory):
                waiting.append(node)
            elif node.unsynced:
                _lose(node)
                lost += 1
    return lost


def _lose(content: Content) -> None:
    content.unsynced.clear()


async def check_restored(files: SimulatedFileSystem, values: list[bytes]) -> None:
    """Lose the power, check every content, restore, lose the power again, and read everything."""
    files = without_power(files)
    if not files.exists(RESTORED):
        restore(files, BACKUP, RESTORED)
        files = without_power(files)
    report = check_directory(RESTORED, files=files, open_store=lambda path: SimulatedStore(files, path))
    assert report.damages == []
    files.rename(DATA, "/before")
    files.rename(RESTORED, DATA)
    async with open_simulated(files) as engine:
        assert await values_of(engine, "plant") == values


@pytest.mark.parametrize("before", [0, 1], ids=["first", "second"])
async def test_contents_of_a_killed_backup_that_were_not_written_back_are_stored_again(before: int) -> None:
    """The next backup found them there, with the right size, and its own sync succeeded: it relied on lost contents."""
    files = await filled(*VALUES[:2])
    for _ in range(before):
        make(files)
    if before:
        await filled(VALUES[2], files=files)
    files.crash_at(1, pattern="^sync all")
    with pytest.raises(CrashNow):
        make(files)
    files = killed(files)
    lost = lose_pages(files, f"{BACKUP}/objects")
    made = make(files)
    assert made.copied_files == lost > 0
    await check_restored(files, VALUES[: 2 + before])


@pytest.mark.slow("an engine after each place of a kill")
async def test_every_place_to_kill_a_backup_and_lose_what_it_wrote() -> None:
    """The same at every step of a backup that syncs now and then; what it noted as synced is not stored again."""
    operation, spared = 0, 0
    while True:
        operation += 1
        files = await filled(*VALUES)
        files.crash_at(operation, pattern=BACKUP)
        try:
            made = make(files, part_bytes=9000)
        except CrashNow:
            files = killed(files)
            lose_pages(files, "/")
            made = make(files, part_bytes=9000)
        else:
            break
        spared += made.copied_files < made.files
        await check_restored(files, VALUES)
    assert operation > 60
    assert spared > 20


async def test_a_backup_notices_that_a_content_was_not_written_back_while_it_copied_others() -> None:
    """Its sync began after the failure and was not told of it; the manifest named contents that were lost."""
    files = await filled(*VALUES)
    assert isinstance(files, WritingBack)
    steps = lost = 0

    def progress(_: int) -> None:
        nonlocal steps, lost
        steps += 1
        if steps == 5:
            lost = lose_pages(files, f"{BACKUP}/objects")
            if files.directory is not None:
                files.directory.error = True

    with pytest.raises(OSError, match="syncfs"):
        make(files, progress)
    assert lost > 1
    assert [name for name in files.listdir(f"{BACKUP}/manifests") if not name.endswith(".new")] == []
    made = make(files)
    assert made.copied_files == made.files
    await check_restored(files, VALUES)


@pytest.mark.parametrize(
    "pattern", ["^sync all", rf"^fsync {BACKUP}/manifests/", rf"^sync directory {BACKUP}/manifests"]
)
@pytest.mark.parametrize("keep_entries", [True, False])
async def test_a_content_whose_sync_failed_is_written_again_into_a_new_file(pattern: str, keep_entries: bool) -> None:
    """A backup that failed at its end left contents behind, and the disk refused to remove them: the next one used
    them."""
    files = await filled(*VALUES)
    make(files)
    await filled(b"four", files=files)
    files.inject(Fault(Trigger(1, pattern), errno.EIO, keep_entries=keep_entries))
    files.inject(Fault(Trigger(1, rf"^remove {BACKUP}/objects", lasts=1000), errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        make(files)
    files = killed(files)
    make(files)
    await check_restored(files, [*VALUES, b"four"])


async def test_a_missing_content_that_a_manifest_names_is_durable_before_it_has_its_name() -> None:
    """Stored again by a backup that was killed, it was relied on by the next one because an old manifest names it."""
    files = await filled(*VALUES)
    make(files)
    largest = max(
        (
            f"{BACKUP}/objects/{fan}/{name}"
            for fan in files.listdir(f"{BACKUP}/objects")
            for name in files.listdir(f"{BACKUP}/objects/{fan}")
        ),
        key=lambda path: files.open(path, write=False).size(),
    )
    files.remove(largest)
    files.sync_directory(posixpath.dirname(largest))
    files.crash_at(1, pattern=r"^write .*manifests/00000002.new")
    with pytest.raises(CrashNow):
        make(files)
    files = killed(files)
    files.crash_at(1, pattern=rf"^rename {BACKUP}/manifests/")
    with pytest.raises(CrashNow):
        make(files)
    files = killed(files)
    lose_pages(files, "/")
    make(files)
    await check_restored(files, VALUES)


@pytest.mark.slow("an engine after each place of a kill")
async def test_every_place_to_kill_a_restore_and_lose_what_it_wrote() -> None:
    """A restore that was interrupted compared what it found, which reads well, and did not bring it again."""
    operation = spared = 0
    while True:
        operation += 1
        files = await filled(*VALUES)
        made = make(files)
        files.crash_at(operation, pattern=RESTORED)
        try:
            restore(files, BACKUP, RESTORED, part_bytes=9000)
        except CrashNow:
            files = killed(files)
            lose_pages(files, "/")
            if files.exists(f"{RESTORED}/FORMAT") and not files.exists(f"{RESTORED}/RESTORING"):
                # Killed when all was done.
                continue
            again = restore(files, BACKUP, RESTORED, part_bytes=9000)
            spared += 0 < again.copied_files < made.files
        else:
            break
        await check_restored(files, VALUES)
    assert operation > 60
    assert spared > 20
