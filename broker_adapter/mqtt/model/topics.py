"""What the topic names and filters of clients ask for, and which of them are refused. Pure.

How they are spelt (wildcards, UTF-8) is the codec's business, where the records of a topic lie that of `storage_rules`.
"""

from __future__ import annotations

import re
from typing import Final

import attrs

from broker_adapter.errors import InvalidNameError
from broker_adapter.mqtt_codec.reason_codes import ReasonCode
from shards.topics.reserved_names import BROKER_PREFIX, QUEUE_PREFIX
from shards.topics.topic_filters import validate_filter

MAX_DELAY_S: Final = 0xFFFF_FFFF

_SHARE: Final = "$share"
_REPLAY: Final = "$replay"
_DELAYED: Final = "$delayed"
_SYSTEM: Final = "$SYS"
_OWN: Final = (BROKER_PREFIX.removesuffix("/"), QUEUE_PREFIX.removesuffix("/"))

_DELAY: Final = re.compile(r"[0-9]{1,10}")


class TopicRefusedError(Exception):
    """A client may not use this topic or filter, whoever it is.

    Attributes:
        reason_code: What PUBACK, SUBACK or DISCONNECT says.
    """

    def __init__(self, reason_code: ReasonCode, message: str) -> None:
        super().__init__(message)
        self.reason_code = reason_code


@attrs.frozen(slots=True)
class FilterRequest:
    """What a topic filter in SUBSCRIBE or UNSUBSCRIBE asks for.

    Attributes:
        topic_filter: What topics are matched with.
        group: Name of the shared subscription, empty if it is not shared.
        replay_from: Where to begin among what is stored, as the client wrote it; None without replay.
    """

    topic_filter: str
    group: str = ""
    replay_from: str | None = None

    @property
    def is_system(self) -> bool:
        """Whether it is about this broker's own statistics, which are not stored."""
        return is_system(self.topic_filter)


def is_system(topic: str) -> bool:
    """Whether a topic or filter is one of this broker's statistics."""
    return topic.startswith("$SYS/") or topic == _SYSTEM


def parse_filter(text: str) -> FilterRequest:
    """Read a topic filter.

    Raises:
        TopicRefusedError: It cannot be subscribed to.
    """
    request = _prefixed(text) if text.startswith("$") else FilterRequest(text)
    topic_filter = request.topic_filter
    try:
        validate_filter(topic_filter)
    except InvalidNameError as error:
        raise TopicRefusedError(ReasonCode.TOPIC_FILTER_INVALID, str(error)) from error
    first = topic_filter.partition("/")[0]
    if first in _OWN:
        raise TopicRefusedError(ReasonCode.NOT_AUTHORIZED, f"{topic_filter!a}: the broker keeps its own state there")
    if first in (_SHARE, _REPLAY, _DELAYED) or (first == _SYSTEM and request.topic_filter != text):
        raise TopicRefusedError(
            ReasonCode.TOPIC_FILTER_INVALID, f"{text!a}: {first} cannot stand there; write a plain topic filter"
        )
    return request


def _prefixed(text: str) -> FilterRequest:
    prefix, _, rest = text.partition("/")
    if prefix not in (_SHARE, _REPLAY):
        return FilterRequest(text)
    name, slash, topic_filter = rest.partition("/")
    if not name or not slash or not topic_filter or (prefix == _SHARE and ("+" in name or "#" in name)):
        shape = "$share/<group>/<filter>" if prefix == _SHARE else "$replay/<from>/<filter>"
        raise TopicRefusedError(ReasonCode.TOPIC_FILTER_INVALID, f"{text!a} is not of the form {shape}")
    return FilterRequest(topic_filter, group=name) if prefix == _SHARE else FilterRequest(topic_filter, "", name)


def parse_topic(text: str) -> tuple[str, int | None]:
    """The topic that a PUBLISH is for, and after how many seconds it is to be published; None for at once.

    Raises:
        TopicRefusedError: Nobody may publish there.
    """
    if not text.startswith("$"):
        return text, None
    first, _, rest = text.partition("/")
    if first != _DELAYED:
        return _publishable(first, text), None
    delay, _, topic = rest.partition("/")
    if not topic or _DELAY.fullmatch(delay) is None or int(delay) > MAX_DELAY_S:
        raise TopicRefusedError(
            ReasonCode.TOPIC_NAME_INVALID, f"{text!a} is not of the form $delayed/<seconds up to {MAX_DELAY_S}>/<topic>"
        )
    inner = topic.partition("/")[0]
    if inner == _DELAYED:
        raise TopicRefusedError(ReasonCode.TOPIC_NAME_INVALID, f"{text!a} is delayed twice")
    return _publishable(inner, topic), int(delay)


def _publishable(first_level: str, topic: str) -> str:
    if first_level.startswith("$"):
        # What begins so is for servers to use, not for clients to talk to each other (section 4.7.2 of the standard).
        raise TopicRefusedError(ReasonCode.NOT_AUTHORIZED, f"{topic!a}: clients cannot publish below {first_level}")
    return topic
