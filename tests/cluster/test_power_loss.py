"""A power loss of an owner: what it acknowledged is in the log store, whatever its own disk has kept of it."""

from __future__ import annotations

import random
from typing import Final

import pytest
import trio

from journal.engine.wal.background_sync import BackgroundSync
from journal.logstore.stores.memory import MemoryLogStore
from shards.model import Mode, ShardConfig
from shards.seams.file_system import File
from tests.cluster.simulated_owner import owner
from tests.crash.fates import choices
from tests.journal.engines import DATA, append, values_of
from tests.simulation.file_system import CrashNow, SimulatedFileSystem

LIVES: Final = 4
SHARDS: Final = ("plant/a", "plant/b", "plant/c")


class LateSync(BackgroundSync):
    """Syncs at the latest moment: when the next copy is to be written."""

    _file: File | None = None

    def begin(self, file: File) -> None:
        assert self._file is None
        self._file = file

    def finish(self) -> float | None:
        if self._file is not None:
            super().begin(self._file)
            self._file = None
        return super().finish()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("sync", [BackgroundSync, LateSync])
@pytest.mark.parametrize("window", [1, 4])
async def test_everything_acknowledged_is_there_after_each_of_several_power_losses(
    seed: int, sync: type[BackgroundSync], window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sync of the last copy is not waited for: a part of it may be gone, while the views have what was in it."""
    monkeypatch.setattr("journal.engine.wal.journal_writer.BackgroundSync", sync)
    # Whatever is appended while a slot is under way is sent at once.
    monkeypatch.setattr("journal.engine.wal.send_window.SEND_BYTES", 1)
    # Every second time, the position in the log is noted after each slot.
    monkeypatch.setattr("journal.engine.shared_log.stored_position.EVERY_SLOTS", (1, 16)[seed % 2])
    rng = random.Random(seed)
    store, files = MemoryLogStore(), SimulatedFileSystem()
    files.mkdir(DATA)
    acknowledged: dict[str, list[bytes]] = {name: [] for name in SHARDS}
    for life in range(LIVES):
        try:
            async with owner(store, files, rng, window) as engine:
                for name in SHARDS:
                    await engine.create_shard(name, ShardConfig(mode=Mode.FILE), exist_ok=True)
                    assert await values_of(engine, name) == acknowledged[name]
                for number in range(rng.randrange(1, 40)):
                    names, value = rng.sample(SHARDS, rng.randrange(1, len(SHARDS) + 1)), b"%d/%d" % (life, number)
                    async with trio.open_nursery() as nursery:
                        for name in names:
                            nursery.start_soon(append, engine, name, value)
                            await trio.lowlevel.checkpoint()
                    for name in names:
                        acknowledged[name].append(value)
                    if rng.randrange(10) == 0:
                        await engine.checkpoint()
                files = files.crash(choices(seed if seed < 2 else rng.randrange(1 << 30)))
        except* CrashNow:
            pass  # as expected: it cannot even close its files
    async with owner(store, files, rng, window) as engine:
        for name in SHARDS:
            assert await values_of(engine, name) == acknowledged[name]
