"""Topic aliases of one connection: those set by the client, and those set by the broker. Pure."""

from __future__ import annotations

from typing import Final

from broker_adapter.mqtt_codec.errors import ProtocolViolationError
from broker_adapter.mqtt_codec.reason_codes import ReasonCode

_CANDIDATES_PER_ALIAS: Final = 8


class InboundAliases:
    """Topic aliases in PUBLISH packets of the client.

    Args:
        maximum: The highest alias that the client may use; CONNACK announces it.
    """

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._topics: dict[int, str] = {}

    def resolve(self, topic: str, alias: int) -> str:
        """The topic of a PUBLISH with an alias; if the packet has a topic, the alias is set to that topic.

        Raises:
            ProtocolViolationError: The alias is out of range, or is not set.
        """
        if not 0 < alias <= self._maximum:
            raise ProtocolViolationError(
                ReasonCode.TOPIC_ALIAS_INVALID, f"topic alias {alias}: it must be from 1 to {self._maximum}"
            )
        if topic:
            self._topics[alias] = topic
            return topic
        known = self._topics.get(alias)
        if known is None:
            raise ProtocolViolationError(
                ReasonCode.PROTOCOL_ERROR, f"topic alias {alias} is not set on this connection"
            )
        return known


class OutboundAliases:
    """Topic aliases in PUBLISH packets to the client: a topic that is sent twice gets one, as long as some are free.

    Args:
        maximum: How many the client allows.
    """

    __slots__ = ("_aliases", "_candidates", "maximum")

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self._aliases: dict[str, int] = {}
        # Topics that were sent once, oldest first.
        self._candidates: dict[str, None] = {}

    def known(self, topic: str) -> int:
        """The alias that is set for a topic; 0 if there is none."""
        return self._aliases.get(topic, 0)

    def assign(self, topic: str) -> int:
        """Count a topic that is being sent; returns the alias to set with this packet, 0 for none."""
        if len(self._aliases) >= self.maximum:
            return 0
        if topic not in self._candidates:
            if len(self._candidates) >= self.maximum * _CANDIDATES_PER_ALIAS:
                del self._candidates[next(iter(self._candidates))]
            self._candidates[topic] = None
            return 0
        del self._candidates[topic]
        alias = self._aliases[topic] = len(self._aliases) + 1
        if len(self._aliases) >= self.maximum:
            self._candidates.clear()
        return alias


NO_ALIASES: Final = OutboundAliases(0)
"""For all clients that allow none: it never changes."""
