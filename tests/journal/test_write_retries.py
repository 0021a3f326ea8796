"""What finds no space, or comes faster than the views' store takes it, waits. It is no failure and nothing is lost."""

from __future__ import annotations

import errno
import threading

import pytest
import trio

from journal.engine import Engine, Environment, open_engine
from journal.engine.segments.write_retries import MOST_QUEUED_BYTES
from shards.errors import DiskFullError, StorageFailedError
from shards.model import ShardConfig
from tests.journal.engines import DATA, append, config, open_simulated, values_of
from tests.patience import PATIENCE_S
from tests.simulation.faults import Fault, Trigger
from tests.simulation.file_system import SimulatedFileSystem, everything_lost
from tests.simulation.inline import InlineDisk
from tests.simulation.store import SimulatedStore

LARGE = bytes(20_000)


class FullJournalDisk(SimulatedFileSystem):
    """The journal's disk has no space for another file while it is full."""

    def __init__(self) -> None:
        super().__init__()
        self._trigger_of_full = Trigger(1 << 60, "^create /data/journal/free-", lasts=1 << 60)
        self.inject(Fault(self._trigger_of_full, errno.ENOSPC))

    @property
    def full(self) -> bool:
        return self._trigger_of_full.nth == 0

    @full.setter
    def full(self, full: bool) -> None:
        self._trigger_of_full.nth = 0 if full else 1 << 60


async def until_a_group_waits(engine: Engine, files: FullJournalDisk, nursery: trio.Nursery) -> list[bytes]:
    """Append until the journal cannot go on in its next file; gives what was accepted."""
    accepted = []
    files.full = True
    with trio.fail_after(PATIENCE_S):
        while engine.parts.committer.disk_full is None:
            if engine.parts.disk_space.full is None:
                value = b"%d" % len(accepted) + LARGE
                accepted.append(value)
                nursery.start_soon(append, engine, "s", value)
            await trio.testing.wait_all_tasks_blocked(0.01)
            engine.parts.checkpointer.look_at_disk()
    return accepted


async def test_a_group_that_finds_no_space_for_the_next_journal_file_is_written_when_there_is_some() -> None:
    """The engine failed for ever although nothing of the group had been written anywhere."""
    files = FullJournalDisk()
    async with open_simulated(files) as engine:
        await engine.create_shard("s", ShardConfig())
        async with trio.open_nursery() as nursery:
            accepted = await until_a_group_waits(engine, files, nursery)
            assert engine.failure is None
            with pytest.raises(DiskFullError, match=r"/data/journal: No space left on device; free some space there"):
                await append(engine, "s", b"refused")
            with pytest.raises(DiskFullError, match="/data/journal"):
                await engine.put_state(b"k", b"v", None, 0)
            # Reads go on, and do not show what is not durable.
            assert await values_of(engine, "s") == accepted[: len(await values_of(engine, "s"))]
            assert len(await values_of(engine, "s")) < len(accepted)
            files.full = False
            # All tasks that wait for an acknowledgement get it.
        await append(engine, "s", b"taken again")
        assert engine.parts.disk_space.full is None
        assert await values_of(engine, "s") == [*accepted, b"taken again"]
    async with open_simulated(files.crash(everything_lost)) as engine:
        assert await values_of(engine, "s") == [*accepted, b"taken again"]


async def test_an_engine_that_is_closed_while_a_group_waits_for_space_gives_it_up() -> None:
    """Nothing would ever have ended the close."""
    files = FullJournalDisk()
    with trio.fail_after(PATIENCE_S):
        async with open_simulated(files) as engine:
            await engine.create_shard("s", ShardConfig())
            acknowledged = 0

            async def told(value: bytes) -> None:
                nonlocal acknowledged
                with pytest.raises(StorageFailedError, match="No space left"):
                    await append(engine, "s", value)
                    acknowledged += 1
                    raise StorageFailedError("No space left, or not: it was acknowledged")

            async with trio.open_nursery() as nursery:
                files.full = True
                while engine.parts.committer.disk_full is None:
                    if engine.parts.disk_space.full is None:
                        nursery.start_soon(told, LARGE)
                    await trio.testing.wait_all_tasks_blocked(0.01)
                    engine.parts.checkpointer.look_at_disk()
                await engine.parts.committer.drain()
        assert engine.failure is not None
    files.full = False
    async with open_simulated(files.crash(everything_lost)) as engine:
        assert len(await values_of(engine, "s")) == acknowledged


@pytest.mark.parametrize("leaves_empty_directory", [False, True])
async def test_a_directory_that_is_replaced_while_a_group_waits_for_space_is_a_failure(
    *, leaves_empty_directory: bool
) -> None:
    """The look at the disk that follows the report of the disk thread found it: there an error ends the process."""
    files = FullJournalDisk()
    with trio.fail_after(PATIENCE_S):
        async with open_simulated(files) as engine:
            await engine.create_shard("s", ShardConfig())
            await append(engine, "s", b"acknowledged")
            log = files.disk.vanish("/data/log", leave_empty_directory=leaves_empty_directory)
            engine.parts.committer.on_disk_full()
            assert "/data/log is not the directory that was opened" in str(engine.failure)
            with pytest.raises(StorageFailedError, match="/data/log is not the directory"):
                await append(engine, "s", b"refused")
    files.disk.put_back(log)
    async with open_simulated(files.kill(everything_lost)) as engine:
        assert await values_of(engine, "s") == [b"acknowledged"]


class BusyStore(SimulatedStore):
    """What is written to it counts as waiting until it has caught up, which it may only on request."""

    def __init__(self, files: SimulatedFileSystem, path: str) -> None:
        super().__init__(files, path)
        self.waiting_bytes = 0
        self.may_catch_up = threading.Event()

    @property
    def queued_bytes(self) -> int:
        return self.waiting_bytes

    def catch_up(self) -> None:
        assert self.may_catch_up.wait(PATIENCE_S)
        self.waiting_bytes = 0


async def test_no_more_groups_are_committed_while_the_store_of_the_views_is_far_behind() -> None:
    """What waits for the store is in memory, and had no bound but the speed of the journal."""
    files = SimulatedFileSystem()
    stores: list[BusyStore] = []

    def open_store(path: str) -> BusyStore:
        stores.append(BusyStore(files, path))
        return stores[-1]

    async with open_engine(
        DATA,
        config(),
        Environment(
            files=files,
            make_disk=InlineDisk,
            open_store=open_store,
        ),
    ) as engine:
        (store,) = stores
        await engine.create_shard("s", ShardConfig())
        assert engine.parts.checkpointer.has_room()
        store.waiting_bytes = MOST_QUEUED_BYTES + 1
        await engine.put_state(b"k", b"v", None, 0)
        assert not engine.parts.checkpointer.has_room()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(engine.parts.commands.put_state, b"k", b"w", None, 0)
            nursery.start_soon(append, engine, "s", b"v")
            await trio.testing.wait_all_tasks_blocked(0.05)
            state = engine.parts.views.state.get(b"k", 0)
            assert state is not None
            assert state.value == b"v", "a group was committed"
            store.may_catch_up.set()
        state = engine.parts.views.state.get(b"k", 0)
        assert state is not None
        assert state.value == b"w"
        assert await values_of(engine, "s") == [b"v"]
