"""Messages of shared subscriptions at QoS 2 for one client: each is claimed before it is sent, many in one commit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import attrs

from broker_adapter.mqtt.session.claims import Claim
from broker_adapter.mqtt.session.outbound_window import InFlight, OutboundWindow
from journal.net.output import Output

_CLAIMED_TOGETHER: Final = 256


@attrs.frozen(slots=True)
class _Waiting:
    entry: InFlight
    claim: Claim
    packet: bytes
    acknowledge: Callable[[], None]


class ShareClaims:
    """Sends the packets of messages that were claimed for the client, and drops the others.

    Args:
        claim: Claims messages and stores them with the session; see `Sessions.claim`.
        window: Tracks messages under way.
        output: Where packets are sent.
        start: Starts a task that ends with the connection.
        on_given_up: Called when messages were dropped, so that there is room for others.
    """

    def __init__(
        self,
        claim: Callable[[Mapping[Claim, InFlight]], Awaitable[None]],
        window: OutboundWindow,
        output: Output,
        start: Callable[[Callable[[], Awaitable[None]]], None],
        on_given_up: Callable[[], None],
    ) -> None:
        self._claim = claim
        self._window = window
        self._output = output
        self._start = start
        self._on_given_up = on_given_up
        self._waiting: list[_Waiting] = []
        self._is_claiming = False

    def send(self, entry: InFlight, store_group: str, packet: bytes, acknowledge: Callable[[], None]) -> None:
        """Send a packet once its message is claimed; in either case the message is acknowledged to the group then."""
        claim = Claim(store_group, entry.shard, entry.offset, entry.lsn)
        self._waiting.append(_Waiting(entry, claim, packet, acknowledge))
        self._output.reserve_nowait(len(packet))
        if not self._is_claiming:
            self._is_claiming = True
            self._start(self._run)

    async def _run(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting[:_CLAIMED_TOGETHER], self._waiting[_CLAIMED_TOGETHER:]
            wanted: dict[Claim, InFlight] = {}
            for one in waiting:
                # The group may deliver a message to the same client again before the first delivery is claimed.
                wanted.setdefault(one.claim, one.entry)
            await self._claim(wanted)
            were_given_up = False
            for one in waiting:
                self._output.unreserve(len(one.packet))
                if one.entry.is_claimed:
                    self._output.collect(one.packet)
                else:
                    self._window.give_up(one.entry)
                    were_given_up = True
                one.acknowledge()
            self._output.flush()
            if were_given_up:
                self._on_given_up()
        self._is_claiming = False
