"""How fast a durable session gets the messages queued while it was away: connect, receive, acknowledge."""

from __future__ import annotations

import time

from benchmarks.load import Chunk, LoadError
from benchmarks.mqtt import packets
from benchmarks.mqtt.connection import Connection, forget_session
from benchmarks.mqtt.publishing import Lane, publish_all

TOPIC = "bench/drain"
CLIENT_ID = "bench-drain"
PAYLOAD_BYTES = 100
WINDOW = 4000
PER_CHUNK = 250
TIMEOUT_S = 60.0
RECEIVE_BYTES = 1 << 18


def drain_rate(publish_to: tuple[str, int], subscribe_at: tuple[str, int], count: int) -> float:
    """Messages per second from the moment the session connects again until the last message is there.

    Like an ordinary MQTT 3.1.1 client it has no receive maximum, and acknowledges received messages at once.

    Args:
        publish_to: Broker to which messages are published.
        subscribe_at: Broker of the session.
        count: Messages queued, each 100 bytes and numbered.

    Raises:
        LoadError: The received messages are not the published ones, or not in order.
    """
    forget_session(subscribe_at, CLIENT_ID)
    with Connection(subscribe_at, CLIENT_ID, clean_session=False) as connection:
        connection.subscribe(TOPIC)
        connection.disconnect()
    with Connection(publish_to, f"{CLIENT_ID}-publisher") as publisher:
        publish_all([Lane(publisher.socket, numbered(count), WINDOW, total=count)], TIMEOUT_S)
        publisher.disconnect()
    begun_at = time.perf_counter()
    with Connection(subscribe_at, CLIENT_ID, clean_session=False) as connection:
        if not connection.session_present:
            raise LoadError("the broker has forgotten the session")
        numbers = receive_all(connection, count)
        seconds = time.perf_counter() - begun_at
        connection.disconnect()
    forget_session(subscribe_at, CLIENT_ID)
    if numbers != b"".join(map(packets.NUMBER.pack, range(count))):
        raise LoadError(f"{count} messages came, but not each once and in order")
    return count / seconds


def numbered(count: int) -> list[Chunk]:
    """Publishes with the numbers from 0 on in their payloads; a packet id is reused after more than a window."""
    return [
        Chunk(
            b"".join(
                packets.publish(
                    TOPIC, packets.NUMBER.pack(number).ljust(PAYLOAD_BYTES, b"x"), packet_id=number % (2 * WINDOW) + 1
                )
                for number in range(first, min(first + PER_CHUNK, count))
            ),
            min(PER_CHUNK, count - first),
        )
        for first in range(0, count, PER_CHUNK)
    ]


def receive_all(connection: Connection, count: int, *, topic: str = TOPIC, payload_bytes: int = PAYLOAD_BYTES) -> bytes:
    """Receive and acknowledge until this many messages have come; return their numbers in order of receipt."""
    cutter = packets.DeliveryCutter(topic, payload_bytes)
    connection.socket.settimeout(TIMEOUT_S)
    buffer = memoryview(bytearray(RECEIVE_BYTES))
    numbers: list[bytes] = []
    got = 0
    while got < count:
        received = connection.socket.recv_into(buffer)
        if not received:
            raise LoadError(f"the broker closed the connection after {got} of {count} messages")
        delivered = cutter.feed(buffer[:received])
        if delivered.count:
            connection.socket.sendall(delivered.acknowledgements)
            numbers.append(delivered.numbers)
            got += delivered.count
    return b"".join(numbers)
