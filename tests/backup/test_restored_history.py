"""After a restore nothing is given out twice, and readers can tell where the history may differ."""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import attrs
import msgspec
import pytest
import trio
import trio.testing

from broker_adapter.engines.embedded import EmbeddedAdapter
from journal.backup import Source, back_up, newest_lsn, restore
from journal.check import check_directory
from journal.engine import Engine, Environment, open_engine
from journal.engine.directory.restores import (
    LARGEST_LSN,
    LEAST_LSN_STEP,
    LSNS_PER_SECOND,
    MARKER,
    Restore,
    RestoreMarker,
    Restores,
    decode_restores,
    read_restore_marker,
)
from shards.errors import CorruptionError, DataDirectoryError, DiskFullError, StaleEpochError
from shards.format.batch import encode
from shards.format.batch_header import BatchHeader
from shards.format.record import Record
from shards.model import Mode, ProducerIdentity, ShardConfig
from shards.position import Start
from shards.seams.clock import ManualClock
from shards.seams.file_system import FileSystem
from shards.seams.memory_store import MemoryStore
from shards.seams.store import Family, Mutations
from tests.crash.simulation import SimulatedDisk, deterministic
from tests.journal.engines import DATA, append, config, stop_without_checkpoint, values_of
from tests.simulation.file_system import (
    Choose,
    CrashNow,
    SimulatedFileSystem,
    everything_lost,
    everything_survived,
)
from tests.simulation.inline import InlineDisk
from tests.simulation.store import SimulatedStore

BACKUP = "/backup"
RESTORED = "/restored"


@asynccontextmanager
async def opened(files: FileSystem, path: str, clock: ManualClock | None = None) -> AsyncIterator[Engine]:
    async with open_engine(
        path,
        config(),
        Environment(
            files=files,
            clock=clock or ManualClock(),
            make_disk=InlineDisk,
            open_store=lambda state: SimulatedStore(files, state),
        ),
    ) as engine:
        yield engine


@attrs.define
class Given:
    """Numbers that a node gave out; all of them come from its lsns, but for the epochs of producers."""

    lsns: set[int] = attrs.Factory(set)
    epochs: set[tuple[int, int]] = attrs.Factory(set)

    def add(self, lsn: int) -> None:
        assert 0 < lsn <= LARGEST_LSN
        assert lsn not in self.lsns
        self.lsns.add(lsn)

    def none_is_in(self, other: Given) -> None:
        assert not self.lsns & other.lsns
        assert not self.epochs & other.epochs


async def work(engine: Engine, given: Given, name: str) -> None:
    """Use everything that gives a number out, and note it. What readers see counts, acknowledged or not."""
    commands = engine.parts.commands
    info = await commands.create_shard(f"new/{name}", ShardConfig())
    given.add(info.shard_id)
    for shard in ("file", "memory"):
        await append(engine, shard, name.encode())
        given.add(engine.parts.table.by_name(shard).published_lsn)
    given.add((await commands.put_state(b"key", name.encode(), None, 0)).version)
    given.add((await commands.commit_cursor("file", "reader", 1, None)).version)
    known, unknown = await commands.open_producer("known"), await commands.open_producer(name)
    given.epochs |= {(known.producer_id, known.epoch), (unknown.producer_id, unknown.epoch)}
    given.add(unknown.producer_id)
    await append(engine, "file", b"end")
    given.add(engine.parts.table.by_name("file").published_lsn)


async def originals(files: SimulatedFileSystem, *, crash: bool = False) -> tuple[SimulatedFileSystem, Given]:
    """A node with a backup, and what it gave out after that."""
    async with opened(files, DATA) as engine:
        for name, mode in (("file", Mode.FILE), ("memory", Mode.MEMORY), ("quiet", Mode.FILE), ("empty", Mode.FILE)):
            await engine.create_shard(name, ShardConfig(mode=mode))
            if name != "empty":
                await append(engine, name, b"first")
        await engine.parts.checkpointer.checkpoint()
        await work(engine, Given(), "before")
        if crash:
            stop_without_checkpoint(engine)
    if crash:
        files = files.crash(everything_survived)
    make_backup(files, DATA)
    given = Given()
    async with opened(files, DATA) as engine:
        for number in range(3):
            await work(engine, given, f"after-{number}")
    return files, given


def make_backup(files: FileSystem, source: str) -> None:
    back_up(files, Source(source, newest_lsn(files, f"{source}/journal")), BACKUP, now_us=1, keep=3)


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "crashed"])
async def test_no_number_is_given_out_twice_after_a_restore(crash: bool) -> None:
    """The restored node went on at the backup's lsn: versions that clients remembered stood for other values."""
    files, after = await originals(SimulatedFileSystem(), crash=crash)
    restore(files, BACKUP, RESTORED)
    restored = Given()
    async with opened(files, RESTORED) as engine:
        assert engine.parts.committer.next_lsn >= LEAST_LSN_STEP
        await work(engine, restored, "restored")
    async with opened(files, RESTORED) as engine:
        await work(engine, restored, "again")
        assert await values_of(engine, "quiet") == [b"first"]
    after.none_is_in(restored)
    assert not check_directory(RESTORED, files=files, open_store=lambda path: SimulatedStore(files, path)).damages


async def test_two_restores_from_one_backup_give_out_different_numbers() -> None:
    files, after = await originals(SimulatedFileSystem())
    clock = ManualClock()
    lives = [after]
    for number in range(3):
        clock.advance(seconds=60)
        restore(files, BACKUP, f"{RESTORED}-{number}")
        life = Given()
        async with opened(files, f"{RESTORED}-{number}", clock) as engine:
            await work(engine, life, "restored")
            await work(engine, life, "more")
        for other in lives:
            life.none_is_in(other)
        lives.append(life)


async def test_a_restored_node_that_is_restored_again_remembers_both() -> None:
    files, _ = await originals(SimulatedFileSystem())
    clock = ManualClock()
    restore(files, BACKUP, RESTORED)
    first = Given()
    async with opened(files, RESTORED, clock) as engine:
        await work(engine, Given(), "restored")
    make_backup(files, RESTORED)
    async with opened(files, RESTORED, clock) as engine:
        await work(engine, first, "lost")
    restore(files, BACKUP, f"{RESTORED}-2")
    clock.advance(seconds=3600)
    second = Given()
    async with opened(files, f"{RESTORED}-2", clock) as engine:
        offsets = {name: engine.parts.table.by_name(name).info(with_segments=False) for name in ("file", "quiet")}
        await work(engine, second, "second")
        told = engine.parts.restores.told()
    first.none_is_in(second)
    assert len(told) == 2
    lsns = [lsn for one in told for lsn in (one["lsn_before"], one["lsn_after"])]
    assert lsns == sorted(lsns)
    assert told[1]["lsn_after"] - told[1]["lsn_before"] > LEAST_LSN_STEP
    assert told[1]["restored_us"] - told[0]["restored_us"] == 3_600_000_000
    # What the first restored life appended is in the second backup: its history differs further up.
    assert offsets["file"].restored_offset == offsets["file"].next_offset == 5
    assert offsets["quiet"].restored_offset == 1


# Readers


async def test_readers_of_a_shard_see_from_which_offset_its_history_may_differ() -> None:
    """Offsets above the backup are given to other records, and a reader that had been further did not notice."""
    files, _ = await originals(SimulatedFileSystem(), crash=True)
    async with opened(files, DATA) as engine:
        assert engine.parts.table.by_name("file").info(with_segments=False).restored_offset is None
        assert engine.parts.restores.told() == []
    restore(files, BACKUP, RESTORED)

    async def offset_of(engine: Engine, name: str) -> int | None:
        return engine.parts.table.by_name(name).info(with_segments=False).restored_offset

    async with opened(files, RESTORED) as engine:
        assert await offset_of(engine, "file") == engine.parts.table.by_name("file").published_offset == 3
        assert await offset_of(engine, "empty") == 0
        await append(engine, "file", b"other")
        await engine.create_shard("younger", ShardConfig())
        stop_without_checkpoint(engine)
    files = files.crash(everything_survived)
    for _ in range(2):
        async with opened(files, RESTORED) as engine:
            assert await offset_of(engine, "file") == 3
            assert await offset_of(engine, "memory") == 1
            assert await offset_of(engine, "younger") is None
            await append(engine, "file", b"more")
    async with opened(files, RESTORED) as engine:
        # A listing only looks at it; then it is opened for the first time, two restarts later.
        for name, expected in (("quiet", 1), ("memory", 1), ("empty", 0), ("younger", None)):
            assert engine.parts.table.peek_by_name(name).info(with_segments=False).restored_offset == expected
        assert await offset_of(engine, "quiet") == 1
        await append(engine, "quiet", b"other")
        await append(engine, "empty", b"other")
    async with opened(files, RESTORED) as engine:
        assert (await offset_of(engine, "quiet"), await offset_of(engine, "empty")) == (1, 0)


async def test_an_lsn_that_a_reader_remembers_is_between_those_of_the_restore() -> None:
    """How a reader finds out without any help of the shard: its lsn is one that this history never had."""
    files, after = await originals(SimulatedFileSystem())
    restore(files, BACKUP, RESTORED)
    async with opened(files, RESTORED) as engine:
        (told,) = engine.parts.restores.told()
        assert all(told["lsn_before"] < lsn < told["lsn_after"] for lsn in after.lsns)
        await append(engine, "file", b"new")
        shard = engine.parts.table.by_name("file")
        extent = await engine.parts.reader.read(shard, shard.published_offset - 1, 1 << 20)
        assert BatchHeader.unpack(b"".join(map(bytes, extent.buffers))).lsn >= told["lsn_after"]


async def test_positions_within_the_jump_and_behind_it_are_found() -> None:
    """A subscriber goes on at an lsn of the lost history: it gets everything that is new, and nothing twice."""
    files, after = await originals(SimulatedFileSystem())
    restore(files, BACKUP, RESTORED)
    async with opened(files, RESTORED) as engine:
        shard = engine.parts.table.by_name("file")
        end = shard.published_offset
        assert await engine.parts.reader.find_offset(shard, Start.lsn(max(after.lsns))) == end
        for name in ("file", "memory", "quiet"):
            await append(engine, name, b"new")
        newest = engine.parts.committer.committed_lsn
        assert newest > LEAST_LSN_STEP
        for position in (*sorted(after.lsns), min(after.lsns) + (1 << 39), engine.parts.restores.newest_lsn - 1):
            assert await engine.parts.reader.find_offset(shard, Start.lsn(position)) == end
        assert await engine.parts.reader.find_offset(shard, Start.lsn(newest + 1)) == end + 1
        async with EmbeddedAdapter(engine) as adapter:
            for position in (min(after.lsns), max(after.lsns), engine.parts.restores.newest_lsn - 1):
                found = []
                async with adapter.follow("#", position, until_lsn=newest) as feed:
                    async for item in feed:
                        found += [record.value for record in getattr(item, "records", ())]
                assert sorted(found) == [b"new"] * 3


# Producers


async def test_a_producer_that_was_opened_after_the_backup_is_fenced() -> None:
    """The next epoch was given out a second time: the holder from before the loss could write beside the new one."""
    files, after = await originals(SimulatedFileSystem())
    restore(files, BACKUP, RESTORED)
    async with opened(files, RESTORED) as engine:
        old = ProducerIdentity(*max(pair for pair in after.epochs if pair[0] < min(after.lsns)))
        new = await engine.open_producer("known")
        assert new.producer_id == old.producer_id
        assert new.epoch > old.epoch + 1000
        shard = engine.parts.table.by_name("file")
        with pytest.raises(StaleEpochError):
            await engine.append(shard, batch_of(old))
        await engine.append(shard, batch_of(new))
        assert (await engine.open_producer("known")).epoch == new.epoch + 1


def batch_of(identity: ProducerIdentity) -> bytes:
    return encode([Record(b"v")], now_us=1, producer_id=identity.producer_id, producer_epoch=identity.epoch, sequence=0)


# The marker


async def test_a_start_that_is_interrupted_takes_a_restore_over_once() -> None:
    files, _ = await originals(SimulatedFileSystem())
    restore(files, BACKUP, RESTORED)
    marker = read_restore_marker(files, RESTORED)
    assert marker is not None
    assert marker.number == 1
    content = files.open(f"{RESTORED}/{MARKER}").pread(1000, 0)
    async with opened(files, RESTORED) as engine:
        assert not files.exists(f"{RESTORED}/{MARKER}")
        (first,) = engine.parts.restores.told()
        await append(engine, "file", b"new")
    # A crash between the checkpoint and the removal of the marker.
    files.open(f"{RESTORED}/{MARKER}", create=True).pwritev([content], 0)
    async with opened(files, RESTORED) as engine:
        assert engine.parts.restores.told() == [first]
        assert not files.exists(f"{RESTORED}/{MARKER}")
        assert engine.parts.table.by_name("file").restored_offset == 3
        assert (await values_of(engine, "file"))[-1] == b"new"


async def test_a_directory_that_was_restored_and_never_started_can_be_backed_up_and_restored() -> None:
    files, after = await originals(SimulatedFileSystem())
    restore(files, BACKUP, RESTORED)
    report = check_directory(RESTORED, files=files, open_store=lambda path: SimulatedStore(files, path))
    assert (report.damages, report.notes) == ([], [])
    make_backup(files, RESTORED)
    restore(files, BACKUP, f"{RESTORED}-2")
    restored = Given()
    async with opened(files, f"{RESTORED}-2") as engine:
        await work(engine, restored, "restored")
    after.none_is_in(restored)


async def test_a_marker_that_cannot_be_read_is_refused() -> None:
    files, _ = await originals(SimulatedFileSystem())
    restore(files, BACKUP, RESTORED)
    file = files.open(f"{RESTORED}/{MARKER}")
    file.truncate(0)
    file.pwritev([b'{"number": 1}'], 0)
    with pytest.raises(CorruptionError, match="expected the marker of a restore"):
        async with opened(files, RESTORED):
            raise AssertionError


async def test_a_restored_node_does_not_start_without_room_for_its_first_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would give out numbers that a crash takes back."""
    files, _ = await originals(SimulatedFileSystem(), crash=True)
    restore(files, BACKUP, RESTORED)

    async def refused(self: object, **_: int) -> bool:
        return False

    with monkeypatch.context() as patch:
        patch.setattr("journal.engine.segments.checkpointer.Checkpointer.flush", refused)
        with pytest.raises(DiskFullError, match="no checkpoint could be made"):
            async with opened(files, RESTORED):
                raise AssertionError
    assert files.exists(f"{RESTORED}/{MARKER}")
    async with opened(files, RESTORED) as engine:
        assert len(engine.parts.restores.told()) == 1


def fates(seed: int) -> list[Choose]:
    return [everything_lost, everything_survived, random.Random(seed).randrange]


def runs_to_its_end(files: SimulatedFileSystem, body: Callable[[Engine], Awaitable[None]]) -> bool:
    """Start the restored node and have it do something; False if the power went off meanwhile."""

    async def main(rng: random.Random) -> None:
        async with open_engine(
            RESTORED,
            config(),
            Environment(
                files=files,
                clock=ManualClock(),
                make_disk=lambda: SimulatedDisk(rng),
                open_store=lambda state: SimulatedStore(files, state),
            ),
        ) as engine:
            await body(engine)

    with deterministic(len(files.operations)) as rng:
        try:
            trio.run(main, rng, clock=trio.testing.MockClock(autojump_threshold=0))
        except BaseException:
            if not files.crashed:
                raise
            return False
    return True


async def _rest(_: Engine) -> None:
    await trio.lowlevel.checkpoint()


@pytest.mark.slow("an engine after each place of a crash")
def test_a_crash_at_any_point_of_restore_and_first_start_gives_no_number_out_twice() -> None:
    """The marker goes only when what it asks for is durable."""
    origin, after = trio.run(partial(originals, SimulatedFileSystem(), crash=True))
    pristine = origin.crash(everything_survived)
    operation, has_ended = 0, False
    while not has_ended:
        operation += 1
        for choose in fates(operation):
            files, given = copy_of(pristine), Given()
            files.crash_at(len(files.operations) + operation)
            has_ended = _crashes_and_recovers(files, given, choose)
            after.none_is_in(given)
    assert operation > 50


def _crashes_and_recovers(files: SimulatedFileSystem, given: Given, choose: Choose) -> bool:
    """Restore and start; go on after the crash, if it comes. True if it did not come."""

    lives = itertools.count()

    async def working(engine: Engine) -> None:
        await work(engine, given, f"life-{next(lives)}")

    async def look(engine: Engine) -> None:
        assert len(engine.parts.restores.told()) == 1
        assert engine.parts.table.by_name("file").restored_offset == 3
        assert engine.parts.table.by_name("quiet").restored_offset == 1
        await trio.lowlevel.checkpoint()

    has_ended = False
    try:
        restore(files, BACKUP, RESTORED)
    except CrashNow:
        files = files.crash(choose)
        is_complete = files.exists(f"{RESTORED}/FORMAT")
        if is_complete:
            # A server may be started before the restore is run to its end.
            assert runs_to_its_end(files, working)
        elif files.exists(f"{RESTORED}/RESTORING"):
            with pytest.raises(DataDirectoryError, match="only partly restored"):
                runs_to_its_end(files, _rest)
        if not is_complete or files.exists(f"{RESTORED}/RESTORING"):
            restore(files, BACKUP, RESTORED)
    else:
        has_ended = runs_to_its_end(files, working)
        if has_ended:
            files.crash_at(0)
        else:
            files = files.crash(choose)
    assert runs_to_its_end(files, working)
    assert runs_to_its_end(files, look)
    return has_ended


def copy_of(files: SimulatedFileSystem) -> SimulatedFileSystem:
    """The same files on another disk."""
    copy = SimulatedFileSystem()

    def bring(path: str) -> None:
        for name in files.listdir(path or "/"):
            try:
                files.listdir(f"{path}/{name}")
            except NotADirectoryError:
                source = files.open(f"{path}/{name}", write=False)
                target = copy.open(f"{path}/{name}", create=True)
                target.pwritev([source.pread(source.size(), 0)], 0)
                target.fsync()
            else:
                copy.mkdir(f"{path}/{name}")
                bring(f"{path}/{name}")
        copy.sync_directory(path or "/")

    bring("")
    return copy


# The numbers


def test_a_restore_continues_above_the_backup_and_above_what_any_life_had_by_then() -> None:
    restores = Restores(MemoryStore())
    assert (restores.newest_lsn, restores.first_epoch, restores.told()) == (0, 0, [])
    seconds = 1_000_000
    first = restores.add("a", next_lsn=100, now_us=1_577_836_800_000_000 + 5_000_000 * seconds)
    assert (first.lsn_before, first.lsn_after) == (99, 5_000_000 * LSNS_PER_SECOND)
    assert first.first_epoch == 5_000_000
    # The clock has gone back: the step alone has to do.
    second = restores.add("b", next_lsn=first.lsn_after + 7, now_us=0)
    assert second.lsn_after == first.lsn_after + 7 + LEAST_LSN_STEP
    assert second.first_epoch > first.first_epoch
    assert restores.has("a")
    assert not restores.has("c")
    mutations = Mutations()
    restores.save(mutations)
    store = MemoryStore()
    store.write(mutations)
    assert Restores(store).all == [first, second]


def test_the_stored_forms_do_not_change() -> None:
    """docs/formats.md: the list of restores in the views, and the file RESTORED."""
    stored = {
        "restore_id": "0123456789abcdef",
        "lsn_before": 99,
        "lsn_after": 1 << 46,
        "first_epoch": 200_000_000,
        "restored_us": 1_800_000_000_000_000,
    }
    restore = Restore("0123456789abcdef", 99, 1 << 46, 200_000_000, 1_800_000_000_000_000)
    assert decode_restores(msgspec.msgpack.encode([stored])) == [restore]
    store, mutations = MemoryStore(), Mutations()
    restores = Restores(store)
    restores.all.append(restore)
    restores.save(mutations)
    store.write(mutations)
    assert store.get(Family.META, b"restores") == msgspec.msgpack.encode([stored], order="sorted")
    with pytest.raises(CorruptionError, match="the list of restores"):
        decode_restores(b"\x91\x01")
    files = SimulatedFileSystem()
    files.mkdir("/d")
    assert read_restore_marker(files, "/d") is None
    files.open(f"/d/{MARKER}", create=True).pwritev([b'{"restore_id": "snapshot of May", "number": 0}\n'], 0)
    assert read_restore_marker(files, "/d") == RestoreMarker("snapshot of May", 0)


def test_thousands_of_restores_stay_within_what_json_clients_read() -> None:
    restores = Restores(MemoryStore())
    lsn = 1
    for number in range(8000):
        lsn = restores.add(str(number), next_lsn=lsn + 1000, now_us=1_900_000_000_000_000).lsn_after
    assert lsn <= LARGEST_LSN
    assert len(restores.told()) == 100
    with pytest.raises(DataDirectoryError, match="over the largest"):
        restores.add("last", next_lsn=LARGEST_LSN - 5, now_us=0)
