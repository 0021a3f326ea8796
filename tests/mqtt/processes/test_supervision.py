"""The supervisor of the processes of a broker: how they start, follow new settings, and end, in order or not."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from broker_adapter.mqtt_codec import ReasonCode
from broker_adapter.mqtt_codec.packets import Disconnect
from tests.mqtt.edges.broker_process import PROGRAM, REPOSITORY, broker_process
from tests.mqtt.edges.listening import write_certificate
from tests.mqtt.edges.test_broker_process import fail, passwd
from tests.mqtt.processes.several import (
    children,
    client_at,
    frozen,
    journal,
    several_processes,
    until_gone,
    workers,
)
from tests.patience import PATIENCE_S
from tests.ports import free_port

EVERY_LISTENER = """
[listen]
mqtts = "127.0.0.1:0"
websocket = "127.0.0.1:0"
websockets = "127.0.0.1:0"
[tls]
certificate_file = "{certificate}"
key_file = "{key}"
[access]
anonymous = true
"""

pytestmark = pytest.mark.slow("starts a server and a broker of several processes")


@asynccontextmanager
async def broker_without_store(log: Path, *arguments: str) -> AsyncIterator[trio.Process]:
    """A broker that is not ready yet, for the length of the block."""
    with log.open("wb") as log_file:
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", PROGRAM, *arguments], stderr=log_file, stdout=subprocess.DEVNULL, cwd=REPOSITORY
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        with trio.fail_after(PATIENCE_S), trio.CancelScope(shield=True):
            await process.wait()


# Start


async def test_clients_come_in_by_every_listener(tmp_path: Path) -> None:
    files = write_certificate(str(tmp_path))
    config = tmp_path / "broker.toml"
    config.write_text(EVERY_LISTENER.format(certificate=files.certificate, key=files.key))
    async with several_processes(tmp_path, "--config", str(config)) as broker:
        assert list(broker.ports) == ["mqtt", "mqtts", "websocket", "websockets"]
        for listener in broker.ports:
            async with broker.client(listener) as client:
                assert (await client.connect(listener)).reason_code == ReasonCode.SUCCESS
                assert await client.publish("t", qos=1) == ReasonCode.SUCCESS
        assert await broker.stop() == 0


async def test_sigterm_while_its_processes_are_being_started_ends_all_in_order(tmp_path: Path) -> None:
    """It was an internal error whenever one of them had not been started yet."""
    log = tmp_path / "log"
    arguments = ("--store", f"journal://127.0.0.1:{free_port()}", "--processes", "6", "--listen", "127.0.0.1:0")
    async with broker_without_store(log, *arguments) as broker:
        with trio.fail_after(PATIENCE_S):
            while not children(broker.pid):
                await trio.sleep(0)
            broker.terminate()
            assert await broker.wait() == 0
    assert "error" not in log.read_text()
    assert "stopped" in log.read_text()


def test_too_few_open_files_are_one_error(tmp_path: Path) -> None:
    """The supervisor tried again for ever, although none of its processes had ever been ready."""
    store = f"journal://127.0.0.1:{free_port()}"
    program = [sys.executable, "-m", PROGRAM, "--store", store, "--processes", "2", "--listen", "127.0.0.1:0"]
    done = subprocess.run(
        ["prlimit", "--nofile=14:14", *program],
        check=False,
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 1, done
    assert "journal-broker: a process of the broker: it could not be started: [Errno 24]" in done.stderr


def test_a_port_in_use_is_one_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert fail("--processes", "3", "--listen", address) == (
            f"cannot listen on {address} (listen.mqtt): Address already in use; choose another with --listen HOST:PORT "
            "or --set listen.mqtt=HOST:PORT, or in the configuration"
        )


@pytest.mark.parametrize("count", ["1", "2"])
async def test_the_port_of_several_processes_is_in_use_for_every_other_broker(tmp_path: Path, count: str) -> None:
    """With SO_REUSEPORT alone a second broker of the same user would get a part of the clients."""
    # It has no store, so none of its processes listens yet.
    port = free_port()
    log = tmp_path / "first.log"
    without_store = ("--store", "journal://127.0.0.1:1", "--listen", f"127.0.0.1:{port}")
    async with broker_without_store(log, *without_store, "--processes", "2"):
        with trio.fail_after(PATIENCE_S):
            while "waiting for the store" not in log.read_text():
                await trio.sleep(0.02)
        told = await trio.to_thread.run_sync(fail, *without_store, "--processes", count)
        assert told.startswith(f"cannot listen on 127.0.0.1:{port} (listen.mqtt): Address already in use")


async def test_what_keeps_all_processes_from_starting_is_one_error_with_its_status(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[[storage]]\ntopics = "a/#"\nstorage = "memory"\n')
    other = tmp_path / "other.toml"
    other.write_text('[[storage]]\ntopics = "b/#"\nstorage = "memory"\n')
    async with journal(tmp_path) as store:
        listen = ("--listen", "127.0.0.1:0", "--anonymous")
        async with broker_process(tmp_path, "--store", store, "--config", str(rules), *listen) as broker:
            assert await broker.stop() == 0
        arguments = ("--store", store, "--config", str(other), "--processes", "3", *listen)
        told = await trio.to_thread.run_sync(fail, *arguments)
        assert "differ in rules that must be the same at all brokers" in told


def test_settings_that_no_process_could_start_with_are_one_error(tmp_path: Path) -> None:
    assert "belongs to one" in fail("--store", "memory:", "--processes", "2")
    assert "is not a number of processes; allowed: 1 to 64" in fail("--processes", "65")
    assert "max_connections = 2 is less than [broker] processes = 3" in fail(
        "--processes", "3", "--set", "limits.max_connections=2"
    )
    missing = ("--set", "access.users_file=/none", "--processes", "2", "--listen", "127.0.0.1:0")
    assert "/none cannot be read: No such file" in fail(*missing)


# Settings that are read again


async def test_users_reach_all_processes_at_sighup_and_broken_ones_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = tmp_path / "users"
    passwd(monkeypatch, users, "anna", "one")
    arguments = ("--set", f"access.users_file={users}", "--set", "access.default=allow")
    async with several_processes(tmp_path, *arguments) as broker:
        first, second = workers(broker)
        async with (
            client_at(broker, first, "a", username="anna", password=b"one") as at_first,
            client_at(broker, second, "b", username="anna", password=b"one") as at_second,
        ):
            users.write_text("broken\n")
            broker.process.send_signal(signal.SIGHUP)
            await broker.said("not reloaded, everything stays as it was")
            await at_first.silent()
            await at_second.silent()

            users.unlink()
            passwd(monkeypatch, users, "anna", "two")
            broker.process.send_signal(signal.SIGHUP)
            await at_first.refused(ReasonCode.NOT_AUTHORIZED)
            await at_second.refused(ReasonCode.NOT_AUTHORIZED)

        # A process that is started later has them, too.
        os.kill(second, signal.SIGKILL)
        await broker.said("a process of the broker is ready again")
        third = workers(broker)[1]
        async with client_at(broker, third, "c", username="anna", password=b"two") as at_third:
            await at_third.silent()
        assert await broker.stop() == 0


# End


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_all_processes_stop_in_order(tmp_path: Path, number: signal.Signals) -> None:
    async with several_processes(tmp_path, "--anonymous") as broker:
        pids = workers(broker)
        async with client_at(broker, pids[0], "a") as one, client_at(broker, pids[1], "b") as other:
            broker.process.send_signal(number)
            for client in (one, other):
                assert (await client.expect(Disconnect)).reason_code == ReasonCode.SERVER_SHUTTING_DOWN
        with trio.fail_after(PATIENCE_S):
            assert await broker.process.wait() == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
        assert "is started again" not in broker.log
        assert "[error" not in broker.log


async def test_a_frozen_process_does_not_keep_the_others_from_their_end(tmp_path: Path) -> None:
    async with several_processes(tmp_path, "--anonymous") as broker:
        pids = workers(broker)
        with frozen(pids[1]):
            assert await broker.stop() == 1
        assert "process 2 did not stop within 20 s, and was killed" in broker.log
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


async def test_a_supervisor_that_is_killed_leaves_no_process_behind(tmp_path: Path) -> None:
    async with several_processes(tmp_path, "--anonymous") as broker:
        pids = workers(broker)
        async with client_at(broker, pids[0], "a") as one, client_at(broker, pids[1], "b") as other:
            assert await broker.stop(signal.SIGKILL) == -signal.SIGKILL
            for client in (one, other):
                assert (await client.expect(Disconnect)).reason_code == ReasonCode.SERVER_SHUTTING_DOWN
        await until_gone(pids)


async def test_a_supervisor_that_is_killed_while_processes_start_leaves_none_behind(tmp_path: Path) -> None:
    log = tmp_path / "log"
    arguments = ("--store", "journal://127.0.0.1:1", "--listen", "127.0.0.1:0", "--processes", "2")
    async with broker_without_store(log, *arguments) as process:
        pids: list[int] = []
        with trio.fail_after(PATIENCE_S):
            while len(pids) < 2:
                threads = Path(f"/proc/{process.pid}/task").iterdir()
                pids = [int(each) for one in threads for each in (one / "children").read_text().split()]
                await trio.sleep(0.001)
        process.kill()
        await until_gone(pids)


async def test_processes_that_wait_for_their_store_may_be_stopped(tmp_path: Path) -> None:
    log = tmp_path / "log"
    arguments = ("--store", "journal://127.0.0.1:1", "--listen", "127.0.0.1:0", "--processes", "2")
    async with broker_without_store(log, *arguments) as process:
        with trio.fail_after(PATIENCE_S):
            while log.read_text().count("waiting for the store") < 2:
                await trio.sleep(0.02)
            process.terminate()
            assert await process.wait() == 0


async def test_a_process_that_ends_by_itself_is_started_again_with_a_line_that_says_how_it_ended(
    tmp_path: Path,
) -> None:
    async with several_processes(tmp_path, "--anonymous") as broker:
        first, _ = workers(broker)
        os.kill(first, signal.SIGTERM)
        await broker.said("a process of the broker is ready again")
        assert "ended='exit status 0'" in broker.log
        assert len(workers(broker)) == 2
        assert await broker.stop() == 0
