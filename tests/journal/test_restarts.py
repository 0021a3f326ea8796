"""A directory opens again, whatever the engine did before it stopped. Each test is named after what once went wrong."""

from __future__ import annotations

import errno
from pathlib import Path

import attrs
import pytest
import trio

from journal.cli.dump import dump
from journal.engine.wal.entry import ENTRY_HEADER_SIZE, Entry, Kind, decode_entries, decode_entry_size, encode_entry
from journal.engine.wal.journal_file import FIRST_GROUP_POSITION
from shards.errors import CorruptionError, StorageFailedError
from shards.model import Mode, ShardConfig
from tests.journal.engines import (
    DATA,
    append,
    append_at_once,
    config,
    open_simulated,
    stop_without_checkpoint,
    values_of,
)
from tests.patience import PATIENCE_S
from tests.simulation.faults import Fault, Trigger
from tests.simulation.file_system import SimulatedFileSystem, everything_lost

IN_MEMORY = ShardConfig(mode=Mode.MEMORY)


async def test_memory_batches_that_wait_for_a_commit_leave_no_gap_in_the_journal() -> None:
    files = SimulatedFileSystem()
    async with open_simulated(files) as engine:
        await engine.create_shard("volatile", IN_MEMORY)
        await engine.create_shard("kept", ShardConfig())
        await append_at_once(engine, "volatile", 5)
        await append(engine, "kept", b"a")
    async with open_simulated(files) as engine:
        await append(engine, "kept", b"b")
    async with open_simulated(files) as engine:
        assert await values_of(engine, "kept") == [b"a", b"b"]


async def test_a_start_and_stop_with_nothing_done_leaves_no_gap_in_the_journal() -> None:
    files = SimulatedFileSystem()
    async with open_simulated(files) as engine:
        await engine.create_shard("volatile", IN_MEMORY)
        await engine.create_shard("kept", ShardConfig())
        for _ in range(3):
            await append(engine, "volatile", b"x")
    async with open_simulated(files):
        pass
    async with open_simulated(files) as engine:
        await append(engine, "kept", b"a")
    async with open_simulated(files) as engine:
        assert await values_of(engine, "kept") == [b"a"]


async def test_trimming_empty_segments_of_a_mode_switched_back_and_forth_keeps_the_live_file() -> None:
    files = SimulatedFileSystem()
    async with open_simulated(files) as engine:
        await engine.create_shard("kept", ShardConfig())
        await append(engine, "kept", b"old")
        for mode in (Mode.MEMORY, Mode.FILE, Mode.MEMORY, Mode.FILE):
            await engine.set_mode("kept", mode)
        await append(engine, "kept", b"new")
        await engine.parts.checkpointer.flush()
        await engine.trim("kept", 1)
        await engine.parts.checkpointer.remove_files()
        assert await values_of(engine, "kept") == [b"new"]
        assert len(files.listdir(f"{DATA}/log/01")) == 1
    async with open_simulated(files) as engine:
        assert await values_of(engine, "kept") == [b"new"]


async def test_a_segment_closed_while_a_checkpoint_is_made_continues_after_a_crash() -> None:
    files = SimulatedFileSystem()
    async with open_simulated(files) as engine:
        await engine.create_shard("kept", ShardConfig())
        await append(engine, "kept", b"a")
        flush = engine.parts.checkpointer.flush

        async def flush_and_let_more_come() -> None:
            await flush()
            await append(engine, "kept", b"b")
            await engine.roll("kept")
            await append(engine, "kept", b"c")

        engine.parts.checkpointer.flush = flush_and_let_more_come  # type: ignore[method-assign]
        await engine.parts.checkpointer.checkpoint()
        engine.parts.checkpointer.flush = flush  # type: ignore[method-assign]
        stop_without_checkpoint(engine)
    async with open_simulated(files.crash(everything_lost)) as engine:
        assert engine.parts.table.by_name("kept").damage == ""
        assert await values_of(engine, "kept") == [b"a", b"b", b"c"]


async def test_nothing_is_lost_when_the_journal_files_get_larger_or_smaller() -> None:
    files = SimulatedFileSystem()
    expected: list[bytes] = []
    for number, kib in enumerate((64, 128, 32, 256)):
        async with open_simulated(files, config(journal_file_bytes=kib * 1024)) as engine:
            if number == 0:
                await engine.create_shard("kept", ShardConfig())
            for _ in range(60):
                expected.append(b"%d" % len(expected) * 500)
                await append(engine, "kept", expected[-1])
            stop_without_checkpoint(engine)
        files = files.crash(everything_lost)
    async with open_simulated(files) as engine:
        assert await values_of(engine, "kept") == expected


async def test_a_roll_that_comes_again_over_newer_views_closes_no_newer_segment() -> None:
    """Defect: the views were saved, the checkpoint was not; a replayed roll to memory closed the segment after it.

    A later CONVERT then matched no segment, and what the Parquet file held could not be read.
    """
    files = SimulatedFileSystem()
    async with open_simulated(files) as engine:
        await engine.create_shard("s", ShardConfig())
        await append(engine, "s", b"file")
        await engine.set_mode("s", Mode.MEMORY)
        await append(engine, "s", b"memory")
        await engine.set_mode("s", Mode.FILE)
        await append(engine, "s", b"file again")
        checkpointer = engine.parts.checkpointer
        await checkpointer.flush()
        await checkpointer._flusher.sync()
        assert await checkpointer._save_records()
        engine.parts._store.flush()
        await append(engine, "s", b"later")
        before = [(segment.base_offset, segment.next_offset) for segment in engine.parts.table.by_name("s").segments]
        await engine.roll("s")
        stop_without_checkpoint(engine)
    async with open_simulated(files) as engine:
        shard = engine.parts.table.by_name("s")
        segments = [(segment.base_offset, segment.next_offset) for segment in shard.segments]
        assert segments[0] == (0, 1)
        assert (2, 4) in segments
        assert (1, 2) in before
        assert await values_of(engine, "s") == [b"file", b"file again", b"later"]


async def test_a_log_file_of_a_process_whose_directory_sync_failed_is_made_anew() -> None:
    """Its name may be in the cache alone: synced data would go with it when the power does."""
    files = SimulatedFileSystem()
    # By its name, not by its number: spare journal files are prepared at the same time.
    files.inject(Fault(Trigger(1, f"^sync directory {DATA}/log/01$"), errno.EIO, keep_entries=False))
    with pytest.raises(OSError, match="Input/output error"):
        await _append_and_flush(files)
    async with open_simulated(files) as engine:
        await append(engine, "s", b"two")
        await engine.parts.checkpointer.checkpoint()
        stop_without_checkpoint(engine)
    async with open_simulated(files.crash(everything_lost)) as engine:
        assert await values_of(engine, "s") == [b"one", b"two"]


async def _append_and_flush(files: SimulatedFileSystem) -> None:
    async with open_simulated(files) as engine:
        await engine.create_shard("s", ShardConfig())
        await append(engine, "s", b"one")
        try:
            await engine.parts.checkpointer.checkpoint()
        finally:
            stop_without_checkpoint(engine)


async def test_a_mark_follows_the_last_append_within_seconds() -> None:
    """Something durable behind the last group proves that it was whole."""
    files = SimulatedFileSystem()
    settings = attrs.evolve(config(), storage=attrs.evolve(config().storage, flush_interval_ms=20))
    async with open_simulated(files, settings) as engine:
        await engine.create_shard("s", ShardConfig())
        await append(engine, "s", b"value")
        assert not engine.parts.writer.is_marked
        with trio.fail_after(PATIENCE_S):
            while not engine.parts.writer.is_marked:
                await trio.sleep(0.01)
        stop_without_checkpoint(engine)
    async with open_simulated(files) as engine:
        assert await values_of(engine, "s") == [b"value"]


async def test_a_batch_in_a_group_that_was_never_synced_is_not_durable_by_being_sent_again() -> None:
    """Defect: killed between write and sync; after the restart a resend was acknowledged with no sync before it."""
    files = SimulatedFileSystem()
    async with open_simulated(files) as engine:
        await engine.create_shard("s", ShardConfig())
        await append(engine, "s", b"one")
        files.inject(Fault(Trigger(1, f"^fdatasync {DATA}/journal/"), errno.EIO, keep_entries=False))
        with pytest.raises(StorageFailedError):
            await append(engine, "s", b"two")
    for _ in range(2):
        async with open_simulated(files) as engine:
            assert await values_of(engine, "s") == [b"one", b"two"]
            stop_without_checkpoint(engine)
    async with open_simulated(files.crash(everything_lost)) as engine:
        assert await values_of(engine, "s") == [b"one", b"two"]


async def test_an_entry_of_a_newer_program_is_named_by_a_start_and_by_a_dump(tmp_path: Path) -> None:
    """Found by fuzzing: start and dump ended in a traceback at an entry with right checksums of another layout."""
    files = SimulatedFileSystem()
    async with open_simulated(files) as engine:
        await engine.put_state(b"key", b"value", None, 0)
        stop_without_checkpoint(engine)
    path = f"{DATA}/journal/journal-0000000000000001.jnl"
    file = files.open(path)
    content = file.pread(file.size(), 0)
    # The name of a field, as a newer program might have it, with the checksums that belong to it.
    view = memoryview(content)
    (entry,) = (
        entry
        for at in range(FIRST_GROUP_POSITION, len(view) - ENTRY_HEADER_SIZE, 8)
        if isinstance(size := decode_entry_size(view, at, len(view)), int)
        for entry in decode_entries(view, at, at + size)
        if isinstance(entry, Entry) and entry.kind == Kind.PUT_STATE
    )
    payload = bytes(entry.payload).replace(b"expires_at_us", b"expires_at_ns")
    changed = encode_entry(Kind.PUT_STATE, entry.lsn, entry.shard_id, payload)
    file.pwritev([changed], entry.position)
    with pytest.raises(CorruptionError, match=r"valid checksums, but is not a valid put_state: .*expires_at_us"):
        async with open_simulated(files):
            pass
    copy = tmp_path / "journal.jnl"
    copy.write_bytes(file.pread(file.size(), 0))
    with pytest.raises(CorruptionError, match=r"the payload is not a valid put_state"):
        dump(str(copy))
