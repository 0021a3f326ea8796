"""Appends as the server takes them: the quick way and the careful one, and what a restart makes of them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import attrs
import trio

from journal.engine import Engine
from journal.engine.write.append_loop import AppendLoop, PureAppendLoop, make_append_loop
from journal.protocol.frames import ACK, APPEND_HEAD, Op, build_append
from shards import compiled
from shards.errors import StorageError, StorageFailedError
from shards.format import batch
from shards.format.batch_header import verify
from shards.model import Mode, ShardConfig
from shards.segments.shard import Shard
from tests.fuzz.target import Target
from tests.fuzz.targets import batches
from tests.journal.engines import config, open_simulated, stop_without_checkpoint
from tests.shards.batches import NOW_US
from tests.simulation.file_system import SimulatedFileSystem

_SHARDS = {
    "file": ShardConfig(),
    "memory": ShardConfig(mode=Mode.MEMORY),
    "indexed": ShardConfig(index_keys=True, index_tags=True),
    "small": ShardConfig(segment_bytes=4096),
}
_Seen = dict[str, list[tuple[int, bytes]]]
_MakeLoop = Callable[[dict[int, int], dict[int, int], int], AppendLoop]


class _Sink:
    """Takes acknowledgements, and lets a caller wait for a number of them."""

    number = 1
    producers = ""

    def __init__(self) -> None:
        self.acks: list[tuple[int, int, int, int]] = []
        self._came = trio.Event()

    def acknowledge(self, acks: bytearray) -> None:
        self.acks += [
            (correlation, level, flags, offset) for correlation, level, flags, _, offset in ACK.iter_unpack(acks)
        ]
        self._came.set()

    def fail(self, error: StorageFailedError) -> None:
        raise error

    async def wait(self, count: int) -> None:
        while len(self.acks) < count:
            self._came = trio.Event()
            await self._came.wait()


@attrs.frozen
class _Outcome:
    acks: list[tuple[int, int, int, int]]
    refused: list[tuple[int, type, str]]
    seen: _Seen
    after_restart: _Seen


def run_appends(data: bytes) -> None:
    """Frames are appended or refused by a StorageError, the same by the quick ways and by the careful one.

    What was acknowledged is read where the acknowledgement says, in the file shards after a crash as well; nothing else
    is there.
    """
    careful = trio.run(_append, data, None)
    quick = trio.run(_append, data, PureAppendLoop)
    assert quick == careful
    if compiled.append_loop_type is not None:
        assert trio.run(_append, data, make_append_loop) == careful
    counts = {name: sum(1 for _ in values) for name, values in quick.seen.items()}
    assert sum(counts.values()) == len([ack for ack in quick.acks if not ack[2]])
    for name, values in quick.seen.items():
        if name != "memory":
            assert quick.after_restart[name] == values


async def _append(data: bytes, make_loop: _MakeLoop | None) -> _Outcome:
    files = SimulatedFileSystem()
    sink = _Sink()
    refused: list[tuple[int, type, str]] = []
    async with open_simulated(files, config()) as engine:
        for name, shard_config in _SHARDS.items():
            await engine.create_shard(name, shard_config)
        identity = await engine.open_producer("producer")
        assert identity.epoch == 1
        handles: list[Shard | None] = [engine.parts.table.by_name(name) for name in _SHARDS]
        if make_loop is not None:
            parts = engine.parts
            largest = config().limits.max_batch_bytes + APPEND_HEAD.size
            parts.appender._loop = make_loop(parts.views.producers.epochs, parts.producer_use.owners, largest)
        view = memoryview(bytearray(data))
        taken = _take(engine, view, handles, sink, refused, is_quick=make_loop is not None)
        with trio.fail_after(30):
            await sink.wait(taken)
        seen = await _seen(engine)
        stop_without_checkpoint(engine)
    files = files.crash(lambda _: 0)
    async with open_simulated(files, config()) as engine:
        after = await _seen(engine)
        stop_without_checkpoint(engine)
    return _Outcome(sorted(sink.acks), refused, seen, after)


def _take(
    engine: Engine,
    view: memoryview,
    handles: Sequence[Shard | None],
    sink: _Sink,
    refused: list[tuple[int, type, str]],
    *,
    is_quick: bool,
) -> int:
    """What a connection does with its frames; returns how many are acknowledged sooner or later."""
    appender = engine.parts.appender
    start, end, frames = 0, len(view), 0
    engine.begin_chunk()
    while end - start >= APPEND_HEAD.size:
        if is_quick:
            begun = start
            start = appender.append_run(view, begun, end, handles, sink)
            while begun < start:
                # Where a taken frame was, there is an entry now, which begins with the same size.
                begun += struct.unpack_from("<I", view, begun)[0] + 7 & -8
                frames += 1
            if end - start < APPEND_HEAD.size:
                break
        length, op, _, correlation, handle, _, _ = APPEND_HEAD.unpack_from(view, start)
        if not APPEND_HEAD.size <= length <= end - start or op != Op.APPEND:
            break
        if handle < len(handles):
            try:
                appender.append(view, start, start + length, handles, sink)
                frames += 1
            except StorageError as error:
                refused.append((correlation, type(error), str(error)))
        start += length
    appender.finish()
    return frames


async def _seen(engine: Engine) -> _Seen:
    found: _Seen = {}
    for name in _SHARDS:
        shard = engine.parts.table.by_name(name)
        values: list[tuple[int, bytes]] = []
        offset = shard.start_offset
        while offset < shard.published_offset:
            extent = await engine.parts.reader.read(shard, offset, 1 << 20)
            stored = b"".join(map(bytes, extent.buffers))
            for at, _ in batch.iterate(stored):
                header = verify(stored, at)
                if not header.is_gap:
                    body = stored[at + 32 : at + header.size_bytes]
                    values.append((header.base_offset, body))
            offset = extent.next_offset
        found[name] = values
    return found


def _repair(data: bytes) -> bytes:
    fixed = bytearray(data)
    at = 0
    while len(fixed) - at >= APPEND_HEAD.size:
        length = struct.unpack_from("<I", fixed, at)[0]
        left = len(fixed) - at
        if not APPEND_HEAD.size <= length <= left:
            length = max(APPEND_HEAD.size, min(left, length & 0x1FF))
            struct.pack_into("<I", fixed, at, length)
        struct.pack_into("<H", fixed, at + 4, Op.APPEND)
        if length >= APPEND_HEAD.size + batch.HEADER_SIZE:
            content = bytearray(fixed[at + APPEND_HEAD.size : at + length])
            batches.repair_one(content, 0, len(content))
            fixed[at + APPEND_HEAD.size : at + length] = content
        at += length
    return bytes(fixed)


def _seeds() -> list[bytes]:
    def frame(handle: int, number: int, records: int = 1, **options: int) -> bytes:
        expected = options.pop("expected", -1)
        level = options.pop("level", 0)
        made = batch.encode(batches.RECORDS[records], now_us=NOW_US, **options)  # type: ignore[arg-type]
        return build_append(number, handle, made, ack_level=level, expected_offset=expected)

    # The producer is opened after four shards: its id is the lsn of that.
    produced = [
        frame(0, 5, producer_id=producer_id, producer_epoch=1, sequence=sequence)
        for producer_id in (4, 5, 6)
        for sequence in (0, 3, 0, 9)
    ]
    return [
        b"".join(frame(handle, handle, handle) for handle in range(4)),
        b"".join(frame(0, number, 1, codec=codec) for number, codec in enumerate((0, 1, 2))),
        b"".join(produced),
        frame(0, 1, expected=0) + frame(0, 2, expected=0) + frame(1, 3, level=2) + frame(1, 4, level=1) + frame(9, 9),
        frame(2, 1, 2) * 3 + frame(3, 2, 3) * 4,
    ]


TARGETS = (
    Target(
        "appends",
        run_appends,
        _seeds,
        _repair,
        (batch.encode_values([b""], timestamp_us=0)[32:56],),
        max_input_bytes=8192,
        is_slow=True,
    ),
)
