"""JSON Web Tokens as MQTT passwords, at a broker in its own process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from broker_adapter.mqtt_codec import Properties, ReasonCode, Version
from broker_adapter.mqtt_codec.packets import Will
from tests.access.issuer import AUDIENCE, STANDARD, key_set, public_jwk, service, token
from tests.mqtt.edges.broker_process import PROGRAM, REPOSITORY, BrokerProcess, broker_process
from tests.mqtt.serving import Client
from tests.patience import PATIENCE_S

BROKER = """
[broker]
store = "memory:"
[listen]
mqtt = "127.0.0.1:0"
http = "127.0.0.1:0"
[access]
administrators = ["anna"]
audit_file = "{audit}"
[[access.logins]]
type = "jwt"
{keys}
audience = ["{audience}"]
leeway_s = 0
denied = {denied}
[[access.roles]]
name = "operators"
[[access.rules]]
permission = "allow"
topics = ["of/%u/#"]
[[access.rules]]
permission = "allow"
topics = ["alarms/#"]
role = "operators"
[[access.rules]]
permission = "deny"
topics = ["closed/#"]
"""


def configure(path: Path, keys: str = "", denied: str = "[]") -> Path:
    file = path / "broker.toml"
    in_file = path / "keys.json"
    if not in_file.exists():
        in_file.write_bytes(key_set(*STANDARD))
    keys = keys or f'keys_file = "{in_file}"'
    file.write_text(BROKER.format(keys=keys, audience=AUDIENCE, denied=denied, audit=path / "audit.jsonl"))
    return file


async def connect(client: Client, text: str, user: str | None = None, **options: Any) -> ReasonCode:
    connack = await client.connect(username=user, password=text.encode(), **options)
    return connack.reason_code


async def answer(broker: BrokerProcess, text: str, user: str | None = None) -> ReasonCode:
    async with broker.client() as client:
        return await connect(client, text, user)


async def test_a_token_gives_the_user_its_roles_and_its_rules(tmp_path: Path) -> None:
    own = [{"permission": "allow", "topics": ["own/%c", "closed/x"], "actions": ["publish"]}]
    async with broker_process(tmp_path, "--config", str(configure(tmp_path))) as broker:
        for version, user in ((Version.V5, None), (Version.V5, "anna"), (Version.V311, "anna")):
            async with broker.client(version=version) as anna:
                assert await connect(anna, token(algorithm="RS256"), user) == ReasonCode.SUCCESS
                refused = ReasonCode.NOT_AUTHORIZED if version is Version.V5 else ReasonCode.UNSPECIFIED_ERROR
                assert await anna.subscribe("of/anna/#", "of/bob/#", "alarms/#") == (0, refused, refused)
        async with broker.client() as anna:
            await connect(anna, token(journal_roles=["operators"], journal_rules=own))
            assert await anna.subscribe("alarms/#", "own/client") == (0, ReasonCode.NOT_AUTHORIZED)
            topics = {"own/client": True, "own/other": False, "closed/x": False, "of/anna/x": True}
            for topic, is_allowed in topics.items():
                assert (await anna.publish(topic, qos=1) < ReasonCode.UNSPECIFIED_ERROR) is is_allowed, topic


@pytest.mark.few_cases(1, "a broker for each token")
@pytest.mark.parametrize(
    ("make", "user", "reason"),
    [
        (lambda: token(expires_in_s=-1), None, "it has expired"),
        (lambda: token(nbf=4_000_000_000), None, "it is not valid yet"),
        (lambda: token(aud="else"), None, "it is for another audience"),
        (lambda: token(number=1), None, "its signature is wrong"),
        (token, "bob", "it is of 'anna', not of the user that was given"),
    ],
    ids=["expired", "not yet", "audience", "signature", "user"],
)
async def test_the_log_says_why_a_token_is_refused_and_the_client_hears_no_reason(
    tmp_path: Path, make: Callable[[], str], user: str | None, reason: str
) -> None:
    # Made here: a long run comes to this test after a token of its beginning has expired.
    text = make()
    async with broker_process(tmp_path, "--config", str(configure(tmp_path))) as broker:
        assert await answer(broker, text, user) == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        assert await answer(broker, "password", "anna") == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        await broker.said(reason)
        assert text not in broker.log
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [(line["act"], line["outcome"]) for line in lines] == [("login", "authentication_failed")] * 2


@pytest.mark.slow("starts a broker")
async def test_a_connection_ends_when_its_token_expires_and_its_will_is_published(tmp_path: Path) -> None:
    async with (
        broker_process(tmp_path, "--config", str(configure(tmp_path))) as broker,
        broker.client() as anna,
        broker.client() as bob,
    ):
        rules = [{"permission": "allow", "topics": ["status/#"]}]
        await connect(bob, token("bob", journal_rules=rules), client_id="bob")
        await bob.subscribe("status/#")
        will = Will("status/anna", b"gone", 1)
        assert await connect(anna, token(expires_in_s=2, journal_rules=rules), will=will) == ReasonCode.SUCCESS
        await anna.refused(ReasonCode.NOT_AUTHORIZED)
        assert (await bob.message()).payload == b"gone"
        await broker.said("the login has expired")
        await bob.silent()


@pytest.mark.slow("starts a broker")
async def test_sighup_ends_sessions_of_denied_users_and_of_keys_that_are_gone(tmp_path: Path) -> None:
    config = configure(tmp_path)
    lasting = Properties(session_expiry_interval=60)
    async with (
        broker_process(tmp_path, "--config", str(config)) as broker,
        broker.client() as anna,
        broker.client() as bob,
        broker.client() as eve,
    ):
        for client, name, algorithm in ((anna, "anna", "RS256"), (bob, "bob", "ES256"), (eve, "eve", "ES256")):
            text = token(name, algorithm=algorithm)
            assert await connect(client, text, client_id=name, properties=lasting) == ReasonCode.SUCCESS
        (tmp_path / "keys.json").write_bytes(key_set(public_jwk("ES256", "e")))
        configure(tmp_path, denied='["eve"]')
        broker.process.send_signal(signal.SIGHUP)
        await anna.refused(ReasonCode.NOT_AUTHORIZED)
        await eve.refused(ReasonCode.NOT_AUTHORIZED)
        await bob.silent()
        assert await answer(broker, token("eve")) == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        assert await answer(broker, token()) == ReasonCode.SUCCESS


@pytest.mark.slow("starts a broker")
async def test_keys_of_a_url_are_fetched_and_a_bearer_token_opens_the_pages_of_the_broker(tmp_path: Path) -> None:
    async with service(key_set(public_jwk("ES256", "e"))) as issuer:
        config = configure(tmp_path, keys=f'keys_url = "{issuer.url}"')
        async with broker_process(tmp_path, "--config", str(config)) as broker:
            await broker.said("fetched the keys of tokens")
            assert await answer(broker, token()) == ReasonCode.SUCCESS
            page = await ask(broker, "/metrics")
            for line in (
                "journal_broker_login_keys 1",
                'journal_broker_logins_total{method="jwt"} 1',
                "journal_broker_login_key_fetches_total 1",
            ):
                assert f"\n{line}\n" in page
            for text, status in ((token(), 200), (token("bob"), 403), (token(number=1), 401)):
                assert f" {status} " in (await ask(broker, "/api/v1/rules", text)).partition("\r\n")[0]


async def ask(broker: BrokerProcess, path: str, text: str = "") -> str:
    stream = await trio.open_tcp_stream("127.0.0.1", broker.ports["http"])
    async with stream:
        authorization = f"Authorization: Bearer {text}\r\n" if text else ""
        await stream.send_all(
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{authorization}\r\n".encode()
        )
        answer = b""
        with trio.fail_after(PATIENCE_S):
            while data := await stream.receive_some():
                answer += data
    return answer.decode()


def check(config: Path) -> tuple[int, str]:
    command = [sys.executable, "-m", PROGRAM, "check", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, timeout=PATIENCE_S, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow("starts the program several times")
def test_check_says_what_is_configured_and_whether_the_keys_can_be_used(tmp_path: Path) -> None:
    config = configure(tmp_path, denied='["eve"]')
    status, told = check(config)
    assert status == 0
    assert f"Accepted are JSON Web Tokens for {AUDIENCE} with keys of {tmp_path}/keys.json." in told
    assert "jwt: 3 keys of the file can be used." in told
    assert "jwt: 1 denied user." in told
    (tmp_path / "keys.json").write_text("[]")
    status, told = check(config)
    assert status != 0
    assert "keys.json' is not JSON of the form" in told
