"""A web service decides about the clients of a server, in an order with other methods."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio

from journal.protocol import Op, decode_error
from journal.protocol.errors import AuthenticationError, NotAuthorizedError
from journal.server import login
from journal.server.security import read
from journal.settings.access import RoleTable
from journal.settings.logins import LoginTable, LoginType, OnError
from journal.settings.values import ConfigurationError
from tests.access.issuer import Service, service
from tests.patience import PATIENCE_S
from tests.server.admin.test_api import admin
from tests.server.json_protocol.talking import talking
from tests.server.people import PASSWORD, rule, write_people
from tests.server.serving import Served, serving, small_config

ALLOW = b'{"result": "allow"}'


def settings(path: Path, served: Service, *others: LoginType, **changes: Any) -> dict[str, Any]:
    """Settings with the service first, then other methods."""
    tables = (LoginTable(LoginType.HTTP, url=served.url, **changes), *map(LoginTable, others))
    return {
        **(write_people(path) if others else {}),
        "access__tokens_file": "",
        "access__logins": tables,
        "access__rules": (rule("of/%u/#"), rule("alarms", actions=("read", "append"))),
        "access__audit_file": str(path / "audit.jsonl"),
    }


async def refused(served: Served, **credentials: str) -> str:
    with pytest.raises(AuthenticationError) as told:
        async with served.client(**credentials):
            pass
    return str(told.value)


async def test_the_service_decides_about_passwords_and_tokens_in_all_protocols(tmp_path: Path) -> None:
    answer = b'{"result": "allow", "user": "anna"}'
    async with service(answer) as hook, serving(tmp_path, **settings(tmp_path, hook)) as served:
        async with served.client(user="anna", password="x") as anna:
            handle = await anna.open("of/anna/x")
            for _ in range(50):
                await anna.append_values(handle, b"value")
            with pytest.raises(NotAuthorizedError):
                await anna.open("of/bob/x")
            assert len(hook.requests) == 1, "it is asked for a login, not for a request"
        async with talking(served, token="opaque") as talker:
            await talker.call("describe", shard="of/anna/x")
        async with admin(served, Authorization="Bearer opaque") as client:
            for _ in range(5):
                assert (await client.get("/shard?name=of/anna/x")).status_code == 200
        assert len(hook.requests) == 2, "the answer about the token is cached"


async def test_what_the_service_ignores_is_decided_by_the_next_method(tmp_path: Path) -> None:
    async with service(b'{"result": "ignore"}') as hook:
        async with serving(tmp_path, **settings(tmp_path, hook, LoginType.USERS)) as served:
            async with served.client(user="anna", password=PASSWORD) as anna:
                await anna.open("of/anna/x")
            assert "wrong user name or password" in await refused(served, user="anna", password="wrong")
            hook.answers(b'{"result": "deny"}')
            assert await refused(served, user="bob", password=PASSWORD) == "wrong user name or password"


@pytest.mark.parametrize("on_error", OnError)
async def test_without_an_answer_a_client_is_refused_or_left_to_the_next_method(
    tmp_path: Path, on_error: OnError
) -> None:
    async with service(b"garbage") as hook:
        wanted = settings(tmp_path, hook, LoginType.USERS, on_error=on_error)
        async with serving(tmp_path, **wanted) as served:
            if on_error is OnError.DENY:
                assert "cannot be decided now" in await refused(served, user="anna", password=PASSWORD)
            else:
                async with served.client(user="anna", password=PASSWORD) as anna:
                    await anna.call(Op.PING)
    outcomes = [json.loads(line)["outcome"] for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert outcomes == ["authentication_failed" if on_error is OnError.DENY else "ok"]


async def test_an_answer_gives_roles_and_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "_LOOKED_AT_EVERY_S", 0.01)
    expires_at_s = time.time() + 3600
    now_s = [expires_at_s - 1]
    monkeypatch.setattr(login, "time", SimpleNamespace(time=lambda: now_s[0]))
    answer = {"result": "allow", "roles": ["ops"], "expires": expires_at_s}
    async with service(json.dumps(answer).encode()) as hook:
        of_role = {"access__rules": (*settings(tmp_path, hook)["access__rules"], OF_ROLE), "access__roles": (OPS,)}
        async with (
            serving(tmp_path, **{**settings(tmp_path, hook), **of_role}) as served,
            served.client(user="anna", password="x") as anna,
        ):
            await anna.open("ops/x")
            now_s[0] = expires_at_s
            with trio.fail_after(PATIENCE_S):
                last = (await anna.receive_until_closed())[-1]
            assert isinstance(decode_error(last.status, last.body), AuthenticationError)


OPS = RoleTable("ops")
OF_ROLE = attrs.evolve(rule("ops/#"), role="ops")


async def test_a_reload_ends_logins_of_denied_users_and_of_another_service(tmp_path: Path) -> None:
    async with service(ALLOW) as hook, serving(tmp_path, **settings(tmp_path, hook)) as served:
        async with served.client(user="anna", password="x") as anna, served.client(user="bob", password="x") as bob:
            served.server.take_over(read(small_config(**settings(tmp_path, hook, denied=("anna",)))))
            last = (await anna.receive_until_closed())[-1]
            assert isinstance(decode_error(last.status, last.body), AuthenticationError)
            await bob.call(Op.PING)
            assert await refused(served, user="anna", password="x") == "this user may not log in"
            async with service(ALLOW) as another:
                served.server.take_over(read(small_config(**settings(tmp_path, another))))
                last = (await bob.receive_until_closed())[-1]
                assert isinstance(decode_error(last.status, last.body), AuthenticationError)
                async with served.client(user="bob", password="x"):
                    assert len(another.requests) == 1


@pytest.mark.parametrize(
    ("content", "problem"), [("", "has no token"), ("a\nb", "has no token"), ("ä", "is not ASCII")]
)
async def test_a_token_file_that_cannot_be_used_is_refused(tmp_path: Path, content: str, problem: str) -> None:
    file = tmp_path / "token"
    async with service(ALLOW) as hook:
        with pytest.raises(ConfigurationError, match="cannot be read"):
            read(small_config(**settings(tmp_path, hook, token_file=str(file))))
        file.write_text(content)
        with pytest.raises(ConfigurationError, match=problem):
            read(small_config(**settings(tmp_path, hook, token_file=str(file))))
        file.write_text("right\n")
        known = read(small_config(**settings(tmp_path, hook, token_file=str(file)))).known
        assert known.http is not None
        assert known.http.token == "right"
        assert "right" not in repr(known)
