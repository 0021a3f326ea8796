"""A process of the demo: it may die, and may be started again with the same command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import trio

from demo.errors import DemoError

_START_TIMEOUT_S: Final = 30.0
_STOP_TIMEOUT_S: Final = 10.0
_PIPE_BYTES: Final = 65_536


class ManagedProcess:
    """One process. As a context manager it is killed at the end if it still runs.

    Attributes:
        name: Its name in messages.
        log_path: File of its log.

    Args:
        name: Its name in messages.
        command: Its program and arguments.
        log_path: File of its log.
        environment: What it needs of its environment beyond that of this process.
        directory: Its working directory; that of this process by default.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log_path: Path,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> None:
        self.name = name
        self._command = list(command)
        self.log_path = log_path
        self._environment = {**os.environ, **(environment or {})}
        self._directory = directory
        self._process: trio.Process | None = None

    @property
    def pid(self) -> int:
        """Process id of the present or last process."""
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    async def launch(self, stdout: int | None = None) -> trio.Process:
        """Start it, and do not wait until it does its work. By default what it prints goes into its log."""
        with self.log_path.open("ab") as log:
            self._process = await trio.lowlevel.open_process(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log if stdout is None else stdout,
                stderr=log,
                env=self._environment,
                cwd=self._directory,
            )
        return self._process

    async def kill(self) -> None:
        """Send SIGKILL: it cannot write anything more."""
        assert self._process is not None
        self._process.kill()
        await self._process.wait()

    async def stop(self) -> None:
        """Send SIGTERM, as an operator would.

        Raises:
            DemoError: It did not end with status 0 in time.
        """
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        with trio.move_on_after(_STOP_TIMEOUT_S):
            if await self._process.wait() == 0:
                return
        status = self._process.returncode
        raise DemoError(f"{self.name} did not stop cleanly on SIGTERM (status {status}); {self.last_words()}")

    def last_words(self) -> str:
        """The last line of its log, and where that is."""
        lines = self.log_path.read_text("utf-8", "replace").split("\n") if self.log_path.exists() else []
        last = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
        return f"{self.log_path} says why: {last}"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_running:
            with trio.CancelScope(shield=True):
                await self.kill()


class AnnouncingProcess(ManagedProcess):
    """A process of ours that prints when it is ready.

    Args:
        name: Its name in messages.
        module: Python module that it runs.
        arguments: Its command line.
        log_path: File of its log.
    """

    def __init__(self, name: str, module: str, arguments: Sequence[str], log_path: Path) -> None:
        super().__init__(name, [sys.executable, "-m", module, *arguments], log_path)

    async def start(self) -> None:
        """Start it and wait until it prints that it is ready.

        Raises:
            DemoError: It ended, or was not ready in time.
        """
        process = await self.launch(stdout=subprocess.PIPE)
        assert process.stdout is not None
        said = b""
        with trio.move_on_after(_START_TIMEOUT_S):
            while b"\n" not in said and (data := await process.stdout.receive_some(_PIPE_BYTES)):
                said += data
        if not said.startswith(b"ready"):
            raise DemoError(f"{self.name} did not start; {self.last_words()}")
