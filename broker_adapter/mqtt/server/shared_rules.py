"""A broker's part in the rules of its store: agreeing on them at the start, and applying each change."""

from __future__ import annotations

from typing import Final

import structlog
import trio

from broker_adapter.adapter import StorageAdapter
from broker_adapter.bridge.bridges import Bridges
from broker_adapter.bridge.spec import BridgeSpec
from broker_adapter.errors import DiskFullError
from broker_adapter.mqtt.broker.broker import Broker
from broker_adapter.mqtt.broker.composition import BridgeSpecs, storage_rules_of
from broker_adapter.mqtt.config import BrokerConfig
from broker_adapter.mqtt.publish.store_changes import until_reached
from broker_adapter.mqtt.rules.agreement import agree_on_rules, change_of
from broker_adapter.mqtt.rules.differences import differences
from broker_adapter.mqtt.rules.follower import Followed, RulesFollower
from broker_adapter.mqtt.rules.followers import wait_followed
from broker_adapter.mqtt.rules.rule_set import MappingChangedError, RuleSet
from broker_adapter.mqtt.rules.stored import StoredRules
from broker_adapter.opening import is_shared
from shards.seams.clock import Clock, SystemClock

_OTHERS_FOLLOW_S: Final = 5.0

log: structlog.stdlib.BoundLogger = structlog.get_logger("broker")


class SharedRules:
    """The rules that one broker applies.

    Args:
        adapter: The store.
        config: The broker's settings.
        broker_id: Unique among the brokers of the store.
    """

    def __init__(
        self, adapter: StorageAdapter, config: BrokerConfig, broker_id: str, *, clock: Clock | None = None
    ) -> None:
        self._adapter = adapter
        self._config = config
        self._broker_id = broker_id
        self._clock = clock or SystemClock()
        self._specs = BridgeSpecs.of(config)
        self._own = RuleSet.of(config)
        self._rules = self._own
        self._stored: StoredRules | None = None
        self._follower: RulesFollower | None = None

    @property
    def followed(self) -> Followed:
        """The rules that this broker applies, as reported to the store."""
        version = 0 if self._stored is None else self._stored.version
        return Followed(version, "" if self._follower is None else self._follower.problem)

    async def agree(self) -> RuleSet:
        """The rules to start with; retries as long as the store cannot be reached; see `agree_on_rules`.

        Rules that this broker stores are applied by the others when this returns, except by those that do not answer.
        """
        is_alone = not is_shared(self._config.broker.store)
        change = change_of(self._adapter, self._own, broker_id=self._broker_id, is_alone=is_alone, clock=self._clock)
        agreed = await until_reached(
            lambda: agree_on_rules(
                self._adapter,
                self._own,
                change=change,
                on_difference=self._config.rules.on_difference,
                is_alone=is_alone,
            ),
            also_after=(DiskFullError,),
        )
        self._rules, self._stored = agreed.rules, agreed.stored
        version = 0 if agreed.stored is None else agreed.stored.version
        if agreed.differences:
            log.warning(
                "these settings differ from the rules of the store, which apply", differences=agreed.differences
            )
        if agreed.is_new and not is_alone:
            log.info("the rules of these settings are now those of the store", version=version)
            behind = await until_reached(
                lambda: wait_followed(self._adapter, version, timeout_s=_OTHERS_FOLLOW_S, but=self._broker_id)
            )
            if behind:
                log.warning("brokers do not apply the new rules yet", version=version, brokers=sorted(behind))
        return self._rules

    @property
    def bridge_specs(self) -> list[BridgeSpec]:
        """The bridges of these rules."""
        return self._specs.of_rules(self._rules)

    async def follow(
        self, broker: Broker, bridges: Bridges, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Have the broker and its bridges apply each change of the rules until cancelled; see `RulesFollower.run`.

        Raises:
            MappingChangedError: The broker must restart to apply the rules.
        """

        async def change(stored: StoredRules) -> None:
            rules = stored.rules
            if rules.mapping != self._rules.mapping:
                raise MappingChangedError(
                    f"the mapping rules of the store were changed (version {stored.version}, by {stored.applied_by}) "
                    "while this broker ran; it must restart to apply them"
                )
            await bridges.change(self._specs.of_rules(rules))
            broker.replace_rules(storage_rules_of(rules))
            changes = differences(self._rules, rules, "the earlier rules", "the new rules")
            log.info("rules changed", version=stored.version, by=stored.applied_by, changes=changes)
            if not self._own.is_default and (own := differences(rules, self._own, "the store", "these settings")):
                log.warning("these settings differ from the rules of the store, which apply", differences=own)
            self._rules, self._stored = rules, stored

        self._follower = RulesFollower(self._adapter, self._stored, change, self._broker_id)
        await self._follower.run(task_status=task_status)
