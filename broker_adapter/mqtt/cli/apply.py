"""`journal-broker apply`: store the rules of a file as those of all brokers of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter
from cyclopts.validators import Number

from broker_adapter.cache_queue.cli.connection import ask
from broker_adapter.mqtt.cli.config import STORE_OPTION, load, operator
from broker_adapter.opening import is_shared
from command_line.boundary import UsageError
from command_line.output import note, write_text

if TYPE_CHECKING:
    from broker_adapter.adapter import StorageAdapter
    from broker_adapter.mqtt.rules.rule_set import RuleSet
    from broker_adapter.mqtt.rules.store import Applied
    from broker_adapter.mqtt.rules.stored import StoredFollower

_NOT_FOLLOWED: Final = 1
_ANSWER_S: Final = 30.0
"""How long to retry when the store's answer to the change was lost."""

_Outcome = tuple["Applied", dict[str, "StoredFollower | None"]]


def apply(
    file: Annotated[str, Parameter(name="FILE")],
    /,
    *,
    store: str | None = None,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    expect: Annotated[int | None, Parameter(validator=Number(gte=0))] = None,
    wait: float = 10.0,
) -> int:
    """Make the bridges, storage rules and mapping rules of a file those of all brokers of its store.

    Running brokers apply them at once, without losing a message; the command returns when they do. Other settings in
    the file are ignored, and so is `drive` of a bridge. If the file has an error, nothing changes. Mapping rules can be
    changed only while no broker runs. Exit status 1 if a broker did not apply the rules in time.

    Args:
        file: A configuration file, see conf/broker.toml.
        store: URL of the store, instead of the one in the file.
        dry_run: Print what would change; change nothing.
        expect: Change nothing unless the store has this version of the rules (0 for none), or has these rules already.
        wait: How long to wait for brokers, in seconds.
    """
    from broker_adapter.mqtt.rules.rule_set import RuleSet

    config = load(file, (), broker__store=store)
    if not is_shared(config.broker.store):
        raise UsageError(
            f"{config.broker.store} is the store of a single broker, which reads the rules from its own settings at "
            "each start; change them there, or name a server that brokers share with --store"
        )
    rules = RuleSet.of(config)
    if dry_run:
        changes = ask(config.broker.store, lambda adapter: _differences(adapter, rules, file), STORE_OPTION)
        for line in changes or ["nothing changes"]:
            write_text(line)
        return 0
    applied, behind = ask(config.broker.store, lambda adapter: _apply(adapter, rules, file, expect, wait), STORE_OPTION)
    version = applied.stored.version
    for line in applied.changes:
        write_text(line)
    if not applied.changes:
        write_text(f"version {version} of the rules has all of this already; nothing changed")
    else:
        write_text(f"applied as version {version} of the rules")
    for broker_id, follower in behind.items():
        why = (
            follower.problem
            if follower is not None and follower.problem
            else "it has not answered; is it frozen, or dead?"
        )
        note("journal-broker", f"the broker {broker_id} does not apply version {version}: {why}")
    return _NOT_FOLLOWED if behind else 0


async def _differences(adapter: StorageAdapter, rules: RuleSet, file: str) -> list[str]:
    from broker_adapter.mqtt.rules.differences import differences
    from broker_adapter.mqtt.rules.rule_set import RuleSet
    from broker_adapter.mqtt.rules.store import read_rules

    stored = await read_rules(adapter)
    return differences(RuleSet() if stored is None else stored.rules, rules, "the store", file)


async def _apply(
    adapter: StorageAdapter, rules: RuleSet, file: str, expected_version: int | None, wait_s: float
) -> _Outcome:
    from broker_adapter.mqtt.rules.followers import wait_followed
    from broker_adapter.mqtt.rules.store import apply_rules
    from shards.seams.clock import SystemClock

    applied = await apply_rules(
        adapter,
        rules,
        source=file,
        by=operator(),
        clock=SystemClock(),
        expected_version=expected_version,
        within_s=_ANSWER_S,
    )
    return applied, await wait_followed(adapter, applied.stored.version, timeout_s=wait_s)
