"""Groups: what they cost with many shards, what they do when something is refused, and that nothing is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from journal.engine import Engine, SubscriptionTarget, open_engine
from journal.engine.subscribe.group_members import Member
from journal.engine.subscribe.group_subscriptions import SharedGroup
from journal.settings.server import ServerConfig, StorageConfig
from shards.errors import CorruptionError, DiskFullError, InvalidNameError
from shards.format.batch import encode_values
from shards.model import ShardConfig
from shards.position import Start
from shards.segments.shard import Shard
from shards.subscriptions.events import Notice, Push
from shards.subscriptions.group_assignment import GroupAssignment
from tests.journal.engines import open_simulated
from tests.patience import PATIENCE_S
from tests.simulation.file_system import SimulatedFileSystem

MIB = 1 << 20
CONFIG = ServerConfig(
    storage=StorageConfig(journal_file_bytes=4 * MIB, journal_budget_bytes=16 * MIB, disk_reserve_bytes=0)
)
BATCH = encode_values([b"x"], timestamp_us=1)
SHARDS = 300


@attrs.define
class Consumer:
    """A member of a group under test; it acknowledges what it takes if it is asked to.

    Attributes:
        credit_bytes: How much it may be given.
        unacknowledged: Pushes that it has taken and not acknowledged.
        taken: Offsets of what it took, by shard name.
        ended: Names of the shards that ended.
    """

    engine: Engine
    credit_bytes: int = MIB
    unacknowledged: list[Push] = attrs.field(factory=list)
    taken: list[tuple[str, int]] = attrs.field(factory=list)
    ended: list[str] = attrs.field(factory=list)
    _names: dict[int, str] = attrs.field(factory=dict)
    _member: Member | None = None

    @property
    def member(self) -> Member:
        assert self._member is not None
        return self._member

    async def join(
        self,
        *,
        shard: str | None = None,
        topic_filter: str | None = None,
        group: str = "g",
        may_deliver: Callable[[str], bool] | None = None,
    ) -> None:
        member = await self.engine.parts.subscriptions.subscribe(
            SubscriptionTarget(shard=shard, topic_filter=topic_filter, group=group),
            start=Start.earliest(),
            on_ready=lambda: None,
            credit_bytes=lambda: self.credit_bytes,
            may_deliver=may_deliver,
        )
        assert isinstance(member, Member)
        self._member = member
        member.credit_changed()

    async def take_all(self) -> None:
        """Take everything that is there when the group has come to rest."""
        await trio.testing.wait_all_tasks_blocked()
        while (item := await self.member.take(MIB)) is not None:
            if isinstance(item, Push):
                self.unacknowledged.append(item)
                self.taken += [(self._names[item.reference], n) for n in range(item.first_offset, item.next_offset)]
                self.member.credit_changed()
            elif item.event == "added":
                self._names[item.reference] = item.name
            else:
                self.ended.append(item.name)
            await trio.testing.wait_all_tasks_blocked()

    def acknowledge(self, count: int | None = None) -> None:
        """Acknowledge the oldest of what was taken."""
        done = self.unacknowledged[:count]
        del self.unacknowledged[:count]
        for push in done:
            self.member.acknowledge(push.reference, push.first_offset, push.next_offset)


@asynccontextmanager
async def shards_of(path: Path, count: int = SHARDS) -> AsyncIterator[Engine]:
    """An engine with empty shards ``s/0`` and so on."""
    async with open_engine(str(path / "data"), CONFIG) as engine:
        async with trio.open_nursery() as nursery:
            for number in range(count):
                nursery.start_soon(engine.parts.commands.create_shard, f"s/{number}", ShardConfig())
        yield engine


async def append(engine: Engine, name: str) -> None:
    await engine.append(engine.parts.table.by_name(name), BATCH)


def position(engine: Engine, name: str, group: str = "g") -> int:
    cursor = engine.get_cursor(name, f"group/{group}")
    return -1 if cursor is None else cursor.offset


async def until_stored(engine: Engine, name: str, offset: int) -> None:
    with trio.fail_after(PATIENCE_S):
        while position(engine, name) != offset:
            await trio.sleep(0.01)


def the_group(engine: Engine) -> SharedGroup:
    [group] = engine.parts.subscriptions.groups()
    return group


async def test_a_record_makes_a_group_look_at_its_shard_and_at_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every record made a group look at all of its shards: with 20,000 an append took 49 ms instead of 3."""
    async with shards_of(tmp_path) as engine:
        consumer = Consumer(engine)
        await consumer.join(topic_filter="s/#")
        for number in range(SHARDS):
            await until_stored(engine, f"s/{number}", 0)
        looked_at: Counter[str] = Counter()
        check_usable = Shard.check_usable

        def counting(shard: Shard) -> None:
            looked_at[shard.name] += 1
            check_usable(shard)

        monkeypatch.setattr(Shard, "check_usable", counting)
        await append(engine, "s/7")
        await consumer.take_all()
        consumer.acknowledge()
        await until_stored(engine, "s/7", 1)
        assert consumer.taken == [("s/7", 0)]
        assert set(looked_at) == {"s/7"}
        consumer.member.close()


async def test_a_member_comes_and_goes_without_a_look_at_every_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each shard of a group was notified of a member in one step: 20,000 shards delayed all clients for 1.7 s."""
    async with shards_of(tmp_path) as engine:
        first = Consumer(engine)
        await first.join(topic_filter="s/#")
        await first.take_all()
        told: list[object] = []
        join, leave = GroupAssignment.join, GroupAssignment.leave
        monkeypatch.setattr(GroupAssignment, "join", lambda *args: (told.append(args), join(*args)))
        monkeypatch.setattr(GroupAssignment, "leave", lambda *args: (told.append(args), leave(*args)))
        second = Consumer(engine)
        await second.join(topic_filter="s/#")
        second.member.close()
        assert not told
        first.member.close()


async def test_what_a_lost_member_held_in_many_shards_goes_to_the_others(tmp_path: Path) -> None:
    async with shards_of(tmp_path) as engine:
        lost, stays = Consumer(engine), Consumer(engine, credit_bytes=0)
        await lost.join(topic_filter="s/#")
        await stays.join(topic_filter="s/#")
        async with trio.open_nursery() as nursery:
            for number in range(SHARDS):
                nursery.start_soon(append, engine, f"s/{number}")
        await lost.take_all()
        assert len(lost.taken) == SHARDS
        lost.member.close()
        stays.credit_bytes = MIB
        stays.member.credit_changed()
        await stays.take_all()
        assert sorted(stays.taken) == sorted(lost.taken)
        stays.member.close()


async def test_what_a_member_has_not_taken_when_it_loses_a_shard_goes_to_another(tmp_path: Path) -> None:
    async with shards_of(tmp_path, 2) as engine:
        loses, stays = Consumer(engine), Consumer(engine, credit_bytes=0)
        await loses.join(topic_filter="s/#")
        await stays.join(topic_filter="s/#")
        await append(engine, "s/0")
        await append(engine, "s/1")
        await trio.testing.wait_all_tasks_blocked()
        loses.member.restrict(lambda name: name != "s/0")
        await loses.take_all()
        assert loses.taken == [("s/1", 0)]
        stays.credit_bytes = MIB
        stays.member.credit_changed()
        await stays.take_all()
        assert stays.taken == [("s/0", 0)]
        for each in (loses, stays):
            each.member.close()


async def test_a_shard_that_no_member_may_get_waits_for_one_that_may(tmp_path: Path) -> None:
    async with shards_of(tmp_path, 2) as engine:
        await append(engine, "s/0")
        consumer = Consumer(engine)
        await consumer.join(topic_filter="s/#", may_deliver=lambda name: name != "s/0")
        await consumer.take_all()
        await until_stored(engine, "s/1", 0)
        await engine.trim("s/0", 1)
        await append(engine, "s/0")
        await consumer.take_all()
        assert not consumer.taken
        assert position(engine, "s/0") == -1
        consumer.member.restrict(None)
        await consumer.take_all()
        assert consumer.taken == [("s/0", 1)]
        consumer.acknowledge()
        await until_stored(engine, "s/0", 2)
        consumer.member.restrict(lambda name: name != "s/0")
        await engine.delete_shard("s/0")
        await consumer.take_all()
        assert not consumer.ended
        consumer.member.close()


async def test_a_position_refused_while_the_disk_is_full_is_stored_when_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused cursor counted as stored: it was written only after the next acknowledgement in the same shard."""
    async with shards_of(tmp_path, 3) as engine:
        consumer = Consumer(engine)
        await consumer.join(topic_filter="s/#")
        await until_stored(engine, "s/1", 0)
        await append(engine, "s/1")
        await consumer.take_all()
        # The background work would find that there is room.
        monkeypatch.setattr(engine.parts.checkpointer, "look_at_disk", lambda: None)
        engine.parts.commands.refuse = DiskFullError("the disk is full")
        consumer.acknowledge()
        await trio.sleep(0.1)
        assert position(engine, "s/1") == 0
        engine.parts.commands.refuse = None
        await until_stored(engine, "s/1", 1)
        consumer.member.close()


async def test_positions_are_not_asked_for_again_and_again_while_they_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shards_of(tmp_path, 50) as engine:
        consumer = Consumer(engine)
        await consumer.join(topic_filter="s/#")
        for number in range(50):
            await until_stored(engine, f"s/{number}", 0)
            await append(engine, f"s/{number}")
        await consumer.take_all()
        monkeypatch.setattr(engine.parts.checkpointer, "look_at_disk", lambda: None)
        engine.parts.commands.refuse = DiskFullError("the disk is full")
        asked = []
        check = engine.parts.commands.check_may_change
        monkeypatch.setattr(engine.parts.commands, "check_may_change", lambda **how: (asked.append(1), check(**how)))
        consumer.acknowledge()
        await trio.sleep(0.5)
        assert 1 <= len(asked) <= 2
        engine.parts.commands.refuse = None
        consumer.member.close()


async def test_the_last_positions_are_stored_before_the_group_can_begin_again(tmp_path: Path) -> None:
    """A group that began again while its last positions were being stored went on from older ones."""
    async with shards_of(tmp_path) as engine:
        async with trio.open_nursery() as nursery:
            for number in range(SHARDS):
                nursery.start_soon(append, engine, f"s/{number}")
        consumer = Consumer(engine)
        await consumer.join(topic_filter="s/#")
        await consumer.take_all()
        consumer.acknowledge()
        consumer.member.close()
        again = Consumer(engine)
        await again.join(topic_filter="s/#")
        await again.take_all()
        assert not again.taken
        again.member.close()


async def test_a_group_forgets_a_deleted_shard(tmp_path: Path) -> None:
    """A group kept every deleted shard for as long as it had a member."""
    async with shards_of(tmp_path, 2) as engine:
        consumer = Consumer(engine)
        await consumer.join(topic_filter="s/#")
        for number in range(20):
            name = f"s/passing/{number}"
            await engine.create_shard(name, ShardConfig())
            await append(engine, name)
            await consumer.take_all()
            if number % 2:
                consumer.acknowledge()
            # Also when no member had credit.
            consumer.credit_bytes = 0 if number % 3 else MIB
            await engine.delete_shard(name)
            await consumer.take_all()
        assert consumer.ended == [f"s/passing/{number}" for number in range(20)]
        group = the_group(engine)
        assert len(group) == 2
        assert group.statistics() == {"shards": 2, "waiting": 0, "unstored": 0}
        assert not consumer.member.holding
        consumer.member.close()
        await trio.testing.wait_all_tasks_blocked()
        assert not engine.parts.subscriptions.groups()


async def test_a_shard_that_is_always_busy_does_not_hold_up_the_others(tmp_path: Path) -> None:
    async with shards_of(tmp_path, 3) as engine:
        for _ in range(30):
            await append(engine, "s/0")
        await append(engine, "s/1")
        await append(engine, "s/2")
        consumer = Consumer(engine, credit_bytes=1)
        await consumer.join(topic_filter="s/#")
        await consumer.take_all()
        assert {("s/1", 0), ("s/2", 0)} < set(consumer.taken[:6])
        consumer.member.close()


async def test_a_sticky_member_without_credit_gets_its_part_when_it_has_some(tmp_path: Path) -> None:
    async with shards_of(tmp_path, 40) as engine:
        slow, fast = Consumer(engine, credit_bytes=0), Consumer(engine)
        await slow.join(topic_filter="s/#", group="sticky/g")
        await fast.join(topic_filter="s/#", group="sticky/g")
        for number in range(40):
            await append(engine, f"s/{number}")
        await fast.take_all()
        fast.acknowledge()
        assert not slow.taken
        assert 0 < len(fast.taken) < 40
        slow.credit_bytes = MIB
        slow.member.credit_changed()
        await slow.take_all()
        assert sorted(slow.taken + fast.taken) == sorted((f"s/{number}", 0) for number in range(40))
        slow.member.close()
        fast.member.close()


async def test_a_group_name_that_leaves_no_room_for_its_cursor_is_refused(tmp_path: Path) -> None:
    """The positions of a group with a name of 250 bytes and more were never stored, and nothing said so."""
    async with shards_of(tmp_path, 1) as engine:
        with pytest.raises(InvalidNameError, match="name of the group's cursor"):
            await Consumer(engine).join(topic_filter="s/#", group="g" * 250)
        longest = Consumer(engine)
        await longest.join(topic_filter="s/#", group="g" * 249)
        longest.member.close()


async def test_a_group_that_meets_a_missing_file_says_so_and_the_shard_takes_appends(tmp_path: Path) -> None:
    """What is appended is in the journal until the file is back: it is never written behind a hole."""
    log = tmp_path / "data/log/01/0000000000000001-00000000000000000000.log"
    with pytest.raises(CorruptionError, match="put the file back"):
        await _meet_a_missing_file(tmp_path, log)
    (tmp_path / "aside").rename(log)
    async with open_engine(str(tmp_path / "data"), CONFIG) as engine:
        assert engine.parts.table.by_name("s").published_offset == 2


async def _meet_a_missing_file(tmp_path: Path, log: Path) -> None:
    async with open_engine(str(tmp_path / "data"), CONFIG) as engine:
        await engine.create_shard("s", ShardConfig())
        shard = engine.parts.table.by_name("s")
        await engine.append(shard, BATCH)
        await engine.parts.checkpointer.checkpoint()
        log.rename(tmp_path / "aside")
        ready = trio.Event()
        member = await engine.parts.subscriptions.subscribe(
            SubscriptionTarget(shard="s", group="g"),
            start=Start.earliest(),
            on_ready=ready.set,
            credit_bytes=lambda: MIB,
        )
        with trio.fail_after(PATIENCE_S):
            await ready.wait()
            notice = await member.take(MIB)
        assert isinstance(notice, Notice)
        assert notice.event == "error"
        assert isinstance(notice.error, CorruptionError)
        assert (await engine.append(shard, BATCH)).base_offset == 1
        assert not shard.damage
        member.close()


# Whatever happens in whatever order

shard_numbers, member_numbers = st.integers(0, 3), st.integers(0, 2)
steps = st.one_of(
    st.tuples(st.just("append"), shard_numbers, st.integers(1, 3)),
    st.tuples(st.just("delete"), shard_numbers, st.none()),
    st.tuples(st.just("trim"), shard_numbers, st.none()),
    st.tuples(st.just("join"), member_numbers, st.none()),
    st.tuples(st.just("leave"), member_numbers, st.none()),
    st.tuples(st.just("credit"), member_numbers, st.sampled_from([0, 1, MIB])),
    st.tuples(st.just("take"), member_numbers, st.none()),
    st.tuples(st.just("acknowledge"), member_numbers, st.integers(1, 5)),
)


@given(sticky=st.booleans(), history=st.lists(steps, max_size=40))
@settings(max_examples=60, deadline=None)
async def test_every_record_is_acknowledged_whatever_comes_and_goes(
    sticky: bool, history: list[tuple[str, int, int | None]]
) -> None:
    """A model in small: records, members that come and go, credit, trims and deletions in any order."""
    group = "sticky/g" if sticky else "g"
    files = SimulatedFileSystem()
    async with open_simulated(files) as engine:
        appended: Counter[str] = Counter()
        trimmed: Counter[str] = Counter()
        lives: Counter[int] = Counter()
        members: dict[int, Consumer] = {}

        def named(number: int) -> str:
            return f"s/{number}/{lives[number]}"

        async def do(what: str, number: int, amount: int | None) -> None:
            name = named(number)
            if what == "append":
                await engine.create_shard(name, ShardConfig(), exist_ok=True)
                for _ in range(amount or 1):
                    await append(engine, name)
                    appended[name] += 1
            elif what == "delete" and name in appended:
                await engine.delete_shard(name)
                del appended[name]
                lives[number] += 1
            elif what == "trim" and appended[name]:
                trimmed[name] = appended[name] - 1
                await engine.trim(name, trimmed[name])
            elif what == "join" and number not in members:
                members[number] = Consumer(engine)
                await members[number].join(topic_filter="s/#", group=group)
            elif number in members and what == "leave":
                members.pop(number).member.close()
            elif number in members and what == "credit":
                members[number].credit_bytes = amount or 0
                members[number].member.credit_changed()
            elif number in members and what == "take":
                await members[number].take_all()
            elif number in members and what == "acknowledge":
                members[number].acknowledge(amount)

        for step in history:
            await do(*step)
        for consumer in members.values():
            consumer.credit_bytes = MIB
        await do("join", 9, None)
        for _ in range(200):
            before = sum(len(consumer.taken) for consumer in members.values())
            for consumer in members.values():
                consumer.member.credit_changed()
                await consumer.take_all()
                consumer.acknowledge()
            await trio.testing.wait_all_tasks_blocked()
            if before == sum(len(consumer.taken) for consumer in members.values()):
                break
        with trio.fail_after(PATIENCE_S):
            for name, end in appended.items():
                if trimmed[name] < end:
                    while position(engine, name, group) != end:
                        await trio.sleep(0.001)
        assert the_group(engine).statistics() == {"shards": len(+appended), "waiting": 0, "unstored": 0}
        for consumer in members.values():
            consumer.member.close()
