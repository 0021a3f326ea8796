"""QoS 1 and 2 messages under way to one client: packet identifiers, send quota, order of redelivery. Pure.

A message under way is stored as a position, not as a copy. When the window is stored is decided in `sessions` and
`owned_session`; its stored form is in `progress`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

import msgspec

from broker_adapter.mqtt.model.message import Message
from broker_adapter.mqtt.model.position import BEGINNING, ReachedLsn
from broker_adapter.mqtt.model.subscription import Origin
from broker_adapter.mqtt.session.acked_ranges import AckedRanges

MAX_PACKET_ID: Final = 65_535

_NO_OFFSETS: Final[dict[str, int]] = {}

MAX_SEEN_RANGES: Final = 2_000
"""Most ranges of offsets finished at QoS 0 and 1 above the position that are remembered. They are not needed for
correctness: they save a client that returns from some messages that it has already."""


class InFlight(msgspec.Struct, eq=False, gc=False):
    """One message under way.

    Attributes:
        qos: QoS with which it is sent.
        shard: Its place in the store, together with ``offset`` and ``lsn``.
        retain: The retain flag with which it is sent.
        subscription_ids: Subscription Identifiers with which it is sent.
        released: PUBREC was received, so PUBREL is what is sent (again).
        is_sent: It was sent on this connection.
        takes_quota: Its PUBLISH was sent on this connection and is not finished.
        is_claimed: It belongs to this client for good. False for a message of a group at QoS 2 until the claim is
            durable; see `claims`.
    """

    packet_id: int
    qos: int
    shard: str
    offset: int
    lsn: int
    origin: Origin = Origin.SUBSCRIPTION
    retain: bool = False
    subscription_ids: tuple[int, ...] = ()
    released: bool = False
    is_sent: bool = True
    takes_quota: bool = True
    is_claimed: bool = True

    @property
    def is_kept(self) -> bool:
        """Whether it still belongs to this client after the connection has ended."""
        return self.origin <= Origin.RETAINED or (self.origin is Origin.GROUP and self.qos == 2)


class OutboundWindow:
    """The sending side of a session, across connections.

    A message for the client is put into the window (`assign`) or, at QoS 0, noted (`sent`) in the same step in which it
    is taken from the inbox, and only then may the session's position pass it. So at any moment every matching message
    is above the position and unknown here, or under way here, or finished.

    At QoS 2 the caller makes two things durable before it continues: the assignment before PUBLISH, and PUBREC before
    PUBREL. At QoS 1 it need not: a message that is not stored as under way is sent again with a new identifier.

    Args:
        publishes: Messages under way when the session was stored, in the order in which they were sent.
        releases: Waiting for PUBCOMP, in the order in which PUBREC came.
        done: Finished at QoS 2 above the position: must not be sent again.
        seen: Finished at QoS 0 and 1 above the position: need not be sent again.
        position_lsn: The session's position.
        last_packet_id: The packet identifier assigned last.

    Attributes:
        maybe_sent_lsn: Records with a lower lsn that are not known here may have been sent at QoS 1 nevertheless: by an
            earlier owner of the session that ended before it could store that. 0 if there are none. At QoS 2 there are
            none, since the assignment is durable before PUBLISH.
    """

    __slots__ = (
        "_next_offsets",
        "_places",
        "_publishes",
        "_quota_taken",
        "_releases",
        "_unsent_count",
        "done",
        "last_packet_id",
        "maybe_sent_lsn",
        "position_lsn",
        "receive_maximum",
        "seen",
    )

    def __init__(
        self,
        publishes: Iterable[InFlight] = (),
        releases: Iterable[InFlight] = (),
        done: AckedRanges | None = None,
        seen: AckedRanges | None = None,
        *,
        position_lsn: ReachedLsn = BEGINNING.lsn,
        last_packet_id: int = 0,
    ) -> None:
        self._publishes = {entry.packet_id: entry for entry in publishes}
        self._releases = {entry.packet_id: entry for entry in releases}
        self._unsent_count = 0
        for entry in self:
            entry.is_sent = entry.takes_quota = False
            self._unsent_count += 1
        places = {(entry.shard, entry.offset, entry.lsn) for entry in self if entry.origin is Origin.SUBSCRIPTION}
        self._places: set[tuple[str, int, int]] | None = places or None
        # By shard the offset after all of these; empty where `_places` is None.
        self._next_offsets: dict[str, int] = _NO_OFFSETS
        for shard, offset, _ in places:
            self._note_place(shard, offset + 1)
        self._quota_taken = 0
        self.receive_maximum = MAX_PACKET_ID
        self.done = done or AckedRanges()
        self.seen = seen or AckedRanges(max_ranges=MAX_SEEN_RANGES)
        self.position_lsn = position_lsn
        self.last_packet_id = last_packet_id
        self.maybe_sent_lsn = 0

    def __iter__(self) -> Iterator[InFlight]:
        """All messages under way, in the order in which they would be sent again."""
        yield from self._releases.values()
        yield from self._publishes.values()

    def __len__(self) -> int:
        return len(self._publishes) + len(self._releases)

    def publishes(self) -> Iterator[InFlight]:
        """Messages whose PUBLISH is not acknowledged, in the order in which they were sent."""
        return iter(self._publishes.values())

    def releases(self) -> Iterator[InFlight]:
        """Messages that wait for PUBCOMP, in the order in which PUBREC came."""
        return iter(self._releases.values())

    def holds(self, packet_id: int) -> bool:
        """Whether a message is under way with this packet identifier."""
        return packet_id in self._publishes or packet_id in self._releases

    # Sending

    @property
    def has_resends(self) -> bool:
        """Whether a message of an earlier connection was not sent again yet."""
        return self._unsent_count > 0

    @property
    def quota(self) -> int:
        """How many new messages may be assigned now; 0 until all of the earlier connection were sent again."""
        if self._unsent_count:
            return 0
        return max(0, min(self.receive_maximum - self._quota_taken, MAX_PACKET_ID - len(self)))

    def assign(
        self,
        message: Message,
        qos: int,
        origin: Origin = Origin.SUBSCRIPTION,
        retain: bool = False,
        subscription_ids: tuple[int, ...] = (),
        is_claimed: bool = True,
    ) -> InFlight:
        """Assign a packet identifier to a stored message. REQUIRES: `quota` is not 0, and ``qos`` is 1 or 2.

        A message with ``is_claimed=False`` is not stored with the session until `claimed` is called, and must not be
        sent before.
        """
        packet_id = self._free_packet_id()
        shard, offset, lsn = message.shard, message.offset, message.lsn
        entry = InFlight(packet_id, qos, shard, offset, lsn, origin, retain, subscription_ids)
        if not is_claimed:
            entry.is_claimed = False
        self._publishes[packet_id] = entry
        self._quota_taken += 1
        if origin is Origin.SUBSCRIPTION:
            if self._places is None:
                self._places = set()
            self._places.add((shard, offset, lsn))
            self._note_place(shard, offset + 1)
        return entry

    def assign_new(
        self, messages: Sequence[Message], qos: int, retain: bool, subscription_ids: tuple[int, ...]
    ) -> list[int]:
        """`assign` for several messages of subscriptions that are sent alike; returns their packet identifiers.

        REQUIRES: they are of one shard, in order, and `are_new`; there are as many in `quota`.
        """
        publishes, releases = self._publishes, self._releases
        packet_id, packet_ids = self.last_packet_id, []
        if self._places is None:
            self._places = set()
        places = self._places
        for message in messages:
            packet_id = packet_id % MAX_PACKET_ID + 1
            while packet_id in publishes or packet_id in releases:
                packet_id = packet_id % MAX_PACKET_ID + 1
            shard, offset, lsn = message.shard, message.offset, message.lsn
            publishes[packet_id] = InFlight(
                packet_id, qos, shard, offset, lsn, Origin.SUBSCRIPTION, retain, subscription_ids
            )
            places.add((shard, offset, lsn))
            packet_ids.append(packet_id)
        self.last_packet_id = packet_id
        self._quota_taken += len(messages)
        self._note_place(messages[-1].shard, messages[-1].offset + 1)
        return packet_ids

    def _note_place(self, shard: str, next_offset: int) -> None:
        if self._next_offsets is _NO_OFFSETS:
            self._next_offsets = {}
        if next_offset > self._next_offsets.get(shard, 0):
            self._next_offsets[shard] = next_offset

    def claimed(self, packet_ids: Iterable[int]) -> None:
        """These messages now belong to this client for good."""
        for packet_id in packet_ids:
            if (entry := self._publishes.get(packet_id)) is not None:
                entry.is_claimed = True

    def give_up(self, entry: InFlight) -> None:
        """Remove a message that another client claimed. REQUIRES: it is not claimed here, so it was not sent."""
        if self._publishes.get(entry.packet_id) is entry:
            self._finish(self._publishes, entry)

    def sent(self, message: Message) -> None:
        """Note that a message of a subscription was sent at QoS 0, so that it is not sent again after a reconnect."""
        if message.lsn > self.position_lsn:
            self.seen.add(message.shard, message.offset, message.lsn)

    def take_resends(self, max_count: int = MAX_PACKET_ID) -> list[InFlight]:
        """Messages to send again, in order, as far as the quota allows: PUBREL if released, else PUBLISH with DUP.

        They count as sent. Call `gone` for a message that is not in the store any more.
        """
        if not self._unsent_count:
            return []
        resends = list(islice((entry for entry in self._releases.values() if not entry.is_sent), max_count))
        room = min(max_count - len(resends), self.receive_maximum - self._quota_taken)
        publishes = list(islice((entry for entry in self._publishes.values() if not entry.is_sent), max(0, room)))
        for entry in publishes:
            entry.takes_quota = True
        self._quota_taken += len(publishes)
        resends += publishes
        for entry in resends:
            entry.is_sent = True
        self._unsent_count -= len(resends)
        return resends

    def gone(self, packet_id: int) -> InFlight | None:
        """Call this when the message is no longer in the store, so that its PUBLISH cannot be sent again.

        At QoS 1 it is dropped. At QoS 2 the client may have it already and wait for PUBREL under this identifier, which
        therefore is not free yet: the entry is returned, and PUBREL is to be sent for it.
        """
        entry = self._publishes.get(packet_id)
        if entry is None:
            return self._releases.get(packet_id)
        if entry.qos == 1:
            self._finish(self._publishes, entry)
            return None
        self._release(entry)
        return entry

    # Acknowledgements; each call returns the message that it is about, None for an unknown identifier

    def puback(self, packet_id: int) -> InFlight | None:
        """PUBACK was received, with any reason code: the message is finished."""
        publishes = self._publishes
        entry = publishes.get(packet_id)
        if entry is None or entry.qos != 1:
            return None
        self._finish(publishes, entry)
        return entry

    def pubacks(self, packet_ids: Iterable[int]) -> int | None:
        """PUBACKs were received; returns the first identifier of a message that waits for something else.

        Those before that one are finished. Unknown identifiers are passed over.
        """
        publishes, places, position_lsn = self._publishes, self._places, self.position_lsn
        # Records of one shard that follow one another; none at first.
        shard, first_offset, next_offset, last_lsn = "", 0, 0, 0
        try:
            for packet_id in packet_ids:
                entry = publishes.get(packet_id)
                if entry is None or entry.qos != 1:
                    if self.holds(packet_id):
                        return packet_id
                    continue
                if entry.origin is not Origin.SUBSCRIPTION or not entry.is_sent or not entry.takes_quota:
                    self._finish(publishes, entry)
                    continue
                assert places is not None  # see `_finish`
                del publishes[packet_id]
                self._quota_taken -= 1
                entry.takes_quota = False
                offset, lsn = entry.offset, entry.lsn
                places.discard((entry.shard, offset, lsn))
                if lsn <= position_lsn:
                    continue
                # A lower lsn: a shard of this name was deleted, and created again.
                if offset == next_offset and entry.shard == shard and lsn >= last_lsn:
                    next_offset, last_lsn = offset + 1, lsn
                    continue
                self.seen.add_all(shard, first_offset, next_offset, last_lsn)
                shard, first_offset, next_offset, last_lsn = entry.shard, offset, offset + 1, lsn
        finally:
            self.seen.add_all(shard, first_offset, next_offset, last_lsn)
            self._forget_no_places()
        return None

    def _forget_no_places(self) -> None:
        if not self._places:
            self._places = None
            self._next_offsets = _NO_OFFSETS

    def pubrec(self, packet_id: int, *, refused: bool = False) -> InFlight | None:
        """PUBREC was received. Unless ``refused`` (reason code 0x80 and up), PUBREL is next, once this is durable."""
        entry = self._publishes.get(packet_id)
        if entry is None:
            return self._releases.get(packet_id)
        if entry.qos != 2:
            return None
        if refused:
            self._finish(self._publishes, entry)
        else:
            self._release(entry)
        return entry

    def pubcomp(self, packet_id: int) -> InFlight | None:
        """PUBCOMP was received, with any reason code: the message is finished."""
        entry = self._releases.get(packet_id)
        if entry is not None:
            self._finish(self._releases, entry)
        return entry

    # Positions

    def is_known(self, message: Message) -> bool:
        """Whether a message of a subscription is under way or finished, so that it must not be sent as a new one."""
        place = (message.shard, message.offset, message.lsn)
        places, done, seen = self._places, self.done, self.seen
        return (
            (places is not None and place in places)
            or (done.count > 0 and place in done)
            or (seen.count > 0 and place in seen)
        )

    def are_new(self, shard: str, first_offset: int) -> bool:
        """Whether certainly no message of a shard from an offset on is known (`is_known`)."""
        return (
            self._next_offsets.get(shard, 0) <= first_offset
            and self.done.is_behind(shard, first_offset)
            and self.seen.is_behind(shard, first_offset)
        )

    def advance(self, position_lsn: ReachedLsn) -> None:
        """The session's position has moved: messages finished up to there are forgotten."""
        if position_lsn > self.position_lsn:
            self.position_lsn = position_lsn
            self.done.forget(position_lsn)
            self.seen.forget(position_lsn)

    # Shared steps

    def _free_packet_id(self) -> int:
        packet_id = self.last_packet_id
        while True:
            packet_id = packet_id % MAX_PACKET_ID + 1
            if packet_id not in self._publishes and packet_id not in self._releases:
                self.last_packet_id = packet_id
                return packet_id

    def _release(self, entry: InFlight) -> None:
        del self._publishes[entry.packet_id]
        self._releases[entry.packet_id] = entry
        entry.released = True
        self._count_as_sent(entry)

    def _finish(self, entries: dict[int, InFlight], entry: InFlight) -> None:
        del entries[entry.packet_id]
        if not entry.is_sent:
            self._count_as_sent(entry)
        if entry.takes_quota:
            entry.takes_quota = False
            self._quota_taken -= 1
        if entry.origin is Origin.SUBSCRIPTION:
            assert self._places is not None  # it has the place of each message of a subscription that is under way
            shard, offset, lsn = entry.shard, entry.offset, entry.lsn
            self._places.discard((shard, offset, lsn))
            self._forget_no_places()
            if lsn > self.position_lsn:
                finished = self.done if entry.qos == 2 else self.seen
                finished.add(shard, offset, lsn)

    def _count_as_sent(self, entry: InFlight) -> None:
        # An acknowledgement of what the earlier connection sent: it need not be sent again.
        if not entry.is_sent:
            entry.is_sent = True
            self._unsent_count -= 1
