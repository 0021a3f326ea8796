"""The rules that a broker starts with: those of the store, or its own if the store has none."""

from __future__ import annotations

from collections.abc import Collection

import attrs

from broker_adapter.adapter import StorageAdapter
from broker_adapter.mqtt.config import OnDifference
from broker_adapter.mqtt.rules.differences import differences
from broker_adapter.mqtt.rules.rule_set import RulesDifferError, RuleSet
from broker_adapter.mqtt.rules.store import Condition, RulesChange, read_rules
from broker_adapter.mqtt.rules.stored import StoredRules
from shards.seams.clock import Clock


@attrs.frozen
class Agreed:
    """The rules with which a program starts.

    Attributes:
        stored: The rules in the store; None if it has none.
        rules: The rules.
        differences: Differences between the program's settings and these rules.
        is_new: Whether this program has just stored them.
    """

    stored: StoredRules | None
    rules: RuleSet
    differences: list[str] = attrs.Factory(list)
    is_new: bool = False


def change_of(adapter: StorageAdapter, own: RuleSet, *, broker_id: str, is_alone: bool, clock: Clock) -> RulesChange:
    """The change that stores the rules of a broker's settings; an argument of `agree_on_rules`."""
    return RulesChange(
        adapter,
        own,
        source="the settings",
        by=broker_id,
        clock=clock,
        condition=Condition(only_first=not is_alone, with_mapping_anyway=True),
    )


async def agree_on_rules(
    adapter: StorageAdapter,
    own: RuleSet,
    *,
    change: RulesChange,
    on_difference: OnDifference,
    is_alone: bool,
) -> Agreed:
    """Compare the rules in a broker's settings with those of the store.

    A broker without rules in its settings uses those of the store. The first broker with rules stores them.

    Args:
        own: The rules in its settings.
        change: Stores these rules, if there are none (`change_of`). Pass the same object when this is called again
            after an error: so a broker finds out that its change was carried out although the answer was lost.
        on_difference: What to do if the two differ.
        is_alone: The store is in this process: no other broker can use it, so the settings decide.

    Raises:
        RulesDifferError: The rules differ, and the broker is configured not to follow the store.
        ConfigurationError: The rules of the store have something unknown to this version of the program.
        StorageError: The store does not answer.
    """
    stored = await read_rules(adapter)
    if stored is None and own.is_default:
        return Agreed(None, own)
    if is_alone or stored is None or change.is_uncertain:
        applied = await change.make()
        stored = applied.stored
        if applied.changes:
            return Agreed(stored, own, is_new=True)
    rules = stored.rules
    if own.is_default:
        return Agreed(stored, rules)
    return Agreed(stored, rules, _compared(stored, rules, own, on_difference))


async def agree_on_bridges(
    adapter: StorageAdapter, own: RuleSet, names: Collection[str], on_difference: OnDifference
) -> Agreed:
    """Compare the bridges in the settings of a program that only drives bridges with those of the store.

    Other rules do not matter to it, and it stores none: while the store has no rules it uses its settings.

    Args:
        own: The rules in its settings.
        names: The bridges that it drives; empty for all.
        on_difference: What to do if the two differ.

    Raises:
        RulesDifferError, ConfigurationError, StorageError: See `agree_on_rules`.
    """
    stored = await read_rules(adapter)
    if stored is None:
        return Agreed(None, own)
    rules = stored.rules
    if not own.bridge:
        return Agreed(stored, rules)
    ours, theirs = (
        RuleSet(bridge=tuple(table for table in each.bridge if not names or table.name in names))
        for each in (own, rules)
    )
    return Agreed(stored, rules, _compared(stored, theirs, ours, on_difference))


def _compared(stored: StoredRules, rules: RuleSet, own: RuleSet, on_difference: OnDifference) -> list[str]:
    found = differences(rules, own, "the store", "the settings")
    if found and on_difference is not OnDifference.FOLLOW:
        raise RulesDifferError(
            f"the settings and the store (rules version {stored.version}, from {stored.applied_by}) differ in rules "
            f"that must be the same at all brokers: {'; '.join(found)}. `journal-broker apply FILE` gives the rules of "
            "that file to all brokers; or remove these tables from the settings, or use the store's rules with "
            f'rules.on_difference = "{OnDifference.FOLLOW}"'
        )
    return found
