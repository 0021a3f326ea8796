"""What the answers of an object store mean, and what people are told of them: by a server that answers as asked."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

import pytest

from journal.logstore import Created, LogStore
from journal.logstore.errors import (
    LogStoreError,
    StoreCredentialsError,
    StoreFullError,
    StoreUnreachableError,
    UnknownOutcomeError,
)
from journal.logstore.stores.object_store import open_s3
from tests.ports import free_port

KEY: Final = "store/log/1"
SECRET: Final = "a-secret-that-is-not-told"
REQUESTS: Final[dict[str, Callable[[LogStore], object]]] = {
    "create": lambda store: store.create(KEY, b"data"),
    "get": lambda store: store.get(KEY),
    "list": lambda store: store.list_after(KEY),
    "delete": lambda store: store.delete(KEY),
}


class AnsweringServer(ThreadingHTTPServer):
    """Gives one answer to all requests."""

    daemon_threads = True
    status = 500
    body = b""

    def store(self) -> LogStore:
        return open_s3("logs", f"http://127.0.0.1:{self.server_port}", access_key_id="tests", secret_access_key=SECRET)

    def answer(self, status: int, code: str = "", message: str = "What it says.") -> None:
        self.status = status
        text = f"<Error><Code>{code}</Code><Message>{message}</Message><StringToSign>AWS4</StringToSign></Error>"
        self.body = f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode() if code else b""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    server: AnsweringServer

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response_only(self.server.status)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    do_GET = do_PUT = do_POST = do_DELETE = _answer  # noqa: N815 http.server looks for these names


@pytest.fixture
def server() -> Iterator[AnsweringServer]:
    with AnsweringServer(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def error_of(store: LogStore, request: str) -> LogStoreError:
    with pytest.raises(LogStoreError) as raised:
        REQUESTS[request](store)
    return raised.value


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize(
    ("status", "code", "message", "kind"),
    [
        (403, "InvalidAccessKeyId", "What it says.", StoreCredentialsError),
        (403, "SignatureDoesNotMatch", "What it says.", StoreCredentialsError),
        (403, "AccessDenied", "What it says.", StoreCredentialsError),
        (400, "ExpiredToken", "What it says.", StoreCredentialsError),
        (401, "", "", StoreCredentialsError),
        (507, "XMinioStorageFull", "What it says.", StoreFullError),
        (507, "", "", StoreFullError),
        (400, "XMinioAdminBucketQuotaExceeded", "What it says.", StoreFullError),
        (403, "QuotaExceeded", "What it says.", StoreFullError),
        (403, "AccessDenied", "Bucket size quota is reached", StoreFullError),
        (429, "TooManyRequests", "Your request quota is used up.", UnknownOutcomeError),
        (500, "InternalError", "What it says.", UnknownOutcomeError),
        (503, "SlowDown", "What it says.", UnknownOutcomeError),
        # What a gateway says of the store behind it proves nothing about the request.
        (503, "", "", UnknownOutcomeError),
        (502, "BadGateway", "tcp connect error: Connection refused", UnknownOutcomeError),
        (404, "NoSuchBucket", "What it says.", UnknownOutcomeError),
    ],
)
def test_an_answer_is_the_error_that_it_means_and_is_told_in_a_sentence(
    server: AnsweringServer, status: int, code: str, message: str, kind: type[LogStoreError], request_name: str
) -> None:
    server.answer(status, code, message)
    with closing(server.store()) as store:
        error = error_of(store, request_name)
    assert type(error) is kind
    told = str(error)
    assert told.startswith(
        f"{request_name} of {KEY}: the store at http://127.0.0.1:{server.server_port} answered {status}"
    )
    assert told.endswith(f" ({code}: {message})" if code else told)
    for secret in (SECRET, "AWS4", "Signature="):
        assert secret not in told


def test_a_conflict_says_only_that_the_key_may_exist(server: AnsweringServer) -> None:
    with closing(server.store()) as store:
        for status, code in ((409, "ConditionalRequestConflict"), (412, "PreconditionFailed")):
            server.answer(status, code)
            assert store.create(KEY, b"data") is Created.EXISTS
        server.answer(404, "NoSuchKey")
        assert store.get(KEY) is None


def test_a_store_that_nothing_listens_for_is_unreachable_and_named() -> None:
    port = free_port()
    store = open_s3("logs", f"http://127.0.0.1:{port}", access_key_id="tests", secret_access_key=SECRET)
    for name in REQUESTS:
        error = error_of(store, name)
        assert type(error) is StoreUnreachableError
        assert (
            str(error) == f"{name} of {KEY}: no connection to the store at http://127.0.0.1:{port}: Connection refused"
        )


@pytest.mark.parametrize("request_name", ["create", "list"])
def test_a_store_that_does_not_answer_in_time_may_have_carried_out_the_request(request_name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        place = f"http://127.0.0.1:{mute.getsockname()[1]}"
        store = open_s3("logs", place, access_key_id="tests", secret_access_key=SECRET, timeout_s=0.1)
        error = error_of(store, request_name)
    assert type(error) is UnknownOutcomeError
    assert str(error) == f"{request_name} of {KEY}: the store at {place} did not answer in time"


def test_an_answer_that_ends_in_the_middle_is_an_unknown_outcome() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer_half() -> None:
            client, _ = listener.accept()
            with client:
                client.recv(1 << 16)
                client.sendall(
                    b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\nETag: a\r\nLast-Modified: "
                    b"Sat, 28 Nov 2026 09:00:00 GMT\r\n\r\nhalf"
                )

        thread = threading.Thread(target=answer_half)
        thread.start()
        store = open_s3(
            "logs",
            f"http://127.0.0.1:{listener.getsockname()[1]}",
            access_key_id="tests",
            secret_access_key=SECRET,
        )
        error = error_of(store, "get")
        thread.join()
    assert type(error) is UnknownOutcomeError
    assert SECRET not in str(error)
