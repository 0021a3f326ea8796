"""What a server says about itself at its start: who can connect, what they may do, and what goes in clear text."""

from __future__ import annotations

import re
from pathlib import Path

import attrs
import pytest

from journal.cli.main import run
from journal.protocol import Op, messages
from journal.protocol.errors import NotAuthorizedError
from journal.server.exposure import exposure_of
from journal.server.security import read
from journal.settings.access import AccessSection
from journal.settings.server_file import load_config
from tests.server.people import PASSWORD, guarded, rule, write_people
from tests.server.serving import small_config

RULES = """
[[access.roles]]
name = "operators"
principals = ["admin"]
[[access.rules]]
permission = "allow"
role = "operators"
topics = ["#"]
[[access.rules]]
permission = "allow"
principal = "anna"
topics = ["a/#"]
groups = ["billing"]
actions = ["read", "subscribe"]
[[access.rules]]
permission = "deny"
principal = "bob"
topics = ["a/#"]
"""
REMOTE = 'listen.tcp = "0.0.0.0:7420"\n'
CASES = {
    "the defaults": ("", "Only clients on this machine .* They need no login. They may do everything.", False, False),
    "open to all": (
        REMOTE + "access.allow_insecure = true",
        "other machines can connect, to tcp = 0.0.0.0:7420. They need no login. .* Data go in clear text at tcp: ",
        True,
        True,
    ),
    "users without rules": (
        "USERS",
        "Accepted are 3 users of .*, 2 tokens of .*They may do nothing, because no rule allows anything",
        False,
        True,
    ),
    "rules": (
        "USERS" + RULES,
        r"The rules are: role 'operators' everything on #; 'anna' read, subscribe on a/#, group billing; 1 rule",
        False,
        False,
    ),
    "a name that is misspelt": (
        "USERS" + RULES.replace('"bob"', '"bbo"').replace('["admin"]', '["admin", "robot", "amdin"]'),
        r"Rules or roles name 'amdin', 'bbo', but no client can log in with such a name: correct it",
        False,
        True,
    ),
    "clear text": ("USERS" + REMOTE + RULES, "Passwords and data go in clear text at tcp", True, True),
    "anonymous": ("USERSaccess.anonymous = true\n" + RULES, "tokens of .*, clients without credentials", False, False),
    "nothing": ('listen.tcp = ""\nlisten.websocket = ""\nlisten.http = ""', "No client can connect", False, False),
}


def written(path: Path, text: str) -> Path:
    """A configuration file; USERS stands for the files of users and tokens."""
    people = write_people(path)
    users = "".join(f"{name.replace('__', '.')} = '{value}'\n" for name, value in people.items())
    file = path / "journal.toml"
    file.write_text(text.replace("USERS", users))
    return file


@pytest.mark.parametrize(("text", "told", "is_remote", "is_questionable"), CASES.values(), ids=CASES)
def test_it_is_said_what_is_open_to_whom(
    tmp_path: Path, text: str, told: str, is_remote: bool, is_questionable: bool
) -> None:
    config = load_config(written(tmp_path, text))
    exposure = exposure_of(config, read(config).known)
    assert re.search(told, exposure.text), exposure.text
    assert (exposure.is_remote, exposure.is_questionable) == (is_remote, is_questionable), exposure.text
    assert PASSWORD not in exposure.text


def test_a_configuration_is_checked_without_a_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "--check", str(written(tmp_path, "USERS" + RULES))]) == 0
    told = capsys.readouterr().out
    assert "a server can start with it\n" in told
    assert "The rules are: role 'operators' everything on #" in told
    assert run(["config", "--check", str(written(tmp_path, "USERSaccess.tokens = 1"))]) != 0
    assert "[access] tokens = 1" in capsys.readouterr().err


async def test_users_without_rules_may_do_nothing(tmp_path: Path) -> None:
    """They could do everything: a file of users kept out strangers, but no user from the data of another."""
    people = write_people(tmp_path)
    async with guarded(tmp_path) as served, served.client(user="anna", password=PASSWORD) as anna:
        handle = await anna.open("x")
        without = AccessSection(users_file=people["access__users_file"])
        served.server.take_over(read(attrs.evolve(small_config(), access=without)))
        with pytest.raises(NotAuthorizedError):
            await anna.append_values(handle, b"value")
        for op, message in (
            (Op.CREATE_SHARD, messages.CreateShardRequest("y")),
            (Op.LIST_SHARDS, messages.ListShardsRequest()),
            (Op.PRODUCER_OPEN, messages.ProducerOpenRequest("p")),
            (Op.STATUS, None),
        ):
            with pytest.raises(NotAuthorizedError):
                await anna.call(op, message)


async def test_with_any_rule_what_no_rule_allows_is_denied_without_users_too(tmp_path: Path) -> None:
    async with guarded(tmp_path, rule("open/#"), access__anonymous=True) as served, served.client() as client:
        await client.open("open/x")
        with pytest.raises(NotAuthorizedError):
            await client.open("closed")
