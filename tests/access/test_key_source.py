"""Keys of tokens from a URL: cached, fetched again for new keys at a bounded rate, and kept while the URL is down."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import pytest
import trio

from journal.access import key_source
from journal.access.jwt_login import JwtLogin, JwtSettings
from journal.access.key_source import FetchError, KeyAddress, fetch_keys
from journal.access.login_methods import Credentials
from journal.access.login_report import login_report
from journal.access.logins import Attempt, Identity
from journal.protocol.errors import AuthenticationError
from journal.telemetry.http_pages import Reply, Request
from tests.access.issuer import AUDIENCE, Service, key_set, public_jwk, service, token
from tests.mqtt.edges.listening import logged
from tests.patience import PATIENCE_S

FIRST = key_set(public_jwk("ES256", "e"))
BOTH = key_set(public_jwk("ES256", "e"), public_jwk("ES256", "new", 1))


def address(served: Service, **changes: Any) -> KeyAddress:
    return attrs.evolve(KeyAddress(served.url, "", 5, 3600), **changes)


@asynccontextmanager
async def login(served: Service, **changes: Any) -> AsyncIterator[JwtLogin]:
    """The method with keys of the service, after the first fetch."""
    method = JwtLogin(JwtSettings((AUDIENCE,), address=address(served, **changes)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(method.run)
        with trio.fail_after(PATIENCE_S):
            while not (method.statistics.fetch_count or method.statistics.failure_count):
                await trio.sleep(0.005)
        yield method
        nursery.cancel_scope.cancel()


async def accepted(method: JwtLogin, text: str) -> Identity:
    identity = await method.check(Attempt("10.0.0.1:1", token=text), is_last=True)
    assert identity is not None
    return identity


async def refused(method: JwtLogin, text: str) -> str:
    with logged() as lines, pytest.raises(AuthenticationError):
        await accepted(method, text)
    (reason,) = (str(line["reason"]) for line in lines if line["event"] == "login refused")
    return reason


async def test_a_fetch_serves_many_logins() -> None:
    async with service(FIRST) as served, login(served) as method:
        for _ in range(20):
            assert (await accepted(method, token())).name == "anna"
        assert len(served.requests) == 1
        assert served.requests[0].headers["accept-encoding"] == "identity"


async def test_a_token_with_a_new_key_has_the_keys_fetched_at_a_bounded_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    async with service(FIRST) as served, login(served) as method:
        # They were fetched just now: many tokens with invented keys cause no further fetch.
        for number in range(20):
            assert "is not known" in await refused(method, token(key_id=f"x{number}"))
        assert len(served.requests) == 1
        served.answers(BOTH)
        monkeypatch.setattr(key_source, "_LEAST_INTERVAL_S", 0.0)
        assert (await accepted(method, token(key_id="new", number=1))).name == "anna"
        monkeypatch.setattr(key_source, "_LEAST_INTERVAL_S", 10.0)
        assert "is not known" in await refused(method, token(key_id="x"))
        assert len(served.requests) == 2


async def test_tokens_that_come_together_share_a_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    async with service(FIRST) as served, login(served) as method:
        goes_on = trio.Event()

        async def slow(_request: Request) -> Reply:
            await goes_on.wait()
            return Reply(BOTH)

        served.reply = slow
        monkeypatch.setattr(key_source, "_LEAST_INTERVAL_S", 0.0)
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(accepted, method, token(key_id="new", number=1))
            with trio.fail_after(PATIENCE_S):
                while len(served.requests) < 2:
                    await trio.sleep(0.005)
            # The others are not delayed.
            await accepted(method, token())
            goes_on.set()
        assert len(served.requests) == 2


async def test_a_login_ends_with_a_key_that_was_rotated_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async with service(BOTH) as served, login(served) as method:
        identity = await accepted(method, token())
        served.answers(key_set(public_jwk("ES256", "next", 2)))
        monkeypatch.setattr(key_source, "_LEAST_INTERVAL_S", 0.0)
        await accepted(method, token(key_id="next", number=2))
        assert not method.still_accepts(identity)
        assert "is not known" in await refused(method, token())


BAD = {
    "an error": (b"", 500, {}, "it answered with status 500"),
    "elsewhere": (b"", 302, {"Location": "http://127.0.0.1:1/"}, "it answered with status 302"),
    "garbage": (b"<html>", 200, {}, "its answer is not JSON"),
    "no keys": (b'{"keys": []}', 200, {}, "its answer has no key that can be used"),
    "huge": (b" " * (2 << 20), 200, {}, "it answered with more than 1048576 bytes"),
    "compressed": (b"x", 200, {"Content-Encoding": "gzip"}, "a compressed body"),
}


@pytest.mark.parametrize(("body", "status", "headers", "reason"), BAD.values(), ids=BAD)
async def test_the_last_good_keys_are_kept_while_the_url_gives_none(
    monkeypatch: pytest.MonkeyPatch, body: bytes, status: int, headers: dict[str, str], reason: str
) -> None:
    async with service(FIRST) as served, login(served) as method:
        served.answers(body, status, **headers)
        monkeypatch.setattr(key_source, "_LEAST_INTERVAL_S", 0.0)
        assert "is not known" in await refused(method, token(key_id="x"))
        assert (method.statistics.failure_count, method.statistics.is_failing) == (1, True)
        assert (await accepted(method, token())).name == "anna"
        with pytest.raises(FetchError, match=reason):
            await fetch_keys(address(served), tls=False)


async def test_without_keys_no_token_is_accepted_until_the_url_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    async with service() as served:
        served.answers(b"", 503)
        with logged() as lines:
            async with login(served) as method:
                assert await refused(method, token()) == "there are no keys of tokens yet"
                assert method.key_count == 0
                served.answers(FIRST)
                monkeypatch.setattr(key_source, "_LEAST_INTERVAL_S", 0.0)
                assert (await accepted(method, token())).name == "anna"
                assert (method.key_count, method.statistics.is_failing) == (1, False)
        failure = next(line for line in lines if line["event"] == "the keys of tokens cannot be fetched")
        assert (failure["reason"], failure["kept_keys"]) == ("it answered with status 503", 0)
        assert "hidden" not in str(lines)


async def test_a_url_that_does_not_answer_is_given_up() -> None:
    async with service() as served:

        async def never(_request: Request) -> Reply:
            await trio.sleep_forever()
            raise AssertionError

        served.reply = never
        with pytest.raises(FetchError, match="no answer within 0"):
            await fetch_keys(address(served, timeout_s=0.05), tls=False)
    with pytest.raises(FetchError, match="cannot be reached"):
        await fetch_keys(address(served), tls=False)


async def test_a_reload_keeps_the_keys_of_the_same_address(monkeypatch: pytest.MonkeyPatch) -> None:
    async with service(FIRST) as served, login(served) as method:
        identity = await accepted(method, token())
        method.settings = JwtSettings((AUDIENCE, "more"), address=address(served))
        assert method.still_accepts(identity)
        assert len(served.requests) == 1
        method.settings = None
        assert not method.still_accepts(identity)
        method.settings = JwtSettings((AUDIENCE,), address=address(served, refresh_s=1800))
        assert not method.still_accepts(identity)
        assert (await accepted(method, token())).name == "anna"
        assert len(served.requests) == 2


async def test_a_check_of_the_settings_fetches_the_keys_once() -> None:
    async with service(FIRST) as served:
        credentials = Credentials(jwt=JwtSettings((AUDIENCE,), address=address(served)))
        (told,) = await login_report(credentials)
        assert told == f"jwt: 1 key of http://127.0.0.1:{served.port}/path can be used."
        served.answers(b"", 404)
        (told,) = await login_report(credentials)
        assert "cannot be fetched now: it answered with status 404. No token is accepted until they are." in told
