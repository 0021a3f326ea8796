"""A process of a broker as its supervisor sees it: started, asked, and stopped."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
from collections.abc import Sequence
from typing import Final

import attrs
import trio

import journal
from broker_adapter.mqtt.config import BrokerConfig
from broker_adapter.mqtt.server.worker_lines import (
    Answer,
    Failed,
    LineReader,
    Question,
    Ready,
    Reload,
    Start,
    encode,
)
from journal.telemetry.http_pages import Reply, Request

_LAST_LINES_S: Final = 1.0
_MOST_UNANSWERED: Final = 256
_MOST_UNSENT: Final = _MOST_UNANSWERED + 16
# The process runs the code of this installation, wherever it is.
_ROOT: Final = os.path.dirname(os.path.dirname(os.path.abspath(journal.__file__)))


class WorkerUnansweredError(Exception):
    """The process does not answer, or has ended."""


@attrs.frozen
class Ending:
    """How a process ended.

    Attributes:
        words: Its exit status, or the signal that killed it.
        failure: The error that it reported; None without one.
    """

    words: str
    failure: Failed | None


class WorkerProcess:
    """One process of a broker.

    Args:
        number: Its number among the processes of the broker, from 1.
        command: Starts it.
        settings: Its settings.

    Attributes:
        number: Its number among the processes of the broker, from 1.
        pid: Its process id; 0 before it was started.
        ready: Set when it accepts clients.
    """

    def __init__(self, number: int, command: Sequence[str], settings: BrokerConfig) -> None:
        self.number = number
        self.pid = 0
        self.ready = trio.Event()
        # The number is for people who list processes.
        self._command = [*command, str(number)]
        self._process: trio.Process | None = None
        self._failure: Failed | None = None
        self._received_all = trio.Event()
        self._unsent, self._unsent_end = trio.open_memory_channel[bytes](_MOST_UNSENT)
        # What comes while the process is being started is behind this: other settings, or the end.
        self._unsent.send_nowait(encode(Start(number, settings)))
        self._has_ended = False
        self._next_question = 0
        self._questions: dict[int, _Waiting] = {}

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.returncode is None

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, or could not be started. False while it is being started."""
        return self._has_ended or (self._process is not None and self._process.returncode is not None)

    async def run(self) -> Ending:
        """Start it, and wait for its end.

        Raises:
            OSError: It cannot be started.
        """
        try:
            return await self._run()
        finally:
            self._has_ended = True

    async def _run(self) -> Ending:
        paths = [_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
        process = self._process = await trio.lowlevel.open_process(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            # Ctrl-C in a terminal is for the supervisor, which stops all in order.
            start_new_session=True,
        )
        self.pid = process.pid
        assert process.stdin is not None  # it was started with pipes
        assert process.stdout is not None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send_lines, process.stdin)
                nursery.start_soon(self._receive_lines, process.stdout)
                await process.wait()
                # The reason of its end may still be in the pipe.
                with trio.move_on_after(_LAST_LINES_S):
                    await self._received_all.wait()
                nursery.cancel_scope.cancel()
        finally:
            for waiting in self._questions.values():
                waiting.has_ended.set()
            self.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
                await process.stdin.aclose()
                await process.stdout.aclose()
        return Ending(_ending(process.returncode), self._failure)

    def reload(self, settings: BrokerConfig) -> None:
        """Have it apply settings that were read again; after its start, if that is not over yet.

        Raises:
            WorkerUnansweredError: It has taken nothing for long.
        """
        self._send(encode(Reload(settings)))

    async def ask(self, request: Request, method: str = "GET", *, within_s: float = math.inf) -> Reply:
        """Its answer to a request to one of its pages.

        Raises:
            WorkerUnansweredError: It has ended, or does not answer in this time.
        """
        if not self.is_running or len(self._questions) >= _MOST_UNANSWERED:
            raise WorkerUnansweredError
        number = self._next_question
        self._next_question += 1
        waiting = self._questions[number] = _Waiting()
        try:
            self._send(encode(Question(number, method, request)))
            with trio.move_on_after(within_s):
                await waiting.has_ended.wait()
        finally:
            del self._questions[number]
        if waiting.reply is None:
            raise WorkerUnansweredError
        return waiting.reply

    def stop(self) -> None:
        """Have it stop in order; after its start, if that is not over yet."""
        # Its input ends when what waits there was sent.
        self._unsent.close()

    def kill(self) -> None:
        """Kill it, if it still runs."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    def _send(self, line: bytes) -> None:
        try:
            self._unsent.send_nowait(line)
        except (trio.WouldBlock, trio.ClosedResourceError, trio.BrokenResourceError) as error:
            raise WorkerUnansweredError from error

    async def _send_lines(self, stream: trio.abc.SendStream) -> None:
        async with stream:
            async for line in self._unsent_end:
                try:
                    await stream.send_all(line)
                except trio.BrokenResourceError:
                    # It has ended, which `run` notices.
                    return

    async def _receive_lines(self, stream: trio.abc.ReceiveStream) -> None:
        async for line in LineReader(stream).lines():
            match line:
                case Ready():
                    self.ready.set()
                case Failed():
                    self._failure = line
                case Answer(number, reply):
                    waiting = self._questions.get(number)
                    if waiting is not None:
                        waiting.reply = reply
                        waiting.has_ended.set()
        self._received_all.set()


@attrs.define
class _Waiting:
    """A question that waits for its answer."""

    has_ended: trio.Event = attrs.field(factory=trio.Event)
    reply: Reply | None = None


def _ending(returncode: int | None) -> str:
    assert returncode is not None  # it has ended
    return f"killed by signal {-returncode}" if returncode < 0 else f"exit status {returncode}"
