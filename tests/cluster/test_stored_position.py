"""A start reads the log on from where its journal ends, and not from its last checkpoint."""

from __future__ import annotations

import logging
import random
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.engine.shared_log.stored_position import (
    EVERY_SLOTS,
    StoredPosition,
    decode_position,
    encode_position,
    read_position,
)
from journal.engine.shared_log.writer import ResumePoint
from journal.engine.wal.journal_file import list_journal_files
from journal.logstore.keys import Position
from journal.logstore.stores.memory import MemoryLogStore
from shards.model import Mode, ShardConfig
from shards.seams.memory_file_system import MemoryFile, MemoryFileSystem
from tests.cluster.simulated_owner import owner
from tests.journal.engines import DATA, append, stop_without_checkpoint, values_of
from tests.simulation.file_system import SimulatedFileSystem

SHARD: Final = "plant/line"
VALUES: Final = [b"%d" % number for number in range(100)]
GOLDEN: Final = "4a504f5301000000030000000000000002010000000000004d000000000000005411d389"
NUMBERS: Final = st.integers(0, 2**64 - 1)


class CountingStore(MemoryLogStore):
    """Counts the slots that are read."""

    slots_read = 0

    def get(self, key: str) -> bytes | None:
        found = super().get(key)
        self.slots_read += "/log/" in key and found is not None
        return found


async def fill(store: MemoryLogStore, files: SimulatedFileSystem) -> None:
    """An owner appends all values, and is killed before it makes a checkpoint."""
    files.mkdir(DATA)
    async with owner(store, files, random.Random(1), journal_files=100) as engine:
        await engine.create_shard(SHARD, ShardConfig(mode=Mode.FILE))
        for value in VALUES:
            await append(engine, SHARD, value)
        stop_without_checkpoint(engine)


async def test_a_start_reads_only_the_last_slots_that_its_journal_has() -> None:
    """It read all slots since its last checkpoint, 40 a second from a distant object store."""
    store, files = CountingStore(), SimulatedFileSystem()
    await fill(store, files)
    store.slots_read = 0
    async with owner(store, files, random.Random(2)) as engine:
        assert await values_of(engine, SHARD) == VALUES
    # Fences of the epoch before are slots, too.
    assert store.slots_read <= EVERY_SLOTS + 3


async def test_a_position_after_the_end_of_the_journal_is_not_used() -> None:
    """A power loss can take the end of the journal and leave the position that was noted after it."""
    store, files = CountingStore(), SimulatedFileSystem()
    await fill(store, files)
    point = read_position(files, f"{DATA}/journal")
    assert point is not None
    *_, (_, newest) = list_journal_files(files, f"{DATA}/journal")
    file = files.open(newest, write=True)
    try:
        file.pwritev([bytes(file.size() - 4096)], 4096)
    finally:
        file.close()
    store.slots_read = 0
    async with owner(store, files, random.Random(2)) as engine:
        assert await values_of(engine, SHARD) == VALUES
    assert store.slots_read > len(VALUES)


def test_the_file_is_frozen() -> None:
    data = encode_position(ResumePoint(Position(3, 258), 77))
    assert data.hex() == GOLDEN
    assert decode_position(data) == ResumePoint(Position(3, 258), 77)


@given(NUMBERS, NUMBERS, NUMBERS, st.integers(0, 36 * 8 - 1), st.integers(0, 35))
def test_a_damaged_position_counts_as_none(epoch: int, slot: int, lsn: int, bit: int, size: int) -> None:
    data = encode_position(ResumePoint(Position(epoch, slot), lsn))
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    assert decode_position(bytes(changed)) is None
    assert decode_position(data[:size]) is None
    assert decode_position(data + b"x") is None


def test_a_disk_that_does_not_take_the_position_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    class FullFileSystem(MemoryFileSystem):
        def open(self, path: str, *, create: bool = False, write: bool = True) -> MemoryFile:
            raise OSError(28, "No space left on device")

    with caplog.at_level(logging.WARNING):
        position = StoredPosition(FullFileSystem(), "/journal")
        for epoch in (1, 2):
            position.note(ResumePoint(Position(epoch, 1), 5))
    (told,) = caplog.messages
    assert "/journal/log-position cannot be written: [Errno 28] No space left on device" in told
