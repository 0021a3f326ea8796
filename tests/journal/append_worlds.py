"""Shards, producers and frames for the loops that append frames, built from a plan: the same plan, the same objects."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs
from hypothesis import strategies as st

from journal.engine.wal.entry import ENTRY_HEADER_SIZE
from journal.engine.wal.group import Group
from journal.engine.write.append_loop import AppendLoop, PureAppendLoop
from journal.protocol.frames import build_append
from shards.compiled import append_loop_type
from shards.format.batch import HEADER_SIZE, Codec, encode_values
from shards.format.checksum import crc32c
from shards.idempotence.producer_state import ProducerState
from shards.model import Mode, ShardConfig
from shards.segments.chunks import ChunkList, ChunkPool
from shards.segments.log_segment import LogSegment
from shards.segments.shard import Shard
from tests.shards.batches import NOW_US

SENDER: Final = 7
EPOCH: Final = 3
PRODUCERS: Final = (100, 101, 2**63 + 5)
GROUP_NUMBER: Final = 12
FIRST_LSN: Final = 5000
_BATCH_AT: Final = ENTRY_HEADER_SIZE


def pure_loop(epochs: dict[int, int], owners: dict[int, int], max_frame_bytes: int) -> AppendLoop:
    return PureAppendLoop(epochs, owners, max_frame_bytes)


def compiled_loop(epochs: dict[int, int], owners: dict[int, int], max_frame_bytes: int) -> AppendLoop:
    assert append_loop_type is not None
    return append_loop_type(epochs, owners, max_frame_bytes, Shard, LogSegment, ChunkList, ProducerState)


Maker = Callable[[dict[int, int], dict[int, int], int], AppendLoop]


@attrs.frozen
class ShardPlan:
    """What a shard is like before the frames come."""

    kind: str = "plain"
    limit_bytes: int = 1 << 20
    interval_bytes: int = 1 << 16
    filled: int = 0
    next_offset: int = 0
    group_number: int = -1
    newest_us: int = 0
    # Runs that producers have already, of one record each.
    runs: int = 1
    published: int = 0
    has_gaps: bool = False
    # How much longer than one record the newest run is.
    longer: int = 0


@attrs.frozen
class FramePlan:
    """A frame, and what is wrong with it."""

    handle: int = 0
    sizes: tuple[int, ...] = (10,)
    codec: Codec = Codec.NONE
    producer: int = 0
    expected: str = "any"
    fault: str = "none"
    at: int = 0
    newest_us: int = NOW_US
    sequence_ahead: int = 0


@attrs.frozen
class Plan:
    shards: tuple[ShardPlan, ...] = (ShardPlan(),)
    frames: tuple[FramePlan, ...] = ()
    room_bytes: int = 1 << 20
    max_frame_bytes: int = 1 << 20
    missing_bytes: int = 0
    bad_producer: str = "none"


_FIELDS: Final = {
    "length": ("<I", 0),
    "op": ("<H", 4),
    "handle": ("<I", 12),
}
# Of the batch; the checksum is made right again.
_BATCH_FIELDS: Final = {
    "body_size": ("<I", 36),
    "raw_size": ("<I", 40),
    "count": ("<I", 44),
    "columns": ("<H", 48),
    "codec": ("<B", 50),
    "flags": ("<B", 51),
    "epoch": ("<I", 52),
    "sequence": ("<I", 64),
    "reserved": ("<I", 68),
    "oldest_us": ("<Q", 72),
    "newest_us": ("<Q", 80),
}
FAULTS: Final = ("bit", "cut", *_FIELDS, *_BATCH_FIELDS)
FAULTY_VALUES: Final = (
    *(0, 1, 2, 3, 7, 8, 127, 128, 255, 2**16, 2**20, 2**20 + 1, 64 << 20, (64 << 20) + 1),
    *(NOW_US, NOW_US + 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1),
)

shard_plans = st.builds(
    ShardPlan,
    kind=st.sampled_from(["plain"] * 20 + ["memory", "indexed", "damaged", "closed", "new", "none"]),
    limit_bytes=st.sampled_from([1 << 20, 1 << 20, 700, 200]),
    interval_bytes=st.sampled_from([1 << 16, 1 << 16, 300, 0]),
    filled=st.sampled_from([0, 0, 1, 3, 9]),
    next_offset=st.sampled_from([0, 500, 2**40]),
    group_number=st.sampled_from([-1, GROUP_NUMBER, GROUP_NUMBER - 1]),
    newest_us=st.sampled_from([0, NOW_US + 100, 2**63 - 1]),
    runs=st.sampled_from([0, 1, 2, 63, 64, 66]),
    published=st.sampled_from([0, 450, 2**41]),
    has_gaps=st.booleans(),
    longer=st.sampled_from([0, 0, 2**31 - 4]),
)
frame_plans = st.builds(
    FramePlan,
    handle=st.sampled_from([0] * 6 + [1] * 3 + [2, 3]),
    sizes=st.lists(st.sampled_from([0, 1, 10, 100, 1000]), min_size=1, max_size=3).map(tuple),
    codec=st.sampled_from([Codec.NONE, Codec.NONE, Codec.LZ4]),
    producer=st.sampled_from([0, 0, 0, *PRODUCERS]),
    expected=st.sampled_from(["any"] * 8 + ["right", "wrong"]),
    fault=st.sampled_from(["none"] * 40 + list(FAULTS)),
    at=st.integers(0, 2**32 - 1) | st.sampled_from(FAULTY_VALUES),
    newest_us=st.sampled_from([NOW_US, NOW_US + 50, NOW_US - 50, 0, 2**63 - 1]),
    sequence_ahead=st.sampled_from([0] * 20 + [1, -1]),
)
plans = st.builds(
    Plan,
    shards=st.lists(shard_plans, min_size=1, max_size=4).map(tuple),
    frames=st.lists(frame_plans, min_size=1, max_size=12).map(tuple)
    | st.lists(st.builds(FramePlan, producer=st.sampled_from([0, *PRODUCERS])), min_size=60, max_size=140).map(tuple),
    room_bytes=st.sampled_from([1 << 20] * 20 + [-1, 0, 500, 1500]),
    max_frame_bytes=st.sampled_from([1 << 20] * 12 + [200]),
    missing_bytes=st.sampled_from([0] * 6 + [1, 8, 100, 130]),
    bad_producer=st.sampled_from(["none"] * 8 + ["owner", "epoch", "unknown"]),
)


class World:
    """What a plan describes. `run` gives the frames to a loop, as a connection does."""

    def __init__(self, plan: Plan, make: Maker) -> None:
        self.plan = plan
        self.pool = ChunkPool(1 << 20)
        self.group = Group(GROUP_NUMBER)
        self.shards = [self._shard(number, of) for number, of in enumerate(plan.shards)]
        handles = [None if of.kind == "none" else shard for of, shard in zip(plan.shards, self.shards, strict=True)]
        # A tuple has no room after its last item, so the sanitizers see where a loop looks at it.
        self.handles: Sequence[Any] = tuple(handles) if len(plan.frames) % 2 else handles
        self.epochs = dict.fromkeys(PRODUCERS, EPOCH)
        self.owners = dict.fromkeys(PRODUCERS, SENDER)
        if plan.bad_producer == "owner":
            self.owners[PRODUCERS[0]] = SENDER + 1
        elif plan.bad_producer == "epoch":
            self.epochs[PRODUCERS[0]] = EPOCH + 1
        elif plan.bad_producer == "unknown":
            del self.epochs[PRODUCERS[0]], self.owners[PRODUCERS[1]]
        frames = self._frames()
        self.starts = [0]
        for frame in frames:
            self.starts.append(self.starts[-1] + len(frame))
        received = b"".join(frames)
        self.buffer = bytearray(received[: len(received) - plan.missing_bytes] if plan.missing_bytes else received)
        self.view = memoryview(self.buffer)
        self.loop = make(self.epochs, self.owners, plan.max_frame_bytes)
        self.loop.next_lsn = FIRST_LSN
        self.acks = b""

    def _shard(self, number: int, plan: ShardPlan) -> Shard:
        config = ShardConfig(
            mode=Mode.MEMORY if plan.kind == "memory" else Mode.FILE, index_keys=plan.kind == "indexed"
        )
        shard = Shard(1000 + number, f"shard{number}", config, NOW_US)
        shard.segment_limit_bytes = plan.limit_bytes
        shard.group_number = plan.group_number
        shard.next_offset = plan.next_offset
        shard.published_offset = plan.published
        shard.damage = "damaged" if plan.kind == "damaged" else ""
        if plan.kind == "new":
            return shard
        segment = shard.open_segment(Mode.FILE, plan.next_offset, NOW_US, f"/log{number}", self.pool)
        shard.in_memory_mode = plan.kind == "memory"
        for at in range(plan.filled):
            shard.next_offset += 1
            segment.append(bytes(96), shard.next_offset, 900 + at, NOW_US, NOW_US)
        segment.newest_us = max(segment.newest_us, plan.newest_us)
        segment.indexed_end = segment.end + plan.interval_bytes
        segment.closed = plan.kind == "closed"
        shard.producers = {}
        for place, producer_id in enumerate(PRODUCERS):
            state = ProducerState(EPOCH, 0)
            step = 2 if plan.has_gaps else 1
            end = shard.next_offset - (place if plan.has_gaps else 0)
            for run in range(plan.runs if plan.next_offset else 0):
                state.runs.append((end - (plan.runs - run) * step, run * step, 1))
            state.next_sequence = (2**32 - 2) if plan.filled == 1 else plan.runs * step
            if state.runs and plan.next_offset > plan.longer:
                offset, sequence, count = state.runs[-1]
                state.runs[-1] = (offset - plan.longer, (sequence - plan.longer) % 2**32, count + plan.longer)
            state.memory_lost = plan.has_gaps
            shard.producers[producer_id] = state
        return shard

    def _frames(self) -> list[bytes]:
        next_offsets = {number: shard.next_offset for number, shard in enumerate(self.shards)}
        sequences = {
            (number, producer_id): state.next_sequence
            for number, shard in enumerate(self.shards)
            for producer_id, state in (shard.producers or {}).items()
        }
        frames = []
        for number, plan in enumerate(self.plan.frames):
            offset = next_offsets.get(plan.handle, 0)
            place = (plan.handle, plan.producer)
            sequence = (sequences.get(place, 0) + plan.sequence_ahead) % 2**32 if plan.producer else 0
            batch = encode_values(
                [bytes(size) for size in plan.sizes],
                timestamp_us=plan.newest_us or NOW_US,
                codec=plan.codec,
                producer_id=plan.producer,
                producer_epoch=EPOCH if plan.producer else 0,
                sequence=sequence,
            )
            expected = {"any": -1, "right": offset, "wrong": offset + 1}[plan.expected]
            frame = bytearray(build_append(number, plan.handle, batch, expected_offset=expected))
            _spoil(frame, plan)
            frames.append(bytes(frame))
            if plan.fault == "none":
                next_offsets[plan.handle] = offset + len(plan.sizes)
                sequences[place] = (sequence + len(plan.sizes)) % 2**32
        return frames

    def run(self, start: int = 0, end: int | None = None) -> int:
        """Have the loop append from one frame on; returns the position where it ended."""
        self.loop.position = start
        end = len(self.buffer) if end is None else end
        try:
            self.loop.run(self.view, end, self.handles, SENDER, self.group, self.plan.room_bytes, NOW_US + 1)
        finally:
            self.acks += bytes(self.loop.acks)
        return self.loop.position

    def run_all(self) -> list[Any]:
        """Append all that the loop takes, without the frames at which it ends; the state after each call."""
        states = []
        start: int | None = 0
        while start is not None:
            taken = self.run(start)
            states.append((taken, self.state()))
            start = next((at for at in self.starts if taken < at < len(self.buffer)), None)
        return states

    def state(self) -> Any:
        """Everything that a loop may change."""
        return {
            "shards": [_state_of(shard) for shard in self.shards],
            "touched": [shard.name for shard in self.group.touched],
            "acks": self.acks,
            "next_lsn": self.loop.next_lsn,
            "buffer": bytes(self.buffer),
            "held_bytes": self.pool.held_bytes,
        }

    def appended(self) -> Any:
        """The part of it that says what was appended, without what may be done in advance."""
        return {
            "shards": [
                (
                    shard.next_offset,
                    shard.last_lsn,
                    _producers_of(shard),
                    [_batches_of(each) for each in shard.segments],
                )
                for shard in self.shards
            ],
            "acks": self.acks,
            "next_lsn": self.loop.next_lsn,
            "position": self.loop.position,
        }


def _state_of(shard: Shard) -> Any:
    return {
        "next_offset": shard.next_offset,
        "last_lsn": shard.last_lsn,
        "group_number": shard.group_number,
        "pending_groups": shard.pending_groups,
        "producers": _producers_of(shard),
        "segments": [
            {
                "batches": _batches_of(segment),
                "indexed_end": segment.indexed_end,
                "index": [
                    list(column)
                    for column in (
                        segment.index.offsets,
                        segment.index.positions,
                        segment.index.lsns,
                        segment.index.times,
                    )
                ],
                "starts": list(segment.chunks.starts),
                "fill": segment.chunks.fill,
                "capacity": segment.chunks.capacity,
                "chunks": [len(chunk) for chunk in segment.chunks.chunks],
            }
            for segment in shard.segments
        ],
    }


def _producers_of(shard: Shard) -> Any:
    return {number: (attrs.astuple(state), state.saved_sequence) for number, state in (shard.producers or {}).items()}


def _batches_of(segment: Any) -> Any:
    chunks = segment.chunks
    return (
        segment.next_offset,
        segment.last_lsn,
        segment.newest_us,
        segment.newest_append_us,
        segment.end,
        b"".join(chunks.views(chunks.start, chunks.end)),
    )


def _spoil(frame: bytearray, plan: FramePlan) -> None:
    if plan.fault == "none":
        return
    if plan.fault == "bit":
        bit = plan.at % (8 * len(frame))
        frame[bit >> 3] ^= 1 << (bit & 7)
    elif plan.fault == "cut":
        # Its last bytes are missing, and everything says so.
        del frame[len(frame) - 1 - plan.at % 8 :]
        struct.pack_into("<I", frame, 0, len(frame))
        struct.pack_into("<I", frame, _BATCH_AT + 36, len(frame) - _BATCH_AT - HEADER_SIZE)
        if plan.codec is Codec.NONE:
            struct.pack_into("<I", frame, _BATCH_AT + 40, len(frame) - _BATCH_AT - HEADER_SIZE)
        struct.pack_into("<I", frame, _BATCH_AT + 32, crc32c(frame[_BATCH_AT + 36 :]))
    elif plan.fault in _FIELDS:
        layout, at = _FIELDS[plan.fault]
        struct.pack_into(layout, frame, at, plan.at % 256 ** struct.calcsize(layout))
    else:
        layout, at = _BATCH_FIELDS[plan.fault]
        struct.pack_into(layout, frame, _BATCH_AT + at, plan.at % 256 ** struct.calcsize(layout))
        struct.pack_into("<I", frame, _BATCH_AT + 32, crc32c(frame[_BATCH_AT + 36 :]))
