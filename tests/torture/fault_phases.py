"""Faults of the disk, made in the real process by strace and by limits of the kernel. Each phase is a round of clients.

strace attaches to the running server for a moment and has one of its system calls fail. A call that fails so was not
carried out. Short writes are real ones: the kernel cuts them at a limit of the file size.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.crash.killed_server import KilledServer
from tests.torture.rounds import Result, Round

_STRACE_ENDS_S = 10

WRITES = "pwritev2,pwritev,pwrite64,write"
SYNCS = "fdatasync,fsync"
NAMES = "rename,unlink,openat,mkdir,ftruncate"

# What is made to fail, how, and whether the server may go on as if nothing had been.
INJECTIONS = (
    (SYNCS, "error=EIO", False),
    (SYNCS, "error=ENOSPC", False),
    (SYNCS, "error=EDQUOT", False),
    ("pwritev2", "error=EIO", False),
    ("pwritev2", "error=ENOSPC", False),
    ("pwritev2", "error=EDQUOT", False),
    ("pwritev2", "retval=0", False),
    ("rename", "error=EIO", False),
    ("rename", "error=ENOSPC", False),
    ("unlink", "error=EIO", False),
    ("ftruncate", "error=ENOSPC", False),
    ("openat", "error=EMFILE", False),
    ("pread64", "error=EINTR", True),
    ("pwritev2", "error=EINTR", True),
    (SYNCS, "error=EINTR", True),
)


def missing_strace(directory: Path) -> str:
    """Why nothing can be injected here; empty if it can."""
    if shutil.which("strace") is None:
        return "strace is not installed (make peers)"
    output = directory / "probe"
    tried = subprocess.run(["strace", "-o", str(output), "true"], capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else f"strace may not trace here: {tried.stderr.strip()}"


def faults(directory: Path, rng: random.Random, seconds: float) -> Result:
    """Let system calls of the running server fail, then kill it or let it go on, and start it again."""
    if reason := missing_strace(directory):
        return Result(skipped=reason)
    one = Round.begin(directory, rng)
    with one.working():
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            time.sleep(rng.uniform(0.1, 1))
            if rng.random() < 0.15:
                _limit_file_size(one)
            else:
                calls, how, passes = rng.choice(INJECTIONS)
                inject(one, calls, how, passes=passes)
        one.finish()
    return one.result


def inject(
    one: Round[KilledServer], calls: str, how: str, *, passes: bool, pid: int | None = None, paths: Sequence[str] = ()
) -> None:
    """Let one call fail, or every one for a moment.

    Args:
        one: The round.
        calls: System calls, as strace has them.
        how: How they fail.
        passes: The server must not notice.
        pid: The process; the server unless given.
        paths: Only calls on these paths.
    """
    rng = one.rng
    one.may_end = True
    output = one.directory / "strace.txt"
    output.unlink(missing_ok=True)
    logged = one.server.log.stat().st_size
    when = rng.choice((f"when={rng.randrange(1, 6)}", f"when={rng.randrange(1, 4)}+"))
    began_ns = time.monotonic_ns()
    traced = str(one.server.pid if pid is None else pid)
    arguments = ["-f", "-qq", "-o", str(output), "-p", traced, "-e", f"trace={calls}"]
    for path in paths:
        arguments += ["-P", path]
    with subprocess.Popen(
        ["strace", *arguments, "-e", f"inject={calls}:{how}:{when}"], stderr=subprocess.DEVNULL
    ) as strace:
        waits_until = time.monotonic() + 2
        while time.monotonic() < waits_until and strace.poll() is None and not _injected(output):
            time.sleep(0.02)
        # What follows the first failure in the same moment.
        time.sleep(rng.choice((0, 0.3)))
        if strace.poll() is None:
            strace.send_signal(signal.SIGINT)
        _end_strace(one, strace)
    one.note(f"{calls}:{how}:{when}, injected {_injected(output)} times", began_ns)
    if _injected(output):
        one.result.counts["faults injected"] += _injected(output)
        if passes:
            _see_nothing(one, f"{calls}:{how}", logged)
        _after_fault(one, f"{calls}:{how}", began_ns, logged)
    else:
        one.result.counts["faults that met no call"] += 1


def _end_strace(one: Round[KilledServer], strace: subprocess.Popen[bytes]) -> None:
    """Wait for the end of strace, or kill it: all it traces goes on then.

    It may wait for ever, where the process with all its threads was killed from elsewhere while it was asked to end.
    """
    try:
        strace.wait(_STRACE_ENDS_S)
    except subprocess.TimeoutExpired:
        strace.kill()
        one.result.counts["straces that had to be killed"] += 1


def _injected(output: Path) -> int:
    return output.read_text(errors="replace").count("(INJECTED)") if output.exists() else 0


def _see_nothing(one: Round[KilledServer], fault: str, logged: int) -> None:
    """The server goes on as if nothing had been, and has logged nothing of it."""
    status = one.server.exit_status
    if _has_failed(one, logged) or status is not None:
        one.result.broken.append(f"{fault} must not be noticed, but the server failed (status {status})")


def _has_failed(one: Round[KilledServer], logged: int) -> bool:
    with one.server.log.open("rb") as log:
        log.seek(logged)
        return b"the storage failed" in log.read()


def _after_fault(one: Round[KilledServer], fault: str, began_ns: float, logged: int) -> None:
    """What a supervisor would do."""
    settled_at = time.monotonic() + 0.5
    while time.monotonic() < settled_at and one.server.exit_status is None:
        time.sleep(0.05)
    status = one.server.exit_status
    if status is not None:
        one.result.counts[f"ended by itself with status {status}"] += 1
        if status <= 0:
            one.result.broken.append(f"after {fault} the server ended by itself with status {status}")
        one.note_death(began_ns)
        one.start_server()
    elif _has_failed(one, logged) or one.rng.random() < 0.5:
        one.end_server(one.rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)))
        one.start_server()


def _limit_file_size(one: Round[KilledServer]) -> None:
    """Writes beyond a size are cut short, then refused."""
    began_ns = time.monotonic_ns()
    one.may_end = True
    logged = one.server.log.stat().st_size
    limit = one.rng.choice((4 << 10, 40_000, 500_000))
    _, hard = resource.prlimit(one.server.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(one.server.pid, resource.RLIMIT_FSIZE, (limit, hard))
    time.sleep(one.rng.uniform(0.1, 1))
    if one.server.exit_status is None:
        resource.prlimit(one.server.pid, resource.RLIMIT_FSIZE, (hard, hard))
    one.note(f"files limited to {limit} bytes", began_ns)
    one.result.counts["file size limits"] += 1
    _after_fault(one, f"a file size limit of {limit}", began_ns, logged)


def failing_starts(directory: Path, rng: random.Random, seconds: float) -> Result:
    """System calls fail while the server starts; it says so and ends, and the next start finds everything."""
    if reason := missing_strace(directory):
        return Result(skipped=reason)
    one = Round.begin(directory, rng)
    with one.working():
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            time.sleep(rng.uniform(0.1, 1))
            one.end_server(signal.SIGKILL)
            calls, how, _ = rng.choice(INJECTIONS)
            output = directory / "strace.txt"
            output.unlink(missing_ok=True)
            inject = ["-e", f"trace={calls}", "-e", f"inject={calls}:{how}:when={rng.randrange(1, 12)}"]
            began_ns = time.monotonic_ns()
            try:
                # Only the data directory: a fault of what the interpreter reads is no fault of the store.
                one.start_server(["strace", "-D", "-f", "-qq", "-o", str(output), *_paths(one.server.data), *inject])
            except AssertionError:
                status = one.server.wait()
                one.result.counts["starts that failed"] += 1
                if status <= 0:
                    one.result.broken.append(f"a start with {calls}:{how} ended with status {status}")
            one.note(f"{calls}:{how} at a start, injected {_injected(output)} times", began_ns)
            one.note_death(began_ns)
            one.result.counts["faults injected"] += _injected(output)
            one.start_server()
        one.finish()
    return one.result


def _paths(data: Path) -> list[str]:
    arguments = []
    for directory, _, names in os.walk(data):
        for path in (directory, *(os.path.join(directory, name) for name in names)):
            arguments += ["-P", path]
    return arguments
