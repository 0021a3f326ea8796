"""Any bytes at all: the server answers with errors or closes, meets nothing unexpected, and serves others on.

Invariant: whatever one connection sends, cut into whatever pieces, the server's report hook stays silent and another
connection's append and read succeed.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import trio
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from journal.protocol import Op, encode, frames, message_codec, messages
from shards.format.batch import Codec
from shards.format.batch import encode as encode_batch
from shards.format.record import Record
from shards.model import Mode, ShardConfig
from tests.patience import PATIENCE_S
from tests.server.serving import RawClient, Served, batch_of, serving

HELLO = frames.build(Op.HELLO, 1, encode(messages.HelloRequest(frames.PROTOCOL_VERSION, "fuzz")))
INDEXED = ShardConfig(index_keys=True, index_tags=True)
RECORDS = [Record(value=b"v", key=b"k", topic="t", tags=("x", "y"), headers=(("h", b"1"),)), Record(value=b"w")]

names = st.sampled_from(["a", "indexed", "memory", "none", "", "+", "a/b", "$x"]) | st.text(max_size=4)
numbers = st.sampled_from([0, 1, 2, 7, 255, 2**31, 2**32 - 1, 2**63 - 1]) | st.integers(0, 40)
requests = st.one_of(
    st.builds(messages.HelloRequest, st.integers(0, 3), names),
    st.builds(messages.CreateShardRequest, names, st.builds(ShardConfig, mode=st.sampled_from(Mode)), st.booleans()),
    st.builds(messages.OpenShardRequest, names, st.none() | st.just(INDEXED)),
    st.builds(messages.HandleRequest, st.integers(0, 3)),
    st.builds(messages.ListShardsRequest, names, names, st.integers(0, 5)),
    st.builds(messages.SetModeRequest, names, st.sampled_from(Mode)),
    st.builds(messages.TrimRequest, names, numbers),
    st.builds(
        messages.FindOffsetRequest, st.integers(0, 3), st.sampled_from(["earliest", "latest", "time", "lsn"]), numbers
    ),
    st.builds(messages.FetchIndexedRequest, st.integers(0, 3), st.sampled_from(["key", "tag"]), st.binary(max_size=2)),
    st.builds(
        messages.SubscribeRequest, st.integers(0, 2), st.none() | names, st.none() | names, credit_bytes=st.just(999)
    ),
    st.builds(messages.SubscribeRequest, st.integers(0, 2), names, group=names),
    st.builds(messages.UnsubscribeRequest, st.integers(0, 2)),
    st.builds(messages.CursorCommitRequest, names, names, numbers, st.none() | st.integers(0, 3)),
    st.builds(
        messages.StatePutRequest, st.binary(max_size=3), st.binary(max_size=3), st.none() | st.integers(0, 3), numbers
    ),
    st.builds(messages.StateScanRequest, st.binary(max_size=2), st.none() | st.binary(max_size=2), st.integers(0, 5)),
    st.builds(messages.ProducerOpenRequest, names),
    st.builds(messages.NameRequest, names),
)
OPS = {request: op for op, operation in message_codec.OPERATIONS.items() if (request := operation.request) is not None}


@st.composite
def request_frames(draw: st.DrawFn) -> bytes:
    request = draw(requests)
    op = OPS[type(request)]
    if isinstance(request, messages.NameRequest):
        op = draw(st.sampled_from([Op.DESCRIBE_SHARD, Op.DELETE_SHARD, Op.ROLL]))
    return frames.build(op, draw(st.integers(0, 5)), encode(request))


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """Batches with a right checksum around fields and columns that may be anything."""
    codec = draw(st.sampled_from(Codec))
    batch = bytearray(encode_batch(RECORDS * draw(st.integers(1, 3)), now_us=1, codec=codec))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(36, len(batch) - 1))
        batch[at] = draw(st.integers(0, 255))
    struct.pack_into("<I", batch, 32, crc32c(bytes(batch[36:])))
    if draw(st.booleans()) and draw(st.booleans()):
        batch[draw(st.integers(0, len(batch) - 1))] ^= 1 << draw(st.integers(0, 7))
    return bytes(batch)


fixed_frames = st.one_of(
    st.builds(
        lambda handle, batch, ack, expected: frames.build_append(
            3, handle, batch, ack_level=ack, expected_offset=expected
        ),
        st.integers(0, 3),
        batches() | st.just(batch_of(b"x")),
        st.integers(0, 255),
        st.sampled_from([-1, -1, -1, 0, 5, -7]),
    ),
    st.builds(
        frames.build_fetch,
        st.just(4),
        st.integers(0, 3),
        st.integers(-2, 9),
        st.integers(0, 2**32 - 1),
        st.integers(0, 3),
    ),
    st.builds(frames.build_credit, st.integers(0, 2), st.integers(0, 2**32 - 1)),
    st.builds(frames.build_acknowledge, st.integers(0, 2), st.integers(0, 2), st.integers(-3, 9), st.integers(-3, 9)),
    st.builds(frames.build, st.integers(0, 80), st.integers(0, 5), st.binary(max_size=40)),
)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Mostly sensible frames, of which one may be mutated, cut or followed by garbage."""
    parts = draw(st.lists(request_frames() | fixed_frames, max_size=8))
    stream = bytearray(b"".join(parts))
    for _ in range(draw(st.sampled_from([0, 0, 1, 3]))):
        if stream:
            stream[draw(st.integers(0, len(stream) - 1))] = draw(st.integers(0, 255))
    if draw(st.integers(0, 9)) == 0:
        stream += draw(st.binary(max_size=40))
    opening = draw(st.sampled_from([HELLO, HELLO, HELLO, HELLO, b""]))
    opened = b"".join(
        frames.build(Op.OPEN_SHARD, 2, encode(messages.OpenShardRequest(name, config)))
        for name, config in (("indexed", INDEXED), ("a", ShardConfig()), ("memory", ShardConfig(mode=Mode.MEMORY)))
    )
    return opening + (opened if opening else b"") + bytes(stream)


async def feed(served: Served, stream_bytes: bytes, piece_bytes: int) -> None:
    async with served.stream() as stream:
        try:
            for start in range(0, len(stream_bytes), piece_bytes):
                await stream.send_all(stream_bytes[start : start + piece_bytes])
                await trio.lowlevel.checkpoint()
            await stream.send_eof()
        except trio.BrokenResourceError:
            pass
        client = RawClient(stream)
        with trio.fail_after(PATIENCE_S):
            await client.receive_until_closed()
    async with served.client() as client:
        handle = await client.open("beside")
        ack = await client.append_values(handle, b"x")
        assert await client.read_values(handle, ack.base_offset) == [b"x"]
    assert not served.unexpected, served.unexpected


# One server serves all examples of a run: what an example leaves behind is part of the next one's world.
async def run_examples(tmp_path: Path, examples: list[tuple[bytes, int]]) -> None:
    async with serving(tmp_path) as served:
        for stream_bytes, piece_bytes in examples:
            await feed(served, stream_bytes, piece_bytes)


pieces = st.sampled_from([1 << 20, 1 << 20, 100, 7])


@pytest.mark.few_cases(1, "hundreds of random requests for each kind")
@pytest.mark.parametrize("kind", ["frames", "garbage"])
def test_whatever_comes_the_server_continues(tmp_path: Path, kind: str) -> None:
    source = streams() if kind == "frames" else st.binary(max_size=200).map(lambda junk: HELLO + junk)
    runs = 0

    @settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.tuples(source, pieces), min_size=12, max_size=25))
    def run(examples: list[tuple[bytes, int]]) -> None:
        nonlocal runs
        runs += 1
        trio.run(run_examples, tmp_path / str(runs), examples)

    run()
