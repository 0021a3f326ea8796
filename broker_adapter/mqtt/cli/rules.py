"""`journal-broker rules`: the rules of the store; or how they, or those of a configuration, treat a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

from cyclopts import Parameter

from broker_adapter.mqtt.cli.config import STORE_OPTION, ConfigOption, SetOption, load
from command_line.app import JsonOption
from command_line.boundary import UsageError
from command_line.output import Table, write_json, write_table, write_tables, write_text

if TYPE_CHECKING:
    from broker_adapter.adapter import StorageAdapter
    from broker_adapter.mqtt.config import BrokerConfig
    from broker_adapter.mqtt.rules.rule_set import RuleSet
    from broker_adapter.mqtt.rules.stored import StoredFollower, StoredRules

_NOT_KNOWN: Final = "not known"


def rules(
    topics: Annotated[tuple[str, ...], Parameter(name="TOPIC", negative="")] = (),
    /,
    *,
    user: str = "",
    client: str = "",
    config: ConfigOption = None,
    store: str | None = None,
    settings: SetOption = (),
    json: JsonOption = False,
) -> None:
    """Show the rules of all brokers of a store; or how they treat messages to a topic.

    With topics it prints where their messages are stored, who may publish and subscribe, and which bridges take them:
    by the rules of the store; with --config or --set and without --store, by those of the configuration, which needs no
    store. Permissions are always those of the configuration, with the access rule and the role by which they hold.
    Without one, they are not known.

    Args:
        topics: Topics, as clients publish to them; none for the rules of the store.
        user: User name whose permissions are printed; without it, those of an anonymous client.
        client: Client identifier of the publisher.
        store: URL of the store, instead of the configured one.
        json: Print one JSON object per line.
    """
    from broker_adapter.cache_queue.cli.connection import ask
    from broker_adapter.mqtt.rules.rule_set import RuleSet

    if not topics:
        _show_shared(load(config, settings, broker__store=store), json=json)
        return
    wanted = load(config, settings)
    plain = [_parse(topic) for topic in topics]
    if store is None and (config is not None or settings):
        rules = RuleSet.of(wanted)
    else:
        rules = ask(store or wanted.broker.store, _rules_of, STORE_OPTION)
    described = [_describe(wanted, rules, topic, user, client) for topic in plain]
    if config is None and not settings:
        # The defaults allow everything, which may be wrong for every broker of the store.
        unknown = {"publish": _NOT_KNOWN, "publish_by": None, "subscribe": _NOT_KNOWN, "subscribe_by": None}
        described = [{**each, **unknown} for each in described]
    if json:
        for each in described:
            write_json(each)
        return
    write_table(
        ("topic", "QoS 0", "QoS 1", "QoS 2", "shard", "created in", "when away", "publish", "subscribe", "bridges"),
        [
            (
                each["topic"],
                *each["storage"],
                each["shard"],
                each["mode"],
                "gets it" if each["offline"] else "misses it",
                _decision(each, "publish"),
                _decision(each, "subscribe"),
                ", ".join(each["bridges"]) or "none",
            )
            for each in described
        ],
    )


def _show_shared(config: BrokerConfig, *, json: bool) -> None:
    from broker_adapter.cache_queue.cli.connection import ask
    from broker_adapter.mqtt.rules.report import look, report

    stored, followers = ask(config.broker.store, look, STORE_OPTION)
    if json:
        write_json(report(stored, followers))
        return
    write_text(_heading(stored))
    if tables := _tables(stored, followers):
        write_tables(tables)


async def _rules_of(adapter: StorageAdapter) -> RuleSet:
    """The rules of a store; the defaults if it has none."""
    from broker_adapter.mqtt.rules.rule_set import RuleSet
    from broker_adapter.mqtt.rules.store import read_rules

    stored = await read_rules(adapter)
    return RuleSet() if stored is None else stored.rules


def _heading(stored: StoredRules | None) -> str:
    from broker_adapter.mqtt.rules.report import time_text

    if stored is None:
        return "the store has no rules; all brokers use the defaults (`journal-broker apply FILE` stores some)"
    return f"version {stored.version}, since {time_text(stored.applied_us)}, by {stored.applied_by}"


def _tables(stored: StoredRules | None, followers: dict[str, StoredFollower | None]) -> list[Table]:
    from broker_adapter.mqtt.rules.differences import shown_table
    from broker_adapter.mqtt.rules.rule_set import RuleSet

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


def _parse(text: str) -> str:
    """The topic to which messages to ``text`` are published, for example that inside ``$delayed/...``."""
    from broker_adapter.mqtt.model.topics import TopicRefusedError, parse_topic
    from shards.topics.topic_filters import is_filter

    if not text or is_filter(text):
        raise UsageError(f"{text!r} is not a topic that a client can publish to; name one without + and #")
    try:
        topic, _delay_s = parse_topic(text)
    except TopicRefusedError as error:
        raise UsageError(str(error)) from error
    return topic


def _describe(config: BrokerConfig, rules: RuleSet, topic: str, user: str, client: str) -> dict[str, Any]:
    from broker_adapter.mqtt.access.permissions import Principal
    from broker_adapter.mqtt.broker.composition import access_rules_of, mapping_of, storage_rules_of
    from broker_adapter.mqtt.model.storage_rules import Placements, Storage
    from journal.access.authorization import Action
    from shards.topics.topic_filters import matches

    storage_rules, mapping = storage_rules_of(rules), mapping_of(rules)
    of_topic = storage_rules.of_topic(topic)
    placements = Placements(storage_rules, mapping)
    is_stored = any(storage is not Storage.NONE for storage in of_topic.by_qos)
    stored_at = next((qos for qos, storage in enumerate(of_topic.by_qos) if storage is not Storage.NONE), 0)
    who = Principal(client, user)
    access_rules = access_rules_of(config)
    permissions = access_rules.permissions_of(who)
    return {
        "topic": topic,
        "storage": [storage.value for storage in of_topic.by_qos],
        "shard": placements.of(topic, stored_at, client).shard if is_stored else "none of its own",
        "mode": of_topic.mode.value if is_stored else "none",
        "offline": is_stored and of_topic.offline,
        "publish": "allowed" if permissions.may(Action.APPEND, topic) else "denied",
        "publish_by": _decided_by(config, access_rules.deciding(who, Action.APPEND, topic)),
        "subscribe": "allowed" if permissions.may(Action.SUBSCRIBE, topic) else "denied",
        "subscribe_by": _decided_by(config, access_rules.deciding(who, Action.SUBSCRIBE, topic)),
        "bridges": [table.name for table in rules.bridge if any(matches(each, topic) for each in table.topics)],
    }


def _decided_by(config: BrokerConfig, place: int | None) -> str:
    """The access rule that decides, and the role through which it does."""
    if place is None:
        return "default"
    role = config.access.rules[place].role
    return f"rule {place + 1}" + (f", role {role}" if role else "")


def _decision(described: dict[str, Any], action: str) -> str:
    by = described[f"{action}_by"]
    return str(described[action]) if by is None else f"{described[action]} ({by})"
