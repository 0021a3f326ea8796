"""TLS on every listener, and certificates that say who a client is."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import httpx
import pytest
import trio
from cryptography import x509

from journal.client import SessionTimes, open_client
from journal.net.tls_sockets import TlsSocket
from journal.protocol import Op
from journal.protocol.errors import AuthenticationError, ConnectionLostError, NotAuthorizedError
from journal.server.security import read
from journal.settings.access import TlsSection
from shards.model import ShardConfig
from shards.position import Start
from tests.patience import PATIENCE_S
from tests.server.people import (
    AUTHORITY,
    OTHER_AUTHORITY,
    PASSWORD,
    client_context,
    guarded,
    rule,
    write_client_certificate,
    write_server_certificate,
)
from tests.server.serving import RawClient, Served, serving, small_config


@asynccontextmanager
async def secure(path: Path, *, rules: bool = False) -> AsyncIterator[Served]:
    own = (rule("of/%u/#"),) if rules else ()
    async with guarded(path, *own, **write_server_certificate(path)) as served:
        yield served


def url(served: Served, scheme: str = "journals", user: str = "", **files: object) -> str:
    port = served.ports["tcp" if scheme == "journals" else "websocket"]
    options = "&".join(f"{name}={path}" for name, path in files.items())
    return f"{scheme}://{user + '@' if user else ''}127.0.0.1:{port}?{options}"


@pytest.fixture
def ca_file(tmp_path: Path) -> Path:
    path = tmp_path / "trusted.pem"
    path.write_bytes(AUTHORITY.cert_pem.bytes())
    return path


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text(PASSWORD)
    return path


@pytest.mark.parametrize("scheme", ["journals", "journal+wss"])
async def test_clients_write_and_read_and_subscribe_over_tls(
    tmp_path: Path, scheme: str, ca_file: Path, password_file: Path
) -> None:
    values = [bytes([at % 256]) * size for at, size in enumerate((1, 100, 16_384, 16_385, 400_000, 3))]
    async with secure(tmp_path) as served:
        address = url(served, scheme, "anna", ca_file=ca_file, password_file=password_file)
        async with open_client(address) as client:
            await client.open_shard("x", create=ShardConfig())
            async with client.subscribe(shard="x", start=Start.earliest()) as pushed:
                for value in values:
                    await client.append("x", [value])
                pending = [client.append_nowait("x", [b"many"]) for _ in range(2000)]
                for one in pending:
                    await one.wait()
                size = 0
                with trio.fail_after(PATIENCE_S):
                    async for delivery in pushed:
                        size += len(delivery.batches)
                        if delivery.next_offset == len(values) + 2000:
                            break
            assert size > sum(map(len, values))


@pytest.mark.parametrize("scheme", ["journals", "journal+wss"])
async def test_a_certificate_says_who_a_client_is(tmp_path: Path, scheme: str, ca_file: Path) -> None:
    certificate = write_client_certificate(tmp_path, "gateway")
    async with secure(tmp_path, rules=True) as served:
        address = url(served, scheme, ca_file=ca_file, certificate_file=certificate)
        async with open_client(address) as client:
            await client.open_shard("of/gateway/x", create=ShardConfig())
            await client.append("of/gateway/x", [b"value"])
            with pytest.raises(NotAuthorizedError, match="'gateway'"):
                await client.open_shard("of/anna/x", create=ShardConfig())
        with pytest.raises(AuthenticationError, match="certificate is of 'gateway'"):
            async with open_client(url(served, scheme, "anna", ca_file=ca_file, certificate_file=certificate)):
                pass


@pytest.mark.parametrize("scheme", ["journals", "journal+wss"])
@pytest.mark.parametrize(("authority", "expired"), [(OTHER_AUTHORITY, False), (AUTHORITY, True)])
async def test_an_expired_certificate_or_one_of_another_authority_is_refused(
    tmp_path: Path, scheme: str, ca_file: Path, authority: object, expired: bool
) -> None:
    certificate = write_client_certificate(tmp_path, "anna", authority, expired=expired)  # type: ignore[arg-type]
    async with secure(tmp_path) as served:
        with pytest.raises((AuthenticationError, ConnectionLostError)):
            async with open_client(
                url(served, scheme, ca_file=ca_file, certificate_file=certificate),
                times=SessionTimes(give_up_after_s=0.2),
            ):
                pass


async def test_without_a_certificate_a_client_needs_something_else(tmp_path: Path, ca_file: Path) -> None:
    async with secure(tmp_path) as served:
        with pytest.raises(AuthenticationError, match="a user and a password or a token or a client certificate"):
            async with open_client(url(served, ca_file=ca_file)):
                pass


@pytest.mark.parametrize("scheme", ["journals", "journal+wss"])
async def test_a_client_sends_nothing_to_a_server_that_it_does_not_trust(
    tmp_path: Path, scheme: str, password_file: Path
) -> None:
    other = tmp_path / "other.pem"
    other.write_bytes(OTHER_AUTHORITY.cert_pem.bytes())
    async with secure(tmp_path) as served:
        with pytest.raises(AuthenticationError, match=r"not trusted: .*; name the authority"):
            async with open_client(url(served, scheme, "anna", ca_file=other, password_file=password_file)):
                pass


async def test_a_peer_that_never_ends_its_handshake_is_dropped(tmp_path: Path) -> None:
    people = write_server_certificate(tmp_path)
    async with (
        guarded(tmp_path, **people, limits__hello_timeout_s=1) as served,
        served.stream() as stream,
    ):
        await stream.send_all(b"\x16\x03\x01")
        with trio.fail_after(PATIENCE_S):
            assert await stream.receive_some() == b""


async def test_health_and_metrics_are_encrypted_too(tmp_path: Path) -> None:
    async with secure(tmp_path) as served:
        address = f"127.0.0.1:{served.ports['http']}/livez"
        async with httpx.AsyncClient(verify=client_context(), timeout=PATIENCE_S) as client:
            assert (await client.get(f"https://{address}")).text == "ok\n"
            assert (await client.get(f"http://{address}")).status_code == 400


async def test_what_was_sent_last_is_not_lost_with_the_connection(tmp_path: Path) -> None:
    async with secure(tmp_path) as served, served.stream() as stream:
        tls = trio.SSLStream(stream, client_context(), server_hostname="127.0.0.1", https_compatible=True)
        client = RawClient(tls)
        await client.hello(user="anna", password=PASSWORD)
        await client.send(b"\0" * 64)
        (error,) = await client.receive_until_closed()
        assert error.status


async def test_a_small_buffer_gets_all_of_a_large_record() -> None:
    """What TLS has decrypted already waits in it, where no descriptor becomes readable for it."""
    server_context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    AUTHORITY.issue_cert("127.0.0.1").configure_cert(server_context)
    listener = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery, listener[0]:
        accepted: list[trio.SocketStream] = []

        async def accept() -> None:
            accepted.append(await listener[0].accept())

        nursery.start_soon(accept)
        near = await trio.open_tcp_stream("127.0.0.1", listener[0].socket.getsockname()[1])
        while not accepted:
            await trio.sleep(0.001)
        ends = [
            TlsSocket(socket.socket(fileno=os.dup(near.socket.fileno())), client_context(), "127.0.0.1"),
            TlsSocket(socket.socket(fileno=os.dup(accepted[0].socket.fileno())), server_context),
        ]
        async with trio.open_nursery() as handshakes:
            for end in ends:
                handshakes.start_soon(end.handshake)
        sent = os.urandom(16_384)
        assert ends[0].sendmsg([sent[:10], sent[10:]]) == len(sent)
        received = b""
        buffer = bytearray(100)
        with trio.fail_after(PATIENCE_S):
            while len(received) < len(sent):
                try:
                    size = ends[1].recv_into(memoryview(buffer))
                except BlockingIOError:
                    await trio.lowlevel.wait_readable(ends[1].fileno())
                    continue
                received += buffer[:size]
        assert received == sent
        for each in (*ends, near, accepted[0]):
            if isinstance(each, TlsSocket):
                each.close()
            else:
                await each.aclose()


async def serial_number(served: Served, listener: str) -> int:
    """Which certificate a new connection is shown."""
    stream = await trio.open_tcp_stream("127.0.0.1", served.ports[listener])
    async with trio.SSLStream(stream, client_context(), server_hostname="127.0.0.1", https_compatible=True) as secure:
        await secure.do_handshake()
        return x509.load_der_x509_certificate(secure.getpeercert(binary_form=True)).serial_number


@pytest.mark.parametrize("listener", ["tcp", "websocket", "http"])
async def test_a_new_certificate_counts_for_new_connections_and_open_ones_stay(tmp_path: Path, listener: str) -> None:
    async with secure(tmp_path) as served, httpx.AsyncClient(verify=client_context(), timeout=PATIENCE_S) as client:
        address = f"https://127.0.0.1:{served.ports['http']}/livez"
        assert (await client.get(address)).text == "ok\n"
        before = await serial_number(served, listener)
        write_server_certificate(tmp_path)
        assert await serial_number(served, listener) == before, "nothing is read before it is told"
        served.server.take_over(read(served.engine.config))
        assert await serial_number(served, listener) not in (before, 0)
        assert (await client.get(address)).text == "ok\n"


async def test_whether_tls_is_spoken_does_not_change_while_the_server_runs(tmp_path: Path) -> None:
    without = TlsSection()
    async with secure(tmp_path) as served:
        served.server.take_over(read(attrs.evolve(served.engine.config, tls=without)))
        for listener in ("tcp", "websocket", "http"):
            assert await serial_number(served, listener)
    certificates = write_server_certificate(tmp_path) | {"tls__client_ca_file": ""}
    async with serving(tmp_path) as served:
        served.server.take_over(read(small_config(**certificates)))
        async with served.client() as client:
            await client.call(Op.PING)
