"""Failed reads: errors that name the cause and the way out, and retries of subscription reads after a shortage.

A shortage of open files or memory passes, and the records are still there. A subscription that left the shard out and
continued would skip records. A missing file is no failure: the segment may have been trimmed or converted, and the
caller looks it up again.
"""

from __future__ import annotations

import errno
import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import trio

from shards.errors import CorruptionError, OverloadedError, StorageError

_log = logging.getLogger(__name__)

RETRY_AFTER_S: Final = 1.0
"""Interval of the retries; there is no event for the end of a shortage."""

_SHORTAGES: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))


@contextmanager
def refusals_named(path: str, position: int = 0) -> Iterator[None]:
    """Translate the errors of opening and reading a file.

    Raises:
        FileNotFoundError: The file is missing; passed on.
        OverloadedError: The process or the machine is short of open files or memory; a later read may succeed.
        CorruptionError: The disk returned an error; the bytes cannot be read.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in _SHORTAGES:
            raise OverloadedError(
                f"{path} cannot be opened: {error.strerror}; allow the process more open files or memory "
                f"(LimitNOFILE of its unit, limits.max_connections), or read again later"
            ) from error
        raise CorruptionError(path, position, f"cannot be read: {error.strerror}") from error


class ReadRetries:
    """Calls each registered function once, after a pause; `run` is its task. There is at most one for each shard."""

    def __init__(self) -> None:
        self._calls: deque[tuple[float, Callable[[], None]]] = deque()
        self._any = trio.Event()

    def later(self, error: StorageError, call: Callable[[], None]) -> None:
        """Call a function when its read is to be retried. It must not block, and may be called when it is not needed.

        Args:
            error: Why the read failed.
            call: The function to call.
        """
        if not self._calls:
            _log.warning("reads of subscriptions failed and are retried every %g s: %s", RETRY_AFTER_S, error)
        self._calls.append((trio.current_time() + RETRY_AFTER_S, call))
        self._any.set()

    async def run(self) -> None:
        """Call the registered functions until cancelled."""
        while True:
            while self._calls:
                due_at, call = self._calls[0]
                await trio.sleep_until(due_at)
                self._calls.popleft()
                call()
            self._any = trio.Event()
            await self._any.wait()
