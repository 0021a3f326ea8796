"""`/api/v1/rules` of real brokers on a real server: who may ask, what is checked, what becomes of it.

The request that docs/mqtt.md shows is among them.
"""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import attrs
import httpx
import jsonschema_rs
import pytest

from broker_adapter.mqtt.admin.rules_pages import MAX_BODY_BYTES
from broker_adapter.mqtt.config import load_broker_config
from journal.settings.values import ConfigurationError
from tests.mqtt.edges.broker_process import BrokerProcess, broker_process
from tests.mqtt.edges.test_broker_process import passwd
from tests.mqtt.rules.test_two_brokers import Site, publish, site
from tests.patience import PATIENCE_S

ANNA = ("anna", "one")
BERT = ("bert", "two")
PATH = "/api/v1/rules"
BRIDGE: dict[str, Any] = {
    "name": "warehouse",
    "topics": ["plant/#"],
    "drive": False,
    "sink": {"type": "http", "url": "http://127.0.0.1:9/records", "token": "s3cret"},
}
STORAGE = {"topics": "plant/#", "storage": "memory"}


@attrs.frozen
class Asker:
    """Asks one broker."""

    port: int
    schemas: dict[str, Any]

    async def ask(self, method: str, path: str = PATH, **options: Any) -> httpx.Response:
        options = {"auth": ANNA, **options}
        async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as client:
            answer = await client.request(method, f"http://127.0.0.1:{self.port}{path}", **options)
        if answer.content:
            self.check(answer)
        return answer

    def check(self, answer: httpx.Response) -> None:
        """An answer is what the OpenAPI document says."""
        operation = self.schemas["paths"].get(answer.request.url.path, {}).get(answer.request.method.lower())
        if operation is not None and answer.status_code != HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            described = operation["responses"][str(answer.status_code)]["content"]
            (kind,) = described
            assert answer.headers["content-type"] == kind
            schema = {**described[kind]["schema"], "components": self.schemas["components"]}
            jsonschema_rs.validator_for(schema).validate(answer.json())


@asynccontextmanager
async def asked(there: Site, name: str = "a", text: str = "") -> AsyncIterator[tuple[BrokerProcess, Asker]]:
    """A broker with an administrator, and what asks it."""
    config = f"""
        [listen]
        http = "127.0.0.1:0"
        [access]
        users_file = "{there.directory / "users"}"
        administrators = ["anna"]
        default = "allow"
        {text}
        """
    async with there.broker(name, config) as broker:
        yield broker, await identity_of(broker)


async def identity_of(broker: BrokerProcess) -> Asker:
    port = broker.ports["http"]
    async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as client:
        return Asker(port, (await client.get(f"http://127.0.0.1:{port}/api/v1/openapi.json")).json())


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, password in (ANNA, BERT):
        passwd(monkeypatch, tmp_path / "users", name, password)


@pytest.mark.slow("starts two brokers and a command")
@pytest.mark.usefixtures("users")
async def test_rules_set_over_http_apply_at_all_brokers(tmp_path: Path) -> None:
    async with site(tmp_path) as there, there.broker("b") as other, asked(there) as (broker, asker):
        none = await asker.ask("GET")
        assert (none.status_code, none.headers["etag"], none.json()["rules"]) == (200, '"0"', {})
        assert [each["broker"] for each in none.json()["brokers"]] == ["a", "b"]

        put = await asker.ask("PUT", json={"bridge": [BRIDGE]}, headers={"If-Match": '"0"'})
        assert (put.status_code, put.headers["etag"]) == (200, '"1"')
        assert put.json()["changes"] == ["[[bridge]] warehouse is in the request, not in the store"]
        assert (put.json()["applied_by"], put.json()["behind"]) == ("anna@a", [])
        await publish(other, "plant/b", b"1")
        await publish(broker, "plant/a", b"2")
        assert await there.queued() == [("plant/b", b"1"), ("plant/a", b"2")]

        got = await asker.ask("GET")
        assert "s3cret" not in got.text
        status, said = await there.command("rules", "--json")
        assert (status, json.loads(said)) == (0, got.json())

        # What its answers show in place of secrets is no secret.
        back = await asker.ask("PUT", json=got.json()["rules"])
        assert (back.status_code, "give its value" in back.json()["detail"]) == (400, True)

        # Again, as after a lost answer; then over another version than the one that was looked at.
        again = await asker.ask("PUT", json={"bridge": [BRIDGE]}, headers={"If-Match": '"0"'})
        assert (again.status_code, again.headers["etag"], again.json()["changes"]) == (200, '"1"', [])
        stale = await asker.ask("PUT", json={}, headers={"If-Match": '"0"'})
        assert (stale.status_code, stale.json()["code"]) == (412, "version_conflict")
        assert "have version 1 (by anna@a), not 0" in stale.json()["detail"]

        # What would change, by a file of settings, and the change as docs/mqtt.md has it.
        toml = b'[[storage]]\ntopics = "plant/#"\nstorage = "memory"\n'
        headers = {"Content-Type": "application/toml"}
        tried = await asker.ask("PUT", f"{PATH}?dry_run=true", content=toml, headers=headers)
        assert (tried.status_code, tried.headers["etag"], len(tried.json()["changes"])) == (200, '"1"', 2)
        made = await asker.ask("PUT", f"{PATH}?wait=10", content=toml, headers={**headers, "If-Match": '"1"'})
        assert (made.headers["etag"], made.json()["changes"]) == ('"2"', tried.json()["changes"])
        assert (await asker.ask("GET")).json()["rules"] == {"storage": [STORAGE]}
        assert "user=anna" in broker.log

        # Mapping rules are refused as the command refuses them.
        mapped = await asker.ask("PUT", json={"mapping": [{"topics": "plant/#", "prefix": "$plant", "shards": 4}]})
        assert (mapped.status_code, mapped.json()["code"]) == (409, "rules_refused")
        assert "while brokers run (a, b)" in mapped.json()["detail"]
        assert "journal_broker_rules_version 2\n" in (await asker.ask("GET", "/metrics")).text


@pytest.mark.slow("starts a broker")
@pytest.mark.usefixtures("users")
async def test_a_broker_that_does_not_follow_is_named(tmp_path: Path) -> None:
    async with site(tmp_path) as there, there.broker("b") as frozen, asked(there) as (_, asker):
        frozen.process.send_signal(signal.SIGSTOP)
        try:
            put = await asker.ask("PUT", f"{PATH}?wait=0", json={"storage": [STORAGE]})
            assert (put.status_code, put.json()["version"]) == (202, 1)
            assert "b" in [each["broker"] for each in put.json()["behind"]]
        finally:
            frozen.process.send_signal(signal.SIGCONT)
        done = await asker.ask("PUT", f"{PATH}?wait={PATIENCE_S / 2:.0f}", json={"storage": [STORAGE]})
        assert (done.status_code, done.json()["version"], done.json()["behind"]) == (200, 1, [])


@pytest.mark.usefixtures("users")
async def test_only_administrators_may_ask_and_who_they_are_is_read_again(tmp_path: Path) -> None:
    async with site(tmp_path) as there, asked(there) as (broker, asker):
        for auth in (None, ("anna", "two"), ("", ""), ("nobody", "one")):
            for method in ("GET", "PUT"):
                refused = await asker.ask(method, auth=auth, json={})
                assert (refused.status_code, refused.headers["www-authenticate"][:5]) == (401, "Basic"), auth
        assert (await asker.ask("GET", auth=BERT)).status_code == 403
        put = await asker.ask("PUT", auth=BERT, json={"storage": [STORAGE]})
        assert (put.status_code, put.json()["code"]) == (403, "not_authorized")
        assert "add it to access.administrators" in put.json()["detail"]
        assert (await asker.ask("GET")).json()["version"] == 0

        settings = there.directory / "a.toml"
        settings.write_text(settings.read_text().replace('["anna"]', '["bert"]'))
        broker.process.send_signal(signal.SIGHUP)
        await broker.said("reloaded")
        assert (await asker.ask("GET")).status_code == 403
        assert (await asker.ask("GET", auth=BERT)).status_code == 200
        assert "apply only after a restart" not in broker.log


@pytest.mark.slow("starts a broker")
@pytest.mark.usefixtures("users")
async def test_what_is_wrong_with_a_request_is_said_and_changes_nothing(tmp_path: Path) -> None:
    async with site(tmp_path) as there, asked(there) as (_, asker):
        cases: list[tuple[dict[str, Any], int, str]] = [
            ({"content": b"{}"}, 415, "has no content type; send it as application/json or application/toml"),
            ({"content": b"{", "headers": {"Content-Type": "application/json"}}, 400, "is not valid application/json"),
            (
                {"content": b"\xff", "headers": {"Content-Type": "application/toml"}},
                400,
                "is not valid application/toml",
            ),
            ({"json": []}, 400, "is not valid application/json"),
            ({"json": {"storages": []}}, 400, "storages is unknown; did you mean storage?"),
            ({"json": {"access": {"anonymous": True}}}, 400, "[access] is unknown"),
            ({"json": {"storage": [{"topics": "a"}]}}, 400, "[[storage]] number 1 decides nothing"),
            ({"json": {"bridge": [{**BRIDGE, "sink": {"type": "none"}}]}}, 400, "there is no kind of sink 'none'"),
            ({"json": {"bridge": [{**BRIDGE, "sink": {"type": "http", "ur": 1}}]}}, 400, "ur is unknown"),
            ({"json": {"bridge": [BRIDGE, BRIDGE]}}, 400, "[[bridge]] warehouse is there 2 times"),
            ({"json": {}, "headers": {"If-Match": "1"}}, 400, "If-Match: '1' is not a version"),
            ({"json": {}, "headers": {"If-Match": 'W/"1"'}}, 400, "is not a version"),
            ({"json": {}, "params": {"wait": "61"}}, 400, "wait=61.0 is out of bounds; allowed: 0 to 60 seconds"),
            ({"json": {}, "params": {"wait": "nan"}}, 400, "wait"),
            ({"json": {}, "params": {"what": "1"}}, 400, "query: "),
            ({"json": {}, "params": {"wait": ["1", "2"]}}, 400, "more than once"),
        ]
        for options, status, words in cases:
            answer = await asker.ask("PUT", **options)
            assert (answer.status_code, words in answer.json()["detail"]) == (status, True), (options, answer.text)
            assert "s3cret" not in answer.text
        assert (await asker.ask("POST", json={})).headers["allow"] == "GET, HEAD, PUT"
        large = {"content": b" " * (MAX_BODY_BYTES + 1), "headers": {"Content-Type": "application/json"}}
        assert (await asker.ask("PUT", **large)).status_code == 413
        assert (await asker.ask("GET")).json()["version"] == 0


@pytest.mark.slow("starts a broker")
@pytest.mark.usefixtures("users")
async def test_the_rules_of_a_store_that_is_one_brokers_own_are_those_of_its_settings(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text(f"""
        [broker]
        store = "memory:"
        [listen]
        mqtt = "127.0.0.1:0"
        http = "127.0.0.1:0"
        [access]
        users_file = "{tmp_path / "users"}"
        administrators = ["anna"]
        """)
    async with broker_process(tmp_path, "--config", str(config)) as broker:
        asker = await identity_of(broker)
        assert (await asker.ask("GET")).json()["version"] == 0
        put = await asker.ask("PUT", json={"storage": [STORAGE]})
        assert (put.status_code, "change them there" in put.json()["detail"]) == (409, True)


def test_administrators_are_users(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    for text, problem in (
        ('administrators = ["anna"]', "administrators are users of access.users_file; name that file"),
        ('users_file = "users"\nadministrators = [""]', "names a user without a name"),
    ):
        config.write_text(f"[access]\n{text}\n")
        with pytest.raises(ConfigurationError, match=problem):
            load_broker_config(config)
