"""A proxy before an object store that does to single requests what networks, gateways and stores do to them.

It speaks HTTP/1.1 on a port of loopback that stays the same. A client of the log store uses it as its endpoint. Which
request meets which fault is decided by `FaultyProxy.decide`; `RandomFaults` decides by a seed.
"""

from __future__ import annotations

import contextlib
import enum
import random
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final
from urllib.parse import urlsplit

import attrs

from tests.patience import PATIENCE_S
from tests.ports import free_port

_HOST: Final = "127.0.0.1"
_HOP_BY_HOP: Final = {"connection", "keep-alive", "transfer-encoding", "content-length", "te", "trailer", "upgrade"}
_LONGEST_LATE_S: Final = 3.0
"""A request that is carried out late is so after this time at most."""


class Fault(enum.Enum):
    """What happens to one request."""

    NONE = "carried out and answered"
    ANSWERED_500 = "carried out, and answered 500"
    ANSWER_LOST = "carried out, and the connection is closed without an answer"
    LATE = "answered 503, and carried out a while later"
    AFTER_NEXT = "answered 503, and carried out after the next request for the same object"
    REFUSED_409 = "not carried out, and answered 409"
    REFUSED_429 = "not carried out, and answered 429"
    REFUSED_503 = "not carried out, and answered 503"
    DENIED = "not carried out, and answered 403"
    FULL = "not carried out, and answered 507"
    SLOW = "carried out, and answered after a pause"
    REQUEST_CUT = "the connections end in the middle of the request's body"
    ANSWER_CUT = "carried out, and the connection ends in the middle of the answer's body"
    SILENT = "not carried out, and not answered until the proxy passes requests again"
    UNANSWERED = "carried out, and not answered until the proxy passes requests again"


_ANSWERS: Final = {
    Fault.ANSWERED_500: (500, "InternalError", "We encountered an internal error. Please try again."),
    Fault.LATE: (503, "ServiceUnavailable", "Please reduce your request rate."),
    Fault.AFTER_NEXT: (503, "ServiceUnavailable", "Please reduce your request rate."),
    Fault.REFUSED_409: (409, "ConditionalRequestConflict", "The conditional request cannot succeed now."),
    Fault.REFUSED_429: (429, "TooManyRequests", "Please reduce your request rate."),
    Fault.REFUSED_503: (503, "SlowDown", "Please reduce your request rate."),
    Fault.DENIED: (403, "InvalidAccessKeyId", "The access key ID you provided does not exist in our records."),
    Fault.FULL: (507, "XMinioStorageFull", "Storage backend has reached its minimum free drive threshold."),
}


@attrs.frozen(slots=True)
class Request:
    """A request of a client."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    @property
    def is_create(self) -> bool:
        return self.method == "PUT"

    @property
    def is_deletion(self) -> bool:
        return self.method in {"POST", "DELETE"}


@attrs.frozen(slots=True)
class _Answer:
    status: int
    reason: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


Decision = Callable[[Request], tuple[Fault, float]]
"""What happens to a request, and for how many seconds it is late or slow."""


def passes(_: Request) -> tuple[Fault, float]:
    """Nothing happens to any request."""
    return Fault.NONE, 0.0


def creates_meet(fault: Fault) -> Decision:
    """The same happens to all creates, and nothing to other requests."""
    return lambda request: (fault if request.is_create else Fault.NONE, 0.0)


def all_meet(fault: Fault) -> Decision:
    """The same happens to all requests."""
    return lambda _: (fault, 0.0)


class RandomFaults:
    """Decides at random, by a seed.

    Args:
        rng: Decides.
        share: How many of the requests meet a fault.
        most: Number of faults after which no more come.
        in_a_row: So many requests for one object may meet faults, one after the other. The next one meets none, so
            clients that try again get on.
    """

    CREATES: Final = (
        Fault.ANSWERED_500,
        Fault.ANSWER_LOST,
        Fault.LATE,
        Fault.AFTER_NEXT,
        Fault.REFUSED_409,
        Fault.REFUSED_429,
        Fault.REFUSED_503,
        Fault.SLOW,
        Fault.REQUEST_CUT,
    )
    DELETIONS: Final = (Fault.ANSWERED_500, Fault.ANSWER_LOST, Fault.LATE, Fault.REFUSED_503, Fault.SLOW)
    READS: Final = (
        Fault.ANSWERED_500,
        Fault.ANSWER_LOST,
        Fault.REFUSED_429,
        Fault.REFUSED_503,
        Fault.SLOW,
        Fault.ANSWER_CUT,
    )

    def __init__(self, rng: random.Random, share: float = 0.2, most: int = 1000, in_a_row: int = 4) -> None:
        self._rng = rng
        self._share = share
        self._left = most
        self._in_a_row = in_a_row
        self._rows: Counter[tuple[str, str]] = Counter()
        self._deciding = threading.Lock()

    def __call__(self, request: Request) -> tuple[Fault, float]:
        key = request.method, request.target
        with self._deciding:
            if not self._left or self._rows[key] >= self._in_a_row or self._rng.random() >= self._share:
                del self._rows[key]
                return Fault.NONE, 0.0
            self._left -= 1
            self._rows[key] += 1
            faults = self.CREATES if request.is_create else self.DELETIONS if request.is_deletion else self.READS
            return self._rng.choice(faults), self._rng.uniform(0.01, 1.0)


class FaultyProxy:
    """A proxy that listens; `open_proxy` makes one. Nothing happens to requests until `decide` is replaced.

    Args:
        endpoint: Address of the object store, as ``http://host:port``.

    Attributes:
        decide: What happens to each request. It is called by several threads.
        counts: How many requests met each fault.
    """

    def __init__(self, endpoint: str) -> None:
        target = urlsplit(endpoint)
        assert target.hostname is not None
        assert target.port is not None
        self._target = target.hostname, target.port
        self.decide: Decision = passes
        self.counts: Counter[Fault] = Counter()
        self._port = free_port()
        self._lock = threading.Lock()
        self._held: dict[str, list[Request]] = {}
        self._late: set[threading.Timer] = set()
        self._server: _Server | None = None
        self._passing = threading.Event()

    @property
    def endpoint(self) -> str:
        return f"http://{_HOST}:{self._port}"

    def listen(self) -> None:
        """Accept connections, again after `refuse`."""
        if self._server is None:
            self._passing.clear()
            self._server = _Server((_HOST, self._port), self)
            threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def refuse(self) -> None:
        """Accept no connections from now on, and end those that there are."""
        if self._server is not None:
            server, self._server = self._server, None
            self._passing.set()
            server.shutdown()
            server.server_close()
            server.end_connections()

    def pass_all(self) -> None:
        """Nothing happens to requests from now on, and those that were held back are answered 503."""
        self.decide = passes
        self._passing.set()
        self._passing = threading.Event()

    def finish(self) -> None:
        """Return when all requests that were to be carried out late have been."""
        with self._lock:
            held = [request for several in self._held.values() for request in several]
            self._held.clear()
            late = list(self._late)
        for request in held:
            self._pass_late(request)
        for timer in late:
            timer.join(PATIENCE_S)

    def note(self, fault: Fault) -> None:
        with self._lock:
            self.counts[fault] += 1

    def wait_until_passing(self) -> None:
        self._passing.wait(PATIENCE_S)

    def ask(self, request: Request) -> _Answer:
        """Have the store carry a request out.

        Raises:
            OSError, HTTPException: It does not answer.
        """
        connection = HTTPConnection(*self._target, timeout=PATIENCE_S)
        with contextlib.closing(connection):
            self._send(connection, request, len(request.body))
            reply = connection.getresponse()
            return _Answer(reply.status, reply.reason, tuple(reply.getheaders()), reply.read())

    def cut(self, request: Request) -> None:
        """Send half of a request to the store."""
        connection = HTTPConnection(*self._target, timeout=PATIENCE_S)
        with contextlib.closing(connection), contextlib.suppress(OSError):
            self._send(connection, request, len(request.body) // 2)

    @staticmethod
    def _send(connection: HTTPConnection, request: Request, most_bytes: int) -> None:
        # The signature covers the host that the client knows.
        connection.putrequest(request.method, request.target, skip_host=True, skip_accept_encoding=True)
        for name, value in request.headers:
            if name.lower() not in _HOP_BY_HOP:
                connection.putheader(name, value)
        connection.putheader("Content-Length", str(len(request.body)))
        connection.endheaders()
        connection.send(request.body[:most_bytes])

    def carry_out_late(self, request: Request, after_s: float) -> None:
        """Have the store carry a request out after a while."""
        timer = threading.Timer(min(after_s, _LONGEST_LATE_S), lambda: self._end_late(timer, request))
        timer.daemon = True
        with self._lock:
            self._late.add(timer)
        timer.start()

    def carry_out_after_next(self, request: Request) -> None:
        """Have the store carry a request out when the next one for the same object was answered, or after a while."""
        with self._lock:
            self._held.setdefault(request.target, []).append(request)
        self.carry_out_late(request, _LONGEST_LATE_S)

    def answered(self, request: Request) -> None:
        """A request was answered."""
        with self._lock:
            held = self._held.pop(request.target, [])
        for each in held:
            self._pass_late(each)

    def _end_late(self, timer: threading.Timer, request: Request) -> None:
        try:
            with self._lock:
                several = self._held.get(request.target, [])
                if several and request in several:
                    several.remove(request)
            self._pass_late(request)
        finally:
            with self._lock:
                self._late.discard(timer)

    def _pass_late(self, request: Request) -> None:
        with contextlib.suppress(OSError, HTTPException):
            # Its client was answered long ago. A store that is down carries nothing out.
            self.ask(request)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], proxy: FaultyProxy) -> None:
        self.proxy = proxy
        self._connections: set[socket.socket] = set()
        self._guard = threading.Lock()
        super().__init__(address, _Handler)

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        assert isinstance(request, socket.socket)
        with self._guard:
            self._connections.add(request)
        super().process_request(request, client_address)  # type: ignore[arg-type]

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        assert isinstance(request, socket.socket)
        with self._guard:
            self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients and stores that are killed end their connections at any time."""

    def end_connections(self) -> None:
        with self._guard:
            connections = list(self._connections)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server

    def _serve(self) -> None:
        proxy = self.server.proxy
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = Request(self.command, self.path, tuple(self.headers.items()), body)
        fault, seconds = proxy.decide(request)
        proxy.note(fault)
        match fault:
            case Fault.REFUSED_409 | Fault.REFUSED_429 | Fault.REFUSED_503 | Fault.DENIED | Fault.FULL:
                self._refuse(fault)
            case Fault.LATE:
                proxy.carry_out_late(request, seconds)
                self._refuse(fault)
            case Fault.AFTER_NEXT:
                proxy.carry_out_after_next(request)
                self._refuse(fault)
            case Fault.SILENT | Fault.UNANSWERED:
                if fault is Fault.UNANSWERED:
                    with contextlib.suppress(OSError, HTTPException):
                        proxy.ask(request)
                proxy.wait_until_passing()
                self._refuse(Fault.REFUSED_503)
            case Fault.REQUEST_CUT:
                proxy.cut(request)
                self.close_connection = True
            case _:
                self._pass(request, fault, seconds)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815 http.server looks for these names

    def _pass(self, request: Request, fault: Fault, seconds: float) -> None:
        proxy = self.server.proxy
        try:
            answer = proxy.ask(request)
        except (OSError, HTTPException):
            # The store is down, or ends its connections.
            self.close_connection = True
            return
        if fault is Fault.ANSWERED_500:
            self._refuse(fault)
        elif fault is Fault.ANSWER_LOST:
            self.close_connection = True
        else:
            if fault is Fault.SLOW:
                threading.Event().wait(seconds)
            self._answer(answer, is_cut=fault is Fault.ANSWER_CUT)
        proxy.answered(request)

    def _refuse(self, fault: Fault) -> None:
        status, code, message = _ANSWERS[fault]
        text = f"<Error><Code>{code}</Code><Message>{message}</Message><RequestId>1</RequestId></Error>"
        body = f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode()
        self._answer(_Answer(status, code, (("Content-Type", "application/xml"),), body))

    def _answer(self, answer: _Answer, *, is_cut: bool = False) -> None:
        self.send_response_only(answer.status, answer.reason)
        has_body = self.command != "HEAD"
        length = len(answer.body) if has_body else dict(answer.headers).get("Content-Length", "0")
        for name, value in answer.headers:
            if name.lower() not in _HOP_BY_HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        if has_body:
            self.wfile.write(answer.body[: len(answer.body) // 2] if is_cut else answer.body)
        self.wfile.flush()
        if is_cut:
            self.close_connection = True

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 the name of the method that it replaces
        """The log of the servers tells what they met."""


@contextmanager
def open_proxy(endpoint: str) -> Iterator[FaultyProxy]:
    """A proxy before an object store, for the length of the block."""
    proxy = FaultyProxy(endpoint)
    proxy.listen()
    try:
        yield proxy
    finally:
        proxy.refuse()
        proxy.finish()


def through(proxy: FaultyProxy, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a server that reaches its store through a proxy."""
    return {**environment, "AWS_ENDPOINT_URL": proxy.endpoint}


@contextmanager
def open_proxies(
    environment: Mapping[str, str], count: int
) -> Iterator[tuple[list[FaultyProxy], list[dict[str, str]]]]:
    """A proxy of its own for each of several servers, and their environments."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(open_proxy(environment["AWS_ENDPOINT_URL"])) for _ in range(count)]
        yield proxies, [through(proxy, environment) for proxy in proxies]
