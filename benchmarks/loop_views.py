"""Data for the rows ``loop.*`` in the views, in addition to the shards: state, half of it expired, and producers.

Written directly into the store of a stopped server: a million requests would take longer than all measurements.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from shards.idempotence.producer_state import ProducerState
from shards.seams.rocks_store import RocksStore
from shards.seams.store import Mutations
from shards.segments.shard import Shard
from shards.views.catalogue import Catalogue
from shards.views.producer_records import save_changed
from shards.views.producers import Producers
from shards.views.state_store import StateStore

FOR_EACH_SHARD: Final = 10
"""State keys and producers per shard."""

SHARDS_WITH_PRODUCERS: Final = 100
PRODUCERS_OF_A_SHARD: Final = 1000
FIRST_PRODUCER_ID: Final = 1 << 40

_WRITTEN_AT_ONCE: Final = 5000


def state_key(number: int) -> bytes:
    """Key of a value."""
    return b"loop/%08d" % number


def fill(directory: Path, shards: list[str]) -> None:
    """Put state and producers into the views of a data directory.

    Args:
        directory: Data directory of a stopped server.
        shards: Names of all shards; the first ones get producers.
    """
    store = RocksStore(str(directory / "state"))
    try:
        count = FOR_EACH_SHARD * len(shards)
        now_us = time.time_ns() // 1000
        state, producers, catalogue = StateStore(store), Producers(store), Catalogue(store)
        mutations = Mutations()
        for number in range(count):
            state.fold_put(mutations, state_key(number), bytes(60), number + 1, now_us if number < count // 2 else 0)
            producers.fold_use(mutations, f"loop-{number:08}", FIRST_PRODUCER_ID + number, 1, now_us)
            if number % _WRITTEN_AT_ONCE == 0:
                store.write(mutations)
                mutations.clear()
        for place, name in enumerate(shards[:SHARDS_WITH_PRODUCERS]):
            shard_id = catalogue.id_of(name)
            record = catalogue.record(shard_id) if shard_id is not None else None
            if shard_id is None or record is None:
                raise ValueError(f"shard {name!r} is not in {directory}")
            shard = Shard(shard_id, name, record.config, record.created_us)
            first = FIRST_PRODUCER_ID + place * PRODUCERS_OF_A_SHARD % count
            shard.producers = {first + number: ProducerState(1, 0) for number in range(PRODUCERS_OF_A_SHARD)}
            for _ in save_changed(mutations, shard, 0, lambda _: True):
                pass
            store.write(mutations)
            mutations.clear()
        store.flush()
    finally:
        store.close()
