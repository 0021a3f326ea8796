"""What `journal-broker` reports about itself over HTTP: a real process, pages read as Prometheus reads them."""

from __future__ import annotations

import signal
import ssl
from collections.abc import Callable
from pathlib import Path

import attrs
import httpx
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from broker_adapter.mqtt.access.users import AccessControl
from broker_adapter.mqtt.config import load_broker_config
from broker_adapter.mqtt.telemetry.health import Health
from broker_adapter.mqtt.telemetry.metrics import broker_pages
from broker_adapter.mqtt_codec import Properties, ReasonCode, Version
from broker_adapter.mqtt_codec.packets import Disconnect
from journal.access.login_methods import Credentials, Logins
from journal.access.rules import AccessRules
from journal.access.users import read_users
from journal.net.origins import Origins
from journal.settings.values import ConfigurationError
from journal.telemetry.http_pages import Request
from tests.mqtt.cluster.processes import journal_server
from tests.mqtt.edges.broker_process import BrokerProcess, broker_process
from tests.mqtt.edges.listening import client_context, write_certificate
from tests.mqtt.edges.test_broker_process import passwd
from tests.patience import PATIENCE_S
from tests.ports import free_port

WITH_HTTP = ("--listen", "127.0.0.1:0", "--anonymous", "--set", "listen.http=127.0.0.1:0")
ALONE = ("--store", "memory:", *WITH_HTTP)


@attrs.frozen
class Answer:
    """Status, body and, of `/metrics`, values by name and labels."""

    status: int
    text: str
    headers: httpx.Headers

    def series(self, name: str) -> list[tuple[dict[str, str], float]]:
        """Labels and values of all samples of this name."""
        return [
            (sample.labels, sample.value)
            for family in text_string_to_metric_families(self.text)
            for sample in family.samples
            if sample.name == name
        ]

    def value(self, name: str, **labels: str) -> float:
        """Of the one sample with these labels."""
        (value,) = [value for found, value in self.series(name) if found == labels]
        return value


async def ask(
    broker: BrokerProcess,
    path: str,
    *,
    method: str = "GET",
    auth: tuple[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
) -> Answer:
    async with httpx.AsyncClient(trust_env=False, verify=tls or False, timeout=PATIENCE_S) as client:
        scheme = "http" if tls is None else "https"
        reply = await client.request(method, f"{scheme}://127.0.0.1:{broker.ports['http']}{path}", auth=auth)
    return Answer(reply.status_code, reply.text, reply.headers)


async def until(broker: BrokerProcess, path: str, is_so: Callable[[Answer], bool]) -> Answer:
    """Ask until the answer is as wanted."""
    with trio.fail_after(PATIENCE_S):
        while not is_so(answer := await ask(broker, path)):
            await trio.sleep(0.05)
    return answer


async def nobody_is_connected(broker: BrokerProcess) -> Answer:
    """Wait until the broker has let go of all clients."""
    return await until(
        broker,
        "/metrics",
        lambda answer: not any(value for _, value in answer.series("journal_broker_connections")),
    )


# Readiness


@pytest.mark.slow("starts a server and a broker, more than once")
async def test_a_broker_is_ready_while_its_store_answers_and_says_why_it_is_not(tmp_path: Path) -> None:
    """A broker that stayed ready while its store was away would keep its clients from the others."""
    server = journal_server(tmp_path, port := free_port())
    server.start()
    try:
        async with broker_process(tmp_path, "--store", f"journal://127.0.0.1:{port}", *WITH_HTTP) as broker:
            ready = await ask(broker, "/readyz")
            assert (ready.status, ready.text) == (200, "ready\n")
            assert (await ask(broker, "/metrics")).value("journal_broker_store_up") == 1

            server.end(signal.SIGKILL)
            lost = await until(broker, "/readyz", lambda answer: answer.status == 503)
            assert lost.text.startswith(f"not ready: the store journal://127.0.0.1:{port} has not answered for ")
            told = await ask(broker, "/metrics")
            assert told.value("journal_broker_ready") == told.value("journal_broker_store_up") == 0
            assert told.value("journal_broker_store_losses_total") == 1
            assert (await ask(broker, "/livez")).status == 200

            server.start()
            await until(broker, "/readyz", lambda answer: answer.status == 200)
            told = await ask(broker, "/metrics")
            assert told.value("journal_broker_ready") == told.value("journal_broker_store_up") == 1
            assert "the store answers again" in broker.log
            async with broker.client() as client:
                await client.connect("a")
                assert await client.publish("t", qos=1) == ReasonCode.SUCCESS
            assert await broker.stop() == 0
    finally:
        server.end(signal.SIGKILL)


@pytest.mark.slow("starts servers and brokers")
async def test_a_broker_that_waits_for_its_store_says_so_before_it_takes_clients(tmp_path: Path) -> None:
    server = journal_server(tmp_path, port := free_port())
    http = free_port()
    arguments = ("--store", f"journal://127.0.0.1:{port}", *WITH_HTTP[:-1], f"listen.http=127.0.0.1:{http}")
    answers: list[httpx.Response] = []

    async def look_then_start_the_server() -> None:
        base = f"http://127.0.0.1:{http}"
        async with httpx.AsyncClient(trust_env=False, base_url=base, timeout=PATIENCE_S) as client:
            with trio.fail_after(PATIENCE_S):
                while not answers:
                    try:
                        answers.extend([await client.get(path) for path in ("/livez", "/readyz", "/metrics")])
                    except httpx.ConnectError:
                        await trio.sleep(0.02)
        await trio.to_thread.run_sync(server.start)

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(look_then_start_the_server)
            async with broker_process(tmp_path, *arguments) as broker:
                live, ready, metrics = answers
                assert (live.status_code, ready.status_code, metrics.status_code) == (200, 503, 200)
                assert ready.text == f"not ready: the store journal://127.0.0.1:{port} has not answered yet\n"
                assert "journal_broker_ready 0" in metrics.text
                await until(broker, "/readyz", lambda answer: answer.status == 200)
                assert await broker.stop() == 0
    finally:
        server.end(signal.SIGKILL)


@pytest.mark.slow("starts a broker")
async def test_a_broker_that_stops_says_so_until_its_last_client_is_gone(tmp_path: Path) -> None:
    async with broker_process(tmp_path, *ALONE) as broker:
        # It neither reads nor closes, so that the broker has to wait for it.
        async with broker.client() as client:
            await client.connect("stays")
            broker.process.send_signal(signal.SIGTERM)
            stopping = await until(broker, "/readyz", lambda answer: answer.status == 503)
            assert stopping.text == "not ready: the broker is stopping\n"
            assert (await ask(broker, "/livez")).status == 200
        with trio.fail_after(PATIENCE_S):
            assert await broker.process.wait() == 0


# Metrics


async def test_metrics_tell_what_clients_did(tmp_path: Path) -> None:
    async with broker_process(tmp_path, *ALONE) as broker:
        async with broker.client() as one, broker.client(version=Version.V311) as other:
            await one.connect("one", properties=Properties(session_expiry_interval=60))
            await other.connect("other")
            await one.subscribe("t/#", qos=1)
            await one.subscribe("$share/g/s", qos=1)
            assert await other.publish("t/0", b"12345", qos=1) == ReasonCode.SUCCESS
            assert await other.publish("t/1", b"123", qos=2) == ReasonCode.SUCCESS
            await other.publish("t/2", b"1", qos=0)
            for _ in range(3):
                await one.message()
            told = await ask(broker, "/metrics")
            assert told.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
            assert told.value("journal_broker_connections", listener="mqtt") == 2
            assert told.value("journal_broker_sessions") == 2
            assert told.value("journal_broker_durable_sessions") == 1
            assert told.value("journal_broker_subscriptions", kind="own") == 1
            assert told.value("journal_broker_subscriptions", kind="shared") == 1
            received = [told.value("journal_broker_received_messages_total", qos=str(qos)) for qos in range(3)]
            assert received == [1, 1, 1]
            payloads = [told.value("journal_broker_received_message_bytes_total", qos=str(qos)) for qos in range(3)]
            assert payloads == [1, 5, 3]
            # The subscription takes no more than QoS 1.
            sent = [told.value("journal_broker_sent_messages_total", qos=str(qos)) for qos in range(3)]
            assert sent == [1, 2, 0]
            assert told.value("journal_broker_acknowledgement_seconds_count") == 2
            assert told.value("journal_broker_delivery_seconds_count") == 3
            assert 0 < told.value("journal_broker_delivery_seconds_sum") < PATIENCE_S
            await until(broker, "/metrics", lambda answer: answer.value("journal_broker_loop_late_seconds_count") > 0)
        gone = await nobody_is_connected(broker)
        assert gone.value("journal_broker_connections_opened_total", listener="mqtt") == 2
        assert await broker.stop() == 0


@pytest.mark.slow("starts servers and brokers")
async def test_metrics_tell_why_connections_were_refused_or_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users, config = tmp_path / "users", tmp_path / "broker.toml"
    passwd(monkeypatch, users, "anna", "one")
    files = write_certificate(str(tmp_path))
    config.write_text(f"""
[broker]
store = "memory:"
[listen]
mqtt = "127.0.0.1:0"
mqtts = "127.0.0.1:0"
websocket = "127.0.0.1:0"
http = "127.0.0.1:0"
[tls]
certificate_file = "{files.certificate}"
key_file = "{files.key}"
[access]
users_file = "{users}"
[limits]
max_connections = 2
connect_timeout_s = 1
""")
    known = {"username": "anna", "password": b"one"}
    async with broker_process(tmp_path, "--config", str(config)) as broker:
        async with broker.client() as stranger:
            await stranger.connect("a", username="anna", password=b"two")
        await nobody_is_connected(broker)
        for listener in ("mqtts", "websocket"):
            async with await trio.open_tcp_stream("127.0.0.1", broker.ports[listener]) as no_handshake:
                await no_handshake.send_all(b"\x00" * 100)
                await no_handshake.send_eof()
                await no_handshake.receive_some()
            await nobody_is_connected(broker)
        async with broker.client() as silent:
            await silent.closed()
        await nobody_is_connected(broker)
        async with broker.client() as first, broker.client() as second:
            await first.connect("a", **known)
            await second.connect("a", **known)
            assert (await first.expect(Disconnect)).reason_code == ReasonCode.SESSION_TAKEN_OVER
        await nobody_is_connected(broker)
        async with broker.client() as rude:
            await rude.connect("b", **known)
            await rude.stream.send_all(b"\xf0\x00\xf0\x00")
            assert (await rude.expect(Disconnect)).reason_code == ReasonCode.PROTOCOL_ERROR
        await nobody_is_connected(broker)
        async with broker.client() as one, broker.client() as two, broker.client() as three:
            await one.connect("c", **known)
            await two.connect("d", **known)
            await three.closed()
        told = await ask(broker, "/metrics")
        refused, ended = (
            {
                labels["reason"]: value
                for labels, value in told.series(f"journal_broker_connections_{what}_total")
                if value
            }
            for what in ("refused", "ended")
        )
        assert refused == {"credentials": 1, "handshake": 2, "no_connect": 1, "max_connections": 1}
        assert ended == {"taken_over": 1, "protocol": 1}
        assert await broker.stop() == 0


@pytest.mark.slow("starts a broker")
async def test_metrics_tell_what_is_dropped(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    rule = '[[access.rules]]\npermission = "deny"\ntopics = "secret"\naction = "publish"\n'
    config.write_text(f'[access]\ndefault = "allow"\n{rule}')
    async with broker_process(tmp_path, "--config", str(config), *ALONE) as broker:
        async with broker.client(version=Version.V311) as client:
            await client.connect("a")
            assert await client.publish("secret", qos=1) == ReasonCode.SUCCESS
            await client.publish("secret", qos=0)
            assert await client.publish("open", qos=1) == ReasonCode.SUCCESS
            told = await ask(broker, "/metrics")
        assert told.value("journal_broker_dropped_messages_total", reason="not_allowed") == 2
        assert await broker.stop() == 0


@pytest.mark.slow("starts servers and brokers")
async def test_metrics_tell_what_is_done_for_bridges(tmp_path: Path) -> None:
    config, rows = tmp_path / "broker.toml", tmp_path / "rows"
    rows.mkdir()
    config.write_text(
        f'[[bridge]]\nname = "out"\ntopics = "#"\nsink = {{ type = "http", url = "http://127.0.0.1:{free_port()}" }}\n'
        f'[[bridge]]\nname = "files"\ntopics = "#"\nsink = {{ type = "files", directory = "{rows}" }}\n'
        f'[[bridge]]\nname = "others"\ntopics = "#"\ndrive = false\n'
        f'sink = {{ type = "files", directory = "{rows}" }}\n'
    )

    def states(answer: Answer) -> dict[str, str]:
        return {
            labels["bridge"]: labels["state"] for labels, value in answer.series("journal_broker_bridge_state") if value
        }

    async with broker_process(tmp_path, "--config", str(config), *ALONE) as broker:
        wanted = {"out": "down", "files": "ok"}
        await until(broker, "/metrics", lambda answer: states(answer) == wanted)
        assert (await ask(broker, "/readyz")).status == 200, "a sink that is out is no reason to send clients away"
        assert await broker.stop() == 0


# Who may look


@pytest.mark.slow("starts servers and brokers")
@pytest.mark.parametrize("encrypted", [False, True])
async def test_beyond_the_loopback_metrics_are_for_users_and_health_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encrypted: bool
) -> None:
    users, config = tmp_path / "users", tmp_path / "broker.toml"
    passwd(monkeypatch, users, "anna", "one:two")
    text = '[broker]\nstore = "memory:"\n[listen]\nmqtt = "127.0.0.1:0"\nhttp = "0.0.0.0:0"\n'
    text += f'[access]\nusers_file = "{users}"\n'
    tls = None
    if encrypted:
        files, tls = write_certificate(str(tmp_path)), client_context()
        text += f'[tls]\ncertificate_file = "{files.certificate}"\nkey_file = "{files.key}"\n'
    config.write_text(text)
    async with broker_process(tmp_path, "--config", str(config)) as broker:
        assert (await ask(broker, "/livez", tls=tls)).status == 200
        assert (await ask(broker, "/readyz", tls=tls)).status == 200
        asked = await ask(broker, "/metrics", tls=tls)
        assert (asked.status, asked.headers["www-authenticate"].partition(" ")[0]) == (401, "Basic")
        assert "journal_broker" not in asked.text
        assert (await ask(broker, "/metrics", auth=("anna", "two"), tls=tls)).status == 401
        assert (await ask(broker, "/metrics", auth=("anna", "one:two"), tls=tls)).status == 200
        assert await broker.stop() == 0


def test_it_is_not_opened_to_other_machines_by_mistake(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text('[listen]\nhttp = "0.0.0.0:7424"\n')
    with pytest.raises(
        ConfigurationError, match=r"http = '0\.0\.0\.0:7424' can be reached from other machines.*access\.users_file"
    ):
        load_broker_config(config)
    assert load_broker_config(config, {"access.anonymous": True}).listen.http == "0.0.0.0:7424"
    assert load_broker_config(config, {"access.users_file": "users"}).listen.http == "0.0.0.0:7424"


@pytest.mark.parametrize("header", ["", "Bearer x", "Basic", "Basic ???", "Basic YW5uYQ==", "Basic /zp4"])
async def test_credentials_that_cannot_be_read_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, header: str
) -> None:
    passwd(monkeypatch, tmp_path / "users", "anna", "one")
    access = AccessControl(
        Logins(Credentials(users=read_users(str(tmp_path / "users")))), AccessRules([], default=True), anonymous=False
    )
    pages = broker_pages(Health("memory:", lambda: False), 1, access, Origins())
    assert (
        await pages["/metrics"](Request("/metrics", header, "127.0.0.1", headers={"host": "127.0.0.1"}))
    ).status == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "127.0.0.1:7424"}, 200),
        ({"host": "localhost:7424"}, 200),
        ({"host": "plant.example:7424"}, 200),
        ({"host": "rebound.example"}, 403),
        ({}, 403),
        ({"host": "127.0.0.1:7424", "origin": "https://evil.example"}, 403),
        ({"host": "127.0.0.1:7424", "origin": "https://plant.example"}, 200),
    ],
)
async def test_a_web_page_of_another_site_does_not_read_the_metrics(headers: dict[str, str], status: int) -> None:
    """On loopback no password is asked, and a page can have its own name resolved to this machine."""
    pages = broker_pages(Health("memory:", lambda: False), 1, None, Origins(["https://plant.example"]))
    reply = await pages["/metrics"](Request("/metrics", "", "127.0.0.1", headers=headers))
    assert reply.status == status
