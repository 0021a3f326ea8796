"""A journal server under load, beside growing numbers of shards and producers, batches and a history."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Mapping
from typing import Final

from benchmarks import load, ours, processes
from benchmarks.idle_shards import create_shards
from benchmarks.load import Chunk, Meter, Timing
from benchmarks.runs import NoRoomError
from benchmarks.scale.curves import MEMORY, P99, START
from benchmarks.scale.growth import Form
from benchmarks.sizes import BATCH_RECORDS, MANY_SHARDS, VALUE_BYTES
from benchmarks.stage import Stage, start_journal
from benchmarks.wire import Wire
from journal.protocol import frames
from journal.protocol.frames import Op
from shards.format.batch import with_sequence

FILLING: Final = "scale/filling"
HISTORY: Final = "scale/history"
GROUP: Final = 1000
KEPT_BYTES: Final = 64 << 20
SPARE_DISK_BYTES: Final = 4 << 30
CONVERSION_OFF: Final = {"conversion.enabled": "false"}


class JournalServer:
    """A server on a data directory of its own, with settings that are the default ones but for these."""

    settings: Mapping[str, str] = {}
    """Settings that differ from the default."""
    kills = False
    """It is stopped by SIGKILL and not by SIGTERM."""

    def __init__(self, stage: Stage, form: Form) -> None:
        self.stage = stage
        self.form = form
        self._starts = 0
        self.server = self._start()
        self.generator = ours.Generator(stage, self.connect)

    def warm_up(self) -> None:
        """Write all files of the journal once."""
        with self.connect() as wire:
            ours.fill(wire, FILLING, self.form.warm_up_bytes)
            wire.delete(FILLING)

    def connect(self) -> Wire:
        """A connection to the server as it runs now."""
        return Wire(self.server.address, timeout_s=120.0)

    def _start(self) -> processes.Server:
        directory = self.stage.directory
        self._starts += 1
        return start_journal(directory / "data", directory / f"log-{self._starts}", settings=self.settings)

    def measure(self) -> Mapping[str, float]:
        """The figures; the server is another one afterwards."""
        figures = {
            **self.form.rates(self.rate, self.server.processor_s),
            P99: self.form.median(self.p99_us),
            MEMORY: processes.settled(self.server.resident_bytes) / 1e6,
        }
        self.before_stop()
        self.server.stop(kill=self.kills)
        self.server = self._start()
        return {**figures, START: self.server.ready_s}

    def rate(self, timing: Timing) -> float:
        """What is done, a second."""
        raise NotImplementedError

    def p99_us(self) -> float:
        """p99 of one append of a record after the other."""
        return load.percentile(self.generator.round_trips(self.form.timing), 0.99)

    def before_stop(self) -> None:
        """Called before the server is stopped to be started again."""

    def close(self) -> None:
        self.server.stop()


class Shards(JournalServer):
    """Shards with a record each; appends go to some of them."""

    # A million is the default; the measurement has some of its own.
    settings: Mapping[str, str] = {"shards.max_shards": "2000000"}
    _size = 0

    def grow(self, size: float) -> None:
        create_shards(self.server.address, int(size), lambda _done, _total: None, first=self._size)
        self._size = int(size)
        # More than the journal's budget, twice: a checkpoint that was under way is complete, and one that began after
        # all were made has made their log files. Half a minute of that for each half million would be measured in
        # place of appends.
        self.warm_up()
        self.warm_up()

    def rate(self, timing: Timing) -> float:
        chosen = random.Random(1).sample(range(self._size), min(self._size, MANY_SHARDS))
        return self.generator.singles_over([f"idle/{number}" for number in chosen], timing)


class Batches(JournalServer):
    """Batches of so many records; the start is after SIGKILL, with 64 MiB of them in the journal."""

    kills = True
    _size = 1

    def grow(self, size: float) -> None:
        self._size = int(size)

    def rate(self, timing: Timing) -> float:
        return self.generator.append_rate(ours.FILE, ours.batch_of(self._size), timing)

    def p99_us(self) -> float:
        return load.percentile(self.generator.round_trips(self.form.timing, self._size), 0.99)

    def before_stop(self) -> None:
        # A checkpoint at SIGTERM: the journal has nothing of the runs before.
        self.server.stop()
        self.server = self._start()
        batch = ours.batch_of(self._size)
        with self.connect() as wire:
            [handle] = wire.open([f"scale/batches/{self._size}"], ours.FILE)
            per_chunk = max(1, ours.CHUNK_BYTES // len(batch))
            chunk = ours.chunk_of([(handle, batch)] * per_chunk)
            chunks = [chunk] * max(1, min(KEPT_BYTES, self.form.warm_up_bytes) // len(chunk.data))
            ours.append_all(wire, chunks, ours.window_of(len(batch)))


class History(JournalServer):
    """A shard of so many megabytes; reads of single batches at random places, appends of 16 KiB to another shard."""

    settings = CONVERSION_OFF
    _size = 0

    def grow(self, size: float) -> None:
        more_bytes = (int(size) - self._size) * 1_000_000
        free_bytes = shutil.disk_usage(self.stage.directory).free
        if free_bytes < more_bytes + SPARE_DISK_BYTES:
            message = f"the disk has {free_bytes / 1e9:.0f} GB left, and some must stay free"
            raise NoRoomError(message, self._size + (free_bytes - SPARE_DISK_BYTES) / 1e6)
        with self.connect() as wire:
            ours.fill(wire, HISTORY, more_bytes)
        self._size = int(size)

    def rate(self, timing: Timing) -> float:
        return self.generator.append_rate(ours.FILE, ours.batch_of(BATCH_RECORDS), timing)

    def p99_us(self) -> float:
        places = random.Random(1)
        with self.connect() as wire:
            end = int(wire.request(Op.DESCRIBE_SHARD, {"name": HISTORY})["next_offset"])
            [handle] = wire.open([HISTORY], None)

            times_us = []
            # So many, and not for so long: on a busy disk a few reads fill the time of a run.
            for _ in range(self.form.reads):
                begun_at = time.perf_counter()
                wire.socket.sendall(frames.build_fetch(0, handle, places.randrange(end), 1, 0))
                _, _, body = wire.receive()
                times_us.append((time.perf_counter() - begun_at) * 1e6)
                if len(body) < VALUE_BYTES:
                    raise load.LoadError(f"a read of a batch returned {len(body)} bytes")
        return load.percentile(sorted(times_us), 0.99)


class Producers(JournalServer):
    """Producers that have all appended; appends with sequence numbers of some, each to the shard of a thousand."""

    def __init__(self, stage: Stage, form: Form) -> None:
        super().__init__(stage, form)
        self._size = 0
        self._ids: list[tuple[int, int]] = []
        self._sequences: list[int] = []

    def grow(self, size: float) -> None:
        for first in range(self._size, int(size), GROUP):
            numbers = range(first, min(first + GROUP, int(size)))
            with self.connect() as wire:
                bodies = [{"name": f"scale-{number}"} for number in numbers]
                opened = wire.requests(Op.PRODUCER_OPEN, bodies)
            self._ids += [(int(reply["producer_id"]), int(reply["epoch"])) for reply in opened]
            self._sequences += [0] * len(numbers)
            self._append(list(numbers))
        self._size = int(size)

    def rate(self, timing: Timing) -> float:
        chosen = random.Random(1).sample(range(self._size), min(self._size, MANY_SHARDS))
        order = [chosen[number % len(chosen)] for number in range(self.form.appends)]
        random.Random(2).shuffle(order)
        return len(order) / self._append(order, timing.meter)

    def _append(self, order: list[int], meter: Meter | None = None) -> float:
        """One append by each of these producers in turn; seconds until all are acknowledged."""
        names = sorted({number // GROUP for number in order})
        plain = ours.batch_of(1)
        with self.connect() as wire:
            opened = wire.open([f"scale/producers/{name}" for name in names], ours.FILE)
            handles = dict(zip(names, opened, strict=True))
            appends: list[tuple[int, bytes]] = []
            for number in order:
                producer_id, epoch = self._ids[number]
                batch = with_sequence(
                    plain, producer_id=producer_id, producer_epoch=epoch, sequence=self._sequences[number]
                )
                self._sequences[number] += 1
                appends.append((handles[number // GROUP], batch))
            per_chunk = ours.CHUNK_BYTES // len(plain)
            chunks: list[Chunk] = [
                ours.chunk_of(appends[start : start + per_chunk]) for start in range(0, len(appends), per_chunk)
            ]
            if meter is not None:
                meter.note(0)
            begun_at = time.perf_counter()
            ours.append_all(wire, chunks, ours.window_of(len(plain)))
            seconds = time.perf_counter() - begun_at
            if meter is not None:
                meter.note(len(order))
            return seconds
