"""A snapshot holds what was acknowledged before it, and stays as it is while the engine goes on."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
import trio
import trio.testing

from journal.check import check_directory
from journal.engine import Engine, open_engine
from journal.engine.directory.data_directory import MARKER
from journal.engine.segments import snapshots
from journal.engine.segments.checkpointer import Checkpointer
from journal.settings.server import ConversionConfig
from shards.errors import DiskFullError, OverloadedError, StorageFailedError
from shards.model import Mode, ShardConfig
from shards.seams.os_file_system import OsFileSystem
from tests.journal.engines import append, config, values_of
from tests.patience import PATIENCE_S
from tests.server.serving import serving


async def fill(engine: Engine, count: int = 200) -> list[bytes]:
    """Records in two segments, one of them sealed; a cursor and a key of state."""
    values = [b"%d" % number * 50 for number in range(count)]
    await engine.create_shard("plant", ShardConfig(segment_bytes=1 << 20))
    await append(engine, "plant", *values[: count // 2])
    await engine.convert("plant")
    await append(engine, "plant", *values[count // 2 :])
    await engine.commit_cursor("plant", "reader", 7, None)
    await engine.put_state(b"key", b"value", None, 0)
    return values


async def test_a_snapshot_opened_elsewhere_holds_what_was_acknowledged_before(tmp_path: Path) -> None:
    async with open_engine(str(tmp_path / "data"), config()) as engine:
        values = await fill(engine)
        (tmp_path / "data/sealed/notes.txt").write_text("a file of the operator")
        async with engine.parts.snapshots.take() as snapshot:
            assert snapshot.lsn == engine.parts.committer.journal_lsn
            await append(engine, "plant", b"too late")
            await engine.put_state(b"key", b"too late", None, 0)
            shutil.copytree(snapshot.path, tmp_path / "copy")
        assert not Path(snapshot.path).exists()
        assert list((tmp_path / "data/snapshots").iterdir()) == []
        newest_us = engine.now_us()

    assert check_directory(str(tmp_path / "copy")).damages == []
    async with open_engine(str(tmp_path / "copy"), config()) as copy:
        assert copy.node_id == engine.node_id
        assert copy.recovery.truncated_bytes == 0
        assert copy.parts.committer.next_lsn > snapshot.lsn
        assert await values_of(copy, "plant") == values
        assert copy.get_state(b"key").value == b"value"  # type: ignore[union-attr]
        assert copy.get_cursor("plant", "reader").offset == 7  # type: ignore[union-attr]
        await append(copy, "plant", b"another way")
        assert copy.now_us() >= newest_us
    assert check_directory(str(tmp_path / "copy")).damages == []


@pytest.mark.slow("waits for a connection to be taken for dead")
async def test_what_is_dropped_meanwhile_stays_in_the_snapshot(tmp_path: Path) -> None:
    # With a Delta table files stay for some time.
    without_table = attrs.evolve(config(), conversion=ConversionConfig(delta=False))
    async with open_engine(str(tmp_path / "data"), without_table) as engine:
        values = await fill(engine)
        async with engine.parts.snapshots.take() as snapshot:
            await engine.delete_shard("plant")
            await engine.create_shard("plant", ShardConfig())
            await append(engine, "plant", b"of a new life")
            # Everything that takes files away: a checkpoint recycles the journal, and removes what was dropped.
            for _ in range(3):
                await engine.parts.checkpointer.after_checkpoint(trio.lowlevel.checkpoint)
            assert [path.name for path in (tmp_path / "data/sealed").iterdir()] == [MARKER]
            shutil.copytree(snapshot.path, tmp_path / "copy")
    assert check_directory(str(tmp_path / "copy")).damages == []
    async with open_engine(str(tmp_path / "copy"), config()) as copy:
        assert await values_of(copy, "plant") == values


async def test_what_is_in_memory_only_is_not_in_it_and_its_offsets_are_not_given_again(tmp_path: Path) -> None:
    async with open_engine(str(tmp_path / "data"), config()) as engine:
        await engine.create_shard("volatile", ShardConfig(mode=Mode.MEMORY))
        await append(engine, "volatile", b"gone", b"gone")
        async with engine.parts.snapshots.take() as snapshot:
            shutil.copytree(snapshot.path, tmp_path / "copy")
    async with open_engine(str(tmp_path / "copy"), config()) as copy:
        assert await values_of(copy, "volatile") == []
        assert copy.shard("volatile").published_offset >= 2


async def test_an_empty_node_has_a_snapshot_too(tmp_path: Path) -> None:
    async with open_engine(str(tmp_path / "data"), config()) as engine:
        async with engine.parts.snapshots.take() as snapshot:
            assert snapshot.lsn == 0
            shutil.copytree(snapshot.path, tmp_path / "copy")
    assert check_directory(str(tmp_path / "copy")).damages == []


async def test_one_snapshot_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_engine(str(tmp_path / "data"), config()) as engine:
        async with engine.parts.snapshots.take():
            with monkeypatch.context() as patch, pytest.raises(OverloadedError, match="another backup"):
                patch.setattr(snapshots, "_PATIENCE_S", 0.05)
                async with engine.parts.snapshots.take():
                    raise AssertionError
        async with engine.parts.snapshots.take() as again:
            assert Path(again.path).is_dir()


async def test_who_comes_while_a_snapshot_is_let_go_of_gets_the_next(tmp_path: Path) -> None:
    async with open_engine(str(tmp_path / "data"), config()) as engine, trio.open_nursery() as nursery:
        taken: list[str] = []

        async def take() -> None:
            async with engine.parts.snapshots.take() as snapshot:
                taken.append(snapshot.path)

        async with engine.parts.snapshots.take() as first:
            nursery.start_soon(take)
            await trio.testing.wait_all_tasks_blocked()
            assert taken == []
        with trio.fail_after(PATIENCE_S):
            while not taken:
                await trio.lowlevel.checkpoint()
        assert taken != [first.path]


async def test_a_snapshot_that_cannot_be_made_is_no_failure_of_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(5, "Input/output error")

    async with open_engine(str(tmp_path / "data"), config()) as engine:
        await fill(engine)
        with monkeypatch.context() as patch:
            patch.setattr(OsFileSystem, "link", refuse)
            with pytest.raises(StorageFailedError, match="the server continues without it"):
                async with engine.parts.snapshots.take():
                    raise AssertionError
        assert list((tmp_path / "data/snapshots").iterdir()) == []
        await append(engine, "plant", b"still alive")
        assert engine.failure is None
        async with engine.parts.snapshots.take() as snapshot:
            assert Path(snapshot.path).is_dir()


def _mounted(*names: str) -> Callable[[OsFileSystem, str, str], None]:
    """Links as they are where these directories of the data directory are file systems of their own."""

    def file_system_of(path: str) -> str:
        return next((name for name in names if f"/data/{name}/" in os.path.realpath(path)), "")

    def link(_: OsFileSystem, source: str, target: str) -> None:
        if file_system_of(source) != file_system_of(target):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source, None, target)
        os.link(source, target)

    return link


async def test_the_journal_may_be_a_file_system_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OsFileSystem, "link", _mounted("journal", "state"))
    async with open_engine(str(tmp_path / "data"), config()) as engine:
        values = await fill(engine)
        async with engine.parts.snapshots.take() as snapshot:
            shutil.copytree(snapshot.path, tmp_path / "copy")
    assert check_directory(str(tmp_path / "copy")).damages == []
    async with open_engine(str(tmp_path / "copy"), config()) as copy:
        assert await values_of(copy, "plant") == values


@pytest.mark.slow("waits for a connection to be taken for dead")
async def test_segments_in_another_file_system_are_reported_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OsFileSystem, "link", _mounted("log"))
    async with open_engine(str(tmp_path / "data"), config()) as engine:
        await fill(engine)
        with pytest.raises(StorageFailedError, match=r"/data/log/.* on another file system .* back up while it is"):
            async with engine.parts.snapshots.take():
                raise AssertionError
        await append(engine, "plant", b"still alive")


async def test_without_a_checkpoint_there_is_no_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(self: Checkpointer, *, least_bytes: int = 0) -> bool:
        return False

    async with open_engine(str(tmp_path / "data"), config()) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(Checkpointer, "flush", full)
            with pytest.raises(DiskFullError):
                async with engine.parts.snapshots.take():
                    raise AssertionError


async def test_a_start_removes_what_a_killed_server_left(tmp_path: Path) -> None:
    async with open_engine(str(tmp_path / "data"), config()) as engine:
        values = await fill(engine)
        async with engine.parts.snapshots.take() as snapshot:
            shutil.copytree(snapshot.path, tmp_path / "left")
    shutil.copytree(tmp_path / "left", tmp_path / "data/snapshots/0badcafe")
    shutil.copytree(tmp_path / "left/log", tmp_path / "data/snapshots/1badcafe.gone/log")
    async with open_engine(str(tmp_path / "data"), config()) as engine:
        assert list((tmp_path / "data/snapshots").iterdir()) == []
        assert await values_of(engine, "plant") == values


async def test_appends_go_on_while_snapshots_are_made(tmp_path: Path) -> None:
    """Each snapshot has all that was acknowledged before it, and a whole prefix of the rest."""
    acknowledged = 0
    taken: list[tuple[int, str]] = []
    async with open_engine(str(tmp_path / "data"), config(journal_file_bytes=64 * 1024)) as engine:
        await engine.create_shard("plant", ShardConfig(segment_bytes=64 * 1024))

        async def write() -> None:
            nonlocal acknowledged
            while True:
                await append(engine, "plant", b"%06d" % acknowledged * 20)
                acknowledged += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            for number in range(4):
                while acknowledged < 200 * (number + 1):
                    await trio.sleep(0.001)
                before = acknowledged
                async with engine.parts.snapshots.take() as snapshot:
                    copy = str(tmp_path / f"copy-{number}")
                    await trio.to_thread.run_sync(shutil.copytree, snapshot.path, copy)
                taken.append((before, copy))
            nursery.cancel_scope.cancel()
    for before, path in taken:
        assert check_directory(path).damages == []
        async with open_engine(path, config(journal_file_bytes=64 * 1024)) as copied:
            values = await values_of(copied, "plant")
            assert len(values) >= before
            assert values == [b"%06d" % number * 20 for number in range(len(values))]


@pytest.mark.slow("waits for a connection to be taken for dead")
async def test_over_the_wire_it_is_held_as_long_as_the_connection(tmp_path: Path) -> None:
    from journal.client import open_client

    async with serving(tmp_path) as served:
        async with open_client(served.address) as client:
            reply = await client.snapshot()
            assert Path(reply.path).is_absolute()
            assert (Path(reply.path) / "FORMAT").exists()
            async with open_client(served.address) as second:
                with pytest.raises(OverloadedError):
                    await second.snapshot()
            assert (Path(reply.path) / "FORMAT").exists()
        with trio.fail_after(PATIENCE_S):
            while Path(reply.path).parent.exists() and list(Path(reply.path).parent.iterdir()):
                await trio.sleep(0.01)
