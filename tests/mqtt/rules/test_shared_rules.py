"""How brokers agree on the rules of their store, and how rules are changed, on a store in the test's own process."""

from __future__ import annotations

import json
import pathlib
from collections.abc import AsyncIterator
from typing import cast

import pytest
import trio

from broker_adapter import StorageAdapter, open_adapter
from broker_adapter.background_tasks import background_tasks
from broker_adapter.bridge.bridges import Bridges
from broker_adapter.mqtt.broker.composition import BridgeSpecs, broker_id_of
from broker_adapter.mqtt.config import OnDifference
from broker_adapter.mqtt.rules.agreement import agree_on_bridges, agree_on_rules, change_of
from broker_adapter.mqtt.rules.followers import followers_of
from broker_adapter.mqtt.rules.rule_set import (
    MappingChangedError,
    RulesConflictError,
    RulesDifferError,
    RuleSet,
    RulesRefusedError,
)
from broker_adapter.mqtt.rules.store import Applied, RulesChange, apply_rules, read_rules
from broker_adapter.mqtt.rules.stored import RULES_KEY, RULES_SHARD, StoredFollower, StoredRules
from broker_adapter.mqtt.server.shared_rules import SharedRules
from broker_adapter.state_forms import encode
from journal.protocol.errors import ConnectionLostError
from journal.settings.values import ConfigurationError
from shards.errors import ShardNotFoundError
from shards.format.record import StoredRecord
from shards.model import Mode, StateValue
from shards.seams.clock import SystemClock
from tests.mqtt.rules.members import BRIDGE, MAPPING, MEMORY, Settings, queued
from tests.mqtt.serving import serving
from tests.mqtt.session.faults import Path
from tests.patience import PATIENCE_S

FOLLOW = '[rules]\non_difference = "follow"\n'


@pytest.fixture
async def store() -> AsyncIterator[StorageAdapter]:
    async with open_adapter("memory:") as adapter:
        yield adapter


@pytest.fixture
def settings(tmp_path: pathlib.Path) -> Settings:
    return Settings(tmp_path)


async def told(store: StorageAdapter) -> list[dict[str, object]]:
    """What the shard of the rules has."""
    found = await store.read(RULES_SHARD, 0)
    return [json.loads(record.value) for record in found.records if isinstance(record, StoredRecord)]


async def test_a_broker_with_other_rules_logs_the_differences(store: StorageAdapter, settings: Settings) -> None:
    await settings.apply(store, BRIDGE)
    other = BRIDGE.replace('["plant/#"]', '["plant/#", "office/#"]').replace("s3cret", "other") + MEMORY
    with pytest.raises(RulesDifferError) as refused:
        await SharedRules(store, settings.config(other), "b").agree()
    for words in (
        '[[storage]] number 1 of the settings is not in the store: { topics = "plant/#", storage = "memory" }',
        '[[bridge]] warehouse: topics is ["plant/#"] in the store, ["plant/#","office/#"] in the settings',
        "[[bridge]] warehouse: sink.token differs between the store and the settings (not shown)",
        "`journal-broker apply FILE`",
        'rules.on_difference = "follow"',
    ):
        assert words in str(refused.value)
    assert "s3cret" not in str(refused.value)


async def test_a_broker_that_is_to_follow_goes_by_the_store(store: StorageAdapter, settings: Settings) -> None:
    await settings.apply(store, BRIDGE)
    async with settings.broker(store, "b", FOLLOW + BRIDGE.replace("plant/#", "office/#")) as served:
        client = await served.client()
        await client.publish("office/b", b"1", 1)
        await client.publish("plant/b", b"2", 1)
        assert await queued(store) == [("plant/b", b"2")]


async def test_whether_a_broker_drives_a_bridge_is_its_own_affair(store: StorageAdapter, settings: Settings) -> None:
    await settings.apply(store, BRIDGE)
    driving = settings.config(BRIDGE.replace("drive = false", ""))
    rules = await SharedRules(store, driving, "a").agree()
    drives = {
        text: [spec.drive for spec in BridgeSpecs.of(settings.config(text)).of_rules(rules)]
        for text in ("", BRIDGE, BRIDGE.replace("drive = false", ""), "[rules]\ndrive = false\n")
    }
    assert list(drives.values()) == [[True], [False], [True], [False]]


async def test_storage_rules_hold_at_brokers_that_run(store: StorageAdapter, settings: Settings) -> None:
    async with settings.broker(store, "a") as served:
        client = await served.client()
        await client.publish("plant/a", b"1", 1)
        assert (await settings.apply(store, MEMORY))[1] == {}
        await client.publish("plant/b", b"2", 1)
        assert (await store.describe_shard("plant/a")).config.mode is Mode.FILE
        assert (await store.describe_shard("plant/b")).config.mode is Mode.MEMORY


async def test_a_bridge_that_changes_continues_with_its_queue(store: StorageAdapter, settings: Settings) -> None:
    async with settings.broker(store, "a", BRIDGE) as served:
        client = await served.client()
        await client.publish("plant/a", b"1", 1)
        await settings.apply(store, BRIDGE.replace('["plant/#"]', '["office/#"]') + "max_records = 2\n")
        for topic in ("plant/b", "office/a"):
            await client.publish(topic, topic.encode(), 1)
        # Its new bound holds at once.
        assert (await client.publish("office/b", b"", 1)).name == "QUOTA_EXCEEDED"
        assert await queued(store) == [("plant/a", b"1"), ("office/a", b"office/a")]


async def test_a_queue_whose_bridge_is_gone_is_not_made_again(store: StorageAdapter, settings: Settings) -> None:
    async with settings.broker(store, "a", BRIDGE):
        await settings.apply(store, "")
        await store.delete_shard("$queue/warehouse")
        await settings.apply(store, BRIDGE.replace("warehouse", "other"))
        with pytest.raises(ShardNotFoundError):
            await store.describe_shard("$queue/warehouse")


async def test_mapping_rules_are_not_changed_while_brokers_run(store: StorageAdapter, settings: Settings) -> None:
    async with settings.broker(store, "a", BRIDGE):
        with pytest.raises(RulesRefusedError, match=r"while brokers run \(a\).*stop all brokers"):
            await settings.apply(store, BRIDGE + MAPPING)
        stored = await read_rules(store)
        assert stored is not None
        assert (stored.version, stored.rules) == (1, settings.rules(BRIDGE))
    assert (await settings.apply(store, BRIDGE + MAPPING))[0].stored.version == 2


async def test_a_broker_that_meets_other_mapping_rules_has_to_start_again(
    store: StorageAdapter, settings: Settings
) -> None:
    """The first broker with rules cannot ask others to stop; nor can one whose start an `apply` overlaps with."""
    shared = SharedRules(store, settings.config(""), "b")
    await shared.agree()
    async with serving(store, broker_id="b") as served, trio.open_nursery() as nursery:
        bridges = Bridges(store, [], "b")
        await nursery.start(bridges.run)
        with trio.fail_after(PATIENCE_S), pytest.raises(MappingChangedError, match="must restart"):
            async with background_tasks() as following:
                await following.start(shared.follow, served.broker, bridges)
                mapping = settings.rules(MAPPING)
                change = change_of(store, mapping, broker_id="a", is_alone=False, clock=SystemClock())
                await agree_on_rules(store, mapping, change=change, on_difference=OnDifference.STOP, is_alone=False)
                await trio.sleep_forever()
        nursery.cancel_scope.cancel()


async def test_the_only_broker_of_a_store_has_the_rules_of_its_file(store: StorageAdapter, settings: Settings) -> None:
    for text in (MAPPING, MAPPING, MEMORY, ""):
        config = settings.config(f'[broker]\nstore = "embedded:/nowhere"\n{text}')
        assert await SharedRules(store, config, broker_id_of(config)).agree() == settings.rules(text)
    assert [list(each["rules"]) for each in await told(store)] == [["mapping"], ["storage"], []]  # type: ignore[call-overload]


async def test_the_shard_of_the_rules_has_each_version_without_secrets(
    store: StorageAdapter, settings: Settings
) -> None:
    await settings.apply(store, BRIDGE)
    await settings.apply(store, BRIDGE)
    await settings.apply(store, BRIDGE.replace("s3cret", "other"))
    first, second = await told(store)
    assert (first["version"], first["applied_by"], second["version"]) == (1, "test", 2)
    assert first["rules"] == {
        "bridge": [
            {
                "name": "warehouse",
                "topics": ["plant/#"],
                "sink": {"type": "http", "url": "(not shown)", "token": "(not shown)"},
            }
        ]
    }
    assert second["changes"] == ["[[bridge]] warehouse: sink.token differs between the store and the file (not shown)"]


async def test_of_two_who_change_the_rules_at_once_each_sees_the_other(
    store: StorageAdapter, settings: Settings
) -> None:
    """Compare-and-set: no version is lost, and none is given out twice."""
    both = [settings.rules(MEMORY), settings.rules(BRIDGE)]
    async with trio.open_nursery() as nursery:
        for rules in both:

            async def change(rules: RuleSet = rules) -> None:
                for wanted in (rules, RuleSet()) * 4:
                    await apply_rules(store, wanted, source="it", by="test", clock=SystemClock())

            nursery.start_soon(change)
    versions = [each["version"] for each in await told(store)]
    assert versions == list(range(1, len(versions) + 1))
    stored = await read_rules(store)
    assert stored is not None
    assert stored.version == versions[-1]


async def test_rules_are_put_there_once_if_the_answer_is_lost(store: StorageAdapter, settings: Settings) -> None:
    path = Path(store)
    path.fail(lambda name, _argument: name == "commit", carried_out=True)
    shared = SharedRules(cast("StorageAdapter", path), settings.config(BRIDGE), "a")
    assert await shared.agree() == settings.rules(BRIDGE)
    assert path.failed_count == 1
    assert [each["version"] for each in await told(store)] == [1]


async def test_a_broker_waits_for_the_others_also_if_the_answer_is_lost(
    store: StorageAdapter, settings: Settings
) -> None:
    """It took its own rules for those of another broker then, and went on while another broker had older ones."""

    class LetsOtherGoOn(Path):
        """Lets the other broker go on when this one looks who follows."""

        def scan_state(self, prefix: bytes = b"", *, after: bytes | None = None) -> AsyncIterator[StateValue]:
            other.thaw()
            return store.scan_state(prefix, after=after)

    other = Path(store)
    async with settings.broker(cast("StorageAdapter", other), "b"):
        path = LetsOtherGoOn(store)
        path.fail(lambda name, _argument: name == "commit", carried_out=True)
        other.freeze()
        with trio.fail_after(PATIENCE_S):
            await SharedRules(cast("StorageAdapter", path), settings.config(BRIDGE), "a").agree()
        assert path.failed_count == 1
        assert (await followers_of(store))["b"] == StoredFollower(1)


@pytest.mark.parametrize("is_carried_out", [True, False])
async def test_rules_are_applied_once_if_the_answer_is_lost(
    store: StorageAdapter, settings: Settings, *, is_carried_out: bool
) -> None:
    path = Path(store)
    path.fail(lambda name, _argument: name == "commit", carried_out=is_carried_out)
    applied = await apply_rules(
        cast("StorageAdapter", path),
        settings.rules(MEMORY),
        source="the file",
        by="test",
        clock=SystemClock(),
        within_s=PATIENCE_S,
    )
    assert path.failed_count == 1
    assert applied.stored.version == 1
    assert applied.changes
    assert [each["version"] for each in await told(store)] == [1]


@pytest.mark.parametrize("is_carried_out", [True, False])
async def test_a_change_whose_answer_was_lost_is_not_made_over_a_later_one(
    store: StorageAdapter, settings: Settings, *, is_carried_out: bool
) -> None:
    path = Path(store)
    path.fail(lambda name, _argument: name == "commit", carried_out=is_carried_out)
    change = RulesChange(
        cast("StorageAdapter", path), settings.rules(MEMORY), source="the file", by="test", clock=SystemClock()
    )
    with pytest.raises(ConnectionLostError):
        await change.make()
    await settings.apply(store, BRIDGE)
    if is_carried_out:
        with pytest.raises(
            RulesRefusedError, match="became version 1, and meanwhile test has replaced them by version 2"
        ):
            await change.make()
    else:
        assert (await change.make()).stored.version == 2
    assert [each["version"] for each in await told(store)] == [1, 2]


async def test_a_change_of_one_version_is_not_made_to_another(store: StorageAdapter, settings: Settings) -> None:
    async def change(text: str, version: int) -> Applied:
        rules = settings.rules(text)
        return await apply_rules(store, rules, source="it", by="test", clock=SystemClock(), expected_version=version)

    with pytest.raises(RulesConflictError, match=r"have version 0, not 1;"):
        await change(MEMORY, 1)
    assert (await change(MEMORY, 0)).stored.version == 1
    with pytest.raises(RulesConflictError, match=r"have version 1 \(by test\), not 0;"):
        await change(BRIDGE, 0)
    # What is there already is done, so a change may be asked for again.
    again = await change(MEMORY, 0)
    assert (again.stored.version, again.changes) == (1, [])
    assert (await change(BRIDGE, 1)).stored.version == 2


async def test_rules_that_a_broker_does_not_understand_are_not_followed_and_it_says_so(
    store: StorageAdapter, settings: Settings
) -> None:
    async with settings.broker(store, "a", BRIDGE) as served:
        newer = StoredRules(2, {"bridge": [], "routes": [{"from": "a"}]}, 0, "a newer program")
        await store.put_state(RULES_KEY, encode(newer))
        await store.append(RULES_SHARD, [b"{}"])
        with trio.fail_after(PATIENCE_S):
            while (await followers_of(store))["a"] == StoredFollower(1):
                await trio.sleep(0.01)
        said = (await followers_of(store))["a"]
        assert said is not None
        assert said.version == 2
        assert "routes" in said.problem
        client = await served.client()
        await client.publish("plant/a", b"1", 1)
        assert await queued(store) == [("plant/a", b"1")]
        with pytest.raises(ConfigurationError, match="version 2: routes"):
            await settings.apply(store, MEMORY)


async def test_the_shard_of_the_rules_may_be_deleted(store: StorageAdapter, settings: Settings) -> None:
    async with settings.broker(store, "a"):
        await store.delete_shard(RULES_SHARD)
        assert (await settings.apply(store, MEMORY))[1] == {}


async def test_a_program_that_drives_bridges_alone_compares_those_that_it_drives(
    store: StorageAdapter, settings: Settings
) -> None:
    other = BRIDGE.replace("warehouse", "other")
    await settings.apply(store, MEMORY + BRIDGE + other)
    own = settings.rules(BRIDGE)
    assert not (await agree_on_bridges(store, own, ["warehouse"], OnDifference.STOP)).differences
    with pytest.raises(RulesDifferError, match="other is in the store, not in the settings"):
        await agree_on_bridges(store, own, [], OnDifference.STOP)
    assert (await agree_on_bridges(store, RuleSet(), [], OnDifference.STOP)).rules.bridge == settings.rules(
        BRIDGE + other
    ).bridge
