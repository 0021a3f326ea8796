"""Latency from a publish at one broker to the delivery at another, at a steady rate."""

from __future__ import annotations

import itertools
import socket

from benchmarks import load
from benchmarks.load import LoadError, Timing
from benchmarks.mqtt import packets
from benchmarks.mqtt.connection import Connection

TOPIC = "bench/across"
PAYLOAD_BYTES = 100
MESSAGES_PER_S = 1000
RECEIVE_BYTES = 1 << 16
PACKET_IDS = 60_000


def latencies_us(publish_to: tuple[str, int], subscribe_at: tuple[str, int], timing: Timing) -> list[float]:
    """Publish at QoS 1 to one broker, receive and acknowledge at another; sorted microseconds."""
    messages = itertools.cycle(
        [packets.publish(TOPIC, bytes(PAYLOAD_BYTES), packet_id=number) for number in range(1, PACKET_IDS)]
    )
    with Connection(subscribe_at, "bench-reader") as reader, Connection(publish_to, "bench-writer") as writer:
        reader.subscribe(TOPIC)
        _wait_until_it_flows(writer, reader)
        cutter, acknowledgements = packets.DeliveryCutter(TOPIC, PAYLOAD_BYTES), packets.PubackCounter()

        def drain(connection: socket.socket) -> int:
            data = connection.recv(RECEIVE_BYTES)
            if not data:
                raise LoadError("a broker closed the connection")
            if connection is writer.socket:
                acknowledgements(bytearray(data), len(data))
                return 0
            delivered = cutter.feed(data)
            if delivered.count:
                connection.sendall(delivered.acknowledgements)
            return delivered.count

        found = load.paced_deliveries(
            lambda: writer.socket.sendall(next(messages)),
            [writer.socket, reader.socket],
            drain,
            rate_per_s=MESSAGES_PER_S,
            timing=timing,
        )
        writer.disconnect()
        reader.disconnect()
    return found


def _wait_until_it_flows(writer: Connection, reader: Connection) -> None:
    """Publish until one message was delivered: brokers may need a moment to announce a subscription to each other."""
    cutter = packets.DeliveryCutter(TOPIC, PAYLOAD_BYTES)
    reader.socket.settimeout(0.2)
    sent = received = 0
    while not received:
        if sent == 100:
            raise LoadError("nothing that is published at one broker reaches the other")
        sent += 1
        writer.socket.sendall(packets.publish(TOPIC, bytes(PAYLOAD_BYTES), packet_id=sent))
        writer.exactly(4)
        try:
            while True:
                delivered = cutter.feed(reader.socket.recv(RECEIVE_BYTES))
                received += delivered.count
                reader.socket.sendall(delivered.acknowledgements)
        except TimeoutError:
            pass
    if received not in {1, sent}:
        raise LoadError(f"{received} of the first {sent} messages came")
    reader.socket.settimeout(30.0)
