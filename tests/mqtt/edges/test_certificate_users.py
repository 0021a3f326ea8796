"""The name in a client's certificate is its MQTT user, at a broker with TLS listeners."""

from __future__ import annotations

import signal
import ssl
from pathlib import Path

import pytest

from broker_adapter.mqtt_codec import Properties, ReasonCode, Version
from tests.mqtt.edges.broker_process import BrokerProcess, broker_process
from tests.mqtt.edges.listening import AUTHORITY, client_context, write_certificate

LASTING = Properties(session_expiry_interval=3600)
BROKER = """
[broker]
store = "memory:"
[listen]
mqtt = "127.0.0.1:0"
mqtts = "127.0.0.1:0"
websockets = "127.0.0.1:0"
[tls]
certificate_file = "{files.certificate}"
key_file = "{files.key}"
client_ca_file = "{files.authority}"
[[access.logins]]
type = "certificate"
field = "{field}"
denied = {denied}
[[access.rules]]
permission = "allow"
topics = ["of/%u/#"]
"""


def context_of(name: str) -> ssl.SSLContext:
    """TLS of a client with a certificate of this common name, and of this name and `example.org` as an e-mail."""
    context = client_context()
    AUTHORITY.issue_cert(f"{name}@example.org", common_name=name).configure_cert(context)
    return context


def configure(path: Path, *, field: str = "common_name", denied: tuple[str, ...] = ()) -> Path:
    file = path / "broker.toml"
    names = "[" + ", ".join(f'"{name}"' for name in denied) + "]"
    file.write_text(BROKER.format(files=write_certificate(str(path)), field=field, denied=names))
    return file


async def answer(broker: BrokerProcess, name: str, listener: str = "mqtts", **options: object) -> ReasonCode:
    async with broker.client(listener, context=context_of(name)) as client:
        connack = await client.connect("c", properties=LASTING, clean_start=False, **options)  # type: ignore[arg-type]
        return connack.reason_code


@pytest.mark.parametrize("listener", ["mqtts", "websockets"])
async def test_the_certificate_says_who_the_client_is_whatever_it_sends(tmp_path: Path, listener: str) -> None:
    async with broker_process(tmp_path, "--config", str(configure(tmp_path))) as broker:
        for version in (Version.V311, Version.V5):
            for sent in ({}, {"username": "anna"}, {"username": "anna", "password": b"any"}, {"username": ""}):
                async with broker.client(listener, version, context_of("anna")) as anna:
                    connack = await anna.connect("c", **sent)  # type: ignore[arg-type]
                    assert connack.reason_code == ReasonCode.SUCCESS
                    failure = ReasonCode.NOT_AUTHORIZED if version is Version.V5 else ReasonCode.UNSPECIFIED_ERROR
                    assert await anna.subscribe("of/anna/#", "of/bob/#") == (ReasonCode.SUCCESS, failure)
                    await anna.leave()
        refused = await answer(broker, "anna", listener, username="bob", password=b"any")
        assert refused == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        assert "the client certificate is of 'anna', not of the user that was given" in broker.log


@pytest.mark.slow("starts a broker")
async def test_a_session_belongs_to_the_user_of_the_certificate(tmp_path: Path) -> None:
    async with broker_process(tmp_path, "--config", str(configure(tmp_path))) as broker:
        assert await answer(broker, "anna") == ReasonCode.SUCCESS
        assert await answer(broker, "bob") == ReasonCode.NOT_AUTHORIZED
        assert await answer(broker, "anna") == ReasonCode.SUCCESS


@pytest.mark.slow("starts a broker")
async def test_a_client_without_a_certificate_needs_another_login(tmp_path: Path) -> None:
    async with broker_process(tmp_path, "--config", str(configure(tmp_path))) as broker, broker.client() as client:
        connack = await client.connect("c", username="anna", password=b"any")
        assert connack.reason_code == ReasonCode.BAD_USER_NAME_OR_PASSWORD


@pytest.mark.slow("starts a broker")
async def test_a_denied_user_is_disconnected_at_sighup_and_others_stay(tmp_path: Path) -> None:
    config = configure(tmp_path, field="email")
    async with (
        broker_process(tmp_path, "--config", str(config)) as broker,
        broker.client("mqtts", context=context_of("anna")) as anna,
        broker.client("mqtts", context=context_of("bob")) as bob,
    ):
        for client, name in ((anna, "anna"), (bob, "bob")):
            assert (await client.connect(name)).reason_code == ReasonCode.SUCCESS
            assert await client.subscribe(f"of/{name}@example.org/#") == (ReasonCode.SUCCESS,)
        configure(tmp_path, field="email", denied=("anna@example.org",))
        broker.process.send_signal(signal.SIGHUP)
        await anna.refused(ReasonCode.NOT_AUTHORIZED)
        await bob.silent()
        assert await answer(broker, "anna") == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        assert "the user is in denied of this method" in broker.log
