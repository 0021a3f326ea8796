"""Valid topic names, topic filters, client identifiers and user names. Length and UTF-8 are checked before.

Control characters are refused in all four: the standard allows that, and the store has no names with them. Matching of
topics with filters is not done here.
"""

from __future__ import annotations

import functools
import re
from typing import Final

from broker_adapter.mqtt_codec.errors import MqttProtocolError, malformed
from broker_adapter.mqtt_codec.primitives import utf8
from broker_adapter.mqtt_codec.reason_codes import ReasonCode

SHARED: Final = "$share"

_CONTROL: Final = r"\x00-\x1f\x7f-\x9f"
_CONTROL_CHARACTER: Final = re.compile(f"[{_CONTROL}]")
_NOT_IN_TOPIC_NAMES: Final = re.compile(f"[+#{_CONTROL}]")
_REMEMBERED_MAX_BYTES: Final = 256
_SHOWN_MAX_CHARACTERS: Final = 60


def topic_name(raw: bytes) -> str:
    """The topic name, checked; it may be empty, if a topic alias replaces it."""
    return _remembered_topic_name(raw) if len(raw) <= _REMEMBERED_MAX_BYTES else _topic_name(raw)


def _topic_name(raw: bytes) -> str:
    name = utf8(raw)
    found = _NOT_IN_TOPIC_NAMES.search(name)
    if found is not None:
        raise malformed(
            f"topic name has {found[0]!a} at character {found.start()}, "
            "it must have neither wildcards nor control characters"
        )
    return name


# Publishers repeat their topics. The cache is limited to 4,096 names of at most 256 bytes.
_remembered_topic_name: Final = functools.lru_cache(maxsize=4096)(_topic_name)


def topic_filter(raw: bytes) -> str:
    """The topic filter, checked, with the form of a shared subscription."""
    text = utf8(raw)
    _refuse_control_characters("topic filter", text)
    if not text:
        raise malformed("topic filter is empty, it must have at least one character")
    levels = text.split("/")
    if any("+" in level and level != "+" for level in levels):
        raise malformed(f"topic filter {shown(text)} has '+' inside a level, it must be a whole level: 'a/+/b'")
    if "#" in text and (text.count("#") > 1 or levels[-1] != "#"):
        raise malformed(f"topic filter {shown(text)} has '#' that is not the whole last level: 'a/#'")
    if levels[0] == SHARED and (len(levels) < 3 or levels[1] in ("", "+", "#") or levels[2:] == [""]):
        raise malformed(f"topic filter {shown(text)} must have the form '$share/<name>/<topic filter>'")
    return text


def is_shared(filter_text: str) -> bool:
    """Whether a checked topic filter is a shared subscription."""
    return filter_text.startswith(SHARED + "/")


def client_identifier(raw: bytes) -> str:
    """The client identifier, checked; it may be empty, if the server is to assign one."""
    try:
        text = utf8(raw)
        _refuse_control_characters("client identifier", text)
    except MqttProtocolError as error:
        raise MqttProtocolError(ReasonCode.CLIENT_IDENTIFIER_NOT_VALID, str(error)) from None
    return text


def user_name(raw: bytes) -> str:
    """The user name, checked."""
    text = utf8(raw)
    _refuse_control_characters("user name", text)
    return text


def shown(text: str) -> str:
    """Text of a peer for an error message, shortened; it may be 64 KiB long."""
    return f"{text!a}" if len(text) <= _SHOWN_MAX_CHARACTERS else f"{text[:_SHOWN_MAX_CHARACTERS]!a}..."


def shortened(text: str) -> str:
    """The same for a field of the log, without quotes."""
    return text if len(text) <= _SHOWN_MAX_CHARACTERS else f"{text[:_SHOWN_MAX_CHARACTERS]}..."


def _refuse_control_characters(what: str, text: str) -> None:
    found = _CONTROL_CHARACTER.search(text)
    if found is not None:
        raise malformed(f"{what} has {found[0]!a} at character {found.start()}, it must not have control characters")
