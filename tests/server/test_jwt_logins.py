"""Logins by JSON Web Tokens at a server: in frames, in JSON and over HTTP, with roles, rules and an end."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio

from journal.client import open_client
from journal.protocol import Op, decode_error
from journal.protocol.errors import AuthenticationError, NotAuthorizedError
from journal.server import login
from journal.server.security import read
from journal.settings.access import RoleTable
from journal.settings.logins import LoginTable, LoginType
from journal.settings.values import ConfigurationError
from tests.access.issuer import AUDIENCE, STANDARD, key_set, public_jwk, service, token
from tests.patience import PATIENCE_S
from tests.server.admin.test_api import admin
from tests.server.json_protocol.talking import RefusedError, talking
from tests.server.people import PASSWORD, TOKEN, rule, write_people
from tests.server.serving import serving, small_config

RULES = (
    attrs.evolve(rule("of-role/#"), role="operators"),
    rule("of/%u/#"),
    rule("closed/#", allow=False),
)


def settings(path: Path, *before: LoginTable, **changes: Any) -> dict[str, Any]:
    """Settings with keys in a file."""
    file = path / "keys.json"
    if not file.exists():
        file.write_bytes(key_set(*STANDARD))
    table = LoginTable(LoginType.JWT, **{"keys_file": str(file), "audience": (AUDIENCE,), **changes})
    return {
        "access__logins": (*before, table),
        "access__rules": RULES,
        "access__roles": (RoleTable("operators"),),
        "access__audit_file": str(path / "audit.jsonl"),
    }


async def test_a_token_is_a_login_in_frames_in_json_and_over_http(tmp_path: Path) -> None:
    async with serving(tmp_path, **settings(tmp_path)) as served:
        text = token()
        async with served.client(token=text) as anna:
            await anna.open("of/anna/x")
            with pytest.raises(NotAuthorizedError):
                await anna.open("of/bob/x")
        async with served.client(user="anna", token=text) as anna:
            await anna.open("of/anna/x")
        async with talking(served, token=text) as talker:
            await talker.call("describe", shard="of/anna/x")
            with pytest.raises(RefusedError, match="not_authorized"):
                await talker.call("describe", shard="of/bob/x")
        async with admin(served, Authorization=f"Bearer {text}") as client:
            assert (await client.get("/shard?name=of/anna/x")).status_code == 200
            assert (await client.get("/shard?name=of/bob/x")).status_code == 403
        file = tmp_path / "token"
        file.write_text(text)
        async with open_client(f"journal://127.0.0.1:{served.ports['tcp']}?token_file={file}") as client:
            await client.append("of/anna/x", [b"value"])


async def test_roles_and_rules_of_a_token_hold_after_those_of_the_settings(tmp_path: Path) -> None:
    own = [{"permission": "allow", "topics": ["#"], "actions": ["append", "read"]}]
    async with serving(tmp_path, **settings(tmp_path)) as served:
        async with served.client(token=token(journal_roles=["operators"])) as anna:
            await anna.open("of-role/x")
        async with served.client(token=token()) as anna:
            with pytest.raises(NotAuthorizedError):
                await anna.open("of-role/x")
        async with served.client(token=token(journal_rules=own)) as anna:
            await anna.open("else")
            with pytest.raises(NotAuthorizedError):
                await anna.open("closed/x")
            changed = {**settings(tmp_path), "access__rules": (rule("#", allow=False),), "access__roles": ()}
            served.server.take_over(read(small_config(**changed)))
            with pytest.raises(NotAuthorizedError):
                await anna.open("else again")


REFUSED = {
    "expired": ({"expires_in_s": -100}, "it has expired"),
    "not yet": ({"nbf": 4_000_000_000}, "it is not valid yet"),
    "audience": ({"aud": "else"}, "it is for another audience"),
    "key": ({"key_id": "x"}, "its key (kid) 'x' is not known"),
    "signature": ({"number": 1}, "its signature is wrong"),
    "algorithm": ({"algorithm": "HS256", "key_id": "r"}, "its algorithm is 'HS256', but its key is for RS256"),
    "user": ({"sub": "a:b"}, "it cannot be used: has 'a:b' for a user name"),
    "rules": ({"journal_rules": 1}, "it cannot be used: the rules are not valid"),
}


@pytest.mark.parametrize(("changes", "reason"), REFUSED.values(), ids=REFUSED)
async def test_a_refused_token_is_in_the_log_and_the_audit_log_and_its_client_hears_no_reason(
    tmp_path: Path, changes: dict[str, Any], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving(tmp_path, **settings(tmp_path)) as served:
        text = token(**changes)
        with pytest.raises(AuthenticationError) as told:
            async with served.client(token=text):
                pass
        assert str(told.value) == "the token is not accepted; the log of the server says why"
        async with talking(served, greet=False) as talker:
            with pytest.raises(RefusedError, match="authentication_failed: the token is not accepted"):
                await talker.call("hello", client="test", credentials={"token": text})
        async with admin(served, Authorization=f"Bearer {text}") as client:
            answer = await client.get("/node")
            assert answer.status_code == 401
            assert reason not in answer.text
        assert served.server.guard.access.logins.counts.refused["jwt"] == 3
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [(line["act"], line["outcome"], line["principal"]) for line in lines] == [
        ("login", "authentication_failed", "")
    ] * 3
    log = capsys.readouterr().out
    assert reason in log
    assert text not in log + (tmp_path / "audit.jsonl").read_text()


async def test_a_connection_ends_when_its_token_expires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "_LOOKED_AT_EVERY_S", 0.01)
    expires_at_s = int(time.time()) + 3600
    now_s = [expires_at_s - 1]
    monkeypatch.setattr(login, "time", SimpleNamespace(time=lambda: now_s[0]))
    async with (
        serving(tmp_path, **settings(tmp_path, leeway_s=0)) as served,
        served.client(token=token(exp=expires_at_s)) as anna,
        served.client(token=token(expires_in_s=7200)) as bob,
    ):
        now_s[0] = expires_at_s
        with trio.fail_after(PATIENCE_S):
            last = (await anna.receive_until_closed())[-1]
        error = decode_error(last.status, last.body)
        assert isinstance(error, AuthenticationError)
        assert "expired" in str(error)
        await bob.call(Op.PING)


async def test_a_reload_ends_logins_by_a_key_that_is_gone_and_by_denied_users(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, **settings(tmp_path)) as served,
        served.client(token=token(algorithm="RS256")) as anna,
        served.client(token=token("bob")) as bob,
        served.client(token=token("eve")) as eve,
    ):
        (tmp_path / "keys.json").write_bytes(key_set(public_jwk("ES256", "e")))
        served.server.take_over(read(small_config(**settings(tmp_path, denied=("eve",)))))
        for client in (anna, eve):
            last = (await client.receive_until_closed())[-1]
            assert isinstance(decode_error(last.status, last.body), AuthenticationError)
        await bob.open("of/bob/x")
        with pytest.raises(AuthenticationError, match="may not log in"):
            async with served.client(token=token("eve")):
                pass


async def test_tokens_of_both_kinds_and_passwords_go_together(tmp_path: Path) -> None:
    people = write_people(tmp_path)
    before = (LoginTable(LoginType.TOKENS), LoginTable(LoginType.USERS))
    async with serving(tmp_path, **settings(tmp_path, *before), **people) as served:
        for credentials, name in (
            ({"token": TOKEN}, "robot"),
            ({"token": token("carl")}, "carl"),
            ({"user": "anna", "password": PASSWORD}, "anna"),
            ({"user": "carl", "password": token("carl")}, "carl"),
        ):
            async with served.client(**credentials) as client:
                await client.open(f"of/{name}/x")
        for wrong in ({"token": "opaque"}, {"user": "anna", "password": token("anna")}):
            with pytest.raises(AuthenticationError):
                async with served.client(**wrong):
                    pass


async def test_a_server_fetches_the_keys_of_a_url(tmp_path: Path) -> None:
    async with (
        service(key_set(public_jwk("ES256", "e"))) as issuer,
        serving(tmp_path, **settings(tmp_path, keys_file="", keys_url=issuer.url)) as served,
        served.client(token=token()) as anna,
    ):
        await anna.open("of/anna/x")
        async with admin(served, Authorization=f"Bearer {token(journal_rules=[METRICS])}") as client:
            page = (await client.get(f"http://127.0.0.1:{served.ports['http']}/metrics")).text
        assert "\njournal_login_keys 1.0\n" in page
        assert '\njournal_logins_total{method="jwt"} 2.0\n' in page
        assert "\njournal_login_key_fetches_total 1.0\n" in page


METRICS = {"permission": "allow", "topics": ["$metrics"], "actions": ["read"]}


def test_settings_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text("{}")
    with pytest.raises(ConfigurationError, match=r"keys_file = .* is not of the form"):
        read(small_config(**settings(tmp_path)))
