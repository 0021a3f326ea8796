"""A web service decides about clients: what it is asked, what its answers mean, and what happens without one."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import pytest
import trio

from journal.access.authorization import Action
from journal.access.circuit_breaker import CircuitBreaker
from journal.access.http_login import HttpLogin, HttpLoginSettings
from journal.access.logins import Attempt, Identity
from journal.protocol.errors import AuthenticationError
from journal.settings.logins import OnError
from journal.telemetry.http_pages import Reply, Request
from tests.access.issuer import Service, service
from tests.mqtt.edges.listening import logged
from tests.patience import PATIENCE_S

ALLOW = b'{"result": "allow"}'
DENY = b'{"result": "deny"}'
IGNORE = b'{"result": "ignore"}'
ANNA = Attempt("10.0.0.1:5000", "anna", b"secret", client_id="c", certificate_name="gateway")


@asynccontextmanager
async def asking(served: Service, clock: Any = trio.current_time, **changes: Any) -> AsyncIterator[HttpLogin]:
    """The method with this service."""
    method = HttpLogin(HttpLoginSettings(served.url, **changes), clock)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(method.run)
        yield method
        nursery.cancel_scope.cancel()


async def accepted(method: HttpLogin, attempt: Attempt = ANNA) -> Identity:
    identity = await method.check(attempt, is_last=True)
    assert identity is not None
    return identity


async def refused(method: HttpLogin, attempt: Attempt = ANNA, match: str = "wrong user name") -> None:
    with pytest.raises(AuthenticationError, match=match):
        await method.check(attempt, is_last=True)


async def test_the_service_is_asked_about_all_that_a_client_sent() -> None:
    async with service(ALLOW) as served, asking(served, token="of the broker") as method:
        assert (await accepted(method)).name == "anna"
        await accepted(method, Attempt("[::1]:6000", token="opaque", user="robot"))
        first, second = served.requests
    assert json.loads(first.body) == {
        "username": "anna",
        "password": "secret",
        "client_id": "c",
        "peer": "10.0.0.1:5000",
        "certificate_name": "gateway",
    }
    assert first.headers["content-type"] == "application/json"
    assert first.headers["accept-encoding"] == "identity"
    assert first.authorization == "Bearer of the broker"
    assert json.loads(second.body)["token"] == "opaque"


async def test_an_answer_gives_user_end_roles_and_rules() -> None:
    rule = {"permission": "allow", "topics": ["plant/%c/#"], "actions": ["subscribe"]}
    gives = {"user": "line1", "roles": ["ops"], "rules": [rule], "expires": time.time() + 9}
    answer = {"result": "allow", **gives, "more": 1}
    async with service(json.dumps(answer).encode()) as served, asking(served) as method:
        identity = await accepted(method)
        assert (identity.name, identity.grants.roles, identity.expires_at_s) == ("line1", {"ops"}, gives["expires"])
        assert identity.grants.rules[0].actions == {Action.SUBSCRIBE}
        assert method.still_accepts(identity)
        method.settings = HttpLoginSettings("http://127.0.0.1:1/else")
        assert not method.still_accepts(identity)


@pytest.mark.parametrize(
    "attempt",
    [Attempt("10.0.0.1:1"), Attempt("10.0.0.1:1", user="", client_id="c"), Attempt("10.0.0.1:1", "anna", b"\xff")],
    ids=["nothing", "no user", "no text"],
)
async def test_a_client_that_cannot_be_asked_about_is_left_to_other_methods(attempt: Attempt) -> None:
    async with service(ALLOW) as served, asking(served) as method:
        assert await method.check(attempt, is_last=True) is None
        assert not served.requests


async def test_ignore_leaves_a_client_to_the_next_method_and_deny_refuses_it() -> None:
    async with service(IGNORE) as served, asking(served, cache_s=0) as method:
        assert await method.check(ANNA, is_last=True) is None
        served.answers(DENY)
        with logged() as lines:
            await refused(method)
        assert [line["reason"] for line in lines if line["event"] == "login refused"] == ["the service denies it"]
        assert dict(method.statistics.outcomes) == {"allow": 0, "deny": 1, "ignore": 1, "error": 0}


@cache
def bomb() -> bytes:
    return gzip.compress(b" " * (64 << 20), 9)


BAD = {
    "status": (ALLOW, 500, {}, "it answered with status 500"),
    "redirect": (ALLOW, 302, {"Location": "http://127.0.0.1:1/"}, "it answered with status 302"),
    "no content": (b"", 204, {}, "it answered with status 204"),
    "garbage": (b"<html>", 200, {}, "its answer is not JSON"),
    "empty": (b"", 200, {}, "its answer is not JSON"),
    "another result": (b'{"result": "maybe"}', 200, {}, "its answer is not JSON of the form"),
    "nested": (b"[" * 50_000, 200, {}, "its answer is not JSON"),
    "user": (b'{"result": "allow", "user": "a:b"}', 200, {}, "its answer cannot be used: has 'a:b'"),
    "roles": (b'{"result": "allow", "roles": 1}', 200, {}, "its answer cannot be used: the roles"),
    "rules": (b'{"result": "allow", "rules": [{}]}', 200, {}, "its answer cannot be used: the rules"),
    "huge": (ALLOW + b" " * (1 << 20), 200, {}, "it answered with more than 65536 bytes"),
    "bomb": (bomb, 200, {"Content-Encoding": "gzip"}, "a compressed body"),
}


@pytest.mark.parametrize(("body", "status", "headers", "reason"), BAD.values(), ids=BAD)
async def test_an_answer_that_means_nothing_denies_or_is_ignored_as_configured(
    body: bytes | Callable[[], bytes], status: int, headers: dict[str, str], reason: str
) -> None:
    async with service() as served:
        served.answers(body() if callable(body) else body, status, **headers)
        for on_error in OnError:
            async with asking(served, on_error=on_error) as method:
                with logged() as lines:
                    if on_error is OnError.DENY:
                        await refused(method, match="cannot be decided now; try again later")
                    else:
                        assert await method.check(ANNA, is_last=True) is None
                (line,) = (line for line in lines if line["event"] == "the service of logins gave no answer")
                assert reason in str(line["reason"])
                assert "secret" not in str(lines)
                assert method.statistics.outcomes["error"] == 1


async def test_an_answer_that_has_expired_is_no_login() -> None:
    async with service(json.dumps({"result": "allow", "expires": 1}).encode()) as served, asking(served) as method:
        with logged() as lines:
            await refused(method)
        assert [line["reason"] for line in lines if line["event"] == "login refused"] == ["the answer has expired"]


async def test_answers_are_cached_for_all_that_they_depend_on_and_for_a_while() -> None:
    now = [0.0]
    async with service(ALLOW) as served, asking(served, lambda: now[0], cache_s=60) as method:
        for port in range(20):
            await accepted(method, Attempt(f"10.0.0.1:{port}", "anna", b"secret"))
        assert (len(served.requests), method.statistics.cached_count) == (1, 19)
        for other in (
            Attempt("10.0.0.2:1", "anna", b"secret"),
            Attempt("10.0.0.1:1", "bob", b"secret"),
            Attempt("10.0.0.1:1", "anna", b"other"),
            Attempt("10.0.0.1:1", "anna", b"secret", client_id="d"),
            Attempt("10.0.0.1:1", "anna", b"secret", certificate_name="g"),
            Attempt("10.0.0.1:1", "anna", token="secret"),
        ):
            await accepted(method, other)
        assert len(served.requests) == 7
        served.answers(DENY)
        now[0] = 59.0
        await accepted(method, Attempt("10.0.0.1:1", "anna", b"secret"))
        now[0] = 61.0
        await refused(method, Attempt("10.0.0.1:1", "anna", b"secret"))
        served.answers(ALLOW)
        await refused(method, Attempt("10.0.0.1:1", "anna", b"secret"))
        now[0] = 72.0
        await accepted(method, Attempt("10.0.0.1:1", "anna", b"secret"))


async def test_a_reload_clears_the_cache() -> None:
    async with service(ALLOW) as served, asking(served) as method:
        await accepted(method)
        served.answers(DENY)
        method.settings = HttpLoginSettings(served.url)
        await refused(method)


async def test_an_answer_to_a_question_from_before_a_reload_is_not_cached() -> None:
    asked, go_on = trio.Event(), trio.Event()

    async def late(_request: Request) -> Reply:
        asked.set()
        await go_on.wait()
        return Reply(ALLOW, 200, "application/json")

    async with service() as served, asking(served) as method:
        served.reply = late
        async with trio.open_nursery() as nursery:
            nursery.start_soon(accepted, method)
            await asked.wait()
            served.answers(DENY)
            method.settings = HttpLoginSettings(served.url)
            go_on.set()
        await refused(method)


async def test_guessing_is_slowed_down_before_the_service_is_asked() -> None:
    async with service(DENY) as served, asking(served, lambda: 0.0) as method:
        for number in range(4):
            await refused(method, Attempt("10.0.0.1:1", "anna", b"%d" % number))
        await refused(method, Attempt("10.0.0.1:1", "anna", b"right"), match="too many refused logins")
        assert len(served.requests) == 4
        served.answers(ALLOW)
        await accepted(method, Attempt("10.0.0.2:1", "anna", b"right"))


async def test_a_slow_service_takes_a_bounded_time_and_number_of_requests() -> None:
    async with service() as served:
        goes_on, running = trio.Event(), [0, 0]

        async def slow(_request: Request) -> Reply:
            running[0] += 1
            running[1] = max(running)
            await goes_on.wait()
            running[0] -= 1
            return Reply(ALLOW)

        served.reply = slow
        async with asking(served, timeout_s=PATIENCE_S, max_in_flight=3) as method, trio.open_nursery() as nursery:
            for number in range(12):
                nursery.start_soon(accepted, method, Attempt("10.0.0.1:1", f"user{number}", b"secret"))
            with trio.fail_after(PATIENCE_S):
                while running[0] < 3:
                    await trio.sleep(0.005)
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert running[1] == 3
            goes_on.set()
        assert (running[1], method.statistics.outcomes["allow"]) == (3, 12)
        goes_on, running = trio.Event(), [0, 0]
        async with asking(served, timeout_s=0.2, max_in_flight=1) as method, trio.open_nursery() as nursery:
            for number in range(12):
                attempt = Attempt("10.0.0.1:1", f"user{number}", b"secret")
                nursery.start_soon(refused, method, attempt, "cannot be decided now")
        assert (method.statistics.outcomes["error"], method.is_left_alone) == (12, False)
        served.reply = lambda _request: trio.sleep_forever()  # type: ignore[assignment, return-value]
        async with asking(served, timeout_s=0.1) as method:
            with logged() as lines:
                await refused(method, match="cannot be decided now")
            assert any(line.get("reason") == "no answer within 0.1 s" for line in lines)


async def test_a_service_that_is_down_is_left_alone_and_tried_again() -> None:
    now = [0.0]
    async with service() as served, asking(served, lambda: now[0]) as method:
        served.answers(b"", 503)
        for number in range(20):
            await refused(method, Attempt("10.0.0.1:1", f"user{number}", b"x"), match="cannot be decided now")
        assert (len(served.requests), method.is_left_alone) == (5, True)
        now[0] = 1.1
        await refused(method, match="cannot be decided now")
        await refused(method, match="cannot be decided now")
        assert len(served.requests) == 6
        served.answers(ALLOW)
        now[0] = 10.0
        await accepted(method)
        assert (method.is_left_alone, len(served.requests)) == (False, 7)
    async with asking(served) as method:
        await refused(method, match="cannot be decided now")
        assert method.statistics.outcomes["error"] == 1


def test_only_one_at_a_time_tries_a_service_again() -> None:
    breaker = CircuitBreaker()
    for _ in range(5):
        assert breaker.may_ask(0.0)
        breaker.failed(0.0)
    assert not breaker.may_ask(0.1)
    assert [breaker.may_ask(1.0), breaker.may_ask(1.0)] == [True, False]
    breaker.abandoned()
    assert breaker.may_ask(1.0)
    breaker.failed(1.0)
    assert [breaker.may_ask(1.9), breaker.may_ask(3.0)] == [False, True]
    breaker.succeeded()
    assert all(breaker.may_ask(3.0) for _ in range(3))
