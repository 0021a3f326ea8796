"""A worker process as its engine sees it: started when it is first asked something, and killed if it fails.

Requests and answers are lines. What they mean is known to who asks. `journal.engine.workers.serving` is the other end.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterable
from typing import Final, NoReturn

import trio

import journal

_LARGEST_LINE_BYTES: Final = 16 << 20
_GOODBYE_S: Final = 5.0
# The worker runs the code of this installation, wherever it is.
_ROOT: Final = os.path.dirname(os.path.dirname(os.path.abspath(journal.__file__)))


class WorkerFailedError(Exception):
    """The process could not be started, or does not answer as it should."""


class WorkerEndedError(WorkerFailedError):
    """The process has ended.

    Attributes:
        pid: Its process id.
        ending: How it ended.
    """

    def __init__(self, name: str, pid: int, ending: str) -> None:
        super().__init__(f"{name} (pid {pid}) ended: {ending}")
        self.pid = pid
        self.ending = ending


class WorkerProcess:
    """One process, which is replaced by a new one after it was killed. One request at a time.

    After any error or cancellation of a call, call `kill`: a late answer must not be taken for the next one.

    Args:
        name: What it is, for errors.
        command: Starts it.
    """

    def __init__(self, name: str, command: tuple[str, ...]) -> None:
        self._name = name
        self._command = command
        self._process: trio.Process | None = None
        self._received = bytearray()
        self._killed = trio.Event()
        self._killed.set()

    @property
    def pid(self) -> int | None:
        """Its process id, None while there is none."""
        return self._process.pid if self._process is not None else None

    async def send(self, lines: Iterable[bytes]) -> None:
        """Start the process if there is none, and send it lines.

        Raises:
            WorkerFailedError: It cannot be started, or has ended.
        """
        if self._process is None:
            # What was killed must not write any more when another one does the same.
            await self._killed.wait()
            self._received.clear()
            self._process = await self._start()
        process = self._process
        assert process.stdin is not None  # the process was started with pipes
        try:
            for line in lines:
                await process.stdin.send_all(line)
        except trio.BrokenResourceError:
            await self._raise_ended(process)

    async def receive(self) -> bytes:
        """The next line that the process writes, without its end.

        Raises:
            WorkerFailedError: It has ended.
        """
        process = self._process
        assert process is not None
        assert process.stdout is not None  # the process was started with pipes
        received = self._received
        while (at := received.find(b"\n")) < 0 and len(received) < _LARGEST_LINE_BYTES:
            try:
                data = await process.stdout.receive_some()
            except trio.BrokenResourceError:
                data = b""
            if not data:
                await self._raise_ended(process)
            received += data
        line = bytes(received[:at])
        del received[: at + 1]
        return line

    async def _raise_ended(self, process: trio.Process) -> NoReturn:
        with trio.move_on_after(_GOODBYE_S):
            await process.wait()
        raise WorkerEndedError(self._name, process.pid, _ending(process.returncode))

    async def rest(self) -> None:
        """End the process in order, if there is one: it is not needed for now."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None  # the process was started with pipes
        # The process ends when its input is closed.
        with trio.CancelScope(shield=True):
            await process.stdin.aclose()
            with trio.move_on_after(_GOODBYE_S):
                await process.wait()
            if process.returncode is None:
                process.kill()
                await process.wait()

    def kill(self) -> None:
        """Kill the process, if there is one. The next request starts another one."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            killed = self._killed = trio.Event()
            trio.lowlevel.spawn_system_task(_reap, process, killed)

    async def _start(self) -> trio.Process:
        paths = [_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        try:
            return await trio.lowlevel.open_process(
                list(self._command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
            )
        except OSError as error:
            raise WorkerFailedError(f"{self._name} cannot be started: {error}") from error


async def _reap(process: trio.Process, killed: trio.Event) -> None:
    with trio.CancelScope(shield=True):
        await process.wait()
        killed.set()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                await stream.aclose()


def _ending(returncode: int | None) -> str:
    if returncode is None:
        return "it closed its output"
    return f"killed by signal {-returncode}" if returncode < 0 else f"exit status {returncode}"
