"""What is under way to one client at QoS 1 and 2: packet identifiers, send quota, order of redelivery. Pure.

A message under way is a position in the store, not a copy. When the window is written to the store, and what is read
back when the session returns, is the business of its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

import attrs

from broker_adapter.mqtt.model.message import Message
from broker_adapter.mqtt.model.origin import Origin
from broker_adapter.mqtt.model.position import BEGINNING, ReachedLsn
from broker_adapter.mqtt.session.acked_ranges import AckedRanges

MAX_PACKET_ID: Final = 65_535

MAX_SEEN_RANGES: Final = 2_000
"""So many ranges of offsets that were finished at QoS 0 and 1 above the position are remembered. None need be: it
spares a client that returns some of what it has already."""


@attrs.define(slots=True, eq=False)
class InFlight:
    """One message under way.

    Attributes:
        qos: At which it is sent.
        shard: With ``offset`` and ``lsn`` its place in the store.
        retain: The retain flag as it is sent.
        subscription_ids: Those that it is sent with.
        released: PUBREC came, so that PUBREL is what goes out for it (again).
        is_sent: It went out on this connection.
        takes_quota: Its PUBLISH went out on this connection and is not finished.
        is_claimed: It is this client's. Of a group at QoS 2 it is not before that is durable; see `claims`.
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
        """Whether it is still this client's when the connection has ended."""
        return self.origin <= Origin.RETAINED or (self.origin is Origin.GROUP and self.qos == 2)


class OutboundWindow:
    """The sending side of a session, on one connection after another.

    A message that is taken for the client enters the window (`assign`) or, at QoS 0, is noted (`sent`) in the same step
    in which it is taken, and only then may the session's position pass it. So at any moment every matching message is
    above the position and unknown here, or under way here, or finished.

    At QoS 2 the caller makes two things durable before it goes on: the assignment before PUBLISH, and PUBREC before
    PUBREL. At QoS 1 it need not: what the store does not know of is sent again under a new identifier.

    Args:
        publishes: Under way when the session was stored, in the order in which they were sent.
        releases: Waiting for PUBCOMP, in the order in which PUBREC came.
        done: Finished at QoS 2 above the position: must not be sent again.
        seen: Finished at QoS 0 and 1 above the position: need not be sent again.
        position_lsn: The session's position.
        last_packet_id: Where identifiers go on.
    """

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
        self._places = {(entry.shard, entry.offset, entry.lsn) for entry in self if entry.origin is Origin.SUBSCRIPTION}
        self._quota_taken = 0
        self.receive_maximum = MAX_PACKET_ID
        self.done = done or AckedRanges()
        self.seen = seen or AckedRanges(max_ranges=MAX_SEEN_RANGES)
        self.position_lsn = position_lsn
        self.last_packet_id = last_packet_id

    def __iter__(self) -> Iterator[InFlight]:
        """All that is under way, in the order in which it would be sent again."""
        yield from self._releases.values()
        yield from self._publishes.values()

    def __len__(self) -> int:
        return len(self._publishes) + len(self._releases)

    def publishes(self) -> Iterator[InFlight]:
        """Messages whose PUBLISH is not answered, in the order in which they were sent."""
        return iter(self._publishes.values())

    def releases(self) -> Iterator[InFlight]:
        """Messages that wait for PUBCOMP, in the order in which PUBREC came."""
        return iter(self._releases.values())

    def holds(self, packet_id: int) -> bool:
        """Whether something is under way under that identifier."""
        return packet_id in self._publishes or packet_id in self._releases

    @property
    def lowest_lsn(self) -> int | None:
        """The lowest lsn under way, None if nothing is."""
        return min((entry.lsn for entry in self if entry.origin is Origin.SUBSCRIPTION), default=None)

    # Sending

    @property
    def has_resends(self) -> bool:
        """Whether something of an earlier connection has not gone out again yet."""
        return self._unsent_count > 0

    @property
    def quota(self) -> int:
        """How many new messages may be assigned now; none before all of the earlier connection went out again."""
        if self._unsent_count:
            return 0
        return max(0, min(self.receive_maximum - self._quota_taken, MAX_PACKET_ID - len(self)))

    def assign(
        self,
        message: Message,
        qos: int,
        *,
        origin: Origin = Origin.SUBSCRIPTION,
        retain: bool = False,
        subscription_ids: tuple[int, ...] = (),
        is_claimed: bool = True,
    ) -> InFlight:
        """Give a stored message its packet identifier. REQUIRES: `quota` is not 0, and ``qos`` is 1 or 2.

        One that is not claimed yet is not stored with the session until `claimed` is called; nothing of it may be sent.
        """
        packet_id = self._free_packet_id()
        entry = InFlight(packet_id, qos, message.shard, message.offset, message.lsn, origin, retain, subscription_ids)
        entry.is_claimed = is_claimed
        self._publishes[packet_id] = entry
        self._quota_taken += 1
        if origin is Origin.SUBSCRIPTION:
            self._places.add((message.shard, message.offset, message.lsn))
        return entry

    def claimed(self, packet_ids: Iterable[int]) -> None:
        """These messages are this client's for good."""
        for packet_id in packet_ids:
            if (entry := self._publishes.get(packet_id)) is not None:
                entry.is_claimed = True

    def give_up(self, entry: InFlight) -> None:
        """Another client has claimed the message, or had it. REQUIRES: it is not claimed, so that it was not sent."""
        if self._publishes.get(entry.packet_id) is entry:
            self._finish(self._publishes, entry)

    def sent(self, message: Message) -> None:
        """Note that a message of a subscription went out at QoS 0, so that it does not when the session returns."""
        if message.lsn > self.position_lsn:
            self.seen.add(message.shard, message.offset, message.lsn)

    def take_resends(self, max_count: int = MAX_PACKET_ID) -> list[InFlight]:
        """What goes out again next, in order, as far as the quota allows: PUBREL if released, else PUBLISH with DUP.

        What comes out counts as sent. If a message is not in the store any more, say so with `gone`.
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
        """The message is no longer in the store, so its PUBLISH cannot go out again.

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

    # Answers; each returns the message that it is about, None if there is none under that identifier

    def puback(self, packet_id: int) -> InFlight | None:
        """PUBACK came, whatever its reason code: the message is finished."""
        entry = self._publishes.get(packet_id)
        if entry is None or entry.qos != 1:
            return None
        self._finish(self._publishes, entry)
        return entry

    def pubrec(self, packet_id: int, *, refused: bool = False) -> InFlight | None:
        """PUBREC came. Unless it is a refusal (reason code 0x80 and up) PUBREL is next, once this is durable."""
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
        """PUBCOMP came, whatever its reason code: the message is finished."""
        entry = self._releases.get(packet_id)
        if entry is not None:
            self._finish(self._releases, entry)
        return entry

    # Positions

    def is_known(self, message: Message) -> bool:
        """Whether a message of a subscription is under way or finished, so that it must not be taken once more."""
        place = (message.shard, message.offset, message.lsn)
        return place in self._places or place in self.done or place in self.seen

    def advance(self, position_lsn: ReachedLsn) -> None:
        """The session's position has moved: what is finished up to there need not be remembered."""
        if position_lsn > self.position_lsn:
            self.position_lsn = position_lsn
            self.done.forget(position_lsn)
            self.seen.forget(position_lsn)

    # Steps that several of the above share

    def _free_packet_id(self) -> int:
        packet_id = self.last_packet_id
        while True:
            packet_id = packet_id % MAX_PACKET_ID + 1
            if not self.holds(packet_id):
                self.last_packet_id = packet_id
                return packet_id

    def _release(self, entry: InFlight) -> None:
        del self._publishes[entry.packet_id]
        self._releases[entry.packet_id] = entry
        entry.released = True
        self._count_as_sent(entry)

    def _finish(self, entries: dict[int, InFlight], entry: InFlight) -> None:
        del entries[entry.packet_id]
        self._count_as_sent(entry)
        if entry.takes_quota:
            entry.takes_quota = False
            self._quota_taken -= 1
        if entry.origin is Origin.SUBSCRIPTION:
            self._places.discard((entry.shard, entry.offset, entry.lsn))
            if entry.lsn > self.position_lsn:
                finished = self.done if entry.qos == 2 else self.seen
                finished.add(entry.shard, entry.offset, entry.lsn)

    def _count_as_sent(self, entry: InFlight) -> None:
        # An answer to what the earlier connection sent: it need not go out again.
        if not entry.is_sent:
            entry.is_sent = True
            self._unsent_count -= 1
