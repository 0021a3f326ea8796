"""The meaning of topic names and filters of clients (shared, replay, delayed), and which ones are refused. Pure.

Their syntax (wildcards, UTF-8) is checked by the codec; `storage_rules` says where the records of a topic are stored.
"""

from __future__ import annotations

import re
from typing import Final

import attrs

from broker_adapter.errors import InvalidNameError
from broker_adapter.mqtt_codec.reason_codes import ReasonCode
from broker_adapter.mqtt_codec.text import shown
from shards.topics.names import BROKER_PREFIX, QUEUE_PREFIX
from shards.topics.topic_filters import validate_filter

MAX_DELAY_S: Final = 0xFFFF_FFFF

_SHARE: Final = "$share"
_REPLAY: Final = "$replay"
_DELAYED: Final = "$delayed"
_SYSTEM: Final = "$SYS"
_OWN: Final = (BROKER_PREFIX.removesuffix("/"), QUEUE_PREFIX.removesuffix("/"))

_DELAY: Final = re.compile(r"[0-9]{1,10}")


class TopicRefusedError(Exception):
    """No client may use this topic or filter.

    Attributes:
        reason_code: Reason code of PUBACK, PUBREC, SUBACK or DISCONNECT.
    """

    def __init__(self, reason_code: ReasonCode, message: str) -> None:
        super().__init__(message)
        self.reason_code = reason_code


@attrs.frozen(slots=True)
class FilterRequest:
    """The parts of a topic filter in SUBSCRIBE or UNSUBSCRIBE.

    Attributes:
        topic_filter: The filter that topics are matched with.
        group: Name of the shared subscription, empty if it is not shared.
        replay_from: Start of the replay, as the client wrote it; None without replay.
    """

    topic_filter: str
    group: str = ""
    replay_from: str | None = None

    @property
    def is_system(self) -> bool:
        """Whether it is for statistics of this broker (`$SYS`), which are not stored."""
        return is_system(self.topic_filter)


def is_system(topic: str) -> bool:
    """Whether a topic or filter is below `$SYS`."""
    return topic.startswith("$SYS/") or topic == _SYSTEM


def parse_filter(text: str) -> FilterRequest:
    """Parse a topic filter.

    Raises:
        TopicRefusedError: No client can subscribe to it.
    """
    request = _prefixed(text) if text.startswith("$") else FilterRequest(text)
    topic_filter = request.topic_filter
    try:
        validate_filter(topic_filter)
    except InvalidNameError as error:
        raise TopicRefusedError(ReasonCode.TOPIC_FILTER_INVALID, str(error)) from error
    first = topic_filter.partition("/")[0]
    if first in _OWN:
        raise TopicRefusedError(
            ReasonCode.NOT_AUTHORIZED, f"{shown(topic_filter)}: the broker keeps its own state there"
        )
    if first in (_SHARE, _REPLAY, _DELAYED) or (first == _SYSTEM and request.topic_filter != text):
        raise TopicRefusedError(
            ReasonCode.TOPIC_FILTER_INVALID,
            f"{shown(text)}: {shown(first)} is not allowed here; use a plain topic filter",
        )
    return request


def _prefixed(text: str) -> FilterRequest:
    prefix, _, rest = text.partition("/")
    if prefix not in (_SHARE, _REPLAY):
        return FilterRequest(text)
    name, slash, topic_filter = rest.partition("/")
    if not name or not slash or not topic_filter or (prefix == _SHARE and ("+" in name or "#" in name)):
        shape = "$share/<group>/<filter>" if prefix == _SHARE else "$replay/<from>/<filter>"
        raise TopicRefusedError(ReasonCode.TOPIC_FILTER_INVALID, f"{shown(text)} is not of the form {shape}")
    return FilterRequest(topic_filter, group=name) if prefix == _SHARE else FilterRequest(topic_filter, "", name)


def parse_topic(text: str) -> tuple[str, int | None]:
    """The topic that a PUBLISH is for, and the delay of its publication in seconds; None for no delay.

    Raises:
        TopicRefusedError: No client can publish to it.
    """
    if not text.startswith("$"):
        return text, None
    first, _, rest = text.partition("/")
    if first != _DELAYED:
        return _publishable(first, text), None
    delay, _, topic = rest.partition("/")
    if not topic or _DELAY.fullmatch(delay) is None or int(delay) > MAX_DELAY_S:
        raise TopicRefusedError(
            ReasonCode.TOPIC_NAME_INVALID,
            f"{shown(text)} is not of the form $delayed/<seconds up to {MAX_DELAY_S}>/<topic>",
        )
    inner = topic.partition("/")[0]
    if inner == _DELAYED:
        raise TopicRefusedError(ReasonCode.TOPIC_NAME_INVALID, f"{shown(text)} has two $delayed prefixes")
    return _publishable(inner, topic), int(delay)


def _publishable(first_level: str, topic: str) -> str:
    if first_level.startswith("$"):
        # Topics that begin with $ are reserved for servers (section 4.7.2 of the standard).
        raise TopicRefusedError(
            ReasonCode.NOT_AUTHORIZED, f"{shown(topic)}: clients cannot publish below {shown(first_level)}"
        )
    return topic
