"""What rules allow, with names in them and without."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.mqtt.access.permissions import Access, Principal
from broker_adapter.mqtt.access.users import AccessControl
from journal.access.authorization import Action
from journal.access.login_methods import Credentials, Logins
from journal.access.rules import AccessRule, AccessRules
from journal.access.users import Cost, PasswordHash, Users
from shards.topics.topic_filters import matches

ANNA = Principal("sensor-1", "anna")


def allow(*filters: str, **details: object) -> AccessRule:
    return AccessRule(True, filters, **details)  # type: ignore[arg-type]


def deny(*filters: str, **details: object) -> AccessRule:
    return AccessRule(False, filters, **details)  # type: ignore[arg-type]


@pytest.mark.parametrize("default", [True, False])
@pytest.mark.parametrize("rule", [None, allow("x"), deny("x"), deny("#", user="bob"), allow("a/%u/#", client_id="x")])
def test_what_no_rule_decides_is_the_default(rule: AccessRule | None, default: bool) -> None:
    permissions = AccessRules([rule] if rule else [], default=default).permissions_of(ANNA)
    assert permissions.may(Action.APPEND, "a") is default
    assert permissions.may(Action.SUBSCRIBE, "a/#") is default


def test_the_first_rule_that_matches_a_topic_decides() -> None:
    rules = AccessRules([allow("a/open/#"), deny("a/#", "b"), allow("#")], default=False)
    permissions = rules.permissions_of(ANNA)
    assert permissions.may(Action.APPEND, "a/open/x")
    assert not permissions.may(Action.APPEND, "a/x")
    assert not permissions.may(Action.APPEND, "b")
    assert permissions.may(Action.APPEND, "c")
    assert not permissions.may(Action.APPEND, "$x/c"), "a wildcard in first place does not match it"


@pytest.mark.parametrize(
    ("topic_filter", "allowed"),
    [
        ("a/b", True),
        ("a/+", True),
        ("a/#", True),
        ("a", True),
        ("+/b", False),
        ("#", False),
        ("c/x", False),
        ("+/x", False),
        ("c/y", True),
        ("c/+", False),
    ],
)
def test_a_subscription_must_be_covered_and_not_touch_what_is_denied(topic_filter: str, allowed: bool) -> None:
    rules = AccessRules([deny("c/x"), allow("a/#", "c/+")], default=False)
    assert rules.permissions_of(ANNA).may(Action.SUBSCRIBE, topic_filter) is allowed


def test_publishing_and_subscribing_are_apart() -> None:
    permissions = AccessRules(
        [allow("out/#", actions=frozenset({Action.APPEND})), allow("in/#", actions=frozenset({Action.SUBSCRIBE}))],
        default=False,
    ).permissions_of(ANNA)
    assert permissions.may(Action.APPEND, "out/x")
    assert not permissions.may(Action.SUBSCRIBE, "out/x")
    assert permissions.may(Action.SUBSCRIBE, "in/x")
    assert not permissions.may(Action.APPEND, "in/x")


def test_a_rule_is_about_its_user_and_its_client_alone() -> None:
    rules = AccessRules(
        [allow("u", user="anna"), allow("c", client_id="sensor-1"), allow("b", user="anna", client_id="x")],
        default=False,
    )
    for principal, allowed in (
        (ANNA, {"u", "c"}),
        (Principal("x", "anna"), {"u", "b"}),
        (Principal("x"), set()),
        (Principal("sensor-1"), {"c"}),
    ):
        assert {topic for topic in "ucb" if rules.permissions_of(principal).may(Action.APPEND, topic)} == allowed


def test_names_stand_in_filters() -> None:
    rules = AccessRules([allow("users/%u/%c/#", "state-%u")], default=False)
    permissions = rules.permissions_of(ANNA)
    assert permissions.may(Action.APPEND, "users/anna/sensor-1/x")
    assert permissions.may(Action.SUBSCRIBE, "users/anna/sensor-1/#")
    assert permissions.may(Action.APPEND, "state-anna")
    assert not permissions.may(Action.APPEND, "users/bob/sensor-1/x")
    assert not permissions.may(Action.SUBSCRIBE, "users/+/sensor-1/#")
    assert not permissions.may(Action.APPEND, "users/%u/%c/x")


@pytest.mark.parametrize("name", ["+", "#", "a/b", "anna+", "/", ""])
@pytest.mark.parametrize("is_user", [True, False])
def test_a_name_brings_no_levels_or_wildcards_in(name: str, is_user: bool) -> None:
    rules = AccessRules([allow("of/%u/x" if is_user else "of/%c/x")], default=False)
    permissions = rules.permissions_of(Principal("c", name) if is_user else Principal(name, "u"))
    for topic_filter in ("of/anna/x", "of/a/b/x", f"of/{name}/x", "of//x", "of/+/x", "of/#"):
        assert not permissions.may(Action.SUBSCRIBE, topic_filter), topic_filter
    for topic in ("of/anna/x", "of/a/b/x", "of//x"):
        assert not permissions.may(Action.APPEND, topic), topic


@pytest.mark.parametrize("name", ["+", "#", "a/b", ""])
def test_what_is_denied_to_a_name_is_denied_to_one_that_cannot_stand_there(name: str) -> None:
    permissions = AccessRules([deny("of-%u/x", "y/%u")], default=True).permissions_of(Principal("c", name))
    assert not permissions.may(Action.APPEND, "of-anna/x")
    assert not permissions.may(Action.APPEND, "y/anna")
    assert permissions.may(Action.APPEND, "z/anna")


def test_a_name_is_not_looked_through_for_placeholders() -> None:
    permissions = AccessRules([allow("of/%u")], default=False).permissions_of(Principal("secret", "%c"))
    assert permissions.may(Action.APPEND, "of/%c")
    assert not permissions.may(Action.APPEND, "of/secret")


def test_a_name_with_a_dollar_reaches_nothing_that_wildcards_do_not() -> None:
    permissions = AccessRules([allow("%u/#")], default=False).permissions_of(Principal("c", "$SYS"))
    assert not permissions.may(Action.SUBSCRIBE, "$SYS/#")


TOPICS = [
    "/".join(levels)
    for count in (1, 2, 3)
    for levels in itertools.product(["a", "anna", "$x", ""], repeat=count)
    if levels != ("",)
]
FILTERS = (
    st.tuples(st.lists(st.sampled_from(["a", "%u", "%c", "+", "$x", ""]), max_size=3), st.booleans())
    .map(lambda parts: "/".join([*parts[0], *(["#"] if parts[1] else [])]))
    .filter(bool)
)
RULES = st.lists(
    st.builds(
        AccessRule,
        allow=st.booleans(),
        topic_filters=st.tuples(FILTERS),
        actions=st.just(frozenset(Action)),
        user=st.sampled_from(["", "anna"]),
        client_id=st.just(""),
    ),
    max_size=4,
)
NAMES = st.sampled_from(["", "anna", "a", "a/a", "+", "#", "$x"])


@given(RULES, st.booleans(), NAMES, NAMES, FILTERS.filter(lambda text: "%" not in text))
def test_who_may_subscribe_to_a_filter_may_have_every_topic_of_it(
    rules: list[AccessRule], default: bool, username: str, client_id: str, topic_filter: str
) -> None:
    """The rules decide on topics; a subscription that is allowed reaches no topic that they would deny."""
    permissions = AccessRules(rules, default=default).permissions_of(Principal(client_id, username))
    if permissions.may(Action.SUBSCRIBE, topic_filter):
        for topic in TOPICS:
            if matches(topic_filter, topic):
                assert permissions.may(Action.APPEND, topic), topic


def test_permissions_are_shared_where_they_are_the_same_for_all() -> None:
    same = AccessRules([allow("a/#")], default=False)
    assert same.permissions_of(ANNA) is same.permissions_of(Principal("x"))
    own = AccessRules([allow("%u")], default=False)
    assert own.permissions_of(ANNA) is own.permissions_of(Principal("sensor-1", "anna"))
    assert own.permissions_of(ANNA) is not own.permissions_of(Principal("x"))


def users() -> Users:
    return Users({"anna": PasswordHash.of(b"secret", Cost(2, 1, 1))})


@pytest.mark.parametrize(
    ("known", "anonymous", "username", "password", "expected"),
    [
        (True, False, "anna", b"secret", "anna"),
        (True, True, "anna", b"secret", "anna"),
        (True, False, "anna", b"wrong", None),
        (True, True, "anna", b"wrong", None),
        (True, True, "anna", None, None),
        (True, False, None, None, None),
        (True, True, None, None, ""),
        (True, True, "", None, ""),
        (True, False, "", b"secret", None),
        (True, False, None, b"secret", None),
        (False, True, "anna", b"anything", ""),
        (False, False, "anna", b"anything", None),
    ],
)
async def test_which_clients_are_accepted_and_as_which_user(
    known: bool, anonymous: bool, username: str | None, password: bytes | None, expected: str | None
) -> None:
    """A user name that cannot be checked is not used: a client could claim any name."""
    logins = Logins(Credentials(users=users() if known else None))
    access: Access = AccessControl(logins, AccessRules(), anonymous=anonymous)
    principal = await access.authenticate("c", username, password, "10.0.0.1:5000")
    assert principal == (None if expected is None else Principal("c", expected))


async def test_a_client_that_guesses_is_slowed_down_from_any_port() -> None:
    access = AccessControl(Logins(Credentials(users=users()), lambda: 0.0), AccessRules(), anonymous=False)
    for port in range(4):
        assert await access.authenticate("c", "anna", b"wrong", f"10.0.0.1:{port}") is None
    assert await access.authenticate("c", "anna", b"secret", "10.0.0.1:5000") is None
    assert await access.authenticate("c", "anna", b"secret", "10.0.0.2:5000") == Principal("c", "anna")


async def test_exchanged_rules_hold_from_the_next_question_on() -> None:
    control = AccessControl(Logins(Credentials()), AccessRules([deny("a")]), anonymous=True)
    assert not control.may_publish(ANNA, "a")
    assert not control.may_subscribe(ANNA, "#")
    control.rules = AccessRules([allow("a")], default=False)
    assert control.may_publish(ANNA, "a")
    assert not control.may_publish(ANNA, "b")
    assert control.may_subscribe(ANNA, "a")
