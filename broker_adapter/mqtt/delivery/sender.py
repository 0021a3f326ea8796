"""Sends messages to one client: takes them from the inbox, encodes them, and tracks them until they are acknowledged.

Which messages these are is decided in `delivery`; what must be remembered of them is in `session`. This is the hot path
of delivery: it never waits for a single message.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

import attrs
import structlog

from broker_adapter.adapter import StorageAdapter
from broker_adapter.mqtt.delivery.inbox import Inbox
from broker_adapter.mqtt.delivery.outgoing_message import Arrival, alike_from
from broker_adapter.mqtt.delivery.publish_encoding import PublishEncoder
from broker_adapter.mqtt.delivery.redelivery import fetch_messages
from broker_adapter.mqtt.delivery.share_claims import ShareClaims
from broker_adapter.mqtt.model.message import Message
from broker_adapter.mqtt.model.position import Position, ReachedLsn, RetainedScan
from broker_adapter.mqtt.model.statistics import BrokerStatistics
from broker_adapter.mqtt.model.subscription import Origin
from broker_adapter.mqtt.publish.store_changes import until_reached
from broker_adapter.mqtt.session import Retained, Session
from broker_adapter.mqtt.session.claims import Claim
from broker_adapter.mqtt.session.outbound_window import InFlight
from broker_adapter.mqtt.session.retained import version_of
from broker_adapter.mqtt.transport.output import SavedFirst
from broker_adapter.mqtt_codec import PublishTemplate, ReasonCode, encode
from broker_adapter.mqtt_codec.packets import Puback, Pubrel
from broker_adapter.topic_mapping import TopicOf
from journal.net.output import Output
from shards.seams.clock import Clock

log: structlog.stdlib.BoundLogger = structlog.get_logger("broker")

_TAKEN_AT_ONCE: Final = 128
_RESENT_AT_ONCE: Final = 64
_WORTH_A_RUN: Final = 4
"""As few messages that are alike are not sent faster together."""

_OF_SESSION: Final = (Origin.SUBSCRIPTION, Origin.GROUP)
"""Why messages are sent that an earlier owner of the session may have sent too; see `OutboundWindow.maybe_sent_lsn`."""


@attrs.frozen(slots=True)
class _PendingRetained:
    """A retained message that is to be sent.

    Attributes:
        scan: The scan of its subscription.
        key: Position of the scan when this message is taken.
        arrival: None for an entry that only moves the scan.
        is_last: The scan ends with it.
    """

    scan: RetainedScan
    key: bytes
    arrival: Arrival | None
    is_last: bool = False


class MessageSender:
    """Sends messages to one client.

    Args:
        session: Tracks messages under way.
        inbox: Source of the messages.
        output: Where packets are sent.
        saved: Sends packets that need a durable session state first.
        encoder: Encodes the packets.
        claim: Claims messages of shared subscriptions for the session.
        may_have: Whether the client may get messages of a topic; checked before a message of an earlier connection is
            sent again: that connection may have been under other rules.
        wait_reached: Waits until everything up to a position was put into the inbox.
        adapter: Store in which messages of an earlier connection are read again.
        retained: Store of retained messages.
        topic_of: Tells the topics of records.
        clock: Tells what has expired.
        start: Starts a task that ends with the connection.
        statistics: Where sent and dropped messages are counted.

    Attributes:
        took: Messages were taken since this was last set to false, so the session's position has moved.
        checks_topics: Whether `may_have` is asked for every message, since the rules may deny some that arrive.
    """

    __slots__ = (
        "_acknowledge",
        "_adapter",
        "_claim",
        "_claimed",
        "_clock",
        "_encoder",
        "_first",
        "_holds",
        "_inbox",
        "_is_asking",
        "_is_awaiting",
        "_is_resending",
        "_may_have",
        "_output",
        "_pending_retained",
        "_retained",
        "_saved",
        "_session",
        "_start",
        "_statistics",
        "_topic_of",
        "_unsent",
        "_wait_reached",
        "_window",
        "checks_topics",
        "took",
    )

    def __init__(
        self,
        session: Session,
        inbox: Inbox,
        output: Output,
        saved: SavedFirst,
        encoder: PublishEncoder,
        *,
        claim: Callable[[Mapping[Claim, InFlight]], Awaitable[None]],
        may_have: Callable[[str], bool],
        wait_reached: Callable[[Position], Awaitable[None]],
        adapter: StorageAdapter,
        retained: Retained,
        topic_of: TopicOf,
        clock: Clock,
        start: Callable[[Callable[[], Awaitable[None]]], None],
        statistics: BrokerStatistics,
    ) -> None:
        self._session = session
        self._window = session.out
        self._inbox = inbox
        self._output = output
        self._saved = saved
        self._claim = claim
        self._claimed: ShareClaims | None = None  # most clients have no messages of shared subscriptions at QoS 2
        self._encoder = encoder
        self._may_have = may_have
        self._wait_reached = wait_reached
        self._adapter = adapter
        self._retained = retained
        self._topic_of = topic_of
        self._clock = clock
        self._start = start
        self._statistics = statistics
        # Short: what one subscription or one page brings. An empty deque needs ten times as much memory as a list.
        self._first: list[Arrival] = []
        self._pending_retained: list[_PendingRetained] = []
        self._is_asking = False
        self._is_awaiting = False
        self._acknowledge: dict[int, Callable[[], None]] = {}
        self._unsent: list[Arrival] = []
        self._holds = 0
        self._is_resending = False
        self.took = False
        self.checks_topics = False

    def hold(self) -> None:
        """Send no messages until `release`: retained messages that go first are being looked up."""
        self._holds += 1

    def forget_retained(self, topic_filter: str) -> None:
        """Send no more retained messages of a subscription."""
        scans = self._session.retained
        scans[:] = [one for one in scans if one.topic_filter != topic_filter]
        self._pending_retained = [one for one in self._pending_retained if one.scan.topic_filter != topic_filter]

    def release(self, first: list[Arrival]) -> None:
        """Continue, with these messages and the scans of retained messages before all that waits."""
        self._holds -= 1
        self._first.extend(first)
        self.pump()

    def stop(self) -> None:
        """Send no more messages."""
        self._holds += 1

    @property
    def safe_lsn(self) -> ReachedLsn:
        """Every matching stored message up to this lsn was sent, or need not be."""
        lsns = [one.message.lsn for one in self._unsent if one.origin is Origin.SUBSCRIPTION and one.message.lsn]
        return min([self._inbox.safe_lsn, *(ReachedLsn(lsn - 1) for lsn in lsns)])

    def pump(self) -> None:
        """Send as many messages as the client, the connection and the protocol allow now."""
        if self._holds or self._is_resending or self._is_asking:
            return
        window, output, inbox = self._window, self._output, self._inbox
        if window.has_resends:
            self._is_resending = True
            self._start(self._resend)
            return
        now_us = self._clock.now_us()
        while output.has_room and (quota := window.quota):
            first = self._first
            if first:
                arrivals = first[: min(quota, _TAKEN_AT_ONCE)]
                del first[: len(arrivals)]
                origin = Origin.RETAINED
            elif self._pending_retained:
                self._send_retained(min(quota, _TAKEN_AT_ONCE), now_us)
                continue
            elif self._session.retained and (scan := self._next_scan()) is not None:
                # Nothing else is sent before it: a message older than a live one must not follow the live one.
                self._is_asking = True
                self._start(partial(self._read_retained, scan))
                break
            else:
                arrivals = inbox.take(min(quota, _TAKEN_AT_ONCE))
                origin = Origin.SUBSCRIPTION
                if not arrivals:
                    break
                self.took = True
            self._send(arrivals, origin, now_us)
        self._session.advance(self.safe_lsn)
        output.flush()

    def _send(self, arrivals: Sequence[Arrival], origin: Origin, now_us: int) -> None:
        """Send messages that were taken from where they waited."""
        packets: list[bytes] = []
        at = 0
        try:
            while at < len(arrivals):
                run = alike_from(arrivals, at) if origin is Origin.SUBSCRIPTION else []
                if len(run) >= _WORTH_A_RUN and self._send_alike(arrivals[at], run, packets, now_us):
                    at += len(run)
                    continue
                for arrival in arrivals[at : at + max(1, len(run))]:
                    packet = self._packet_for(arrival, origin, now_us)
                    if packet is not None:
                        packets.append(packet)
                    at += 1
        except BaseException:
            # The connection ends. The position does not pass messages that were taken and not sent.
            self._unsent.extend(arrivals[at:])
            raise
        finally:
            if packets:
                self._output.collect(b"".join(packets))

    def _send_alike(self, first: Arrival, messages: Sequence[Message], packets: list[bytes], now_us: int) -> bool:
        """Send messages that can be sent together (`alike_from`) in one go; false if each has to be looked at."""
        window, encoder, qos = self._window, self._encoder, first.qos
        if self.checks_topics or not window.are_new(messages[0].shard, messages[0].offset):
            return False
        # A message that is not stored has lsn 0. No earlier owner of the session can have sent it.
        dup = 0 < messages[0].lsn < window.maybe_sent_lsn
        if dup and messages[-1].lsn >= window.maybe_sent_lsn:
            return False
        retain, subscription_ids = first.retain, first.subscription_ids
        templates = encoder.templates(messages, qos, retain, subscription_ids)
        if templates is None:
            return False
        statistics = self._statistics
        statistics.packets_sent += len(messages)
        statistics.sent.messages[qos] += len(messages)
        statistics.sent.payload_bytes[qos] += sum([len(message.payload) for message in messages])
        packet_ids = window.assign_new(messages, qos, retain, subscription_ids)
        packets += encoder.packets(templates, messages, packet_ids, now_us, dup=dup)
        return True

    def _send_retained(self, max_count: int, now_us: int) -> None:
        """Send retained messages. A scan moves on in the step in which its message is taken."""
        self.took = True
        for _ in range(min(max_count, len(self._pending_retained))):
            owed = self._pending_retained.pop(0)
            if owed.arrival is not None:
                if self._may_have(owed.arrival.message.topic):
                    # The scan is older than the takeover, so the earlier owner may have been further than it stored.
                    dup = owed.scan.until.lsn < self._window.maybe_sent_lsn
                    packet = self._packet_for(owed.arrival, Origin.RETAINED, now_us, dup=dup)
                    if packet is not None:
                        self._output.collect(packet)
                else:
                    self._statistics.dropped["not_allowed"] += 1
            owed.scan.after = owed.key
            if owed.is_last:
                self._session.retained.remove(owed.scan)

    def _next_scan(self) -> RetainedScan | None:
        """The first subscription whose retained messages may be sent now, if there are any.

        If a subscription was repeated, older live messages may still wait or be on their way. They are sent first, so
        that no topic goes back to an older value. (A retained message that is read then is either as old as `until`, so
        not older than these, or it also comes as a live message.)
        """
        for scan in self._session.retained:
            options = self._session.subscriptions.get(scan.topic_filter)
            if options is None or scan.until <= options.since or self._inbox.safe_lsn >= scan.until.lsn:
                return scan
            if not self._is_awaiting and self._inbox.position_lsn < scan.until.lsn:
                self._is_awaiting = True
                self._start(partial(self._wait_for_live, scan.until))
        return None

    async def _wait_for_live(self, until: Position) -> None:
        await self._wait_reached(until)
        self._is_awaiting = False
        self.pump()

    async def _read_retained(self, scan: RetainedScan) -> None:
        """Read the next retained messages of a scan, no more than there is room for."""
        page = await until_reached(lambda: self._retained.page(scan.topic_filter, scan.after))
        self._is_asking = False
        if scan in self._session.retained:  # the client may have unsubscribed
            ids = (scan.subscription_id,) if scan.subscription_id else ()
            for key, message in page.messages:
                if scan.until.covers(version_of(message)):
                    arrival = Arrival(message, min(message.qos, scan.qos), retain=True, subscription_ids=ids)
                    self._pending_retained.append(_PendingRetained(scan, key, arrival))
            self._pending_retained.append(_PendingRetained(scan, page.last, None, is_last=page.is_last))
        self.pump()

    def _packet_for(self, arrival: Arrival, origin: Origin, now_us: int, *, dup: bool = False) -> bytes | None:
        """The packet of a message that is to be sent now; None if it is sent later, or not at all.

        At QoS 1 it has DUP with ``dup``, and if an earlier owner of the session may have sent it.
        """
        message, qos = arrival.message, arrival.qos
        window = self._window
        if origin is Origin.SUBSCRIPTION:
            origin = arrival.origin
            if origin is Origin.SUBSCRIPTION and window.is_known(message):
                return None
        if self.checks_topics and not self._may_have(message.topic):
            # It counts as delivered, but a message of a group is left to other members.
            self._statistics.dropped["not_allowed"] += 1
            return None
        if message.expires_at_us and message.expires_at_us <= now_us:
            self._acknowledge_to_group(arrival)
            return None
        template = self._template(message, qos, arrival.retain, arrival.subscription_ids)
        if template is None:
            # For this client the message counts as delivered.
            self._acknowledge_to_group(arrival)
            return None
        self._count(message, qos)
        if not qos:
            packet = self._encoder.packet(template, message, 0, now_us)
            if origin is Origin.SUBSCRIPTION:
                window.sent(message)
            self._acknowledge_to_group(arrival)
            return packet
        acknowledge_claim = arrival.acknowledge if qos == 2 else None
        entry = window.assign(message, qos, origin, arrival.retain, arrival.subscription_ids, acknowledge_claim is None)
        packet_id = entry.packet_id
        if acknowledge_claim is not None:
            # A message of a group at QoS 1 is done when the client acknowledges it. At QoS 2 it must be claimed
            # before anything is sent, or another member would get it too.
            packet = self._encoder.packet(template, message, packet_id, now_us, may_set_alias=False)
            if self._claimed is None:
                self._claimed = ShareClaims(self._claim, window, self._output, self._start, self.pump)
            self._claimed.send(entry, arrival.store_group, packet, acknowledge_claim)
            return None
        if qos == 2 and self._session.is_durable:
            # A packet that waits must not set an alias that packets sent before it would use.
            self._saved.send(self._encoder.packet(template, message, packet_id, now_us, may_set_alias=False))
            return None
        if arrival.acknowledge is not None:
            self._acknowledge[packet_id] = arrival.acknowledge
        before = window.maybe_sent_lsn
        if before and qos == 1 and (dup or (0 < message.lsn < before and origin in _OF_SESSION)):
            return self._encoder.packet(template, message, packet_id, now_us, dup=True)
        return self._encoder.packet(template, message, packet_id, now_us)

    def _template(
        self, message: Message, qos: int, retain: bool, subscription_ids: tuple[int, ...]
    ) -> PublishTemplate | None:
        """The common part of the packets of a message; None, and counted, if it cannot be sent to this client."""
        try:
            template = self._encoder.template(message, qos, retain, subscription_ids)
        except ValueError as error:
            log.warning(
                "message dropped",
                client=self._session.client_id,
                shard=message.shard,
                offset=message.offset,
                reason=str(error),
            )
            self._statistics.dropped["not_encodable"] += 1
            return None
        if template is None:
            self._statistics.dropped["packet_too_large"] += 1
        return template

    def _count(self, message: Message, qos: int) -> None:
        statistics = self._statistics
        statistics.packets_sent += 1
        sent = statistics.sent
        sent.messages[qos] += 1
        sent.payload_bytes[qos] += len(message.payload)

    def _acknowledge_to_group(self, arrival: Arrival) -> None:
        if arrival.acknowledge is not None:
            arrival.acknowledge()

    def pubacks(self, packets: Iterable[Puback]) -> Puback | None:
        """PUBACKs were received; returns the first one that does not match what was sent, None if all do."""
        if not self._acknowledge:
            under_way = len(self._window)
            wrong = self._window.pubacks([packet.packet_id for packet in packets])
            self.took = self.took or len(self._window) < under_way
            return None if wrong is None else Puback(wrong)
        for packet in packets:
            if self._window.puback(packet.packet_id) is not None:
                self._finished(packet.packet_id)
            elif self._window.holds(packet.packet_id):
                return packet
        return None

    # Other acknowledgements of the client; each returns false if it does not match what was sent

    def pubrec(self, packet_id: int, reason_code: ReasonCode) -> bool:
        """PUBREC was received: PUBREL is sent, once that is durable, unless it is a refusal."""
        is_refused = reason_code >= ReasonCode.UNSPECIFIED_ERROR
        entry = self._window.pubrec(packet_id, refused=is_refused)
        if entry is None:
            if self._window.holds(packet_id):
                return False
            if not is_refused:
                self._release(packet_id)
        elif is_refused and not entry.released:
            self._finished(packet_id)
        else:
            self._release(packet_id)
        return True

    def pubcomp(self, packet_id: int) -> bool:
        """PUBCOMP was received."""
        if self._window.pubcomp(packet_id) is None:
            return not self._window.holds(packet_id)
        self._finished(packet_id)
        return True

    def _release(self, packet_id: int) -> None:
        data = encode(Pubrel(packet_id), self._session.version)
        self._statistics.packets_sent += 1
        if self._session.is_durable:
            self._saved.send(data)
        else:
            self._output.collect(data)

    def _finished(self, packet_id: int) -> None:
        self.took = True
        if self._acknowledge and (acknowledge := self._acknowledge.pop(packet_id, None)) is not None:
            acknowledge()

    # Messages that an earlier connection did not finish

    async def _resend(self) -> None:
        window = self._window
        while window.has_resends:
            await self._output.wait_for_room()
            entries = window.take_resends(_RESENT_AT_ONCE)
            if not entries:
                # The client must acknowledge some of them first; that calls `pump` again.
                self._is_resending = False
                return
            wanted = [(entry.shard, entry.offset, entry.lsn) for entry in entries if not entry.released]
            found = await fetch_messages(self._adapter, self._retained, wanted, self._topic_of)
            now_us = self._clock.now_us()
            for entry in entries:
                self._send_again(entry, found.get((entry.shard, entry.offset, entry.lsn)), now_us)
            self._output.flush()
        self._is_resending = False
        self.pump()

    def _send_again(self, entry: InFlight, message: Message | None, now_us: int) -> None:
        if entry.released:
            self._release(entry.packet_id)
            return
        template = None
        if message is not None:
            if self._may_have(message.topic):
                template = self._template(message, entry.qos, entry.retain, entry.subscription_ids)
            else:
                self._statistics.dropped["not_allowed"] += 1
        if message is not None and template is not None:
            self._count(message, entry.qos)
            self._output.collect(self._encoder.packet(template, message, entry.packet_id, now_us, dup=True))
        elif self._window.gone(entry.packet_id) is not None:
            self._release(entry.packet_id)
