"""Output of `journal-broker rules` without a topic: the rules of the store, and which version each broker applies."""

from __future__ import annotations

from broker_adapter.adapter import StorageAdapter
from broker_adapter.mqtt.rules.differences import shown_table
from broker_adapter.mqtt.rules.report import time_text
from broker_adapter.mqtt.rules.rule_set import RuleSet
from broker_adapter.mqtt.rules.store import read_rules
from broker_adapter.mqtt.rules.stored import StoredFollower, StoredRules
from command_line.output import Table


async def rules_of(adapter: StorageAdapter) -> RuleSet:
    """The rules of a store; the defaults if it has none."""
    stored = await read_rules(adapter)
    return RuleSet() if stored is None else stored.rules


def heading(stored: StoredRules | None) -> str:
    """The first line."""
    if stored is None:
        return "the store has no rules; all brokers use the defaults (`journal-broker apply FILE` stores some)"
    return f"version {stored.version}, since {time_text(stored.applied_us)}, by {stored.applied_by}"


def tables(stored: StoredRules | None, followers: dict[str, StoredFollower | None]) -> list[Table]:
    """The rules, and the brokers, as tables."""
    rules = RuleSet() if stored is None else stored.rules
    shown = [("[broker]", "", "{ offline = false }")] if not rules.broker.offline else []
    for name in ("storage", "mapping", "bridge"):
        shown += [(f"[[{name}]]", str(number), shown_table(row)) for number, row in enumerate(getattr(rules, name), 1)]
    version = 0 if stored is None else stored.version
    found = [Table(("section", "number", "rule"), shown, numeric=("number",))] if shown else []
    if followers:
        rows = [(broker_id, *_state(follower, version)) for broker_id, follower in followers.items()]
        found.append(Table(("broker", "goes by version", "why not by the newest"), rows, numeric=("goes by version",)))
    return found


def _state(follower: StoredFollower | None, version: int) -> tuple[str, str]:
    if follower is None:
        return "", "no report yet, or a program too old for shared rules"
    if follower.problem:
        return "an older one", follower.problem
    return str(follower.version), "" if follower.version >= version else "no report yet"
