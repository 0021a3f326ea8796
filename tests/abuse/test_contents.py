"""What is sent costs its receiver more than its sender: bombs, endless messages, subscriptions to everything."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from journal.protocol import Op, encode, frames, messages
from journal.protocol.frames import HELLO_MAX_FRAME_BYTES
from journal.settings.values import KIB, MIB
from shards.errors import BatchError, LimitExceededError
from shards.format.batch import HEADER_SIZE, MAX_RAW_BYTES, decode, encode_values, stamp
from shards.format.batch_header import CHECKED
from shards.format.checksum import crc32c
from shards.format.compression import Codec
from shards.model import ShardConfig
from tests.abuse.peers import flood, fragment, is_closed, open_websocket, upgraded
from tests.abuse.scene import FRAME_BYTES, OUTPUT_BYTES, POOL_BYTES, Scene, scene
from tests.faults.processes import Client

pytestmark = [
    pytest.mark.slow("measures latencies in many parts of a second"),
    pytest.mark.own_interpreter("measures the memory of the server"),
]

SUBSCRIPTION_BYTES = 8 * KIB
BYTES_A_CONNECTION = 64 * KIB  # with what one receive brought
FILE = ShardConfig()


@contextlib.contextmanager
def client_of(port: int) -> Iterator[Client]:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as sock:
        yield Client(sock)


@contextlib.contextmanager
def reading(client: Client) -> Iterator[None]:
    """Take all that comes over a connection, beside the test."""

    def run() -> None:
        # The end of the block closes the connection, and that ends the thread.
        with contextlib.suppress(OSError):
            while client.sock.recv(1 << 20):
                pass

    client.sock.settimeout(None)
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        client.sock.shutdown(socket.SHUT_RDWR)
        thread.join()


def bomb(codec: Codec, *, claimed_bytes: int) -> bytes:
    """A batch with whole checksums whose body expands to 1 GiB (zstd) or says that it expands to so much (lz4)."""
    batch = encode_values([bytes(100)], timestamp_us=1_000)
    fields = list(CHECKED.unpack_from(batch, HEADER_SIZE - CHECKED.size))
    if codec is Codec.ZSTD:
        compressor = zstandard.ZstdCompressor().compressobj(size=1 << 30)
        body = b"".join(compressor.compress(bytes(1 << 20)) for _ in range(1024)) + compressor.flush()
    else:
        body = b"\x1f\x00\x01\x00" + b"\xff" * 100_000
    fields[0], fields[1], fields[4] = len(body), claimed_bytes, codec
    checked = CHECKED.pack(*fields)
    body += bytes(-len(body) % 8)
    head = bytearray(batch[: HEADER_SIZE - CHECKED.size])
    head[-4:] = struct.pack("<I", crc32c(body, crc32c(checked)))
    return bytes(head) + checked + body


@pytest.mark.parametrize("codec", [Codec.ZSTD, Codec.LZ4])
@pytest.mark.parametrize("claimed_bytes", [4096, MAX_RAW_BYTES, 1 << 30])
def test_a_record_batch_that_expands_to_a_gigabyte_costs_the_server_what_was_sent(
    tmp_path: Path, codec: Codec, claimed_bytes: int
) -> None:
    """The server stores bodies as they came; who opens one believes neither the header nor the compressed bytes."""
    batch = bomb(codec, claimed_bytes=claimed_bytes)
    with scene(tmp_path / "data", "conversion.max_age_s=1") as found:
        with client_of(found.server.ports["tcp"]) as abuser:
            handle = abuser.open("bombs", FILE)
            for _ in range(20):
                correlation = abuser.next_correlation()
                abuser.sock.sendall(frames.build_append(correlation, handle, batch))
                if claimed_bytes > MAX_RAW_BYTES:
                    with pytest.raises(BatchError, match="raw_size"):
                        abuser.reply_to(correlation)
                else:
                    assert abuser.receive()[:2] == (Op.APPENDED, 0)
        found.check(may_grow_bytes=POOL_BYTES + 20 * len(batch))
    stored = bytearray(batch)
    stamp(stored, 0, 0, 1, 1)
    with pytest.raises(BatchError, match=r"the header says|raw_size|not an lz4 block|not one whole zstd frame"):
        decode(stored)


def test_an_indexed_shard_does_not_open_a_body_larger_than_a_batch_may_be(tmp_path: Path) -> None:
    """Its words are taken from the body before the append is acknowledged, on the server's loop."""
    batch = encode_values([bytes(MAX_RAW_BYTES // 2)], timestamp_us=1_000, codec=Codec.ZSTD)
    assert len(batch) < 16 * KIB
    with scene(tmp_path / "data") as found, client_of(found.server.ports["tcp"]) as abuser:
        handle = abuser.open("indexed", ShardConfig(index_keys=True))
        for _ in range(50):
            correlation = abuser.next_correlation()
            abuser.sock.sendall(frames.build_append(correlation, handle, batch))
            with pytest.raises(LimitExceededError, match=r"limits\.max_batch_bytes"):
                abuser.reply_to(correlation)
        found.check(may_grow_bytes=POOL_BYTES)


def test_a_compressed_websocket_message_is_refused_unopened(tmp_path: Path) -> None:
    deflated = zlib.compressobj(9, zlib.DEFLATED, -15)
    content = b"".join(deflated.compress(bytes(1 << 20)) for _ in range(256)) + deflated.flush(zlib.Z_SYNC_FLUSH)
    with scene(tmp_path / "data") as found:
        for _ in range(10):
            with open_websocket(found.server.ports["websocket"]) as abuser:
                flood(abuser, fragment(content, opcode=2, final=True, compressed=True), len(content))
                assert is_closed_soon(found, abuser)
        found.check(may_grow_bytes=8 * MIB)


@pytest.mark.parametrize("size_bytes", [0, 1, 100])
def test_a_websocket_message_in_fragments_without_end_is_cut_off(tmp_path: Path, size_bytes: int) -> None:
    part = fragment(bytes(size_bytes), opcode=0) * 2000
    with scene(tmp_path / "data") as found:
        for _ in range(4):
            with open_websocket(found.server.ports["websocket"]) as abuser:
                abuser.sendall(fragment(b"\0", opcode=2))
                assert flood(abuser, part, 16 * MIB) < 16 * MIB
                assert is_closed_soon(found, abuser)
        found.wait_until(lambda: "send fragments of at least" in found.log_text())
        found.check(may_grow_bytes=0)


@pytest.mark.smoke
def test_a_websocket_message_over_the_limit_is_cut_off(tmp_path: Path) -> None:
    """In fragments each of which is allowed, with more of it in what was received at once."""
    part = fragment(bytes(10_000), opcode=0) * 100
    with scene(tmp_path / "data") as found, open_websocket(found.server.ports["websocket"]) as abuser:
        abuser.sendall(fragment(b"\0", opcode=2))
        assert flood(abuser, part, 32 * MIB) < 32 * MIB
        assert is_closed_soon(found, abuser)
        found.wait_until(lambda: f"a message of more than {FRAME_BYTES} bytes" in found.log_text())
        found.check(may_grow_bytes=3 * FRAME_BYTES)


@pytest.mark.parametrize("subprotocol", ["", "journal-json.v1"])
def test_a_websocket_that_has_not_said_hello_holds_no_more_than_a_hello(tmp_path: Path, subprotocol: str) -> None:
    """A hundred unknown clients each begin a message of the largest size: together they sent 200 MiB."""
    begun = fragment(bytes(FRAME_BYTES - 1), opcode=1 if subprotocol else 2)[:-1]
    with scene(tmp_path / "data") as found, contextlib.ExitStack() as stack:
        made = [stack.enter_context(upgraded(found.server.ports["websocket"], subprotocol)) for _ in range(100)]
        for sock in made:
            flood(sock, begun, len(begun), patience_s=0.2)
        found.check(may_grow_bytes=100 * (BYTES_A_CONNECTION + 2 * HELLO_MAX_FRAME_BYTES) + 8 * MIB)
        found.wait_until(lambda: is_closed(made))
        assert f"a message of more than {HELLO_MAX_FRAME_BYTES} bytes" in found.log_text()


def test_a_fine_message_in_many_fragments_is_taken(tmp_path: Path) -> None:
    frame = frames.build(Op.PING, 7)
    with scene(tmp_path / "data") as found, open_websocket(found.server.ports["websocket"]) as client:
        pieces = [frame[at : at + 1] for at in range(len(frame))]
        client.sendall(fragment(pieces[0], opcode=2))
        for piece in pieces[1:-1]:
            client.sendall(fragment(piece, opcode=0) + fragment(b"", opcode=0))
        client.sendall(fragment(pieces[-1], opcode=0, final=True))
        assert client.recv(100).endswith(frame)
        found.check(may_grow_bytes=0)


@pytest.mark.parametrize(("connection_count", "each"), [(1, 1000), (20, 1000)])
def test_subscriptions_to_everything_without_credit_cost_little(
    tmp_path: Path, connection_count: int, each: int
) -> None:
    with scene(tmp_path / "data") as found, contextlib.ExitStack() as stack:
        for _ in range(connection_count):
            abuser = stack.enter_context(client_of(found.server.ports["tcp"]))
            subscribe(abuser, each, credit_bytes=0)
        if each == 1000:
            with pytest.raises(LimitExceededError, match="max_subscriptions_per_connection"):
                abuser.call(Op.SUBSCRIBE, messages.SubscribeRequest(each, filter="#", credit_bytes=0))
        found.check(may_grow_bytes=connection_count * each * SUBSCRIPTION_BYTES)


def test_a_thousand_subscriptions_to_everything_leave_others_their_turn(tmp_path: Path) -> None:
    """Each of the bystander's records is pushed a thousand times to one connection, which takes them all."""
    with scene(tmp_path / "data") as found, client_of(found.server.ports["tcp"]) as abuser:
        subscribe(abuser, 1000, credit_bytes=1 << 31)
        with reading(abuser):
            found.check(may_grow_bytes=1000 * SUBSCRIPTION_BYTES + OUTPUT_BYTES)


def test_who_never_reads_what_a_thousand_subscriptions_push_is_held_to_the_output_limit(tmp_path: Path) -> None:
    with scene(tmp_path / "data") as found, client_of(found.server.ports["tcp"]) as abuser:
        subscribe(abuser, 1000, credit_bytes=1 << 31)
        found.check(may_grow_bytes=1000 * SUBSCRIPTION_BYTES + 2 * OUTPUT_BYTES)


def test_who_asks_and_never_reads_is_held_to_the_output_limit(tmp_path: Path) -> None:
    with scene(tmp_path / "data") as found:
        with client_of(found.server.ports["tcp"]) as writer:
            handle = writer.open("read", FILE)
            for _ in range(8):
                writer.append(handle, bytes(512 * KIB))
        fetches = b"".join(frames.build_fetch(number + 10, 0, 0, 1 << 20, 0) for number in range(1000))
        with contextlib.ExitStack() as stack:
            for _ in range(10):
                abuser = stack.enter_context(client_of(found.server.ports["tcp"]))
                abuser.open("read")
                assert flood(abuser.sock, fetches, 64 * MIB, patience_s=0.2) < 64 * MIB
            # What waits is the limit and a frame; the heap may have as much again in holes where others were read.
            found.check(may_grow_bytes=10 * 2 * (OUTPUT_BYTES + FRAME_BYTES) + POOL_BYTES)


def subscribe(client: Client, count: int, *, credit_bytes: int) -> None:
    """Subscribe so many times to everything; what is pushed meanwhile is left aside."""
    asked = {client.next_correlation(): number for number in range(count)}
    client.sock.sendall(
        b"".join(
            frames.build(
                Op.SUBSCRIBE,
                correlation,
                encode(messages.SubscribeRequest(number, filter="#", credit_bytes=credit_bytes)),
            )
            for correlation, number in asked.items()
        )
    )
    while asked:
        # What is pushed for those that are open already comes between the replies.
        _, status, correlation, _ = client.receive()
        if correlation in asked:
            assert status == 0
            del asked[correlation]


def is_closed_soon(found: Scene, sock: socket.socket) -> bool:
    found.wait_until(lambda: is_closed([sock]))
    return True
