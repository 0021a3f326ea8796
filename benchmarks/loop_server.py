"""The server's program with a monitor of the event loop: sends its longest step to clients of its control address.

``python -m benchmarks.loop_server --data DIR [--set SECTION.KEY=VALUE ...]``. It prints one line, ``ready tcp=ADDRESS
control=ADDRESS``, once it accepts. A connection to the control address gets one line of JSON and is closed: the longest
step since the previous such connection (see `LongestStep`).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import socket
from resource import RUSAGE_THREAD, getrusage
from time import perf_counter, thread_time
from typing import Any

import attrs
import trio

from command_line.overrides import overrides_of
from journal.server import run_server
from journal.settings.server_file import load_config


@attrs.define(slots=True)
class LongestStep:
    """The longest run of a task between two of its checkpoints.

    Attributes:
        held_s: How long the step blocked the event loop for all other tasks: its duration, without the time in which
            the thread was ready to run and other processes had the processors.
        wall_s: Its duration.
        cpu_s: Processor time of the event loop's thread in that step.
        queued_s: How long the thread was ready to run without a processor: it was taken away, or not given back after a
            wait. On a loaded machine even the shortest wait for the interpreter's lock can cost this much.
        waits: How often the thread gave up the processor in that step: for a disk, or for the interpreter's lock.
        task: Name of the task.
        collecting_s: The longest time that Python's garbage collector took, within any step.
    """

    held_s: float = 0.0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    queued_s: float = 0.0
    waits: int = 0
    task: str = ""
    collecting_s: float = 0.0


class _QueueTime:
    """How long the thread that creates this was ready to run without a processor, in its whole life, by Linux."""

    def __init__(self) -> None:
        self._descriptor = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def read_s(self) -> float:
        return int(os.pread(self._descriptor, 100, 0).split()[1]) / 1e9


class StepMonitor(trio.abc.Instrument):
    """Measures every step of every task.

    Attributes:
        longest: The longest one since the last reset.
    """

    def __init__(self) -> None:
        self.longest = LongestStep()
        self._began_s = 0.0
        self._cpu_s = 0.0
        self._queue_time = _QueueTime()
        self._queued_s = 0.0
        self._waits = 0
        self._collection_began_s = 0.0
        gc.callbacks.append(self._collecting)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._queued_s = self._queue_time.read_s()
        self._waits = getrusage(RUSAGE_THREAD).ru_nvcsw
        self._cpu_s = thread_time()
        self._began_s = perf_counter()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        wall_s = perf_counter() - self._began_s
        longest = self.longest
        if wall_s <= longest.held_s:
            return
        cpu_s = thread_time() - self._cpu_s
        queued_s = self._queue_time.read_s() - self._queued_s
        held_s = max(cpu_s, wall_s - queued_s)
        if held_s > longest.held_s:
            longest.held_s, longest.wall_s, longest.cpu_s, longest.queued_s = held_s, wall_s, cpu_s, queued_s
            longest.waits = getrusage(RUSAGE_THREAD).ru_nvcsw - self._waits
            longest.task = task.name

    def _collecting(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._collection_began_s = perf_counter()
        else:
            self.longest.collecting_s = max(self.longest.collecting_s, perf_counter() - self._collection_began_s)

    def take(self) -> LongestStep:
        """Return the longest step so far, and reset it."""
        found, self.longest = self.longest, LongestStep()
        return found


async def _send_longest(listener: trio.SocketListener, monitor: StepMonitor) -> None:
    async with listener:
        while True:
            stream = await listener.accept()
            async with stream:
                await stream.send_all(json.dumps(attrs.asdict(monitor.take())).encode() + b"\n")


async def _serve(data: str, settings: tuple[str, ...]) -> None:
    overrides: dict[str, object] = {"listen.tcp": "127.0.0.1:0", "listen.websocket": "", "listen.http": ""}
    overrides |= overrides_of(settings, listed_by="journal config --default")
    config = load_config(None, overrides)
    monitor = StepMonitor()
    with socket.create_server(("127.0.0.1", 0)) as bound:
        commands = trio.SocketListener(trio.socket.from_stdlib_socket(bound))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_send_longest, commands, monitor)
            async with trio.open_nursery() as serving:
                addresses = await serving.start(run_server, config, data)
                trio.lowlevel.add_instrument(monitor)
                host, port = bound.getsockname()
                print("ready", *addresses, f"control={host}:{port}", flush=True)
            nursery.cancel_scope.cancel()


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.loop_server")
    parser.add_argument("--data", required=True)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    arguments = parser.parse_args()
    trio.run(_serve, arguments.data, tuple(arguments.settings))


if __name__ == "__main__":
    main()
