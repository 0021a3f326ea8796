"""TCP segments as the byte streams that they are parts of, each part with the time at which it was sent. Pure."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable
from typing import Final, NamedTuple

_HEADER_BYTES: Final = {4: 20, 6: 40}
_TCP: Final = 6
_MIN_TCP_BYTES: Final = 20
_HALF: Final = 1 << 31
_MASK: Final = (1 << 32) - 1
# source and destination port, sequence number
_PORTS: Final = struct.Struct(">HHI")


class End(NamedTuple):
    """One end of a connection: the bytes of its address, and its port."""

    address: bytes
    port: int


class Direction(NamedTuple):
    """One direction of a connection."""

    sender: End
    receiver: End

    @property
    def reverse(self) -> Direction:
        """The other direction."""
        return Direction(self.receiver, self.sender)


class Segment(NamedTuple):
    """Data that was sent at once; ``sequence`` is the number of its first byte, modulo 2^32."""

    direction: Direction
    sequence: int
    sent_ns: int
    data: bytes


class Part(NamedTuple):
    """Bytes of a stream that were sent at the same time."""

    sent_ns: int
    data: bytes


def read_segment(packet: bytes, sent_ns: int) -> Segment | None:
    """Read a packet that begins with its IPv4 or IPv6 header; None if it is not whole, or no TCP packet with data."""
    version = packet[0] >> 4 if packet else 0
    if len(packet) < _HEADER_BYTES.get(version, len(packet) + 1):
        return None
    if version == 4:
        at = (packet[0] & 0x0F) * 4
        protocol, sender, receiver = packet[9], packet[12:16], packet[16:20]
        end = int.from_bytes(packet[2:4], "big")
    else:
        at = _HEADER_BYTES[6]
        protocol, sender, receiver = packet[6], packet[8:24], packet[24:40]
        end = at + int.from_bytes(packet[4:6], "big")
    if protocol != _TCP or len(packet) < max(end, at + _MIN_TCP_BYTES):
        return None
    sender_port, receiver_port, sequence = _PORTS.unpack_from(packet, at)
    data = packet[at + (packet[at + 12] >> 4) * 4 : end]
    if not data:
        return None
    direction = Direction(End(sender, sender_port), End(receiver, receiver_port))
    return Segment(direction, sequence, sent_ns, data)


def by_direction(segments: Iterable[Segment]) -> dict[Direction, list[Segment]]:
    """The segments of each direction, in their order."""
    found: dict[Direction, list[Segment]] = defaultdict(list)
    for segment in segments:
        found[segment.direction].append(segment)
    return dict(found)


def reassemble(segments: list[Segment]) -> list[list[Part]]:
    """The bytes of one direction in their order, as runs without holes.

    A byte that was sent repeatedly is in it once. All segments are within 2 GiB of the first.
    """
    if not segments:
        return []
    first = segments[0].sequence
    placed = sorted(
        (((segment.sequence - first + _HALF) & _MASK) - _HALF, segment.sent_ns, segment.data) for segment in segments
    )
    runs: list[list[Part]] = []
    end = placed[0][0] - 1  # before the first: so a run begins there
    for position, sent_ns, data in placed:
        if position > end or not runs:
            runs.append([])
            end = position
        fresh = data[end - position :]
        if fresh:
            runs[-1].append(Part(sent_ns, fresh))
            end += len(fresh)
    return runs
