"""Which rules a broker starts with: those of the store, or its own if it is the first one that has any."""

from __future__ import annotations

from collections.abc import Collection

import attrs

from broker_adapter.adapter import StorageAdapter
from broker_adapter.mqtt.config import OnDifference
from broker_adapter.mqtt.rules.differences import differences
from broker_adapter.mqtt.rules.errors import RulesDifferError
from broker_adapter.mqtt.rules.rule_set import RuleSet
from broker_adapter.mqtt.rules.store import RulesChange, read_rules
from broker_adapter.mqtt.rules.stored import StoredRules
from shards.seams.clock import Clock


@attrs.frozen
class Agreed:
    """The rules with which a program starts.

    Attributes:
        stored: As they lie in the store; None if it has none.
        rules: The rules.
        differences: In what the program's settings differ from them.
        is_new: Whether this program put them there just now.
    """

    stored: StoredRules | None
    rules: RuleSet
    differences: list[str] = attrs.Factory(list)
    is_new: bool = False


def change_of(adapter: StorageAdapter, own: RuleSet, *, broker_id: str, is_alone: bool, clock: Clock) -> RulesChange:
    """The change by which a broker puts the rules in its settings into the store, for `agree_on_rules`."""
    return RulesChange(
        adapter,
        own,
        source="the settings",
        by=broker_id,
        clock=clock,
        only_first=not is_alone,
        with_mapping_anyway=True,
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

    A broker whose settings have none goes by the store. The first broker that has rules puts them there.

    Args:
        own: The rules in its settings.
        change: Puts these rules there, if there are none (`change_of`). It is the same object when this is called again
            after an error: so a broker finds out that its change was made although the answer was lost.
        on_difference: What to do if the two differ.
        is_alone: The store lies in this process: no other broker can have it, so the settings decide.

    Raises:
        RulesDifferError: The rules differ, and the broker is not to follow.
        ConfigurationError: The rules of the store are of a newer version, which this program does not know.
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

    Other rules do not concern it, and it puts none there: while the store has none it goes by its settings.

    Args:
        own: The rules in its settings.
        names: The bridges that it drives; none for all.
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
            f"the settings given here and the store (rules version {stored.version}, from {stored.applied_by}) differ "
            f"in rules that must be the same at all brokers: {'; '.join(found)}. `journal-broker apply FILE` gives the "
            "rules of that file to all brokers; or take these tables out of the settings, or have the store's rules "
            f'hold with rules.on_difference = "{OnDifference.FOLLOW}"'
        )
    return found
