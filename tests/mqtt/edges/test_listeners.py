"""Clients of all four kinds against real sockets, and peers that misbehave before they said anything."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from pathlib import Path

import pytest
import trio
import trustme
from trio_websocket import ConnectionClosed

from broker_adapter.mqtt.transport.listeners import ListenerLimits, Peer
from broker_adapter.mqtt.transport.streams import LimitsUnaccepted, TcpStream, TlsStream, WebSocketStream
from journal.access.certificates import server_context
from journal.net.origins import Origins
from journal.settings.values import ConfigurationError
from tests.mqtt.edges.listening import AUTHORITY, client_context, echo, logged, serving, tls_of, write_certificate
from tests.patience import PATIENCE_S


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    return tls_of(write_certificate(str(tmp_path_factory.mktemp("certificates"))))


async def exchange(stream: trio.abc.Stream, data: bytes) -> bytes:
    await stream.send_all(data)
    received = b""
    while len(received) < len(data):
        received += await stream.receive_some()
    return received


async def test_a_client_over_tcp_is_logged_with_its_address_and_counted() -> None:
    seen: list[tuple[type, Peer]] = []

    async def note(stream: trio.abc.Stream, peer: Peer) -> None:
        seen.append((type(stream), peer))
        await echo(stream, peer)

    async with serving(note) as served:
        async with await served.connect() as client:
            assert await exchange(client, b"hello") == b"hello"
            port = client.socket.getsockname()[1]
            assert seen == [(TcpStream, Peer(f"127.0.0.1:{port}", "mqtt"))]
            assert seen[0][1].host == "127.0.0.1"
            assert served.listeners.connection_count == 1
        await served.listeners.wait_empty()
        assert served.listeners.connection_count == 0


async def test_small_packets_are_not_delayed() -> None:
    delays: list[int] = []

    async def note(stream: trio.abc.Stream, peer: Peer) -> None:
        assert isinstance(stream, TcpStream)
        delays.append(stream._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        await echo(stream, peer)

    async with serving(note) as served, await served.connect() as client:
        await exchange(client, b"x")
    assert delays == [1]


async def test_a_client_over_tls(tls: ssl.SSLContext) -> None:
    async with serving(names=("mqtts",), tls=tls) as served:
        client = await served.connect_tls()
        async with client:
            assert client.version() in ("TLSv1.2", "TLSv1.3")
            data = bytes(range(256)) * 4096
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.send_all, data)
                received = b""
                while len(received) < len(data):
                    received += await client.receive_some()
            assert received == data


async def test_the_end_is_said_by_the_rules_of_tls(tls: ssl.SSLContext) -> None:
    """A client library reports a connection that just closes as an attack."""
    async with serving(names=("mqtts",), tls=tls) as served, await served.connect_tls() as client:
        assert await exchange(client, b"quit") == b"quit"
        assert await client.receive_some() == b""


async def test_a_client_that_leaves_tls_without_a_word_is_gone_and_no_error(tls: ssl.SSLContext) -> None:
    ended = trio.Event()

    async def until_end(stream: trio.abc.Stream, peer: Peer) -> None:
        assert isinstance(stream, TlsStream)
        while await stream.receive_some():
            pass
        ended.set()

    async with serving(until_end, names=("mqtts",), tls=tls) as served:
        client = await served.connect_tls()
        await client.send_all(b"x")
        await client.transport_stream.aclose()
        await ended.wait()
        await served.listeners.wait_empty()


async def test_tls_older_than_1_2_is_refused(tls: ssl.SSLContext) -> None:
    old = client_context()
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    async with serving(names=("mqtts",), tls=tls) as served:
        with logged() as logs:
            with pytest.raises(trio.BrokenResourceError):
                await served.connect_tls(context=old)
            await served.listeners.wait_empty()
        assert "unsupported protocol" in logs[0]["reason"]
        async with await served.connect_tls() as client:
            assert await exchange(client, b"next") == b"next"


def is_turned_away(context: ssl.SSLContext, port: int) -> bool:
    """Whether a client gets no further than the handshake; in TLS 1.3 it learns of that when it reads."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as sock:
        try:
            with context.wrap_socket(sock, server_hostname="127.0.0.1") as client:
                client.sendall(b"hello")
                return not client.recv(100)
        except (ssl.SSLError, ConnectionError):
            return True


async def test_only_a_client_with_a_certificate_of_the_authority_is_accepted(tmp_path: Path) -> None:
    files = write_certificate(str(tmp_path))
    known, stranger = client_context(), client_context()
    AUTHORITY.issue_cert("sensor-1").configure_cert(known)
    trustme.CA().issue_cert("sensor-1").configure_cert(stranger)
    reached: list[Peer] = []

    async def note(stream: trio.abc.Stream, peer: Peer) -> None:
        reached.append(peer)
        await echo(stream, peer)

    async with serving(note, names=("mqtts",), tls=tls_of(files, clients=True)) as served:
        for context in (stranger, client_context()):
            assert await trio.to_thread.run_sync(is_turned_away, context, served.ports["mqtts"])
        assert not reached
        async with await served.connect_tls(context=known) as client:
            assert await exchange(client, b"hello") == b"hello"


async def test_new_connections_get_an_exchanged_certificate_and_open_ones_go_on(tmp_path: Path) -> None:
    other = trustme.CA()
    old, new = (
        write_certificate(str(tmp_path), authority=authority, name=name)
        for authority, name in ((AUTHORITY, "old"), (other, "new"))
    )
    async with serving(names=("mqtts",), tls=tls_of(old)) as served, await served.connect_tls() as before:
        served.listeners.tls = tls_of(new)
        async with await served.connect_tls(context=client_context(other)) as after:
            assert await exchange(after, b"new") == b"new"
        assert await exchange(before, b"old") == b"old"


@pytest.mark.parametrize("secure", [False, True])
async def test_a_client_over_a_websocket(secure: bool, tls: ssl.SSLContext) -> None:
    name = "websockets" if secure else "websocket"
    kinds: list[type] = []

    async def note(stream: trio.abc.Stream, peer: Peer) -> None:
        kinds.append(type(stream))
        assert peer.transport == name
        await echo(stream, peer)

    async with serving(note, names=(name,), tls=tls) as served:
        async with served.websocket(name, ["x", "mqtt"]) as client:
            assert client.subprotocol == "mqtt"
            # Parts of a packet and several packets in a message are the same to the broker: bytes in a row.
            for part in (b"a", b"bc", b"", b"d" * 100_000):
                await client.send_message(part)
            received = b""
            while len(received) < 100_003:
                message = await client.get_message()
                assert isinstance(message, bytes)
                received += message
            assert received == b"abc" + b"d" * 100_000
    assert kinds == [WebSocketStream]


async def test_a_part_of_a_message_can_be_received() -> None:
    parts: list[bytes | bytearray] = []

    async def in_parts(stream: trio.abc.Stream, peer: Peer) -> None:
        while data := await stream.receive_some(2):
            parts.append(data)

    async with serving(in_parts, names=("websocket",)) as served:
        async with served.websocket() as client:
            await client.send_message(b"abcde")
            await client.send_message(b"f")
        await served.listeners.wait_empty()
    assert parts == [b"ab", b"cd", b"e", b"f"]


async def test_a_text_message_ends_the_connection() -> None:
    async with serving(names=("websocket",)) as served:
        async with served.websocket() as client:
            await client.send_message("text")
            with pytest.raises(ConnectionClosed) as closed:
                await client.get_message()
            assert closed.value.reason is not None
            assert closed.value.reason.code == 1003


@pytest.mark.parametrize("offer", [b"", b"Sec-WebSocket-Protocol: mqttv3.1\r\n"])
async def test_a_websocket_of_another_protocol_is_refused_with_the_reason(offer: bytes) -> None:
    async with serving(names=("websocket",)) as served, await served.connect("websocket") as client:
        await client.send_all(
            b"GET /mqtt HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" + offer + b"\r\n"
        )
        answer = b""
        while data := await client.receive_some():
            answer += data
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.endswith(b"offer the sub-protocol mqtt\n")


@pytest.mark.parametrize(
    ("origin", "listed", "status"),
    [
        ("http://127.0.0.1:8000", (), 101),
        ("http://localhost", (), 101),
        ("https://evil.example", (), 403),
        ("null", (), 403),
        ("https://app.example", ("https://app.example",), 101),
        ("https://app.example.evil.example", ("https://app.example",), 403),
        ("https://evil.example", ("*",), 101),
    ],
)
async def test_only_pages_of_this_machine_and_listed_ones_open_a_websocket(
    origin: str, listed: tuple[str, ...], status: int
) -> None:
    """A page of any site could have the browsers of its visitors connect to a broker in their network."""
    async with (
        serving(names=("websocket",), origins=Origins(listed)) as served,
        await served.connect("websocket") as client,
    ):
        await client.send_all(
            b"GET /mqtt HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Protocol: mqtt\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nOrigin: " + origin.encode() + b"\r\n\r\n"
        )
        answer = await client.receive_some()
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())


async def test_longer_messages_are_accepted_once_the_client_is() -> None:
    """A client without a password could have eight megabytes buffered."""

    async def accept_at_once(stream: trio.abc.Stream, _peer: Peer) -> None:
        first = await stream.receive_some()
        assert isinstance(stream, LimitsUnaccepted)
        if first == b"accept":
            stream.peer_accepted()
        await stream.send_all(b"go on")
        received = len(await stream.receive_some())
        await stream.send_all(str(received).encode())

    async with serving(accept_at_once, names=("websocket",)) as served:
        for first, is_accepted in ((b"accept", True), (b"refuse", False)):
            async with served.websocket() as client:
                await client.send_message(first)
                assert await client.get_message() == b"go on"
                with suppress(ConnectionClosed):
                    await client.send_message(bytes(300_000))
                if is_accepted:
                    assert await client.get_message() == b"300000"
                    continue
                with pytest.raises(ConnectionClosed) as closed:
                    await client.get_message()
                assert closed.value.reason is not None
                assert closed.value.reason.code == 1009


async def test_a_message_over_the_limit_ends_the_connection() -> None:
    limits = ListenerLimits(max_message_bytes=1000)
    async with serving(names=("websocket",), limits=limits) as served:
        async with served.websocket() as client:
            await client.send_message(bytes(1001))
            with pytest.raises(ConnectionClosed) as closed:
                await client.get_message()
            assert closed.value.reason is not None
            assert closed.value.reason.code == 1009


@pytest.mark.parametrize("name", ["mqtts", "websocket", "websockets"])
async def test_a_peer_that_begins_and_says_no_more_is_let_go(name: str, tls: ssl.SSLContext) -> None:
    limits = ListenerLimits(handshake_timeout_s=0.1)
    async with serving(names=(name,), limits=limits, tls=tls) as served:
        async with await served.connect(name) as client:
            await client.send_all(b"\x16" if name != "websocket" else b"GET / HTTP/1.1\r\n")
            assert await client.receive_some() == b""
        await served.listeners.wait_empty()


@pytest.mark.parametrize("name", ["mqtts", "websocket", "websockets"])
async def test_bytes_that_are_no_handshake_end_their_connection_and_no_other(name: str, tls: ssl.SSLContext) -> None:
    async with serving(names=(name, "mqtt"), tls=tls) as served, await served.connect() as other:
        async with await served.connect(name) as client:
            await client.send_all(b"\x10\x0c\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x00\r\n\r\n")
            with trio.move_on_after(5) as waited:
                try:
                    while await client.receive_some():
                        pass
                except trio.BrokenResourceError:
                    pass
            assert not waited.cancelled_caught
        assert await exchange(other, b"still here") == b"still here"


@pytest.mark.parametrize("error", [RuntimeError("a bug"), OSError("broken"), trio.BrokenResourceError("gone")])
async def test_an_error_in_one_connection_ends_it_alone(error: Exception) -> None:
    async def fail(stream: trio.abc.Stream, peer: Peer) -> None:
        if await stream.receive_some() == b"fail":
            raise error
        await stream.send_all(b"fine")

    async with serving(fail) as served, await served.connect() as other:
        with logged() as logs:
            async with await served.connect() as client:
                await client.send_all(b"fail")
                with pytest.raises((trio.BrokenResourceError, EOFError)):
                    if not await client.receive_some():
                        raise EOFError
        assert await exchange(other, b"fine") == b"fine"
    levels = {entry["log_level"] for entry in logs}
    assert levels == ({"error"} if isinstance(error, RuntimeError) else {"debug"})
    assert all(entry["peer"].startswith("127.0.0.1:") for entry in logs)


@pytest.mark.parametrize("name", ["mqtt", "mqtts", "websocket", "websockets"])
async def test_an_error_of_the_broker_comes_out_of_every_kind_of_connection_as_it_is(
    name: str, tls: ssl.SSLContext
) -> None:
    async def fail(stream: trio.abc.Stream, peer: Peer) -> None:
        raise RuntimeError("a bug")

    async with serving(fail, names=(name,), tls=tls) as served:
        with logged() as logs:
            if "websocket" in name:
                async with served.websocket(name) as client:
                    with pytest.raises(ConnectionClosed):
                        await client.get_message()
            else:
                stream = await (served.connect() if name == "mqtt" else served.connect_tls())
                await trio.aclose_forcefully(stream)
            await served.listeners.wait_empty()
    assert [(entry["log_level"], entry["event"], entry["listener"]) for entry in logs] == [
        ("error", "unexpected error", name)
    ]


async def test_more_connections_than_allowed_are_closed_and_logged_once() -> None:
    async with serving(limits=ListenerLimits(max_connections=2)) as served:
        with logged() as logs:
            async with await served.connect() as first, await served.connect() as second:
                for client in (first, second):
                    assert await exchange(client, b"in") == b"in"
                for _ in range(3):
                    async with await served.connect() as third:
                        assert await third.receive_some() == b""
            await served.listeners.wait_empty()
            async with await served.connect() as later:
                assert await exchange(later, b"in") == b"in"
    assert [(entry["log_level"], entry["allowed"]) for entry in logs if "refused" in entry["event"]] == [("warning", 2)]


async def test_after_the_stop_no_new_client_is_accepted_and_the_others_stay() -> None:
    async with serving() as served, await served.connect() as client:
        assert await exchange(client, b"before") == b"before"
        served.listeners.stop_accepting()
        await trio.testing.wait_all_tasks_blocked()
        late = await served.connect()
        assert await exchange(client, b"after") == b"after"
        with trio.move_on_after(0.1) as waited:
            await exchange(late, b"the broker does not take this from the queue")
        assert waited.cancelled_caught
        await trio.aclose_forcefully(late)


def test_wrong_certificate_files_are_named(tmp_path: Path) -> None:
    files = write_certificate(str(tmp_path))
    other = write_certificate(str(tmp_path), name="other")
    for certificate, key, authority, expected in (
        (f"{tmp_path}/none.pem", files.key, "", f"{tmp_path}/none.pem cannot be read: No such file or directory"),
        (files.certificate, f"{tmp_path}/none.key", "", f"{tmp_path}/none.key cannot be read: No such file"),
        (files.certificate, other.key, "", "are not a certificate and its key: KEY_VALUES_MISMATCH"),
        (files.key, files.key, "", "are not a certificate and its key"),
        (files.certificate, files.key, f"{tmp_path}/none", f"tls.client_ca_file = '{tmp_path}/none' cannot be read"),
        (files.certificate, files.key, files.key, f"tls.client_ca_file = '{files.key}' holds no certificates"),
    ):
        with pytest.raises(ConfigurationError) as refused:
            server_context(certificate, key, authority)
        assert expected in str(refused.value)


def test_a_key_with_a_passphrase_is_refused_without_a_question(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    files = write_certificate(str(tmp_path))
    key = serialization.load_pem_private_key(Path(files.key).read_bytes(), None)
    locked = tmp_path / "locked.pem"
    locked.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(ConfigurationError, match="the key has a passphrase; write it without one"):
        server_context(files.certificate, str(locked))
