"""Topic aliases, in both directions."""

from __future__ import annotations

import pytest

from broker_adapter.mqtt.model.topic_aliases import InboundAliases, OutboundAliases
from broker_adapter.mqtt_codec.errors import ProtocolViolationError
from broker_adapter.mqtt_codec.reason_codes import ReasonCode


def test_an_alias_stands_for_the_topic_that_it_was_last_sent_with() -> None:
    aliases = InboundAliases(2)
    assert aliases.resolve("a", 1) == "a"
    assert aliases.resolve("", 1) == "a"
    assert aliases.resolve("b", 1) == "b"
    assert aliases.resolve("", 1) == "b"


@pytest.mark.parametrize(
    ("maximum", "alias", "reason_code"),
    [
        (2, 0, ReasonCode.TOPIC_ALIAS_INVALID),
        (2, 3, ReasonCode.TOPIC_ALIAS_INVALID),
        (0, 1, ReasonCode.TOPIC_ALIAS_INVALID),
        (2, 2, ReasonCode.PROTOCOL_ERROR),
    ],
)
def test_an_alias_that_means_nothing_is_refused(maximum: int, alias: int, reason_code: ReasonCode) -> None:
    aliases = InboundAliases(maximum)
    with pytest.raises(ProtocolViolationError) as refused:
        aliases.resolve("", alias)
    assert refused.value.reason_code == reason_code


def test_a_topic_gets_an_alias_when_it_comes_again_and_keeps_it() -> None:
    aliases = OutboundAliases(2)
    assert [aliases.assign(topic) for topic in ("a", "b", "a", "b", "c", "c")] == [0, 0, 1, 2, 0, 0]
    assert [aliases.known(topic) for topic in ("a", "b", "c")] == [1, 2, 0]


def test_a_client_that_allows_no_alias_gets_none() -> None:
    aliases = OutboundAliases(0)
    assert [aliases.assign("a"), aliases.assign("a"), aliases.known("a")] == [0, 0, 0]


def test_topics_that_never_come_again_are_forgotten() -> None:
    aliases = OutboundAliases(1)
    for number in range(20):
        assert aliases.assign(f"once/{number}") == 0
    assert aliases.assign("once/0") == 0
    assert aliases.assign("once/19") == 1
