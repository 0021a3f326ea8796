"""An owner with several slots under way: what is in the log is acknowledged in order, when all before it is there."""

from __future__ import annotations

import random
import secrets
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
import trio

from benchmarks.late_store import VARIABLE
from journal.client.opening import open_client
from journal.client.session_keeper import SessionTimes
from journal.engine import Addresses, Claim, Decision, Engine, SharedLog, open_engine
from journal.engine.shared_log.claims import encode_addresses, encode_claim, window_of
from journal.engine.shared_log.writer import SharedLogWriter
from journal.engine.wal.send_window import SEND_BYTES
from journal.logstore import run
from journal.logstore.errors import LogDamagedError, StoreUnreachableError, UnknownOutcomeError
from journal.logstore.keys import Position, slot_key
from journal.logstore.objects import Kind, decode_object
from journal.logstore.ownership import Member, own
from journal.logstore.settling import settle_create
from journal.logstore.store import Created
from journal.logstore.stores.memory import MemoryLogStore
from journal.logstore.writing import SlotWriter
from journal.settings.server import ConversionConfig, ServerConfig, StorageConfig
from journal.settings.values import MIB
from shards.errors import LogUnavailableError, NotOwnerError, StorageError
from shards.model import Mode, ShardConfig
from tests.cluster.servers import running
from tests.cluster.writing import Writer, check
from tests.journal.engines import append, values_of
from tests.patience import PATIENCE_S

WINDOW: Final = 4
SHARD: Final = "plant/line"
LARGE: Final = b"x" * SEND_BYTES
CONFIG: Final = ServerConfig(
    storage=StorageConfig(
        journal_file_bytes=4 * MIB,
        journal_budget_bytes=16 * MIB,
        segment_bytes=4 * MIB,
        tail_budget_bytes=4 * MIB,
        disk_reserve_bytes=0,
    ),
    conversion=ConversionConfig(enabled=False),
)


class AtOnce:
    """Takes the store over whenever it is at the end of the log."""

    async def wait(self, claim: Claim, *, has_moved: bool) -> Decision:
        await trio.lowlevel.checkpoint()
        return Decision.TAKE_OVER


class GatedStore(MemoryLogStore):
    """Creates of slots wait, as soon as the gates are closed, until the test lets them in, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()
        self.is_gated = False
        self.is_away = False
        self.waiting: list[str] = []
        self.creates = 0
        self._let_in: set[str] = set()

    def create(self, key: str, data: bytes) -> Created:
        if "/log/" not in key:
            return super().create(key, data)
        with self._changed:
            self.creates += 1
            if self.is_gated:
                self.waiting.append(key)
                self._changed.wait_for(lambda: not self.is_gated or key in self._let_in)
                self.waiting.remove(key)
            if self.is_away:
                raise StoreUnreachableError("the store is away")
            return super().create(key, data)

    def let_in(self, key: str) -> None:
        with self._changed:
            self._let_in.add(key)
            self._changed.notify_all()

    def open(self) -> None:
        with self._changed:
            self.is_gated = False
            self._changed.notify_all()

    async def wait_for(self, count: int) -> list[str]:
        """The keys of the slots that wait, in order, as soon as there are so many."""
        await until(lambda: len(self.waiting) == count)
        return sorted(self.waiting)


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE_S):
        while not condition():
            await trio.sleep(0.002)


def log_of(store: MemoryLogStore, window: int = WINDOW) -> SharedLog:
    member = Member("root", b"S" * 16, secrets.token_bytes(16))
    return SharedLog(store, member, Addresses("host:7420", "host:7422"), AtOnce(), MIB, window)


@asynccontextmanager
async def owner(store: MemoryLogStore, data: Path, window: int = WINDOW) -> AsyncIterator[Engine]:
    async with open_engine(str(data), CONFIG, log=log_of(store, window)) as engine:
        await engine.create_shard(SHARD, ShardConfig(mode=Mode.FILE), exist_ok=True)
        yield engine


@attrs.define
class Appends:
    """Appends that were begun one after the other, and what became of them."""

    engine: Engine
    nursery: trio.Nursery
    begun: int = 0
    acknowledged: list[int] = attrs.field(factory=list)
    failed: dict[int, StorageError] = attrs.field(factory=dict)

    async def begin(self, count: int, padding: bytes = LARGE) -> None:
        for _ in range(count):
            self.nursery.start_soon(self._append, self.begun, padding)
            self.begun += 1
            await trio.testing.wait_all_tasks_blocked()

    async def _append(self, number: int, padding: bytes) -> None:
        try:
            await append(self.engine, SHARD, b"%d " % number + padding)
        except StorageError as error:
            self.failed[number] = error
        else:
            self.acknowledged.append(number)


async def numbers_of(engine: Engine) -> list[int]:
    return [int(value.split(b" ")[0]) for value in await values_of(engine, SHARD)]


async def slots_arrive_in_the_reverse_order(data: Path) -> None:
    store = GatedStore()
    async with owner(store, data) as engine, trio.open_nursery() as nursery:
        committed = engine.committed_lsn
        store.is_gated = True
        try:
            appends = Appends(engine, nursery)
            await appends.begin(WINDOW + 1)
            keys = await store.wait_for(WINDOW)
            for key in reversed(keys[1:]):
                store.let_in(key)
                await until(lambda key=key: store.get(key) is not None)  # type: ignore[misc]
                # What must not come cannot be waited for.
                await trio.testing.wait_all_tasks_blocked(0.1)
                assert appends.acknowledged == []
                assert engine.committed_lsn == committed
                assert await numbers_of(engine) == []
            assert store.waiting == keys[:1], "no more slots are sent than the window has"
            store.let_in(keys[0])
            await until(lambda: len(appends.acknowledged) == WINDOW)
        finally:
            store.open()
        await until(lambda: len(appends.acknowledged) == WINDOW + 1)
        assert sorted(appends.acknowledged) == list(range(WINDOW + 1)) == await numbers_of(engine)


async def test_what_is_in_the_log_is_acknowledged_in_order_when_all_before_it_is_there(tmp_path: Path) -> None:
    await slots_arrive_in_the_reverse_order(tmp_path / "a")


async def test_an_engine_that_acknowledges_out_of_order_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test above must be able to fail."""

    def settle(self: SharedLogWriter, writing: Any) -> None:
        # It waits for any slot that is known to be in the log, and takes it for the oldest one.
        sent = {writing.sending}
        while not any(future.done() for future in sent):
            time.sleep(0.001)
            sent |= {each.sending for each in tuple(self._under_way) if each.sending is not None}
        with self._encoding:
            self._slots.settle(writing.write.position, True)
        writing.is_settled = True

    monkeypatch.setattr(SharedLogWriter, "_settle", settle)
    with pytest.RaisesGroup(AssertionError, flatten_subgroups=True):
        await slots_arrive_in_the_reverse_order(tmp_path / "a")


async def test_nothing_under_way_is_acknowledged_when_the_first_slot_is_fenced(tmp_path: Path) -> None:
    store = GatedStore()
    async with trio.open_nursery() as nursery:
        with pytest.raises(NotOwnerError):
            async with owner(store, tmp_path / "a") as engine:
                store.is_gated = True
                appends = Appends(engine, nursery)
                await appends.begin(WINDOW + 1)
                first, *later = await store.wait_for(WINDOW)
                for key in later:
                    store.let_in(key)
                    await until(lambda key=key: store.get(key) is not None)  # type: ignore[misc]
                rival = Member("root", b"S" * 16, b"R" * 16)
                fence = run(Ungated(store), own(rival, secrets.token_bytes(16), window_of=window_of))
                assert fence.epoch == 2
                store.open()
                await until(lambda: len(appends.failed) == WINDOW + 1)
                raise await engine.wait_failed()
    assert appends.acknowledged == []
    assert all(isinstance(error, NotOwnerError) for error in appends.failed.values())
    found = store.get(first)
    assert found is not None
    assert decode_object(first, found).kind is Kind.FENCE
    async with owner(store, tmp_path / "b") as engine:
        assert await numbers_of(engine) == [], "what is after the fence is not part of the log"


class Ungated:
    """The same store for another server: its creates do not wait."""

    def __init__(self, store: GatedStore) -> None:
        self._store = store
        self.get, self.list_after, self.delete, self.close = store.get, store.list_after, store.delete, store.close

    def create(self, key: str, data: bytes) -> Created:
        return MemoryLogStore.create(self._store, key, data)


async def test_what_is_under_way_at_an_orderly_stop_is_acknowledged_first(tmp_path: Path) -> None:
    store = GatedStore()
    async with trio.open_nursery() as nursery:
        async with owner(store, tmp_path / "a") as engine:
            store.is_gated = True
            appends = Appends(engine, nursery)
            await appends.begin(WINDOW + 2)
            await store.wait_for(WINDOW)

            async def go_on() -> None:
                await trio.testing.wait_all_tasks_blocked(0.01)
                assert appends.acknowledged == []
                store.open()

            nursery.start_soon(go_on)
    assert sorted(appends.acknowledged) == list(range(WINDOW + 2))
    async with owner(store, tmp_path / "b") as engine:
        assert await numbers_of(engine) == sorted(appends.acknowledged)


async def test_what_was_under_way_while_the_store_was_away_is_acknowledged_when_it_is_back(tmp_path: Path) -> None:
    store = GatedStore()
    async with owner(store, tmp_path / "a") as engine, trio.open_nursery() as nursery:
        store.is_away = True
        appends = Appends(engine, nursery)
        await appends.begin(WINDOW)
        await until(lambda: engine.disk_full is not None)
        assert isinstance(engine.disk_full, LogUnavailableError)
        assert appends.acknowledged == []
        store.is_away = False
        await until(lambda: len(appends.acknowledged) == WINDOW)
        assert sorted(appends.acknowledged) == list(range(WINDOW)) == await numbers_of(engine)
        assert engine.disk_full is None


async def test_a_small_group_is_sent_when_it_has_waited_for_an_interval_and_not_before(tmp_path: Path) -> None:
    store = GatedStore()
    async with owner(store, tmp_path / "a") as engine, trio.open_nursery() as nursery:
        creates = store.creates
        store.is_gated = True
        try:
            appends = Appends(engine, nursery)
            await appends.begin(1, b"")
            await store.wait_for(1)
            await appends.begin(5, b"")
            # All that came within the interval is one slot.
            await store.wait_for(2)
            assert store.creates == creates + 2
        finally:
            store.open()
        await until(lambda: len(appends.acknowledged) == 6)


@pytest.mark.parametrize("window", [1, WINDOW])
async def test_on_a_store_that_answers_soon_small_groups_are_sent_one_after_the_other(
    tmp_path: Path, window: int
) -> None:
    most_waiting = 0

    class Counted(MemoryLogStore):
        """Counts how many creates are under way."""

        under_way = 0

        def create(self, key: str, data: bytes) -> Created:
            nonlocal most_waiting
            self.under_way += 1
            most_waiting = max(most_waiting, self.under_way)
            try:
                return super().create(key, data)
            finally:
                self.under_way -= 1

    async with owner(Counted(), tmp_path / "a", window) as engine, trio.open_nursery() as nursery:
        await Appends(engine, nursery).begin(50, b"")
    assert most_waiting == 1


class FaultyStore(MemoryLogStore):
    """Creates take different times; their outcomes are often unknown. Those of a server that is cut off fail."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)

    def create(self, key: str, data: bytes) -> Created:
        chance, delay_s = self._random.random(), self._random.random() * 0.01
        if "/log/" not in key:
            return super().create(key, data)
        time.sleep(delay_s)
        if chance < 0.1:
            raise UnknownOutcomeError("it was not applied")
        created = super().create(key, data)
        if chance < 0.2:
            raise UnknownOutcomeError("it was applied")
        return created


@pytest.mark.slow("opens an engine five times, over a store that takes its time")
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("window", [1, WINDOW])
async def test_everything_acknowledged_is_there_after_each_of_several_takeovers(
    tmp_path: Path, seed: int, window: int
) -> None:
    store, rng = FaultyStore(seed), random.Random(seed)
    acknowledged: set[int] = set()
    begun = 0
    for life in range(3):
        first = begun
        async with trio.open_nursery() as nursery:
            try:
                async with owner(store, tmp_path / str(life), window) as engine:
                    found = await numbers_of(engine)
                    assert acknowledged <= set(found)
                    appends = Appends(engine, nursery, begun)
                    for _ in range(rng.randrange(1, 12)):
                        await appends.begin(rng.randrange(1, 4), rng.choice((b"", LARGE)))
                        await trio.sleep(rng.random() * 0.01)
                        if rng.randrange(6) == 0:
                            await engine.checkpoint()
                    rival = Member("root", b"S" * 16, secrets.token_bytes(16))
                    about = encode_claim(Addresses(), window)
                    steps = own(rival, secrets.token_bytes(16), 0, about, window_of=window_of)
                    await trio.to_thread.run_sync(run, store, steps)
                    await engine.wait_failed()
                    nursery.cancel_scope.deadline = trio.current_time() + PATIENCE_S
            except NotOwnerError:
                pass  # as expected: a checkpoint at its end is not made
        begun = appends.begun
        assert sorted([*appends.acknowledged, *appends.failed]) == list(range(first, appends.begun))
        acknowledged |= set(appends.acknowledged)
    async with owner(store, tmp_path / "last", window) as engine:
        found = await numbers_of(engine)
    assert len(found) == len(set(found))
    assert acknowledged <= set(found)


def test_a_claim_says_how_many_slots_may_be_under_way() -> None:
    assert window_of(encode_claim(Addresses("a:1"), 4)) == 4
    assert window_of(encode_addresses(Addresses("a:1"))) == 1, "of a version that had one under way"
    assert window_of(b"\xff") == 1


@pytest.mark.parametrize(("window", "missing", "is_damage"), [(1, 8, True), (4, 5, True), (4, 6, False), (4, 9, False)])
def test_a_missing_slot_is_damage_if_its_owner_cannot_have_had_it_under_way(
    window: int, missing: int, is_damage: bool
) -> None:
    store, member, nonce = MemoryLogStore(), Member("root", b"S" * 16, b"N" * 16), secrets.token_bytes
    epoch = run(store, own(member, nonce(16), about=encode_claim(Addresses(), window))).epoch
    writer = SlotWriter(member, epoch, 1)
    for number in range(10):
        write = writer.prepare(b"%d" % number, number + 2, nonce(16))
        writer.settle(write.position, run(store, settle_create(write.key, write.data)).is_ours)
    key = slot_key("root", Position(epoch, missing))
    store.delete(key)
    steps = own(Member("root", b"S" * 16, b"R" * 16), nonce(16), window_of=window_of)
    if is_damage:
        with pytest.raises(LogDamagedError, match=f"{key} is missing"):
            run(store, steps)
        assert store.get(key) is None
    else:
        run(store, steps)
        found = store.get(key)
        assert found is not None
        assert decode_object(key, found).kind is Kind.FENCE


_LEAST_TURNS: Final = 4
_MOST_TURNS: Final = 41
"""An odd number: the last turn kills. A server that was suspended answers with old data when it wakes up."""


@pytest.mark.slow("kills and suspends servers whose log store answers late, and waits for takeovers")
async def test_nothing_acknowledged_is_lost_or_doubled_when_owners_with_slots_under_way_are_killed_and_suspended(
    tmp_path: Path,
) -> None:
    (tmp_path / "store").mkdir()
    store = f"file://{tmp_path / 'store'}?slots={WINDOW}"
    late = {VARIABLE: "20-200"}
    rng = random.Random(67)
    with running(tmp_path, 3, store, late, module="benchmarks.late_store") as cluster:
        times = SessionTimes(first_within_s=PATIENCE_S)
        async with open_client(cluster.address, times=times) as client, trio.open_nursery() as nursery:
            writers = [Writer(client, f"plant/line{number}", 0.2) for number in range(16)]
            for writer in writers:
                await client.create_shard(writer.shard, ShardConfig(mode=Mode.FILE))
                nursery.start_soon(writer.run)

            async def go_on() -> None:
                async with trio.open_nursery() as waiting:
                    for writer in writers:
                        waiting.start_soon(writer.wait_for, 6)

            await go_on()
            for turn in range(_MOST_TURNS):
                number = (signal.SIGKILL, signal.SIGSTOP)[turn % 2]
                server = await cluster.owner()
                await trio.sleep(rng.random() * 0.2)
                if number == signal.SIGKILL:
                    server.kill()
                else:
                    server.send(number)
                await go_on()
                if number == signal.SIGKILL:
                    server.start()
                    # Which slots of an owner arrive is by chance.
                    if turn >= _LEAST_TURNS and _has_slots_after_fence(tmp_path / "store"):
                        break
                else:
                    server.send(signal.SIGCONT)
            nursery.cancel_scope.cancel()
        for writer in writers:
            await check(cluster, writer)
    assert _has_slots_after_fence(tmp_path / "store"), "no server was ended with several slots under way"


def _has_slots_after_fence(store: Path) -> bool:
    """Whether later slots of an owner arrived, but one before them did not: a fence has its place."""
    return any(not _ends_with_fence(sorted(epoch.iterdir())) for epoch in (store / "journal" / "log").iterdir())


def _ends_with_fence(slots: list[Path]) -> bool:
    kinds = [decode_object(str(path), path.read_bytes()).kind for path in slots]
    return Kind.FENCE not in kinds or kinds.index(Kind.FENCE) == len(kinds) - 1
