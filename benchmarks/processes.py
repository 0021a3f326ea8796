"""Real servers as child processes: started on free loopback ports, stopped by the handle that started them.

No measurement here; processes are never looked up or stopped by name.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
SETTLE_TIMEOUT_S = 20.0
SETTLED_BYTES = 256 << 10
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PEERS = Path(__file__).parents[1] / ".peers"
"""Programs and Python packages of other people's servers, put there by `make peers`."""
READY = re.compile(r"^ready")
READY_ADDRESS = re.compile(r"127\.0\.0\.1:(\d+)")


class NotInstalledError(Exception):
    """A program that a row needs is not installed."""


class ProcessError(Exception):
    """A server did not start, or ended by itself."""


@attrs.define(slots=True)
class Child:
    """A process that this program started.

    Attributes:
        process: Its handle.
        ready_s: Time from exec to readiness, in seconds.
        log_path: File with its output.
    """

    process: subprocess.Popen[bytes]
    ready_s: float
    log_path: Path

    def processor_s(self) -> float:
        """Processor time of all its threads so far, in seconds."""
        # The name of the program, in parentheses, may contain anything.
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S

    def resident_bytes(self) -> int:
        """Resident memory of the process and its children (a server may have workers)."""
        return sum(resident_bytes(pid) for pid in [self.process.pid, *children(self.process.pid)])

    def stop(self, *, kill: bool = False) -> float:
        """Stop the process (SIGTERM; SIGKILL if requested or if it does not end) and return how long that took."""
        begun_at = time.perf_counter()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
            try:
                self.process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        return time.perf_counter() - begun_at


@attrs.define(slots=True)
class Server(Child):
    """A running server that this program started; it is ready when it accepts connections.

    Attributes:
        address: Address on which it listens.
    """

    address: tuple[str, int]


def resident_bytes(pid: int) -> int:
    """VmRSS of one process, 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    match = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(match.group(1)) * 1024 if match else 0


def settled(look: Callable[[], int]) -> int:
    """The median of five looks in a row that are close together, or the last one when that takes too long.

    Args:
        look: Returns bytes of memory.
    """
    give_up_at = time.monotonic() + SETTLE_TIMEOUT_S
    looks: list[int] = []
    while True:
        looks = [*looks[-4:], look()]
        if len(looks) == 5 and max(looks) - min(looks) < SETTLED_BYTES:
            return int(statistics.median(looks))
        if time.monotonic() > give_up_at:
            return looks[-1]
        time.sleep(0.2)


def children(pid: int) -> list[int]:
    """Direct and indirect children of a process."""
    found: list[int] = []
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except FileNotFoundError:
        return found
    for thread in threads:
        try:
            words = (thread / "children").read_text().split()
        except FileNotFoundError:
            continue
        for word in words:
            found += [int(word), *children(int(word))]
    return found


def free_port() -> int:
    """A loopback port that is free at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        assert isinstance(port, int)
        return port


def installed(program: str) -> str:
    """Path of a program: of `PEERS`, of the PATH, or of system daemons. Raises `NotInstalledError`."""
    places = (str(PEERS / "bin"), os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin", "/usr/local/bin")
    path = shutil.which(program, path=os.pathsep.join(places))
    if path is None:
        raise NotInstalledError("not installed")
    return path


def start_listening(
    argv: Sequence[str],
    port: int,
    log_path: Path,
    *,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Server:
    """Start a server that listens on the given port and wait until it accepts."""
    begun_at = time.perf_counter()
    process = _spawn(argv, log_path, cwd=cwd, environment=environment)
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
            return Server(process, time.perf_counter() - begun_at, log_path, ("127.0.0.1", port))
        except OSError as error:
            _check_starting(process, begun_at, log_path, error)
            time.sleep(0.01)


def start_announcing(
    argv: Sequence[str], log_path: Path, *, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> Server:
    """Start a server that prints a line with ``ready`` and its addresses; the first loopback address is used."""
    child, address = _start_ready(argv, log_path, cwd, READY_ADDRESS, environment)
    return Server(child.process, child.ready_s, log_path, ("127.0.0.1", int(address[1])))


def start_ready(argv: Sequence[str], log_path: Path, *, cwd: Path | None = None) -> Child:
    """Start a program that does not listen, and prints a line that begins with ``ready``."""
    return _start_ready(argv, log_path, cwd, READY)[0]


def python_module(module: str, *arguments: str) -> list[str]:
    """Command line that runs a module of this repository with this interpreter."""
    return [sys.executable, "-m", module, *arguments]


def _start_ready(
    argv: Sequence[str],
    log_path: Path,
    cwd: Path | None,
    wanted: re.Pattern[str],
    environment: Mapping[str, str] | None = None,
) -> tuple[Child, re.Match[str]]:
    begun_at = time.perf_counter()
    process = _spawn(argv, log_path, cwd=cwd, environment=environment)
    while True:
        for line in log_path.read_text(errors="replace").splitlines(keepends=True):
            match = wanted.search(line)
            if line.startswith("ready") and line.endswith("\n") and match:
                return Child(process, time.perf_counter() - begun_at, log_path), match
        _check_starting(process, begun_at, log_path, None)
        time.sleep(0.005)


def _spawn(
    argv: Sequence[str], log_path: Path, *, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    log_path.parent.mkdir(parents=True, exist_ok=True)
    whole = {**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})}
    with log_path.open("wb") as log:
        return subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=cwd, env=whole
        )


def _check_starting(
    process: subprocess.Popen[bytes], begun_at: float, log_path: Path, cause: BaseException | None
) -> None:
    """Raise if the process has ended or has taken too long to start."""
    if process.poll() is not None:
        tail = log_path.read_text(errors="replace").strip().splitlines()[-1:]
        raise ProcessError(f"server ended with status {process.returncode}: {' '.join(tail)[:200]}") from cause
    if time.perf_counter() - begun_at > START_TIMEOUT_S:
        process.kill()
        process.wait()
        raise ProcessError(f"server did not accept within {START_TIMEOUT_S:.0f} s; see {log_path}") from cause
