"""A blocking MQTT connection for unmeasured steps: connect, subscribe, disconnect. Hot paths use its `socket`."""

from __future__ import annotations

from typing import Self

from benchmarks import load
from benchmarks.mqtt import packets


class Connection:
    """One client.

    Attributes:
        session_present: Whether the broker knew its session.
    """

    def __init__(
        self, address: tuple[str, int], client_id: str, *, clean_session: bool = True, timeout_s: float = 30.0
    ) -> None:
        self.socket = load.connect(address, timeout_s=timeout_s)
        self.socket.sendall(packets.connect(client_id, clean_session=clean_session, user=packets.USER))
        self.session_present = packets.expect_connack(self.exactly(4))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def subscribe(self, topic_filter: str, qos: int = 1) -> None:
        """Subscribe; to be called before anything is delivered."""
        self.socket.sendall(packets.subscribe(topic_filter, qos))
        packets.expect_suback(self.exactly(5), qos)

    def disconnect(self) -> None:
        """Send DISCONNECT and wait until the broker has closed the connection."""
        self.socket.setblocking(True)
        self.socket.settimeout(30.0)
        self.socket.sendall(packets.DISCONNECT)
        while self.socket.recv(1 << 20):
            pass
        self.socket.close()

    def exactly(self, size: int) -> bytes:
        """Receive exactly this many bytes; raises `load.LoadError` if the connection ends."""
        data = b""
        while len(data) < size:
            received = self.socket.recv(size - len(data))
            if not received:
                raise load.LoadError(f"the broker closed the connection after {data!r}")
            data += received
        return data


def forget_session(address: tuple[str, int], client_id: str) -> None:
    """End a durable session and what is queued for it."""
    with Connection(address, client_id, clean_session=True) as connection:
        connection.disconnect()
