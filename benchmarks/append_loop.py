"""Frames made journal entries by `Appender.append_run`, without sockets and disks: in Python and compiled, in turns.

It is what takes most of a server's processor time under single appends. Both forms get the same frames, a chunk each in
turns, so that the noise of the machine is in both figures.

``python -m benchmarks.append_loop [--chunks N] [--form pure|compiled] [--shards N]`` appends so many chunks by one form
alone, for tools that count instructions.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from benchmarks.load import Timing
from benchmarks.pipeline import VALUE
from benchmarks.runs import Measurement, Row, UnavailableError
from journal.engine.state.producer_use import ProducerUse
from journal.engine.wal.disk import Disk
from journal.engine.wal.group import Group
from journal.engine.wal.group_commit import Committer
from journal.engine.write.append_loop import AppendLoop, PureAppendLoop, make_append_loop
from journal.engine.write.appender import Appender
from journal.protocol.frames import build_append
from shards import compiled
from shards.errors import StorageFailedError
from shards.format.batch import encode_values
from shards.model import Mode, ShardConfig
from shards.segments.chunks import ChunkPool
from shards.segments.shard import Shard

FRAMES: Final = 4000
SHARDS: Final = {"one": 1, "many": 4000}
SHARD_WORDS: Final = {"one": "one shard", "many": "4,000 shards"}
FORMS: Final = ("pure", "compiled")


def rows() -> list[Row]:
    """A row for each form and number of shards; the compiled form is compared to that in Python."""
    words = {"pure": "in Python", "compiled": "compiled"}
    return [
        Row(
            f"appender.{form}.{key}",
            f"100 B records one by one through the append loop alone, {words[form]}, {SHARD_WORDS[key]}",
            "records/s",
            peer=f"appender.pure.{key}" if form == "compiled" else "",
        )
        for key in SHARDS
        for form in FORMS
    ]


def measurements() -> list[Measurement]:
    """One for each number of shards."""
    return [_measurement(key, shards) for key, shards in SHARDS.items()]


def _measurement(key: str, shards: int) -> Measurement:
    def run(timing: Timing) -> Mapping[str, float]:
        forms = FORMS if compiled.append_loop_type is not None else FORMS[:1]
        appends = {form: ChunkAppends(form, shards) for form in forms}
        taken_s = dict.fromkeys(forms, 0.0)
        chunks = 0
        begun_at = time.perf_counter()
        while (now := time.perf_counter()) < begun_at + 2 * timing.total_s:
            measured = now >= begun_at + timing.warm_up_s
            chunks += measured
            for form, each in appends.items():
                taken_s[form] += each.append() * measured
        if not chunks:
            raise UnavailableError("not one chunk within the time of a run")
        return {f"appender.{form}.{key}": chunks * FRAMES / taken for form, taken in taken_s.items()}

    return Measurement(tuple(f"appender.{form}.{key}" for form in FORMS), run)


class ChunkAppends:
    """An appender with nothing behind it, and a received chunk for it.

    Args:
        form: Which loop.
        shards: The frames are for so many shards, in random order.
    """

    number = 1
    producers = ""

    def __init__(self, form: str, shards: int) -> None:
        self._committer = Committer(
            _Nowhere(),
            _Nowhere(),
            next_lsn=1,
            journal_next_lsn=1,
            publish=lambda _: None,
            committed=lambda: None,
            failed=lambda _: None,
        )
        pool = ChunkPool(64 << 20)
        self._shards = [self._shard(number, pool) for number in range(shards)]
        self._appender = self._make_appender(form)
        self._appender.append_time_us = 1_700_000_000_000_000
        batch = encode_values([VALUE], timestamp_us=1_700_000_000_000_000)
        handles = list(range(shards)) * (FRAMES // shards)
        random.Random(7).shuffle(handles)
        self._received = b"".join(build_append(at, handle, batch) for at, handle in enumerate(handles))
        self._buffer = bytearray(self._received)
        self._view = memoryview(self._buffer)

    @staticmethod
    def _shard(number: int, pool: ChunkPool) -> Shard:
        shard = Shard(number, f"bench{number}", ShardConfig(mode=Mode.FILE), 0)
        shard.segment_limit_bytes = 1 << 60
        shard.open_segment(Mode.FILE, 0, 0, f"/bench{number}", pool)
        return shard

    def _make_appender(self, form: str) -> Appender:
        def unused(*_: object) -> None:
            raise AssertionError("the frames are plain")

        make: Callable[[dict[int, int], dict[int, int], int], AppendLoop]
        make = PureAppendLoop if form == "pure" else make_append_loop
        return Appender(
            self._committer,
            lsns_reserved=0,
            max_batch_bytes=1 << 20,
            producer_epoch=unused,
            check_producer=unused,
            epochs={},
            load_producers=unused,
            open_segment=unused,
            words=unused,
            fold_words=unused,
            publishing=unused,
            tail_grew=unused,
            use=ProducerUse(time.monotonic),
            make_loop=make,
        )

    def append(self) -> float:
        """Append the chunk and return the seconds that took; what was appended is dropped, as after a flush."""
        self._buffer[:] = self._received
        committer = self._committer
        committer.group = Group(committer.group.number + 1)
        begun_at = time.perf_counter()
        taken = self._appender.append_run(self._view, 0, len(self._buffer), self._shards, self)
        taken_s = time.perf_counter() - begun_at
        assert taken == len(self._buffer), "the frames are plain"
        self._appender.flush_run()
        for shard in self._shards:
            shard.pending_groups = 0
            segment = shard.segments[-1]
            if segment.chunks.fill > 16 << 10:
                segment.chunks.drop_before(segment.end)
        return taken_s

    def acknowledge(self, acks: bytearray) -> None:
        """Drop acknowledgements."""

    def fail(self, error: StorageFailedError) -> None:
        """Ignore a failure of the storage, of which there is none."""


class _Nowhere(Disk):
    """A disk and a writer of groups that are never used: nothing is committed."""

    largest_group_bytes = 1 << 30


def main(argv: Sequence[str] | None = None) -> int:
    """Append chunks by one form."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.append_loop")
    parser.add_argument("--chunks", type=int, default=20)
    parser.add_argument("--form", choices=FORMS, default="compiled")
    parser.add_argument("--shards", type=int, default=1)
    arguments = parser.parse_args(argv)
    appends = ChunkAppends(arguments.form, arguments.shards)
    taken_s = sum(appends.append() for _ in range(arguments.chunks))
    print(f"{arguments.form}: {taken_s / arguments.chunks / FRAMES * 1e6:.3f} us an append")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
