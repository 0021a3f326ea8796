"""A server process, a bystander beside it, and what an abuse may cost both: memory, and the bystander's latencies."""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import IO

import attrs
import pytest

from journal.settings.values import KIB, MIB
from tests.faults.processes import ServerProcess, running

RECEIVE_BUFFERS = 16
FRAME_BYTES = 2 * MIB
OUTPUT_BYTES = 2 * MIB
SETTINGS = (
    "listen.websocket=127.0.0.1:0",
    f"storage.receive_buffers={RECEIVE_BUFFERS}",
    "storage.receive_buffer_bytes=256 KiB",
    f"limits.max_frame_bytes={FRAME_BYTES}",
    f"limits.max_output_bytes_per_connection={OUTPUT_BYTES}",
    "limits.max_inflight_bytes_per_connection=2 MiB",
    "limits.hello_timeout_s=3",
)
POOL_BYTES = RECEIVE_BUFFERS * 256 * KIB

# What an interpreter that does more than before takes for its arenas and threads, for any sender.
_ARENAS_BYTES = 8 * MIB

_WINDOWS = 8
_WINDOW_S = 0.1
_WINDOWS_LONG = 40
_WINDOW_LONG_S = 0.25
_TRIES = 3
_SLACK_MS = 5.0
_SLACK_LONG_MS = 2.0


@attrs.frozen
class _Window:
    """What the bystander met in a part of a second; its beginning is on the machine's monotonic clock."""

    began_s: float
    acks_ms: list[float]
    pushes_ms: list[float]


@attrs.frozen
class Latencies:
    """What the bystander met: the median over several windows of each window's quantile, in milliseconds."""

    acks_p50_ms: float
    acks_p99_ms: float
    pushes_p50_ms: float
    pushes_p99_ms: float


@attrs.define
class Scene:
    """What a test has.

    Attributes:
        server: The server that is abused.
        strict: Whether there is time for the strict form: more windows, and the 99th percentiles at most doubled.
    """

    server: ServerProcess
    strict: bool
    _lines: IO[str]
    _usual: Latencies | None = None
    _usual_bytes: int = 0

    def resident_bytes(self) -> int:
        """Memory of the server's process now."""
        status = Path(f"/proc/{self.server.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * KIB

    def descriptors(self) -> int:
        """Open files and sockets of the server's process."""
        return len(list(Path(f"/proc/{self.server.pid}/fd").iterdir()))

    def log_text(self) -> str:
        return self.server.log.read_text()

    def watch(self) -> Latencies:
        """Measure the bystander from now on."""
        watched_from_s = time.monotonic()
        windows: list[_Window] = []
        while len(windows) < (_WINDOWS_LONG if self.strict else _WINDOWS):
            window = self._next_window()
            # Many that ended before it was watched may still be in the pipe, and in the buffer of its reader.
            if window.began_s >= watched_from_s:
                windows.append(window)
        return Latencies(
            *(
                statistics.median(_quantile(latencies(window), share) for window in windows)
                for latencies in (attrgetter("acks_ms"), attrgetter("pushes_ms"))
                for share in (0.5, 0.99)
            )
        )

    def meet(self) -> None:
        """The bystander is still served: a window of its has begun and ended from now on."""
        met_from_s = time.monotonic()
        while self._next_window().began_s < met_from_s:
            pass

    def _next_window(self) -> _Window:
        line = self._lines.readline()
        assert line, "the bystander ended: it was cut off or refused"
        return _Window(**json.loads(line))

    def take_usual(self) -> None:
        """Before the abuse: how it is usually."""
        self._usual = self.watch()
        self._usual_bytes = self.resident_bytes()

    def check(self, *, may_grow_bytes: int) -> None:
        """During the abuse: the server holds little more than before, and the bystander waits at most twice as long."""
        usual = self._usual
        assert usual is not None  # take_usual() comes first
        for _ in range(_TRIES):
            # What others do on the machine passes; what the abuse does stays.
            now = self.watch()
            self.check_memory(may_grow_bytes)
            if self._is_bearable(usual, now):
                return
        raise AssertionError(f"usually {usual}, during the abuse {now}")

    def _is_bearable(self, usual: Latencies, now: Latencies) -> bool:
        pairs = [(usual.acks_p50_ms, now.acks_p50_ms), (usual.pushes_p50_ms, now.pushes_p50_ms)]
        if self.strict:
            pairs += [(usual.acks_p99_ms, now.acks_p99_ms), (usual.pushes_p99_ms, now.pushes_p99_ms)]
        slack_ms = _SLACK_LONG_MS if self.strict else _SLACK_MS
        return all(found_ms <= 2 * usual_ms + slack_ms for usual_ms, found_ms in pairs)

    def check_memory(self, may_grow_bytes: int) -> None:
        """The server holds little more than before: so much, and what any new kind of work takes."""
        grown = self.resident_bytes() - self._usual_bytes
        allowed = may_grow_bytes + _ARENAS_BYTES
        assert grown <= allowed, f"{grown / MIB:.1f} MiB more than before, {allowed / MIB:.1f} allowed"

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
        """Return once it is so; the bystander's windows are the pace at which it is looked at.

        Raises:
            AssertionError: It is not so in time.
        """
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"not so after {timeout_s} s; the log ends {self.log_text()[-2000:]}"
            self._next_window()


@contextmanager
def scene(data: Path, *settings: str, strict: bool = False) -> Iterator[Scene]:
    """A server and a bystander for the length of the block; both must still be well at its end."""
    # The bystander loads its modules while the server does.
    with (
        _bystander(_WINDOW_LONG_S if strict else _WINDOW_S) as bystander,
        running(data, *SETTINGS, *settings) as server,
    ):
        assert bystander.stdin
        assert bystander.stdout
        bystander.stdin.write(f"{server.ports['tcp']}\n")
        bystander.stdin.flush()
        found = Scene(server, strict, bystander.stdout)
        found.take_usual()
        yield found
        found.meet()
        assert "Traceback" not in found.log_text(), found.log_text()
        _end(bystander)
        assert server.stop() == 0


@contextmanager
def _bystander(window_s: float) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.abuse.bystander", "bystander", str(window_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            _end(process)


def _end(bystander: subprocess.Popen[str]) -> None:
    bystander.kill()
    bystander.wait()


def allow_descriptors(count: int) -> None:
    """Have so many descriptors, here and in processes started from here; skips the test where that is not allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        if hard < count:
            pytest.skip(f"needs {count} descriptors, this machine allows {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def _quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
