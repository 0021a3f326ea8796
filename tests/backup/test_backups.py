"""Backups of a directory and the way back: what is copied, what is kept, what is refused, what a kill leaves."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from journal.backup import BackupResult, Source, back_up, newest_lsn, restore
from journal.check import check_directory
from journal.engine import open_engine
from shards.errors import CorruptionError, DataDirectoryError, FormatVersionError
from shards.model import ShardConfig
from shards.seams.os_file_system import OsDirectory, OsFile, OsFileSystem
from tests.journal.engines import append, config, stop_without_checkpoint, values_of
from tests.simulation.inline import InlineConverter

FILES = OsFileSystem()


def make(source: Path, target: Path, *, keep: int = 3) -> BackupResult:
    lsn = newest_lsn(FILES, f"{source}/journal")
    return back_up(FILES, Source(str(source), lsn), str(target), now_us=1, keep=keep)


def objects(backup: Path) -> dict[str, Path]:
    return {path.name: path for path in backup.glob("objects/*/*")}


async def write(directory: Path, *values: bytes, convert: bool = False) -> None:
    async with open_engine(str(directory), config(), make_converter=lambda: InlineConverter(FILES)) as engine:
        await engine.create_shard("plant", ShardConfig(), exist_ok=True)
        await append(engine, "plant", *values)
        if convert:
            await engine.convert("plant")


async def read(directory: Path) -> list[bytes]:
    async with open_engine(str(directory), config()) as engine:
        return await values_of(engine, "plant")


@pytest.fixture
async def data(tmp_path: Path) -> Path:
    """A data directory at rest with a sealed segment and a log."""
    directory = tmp_path / "data"
    await write(directory, b"one" * 1000, convert=True)
    await write(directory, b"two" * 1000)
    return directory


VALUES = [b"one" * 1000, b"two" * 1000]


async def test_what_was_backed_up_is_restored(data: Path, tmp_path: Path) -> None:
    (data / "sealed/notes.txt").write_text("a file of the operator")
    made = make(data, tmp_path / "backup")
    assert made.number == 1
    assert made.copied_files == made.files > 4
    assert check_directory(str(tmp_path / "backup")).damages == []
    restored = restore(FILES, str(tmp_path / "backup"), str(tmp_path / "new/data"))
    assert (restored.number, restored.lsn, restored.files) == (1, made.lsn, made.files)
    report = check_directory(str(tmp_path / "new/data"))
    assert (report.damages, report.notes) == ([], [])
    assert report.counts.sealed_segments == 1
    assert await read(tmp_path / "new/data") == VALUES


async def test_a_second_backup_copies_what_is_new_and_reads_what_changed(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(data, tmp_path / "backup")
    before = set(objects(tmp_path / "backup"))
    await write(data, b"three")
    opened: list[str] = []
    genuine = OsFileSystem.open

    def spying(self: OsFileSystem, path: str, **options: bool) -> OsFile:
        file = genuine(self, path, **options)
        pread = file.pread

        def read_it(size: int, position: int) -> bytes:
            opened.append(path)
            return pread(size, position)

        file.pread = read_it  # type: ignore[method-assign]
        return file

    monkeypatch.setattr(OsFileSystem, "open", spying)
    second = make(data, tmp_path / "backup")
    assert second.number == 2
    assert 0 < second.copied_files < second.files
    assert not [path for path in opened if path.startswith(str(data)) and path.endswith(".parquet")]
    assert before < set(objects(tmp_path / "backup"))
    monkeypatch.undo()

    assert check_directory(str(tmp_path / "backup")).damages == []
    for number, expected in ((1, VALUES), (2, [*VALUES, b"three"])):
        restore(FILES, str(tmp_path / "backup"), str(tmp_path / f"restored-{number}"), number=number)
        assert await read(tmp_path / f"restored-{number}") == expected


async def test_an_unchanged_directory_is_not_copied_twice(data: Path, tmp_path: Path) -> None:
    make(data, tmp_path / "backup")
    again = make(data, tmp_path / "backup")
    assert (again.number, again.copied_files, again.copied_bytes) == (2, 0, 0)


async def test_the_same_content_under_a_new_time_is_not_copied_again(data: Path, tmp_path: Path) -> None:
    make(data, tmp_path / "backup")
    shutil.copytree(data, tmp_path / "moved", copy_function=shutil.copy)
    assert make(tmp_path / "moved", tmp_path / "backup").copied_files == 0


async def test_older_backups_go_with_what_only_they_had(data: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    for number in range(4):
        await write(data, b"value %d" % number)
        made = make(data, backup, keep=2)
    assert made.freed_bytes > 0
    assert sorted(path.name for path in (backup / "manifests").iterdir()) == ["00000003", "00000004"]
    report = check_directory(str(backup))
    assert report.damages == []
    restore(FILES, str(backup), str(tmp_path / "third"), number=3)
    assert (await read(tmp_path / "third"))[-1] == b"value 2"
    with pytest.raises(DataDirectoryError, match="no backup 1; there are: 3, 4"):
        restore(FILES, str(backup), str(tmp_path / "first"), number=1)


class Killed(BaseException):
    """Stands for a kill: nothing of ours may catch it."""


def interrupt_after(patch: pytest.MonkeyPatch, calls: int, name: str, where: type) -> None:
    genuine: Callable[..., object] = getattr(where, name)
    left = calls

    def counted(*arguments: object, **options: object) -> object:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed
        return genuine(*arguments, **options)

    patch.setattr(where, name, counted)


def fail_once(patch: pytest.MonkeyPatch) -> None:
    """Let the next sync of everything fail, as the kernel reports a failed write back: once."""
    genuine = OsDirectory.sync_all
    left = 1

    def sync_all(directory: OsDirectory) -> None:
        nonlocal left
        if left:
            left -= 1
            raise OSError(errno.EIO, "syncfs: Input/output error", directory.path)
        genuine(directory)

    patch.setattr(OsDirectory, "sync_all", sync_all)


async def test_a_backup_whose_sync_failed_leaves_nothing_that_the_next_one_relies_on(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = tmp_path / "backup"
    make(data, backup)
    before = {digest: path.stat().st_ino for digest, path in objects(backup).items()}
    await write(data, b"three", convert=True)
    fail_once(monkeypatch)
    with pytest.raises(OSError, match="syncfs"):
        make(data, backup)
    # Held open, so that no number is given to another file.
    left = {digest: path.open("rb") for digest, path in objects(backup).items() if digest not in before}
    made = make(data, backup)
    assert made.copied_files == len(left) > 0
    for digest, file in left.items():
        with file:
            assert objects(backup)[digest].stat().st_ino != os.fstat(file.fileno()).st_ino
    assert before.items() <= {digest: path.stat().st_ino for digest, path in objects(backup).items()}.items()
    restore(FILES, str(backup), str(tmp_path / "restored"))
    assert await read(tmp_path / "restored") == [*VALUES, b"three"]


async def test_a_restore_whose_sync_failed_brings_every_file_anew(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup, target = tmp_path / "backup", tmp_path / "restored"
    made = make(data, backup)
    fail_once(monkeypatch)
    with pytest.raises(OSError, match="syncfs"):
        restore(FILES, str(backup), str(target))
    assert restore(FILES, str(backup), str(target)).copied_files == made.files
    assert await read(target) == VALUES


@pytest.mark.slow("kills backups")
@pytest.mark.parametrize("calls", [0, 1, 2, 5, 9, 14, 25])
@pytest.mark.parametrize("name", ["rename", "open"])
async def test_a_backup_that_is_killed_leaves_the_one_before_and_continues(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int, name: str
) -> None:
    backup = tmp_path / "backup"
    make(data, backup, keep=1)
    await write(data, b"three", convert=True)
    with monkeypatch.context() as patch:
        interrupt_after(patch, calls, name, OsFileSystem)
        try:
            make(data, backup, keep=1)
            killed = False
        except Killed:
            killed = True
    assert check_directory(str(backup)).damages == []
    restored = restore(FILES, str(backup), str(tmp_path / "between"))
    assert await read(tmp_path / "between") == (VALUES if restored.number == 1 else [*VALUES, b"three"])
    assert restored.number == 2 or killed

    final = make(data, backup, keep=1)
    restore(FILES, str(backup), str(tmp_path / "after"))
    assert await read(tmp_path / "after") == [*VALUES, b"three"]
    entries = {path.name for path in backup.iterdir()}
    assert entries == {"BACKUP", "LOCK", "manifests", "objects"}
    assert len(list((backup / "manifests").iterdir())) == 1
    assert final.files >= len(objects(backup)) > 0


async def test_a_first_backup_that_is_killed_is_none_yet(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = tmp_path / "backup"
    with monkeypatch.context() as patch:
        interrupt_after(patch, 5, "rename", OsFileSystem)
        with pytest.raises(Killed):
            make(data, backup)
    copied = len(objects(backup))
    assert copied > 0
    report = check_directory(str(backup))
    assert (report.damages, len(report.notes)) == ([], 1)
    with pytest.raises(DataDirectoryError, match="no complete backup yet"):
        restore(FILES, str(backup), str(tmp_path / "restored"))
    made = make(data, backup)
    # Whether what it had copied reached the disk is not known: it is copied again.
    assert made.copied_files == len(objects(backup)) >= copied


async def test_a_backup_that_was_interrupted_continues_where_it_was_last_synced(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = tmp_path / "backup"

    def back_up_in_parts() -> BackupResult:
        return back_up(FILES, Source(str(data), 1), str(backup), now_us=1, keep=3, part_bytes=1)

    with monkeypatch.context() as patch:
        interrupt_after(patch, 9, "rename", OsFileSystem)
        with pytest.raises(Killed):
            back_up_in_parts()
    assert [path.name for path in (backup / "manifests").glob("*.part")] == ["00000001.part"]
    copied = len(objects(backup))
    assert copied > 1
    made = back_up_in_parts()
    # The last one may have been stored and not noted.
    assert made.copied_files in (len(objects(backup)) - copied, len(objects(backup)) - copied + 1)
    assert {path.name for path in (backup / "manifests").iterdir()} == {"00000001"}
    assert check_directory(str(backup)).damages == []
    restore(FILES, str(backup), str(tmp_path / "restored"))
    assert await read(tmp_path / "restored") == VALUES


async def test_a_restore_that_was_killed_at_its_first_file_is_reported_with_the_way_out(
    data: Path, tmp_path: Path
) -> None:
    backup, target = tmp_path / "backup", tmp_path / "restored"
    make(data, backup)
    target.mkdir()
    (target / "RESTORING.new").write_text('{"bac')
    with pytest.raises(DataDirectoryError, match="run `journal restore` once more"):
        async with open_engine(str(target), config()):
            raise AssertionError
    restore(FILES, str(backup), str(target))
    assert check_directory(str(target)).damages == []


@pytest.mark.few_cases(6, "a killed process for each step")
@pytest.mark.parametrize("calls", [0, 3, 8, 12, 16, 20, 24])
@pytest.mark.parametrize("name", ["open", "rename", "remove", "lock"])
async def test_a_killed_restore_cannot_be_opened_and_continues(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int, name: str
) -> None:
    backup, target = tmp_path / "backup", tmp_path / "restored"
    made = make(data, backup)
    with monkeypatch.context() as patch:
        interrupt_after(patch, calls, name, OsFileSystem)
        with contextlib.suppress(Killed):
            restore(FILES, str(backup), str(target))
    # A directory that is there is marked: an empty one would be a new node to a server.
    if target.exists() and not (target / "FORMAT").exists():
        with pytest.raises(DataDirectoryError, match="only partly restored"):
            async with open_engine(str(target), config()):
                raise AssertionError
    if not (target / "FORMAT").exists() or (target / "RESTORING").exists():
        again = restore(FILES, str(backup), str(target))
        assert again.copied_files <= made.files
    assert not (target / "RESTORING").exists()
    assert check_directory(str(target)).damages == []
    assert await read(target) == VALUES


async def test_a_restore_leaves_alone_what_is_in_its_way(data: Path, tmp_path: Path) -> None:
    backup, target = tmp_path / "backup", tmp_path / "restored"
    make(data, backup)
    (tmp_path / "restored.restoring").mkdir()
    (tmp_path / "restored.restoring/notes.txt").write_text("of the operator")
    with pytest.raises(DataDirectoryError, match=r"restored\.restoring is in the way.*notes\.txt; remove or rename it"):
        restore(FILES, str(backup), str(target))
    assert not target.exists()


async def test_a_restored_directory_that_was_used_already_is_left_alone(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after FORMAT had its place and before the marker went: a server may have written since."""
    backup, target = tmp_path / "backup", tmp_path / "restored"
    make(data, backup)
    with monkeypatch.context() as patch:
        interrupt_after(patch, 0, "remove", OsFileSystem)
        with pytest.raises(Killed):
            restore(FILES, str(backup), str(target))
    await write(target, b"since")
    assert restore(FILES, str(backup), str(target)).copied_files == 0
    assert await read(target) == [*VALUES, b"since"]


async def test_what_an_interrupted_restore_synced_is_compared_not_copied(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup, target = tmp_path / "backup", tmp_path / "restored"
    made = make(data, backup)
    with monkeypatch.context() as patch:
        interrupt_after(patch, made.files, "rename", OsFileSystem)
        with pytest.raises(Killed):
            restore(FILES, str(backup), str(target), part_bytes=1)
    (log,) = target.glob("log/*/*.log")
    damaged = bytearray(log.read_bytes())
    damaged[100] ^= 1
    log.write_bytes(damaged)
    again = restore(FILES, str(backup), str(target))
    # FORMAT, which comes last, and the damaged one.
    assert 2 <= again.copied_files <= 3 < made.files
    assert check_directory(str(target)).damages == []
    assert await read(target) == VALUES


def _marker_of(backup: Path, tmp_path: Path) -> bytes:
    """The marker that a restore writes, taken from one that was killed before it had FORMAT."""
    with pytest.MonkeyPatch.context() as patch:
        interrupt_after(patch, 2, "rename", OsFileSystem)
        with pytest.raises(Killed):
            restore(FILES, str(backup), str(tmp_path / "other"))
    return (tmp_path / "other/RESTORING").read_bytes()


@pytest.mark.parametrize("what", ["flipped", "cut", "missing"])
async def test_a_damaged_object_is_found_and_not_restored(data: Path, tmp_path: Path, what: str) -> None:
    backup = tmp_path / "backup"
    make(data, backup)
    stored = max(objects(backup).values(), key=lambda path: path.stat().st_blocks)
    content = stored.read_bytes()
    if what == "missing":
        stored.unlink()
    else:
        stored.write_bytes(content[:-1] if what == "cut" else bytes([content[0] ^ 1]) + content[1:])
    report = check_directory(str(backup))
    assert [finding.path for finding in report.damages] == [str(stored)]
    assert "of backup 1" in report.damages[0].problem
    with pytest.raises(CorruptionError, match=stored.name):
        restore(FILES, str(backup), str(tmp_path / "restored"))
    # The way out that the check names.
    stored.unlink(missing_ok=True)
    assert make(data, backup).copied_files == 1
    assert check_directory(str(backup)).damages == []


@pytest.mark.parametrize("at", [0, 40, -30, "end"])
async def test_a_damaged_manifest_is_found_and_not_restored(data: Path, tmp_path: Path, at: int | str) -> None:
    backup = tmp_path / "backup"
    make(data, backup)
    manifest = backup / "manifests/00000001"
    content = bytearray(manifest.read_bytes())
    if isinstance(at, str):
        del content[content.rindex(b"{") :]
    else:
        content[at] ^= 1
    manifest.write_bytes(content)
    report = check_directory(str(backup))
    assert [finding.path for finding in report.damages] == [str(manifest)]
    with pytest.raises(CorruptionError, match="00000001"):
        restore(FILES, str(backup), str(tmp_path / "restored"))
    assert not (tmp_path / "restored/FORMAT").exists()


async def test_a_manifest_that_names_files_elsewhere_is_refused(data: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    make(data, backup)
    manifest = backup / "manifests/00000001"
    manifest.write_bytes(manifest.read_bytes().replace(b'"path":"FORMAT"', b'"path":"../../x"'))
    with pytest.raises(CorruptionError, match="does not name a file"):
        restore(FILES, str(backup), str(tmp_path / "restored"))


async def test_a_damage_inside_of_what_was_backed_up_is_reported_with_the_backup(data: Path, tmp_path: Path) -> None:
    (log,) = data.glob("log/*/*.log")
    damaged = bytearray(log.read_bytes())
    damaged[200] ^= 1
    log.write_bytes(damaged)
    make(data, tmp_path / "backup")
    (found,) = check_directory(str(tmp_path / "backup")).damages
    assert found.path == f"{tmp_path}/backup/@1/log/{log.parent.name}/{log.name}"


async def test_targets_that_hold_something_else_are_refused(data: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    make(data, backup)
    occupied = tmp_path / "occupied"
    occupied.mkdir()
    (occupied / "letter").write_text("mine")
    with pytest.raises(DataDirectoryError, match="not empty: it contains letter"):
        restore(FILES, str(backup), str(occupied))
    with pytest.raises(DataDirectoryError, match="not empty"):
        restore(FILES, str(backup), str(data))
    with pytest.raises(DataDirectoryError, match="holds letter"):
        make(data, occupied)
    assert [path.name for path in occupied.iterdir()] in (["letter", "LOCK"], ["LOCK", "letter"])
    with pytest.raises(DataDirectoryError, match="holds no backups"):
        restore(FILES, str(occupied), str(tmp_path / "restored"))
    await write(tmp_path / "another", b"of another node")
    with pytest.raises(DataDirectoryError, match="backups of node"):
        make(tmp_path / "another", backup)
    with pytest.raises(DataDirectoryError, match="`journal restore` first"):
        async with open_engine(str(backup), config()):
            raise AssertionError


async def test_part_of_another_backup_is_refused(data: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    make(data, backup)
    _marker_of(backup, tmp_path)
    await write(data, b"three")
    make(data, backup)
    with pytest.raises(DataDirectoryError, match="part of another backup"):
        restore(FILES, str(backup), str(tmp_path / "other"))
    restore(FILES, str(backup), str(tmp_path / "other"), number=1)
    assert await read(tmp_path / "other") == VALUES


async def test_one_process_at_a_time_uses_a_backup_directory(data: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    make(data, backup)
    lock = FILES.lock(str(backup))
    try:
        for use in (
            lambda: make(data, backup),
            lambda: restore(FILES, str(backup), str(tmp_path / "restored")),
            lambda: check_directory(str(backup)),
        ):
            with pytest.raises(DataDirectoryError, match="in use"):
                use()
    finally:
        lock.release()


async def test_backups_of_a_newer_program_are_refused(data: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    make(data, backup)
    marker = (backup / "BACKUP").read_text()
    (backup / "BACKUP").write_text(marker.replace('"version": 1', '"version": 2'))
    with pytest.raises(FormatVersionError, match="backup layout 2"):
        restore(FILES, str(backup), str(tmp_path / "restored"))
    (backup / "BACKUP").write_text(marker)
    manifest = backup / "manifests/00000001"
    manifest.write_bytes(manifest.read_bytes().replace(b'"version":2', b'"version":3', 1))
    with pytest.raises(FormatVersionError, match="manifest format 3"):
        restore(FILES, str(backup), str(tmp_path / "restored"))


async def test_a_backup_with_a_manifest_of_version_1_is_checked_restored_and_built_upon(
    data: Path, tmp_path: Path
) -> None:
    made = make(data, tmp_path / "backup")
    manifest = tmp_path / "backup/manifests/00000001"
    lines = manifest.read_bytes().replace(b'"version":2', b'"version":1', 1).splitlines(keepends=True)[:-1]
    digest = hashlib.sha256(b"".join(lines)).hexdigest()
    last = f'{{"files":{made.files},"sealed_sha256":"{digest}","size_bytes":{made.size_bytes}}}\n'
    manifest.write_bytes(b"".join(lines) + last.encode())

    assert check_directory(str(tmp_path / "backup")).damages == []
    again = make(data, tmp_path / "backup")
    assert (again.number, again.copied_files) == (2, 0)
    restore(FILES, str(tmp_path / "backup"), str(tmp_path / "restored"), number=1)
    assert await read(tmp_path / "restored") == VALUES


async def test_a_directory_as_a_crash_left_it_is_backed_up_as_it_is(tmp_path: Path) -> None:
    """Its views are behind its journal: a start on the restored directory recovers, as one on this would."""
    data = tmp_path / "data"
    async with open_engine(str(data), config()) as engine:
        await engine.create_shard("plant", ShardConfig())
        await append(engine, "plant", *VALUES)
        lsn = engine.parts.committer.journal_lsn
        stop_without_checkpoint(engine)
    assert make(data, tmp_path / "backup").lsn == lsn
    assert check_directory(str(tmp_path / "backup")).damages == []
    restore(FILES, str(tmp_path / "backup"), str(tmp_path / "restored"))
    assert await read(tmp_path / "restored") == VALUES


async def test_a_source_that_goes_away_is_reported_as_such(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    genuine = OsFileSystem.listdir

    def leaving(self: OsFileSystem, path: str) -> list[str]:
        if path.endswith("/sealed"):
            data.rename(tmp_path / "data.gone")
        return genuine(self, path)

    monkeypatch.setattr(OsFileSystem, "listdir", leaving)
    with pytest.raises(DataDirectoryError, match="disappeared while it was being copied"):
        make(data, tmp_path / "backup")
    assert list((tmp_path / "backup/manifests").glob("0000000?")) == []


async def test_zeros_at_the_end_of_journal_files_take_no_space(data: Path, tmp_path: Path) -> None:
    (journal,) = (tmp_path / "data/journal").glob("journal-*.jnl")
    source = FILES.open(str(journal))
    source.truncate(64 << 20)
    source.close()
    back_up(FILES, Source(str(data), 1), str(tmp_path / "backup"), now_us=1, keep=1)
    stored = max(objects(tmp_path / "backup").values(), key=lambda path: path.stat().st_size)
    assert stored.stat().st_size == 64 << 20
    assert stored.stat().st_blocks * 512 < 4 << 20
