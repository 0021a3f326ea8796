"""What a client gets through the window, whatever is lost on the way: the promises of QoS 1 and 2."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker_adapter.mqtt.model.message import Message
from broker_adapter.mqtt.model.position import ReachedLsn
from broker_adapter.mqtt.model.subscription import Origin
from broker_adapter.mqtt.session.outbound_window import MAX_PACKET_ID, OutboundWindow
from broker_adapter.mqtt.session.progress import progress_of, window_of
from broker_adapter.mqtt.session.stored import ProgressRecord
from broker_adapter.state_forms import decode, encode


def message(offset: int, *, shard: str = "s", lsn: int | None = None, qos: int = 1) -> Message:
    return Message("t", b"", qos, shard=shard, offset=offset, lsn=10 + offset if lsn is None else lsn)


def stored_and_read(window: OutboundWindow) -> OutboundWindow:
    stored = encode(progress_of(window, {}, claim=1, write_number=1))
    return window_of(decode(ProgressRecord, b"k", stored))


class Client:
    """A client that keeps the rules of the standard, and its session."""

    def __init__(self) -> None:
        self.delivered: Counter[int] = Counter()
        self.received: set[int] = set()
        self.unanswered = 0

    def connected(self) -> None:
        self.unanswered = 0

    def take(self, packet: tuple[Any, ...]) -> tuple[str, int] | None:
        match packet:
            case ("publish", 0, _, number, _):
                self.delivered[number] += 1
                return None
            case ("publish", 1, packet_id, number, _):
                self.delivered[number] += 1
                return ("puback", packet_id)
            case ("publish", 2, packet_id, number, dup):
                if packet_id not in self.received:
                    self.delivered[number] += 1
                    self.received.add(packet_id)
                else:
                    assert dup, f"identifier {packet_id} is used for a new message while its old one is not released"
                return ("pubrec", packet_id)
            case ("pubrel", packet_id):
                self.received.discard(packet_id)
                return ("pubcomp", packet_id)
        raise AssertionError(packet)


class DeliveryThroughTheWindow(RuleBasedStateMachine):
    """A broker that keeps the rules of the window, its store, two lossy wires and a client.

    Messages are numbered by lsn. The inbox is played by ``taken_lsn``: all above it are still to come.
    """

    @initialize(receive_maximum=st.integers(1, 4))
    def begin(self, receive_maximum: int) -> None:
        self.log: list[Message] = []
        self.gone: set[int] = set()
        self.window = OutboundWindow()
        self.stored = self._snapshot()
        self.client = Client()
        self.receive_maximum = receive_maximum
        self.taken_lsn = 0
        self.sent_before: list[int] = []
        self._connect()

    # What happens

    @rule(qos=st.sampled_from([2, 1, 0]), shard=st.sampled_from("ab"), count=st.integers(1, 3), taken=st.booleans())
    def publish(self, qos: int, shard: str, count: int, taken: bool) -> None:
        for _ in range(count):
            offset = sum(one.shard == shard for one in self.log)
            self.log.append(Message("t", b"", qos, shard=shard, offset=offset, lsn=len(self.log) + 1))
        if taken:
            self.take(100)

    @rule(count=st.integers(1, 5))
    def take(self, count: int) -> None:
        """What a connection does with an inbox: take what the quota allows, make it safe, send it."""
        self._resend()
        needs_saving, packets = False, []
        for found in self.log[self.taken_lsn : self.taken_lsn + count]:
            if found.lsn in self.gone or self.window.is_known(found):
                self.taken_lsn = found.lsn
            elif not self.window.quota:
                break
            elif found.qos == 0:
                self.window.sent(found)
                packets.append(("publish", 0, 0, found.lsn, False))
                self.taken_lsn = found.lsn
            else:
                in_use = {entry.packet_id for entry in self.window}
                entry = self.window.assign(found, found.qos)
                assert entry.packet_id not in in_use
                assert 1 <= entry.packet_id <= MAX_PACKET_ID
                needs_saving |= found.qos == 2
                packets.append(("publish", found.qos, entry.packet_id, found.lsn, False))
                self.taken_lsn = found.lsn
        if needs_saving:
            self.save()
        for packet in packets:
            self._send(packet)

    @rule(lag=st.sampled_from([3, 1, 0]))
    def advance(self, lag: int) -> None:
        self.window.advance(self.taken_lsn - lag)

    @rule(last_packet_id=st.integers(0, 6))
    def identifiers_went_round(self, last_packet_id: int) -> None:
        self.window.last_packet_id = last_packet_id

    @rule()
    def save(self) -> None:
        self.stored = self._snapshot()

    @rule(readers=st.lists(st.sampled_from("cb"), min_size=2, max_size=5), count=st.integers(1, 3))
    def packets_arrive(self, readers: list[str], count: int) -> None:
        for reader in readers:
            if reader == "c":
                self.client_reads(count)
            else:
                self.broker_reads(count)

    def client_reads(self, count: int) -> None:
        for _ in range(min(count, len(self.to_client))):
            packet = self.to_client.popleft()
            if packet[0] == "publish" and packet[1] > 0:
                self.client.unanswered += 1
                assert self.client.unanswered <= self.receive_maximum, "more under way than the client allows"
            answer = self.client.take(packet)
            if answer is not None:
                self.to_broker.append(answer)

    def broker_reads(self, count: int) -> None:
        for _ in range(min(count, len(self.to_broker))):
            kind, packet_id = self.to_broker.popleft()
            if kind == "puback":
                # What the client answers it has finished, so as it counts there is room for another one.
                self.client.unanswered -= 1
                assert self.window.puback(packet_id) is not None
            elif kind == "pubrec":
                assert self.window.pubrec(packet_id) is not None
                self.save()
                self._send(("pubrel", packet_id))
            else:
                entry = self.window.pubcomp(packet_id)
                if entry is not None and packet_id in self.published:
                    self.client.unanswered -= 1

    @precondition(lambda self: self.log)
    @rule(data=st.data())
    def retention_takes_one(self, data: st.DataObject) -> None:
        self.gone.add(data.draw(st.integers(1, len(self.log))))

    @rule(receive_maximum=st.integers(1, 4))
    def move_in_good_order(self, receive_maximum: int) -> None:
        self.save()
        self.crash(receive_maximum)

    @rule(receive_maximum=st.integers(1, 4))
    def crash(self, receive_maximum: int) -> None:
        self.receive_maximum = receive_maximum
        self.window = window_of(decode(ProgressRecord, b"k", self.stored))
        self.taken_lsn = self.window.position_lsn
        self._connect()

    # What holds

    @invariant()
    def nothing_comes_twice_at_qos_2(self) -> None:
        for number, count in self.client.delivered.items():
            assert self.log[number - 1].qos < 2 or count == 1, f"message {number} came {count} times"

    @invariant()
    def identifiers_are_unique_and_the_quota_holds(self) -> None:
        identifiers = [entry.packet_id for entry in self.window]
        assert len(identifiers) == len(set(identifiers)) == len(self.window)
        assert sum(entry.takes_quota for entry in self.window) <= self.receive_maximum

    def teardown(self) -> None:
        if not hasattr(self, "log"):
            return
        for _ in range(4 * len(self.log) + 8):
            self.take(100)
            self.client_reads(100)
            self.broker_reads(100)
        self.nothing_comes_twice_at_qos_2()
        assert not len(self.window)
        assert not self.client.received, "the client waits for PUBREL for ever"
        for one in self.log:
            if one.lsn not in self.gone and one.qos:
                assert self.client.delivered[one.lsn] >= 1, f"message {one.lsn} never came"

    # Steps

    def _snapshot(self) -> bytes:
        return encode(progress_of(self.window, {}, claim=1, write_number=1))

    def _connect(self) -> None:
        self.window.receive_maximum = self.receive_maximum
        self.to_client: deque[tuple[Any, ...]] = deque()
        self.to_broker: deque[tuple[str, int]] = deque()
        self.published: set[int] = set()
        self.client.connected()
        self.expected_releases = [entry.packet_id for entry in self.window.releases()]
        self.expected_publishes = [entry.packet_id for entry in self.window.publishes()]

    def _resend(self) -> None:
        for entry in self.window.take_resends():
            if entry.released:
                assert entry.packet_id == self.expected_releases.pop(0), "PUBREL out of order"
                self._send(("pubrel", entry.packet_id))
                continue
            # Those answered since, which the connection before had sent, need not come again.
            while self.expected_publishes[0] != entry.packet_id:
                self.expected_publishes.pop(0)
            self.expected_publishes.pop(0)
            number = next(
                one.lsn
                for one in self.log
                if (one.shard, one.offset, one.lsn) == (entry.shard, entry.offset, entry.lsn)
            )
            if number not in self.gone:
                self._send(("publish", entry.qos, entry.packet_id, number, True))
            elif (left := self.window.gone(entry.packet_id)) is not None:
                assert left is entry
                assert left.qos == 2
                assert left.released
                self._send(("pubrel", entry.packet_id))

    def _send(self, packet: tuple[Any, ...]) -> None:
        if packet[0] == "publish" and packet[1]:
            assert packet[4] or not self.expected_publishes, "something new before everything came again"
            self.published.add(packet[2])
        self.to_client.append(packet)


DeliveryThroughTheWindow.TestCase.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
TestDelivery = DeliveryThroughTheWindow.TestCase


def test_identifiers_go_round_and_skip_those_in_use() -> None:
    window = OutboundWindow(last_packet_id=MAX_PACKET_ID - 1)
    assert [window.assign(message(at), 1).packet_id for at in range(3)] == [MAX_PACKET_ID, 1, 2]
    window.last_packet_id = MAX_PACKET_ID - 1
    assert window.assign(message(3), 1).packet_id == 3


def test_the_quota_is_given_back_by_what_finishes_a_message_only() -> None:
    window = OutboundWindow()
    window.receive_maximum = 2
    first, second = window.assign(message(0), 1), window.assign(message(1), 2)
    assert window.quota == 0
    assert window.pubrec(second.packet_id) is second
    assert window.quota == 0
    assert window.pubcomp(second.packet_id) is second
    assert window.quota == 1
    assert window.puback(first.packet_id) is first
    assert window.quota == 2


def test_a_refused_message_is_finished_and_gives_its_quota_back() -> None:
    window = OutboundWindow()
    window.receive_maximum = 1
    entry = window.assign(message(0), 2)
    assert window.pubrec(entry.packet_id, refused=True) is entry
    assert (len(window), window.quota) == (0, 1)
    assert window.is_known(message(0))


@pytest.mark.parametrize("answer", ["puback", "pubrec", "pubcomp"])
def test_answers_to_nothing_and_of_the_wrong_kind_change_nothing(answer: str) -> None:
    window = OutboundWindow()
    one, two = window.assign(message(0), 1), window.assign(message(1), 2)
    for packet_id in (99, one.packet_id if answer != "puback" else two.packet_id):
        assert getattr(window, answer)(packet_id) is None
    assert (len(window), window.quota) == (2, MAX_PACKET_ID - 2)


def test_a_pubrec_that_comes_again_finds_what_waits_for_pubcomp() -> None:
    window = OutboundWindow()
    entry = window.assign(message(0), 2)
    window.pubrec(entry.packet_id)
    assert window.pubrec(entry.packet_id) is entry
    assert len(window) == 1


def test_nothing_new_is_taken_before_everything_went_out_again() -> None:
    window = OutboundWindow()
    window.assign(message(0), 1)
    window.assign(message(1), 1)
    window = stored_and_read(window)
    window.receive_maximum = 5
    assert (window.has_resends, window.quota) == (True, 0)
    assert len(window.take_resends(1)) == 1
    assert (window.has_resends, window.quota) == (True, 0)
    assert len(window.take_resends()) == 1
    assert (window.has_resends, window.quota) == (False, 3)


def test_a_pubrel_that_goes_out_again_takes_no_quota_and_gives_none_back() -> None:
    window = OutboundWindow()
    entry = window.assign(message(0), 2)
    window.pubrec(entry.packet_id)
    window = stored_and_read(window)
    window.receive_maximum = 1
    assert [one.released for one in window.take_resends()] == [True]
    assert window.quota == 1
    window.assign(message(1), 1)
    window.pubcomp(entry.packet_id)
    assert window.quota == 0


def test_an_answer_to_what_the_connection_before_sent_spares_sending_it_again() -> None:
    window = OutboundWindow()
    entries = [window.assign(message(at), qos) for at, qos in enumerate((1, 2, 1))]
    window = stored_and_read(window)
    window.puback(entries[0].packet_id)
    window.pubrec(entries[1].packet_id)
    assert [one.packet_id for one in window.take_resends()] == [entries[2].packet_id]
    assert not window.has_resends


def test_what_comes_again_is_the_same_in_all_that_the_client_sees() -> None:
    window = OutboundWindow()
    window.assign(message(0), 1, retain=True, subscription_ids=(3, 70_000))
    (entry,) = stored_and_read(window).take_resends()
    assert msgspec.structs.astuple(entry)[:8] == (1, 1, "s", 0, 10, Origin.SUBSCRIPTION, True, (3, 70_000))


@pytest.mark.parametrize(
    ("origin", "kept"),
    [
        (Origin.SUBSCRIPTION, [1, 2]),
        (Origin.RETAINED, [1, 2]),
        (Origin.GROUP, [2]),
        (Origin.REPLAY, []),
    ],
)
def test_the_origin_decides_what_outlives_the_connection(origin: Origin, kept: list[int]) -> None:
    window = OutboundWindow()
    window.assign(message(0), 1, origin=origin)
    window.assign(message(1), 2, origin=origin)
    assert [entry.qos for entry in stored_and_read(window)] == kept


def test_only_messages_of_subscriptions_are_known_as_taken() -> None:
    window = OutboundWindow()
    for at, origin in enumerate(Origin):
        finished, under_way = message(2 * at), message(2 * at + 1)
        window.puback(window.assign(finished, 1, origin=origin).packet_id)
        window.assign(under_way, 1, origin=origin)
        assert window.is_known(finished) == window.is_known(under_way) == (origin is Origin.SUBSCRIPTION)


def test_a_returning_client_is_spared_what_it_got_at_any_qos_above_the_position() -> None:
    window = OutboundWindow()
    window.sent(message(0))
    window.puback(window.assign(message(1), 1).packet_id)
    entry = window.assign(message(2), 2)
    window.pubrec(entry.packet_id)
    window.pubcomp(entry.packet_id)
    window = stored_and_read(window)
    assert all(window.is_known(message(at)) for at in range(3))
    assert not window.is_known(message(3))
    window.advance(message(2).lsn)
    assert (len(window.done), len(window.seen)) == (0, 0)


def everything_of(window: OutboundWindow) -> tuple[object, ...]:
    entries = [msgspec.structs.asdict(entry) for entry in window]
    ranges = sorted(window.seen.items()), sorted(window.done.items())
    return entries, window.quota, window.last_packet_id, window.position_lsn, ranges


@settings(max_examples=300)
@given(st.data())
def test_messages_assigned_and_acknowledged_together_are_as_one_by_one(data: st.DataObject) -> None:
    together, single = OutboundWindow(), OutboundWindow()
    next_offsets = Counter[str]()
    lsn = 0
    made: list[Message] = []
    for _ in range(data.draw(st.integers(1, 12))):
        step = data.draw(st.sampled_from(["assign"] * 3 + ["acknowledge"] * 2 + ["finish", "advance", "created again"]))
        if step == "assign":
            shard, count = data.draw(st.sampled_from("ab")), data.draw(st.integers(1, 5))
            skipped, again = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 2))
            first = max(0, next_offsets[shard] + skipped - again)
            lsn += data.draw(st.integers(0, 1))
            messages = [message(first + at, shard=shard, lsn=lsn + at // 2) for at in range(count)]
            known = {(one.shard, one.offset): one.lsn for one in made}
            for one in messages:
                one.lsn = known.get((one.shard, one.offset), one.lsn)
            lsn += count // 2
            origin = data.draw(st.sampled_from([Origin.SUBSCRIPTION] * 3 + [Origin.RETAINED]))
            qos = data.draw(st.sampled_from([1, 1, 1, 2]))
            new = [one for one in messages if not single.is_known(one)]
            if together.are_new(shard, first):
                assert new == messages
            if origin is Origin.SUBSCRIPTION and new and together.are_new(shard, new[0].offset):
                packet_ids = together.assign_new(new, qos, False, (3,))
            else:
                packet_ids = [together.assign(one, qos, origin, False, (3,)).packet_id for one in new]
            assert packet_ids == [single.assign(one, qos, origin, False, (3,)).packet_id for one in new]
            made += new
            next_offsets[shard] = max(next_offsets[shard], first + count)
        elif step == "acknowledge":
            waiting = [entry.packet_id for entry in single]
            mixed = st.lists(st.sampled_from([*waiting, 60_000]), max_size=6)
            packet_ids = data.draw(mixed | st.sampled_from([waiting[:count] for count in range(len(waiting) + 1)]))
            wrong = None
            for packet_id in packet_ids:
                if single.puback(packet_id) is None and single.holds(packet_id):
                    wrong = packet_id
                    break
            assert together.pubacks(packet_ids) == wrong
        elif step == "finish":
            for entry in [one for one in single if one.qos == 2]:
                for window in (together, single):
                    window.pubrec(entry.packet_id)
                    window.pubcomp(entry.packet_id)
        elif step == "advance":
            lowest = min((entry.lsn for entry in single), default=lsn + 1)
            for window in (together, single):
                window.advance(ReachedLsn(lowest - 1))
        else:
            # A shard that was deleted and created again: its offsets begin anew, with higher lsns.
            next_offsets["a"] = 0
            made = [one for one in made if one.shard != "a"]
            lsn += 1
        assert everything_of(together) == everything_of(single)
        assert [together.is_known(one) for one in made] == [single.is_known(one) for one in made]


def test_messages_that_were_finished_at_qos_2_are_not_new() -> None:
    window = OutboundWindow()
    packet_id = window.assign(message(0), 2).packet_id
    window.pubrec(packet_id)
    window.pubcomp(packet_id)
    assert (window.are_new("s", 0), window.are_new("s", 1), window.are_new("t", 0)) == (False, True, True)
