"""Messages that are sent together to a client: nothing is different from sending each by itself."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_adapter.mqtt.delivery import sender
from broker_adapter.mqtt.delivery.outgoing_message import Arrival
from broker_adapter.mqtt.delivery.publish_encoding import PublishEncoder
from broker_adapter.mqtt.delivery.sender import MessageSender
from broker_adapter.mqtt.model.message import Message
from broker_adapter.mqtt.model.statistics import BrokerStatistics
from broker_adapter.mqtt.model.subscription import Origin
from broker_adapter.mqtt.model.topic_aliases import OutboundAliases
from broker_adapter.mqtt.session.outbound_window import OutboundWindow
from broker_adapter.mqtt.session.session import Session
from broker_adapter.mqtt_codec import EMPTY, Decoder, Properties, Version
from broker_adapter.mqtt_codec.packets import Puback, Publish
from shards.seams.clock import ManualClock

NOW_US = 1_000_000
MAX_PACKET_BYTES = 60


class Taken:
    """An inbox that has what the test puts in, and an output that keeps what is sent."""

    has_room = True
    position_lsn = safe_lsn = 0

    def __init__(self) -> None:
        self.arrivals: list[Arrival] = []
        self.sent: list[bytes] = []

    def take(self, max_count: int) -> list[Arrival]:
        taken = self.arrivals[:max_count]
        del self.arrivals[:max_count]
        return taken

    def collect(self, data: bytes) -> None:
        self.sent.append(data)

    def flush(self) -> None:
        pass


class Scene:
    """A sender, and what it does."""

    def __init__(self, version: Version, aliases: int, receive_maximum: int, maybe_sent_lsn: int = 0) -> None:
        self.calls: list[str] = []
        self.taken = Taken()
        self.statistics = BrokerStatistics()
        self.window = OutboundWindow()
        self.window.receive_maximum = receive_maximum
        self.window.maybe_sent_lsn = maybe_sent_lsn
        taken: Any = self.taken
        self.sender = MessageSender(
            Session("c", 1, version, 100, out=self.window),
            taken,
            taken,
            cast("Any", None),
            PublishEncoder(version, OutboundAliases(aliases), MAX_PACKET_BYTES),
            claim=cast("Any", None),
            may_have=lambda topic: topic != "denied",
            wait_reached=cast("Any", None),
            adapter=cast("Any", None),
            retained=cast("Any", None),
            topic_of=cast("Any", None),
            clock=ManualClock(NOW_US),
            start=cast("Any", None),
            statistics=self.statistics,
        )

    def send(self, arrivals: Sequence[Arrival]) -> None:
        for arrival in arrivals:
            if arrival.acknowledge is not None:
                arrival.acknowledge = lambda offset=arrival.message.offset: self.calls.append(f"done {offset}")
        self.taken.arrivals += arrivals
        self.sender.pump()

    def acknowledge(self, count: int) -> None:
        packet_ids = [entry.packet_id for entry in self.window.publishes()][:count]
        assert self.sender.pubacks([Puback(packet_id) for packet_id in packet_ids]) is None
        self.sender.pump()

    @property
    def outcome(self) -> tuple[object, ...]:
        window = self.window
        return (
            b"".join(self.taken.sent),
            [msgspec.structs.asdict(entry) for entry in window],
            (sorted(window.seen.items()), window.quota, window.last_packet_id),
            (self.statistics.packets_sent, self.statistics.sent, dict(self.statistics.dropped)),
            (self.calls, len(self.taken.arrivals), self.sender.took),
        )


@st.composite
def runs(draw: st.DrawFn) -> list[Arrival]:
    """Some messages of one shard; mostly alike, but any of them may be different."""
    shard, first = draw(st.sampled_from("ab")), draw(st.integers(0, 30))
    is_stored = draw(st.sampled_from([True, True, True, False]))
    usual = {"topic": draw(st.sampled_from(["t", "t", "denied", "x" * 50])), "ids": draw(st.sampled_from([(), (7,)]))}
    arrivals = []
    for offset in range(first, first + draw(st.integers(1, 9))):
        odd = draw(
            st.sampled_from([""] * 12 + ["qos", "topic", "large", "old", "expires", "group", "retain", "headers"])
        )
        odd = draw(st.sampled_from([odd, odd, odd, "properties", "ids", "origin", "wildcard", "again"])) if odd else ""
        message = Message(
            {"topic": "u", "wildcard": "a/+"}.get(odd, usual["topic"]),
            b"%d" % offset + bytes(60 if odd == "large" else 0),
            1,
            properties=Properties(content_type="text") if odd == "properties" else EMPTY,
            expires_at_us={"old": NOW_US - 1, "expires": NOW_US + 5_000_000}.get(odd, 0),
            shard=shard,
            offset=max(0, offset - 2) if odd == "again" else offset,
            lsn=100 + offset // 3 if is_stored else 0,
            header_count=1000 if odd == "headers" else 0,
        )
        arrivals.append(
            Arrival(
                message,
                0 if odd == "qos" else 1,
                odd == "retain",
                (9,) if odd == "ids" else usual["ids"],
                (lambda: None) if odd == "group" else None,
                Origin.REPLAY if odd == "origin" else Origin.SUBSCRIPTION,
            )
        )
    return arrivals


@settings(max_examples=300)
@given(
    st.sampled_from(Version),
    st.sampled_from([0, 2]),
    st.sampled_from([3, 65_535]),
    st.sampled_from([0, 0, 105, 1000]),
    st.booleans(),
    st.lists(st.tuples(runs(), st.integers(0, 20)), min_size=1, max_size=5),
)
def test_nothing_is_different_from_sending_each_by_itself(
    version: Version,
    aliases: int,
    receive_maximum: int,
    maybe_sent_lsn: int,
    checks: bool,
    steps: list[tuple[list[Arrival], int]],
) -> None:
    outcomes = []
    for worth_a_run in (1, 1 << 30):
        scene = Scene(version, aliases, receive_maximum, maybe_sent_lsn)
        scene.sender.checks_topics = checks
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sender, "_WORTH_A_RUN", worth_a_run)
            for arrivals, acknowledged in steps:
                copies = [
                    msgspec.structs.replace(one, message=msgspec.structs.replace(one.message)) for one in arrivals
                ]
                scene.send(copies)
                scene.acknowledge(acknowledged)
        outcomes.append(scene.outcome)
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("maybe_sent_lsn", [0, 9, 10])
def test_what_is_alike_is_sent_together(monkeypatch: pytest.MonkeyPatch, maybe_sent_lsn: int) -> None:
    """Otherwise the property above would compare one form with itself."""
    scene = Scene(Version.V5, 0, 65_535, maybe_sent_lsn)
    monkeypatch.setattr(scene.sender.__class__, "_packet_for", None)
    scene.send([Arrival(Message("t", b"%d" % at, 1, shard="t", offset=at, lsn=9), 1) for at in range(20)])
    assert len(scene.window) == 20
    assert scene.statistics.sent.messages == [0, 20, 0]


@pytest.mark.parametrize("aliases", [0, 2])
@pytest.mark.parametrize("worth_a_run", [1, 1 << 30])
def test_what_may_have_been_sent_before_has_dup(
    monkeypatch: pytest.MonkeyPatch, worth_a_run: int, aliases: int
) -> None:
    """At QoS 1 for subscriptions and groups; not what is not stored, nor what was requested on this connection."""
    monkeypatch.setattr(sender, "_WORTH_A_RUN", worth_a_run)
    scene = Scene(Version.V5, aliases, 65_535, maybe_sent_lsn=105)
    scene.sender._session.expiry_interval_s = 0  # at QoS 2 nothing has to be stored before it is sent

    offsets = itertools.count()

    def arrival(lsn: int, qos: int = 1, origin: Origin = Origin.SUBSCRIPTION) -> Arrival:
        return Arrival(Message("t", b"", 2, shard="t", offset=next(offsets), lsn=lsn), qos, origin=origin)

    scene.send([arrival(lsn) for lsn in range(100, 110)])
    scene.send([arrival(0) for _ in range(5)])
    scene.send([arrival(90, qos=0), arrival(91, qos=2)])
    scene.send([arrival(92, origin=Origin.GROUP), arrival(93, origin=Origin.REPLAY)])
    decoder = Decoder(of="server", version=Version.V5)
    sent = [cast("Publish", packet).dup for packet in decoder.receive(b"".join(scene.taken.sent))]
    assert sent == [True] * 5 + [False] * 5 + [False] * 5 + [False] * 2 + [True, False]
