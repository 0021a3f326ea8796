"""Where nothing is said all is allowed without users and rules, and nothing with them; and what is open is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_adapter.mqtt.access.permissions import Principal
from broker_adapter.mqtt.broker.composition import access_control_of
from broker_adapter.mqtt.broker.exposure import exposure_of, strangers_of
from broker_adapter.mqtt.config import BrokerConfig, load_broker_config
from journal.access.login_methods import Credentials
from journal.access.users import Cost, PasswordHash, Users

RULE = '\n[[access.rules]]\npermission = "allow"\ntopics = ["open/#"]\n'


def load(tmp_path: Path, text: str) -> BrokerConfig:
    (tmp_path / "users").touch()
    (tmp_path / "broker.toml").write_text(text.replace("USERS", str(tmp_path / "users")))
    return load_broker_config(tmp_path / "broker.toml")


@pytest.mark.parametrize(
    ("text", "may_open", "may_else"),
    [
        ("[access]\nanonymous = true", True, True),
        ("[access]\nanonymous = true" + RULE, True, False),
        ('[access]\nusers_file = "USERS"', False, False),
        ('[access]\nusers_file = "USERS"' + RULE, True, False),
        ('[access]\nusers_file = "USERS"\ndefault = "allow"', True, True),
        ('[access]\nanonymous = true\ndefault = "allow"' + RULE, True, True),
        ('[access]\nanonymous = true\ndefault = "deny"', False, False),
    ],
)
def test_what_no_rule_decides_is_denied_once_users_or_rules_are_configured(
    tmp_path: Path, text: str, may_open: bool, may_else: bool
) -> None:
    access = access_control_of(load(tmp_path, text))
    client = Principal("c", "anna")
    for topic, allowed in (("open/x", may_open), ("else", may_else)):
        assert access.may_publish(client, topic) is allowed
        assert access.may_subscribe(client, topic) is allowed


REMOTE = '[listen]\nmqtt = "0.0.0.0:1883"\n'
SECURE = (
    '[listen]\nmqtt = ""\nmqtts = "0.0.0.0:8883"\n[tls]\ncertificate_file = "c"\nkey_file = "k"\nclient_ca_file = "a"\n'
)


HERE = "Only clients on this machine can connect, to mqtt = 127.0.0.1:1883."
THERE = "Clients on other machines can connect, to mqtt = 0.0.0.0:1883."
IN_CLEAR = "go in clear text at mqtt: listen with mqtts or websockets instead, or on 127.0.0.1."
NOTHING = (
    "They may neither publish nor subscribe, because users are configured and no rule allows anything: add "
    '[[access.rules]], or set access.default = "allow".'
)
BY_RULE = "What they may publish and subscribe to is denied where 1 rule does not decide."
USERS = '[access]\nusers_file = "USERS"\n'


@pytest.mark.parametrize(
    ("text", "users", "told", "is_remote", "is_questionable"),
    [
        (
            "[access]\nanonymous = true",
            0,
            f"{HERE} Clients need no password. They may publish and subscribe to everything.",
            False,
            False,
        ),
        (
            REMOTE + "[access]\nanonymous = true",
            0,
            f"{THERE} Clients need no password. They may publish and subscribe to everything. Messages {IN_CLEAR}",
            True,
            True,
        ),
        (
            REMOTE + USERS + RULE,
            2,
            f"{THERE} Accepted are 2 users of USERS. {BY_RULE} Passwords and messages {IN_CLEAR}",
            True,
            True,
        ),
        (
            SECURE + USERS + RULE,
            1,
            (
                "Clients on other machines can connect, to mqtts = 0.0.0.0:8883. Accepted are 1 user of USERS, and "
                f"need a certificate at TLS listeners. {BY_RULE}"
            ),
            True,
            False,
        ),
        (
            USERS + RULE.replace("open", "%c"),
            1,
            (
                f'{HERE} Accepted are 1 user of USERS. {BY_RULE} Rules give rights to client identifiers ("%c"), and a '
                "client may send any identifier: bind them to users with access.client_ids."
            ),
            False,
            True,
        ),
        (
            USERS + 'client_ids = ["%u"]' + RULE.replace("open", "%c"),
            1,
            f"{HERE} Accepted are 1 user of USERS. {BY_RULE}",
            False,
            False,
        ),
        (USERS, 1, f"{HERE} Accepted are 1 user of USERS. {NOTHING}", False, True),
        (
            '[listen]\nhttp = "0.0.0.0:7424"\n' + USERS + 'anonymous = true\ndefault = "allow"' + RULE,
            1,
            (
                f"{HERE} Anonymous clients and 1 user of USERS are accepted. {BY_RULE.replace('denied', 'allowed')} "
                "Metrics at http are open to everyone."
            ),
            False,
            False,
        ),
    ],
)
def test_a_paragraph_says_what_is_open_to_whom(
    tmp_path: Path, text: str, users: int, told: str, is_remote: bool, is_questionable: bool
) -> None:
    exposure = exposure_of(load(tmp_path, text), users)
    assert exposure.text == told.replace("USERS", str(tmp_path / "users"))
    assert (exposure.is_remote, exposure.is_questionable) == (is_remote, is_questionable)


def test_a_rule_for_a_user_who_does_not_exist_is_named(tmp_path: Path) -> None:
    """A typing error in a rule had no other sign than clients that may do nothing."""
    users = Users({"anna": PasswordHash.of(b"secret", Cost(2, 1, 1))})
    rules = "".join(
        f'[[access.rules]]\npermission = "allow"\nuser = "{name}"\ntopics = ["#"]\n' for name in ("anna", "ana")
    )
    config = load(tmp_path, USERS + "\n" + rules)
    strangers = strangers_of(config, Credentials(users=users))
    assert strangers == ["ana"]
    exposure = exposure_of(config, 1, strangers)
    assert "Rules or roles name 'ana', but no client can log in with such a name" in exposure.text
    assert exposure.is_questionable
    assert strangers_of(config, Credentials(users=users, certificates=True)) == []
