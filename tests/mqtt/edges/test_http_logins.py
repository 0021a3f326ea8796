"""A web service decides about MQTT clients, at a broker in its own process."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
import trio

from broker_adapter.mqtt_codec import ReasonCode
from journal.access.users import Cost, PasswordHash, write_user
from journal.telemetry.http_pages import Reply, Request
from tests.access.issuer import Service, service, token
from tests.access.test_http_login import ALLOW, DENY, IGNORE
from tests.mqtt.edges.broker_process import BrokerProcess, broker_process
from tests.mqtt.edges.listening import write_certificate
from tests.mqtt.edges.test_certificate_users import context_of
from tests.mqtt.edges.test_jwt_users import check

BROKER = """
[broker]
store = "memory:"
[listen]
mqtt = "127.0.0.1:0"
mqtts = "127.0.0.1:0"
[tls]
certificate_file = "{files.certificate}"
key_file = "{files.key}"
client_ca_file = "{files.authority}"
[access]
users_file = "{users}"
audit_file = "{audit}"
[[access.logins]]
type = "certificate"
[[access.logins]]
type = "http"
url = "{url}"
on_error = "deny"
[[access.logins]]
type = "users"
[[access.rules]]
permission = "allow"
topics = ["of/%u/#"]
"""


def configure(path: Path, served: Service) -> Path:
    file, users = path / "broker.toml", path / "users"
    write_user(str(users), "anna", PasswordHash.of(b"secret", Cost(2, 1, 1)))
    files = write_certificate(str(path))
    file.write_text(BROKER.format(files=files, users=users, audit=path / "audit.jsonl", url=served.url))
    return file


async def answer(broker: BrokerProcess, user: str, password: bytes) -> ReasonCode:
    async with broker.client() as client:
        return (await client.connect(username=user, password=password)).reason_code


@pytest.mark.slow("starts a broker")
async def test_certificates_then_the_service_then_passwords_decide(tmp_path: Path) -> None:
    async with service(IGNORE) as hook, broker_process(tmp_path, "--config", str(configure(tmp_path, hook))) as broker:
        async with broker.client("mqtts", context=context_of("gateway")) as gateway:
            await gateway.connect()
            assert await gateway.subscribe("of/gateway/#") == (ReasonCode.SUCCESS,)
        assert not hook.requests, "the certificate has decided"
        assert await answer(broker, "anna", b"secret") == ReasonCode.SUCCESS
        assert await answer(broker, "anna", b"wrong") == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        hook.answers(json.dumps({"result": "allow", "user": "line1", "rules": [RULE]}).encode())
        async with broker.client() as line1:
            assert (await line1.connect("c1", username="x", password=token().encode())).reason_code == 0
            assert await line1.subscribe("of/line1/#", "of/x/#", "plant/c1") == (0, ReasonCode.NOT_AUTHORIZED, 0)
            asked = len(hook.requests)
            for _ in range(20):
                await line1.publish("of/line1/x", qos=1)
            assert len(hook.requests) == asked, "it is asked for a login, not for a packet"
        hook.answers(DENY)
        assert await answer(broker, "bob", b"x") == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        hook.answers(b"", 500)
        assert await answer(broker, "carl", b"x") == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        await broker.said("the service of logins gave no answer")
    outcomes = [json.loads(line)["outcome"] for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert outcomes.count("authentication_failed") == 3
    log = broker.log
    assert not [word for word in ("secret=hidden", "wrong\n", token()[:20]) if word in log]


RULE = {"permission": "allow", "topics": ["plant/%c"], "actions": ["subscribe"]}


async def soon_over(_request: Request) -> Reply:
    """Counted from when the broker asks, not from when the client connects."""
    await trio.lowlevel.checkpoint()
    return Reply(json.dumps({"result": "allow", "expires": time.time() + 2}).encode(), 200, "application/json")


@pytest.mark.slow("starts a broker")
async def test_a_connection_ends_when_the_answer_says_and_at_sighup_with_another_service(tmp_path: Path) -> None:
    async with service(ALLOW) as hook, service(ALLOW) as another:
        config = configure(tmp_path, hook)
        async with (
            broker_process(tmp_path, "--config", str(config)) as broker,
            broker.client() as short,
            broker.client() as long,
        ):
            await long.connect("long", username="bob", password=b"x")
            hook.reply = soon_over
            assert (await short.connect("short", username="carl", password=b"x")).reason_code == ReasonCode.SUCCESS
            await short.refused(ReasonCode.NOT_AUTHORIZED)
            await long.silent()
            configure(tmp_path, another)
            broker.process.send_signal(signal.SIGHUP)
            await long.refused(ReasonCode.NOT_AUTHORIZED)
            assert await answer(broker, "bob", b"x") == ReasonCode.SUCCESS
            assert len(another.requests) == 1


@pytest.mark.slow("starts the program several times")
async def test_check_names_the_service_and_the_order(tmp_path: Path) -> None:
    async with service(ALLOW) as hook:
        status, told = check(configure(tmp_path, hook))
        assert (status, len(hook.requests)) == (0, 0)
    address = hook.url.partition("?")[0]
    assert f"by their common name, those whom {address} allows, 1 user of {tmp_path}/users" in told
    assert "Logins are decided in this order: certificate, http, users." in told
    assert f"http: {address} is asked, at most 16 times at once and for 5 s; without an answer: deny." in told
    assert "hidden" not in told
