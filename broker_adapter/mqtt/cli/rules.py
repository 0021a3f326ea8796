"""`journal-broker rules`: what the configured rules make of a topic, without a store or a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from broker_adapter.mqtt.cli.settings_options import ConfigOption, SetOption, load
from command_line.app import JsonOption
from command_line.boundary import UsageError
from command_line.output import write_json, write_table

if TYPE_CHECKING:
    from broker_adapter.mqtt.config import BrokerConfig


def rules(
    topics: Annotated[tuple[str, ...], Parameter(name="TOPIC", negative="")],
    /,
    *,
    user: str = "",
    client: str = "",
    config: ConfigOption = None,
    settings: SetOption = (),
    json: JsonOption = False,
) -> None:
    """Say what becomes of messages to a topic: where they are stored, who may have them, which bridges take them.

    Args:
        topics: Topics, as clients publish to them.
        user: User name for which access is told; without it, that of an anonymous client.
        client: Client identifier of the publisher.
        json: Print a JSON object a line.
    """
    if not topics:
        raise UsageError("rules needs a topic, for example plant/line1/temperature")
    told = [_tell(load(config, settings), topic, user, client) for topic in topics]
    if json:
        for each in told:
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
                each["publish"],
                each["subscribe"],
                ", ".join(each["bridges"]) or "none",
            )
            for each in told
        ],
    )


def _tell(config: BrokerConfig, text: str, user: str, client: str) -> dict[str, Any]:
    from broker_adapter.mqtt.assembly import access_rules_of, mapping_of, storage_rules_of
    from broker_adapter.mqtt.permissions import Principal
    from broker_adapter.mqtt.storage_rules import Placements, Storage
    from broker_adapter.mqtt.topics import TopicRefusedError, parse_topic
    from journal.access.principal import Action
    from shards.topic_filters import is_filter, matches

    if not text or is_filter(text):
        raise UsageError(f"{text!r} is no topic, to which a client could publish; name one without + and #")
    try:
        topic, _delay_s = parse_topic(text)
    except TopicRefusedError as error:
        raise UsageError(str(error)) from error
    storage_rules, mapping = storage_rules_of(config), mapping_of(config)
    of_topic = storage_rules.of_topic(topic)
    placements = Placements(storage_rules, mapping)
    is_stored = any(storage is not Storage.NONE for storage in of_topic.by_qos)
    stored_at = next((qos for qos, storage in enumerate(of_topic.by_qos) if storage is not Storage.NONE), 0)
    permissions = access_rules_of(config).permissions_of(Principal(client, user))
    return {
        "topic": topic,
        "storage": [storage.value for storage in of_topic.by_qos],
        "shard": placements.of(topic, stored_at, client).shard if is_stored else "none of its own",
        "mode": of_topic.mode.value if is_stored else "none",
        "offline": is_stored and of_topic.offline,
        "publish": "allowed" if permissions.may(Action.APPEND, topic) else "denied",
        "subscribe": "allowed" if permissions.may(Action.SUBSCRIBE, topic) else "denied",
        "bridges": [table.name for table in config.bridge if any(matches(each, topic) for each in table.topics)],
    }
