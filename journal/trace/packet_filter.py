"""The kernel's filter for captured packets: TCP packets with data from or to some ports.

It is a program of classic BPF (the Linux kernel's documentation of `filter` has the instructions). The kernel runs it
for each packet and copies only those that it accepts, so other traffic of the machine costs next to nothing. Pure.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Collection, Sequence
from typing import Any, Final, TypeAlias

INSTRUCTION: Final = struct.Struct("=HBBI")
"""Code, jump if true, jump if false, operand."""

MAX_PORTS: Final = 64
"""Jumps over the comparisons with ports have 8 bits."""

_TCP: Final = 6
_WHOLE_PACKET: Final = 0xFFFFFFFF
_IPV6_HEADER_BYTES: Final = 40


class _Code(enum.IntEnum):
    """Codes of instructions; A and X are the two registers, and there is a memory of a few words."""

    LOAD_BYTE = 0x30
    LOAD_HALF = 0x28
    LOAD_BYTE_AT_X = 0x50
    LOAD_HALF_AT_X = 0x48
    LOAD_MEMORY = 0x60
    STORE_MEMORY = 0x02
    X_IS = 0x01
    X_IS_IPV4_HEADER_BYTES = 0xB1
    X_IS_A = 0x07
    ADD = 0x04
    ADD_X = 0x0C
    AND = 0x54
    SHIFT_RIGHT = 0x74
    IF_EQUAL = 0x15
    IF_ANY_BIT = 0x45
    IF_ABOVE_X = 0x2D
    RETURN = 0x06


_Line: TypeAlias = str | tuple[_Code, int] | tuple[_Code, int, str, str]
"""An instruction with its operand, and where it jumps if true and if false ("": to the next); or a label."""


def packet_filter(ports: Collection[int]) -> bytes:
    """The program, for packets that begin with their IPv4 or IPv6 header.

    Raises:
        ValueError: There are no ports, or more than `MAX_PORTS`.
    """
    if not 1 <= len(ports) <= MAX_PORTS:
        raise ValueError(f"{len(ports)} ports; a capture has from 1 to {MAX_PORTS}")
    compares: list[_Line] = [(_Code.IF_EQUAL, port, "of a port", "") for port in sorted(ports)]
    return _assemble(
        [
            (_Code.LOAD_BYTE, 0),
            (_Code.SHIFT_RIGHT, 4),
            (_Code.IF_EQUAL, 4, "IPv4", ""),
            (_Code.IF_EQUAL, 6, "", "refuse"),
            # X is where the TCP header begins, and the memory has where the packet ends.
            (_Code.LOAD_HALF, 4),
            (_Code.ADD, _IPV6_HEADER_BYTES),
            (_Code.STORE_MEMORY, 0),
            (_Code.X_IS, _IPV6_HEADER_BYTES),
            (_Code.LOAD_BYTE, 6),
            (_Code.IF_EQUAL, _TCP, "TCP", "refuse"),
            "IPv4",
            # A later fragment has no ports in it.
            (_Code.LOAD_HALF, 6),
            (_Code.IF_ANY_BIT, 0x1FFF, "refuse", ""),
            (_Code.LOAD_HALF, 2),
            (_Code.STORE_MEMORY, 0),
            (_Code.X_IS_IPV4_HEADER_BYTES, 0),
            (_Code.LOAD_BYTE, 9),
            (_Code.IF_EQUAL, _TCP, "TCP", "refuse"),
            "TCP",
            (_Code.LOAD_HALF_AT_X, 0),
            *compares,
            (_Code.LOAD_HALF_AT_X, 2),
            *compares,
            (_Code.RETURN, 0),
            "of a port",
            (_Code.LOAD_BYTE_AT_X, 12),
            (_Code.AND, 0xF0),
            (_Code.SHIFT_RIGHT, 2),
            (_Code.ADD_X, 0),
            (_Code.X_IS_A, 0),
            (_Code.LOAD_MEMORY, 0),
            (_Code.IF_ABOVE_X, 0, "", "refuse"),
            (_Code.RETURN, _WHOLE_PACKET),
            # Last: the kernel's check thinks that what is after a return is reached from it, without the memory.
            "refuse",
            (_Code.RETURN, 0),
        ]
    )


def _assemble(lines: Sequence[_Line]) -> bytes:
    labels: dict[str, int] = {}
    instructions: list[tuple[Any, ...]] = []
    for line in lines:
        if isinstance(line, str):
            labels[line] = len(instructions)
        else:
            instructions.append(line)
    return b"".join(
        INSTRUCTION.pack(code, *(labels[to] - at - 1 if to else 0 for to in (*jumps, "", "")[:2]), operand)
        for at, (code, operand, *jumps) in enumerate(instructions)
    )
