"""Brokers of one store in the test's own process, which share its rules as `journal-broker` does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio

from broker_adapter import StorageAdapter
from broker_adapter.bridge.bridges import Bridges
from broker_adapter.cache_queue import names
from broker_adapter.mqtt.broker.composition import mapping_of, storage_rules_of
from broker_adapter.mqtt.config import BrokerConfig, load_broker_config
from broker_adapter.mqtt.rules.followers import wait_followed
from broker_adapter.mqtt.rules.rule_set import RuleSet
from broker_adapter.mqtt.rules.store import Applied, apply_rules
from broker_adapter.mqtt.rules.stored import StoredFollower
from broker_adapter.mqtt.server.shared_rules import SharedRules
from shards.format.record import StoredRecord
from shards.seams.clock import SystemClock
from tests.mqtt.serving import Serving, serving
from tests.patience import PATIENCE_S

BRIDGE = """
[[bridge]]
name = "warehouse"
topics = ["plant/#"]
drive = false
sink = { type = "http", url = "http://127.0.0.1:9/records", token = "s3cret" }
"""
MEMORY = """
[[storage]]
topics = "plant/#"
storage = "memory"
"""
MAPPING = """
[[mapping]]
topics = "plant/#"
prefix = "$plant"
shards = 4
"""


@attrs.frozen
class Settings:
    """Reads settings from texts, as from files in one directory."""

    directory: Path

    def config(self, text: str) -> BrokerConfig:
        path = self.directory / "broker.toml"
        path.write_text(text)
        return load_broker_config(path)

    def rules(self, text: str) -> RuleSet:
        return RuleSet.of(self.config(text))

    @asynccontextmanager
    async def broker(self, adapter: StorageAdapter, broker_id: str, text: str = "") -> AsyncIterator[Serving]:
        """A broker with these settings, from when it goes by the store's rules on."""
        shared = SharedRules(adapter, self.config(text), broker_id)
        rules = await shared.agree()
        bridges = Bridges(adapter, shared.bridge_specs, broker_id)
        async with trio.open_nursery() as nursery:
            await nursery.start(bridges.run)
            async with serving(
                adapter,
                broker_id=broker_id,
                mapping=mapping_of(rules),
                rules=storage_rules_of(rules),
                queue_routing=bridges.queue_routing,
            ) as served:
                await nursery.start(shared.follow, served.broker, bridges)
                yield served
            nursery.cancel_scope.cancel()

    async def apply(self, adapter: StorageAdapter, text: str) -> tuple[Applied, dict[str, StoredFollower | None]]:
        """What `journal-broker apply` does."""
        applied = await apply_rules(adapter, self.rules(text), source="the file", by="test", clock=SystemClock())
        return applied, await wait_followed(adapter, applied.stored.version, timeout_s=PATIENCE_S)


async def queued(adapter: StorageAdapter, queue: str = "warehouse") -> list[tuple[str, bytes]]:
    """Topic and value of what waits for a bridge."""
    found = await adapter.read(names.shard_of(queue), 0)
    return [(record.topic, record.value) for record in found.records if isinstance(record, StoredRecord)]
