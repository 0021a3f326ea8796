"""Clients with wills, each of which lives once: it loses its connection, disconnects, comes back or stays away.

What a broker has to publish for it, or must not, and whether its session is still there afterwards, goes into the
ledger. A CONNECT without an answer may have been carried out: so the will of each attempt has its own number.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import attrs
import trio

from tests.mqtt.cluster import packets
from tests.mqtt.cluster.ledger import Ledger, Stream
from tests.mqtt.cluster.packets import V5, V311, Reader, Will

ANSWER_TIMEOUT_S: Final = 6.0
PAUSE_S: Final = (0.05, 0.3)
CONNECTED_S: Final = (0.05, 1.0)
AWAY_S: Final = (0.05, 1.0)
LONG_S: Final = 3600
DELAY_S: Final = 20
SHORT_S: Final = 2
_LOOK_S: Final = 0.05
_RECEIVE_BYTES: Final = 65_536


@attrs.define
class Mortal:
    """One client, one life.

    Args:
        ports: Brokers it may go to.
        topic: Of its will.
        qos: Of its will; at QoS 2 it has to come once.
        harm: Odd while something is done to a process, and higher behind it.

    Attributes:
        is_over: Whether its life is.
        life: What becomes of it, by its name in `LIVES`.
        is_judged: Whether all that was to be seen of its end was seen: another failure may hide it.
    """

    client_id: str
    ports: Sequence[int]
    ledger: Ledger
    rng: random.Random
    topic: str
    qos: int
    life: str
    harm: Callable[[], int]
    is_over: bool = False
    is_judged: bool = True

    async def run(self) -> None:
        """Live."""
        await LIVES[self.life](self)
        self.is_over = True

    @property
    def _stream(self) -> Stream:
        return Stream(self.client_id, self.topic, self.qos)

    # Lives

    async def be_lost(self) -> None:
        """The connection is lost: the will comes at once, whatever the session."""
        version = self.rng.choice((V5, V311))
        connection, number, _ = await self._connect(version, expiry_s=self.rng.choice((0, LONG_S)))
        await self._stay()
        await trio.aclose_forcefully(connection)
        self.ledger.acknowledge(self._stream, number)

    async def take_leave(self) -> None:
        """The client says DISCONNECT: the will does not come."""
        connection, number, _ = await self._connect(expiry_s=LONG_S)
        await self._stay()
        harm = self.harm()
        is_done = False
        with trio.move_on_after(ANSWER_TIMEOUT_S):
            try:
                await connection.send_all(packets.disconnect())
                while await connection.receive_some(_RECEIVE_BYTES):
                    pass
                is_done = True
            except (trio.BrokenResourceError, OSError):
                pass  # the broker may have been killed before it read that
        await trio.aclose_forcefully(connection)
        if is_done:
            connection, _, _ = await self._connect(expiry_s=0, with_will=False, clean_start=False)
            await trio.aclose_forcefully(connection)
        # A broker that dies on the way may take DISCONNECT along: then the connection was lost.
        if is_done and self._is_first(number) and harm % 2 == 0 and harm == self.harm():
            self.ledger.withdraw(self._stream, number)
        else:
            self.is_judged = False

    async def be_back_in_time(self) -> None:
        """The client is back, at any broker, before the delay of its will is over: the will does not come."""
        connection, number, _ = await self._connect(expiry_s=LONG_S, delay_s=DELAY_S)
        await self._stay()
        await trio.aclose_forcefully(connection)
        lost_s = trio.current_time()
        await trio.sleep(self.rng.uniform(*AWAY_S))
        connection, _, is_present = await self._connect(expiry_s=LONG_S, with_will=False, clean_start=False)
        if self._is_first(number) and trio.current_time() - lost_s < DELAY_S:
            self.ledger.withdraw(self._stream, number)
            if not is_present:
                self.ledger.lose_session(self.client_id)
        else:
            self.is_judged = False
        await trio.aclose_forcefully(connection)

    async def begin_anew(self) -> None:
        """The client begins a new session before the delay is over: the will comes with the end of the old one."""
        connection, number, _ = await self._connect(expiry_s=LONG_S, delay_s=LONG_S)
        await self._stay()
        await trio.aclose_forcefully(connection)
        connection, _, _ = await self._connect(expiry_s=0, with_will=False)
        self.ledger.acknowledge(self._stream, number)
        await trio.aclose_forcefully(connection)

    async def expire(self) -> None:
        """The client stays away for longer than its session is kept: it is gone, and the will came with its end."""
        connection, number, _ = await self._connect(expiry_s=SHORT_S, delay_s=LONG_S)
        await self._stay()
        await trio.aclose_forcefully(connection)
        self.ledger.acknowledge(self._stream, number)
        while not self.ledger.has_come(self._stream, number):
            await trio.sleep(_LOOK_S)
        answer = await self._attempt(V5, self._hello(V5, expiry_s=0, clean_start=False, will=None))
        if answer is None:
            self.is_judged = False  # it may have made a new session
            return
        connection, is_present = answer
        if not self._is_first(number):
            self.is_judged = False
        elif is_present:
            self.ledger.find_undead(self.client_id)
        await trio.aclose_forcefully(connection)

    # Connections

    @staticmethod
    def _is_first(number: int) -> bool:
        """Whether the first CONNECT was answered: an earlier one may be carried out late and begin a session again."""
        return number == 0

    async def _stay(self) -> None:
        await trio.sleep(self.rng.uniform(*CONNECTED_S))

    async def _connect(
        self,
        version: int = V5,
        *,
        expiry_s: int,
        delay_s: int = 0,
        with_will: bool = True,
        clean_start: bool = True,
    ) -> tuple[trio.SocketStream, int, bool]:
        """Connect, as often as it takes.

        Returns:
            The connection, the number of the will, and whether the session was there before the first attempt: one that
            failed may have made it.
        """
        while True:
            number, will = 0, None
            if with_will:
                number = self.ledger.have_will(self._stream)
                payload = f"{self.client_id} {self.qos} {number}".encode()
                will = Will(self.topic, payload, self.qos, delay_s)
            # In MQTT 3.1.1 a session that starts clean ends with its connection.
            starts_clean = clean_start and (version == V5 or not expiry_s)
            hello = self._hello(version, expiry_s=expiry_s, clean_start=starts_clean, will=will)
            if (answer := await self._attempt(version, hello)) is not None:
                return answer[0], number, answer[1]
            await trio.sleep(self.rng.uniform(*PAUSE_S))

    def _hello(self, version: int, *, expiry_s: int, clean_start: bool, will: Will | None) -> bytes:
        return packets.connect(version, self.client_id, clean_start=clean_start, expiry_s=expiry_s, will=will)

    async def _attempt(self, version: int, hello: bytes) -> tuple[trio.SocketStream, bool] | None:
        """One attempt at any broker: the connection and whether the session was present, or nothing."""
        connection: trio.SocketStream | None = None
        reader, found = Reader(version), list[packets.Packet]()
        with trio.move_on_after(ANSWER_TIMEOUT_S):
            try:
                connection = await trio.open_tcp_stream("127.0.0.1", self.rng.choice(self.ports))
                await connection.send_all(hello)
                while not found and (data := await connection.receive_some(_RECEIVE_BYTES)):
                    found = reader.feed(bytes(data))
            except (OSError, trio.BrokenResourceError):
                pass
        if connection is not None and found and found[0].kind == packets.CONNACK and not found[0].code:
            return connection, found[0].session_present
        if connection is not None:
            await trio.aclose_forcefully(connection)
        return None


LIVES: Final[Mapping[str, Callable[[Mortal], Awaitable[None]]]] = {
    "lost": Mortal.be_lost,
    "took leave": Mortal.take_leave,
    "back in time": Mortal.be_back_in_time,
    "began again": Mortal.begin_anew,
    "expired": Mortal.expire,
}
"""What may become of a client, by its name in reports."""
