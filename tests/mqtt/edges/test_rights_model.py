"""Random rules, filters and ways to get messages: a client gets those that it may have, and no others."""

from __future__ import annotations

import itertools

import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from broker_adapter.mqtt.access.permissions import Principal
from broker_adapter.mqtt.access.users import AccessControl
from broker_adapter.mqtt_codec import Properties, ReasonCode
from journal.access.authorization import Action
from journal.access.login_methods import Credentials, Logins
from journal.access.rules import AccessRule, AccessRules
from shards.topics.topic_filters import matches
from tests.mqtt.serving import serving

LASTING = Properties(session_expiry_interval=3600)
READER = Principal("reader")
TOPICS = ["/".join(levels) for count in (1, 2) for levels in itertools.product(["a", "b", "reader"], repeat=count)]
LAST = "zz"
FILTERS = st.sampled_from(
    [f"{first}{rest}" for first in ("a", "b", "+", "%c", "reader") for rest in ("", "/a", "/b", "/+", "/#", "/%c")]
    + ["#"]
)
RULES = st.lists(
    st.builds(
        AccessRule,
        allow=st.booleans(),
        topic_filters=st.tuples(FILTERS),
        actions=st.sampled_from([frozenset(Action), frozenset({Action.SUBSCRIBE}), frozenset({Action.APPEND})]),
        client_id=st.just("reader"),
    ),
    max_size=4,
)


ALWAYS = [AccessRule(True, ("#",), client_id="publisher"), AccessRule(True, (LAST,), client_id="reader")]
WAYS = ("live", "missed", "retained", "replayed")


async def check(rules: AccessRules, topic_filter: str, way: str) -> None:
    """Compare what SUBACK says and which messages come with what the rules say about each topic."""
    permissions = rules.permissions_of(READER)
    allowed = [topic for topic in TOPICS if matches(topic_filter, topic) and permissions.may(Action.SUBSCRIBE, topic)]
    access = AccessControl(Logins(Credentials()), rules, anonymous=True)
    async with serving(access=access) as served:
        reader = await served.client("reader", clean_start=False, properties=LASTING)
        publisher = await served.client("publisher")
        await reader.subscribe(LAST, qos=1)
        if way in ("live", "missed"):
            (code,) = await reader.subscribe(topic_filter, qos=1)
        if way == "missed":
            await reader.leave()
        for topic in TOPICS:
            await publisher.publish(topic, b"x", qos=1, retain=way == "retained")
        if way == "missed":
            reader = await served.client("reader", clean_start=False, properties=LASTING)
        if way in ("retained", "replayed"):
            prefix = "$replay/earliest/" if way == "replayed" else ""
            (code,) = await reader.subscribe(f"{prefix}{topic_filter}", qos=1)
        if code == ReasonCode.NOT_AUTHORIZED:
            # Nothing that the client may have was refused: no rule or default allows the filter as such.
            assert not permissions.may(Action.SUBSCRIBE, topic_filter)
            allowed = []
        found = [(await reader.message()).topic for _ in allowed]
        assert sorted(found) == sorted(allowed)
        await publisher.publish(LAST, b"x", qos=1)
        # A replay is a second subscription, and goes on with what is published then.
        is_replayed = way == "replayed" and code < ReasonCode.UNSPECIFIED_ERROR and matches(topic_filter, LAST)
        for _ in range(1 + is_replayed):
            assert (await reader.message()).topic == LAST
        await reader.silent()


@given(RULES, st.booleans(), FILTERS.filter(lambda text: "%" not in text), st.sampled_from(WAYS))
@settings(deadline=None)
def test_a_client_gets_what_the_rules_allow_and_nothing_else(
    rules: list[AccessRule], default: bool, topic_filter: str, way: str
) -> None:
    trio.run(check, AccessRules([*ALWAYS, *rules], default=default), topic_filter, way)
