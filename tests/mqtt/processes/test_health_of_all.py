"""Health, metrics and administration of a broker of several processes: one port answers for all."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx
import pytest
import trio

from broker_adapter.mqtt_codec import ReasonCode
from tests.mqtt.edges.broker_process import BrokerProcess
from tests.mqtt.edges.test_broker_process import passwd
from tests.mqtt.edges.test_health import Answer, ask, until
from tests.mqtt.processes.several import WITH_HTTP, client_at, frozen, several_processes, workers
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.slow("starts a server and a broker of several processes")


async def until_ready(broker: BrokerProcess) -> None:
    await until(broker, "/readyz", lambda answer: answer.status == 200)


async def test_a_broker_is_ready_only_while_all_its_processes_are(tmp_path: Path) -> None:
    async with several_processes(tmp_path, "--anonymous", *WITH_HTTP) as broker:
        assert list(broker.ports) == ["mqtt", "http"]
        ready = await ask(broker, "/readyz")
        assert (ready.status, ready.text) == (200, "ready\n")

        pid = workers(broker)[1]
        with frozen(pid):
            silent = await until(broker, "/readyz", lambda answer: answer.status == 503)
            assert silent.text == "not ready: process 2: it does not answer\n"
            live = await ask(broker, "/livez")
            assert (live.status, live.text) == (503, "no answer from process 2\n")
            metrics = await ask(broker, "/metrics")
            assert metrics.value("journal_broker_ready", process="1") == 1
            assert metrics.value("journal_broker_ready", process="2") == 0
        await until_ready(broker)
        assert (await ask(broker, "/livez")).text == "ok\n"

        os.kill(pid, signal.SIGKILL)
        killed = await until(broker, "/readyz", lambda answer: answer.status == 503)
        assert killed.text.startswith("not ready: process 2: ")
        assert (await ask(broker, "/livez")).status == 200
        await until_ready(broker)
        metrics = await ask(broker, "/metrics")
        assert metrics.value("journal_broker_process_restarts_total", process="2") == 1
        assert await broker.stop() == 0


async def test_metrics_add_up_over_all_processes_and_restarts(tmp_path: Path) -> None:
    limit = ("--set", "limits.max_connections=101")
    async with several_processes(tmp_path, "--anonymous", *WITH_HTTP, *limit) as broker:
        first, second = workers(broker)
        async with client_at(broker, first, "a") as one, client_at(broker, second, "b") as other:
            for _ in range(3):
                assert await one.publish("t", b"12345", qos=1) == ReasonCode.SUCCESS
            for _ in range(4):
                assert await other.publish("t", b"12345", qos=1) == ReasonCode.SUCCESS
            metrics = await ask(broker, "/metrics")
            assert metrics.value("journal_broker_received_messages_total", qos="1") == 7
            assert metrics.value("journal_broker_received_message_bytes_total", qos="1") == 35
            assert metrics.value("journal_broker_acknowledgement_seconds_count") == 7
            assert metrics.value("journal_broker_acknowledgement_seconds_bucket", le="+Inf") == 7
            assert metrics.value("journal_broker_sessions") == 2
            assert metrics.value("journal_broker_connections_limit") == 101
            assert {labels["process"] for labels, _ in metrics.series("process_resident_memory_bytes")} == {
                "1",
                "2",
                "supervisor",
            }
            parts = [await ask(broker, f"/metrics?process={number}") for number in (1, 2)]
            assert [each.value("journal_broker_received_messages_total", qos="1") for each in parts] == [3, 4]
            assert [each.value("journal_broker_connections_limit") for each in parts] == [51, 50]
            unknown = await ask(broker, "/metrics?process=3")
            assert (unknown.status, unknown.text) == (404, "only process=NUMBER can be asked for, from 1 to 2\n")

            os.kill(second, signal.SIGKILL)
            await broker.said("a process of the broker is ready again")
            metrics = await ask(broker, "/metrics")
            assert metrics.value("journal_broker_received_messages_total", qos="1") == 7
            assert metrics.value("journal_broker_sessions") == 1
        _, third = workers(broker)
        async with client_at(broker, third, "c") as client:
            assert await client.publish("t", b"12345", qos=1) == ReasonCode.SUCCESS
        metrics = await ask(broker, "/metrics")
        assert metrics.value("journal_broker_received_messages_total", qos="1") == 8
        assert await broker.stop() == 0


async def test_more_connections_than_the_limit_of_all_processes_are_refused(tmp_path: Path) -> None:
    limit = ("--set", "limits.max_connections=3")
    async with several_processes(tmp_path, "--anonymous", *WITH_HTTP, *limit) as broker:
        streams = []
        for _ in range(30):
            streams.append(await trio.open_tcp_stream("127.0.0.1", broker.ports["mqtt"]))

        def all_decided(answer: Answer) -> bool:
            refused = answer.value("journal_broker_connections_refused_total", reason="max_connections")
            return refused + answer.value("journal_broker_connections", listener="mqtt") == len(streams)

        metrics = await until(broker, "/metrics", all_decided)
        assert metrics.value("journal_broker_connections", listener="mqtt") == 3
        for stream in streams:
            await stream.aclose()
        assert await broker.stop() == 0


async def test_beyond_the_loopback_metrics_need_a_user_and_health_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = tmp_path / "users"
    passwd(monkeypatch, users, "anna", "one")
    arguments = ("--set", f"access.users_file={users}", "--set", "listen.http=0.0.0.0:0")
    async with several_processes(tmp_path, *arguments) as broker:
        assert (await ask(broker, "/readyz")).status == 200
        for path in ("/metrics", "/metrics?process=2"):
            assert (await ask(broker, path)).status == 401
            assert (await ask(broker, path, auth=("anna", "two"))).status == 401
            assert (await ask(broker, path, auth=("anna", "one"))).status == 200
        for path in ("/admission", "/families"):
            assert (await ask(broker, path)).status == 404
        assert await broker.stop() == 0


async def test_administrators_reach_the_clients_of_all_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users, config = tmp_path / "users", tmp_path / "broker.toml"
    passwd(monkeypatch, users, "anna", "one")
    config.write_text(f'[access]\nusers_file = "{users}"\nadministrators = ["anna"]\nanonymous = true\n')
    async with several_processes(tmp_path, "--config", str(config), *WITH_HTTP) as broker:
        base, anna = f"http://127.0.0.1:{broker.ports['http']}/api/v1", ("anna", "one")
        async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as http:
            for number, pid in enumerate(workers(broker)):
                async with client_at(broker, pid, f"client-{number}") as client:
                    path = f"{base}/client?client_id=client-{number}"
                    assert (await http.request("DELETE", path)).status_code == 401
                    assert (await http.request("DELETE", path, auth=anna)).status_code == 200
                    await client.refused(ReasonCode.ADMINISTRATIVE_ACTION)
            rules = (await http.get(f"{base}/rules", auth=anna)).json()
            assert len(rules["brokers"]) == 2
            ban = {"kind": "client", "name": "client-0"}
            assert (await http.post(f"{base}/bans", auth=anna, json=ban)).status_code in (200, 201)
        for _ in range(20):
            async with broker.client() as client:
                assert (await client.connect("client-0")).reason_code == ReasonCode.BANNED
        assert await broker.stop() == 0


async def test_a_bridge_is_driven_by_one_process_also_after_that_was_killed(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    # Nothing listens at port 1 of the loopback.
    config.write_text(
        '[[bridge]]\nname = "out"\ntopics = "a/#"\nsink = { type = "http", url = "http://127.0.0.1:1/r" }\n'
    )

    def drivers(answer: Answer) -> set[str]:
        states = answer.series("journal_broker_bridge_state")
        return {labels["process"] for labels, value in states if value and labels["state"] != "standing by"}

    async with several_processes(tmp_path, "--anonymous", "--config", str(config), *WITH_HTTP) as broker:
        metrics = await until(broker, "/metrics", lambda answer: len(drivers(answer)) == 1)
        assert len([value for _, value in metrics.series("journal_broker_bridge_state") if value]) == 2
        (driver,) = drivers(metrics)
        os.kill(workers(broker)[int(driver) - 1], signal.SIGKILL)
        await broker.said("a process of the broker is ready again")
        await until(broker, "/metrics", lambda answer: len(drivers(answer)) == 1)
        assert await broker.stop() == 0
