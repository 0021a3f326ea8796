"""A worker process as it sees itself: lines from standard input, and lines to standard output.

It ends when its input is closed, whatever it does at that time: then its engine has ended, and what it does would not
be used.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from collections.abc import Iterable
from typing import BinaryIO, Final

_NICENESS: Final = 10
"""Appends go first where processor cores are scarce."""


def incoming_lines() -> queue.SimpleQueue[bytes]:
    """Begin to serve. Returns the lines of the engine, as they come."""
    os.nice(_NICENESS)
    # Ctrl-C in a terminal also goes to the server, which stops in order and ends this process by closing its input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, lines), daemon=True).start()
    return lines


def _read(source: BinaryIO, lines: queue.SimpleQueue[bytes]) -> None:
    for line in source:
        lines.put(line)
    os._exit(0)


def write_lines(lines: Iterable[bytes]) -> None:
    """Write lines to the engine. The process ends if that has ended."""
    try:
        sys.stdout.buffer.writelines(lines)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # The engine was killed. The thread that reads lines would block an orderly exit, and there is nothing to clean
        # up.
        os._exit(0)
