"""TCP packets as the loopback interface has them, made by hand."""

from __future__ import annotations

import itertools
import struct

from journal.trace.streams import Direction, End, Segment

CLIENT = End(b"\x7f\0\0\1", 50_000)
SERVER = End(b"\x7f\0\0\1", 7420)
TO_SERVER = Direction(CLIENT, SERVER)


def packet(
    data: bytes,
    *,
    version: int = 4,
    sender_port: int = CLIENT.port,
    receiver_port: int = SERVER.port,
    sequence: int = 0,
    protocol: int = 6,
    fragment_offset: int = 0,
    ip_options: bytes = b"",
    tcp_options: bytes = b"",
) -> bytes:
    """A packet that begins with its network header; options have a multiple of 4 bytes."""
    tcp_bytes = 20 + len(tcp_options)
    tcp = struct.pack(">HHIIBBHHH", sender_port, receiver_port, sequence, 0, tcp_bytes // 4 << 4, 0x18, 1024, 0, 0)
    content = tcp + tcp_options + data
    if version == 6:
        address = b"\0" * 15 + b"\1"
        return struct.pack(">IHBB", 6 << 28, len(content), protocol, 64) + address * 2 + content
    header_bytes = 20 + len(ip_options)
    first = version << 4 | header_bytes // 4
    head = struct.pack(">BBHHHBBH", first, 0, header_bytes + len(content), 0, fragment_offset, 64, protocol, 0)
    return head + CLIENT.address + SERVER.address + ip_options + content


def segments(
    data: bytes, cuts: list[int], *, direction: Direction = TO_SERVER, sequence: int = 0, begin_ns: int = 0
) -> list[Segment]:
    """The bytes, cut at these places; each part is sent a microsecond after the one before."""
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    return [
        Segment(direction, (sequence + begin) % (1 << 32), begin_ns + 1000 * number, data[begin:end])
        for number, (begin, end) in enumerate(itertools.pairwise(places))
    ]
