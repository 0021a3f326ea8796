"""Topic names made from a row: ``plant-a/{topic}``. Pure; the codec checks which names are valid."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from broker_adapter.mqtt_codec import MqttProtocolError
from broker_adapter.mqtt_codec.text import shown, topic_name
from broker_adapter.sinks.batch import Row, Value

_MAX_BYTES: Final = 65_535
_PART: Final = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_]*)\}|[^{}]+|[{}]")
_BRACES: Final = {"{{": "{", "}}": "}"}
_AS_TEXT: Final[dict[type, Callable[[Any], str]]] = {
    str: str,
    int: str,
    float: repr,
    # A plus sign would be a wildcard.
    Decimal: lambda value: str(value).replace("E+", "E"),
    bool: lambda value: "true" if value else "false",
}


class TopicTemplate:
    """Makes topic names.

    Args:
        text: ``{column}`` is replaced by a value, ``{{`` and ``}}`` by braces.

    Attributes:
        columns: The columns that it uses.

    Raises:
        ValueError: The text is not a valid template; the message continues "x = 1": "has no topic".
    """

    def __init__(self, text: str) -> None:
        self.columns: tuple[str, ...] = ()
        self._parts: list[tuple[str, bool]] = []
        for part in _PART.finditer(text):
            if part[1] is not None:
                self.columns += (part[1],)
                self._parts.append((part[1], True))
            elif part[0] in ("{", "}"):
                raise ValueError(f"has a single {part[0]!r} at character {part.start()}")
            else:
                self._parts.append((_BRACES.get(part[0], part[0]), False))
        if not self.columns:
            _checked(self._joined({}))
        # The usual template is a single column, whose text is used directly.
        self._only = self.columns[0] if len(self._parts) == 1 and self.columns else None

    def topic(self, row: Row) -> str:
        """The topic name for a row.

        Raises:
            ValueError: The result is not a topic name; the message says why.
        """
        if self._only is not None and isinstance(value := row[self._only], str):
            return _checked(value)
        return _checked(self._joined(row))

    def _joined(self, row: Row) -> str:
        return "".join(_text(part, row[part]) if is_column else part for part, is_column in self._parts)


def _text(column: str, value: Value) -> str:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise ValueError(f"column {column} is bytes that are not UTF-8, so it cannot be in a topic") from None
    write = _AS_TEXT.get(value.__class__)
    if write is None:
        raise ValueError(f"column {column} is {'null' if value is None else 'a structure'}, so it cannot be in a topic")
    return write(value)


def _checked(topic: str) -> str:
    try:
        raw = topic.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the topic cannot be written: {error.reason}") from None
    if not 0 < len(raw) <= _MAX_BYTES:
        raise ValueError(f"the topic has {len(raw)} bytes, it must have 1 to {_MAX_BYTES}")
    try:
        return topic_name(raw)
    except MqttProtocolError as error:
        raise ValueError(f"{shown(topic)} is not a topic name: {error}") from None
