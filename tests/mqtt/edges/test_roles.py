"""Roles: rules for several users at once, and through which role a right comes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker_adapter.mqtt.access.permissions import Principal
from broker_adapter.mqtt.broker.composition import access_rules_of
from broker_adapter.mqtt.cli.main import run
from broker_adapter.mqtt.config import load_broker_config
from journal.access.authorization import Action

ROLES = """
[[access.roles]]
name = "operators"
users = ["anna", "bob"]

[[access.roles]]
name = "guests"
users = ["bob"]

[[access.rules]]
permission = "deny"
topics = ["plant/secret/#"]
role = "guests"

[[access.rules]]
permission = "allow"
topics = ["plant/#", "of/%u/%c"]
role = "operators"

[[access.rules]]
permission = "allow"
topics = ["public/#"]
action = "subscribe"
"""

ROLE = '[[access.roles]]\nname = "a"\nusers = ["x"]\n'


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "broker.toml"
    path.write_text(ROLES)
    return str(path)


@pytest.mark.parametrize(
    ("user", "topic", "allowed"),
    [
        ("anna", "plant/1", True),
        ("bob", "plant/1", True),
        ("carl", "plant/1", False),
        ("", "plant/1", False),
        ("anna", "plant/secret/1", True),
        ("bob", "plant/secret/1", False),
        ("anna", "of/anna/c", True),
        ("anna", "of/bob/c", False),
        ("anna", "of/anna/d", False),
    ],
)
def test_a_rule_for_a_role_holds_for_its_users_alone(config: str, user: str, topic: str, allowed: bool) -> None:
    permissions = access_rules_of(load_broker_config(config)).permissions_of(Principal("c", user))
    assert permissions.may(Action.APPEND, topic) is allowed


@pytest.mark.parametrize(
    ("user", "topic", "publish", "subscribe"),
    [
        ("anna", "plant/1", ("allowed", "rule 2, role operators"), ("allowed", "rule 2, role operators")),
        ("bob", "plant/secret/1", ("denied", "rule 1, role guests"), ("denied", "rule 1, role guests")),
        ("carl", "public/1", ("denied", "default"), ("allowed", "rule 3")),
    ],
)
def test_the_rules_of_a_topic_name_the_rule_and_the_role_that_decide(
    config: str,
    user: str,
    topic: str,
    publish: tuple[str, str],
    subscribe: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["rules", topic, "--config", config, "--user", user, "--client", "c", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["publish"], told["publish_by"]) == publish
    assert (told["subscribe"], told["subscribe_by"]) == subscribe
    assert run(["rules", topic, "--config", config, "--user", user, "--client", "c"]) == 0
    assert f"{publish[0]} ({publish[1]})" in " ".join(capsys.readouterr().out.split())


def test_check_lists_the_roles_with_their_rules_and_users(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "--config", config, "--set", "access.anonymous=true"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "role operators: access rule 2; anna, bob",
        "role guests: access rule 1; bob",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (ROLE, "gives no rights, since no rule is for role 'a'"),
        ('[[access.rules]]\npermission = "allow"\ntopics = "#"\nrole = "b"\n', "is for role 'b', which is not in"),
        (
            ROLE + '[[access.rules]]\npermission = "allow"\ntopics = "#"\nrole = "a"\nuser = "x"\n',
            "is for role 'a' and for user 'x'; make two rules of it",
        ),
        (
            2 * ROLE + '[[access.rules]]\npermission = "allow"\ntopics = "#"\nrole = "a"\n',
            "is called 'a' again; put the users of both into one",
        ),
    ],
)
def test_roles_that_mean_nothing_are_refused(
    tmp_path: Path, text: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "broker.toml"
    path.write_text(text)
    assert run(["check", "--config", str(path)]) == 1
    assert problem in capsys.readouterr().err
