"""Capture of TCP packets on the loopback interface, with the time at which each was sent (Linux).

A packet socket with a ring in shared memory: the kernel copies the packets that pass a filter into it, with its own
time of day. Nothing is woken by that, in no process, until `Capture.stop`. A packet of the loopback interface has its
time from the sender's own system call, so it is the moment at which the sender passed it on.
"""

from __future__ import annotations

import ctypes
import mmap
import socket
import struct
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final

import attrs

from journal.trace.packet_filter import INSTRUCTION, packet_filter
from journal.trace.streams import Segment, read_segment

RING_BYTES: Final = 128 << 20
SMALLEST_RING_BYTES: Final = 1 << 20
_BLOCK_BYTES: Final = SMALLEST_RING_BYTES
_INTERFACE: Final = "lo"

# From the kernel's headers; Python has no names for these.
_SOL_PACKET: Final = 263
_PACKET_RX_RING: Final = 5
_PACKET_STATISTICS: Final = 6
_PACKET_VERSION: Final = 10
_PACKET_TIMESTAMP: Final = 17
_PACKET_IGNORE_OUTGOING: Final = 23
_TPACKET_V3: Final = 2
_SOFTWARE_TIME: Final = 1 << 4
_SO_ATTACH_FILTER: Final = 26
_SO_TIMESTAMPNS: Final = 35
_ALL_PROTOCOLS: Final = 3
_UNUSED_PROTOCOL: Final = 0x88B5  # for local experiments: nothing on this machine has it

# block bytes, block count, frame bytes, frame count, milliseconds until a block is passed on, private bytes, features
_RING_REQUEST: Final = struct.Struct("=7I")
# Of a block: version, private area, status, packet count, first packet
_BLOCK: Final = struct.Struct("=5I")
# Of a packet: next one, seconds, nanoseconds, captured bytes, bytes, status, link header, network header
_PACKET: Final = struct.Struct("=6I2H")
_LONG_MS: Final = 3_600_000


class CaptureError(Exception):
    """Packets cannot be captured here; the message says why and what can be done."""


@attrs.frozen(slots=True)
class Captured:
    """What was captured.

    Attributes:
        segments: TCP segments with data, in the order of their times.
        lost: Number of packets that the ring had no room for.
    """

    segments: list[Segment]
    lost: int


class Capture:
    """A running capture; see `capturing`."""

    def __init__(self, packets: socket.socket, ring: mmap.mmap) -> None:
        self._packets = packets
        self._ring = ring

    def stop(self) -> Captured:
        """End the capture, and return the segments that were sent since its begin."""
        # After this no packet is being copied: the kernel waits for that.
        self._packets.bind((_INTERFACE, _UNUSED_PROTOCOL))
        _, lost = struct.unpack("=2I4x", self._packets.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 12))
        segments = [segment for sent_ns, packet in self._read() if (segment := read_segment(packet, sent_ns))]
        segments.sort(key=lambda segment: segment.sent_ns)
        return Captured(segments, lost)

    def _read(self) -> Iterator[tuple[int, bytes]]:
        # The kernel fills the blocks in order, and began with the first one; none was given back.
        ring = self._ring
        for begin in range(0, len(ring), _BLOCK_BYTES):
            _, _, _, count, first = _BLOCK.unpack_from(ring, begin)
            at = begin + first
            for _ in range(count):
                following, seconds, nanoseconds, size, _, _, _, network = _PACKET.unpack_from(ring, at)
                yield seconds * 1_000_000_000 + nanoseconds, ring[at + network : at + network + size]
                at += following


@contextmanager
def capturing(ports: Collection[int], *, ring_bytes: int = RING_BYTES) -> Iterator[Capture]:
    """Capture TCP segments with data from or to these ports on the loopback interface.

    Args:
        ports: The ports.
        ring_bytes: Room for the packets, whole mebibytes; later ones are lost, and counted.

    Raises:
        CaptureError: This is not Linux, or the process may not capture packets.
    """
    if sys.platform != "linux":
        raise CaptureError("packets are captured on Linux only; --ends-only measures without hops")
    try:
        packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
    except PermissionError as error:
        raise CaptureError(
            "this user may not capture packets: run it as root or with the capability CAP_NET_RAW, or measure without "
            "hops (--ends-only)"
        ) from error
    except OSError as error:
        raise CaptureError(
            f"packets cannot be captured: {error.strerror}; --ends-only measures without hops"
        ) from error
    with packets:
        try:
            ring = _ring(packets, ports, ring_bytes)
        except OSError as error:
            raise CaptureError(
                f"packets cannot be captured: {error.strerror}; --ends-only measures without hops"
            ) from error
        with ring:
            yield Capture(packets, ring)


def _ring(packets: socket.socket, ports: Collection[int], ring_bytes: int) -> mmap.mmap:
    """Set the socket up, and begin."""
    packets.setsockopt(_SOL_PACKET, _PACKET_VERSION, _TPACKET_V3)
    # Otherwise the time would be that of the copy.
    packets.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    packets.setsockopt(_SOL_PACKET, _PACKET_TIMESTAMP, _SOFTWARE_TIME)
    # A packet of the loopback interface is sent and received; once is enough.
    packets.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    frame_bytes = mmap.PAGESIZE
    packets.setsockopt(
        _SOL_PACKET,
        _PACKET_RX_RING,
        _RING_REQUEST.pack(
            _BLOCK_BYTES, ring_bytes // _BLOCK_BYTES, frame_bytes, ring_bytes // frame_bytes, _LONG_MS, 0, 0
        ),
    )
    program = ctypes.create_string_buffer(packet_filter(ports))
    count = (len(program) - 1) // INSTRUCTION.size
    packets.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", count, ctypes.addressof(program)))
    ring = mmap.mmap(packets.fileno(), ring_bytes)
    try:
        packets.bind((_INTERFACE, _ALL_PROTOCOLS))
    except OSError:
        ring.close()
        raise
    return ring
