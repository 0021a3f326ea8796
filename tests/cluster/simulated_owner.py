"""An owner of a store whose log is in memory, on a simulated disk."""

from __future__ import annotations

import random
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio

from journal.engine import Addresses, Claim, Engine, Environment, SharedLog, open_engine
from journal.engine.shared_log.log import Decision
from journal.logstore.ownership import Member
from journal.logstore.stores.memory import MemoryLogStore
from journal.settings.server import ConversionConfig
from tests.crash.simulation import open_simulated_store
from tests.journal.engines import DATA, InlineDisk, config
from tests.simulation.file_system import SimulatedFileSystem


class AtOnce:
    """Takes the store over whenever it is at the end of the log."""

    async def wait(self, claim: Claim, *, has_moved: bool) -> Decision:
        await trio.lowlevel.checkpoint()
        return Decision.TAKE_OVER


@asynccontextmanager
async def owner(
    store: MemoryLogStore, files: SimulatedFileSystem, rng: random.Random, window: int = 1, journal_files: int = 4
) -> AsyncIterator[Engine]:
    """It makes a checkpoint when its journal has half of so many files."""
    settings = config()
    storage = attrs.evolve(settings.storage, journal_budget_bytes=journal_files * settings.storage.journal_file_bytes)
    member = Member("root", b"S" * 16, secrets.token_bytes(16))
    async with open_engine(
        DATA,
        attrs.evolve(settings, storage=storage, conversion=ConversionConfig(enabled=False)),
        Environment(files=files, make_disk=InlineDisk, open_store=lambda path: open_simulated_store(files, rng, path)),
        log=SharedLog(store, member, Addresses("127.0.0.1:1", "127.0.0.1:2", False), AtOnce(), 1 << 16, window),
    ) as engine:
        yield engine
