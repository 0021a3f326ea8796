"""Running the engine on a simulated disk so that a run can be repeated exactly: one thread, one seed, a virtual clock.

trio's scheduler draws from a seeded generator, work that would go to a thread is done in place after a random number of
scheduler rounds, and so is the journal's writing: the same seed gives the same interleaving and the same numbering of
file system operations. The clock by which long work is divided into steps does not go by the machine's time either.
"""

from __future__ import annotations

import contextlib
import errno
import posixpath
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import outcome
import pytest
import trio
import trio.testing

from journal.engine import Engine, Environment, open_engine
from journal.engine.wal.disk import Done, Work
from journal.settings.server import ConversionConfig, ServerConfig, ShardsConfig, StorageConfig
from shards.errors import CorruptionError, DataDirectoryError, DiskFullError, StorageFailedError
from shards.seams.clock import ManualClock
from tests.simulation.file_system import CrashNow, SimulatedFileSystem
from tests.simulation.inline import InlineConverter, WorkOnlyDisk
from tests.simulation.store import SimulatedStore

DATA = "/data"
KIB = 1024
LARGE_TAIL_BYTES = 1200
MOST_WORK_S = 0.001
"""What one look at the clock of `journal.engine.time_slice` adds at most; a step there is two thousandths of a
second."""

# Sizes at which a workload of a few hundred records rolls segments, recycles journal files and makes checkpoints.
TINY = ServerConfig(
    storage=StorageConfig(
        journal_file_bytes=12 * KIB,
        journal_budget_bytes=24 * KIB,
        segment_bytes=2 * KIB,
        tail_budget_bytes=8 * KIB,
        memory_segment_bytes=1 * KIB,
        disk_reserve_bytes=0,
        flush_interval_ms=50,
        retention_interval_s=1,
    ),
    shards=ShardsConfig(memory_max_bytes=4 * KIB),
    conversion=ConversionConfig(max_age_s=2, delta_grace_s=0),
)

# The same, and closed segments are gathered more often.
GATHERING = attrs.evolve(TINY, conversion=ConversionConfig(max_age_s=1, delta_grace_s=0))

# The same, but nothing happens in the background unless a test asks for it.
QUIET = ServerConfig(
    storage=StorageConfig(
        journal_file_bytes=12 * KIB,
        journal_budget_bytes=1 << 30,
        segment_bytes=2 * KIB,
        tail_budget_bytes=1 << 30,
        memory_segment_bytes=1 * KIB,
        disk_reserve_bytes=0,
        flush_interval_ms=60_000,
        retention_interval_s=86_400,
    ),
    shards=ShardsConfig(memory_max_bytes=4 * KIB),
    conversion=ConversionConfig(max_age_s=86_400, delta_grace_s=0),
)


class SimulatedDisk(WorkOnlyDisk):
    """The journal's disk thread as a task: work takes some scheduler rounds, in which the next group collects."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._queue: list[tuple[Work, Done]] = []
        self._closed = False

    def submit(self, work: Work, done: Done) -> None:
        """Queue work."""
        self._queue.append((work, done))
        if len(self._queue) == 1:
            trio.lowlevel.spawn_system_task(self._run)

    async def _run(self) -> None:
        while self._queue and not self._is_over():
            # It stays in the queue while it is under way, so that no second task is started.
            work, done = self._queue[0]
            await _rounds(self._rng)
            if self._is_over():
                return
            result = outcome.capture(work)
            await _rounds(self._rng)
            if self._is_over():
                return
            if isinstance(result, outcome.Error) and isinstance(result.error, CrashNow):
                # After the power failure no caller gets a result; an error ends the tasks that wait.
                result = outcome.Error(OSError(errno.EIO, "the power is off"))
            done(result)
            del self._queue[0]

    def _is_over(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Do no more."""
        self._closed = True


async def _rounds(rng: random.Random) -> None:
    for _ in range(rng.randrange(5)):
        await trio.lowlevel.cancel_shielded_checkpoint()


@contextlib.contextmanager
def deterministic(seed: int, *, short_steps: bool = False) -> Iterator[random.Random]:
    """Make trio runs in this context repeatable.

    Args:
        seed: Of everything.
        short_steps: Long work lets others run after a few items each time, not hardly ever.
    """
    rng = random.Random(seed)
    steps, work_s = random.Random(f"{seed}/steps"), 0.0

    def pass_time() -> float:
        nonlocal work_s
        work_s += steps.random() * MOST_WORK_S if short_steps else 0.0
        return work_s

    async def in_place(work: Callable[..., Any], *arguments: Any, **_: Any) -> Any:
        await trio.lowlevel.checkpoint()
        await _rounds(rng)
        result = work(*arguments)
        await _rounds(rng)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING", True)
        patch.setattr("trio._core._run._r", random.Random(seed))
        patch.setattr("trio.to_thread.run_sync", in_place)
        patch.setattr("journal.engine.time_slice.perf_counter", pass_time)
        patch.setattr("journal.engine.startup._new_salt", lambda: rng.getrandbits(64))
        patch.setattr(
            "journal.engine.directory.data_directory.secrets.token_hex", lambda size: rng.randbytes(size).hex()
        )
        # The default is 1 MiB, more than a simulated tail ever has; what only large tails reach must be reached.
        patch.setattr("journal.engine.segments.flusher.LARGE_TAIL_BYTES", LARGE_TAIL_BYTES)
        patch.setattr("journal.engine.segments.checkpointer.LARGE_TAIL_BYTES", LARGE_TAIL_BYTES)
        # A workload takes less than the second that small segments wait at least.
        patch.setattr("journal.engine.parquet.gathering_queue.EARLY_SHARDS", 1)
        patch.setattr("journal.engine.parquet.rewriting.MERGED_AT_ONCE", 2)
        yield rng


def open_simulated_store(files: SimulatedFileSystem, rng: random.Random, path: str) -> SimulatedStore:
    """Open the views' store, and refuse where `journal.engine.open_rocks_store` does: beside a journal in use."""
    journal = f"{posixpath.dirname(path)}/journal"
    if not files.exists(f"{path}/content") and any(name.endswith(".jnl") for name in files.listdir(journal)):
        raise CorruptionError(path, 0, f"the store of the views is missing, but {journal} was in use")
    return SimulatedStore(files, path, disk=files.disk, at_close=rng.randrange)


@asynccontextmanager
async def opened(
    files: SimulatedFileSystem,
    rng: random.Random,
    clock: ManualClock,
    config: ServerConfig = TINY,
    *,
    data: str = DATA,
) -> AsyncIterator[Engine]:
    """An engine on a simulated disk and store."""
    async with open_engine(
        data,
        config,
        Environment(
            files=files,
            clock=clock,
            make_disk=lambda: SimulatedDisk(rng),
            open_store=lambda path: open_simulated_store(files, rng, path),
        ),
        make_converter=lambda: InlineConverter(files, clock.now_us),
    ) as engine:
        yield engine


def run(
    files: SimulatedFileSystem,
    body: Callable[[Engine], Awaitable[None]],
    *,
    seed: int,
    clock: ManualClock,
    config: ServerConfig = TINY,
    data: str = DATA,
    short_steps: bool = False,
) -> BaseException | None:
    """Open an engine, give it to the body, close it.

    Returns:
        None when it closed cleanly; what ended it when the power went off or a call to the disk failed as injected.
    """

    found: list[Exception] = []

    async def main(rng: random.Random) -> None:
        async with opened(files, rng, clock, config, data=data) as engine:
            try:
                await body(engine)
            except Exception as error:
                # Closing the engine may meet the end of its process, which would be all that comes out.
                found.append(error)
                raise

    with deterministic(seed, short_steps=short_steps) as rng:
        try:
            trio.run(main, rng, clock=trio.testing.MockClock(autojump_threshold=0))
        except BaseException as error:
            if found and not _is_expected(found[0]):
                raise found[0] from error
            if not (files.crashed or files.failed) or not _is_expected(error):
                raise
            return error
    return None


def _is_expected(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_expected, error.exceptions))
    if isinstance(error, trio.TrioInternalError):
        # The power may go off while the event loop carries out the answer of a thread, above which there is no task.
        return error.__cause__ is not None and _is_expected(error.__cause__)
    return isinstance(error, CrashNow | OSError | StorageFailedError | DataDirectoryError | DiskFullError)
