"""The kernel's filter accepts TCP data of the ports, and nothing else.

The kernel runs the program here as well, on datagrams that have the bytes of packets; no capability is needed for that.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.trace.packet_filter import INSTRUCTION, MAX_PORTS, packet_filter
from tests.trace.packets import packet

SO_ATTACH_FILTER = 26
PORTS = (7420, 1883)


@contextmanager
def filtered(ports: Collection[int]) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Where packets are put in, and where those that the filter accepts come out."""
    into, out = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with into, out:
        program = ctypes.create_string_buffer(packet_filter(ports))
        count = (len(program) - 1) // INSTRUCTION.size
        out.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("@HP", count, ctypes.addressof(program)))
        out.setblocking(False)
        yield into, out


def accepts(ports: Collection[int], data: bytes) -> bool:
    with filtered(ports) as (into, out):
        into.send(data)
        try:
            # It is there at once, and whole.
            assert out.recv(1 << 16) == data
        except BlockingIOError:
            return False
        return True


@given(
    version=st.sampled_from([4, 6]),
    ports=st.lists(st.integers(1, 65_535), min_size=1, max_size=MAX_PORTS, unique=True),
    sender_port=st.integers(1, 65_535),
    receiver_port=st.integers(1, 65_535),
    place=st.sampled_from(["sender", "receiver", "neither"]),
    data=st.binary(max_size=20),
    tcp_options=st.sampled_from([b"", bytes(12), bytes(40)]),
    choice=st.data(),
)
def test_data_from_or_to_a_port_is_accepted(
    version: int,
    ports: list[int],
    sender_port: int,
    receiver_port: int,
    place: str,
    data: bytes,
    tcp_options: bytes,
    choice: st.DataObject,
) -> None:
    if place == "sender":
        sender_port = choice.draw(st.sampled_from(ports))
    elif place == "receiver":
        receiver_port = choice.draw(st.sampled_from(ports))
    made = packet(data, version=version, sender_port=sender_port, receiver_port=receiver_port, tcp_options=tcp_options)
    assert accepts(ports, made) == (bool(data) and bool({sender_port, receiver_port} & set(ports)))


@pytest.mark.parametrize("ip_options", [b"", bytes(4), bytes(40)])
def test_options_of_the_network_header_do_not_count_as_data(ip_options: bytes) -> None:
    assert accepts(PORTS, packet(b"data", ip_options=ip_options))
    assert not accepts(PORTS, packet(b"", ip_options=ip_options))


@pytest.mark.parametrize("version", [4, 6])
def test_other_protocols_are_refused(version: int) -> None:
    assert accepts(PORTS, packet(b"data", version=version))
    assert not accepts(PORTS, packet(b"data", version=version, protocol=17))


def test_a_later_fragment_has_no_ports() -> None:
    assert not accepts(PORTS, packet(b"data", fragment_offset=3))


def test_other_versions_of_ip_are_refused() -> None:
    assert not accepts(PORTS, packet(b"data", version=5))


@pytest.mark.parametrize("ports", [(), range(1, MAX_PORTS + 2)])
def test_too_few_and_too_many_ports_are_an_error(ports: Collection[int]) -> None:
    with pytest.raises(ValueError, match="ports"):
        packet_filter(ports)
