"""The sink ``http``: a batch is a request. `replies` has the meaning of responses, `json_form` the JSON of rows."""

from __future__ import annotations

import base64
import gzip
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit

import trio
import zstandard

from broker_adapter.sinks.batch import Batch
from broker_adapter.sinks.errors import RowsRefusedError, SinkUnavailableError, innermost_reason
from broker_adapter.sinks.http.replies import MAX_BODY_BYTES, Reply, check_error_of, error_of
from broker_adapter.sinks.http.settings import Compression, Format, HttpSettings
from broker_adapter.sinks.json_form import encode_rows
from broker_adapter.sinks.setting_kinds import read_secret
from broker_adapter.sinks.sink import Sink, SinkContext
from journal.settings.values import ConfigurationError
from shards.extras import install_command

if TYPE_CHECKING:
    import httpx

_CONTENT_TYPES: Final = {Format.JSON: "application/json", Format.LINES: "application/x-ndjson"}
_COMPRESSED_IN_THREAD_BYTES: Final = 256 * 1024
_LEVEL: Final = 1


@asynccontextmanager
async def open_http_sink(settings: HttpSettings, context: SinkContext) -> AsyncIterator[Sink]:
    """Open the sink; nothing is connected yet.

    Raises:
        ConfigurationError: httpx is not installed, or the CA file cannot be used.
    """
    try:
        import httpx

        from journal.net.http_client import bounded_client
    except ImportError as error:
        raise ConfigurationError(f"the sink http needs httpx: {install_command('sinks')}") from error
    for url in filter(None, (settings.url, settings.check_url)):
        try:
            httpx.URL(url)
        except httpx.InvalidURL as error:
            raise ConfigurationError(f"{shown_address(url)} is not a URL of a web service: {error}") from error
    async with bounded_client(_tls(settings), settings.max_in_flight) as client:
        yield HttpSink(settings, context, client)


class HttpSink(Sink):
    """Sends batches to a web service.

    Args:
        client: A client used by nothing else; this closes it.
    """

    def __init__(self, settings: HttpSettings, context: SinkContext, client: httpx.AsyncClient) -> None:
        self.max_in_flight = settings.max_in_flight
        self._settings = settings
        self._client = client
        self._address = shown_address(settings.url)
        self._queue_id = context.queue_id
        self._authorization: dict[str, str] = {}
        self._headers = {
            **settings.headers,
            "Content-Type": _CONTENT_TYPES[settings.format],
            # The name of a bridge may have characters that are not allowed in a header.
            "Journal-Bridge": quote(context.bridge, safe=" "),
            "Journal-Queue": context.queue_id,
        }
        if settings.compression is not Compression.NONE:
            self._headers["Content-Encoding"] = settings.compression.value

    async def check(self) -> None:
        self._authorization = _authorization(self._settings)
        url = self._settings.check_url
        headers = {**self._settings.headers, **self._authorization}
        address = shown_address(url) if url else self._address
        if url:
            reply = await self._exchange("GET", url, address, headers)
        else:
            reply = await self._exchange("OPTIONS", self._settings.url, address, headers)
        error = check_error_of(reply, address, _now(), must_succeed=bool(url))
        if error is not None:
            raise error

    async def write(self, batch: Batch) -> None:
        encoded, unwritable = encode_rows(batch.rows)
        if not encoded:
            raise RowsRefusedError(f"no row of the batch for {self._address} can be written as JSON", unwritable)
        left_out = {refusal.index for refusal in unwritable}
        sent = [index for index in range(len(batch.rows)) if index not in left_out]
        body = _JOIN[self._settings.format](encoded)
        first_offset, next_offset = batch.first_offset, batch.next_offset
        if first_offset == next_offset:
            # A single row that was refused is tried again: the keys of two such rows must differ.
            first_offset, next_offset = batch.offsets[0], batch.offsets[-1] + 1
        headers = {
            **self._headers,
            **self._authorization,
            "Journal-First-Offset": str(first_offset),
            "Journal-Next-Offset": str(next_offset),
            "Idempotency-Key": f"{self._queue_id}-{first_offset}-{next_offset}",
        }
        body = await _compressed(body, self._settings.compression)
        reply = await self._exchange(self._settings.method.value, self._settings.url, self._address, headers, body)
        error = error_of(reply, self._address, sent, _now())
        if unwritable and (error is None or isinstance(error, RowsRefusedError)):
            refusals = sorted((*unwritable, *(error.refusals if error else ())), key=lambda refusal: refusal.index)
            raise RowsRefusedError(f"{len(refusals)} of {len(batch.rows)} rows were refused", tuple(refusals))
        if error is not None:
            raise error

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _exchange(
        self, method: str, url: str, address: str, headers: Mapping[str, str], body: bytes = b""
    ) -> Reply:
        """Send one request and read its response, within the time limit for both."""
        import httpx

        from journal.net.http_client import exchange

        timeout_s = self._settings.timeout_s
        try:
            with trio.fail_after(timeout_s):
                received = await exchange(self._client, method, url, headers, body, max_bytes=MAX_BODY_BYTES)
        except trio.TooSlowError as error:
            raise SinkUnavailableError(f"{address} did not answer within timeout_s = {timeout_s}") from error
        except httpx.HTTPError as error:
            raise SinkUnavailableError(f"{address} cannot be reached: {innermost_reason(error)}") from error
        return Reply(
            received.status,
            received.headers.get("Retry-After", ""),
            received.headers.get("Location", ""),
            received.body,
            received.headers.get("Content-Encoding", ""),
        )


def shown_address(url: str) -> str:
    """A URL for messages: without its query, which may contain a secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{parts.path}"


def _authorization(settings: HttpSettings) -> dict[str, str]:
    if token := read_secret("token", settings.token, settings.token_file):
        if not (token.isascii() and token.isprintable()):
            raise SinkUnavailableError("the token has characters that are not allowed in a header; use printable ASCII")
        return {"Authorization": f"Bearer {token}"}
    if settings.user:
        password = read_secret("password", settings.password, settings.password_file)
        pair = base64.b64encode(f"{settings.user}:{password}".encode()).decode("ascii")
        return {"Authorization": f"Basic {pair}"}
    return {}


def _tls(settings: HttpSettings) -> ssl.SSLContext | bool:
    if not any(url.startswith("https:") for url in (settings.url, settings.check_url)):
        # Avoids reading a few hundred certificates that are not needed.
        return False
    try:
        return ssl.create_default_context(cafile=settings.ca_file or None)
    except ssl.SSLError as error:
        raise ConfigurationError(f"ca_file = {settings.ca_file!r} holds no certificates: {error.reason}") from error
    except OSError as error:
        raise ConfigurationError(f"ca_file = {settings.ca_file!r} cannot be read: {error.strerror}") from error


async def _compressed(body: bytes, compression: Compression) -> bytes:
    if compression is Compression.NONE:
        return body
    if len(body) < _COMPRESSED_IN_THREAD_BYTES:
        return _COMPRESS[compression](body)
    return await trio.to_thread.run_sync(_COMPRESS[compression], body)


_JOIN: Final[dict[Format, Callable[[list[bytes]], bytes]]] = {
    Format.JSON: lambda rows: b"[" + b",".join(rows) + b"]",
    Format.LINES: lambda rows: b"\n".join(rows) + b"\n",
}

_COMPRESS: Final[dict[Compression, Callable[[bytes], bytes]]] = {
    Compression.GZIP: lambda body: gzip.compress(body, _LEVEL, mtime=0),
    Compression.ZSTD: lambda body: zstandard.ZstdCompressor(level=_LEVEL).compress(body),
}


def _now() -> datetime:
    return datetime.now(UTC)
