"""`journal-broker` as users run it: from its configuration to its end, over real sockets."""

from __future__ import annotations

import io
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import trio
import trustme

from broker_adapter.mqtt.cli.main import run
from broker_adapter.mqtt_codec import ReasonCode, Version
from broker_adapter.mqtt_codec.packets import Disconnect
from tests.faults.injection import failing
from tests.mqtt.edges.broker_process import PROGRAM, REPOSITORY, broker_process
from tests.mqtt.edges.listening import client_context, write_certificate
from tests.patience import PATIENCE_S

ALONE = ("--store", "memory:", "--listen", "127.0.0.1:0")

EVERYTHING = """
[broker]
store = "memory:"
[listen]
mqtt = "127.0.0.1:0"
mqtts = "127.0.0.1:0"
websocket = "127.0.0.1:0"
websockets = "127.0.0.1:0"
[tls]
certificate_file = "{certificate}"
key_file = "{key}"
[access]
anonymous = true
[log]
format = "json"
"""


def passwd(monkeypatch: pytest.MonkeyPatch, path: Path, user: str, password: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{password}\n".encode())))
    assert run(["passwd", str(path), user]) == 0


@pytest.mark.slow("starts brokers")
async def test_the_shipped_configuration_starts_a_broker_and_says_that_no_client_is_accepted_yet(
    tmp_path: Path,
) -> None:
    arguments = ("--config", str(REPOSITORY / "conf" / "broker.toml"), *ALONE)
    async with broker_process(tmp_path, *arguments) as broker, broker.client() as client:
        assert broker.ready == f"ready mqtt=127.0.0.1:{broker.ports['mqtt']}"
        assert "no client can connect: no users_file is named under [access]" in broker.log
        assert (await client.connect()).reason_code == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        assert await broker.stop() == 0


@pytest.mark.slow("starts a broker")
async def test_a_start_says_that_users_can_do_nothing_without_a_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = tmp_path / "users"
    passwd(monkeypatch, users, "anna", "one")
    async with (
        broker_process(tmp_path, "--set", f"access.users_file={users}", *ALONE) as broker,
        broker.client() as anna,
    ):
        assert "because users are configured and no rule allows anything: add [[access.rules]]" in broker.log
        assert (await anna.connect("a", username="anna", password=b"one")).reason_code == ReasonCode.SUCCESS
        assert await anna.publish("a", qos=1) == ReasonCode.NOT_AUTHORIZED


@pytest.mark.few_cases(2, "a broker for each listener")
@pytest.mark.parametrize("listener", ["mqtt", "mqtts", "websocket", "websockets"])
@pytest.mark.parametrize("version", list(Version))
async def test_a_client_comes_in_by_every_listener(tmp_path: Path, listener: str, version: Version) -> None:
    files = write_certificate(str(tmp_path))
    config = tmp_path / "broker.toml"
    config.write_text(EVERYTHING.format(certificate=files.certificate, key=files.key))
    async with broker_process(tmp_path, "--config", str(config)) as broker:
        assert list(broker.ports) == ["mqtt", "mqtts", "websocket", "websockets"]
        async with broker.client(listener, version) as client:
            assert (await client.connect("a")).reason_code == ReasonCode.SUCCESS
            await client.subscribe("t", qos=1)
            assert await client.publish("t", b"x" * 100_000, qos=1) == ReasonCode.SUCCESS
            assert (await client.message()).payload == b"x" * 100_000
            await client.leave()
        assert await broker.stop() == 0
        assert "error" not in broker.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_clients_are_notified_when_the_broker_is_stopped(tmp_path: Path, number: signal.Signals) -> None:
    async with broker_process(tmp_path, *ALONE, "--anonymous") as broker:
        async with broker.client() as told, broker.client(version=Version.V311) as closed:
            await told.connect("told")
            await closed.connect("closed")
            broker.process.send_signal(number)
            assert (await told.expect(Disconnect)).reason_code == ReasonCode.SERVER_SHUTTING_DOWN
            await told.closed()
            await closed.closed()
        with trio.fail_after(PATIENCE_S):
            assert await broker.process.wait() == 0
        assert "stopped" in broker.log


@pytest.mark.slow("starts a broker")
async def test_a_client_that_does_not_go_does_not_keep_the_broker(tmp_path: Path) -> None:
    async with broker_process(tmp_path, *ALONE, "--anonymous") as broker:
        async with broker.client() as client:
            await client.connect("stays")
            # It neither reads nor closes.
            with trio.fail_after(PATIENCE_S):
                assert await broker.stop() == 0


async def test_users_and_rules_are_read_again_at_sighup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    users, config = tmp_path / "users", tmp_path / "broker.toml"
    passwd(monkeypatch, users, "anna", "one")
    config.write_text(f'[access]\nusers_file = "{users}"\ndefault = "allow"\n')
    async with broker_process(tmp_path, "--config", str(config), *ALONE) as broker:
        async with broker.client() as anna:
            assert (await anna.connect("a", username="anna", password=b"one")).reason_code == ReasonCode.SUCCESS
            assert await anna.subscribe("secret/x") == (ReasonCode.SUCCESS,)

            passwd(monkeypatch, users, "bob", "two")
            config.write_text(
                config.read_text() + '[[access.rules]]\npermission = "deny"\ntopics = "secret/#"\nuser = "anna"\n'
            )
            broker.process.send_signal(signal.SIGHUP)
            await broker.said("reloaded")
            assert await anna.subscribe("secret/y") == (ReasonCode.NOT_AUTHORIZED,)
            assert await anna.publish("secret/y", qos=1) == ReasonCode.NOT_AUTHORIZED
            assert await anna.unsubscribe("secret/x") == (ReasonCode.NO_SUBSCRIPTION_EXISTED,)

            passwd(monkeypatch, users, "anna", "three")
            broker.process.send_signal(signal.SIGHUP)
            await anna.refused(ReasonCode.NOT_AUTHORIZED)

        async with broker.client() as old:
            answer = await old.connect("a", username="anna", password=b"one")
            assert answer.reason_code == ReasonCode.BAD_USER_NAME_OR_PASSWORD
        async with broker.client() as bob:
            assert (await bob.connect("b", username="bob", password=b"two")).reason_code == ReasonCode.SUCCESS
            assert await bob.subscribe("secret/y") == (ReasonCode.SUCCESS,)

            # What cannot be used changes nothing, in no part.
            config.write_text(f'[access]\nusers_file = "{users}"\ndefault = "deny"\n')
            users.write_text("broken\n")
            broker.process.send_signal(signal.SIGHUP)
            await broker.said("not reloaded, everything stays as it was")
            assert f"{users}, line 1: is not of the form" in broker.log
            assert await bob.subscribe("else") == (ReasonCode.SUCCESS,)
        assert await broker.stop() == 0


@pytest.mark.slow("starts a broker")
async def test_what_is_open_is_told_again_at_sighup_where_it_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users, config = tmp_path / "users", tmp_path / "broker.toml"
    passwd(monkeypatch, users, "anna", "one")
    with_rule = f'[access]\nusers_file = "{users}"\n[[access.rules]]\npermission = "allow"\ntopics = "open/#"\n'
    config.write_text(with_rule)
    told = "What they may publish and subscribe to is denied where 1 rule does not decide."
    nothing = "because users are configured and no rule allows anything"
    async with broker_process(tmp_path, "--config", str(config), *ALONE) as broker:
        assert told not in broker.log
        config.write_text(f'[access]\nusers_file = "{users}"\n')
        broker.process.send_signal(signal.SIGHUP)
        await broker.said(nothing)
        broker.process.send_signal(signal.SIGHUP)
        await broker.said("reloaded", 2)
        # Who needs no password changes only with a restart.
        config.write_text(with_rule.replace("[access]\n", "[access]\nanonymous = true\n"))
        broker.process.send_signal(signal.SIGHUP)
        await broker.said(f"Accepted are 1 user of {users}. {told}")
        assert broker.log.count(nothing) == 1
        users.write_text("")
        broker.process.send_signal(signal.SIGHUP)
        await broker.said(f"no client can connect: {users} has no users")
        assert await broker.stop() == 0


@pytest.mark.slow("starts a broker")
async def test_what_needs_a_restart_is_reported(tmp_path: Path) -> None:
    config = tmp_path / "broker.toml"
    config.write_text("")
    async with broker_process(tmp_path, "--config", str(config), *ALONE) as broker:
        config.write_text('[limits]\nreceive_maximum = 7\n[access]\nanonymous = true\n[log]\nlevel = "debug"\n')
        broker.process.send_signal(signal.SIGHUP)
        await broker.said("changed settings that apply only after a restart")
        assert "sections=['limits', 'log', 'access']" in broker.log
        config.write_text("[limits]\nreceive_maximum = 0\n")
        broker.process.send_signal(signal.SIGHUP)
        await broker.said("receive_maximum = 0 is out of bounds")
        assert await broker.stop() == 0


@pytest.mark.slow("starts a broker")
async def test_certificates_are_read_again(tmp_path: Path) -> None:
    other = trustme.CA()
    files = write_certificate(str(tmp_path))
    config = tmp_path / "broker.toml"
    config.write_text(EVERYTHING.format(certificate=files.certificate, key=files.key))
    async with broker_process(tmp_path, "--config", str(config)) as broker:
        async with broker.client("mqtts") as before:
            await before.connect("before")
            write_certificate(str(tmp_path), authority=other)
            broker.process.send_signal(signal.SIGHUP)
            await broker.said("reloaded")
            async with broker.client("mqtts", context=client_context(other)) as after:
                assert (await after.connect("after")).reason_code == ReasonCode.SUCCESS
            await before.silent()
        assert await broker.stop() == 0


@pytest.mark.slow("starts brokers")
@pytest.mark.parametrize("engine", ["embedded", "rocksdb"])
async def test_a_store_of_its_own_keeps_what_a_broker_was_given(tmp_path: Path, engine: str) -> None:
    arguments = ("--store", f"{engine}:{tmp_path}/data", "--listen", "127.0.0.1:0", "--anonymous")
    async with broker_process(tmp_path, *arguments) as broker:
        async with broker.client() as client:
            await client.connect("a")
            assert await client.publish("state", b"kept", qos=1, retain=True) == ReasonCode.SUCCESS
        assert await broker.stop() == 0
    async with broker_process(tmp_path, *arguments) as broker:
        async with broker.client() as client:
            await client.connect("a")
            await client.subscribe("state")
            assert (await client.message()).payload == b"kept"
        assert await broker.stop() == 0


@pytest.mark.slow("starts brokers")
async def test_a_broker_whose_own_store_failed_ends_with_a_status_of_its_own_and_a_restart_has_everything(
    tmp_path: Path,
) -> None:
    """A broker with an embedded store stayed up after a failed fsync, said that it was ready and stored nothing."""
    arguments = ("--store", f"embedded:{tmp_path}/data", "--listen", "127.0.0.1:0", "--anonymous")
    under = failing("fdatasync:error=EIO:when=60+")
    async with broker_process(tmp_path, *arguments, under=under) as broker:
        acknowledged = 0
        with pytest.raises((trio.EndOfChannel, trio.BrokenResourceError, EOFError, AssertionError)):
            async with broker.client() as client:
                await client.connect("a")
                for number in range(300):
                    if await client.publish("t", b"%d" % number, qos=1, retain=True) != ReasonCode.SUCCESS:
                        raise EOFError
                    acknowledged = number
        with trio.fail_after(PATIENCE_S):
            assert await broker.process.wait() == 74
        assert "stopping, as the store failed" in broker.log
        assert "Traceback" not in broker.log
    assert 0 < acknowledged < 299
    async with broker_process(tmp_path, *arguments) as broker:
        async with broker.client() as client:
            await client.connect("a")
            await client.subscribe("t")
            assert int((await client.message()).payload) >= acknowledged
        assert await broker.stop() == 0


def fail(*arguments: str) -> str:
    """The one line that a broker says which does not start."""
    done = subprocess.run(
        [sys.executable, "-m", PROGRAM, *arguments],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        timeout=PATIENCE_S,
    )
    assert done.returncode in (1, 78), done
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if line.startswith("journal-broker: ")]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return lines[0].removeprefix("journal-broker: ")


@pytest.mark.slow("starts brokers")
def test_what_keeps_a_broker_from_starting_is_one_line_with_the_way_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert fail("--store", "memory:", "--listen", address) == (
            f"cannot listen on {address} (listen.mqtt): Address already in use; choose another with --listen HOST:PORT "
            "or --set listen.mqtt=HOST:PORT, or in the configuration"
        )
    assert "override broker.store: [broker] store = 'redis:' is not a store URL; allowed:" in fail("--store", "redis:")
    assert "must name a directory and nothing else" in fail("--store", "embedded:", "--listen", "127.0.0.1:0")
    assert "/none cannot be read: No such file" in fail("--config", "/none")
    assert "/none cannot be read: No such file" in fail("--set", "access.users_file=/none", *ALONE)


async def test_it_waits_for_its_store_and_may_be_stopped_meanwhile(tmp_path: Path) -> None:
    # Port 1 of the loopback is never a journal.
    log = tmp_path / "log"
    with log.open("wb") as log_file:
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", PROGRAM, "--store", "journal://127.0.0.1:1", "--listen", "127.0.0.1:0"],
            stdout=subprocess.PIPE,
            stderr=log_file,
            cwd=REPOSITORY,
        )
    assert process.stdout is not None
    async with process.stdout:
        with trio.fail_after(PATIENCE_S):
            while "waiting for the store" not in log.read_text():
                await trio.sleep(0.02)
            process.terminate()
            assert await process.wait() == 0
        assert await process.stdout.receive_some() == b""
    assert log.read_text().count("waiting for the store") == 1
