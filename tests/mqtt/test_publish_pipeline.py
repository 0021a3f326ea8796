"""What clients publish is stored in order and answered in order of receipt, only after the store has answered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from typing import Any, cast

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from broker_adapter import StorageAdapter
from broker_adapter.changes import Changes, StateDelete, StatePut
from broker_adapter.engines.local_appends import AppendWindow, LocalAppend
from broker_adapter.mqtt.model.message import DelayedPublish, Message
from broker_adapter.mqtt.model.storage_rules import BrokerTopicMapping, Placements, StorageRules
from broker_adapter.mqtt.publish.pipeline import MAX_WAITING_BYTES, PublishPipeline
from broker_adapter.mqtt.publish.received import Received
from broker_adapter.mqtt.publish.store_changes import Publisher, until_reached
from broker_adapter.mqtt_codec.properties import Properties
from broker_adapter.mqtt_codec.reason_codes import ReasonCode
from journal.protocol.errors import ConnectionLostError, ServerRestoredError
from shards.errors import (
    DiskFullError,
    InvalidNameError,
    LimitExceededError,
    OverloadedError,
    ShardDamagedError,
    ShardNotFoundError,
    StorageError,
)
from shards.format.batch import encode
from shards.format.record import Record
from shards.model import AckLevel, Appended, Mode, ShardConfig
from tests.patience import PATIENCE_S

SUCCESS = ReasonCode.SUCCESS
MAX_PACKET_BYTES = 4000


class Store:
    """Does what a test says: appends wait for their outcome."""

    def __init__(self) -> None:
        self.created: dict[str, ShardConfig] = {}
        self.create_errors: list[StorageError] = []
        self.append_error: StorageError | None = None
        self.appends: list[tuple[str, list[bytes], LocalAppend]] = []
        self.records: list[list[Record]] = []
        self.were_last: list[bool] = []
        self.commits: list[Changes] = []
        self.commit_errors: list[StorageError | None] = []
        self.room = trio.Event()
        self.has_room = True
        self.room_bytes = 1 << 30

    async def create_shard(self, name: str, config: ShardConfig, *, exist_ok: bool) -> None:
        assert exist_ok
        await trio.lowlevel.checkpoint()
        if self.create_errors:
            raise self.create_errors.pop(0)
        self.created[name] = config

    def append_nowait(self, shard: str, records: list[Record], *, is_last: bool) -> LocalAppend:
        if not self.has_room or sum(len(record.value) for record in records) > self.room_bytes:
            raise OverloadedError("full")
        if self.append_error is not None:
            raise self.append_error
        pending = LocalAppend(0, AppendWindow())
        self.appends.append((shard, [record.value for record in records], pending))
        self.records.append(records)
        self.were_last.append(is_last)
        return pending

    def append_state(self, shard: str) -> str:
        return f"state of {shard}"

    async def wait_for_room(self, size_bytes: int) -> None:
        await self.room.wait()

    async def commit(self, changes: Changes) -> None:
        await trio.lowlevel.checkpoint()
        error = self.commit_errors.pop(0) if self.commit_errors else None
        if error is not None:
            raise error
        self.commits.append(changes)

    def answer(self, at: int, error: StorageError | None = None) -> None:
        pending = self.appends[at][2]
        if error is None:
            pending.resolve(Appended(0, AckLevel.DURABLE))
        else:
            pending.reject(error)

    @property
    def stored(self) -> list[tuple[str, list[bytes]]]:
        return [(shard, values) for shard, values, _ in self.appends]


class Keeper:
    """Stands for retained messages and timers."""

    def change_for(self, message: Message) -> StatePut | StateDelete:
        key = b"retained/" + message.topic.encode()
        return StatePut(key, message.payload) if message.payload else StateDelete(key)

    def delay(self, message: Message, due: DelayedPublish) -> tuple[StatePut, ...]:
        return (StatePut(b"timer/%d" % due.at_us, message.payload, 0),)


class Bench:
    """One client's publishes over a store."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.store = Store()
        keeper = Keeper()
        self.refusals: list[str] = []
        self.publisher = Publisher(
            cast(StorageAdapter, self.store),
            Placements(StorageRules(), BrokerTopicMapping()),
            max_packet_bytes=MAX_PACKET_BYTES,
            retained=keeper,
            delay=keeper.delay,
            on_refused=lambda error: self.refusals.append(error.code),
        )
        self.answered: list[tuple[int, ReasonCode]] = []
        self.with_session: list[tuple[Changes, Collection[int]]] = []
        self.inbound = PublishPipeline(
            self.publisher,
            commit=self._commit,
            on_outcomes=self._outcomes,
            start=nursery.start_soon,
        )

    async def _commit(self, changes: Changes, packet_ids: Collection[int]) -> None:
        await until_reached(lambda: self.store.commit(changes))
        self.with_session.append((changes, packet_ids))

    def _outcomes(self, outcomes: list[Received]) -> None:
        for received in outcomes:
            assert received.reason_code is not None
            self.answered.append((received.packet_id, received.reason_code))

    def publish(self, *messages: Received) -> None:
        self.inbound.submit(messages)

    async def know(self, *topics: str) -> None:
        """Have the shards of topics created."""
        await self.publisher.create_shards(dict.fromkeys(topics, ShardConfig()))


def received(packet_id: int, topic: str = "a", payload: bytes = b"", qos: int = 1, **options: Any) -> Received:
    due = options.pop("due", None)
    return Received(Message(topic, payload or b"%d" % packet_id, qos, **options), packet_id, qos, due)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with trio.open_nursery() as nursery:
        yield Bench(nursery)
        nursery.cancel_scope.cancel()


async def test_what_one_receive_brought_of_a_shard_is_one_append(bench: Bench) -> None:
    await bench.know("a", "b")
    bench.publish(received(1), received(2, "b"), received(3), received(4, "b"))
    assert bench.store.stored == [("a", [b"1", b"3"]), ("b", [b"2", b"4"])]
    assert bench.answered == []


async def test_a_message_that_came_alone_is_sent_at_once_and_several_may_be_joined(bench: Bench) -> None:
    await bench.know("a", "b")
    bench.publish(received(1))
    bench.publish(received(2), received(3, "b"))
    assert bench.store.were_last == [True, False, False]


async def test_an_answer_takes_no_task(bench: Bench) -> None:
    """Starting and ending a task for each message took a tenth of a broker's processor time."""
    await bench.know("a")
    await wait_all_tasks_blocked()
    before = trio.lowlevel.current_statistics().tasks_living
    for number in range(3):
        bench.publish(received(number + 1))
        await wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().tasks_living == before
        bench.store.answer(number)
        await wait_all_tasks_blocked()
    assert bench.answered == [(1, SUCCESS), (2, SUCCESS), (3, SUCCESS)]


async def test_what_fails_when_an_answer_is_reported_ends_the_connection_not_the_store() -> None:
    """The store's own task reports the answer: it must not end with the error of one connection."""
    with pytest.raises(BaseExceptionGroup) as raised:
        async with trio.open_nursery() as nursery:
            bench = Bench(nursery)
            await bench.know("a")
            bench.publish(received(1))
            bench.answered = None  # type: ignore[assignment]  # appending to it fails
            bench.store.answer(0)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    assert raised.group_contains(AttributeError)


async def test_answers_come_in_the_order_of_receipt_whatever_the_store_finishes_first(bench: Bench) -> None:
    await bench.know("a", "b")
    bench.publish(received(1), received(2, "b"), received(3))
    await wait_all_tasks_blocked()
    bench.store.answer(1)
    await wait_all_tasks_blocked()
    assert bench.answered == []
    bench.store.answer(0)
    await wait_all_tasks_blocked()
    assert bench.answered == [(1, SUCCESS), (2, SUCCESS), (3, SUCCESS)]


@pytest.mark.parametrize("where", ["append", "answer", "commit", "shard"])
async def test_a_store_that_was_restored_refuses_nothing_as_the_broker_ends(bench: Bench, where: str) -> None:
    """The clients of a broker that ended for this got the error that their publishes were refused, and dropped them."""
    restored = ServerRestoredError("restored from a backup")
    await bench.know("a")
    if where == "append":
        bench.store.append_error = restored
    elif where == "commit":
        bench.store.commit_errors = [restored, restored]
    elif where == "shard":
        bench.store.create_errors = [restored]
    topic, qos = "new" if where == "shard" else "a", 2 if where == "commit" else 1
    bench.publish(received(1, topic, qos=qos), received(2, topic, qos=qos))
    await wait_all_tasks_blocked()
    if where == "answer":
        bench.store.answer(0, restored)
    await wait_all_tasks_blocked()
    assert bench.answered == []
    assert bench.refusals == []
    with trio.fail_after(PATIENCE_S):
        await bench.inbound.settle()


async def test_a_shard_is_created_before_the_first_message_and_holds_up_those_behind_it(bench: Bench) -> None:
    await bench.know("known")
    bench.publish(received(1, "new"), received(2, "known"))
    bench.publish(received(3, "new"))
    assert bench.store.stored == []
    await wait_all_tasks_blocked()
    assert bench.store.created["new"].mode is Mode.FILE
    assert bench.store.stored == [("new", [b"1", b"3"]), ("known", [b"2"])]


async def test_messages_that_are_not_kept_go_to_a_live_shard_with_their_topic(bench: Bench) -> None:
    bench.publish(received(0, "a", b"x", qos=0))
    await wait_all_tasks_blocked()
    [(shard, values)] = bench.store.stored
    assert shard.startswith("$mqtt/live/")
    assert values == [b"x"]
    assert bench.store.created[shard].mode is Mode.MEMORY


@pytest.mark.parametrize(
    ("error", "reason_code"),
    [
        (DiskFullError("full"), ReasonCode.QUOTA_EXCEEDED),
        (LimitExceededError("too large"), ReasonCode.QUOTA_EXCEEDED),
        (InvalidNameError("bad"), ReasonCode.TOPIC_NAME_INVALID),
        (ShardDamagedError("broken"), ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR),
    ],
)
async def test_a_refusal_of_the_store_is_never_a_success(
    bench: Bench, error: StorageError, reason_code: ReasonCode
) -> None:
    await bench.know("a", "b")
    bench.publish(received(1), received(2, "b"), received(3))
    bench.store.answer(0, error)
    bench.store.answer(1)
    await wait_all_tasks_blocked()
    assert bench.answered == [(1, reason_code), (2, SUCCESS), (3, reason_code)]
    bench.store.commit_errors = [error, error, None]
    bench.publish(received(4, qos=2), received(5, "b", qos=2))
    await wait_all_tasks_blocked()
    # Together they are refused; alone only the first one is.
    assert bench.answered[3:] == [(4, reason_code), (5, SUCCESS)]
    bench.store.create_errors = [error]
    bench.publish(received(6, "c"), received(7, "a"))
    await wait_all_tasks_blocked()
    bench.store.answer(2)
    await wait_all_tasks_blocked()
    assert bench.answered[5:] == [(6, reason_code), (7, SUCCESS)]
    assert set(bench.refusals) == {error.code}


async def test_when_the_store_has_no_room_messages_wait_in_order_and_reading_stops(bench: Bench) -> None:
    await bench.know("a", "b")
    bench.store.has_room = False
    bench.publish(received(1), received(2, "b"))
    bench.publish(*(received(number, payload=b"x" * 100_000) for number in (3, 4, 5)))
    await wait_all_tasks_blocked()
    assert bench.store.stored == []
    assert bench.inbound.waiting_bytes > MAX_WAITING_BYTES
    assert not bench.inbound.has_room
    bench.store.has_room = True
    bench.store.room.set()
    with trio.fail_after(PATIENCE_S):
        await bench.inbound.wait_for_room()
    await wait_all_tasks_blocked()
    assert [(shard, len(values)) for shard, values in bench.store.stored] == [("a", 1), ("b", 1), *[("a", 1)] * 3]
    assert bench.inbound.waiting_bytes == 0


async def test_messages_are_appended_together_only_as_far_as_the_store_would_take_each(bench: Bench) -> None:
    """One that just fits into a batch of the store was refused with those beside it, as all together did not fit."""
    await bench.know("a")
    large = b"x" * MAX_PACKET_BYTES
    bench.publish(received(1), received(2), received(3, payload=large), received(4), received(5))
    assert bench.store.stored == [("a", [b"1", b"2"]), ("a", [large]), ("a", [b"4", b"5"])]


@pytest.mark.parametrize("width", [0, 30, 3000])
async def test_all_that_a_message_takes_counts_towards_what_is_appended_together(bench: Bench, width: int) -> None:
    """A store that takes the largest packet takes each group."""
    topic = "t" * max(1, min(width, 100))
    await bench.know(topic)
    values = Properties(user_properties=(("n" * width, "ü" * width),))
    messages = [received(number, topic, publisher="c" * width, properties=values) for number in range(1, 200)]
    bench.publish(*messages)
    stored = bench.store.records
    assert [record.value for records in stored for record in records] == [b"%d" % one.packet_id for one in messages]
    sizes = [len(encode(records, now_us=1)) for records in stored]
    assert all(size <= MAX_PACKET_BYTES or len(some) == 1 for size, some in zip(sizes, stored, strict=True))
    assert sum(sizes) / len(sizes) > MAX_PACKET_BYTES / 4


async def test_a_smaller_append_does_not_overtake_one_for_which_there_is_no_room(bench: Bench) -> None:
    await bench.know("a")
    bench.store.room_bytes = 1000
    large = b"x" * MAX_PACKET_BYTES
    bench.publish(received(1), received(2, payload=large), received(3))
    await wait_all_tasks_blocked()
    assert bench.store.stored == [("a", [b"1"])]
    bench.store.room_bytes = MAX_PACKET_BYTES
    bench.store.room.set()
    await wait_all_tasks_blocked()
    assert bench.store.stored == [("a", [b"1"]), ("a", [large]), ("a", [b"3"])]


async def test_while_the_store_cannot_be_reached_no_publisher_gets_a_failure(
    bench: Bench, autojump_clock: trio.testing.MockClock
) -> None:
    bench.store.create_errors = [ConnectionLostError("gone")] * 3
    bench.store.commit_errors = [ConnectionLostError("gone")] * 3
    bench.publish(received(1), received(2, retain=True))
    await trio.sleep(10)
    bench.store.answer(0)
    await trio.sleep(10)
    assert bench.answered == [(1, SUCCESS), (2, SUCCESS)]


async def test_a_retained_message_is_stored_with_its_retained_value(bench: Bench) -> None:
    bench.publish(
        received(1, payload=b"old", retain=True),
        received(2, payload=b"new", retain=True),
        received(3, "b", payload=b"x", retain=True),
    )
    await wait_all_tasks_blocked()
    [changes] = bench.store.commits
    assert [(shard, [record.value for record in records]) for shard, records in changes.appends] == [
        ("a", [b"old", b"new"]),
        ("b", [b"x"]),
    ]
    assert changes.puts == (StatePut(b"retained/a", b"new"), StatePut(b"retained/b", b"x"))
    assert bench.answered == [(1, SUCCESS), (2, SUCCESS), (3, SUCCESS)]


async def test_a_retained_message_does_not_overtake_earlier_ones_of_its_topic(bench: Bench) -> None:
    await bench.know("a")
    bench.publish(received(1), received(2, retain=True), received(3))
    await wait_all_tasks_blocked()
    assert bench.store.commits == []
    assert bench.store.stored == [("a", [b"1"])]
    bench.store.answer(0)
    await wait_all_tasks_blocked()
    assert len(bench.store.commits) == 1
    assert bench.store.stored == [("a", [b"1"]), ("a", [b"3"])]


async def test_messages_of_qos_2_are_stored_with_their_packet_identifiers(bench: Bench) -> None:
    bench.publish(received(1, qos=2), received(2, qos=2), received(3, qos=2, retain=True))
    assert set(bench.inbound.storing) == {1, 2, 3}
    await wait_all_tasks_blocked()
    [(changes, packet_ids)] = bench.with_session
    assert list(packet_ids) == [1, 2, 3]
    assert [shard for shard, _ in changes.appends] == ["a"]
    assert [put.key for put in changes.puts] == [b"retained/a"]
    assert bench.inbound.storing == {}
    assert bench.answered == [(1, SUCCESS), (2, SUCCESS), (3, SUCCESS)]


async def test_a_message_that_is_being_stored_and_comes_again_is_stored_once_and_answered_twice(bench: Bench) -> None:
    bench.publish(received(1, qos=2), received(1, qos=2))
    bench.publish(received(1, qos=2))
    await wait_all_tasks_blocked()
    assert sum(len(records) for changes, _ in bench.with_session for _, records in changes.appends) == 1
    assert bench.answered == [(1, SUCCESS)] * 3


async def test_a_delayed_message_is_a_timer_and_no_append(bench: Bench) -> None:
    bench.publish(received(1, payload=b"later", due=DelayedPublish(77)))
    await wait_all_tasks_blocked()
    assert bench.store.commits == [Changes(puts=(StatePut(b"timer/77", b"later", 0),))]
    assert bench.store.created == {}
    assert bench.answered == [(1, SUCCESS)]


async def test_a_deleted_shard_is_created_again_and_the_message_is_stored(bench: Bench) -> None:
    await bench.know("a")
    bench.store.created.clear()
    bench.publish(received(1), received(2))
    bench.store.answer(0, ShardNotFoundError("gone"))
    await wait_all_tasks_blocked()
    assert set(bench.store.created) == {"a"}
    assert bench.store.stored[1:] == [("a", [b"1", b"2"])]
    bench.store.answer(1)
    await wait_all_tasks_blocked()
    assert bench.answered == [(1, SUCCESS), (2, SUCCESS)]
    assert bench.inbound.waiting_bytes == 0


async def test_a_shard_that_is_deleted_over_and_over_is_a_refusal(bench: Bench) -> None:
    await bench.know("a")
    bench.publish(received(1))
    for at in (0, 1):
        bench.store.answer(at, ShardNotFoundError("gone"))
        await wait_all_tasks_blocked()
    assert bench.answered == [(1, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)]


async def test_settle_waits_for_all_outcomes(bench: Bench) -> None:
    await bench.know("a")
    bench.publish(received(1), received(0, qos=0))
    with trio.move_on_after(0.01) as waiting:
        await bench.inbound.settle()
    assert waiting.cancelled_caught
    for at in range(len(bench.store.appends)):
        bench.store.answer(at)
    with trio.fail_after(PATIENCE_S):
        await bench.inbound.settle()
