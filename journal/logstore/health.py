"""Whether a log store answers this server: what the requests of the last seconds came to.

Algorithms repeat requests that failed, some for minutes. Here it is noticed meanwhile that none succeeds.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import attrs

from journal.logstore.errors import LogStoreError, UnknownOutcomeError
from journal.logstore.store import Created, LogStore

FAILING_S: Final = 2.0
"""So long no request must have succeeded before that counts as trouble: single failures are normal."""

SILENT_S: Final = 5.0
"""The same for requests that are not answered."""

LASTS_S: Final = 2.5
"""So long after a failure without another request nothing is known any more: what is needed is repeated after a second
or less. It is less than the time for which an owner may be silent (`journal.server.cluster.takeover`), so a single
failure that nothing follows, such as that of a checkpoint, does not end with a takeover."""

_NOT_ANSWERED: Final = UnknownOutcomeError("it did not answer yet")


@attrs.frozen(slots=True)
class Trouble:
    """No request of a kind succeeds.

    Attributes:
        subject: Says so, as the beginning of a sentence that goes on with "for 5 s".
        since_s: For how long, in seconds.
        code: The code of the error that the last one came to.
        what: Its message, and what to do about it.
    """

    subject: str
    since_s: float
    code: str
    what: str

    @property
    def summary(self) -> str:
        """Without what the store said."""
        return f"{self.subject} for {self.since_s:.0f} s"

    def __str__(self) -> str:
        return f"{self.summary}: {self.what}"


class RequestHealth:
    """What became of requests of one kind. Methods may be called by any thread.

    Args:
        subject: See `Trouble`.
        clock: Monotonic, in seconds.
        lasts_s: So long after a failure nothing is known any more.
    """

    def __init__(self, subject: str, clock: Callable[[], float] = time.monotonic, lasts_s: float = LASTS_S) -> None:
        self._subject = subject
        self._clock = clock
        self._lasts_s = lasts_s
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._under_way: dict[int, float] = {}
        self._failing_since: float | None = None
        self._failed_at = 0.0
        self._error = ("", "")

    @contextmanager
    def request(self, *, is_long: bool = False) -> Iterator[None]:
        """A request is made within the block, which ends with its error if it failed.

        Args:
            is_long: It may take long though all is well: only its end says something.
        """
        number, began = next(self._numbers), self._clock()
        with self._lock:
            self._under_way[number] = math.inf if is_long else began
        try:
            yield
        except LogStoreError as error:
            with self._lock:
                del self._under_way[number]
                self._fail(error, began)
            raise
        except BaseException:
            with self._lock:
                del self._under_way[number]
            raise
        with self._lock:
            del self._under_way[number]
            self._failing_since = None
            # Those that began before are not older than this success.
            now = self._clock()
            self._under_way = {other: max(at, now) for other, at in self._under_way.items()}

    def _fail(self, error: LogStoreError, began: float) -> None:
        now = self._clock()
        if self._failing_since is None or not self._repeats(began):
            self._failing_since = began
        # Not the error itself, which holds what the frames of the request have.
        self._error, self._failed_at = _described(error), now

    def _repeats(self, began: float) -> bool:
        """Whether a request that began then, or the present if it is now, still belongs to the last failure."""
        return began - self._failed_at <= self._lasts_s

    @property
    def trouble(self) -> Trouble | None:
        """Says that none has succeeded for a while; None if the last one has, or its failure was not followed up."""
        with self._lock:
            now = self._clock()
            oldest = min(self._under_way.values(), default=now)
            if self._failing_since is not None:
                since_s = now - self._failing_since
                if since_s >= FAILING_S and any(map(self._repeats, (now, *self._under_way.values()))):
                    return Trouble(self._subject, since_s, *self._error)
            if now - oldest >= SILENT_S:
                return Trouble(self._subject, now - oldest, *_described(_NOT_ANSWERED))
            return None


def _described(error: LogStoreError) -> tuple[str, str]:
    """The code of an error, and what people are to know of it."""
    return error.code, f"{error}; {error.way_out}" if error.way_out else str(error)


class WatchedLogStore:
    """Passes every call to a store, and notes what it came to. Deletions are not noted: nothing waits for them.

    Args:
        store: The store. Closed with this one.
        clock: Monotonic, in seconds.

    Attributes:
        reads: What reads and listings came to.
        writes: What creates came to.
    """

    def __init__(self, store: LogStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store: Final = store
        self.reads: Final = RequestHealth("no read of the log store has succeeded", clock)
        self.writes: Final = RequestHealth("no write to the log store has succeeded", clock)

    def create(self, key: str, data: bytes) -> Created:
        with self.writes.request():
            return self._store.create(key, data)

    def get(self, key: str) -> bytes | None:
        with self.reads.request():
            return self._store.get(key)

    def list_after(self, key: str) -> list[str]:
        with self.reads.request():
            return self._store.list_after(key)

    def delete(self, key: str) -> None:
        self._store.delete(key)

    def close(self) -> None:
        self._store.close()
