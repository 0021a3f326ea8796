"""Commands that run until they are stopped: by Ctrl-C, by SIGTERM, or when the reader of their output closes it.

They install signal handlers: a shell starts background jobs with SIGINT ignored, and Python keeps it ignored.
"""

from __future__ import annotations

import io
import os
import signal
import stat
import sys
from collections.abc import Awaitable, Callable

import trio

from command_line.boundary import OutputClosedError, StoppedError


async def run_until_stopped(work: Callable[[], Awaitable[None]]) -> None:
    """Run a command's work; cancel it when the command is stopped.

    Raises:
        StoppedError: By a signal; in a group.
        OutputClosedError: The pipe at stdout has no reader any more; in a group.
    """
    async with trio.open_nursery() as nursery:
        await nursery.start(_wait_for_signal)
        nursery.start_soon(_wait_for_closed_output)
        await work()
        nursery.cancel_scope.cancel()


async def _wait_for_signal(*, task_status: trio.TaskStatus[None]) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for number in signals:
            raise StoppedError(number)


async def _wait_for_closed_output() -> None:
    try:
        output = sys.stdout.fileno()
    except io.UnsupportedOperation:
        return
    if not stat.S_ISFIFO(os.fstat(output).st_mode):
        return
    # A pipe for writing never becomes readable; this only returns when its other end was closed.
    await trio.lowlevel.wait_readable(output)
    raise OutputClosedError
