"""What may stand in a topic name and in a topic filter (section 4.7 of the standard), shared ones included."""

from __future__ import annotations

from broker_adapter.mqtt.codec.errors import MqttProtocolError, malformed
from broker_adapter.mqtt.codec.reason_codes import ReasonCode


def check_topic(topic: str) -> None:
    """Raise `MqttProtocolError` if this is no topic name that a message can have."""
    if not topic:
        raise malformed("the topic name is empty")
    if "+" in topic or "#" in topic:
        raise MqttProtocolError(ReasonCode.MALFORMED_PACKET, f"the topic name {topic[:60]!a} has a wildcard")


def check_filter(topic_filter: str) -> None:
    """Raise `MqttProtocolError` if this is no topic filter."""
    if not topic_filter:
        raise malformed("a topic filter is empty")
    plain = topic_filter
    if topic_filter.startswith("$share/"):
        _, name, *rest = topic_filter.split("/", 2)
        if not name or "+" in name or "#" in name or not rest or not rest[0]:
            raise malformed(f"{topic_filter[:60]!a} is no shared subscription, which has the form $share/name/filter")
        plain = rest[0]
    if "#" not in plain and "+" not in plain:
        return
    levels = plain.split("/")
    for number, level in enumerate(levels):
        if "#" in level and (level != "#" or number != len(levels) - 1):
            raise malformed(f"the topic filter {topic_filter[:60]!a} has a '#' that is not its last level")
        if "+" in level and level != "+":
            raise malformed(f"the topic filter {topic_filter[:60]!a} has a '+' that is not a whole level")
