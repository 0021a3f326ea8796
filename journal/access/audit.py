"""The record of administrative acts and refused logins: a file to which a line is added for each, a JSON object a line.

What counts as such an act is said by who writes here. A secret has no place in any of the fields.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec
import structlog
import trio

from journal.settings.values import ConfigurationError
from shards.errors import StorageError

_OWNER_AND_GROUP: Final = 0o640
_ENCODER: Final = msgspec.json.Encoder()

log: structlog.stdlib.BoundLogger = structlog.get_logger("journal")


class AuditLog:
    """An open file.

    Args:
        path: Where it is; made if it is not there. Empty keeps no record.
        time_ns: Nanoseconds since 1970.

    Raises:
        ConfigurationError: It cannot be opened.
    """

    def __init__(self, path: str = "", time_ns: Callable[[], int] = time.time_ns) -> None:
        self._path = path
        self._time_ns = time_ns
        self._descriptor = self._open() if path else None
        self._is_failing = False

    @property
    def is_kept(self) -> bool:
        """Whether there is a record at all."""
        return self._descriptor is not None

    def write(self, *, principal: str, peer: str, act: str, target: str, outcome: str, left_out: int = 0) -> None:
        """Add a line. Blocks no longer than the page cache does; what cannot be written is told in the server's log.

        Args:
            principal: Who did it; empty for one without a name.
            peer: From where, ``HOST:PORT``.
            act: What, in one word.
            target: The shard it was done to.
            outcome: ``ok``, or the code of the error.
            left_out: It stands for so many that have no line of their own.
        """
        if self._descriptor is None:
            return
        fields: dict[str, str | int] = {
            "time_us": self._time_ns() // 1000,
            "principal": principal,
            "peer": peer,
            "act": act,
            "target": target,
            "outcome": outcome,
        }
        if left_out:
            fields["left_out"] = left_out
        line = _ENCODER.encode(fields)
        try:
            os.write(self._descriptor, line + b"\n")
        except OSError as error:
            if not self._is_failing:
                # Once, until it goes again: the act itself was done and is not undone by this.
                log.error("an act is missing from the audit log", path=self._path, reason=error.strerror)  # noqa: TRY400
            self._is_failing = True
        else:
            self._is_failing = False

    def reopen(self) -> None:
        """Go on in the file that has the name now, after another program moved the old one away.

        Raises:
            ConfigurationError: It cannot be opened; the old one is gone on with.
        """
        if self._descriptor is not None:
            old, self._descriptor = self._descriptor, self._open()
            os.close(old)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        try:
            return os.open(self._path, flags, _OWNER_AND_GROUP)
        except OSError as error:
            raise ConfigurationError(
                f"access.audit_file = {self._path!r} cannot be opened: {error.strerror}; name a file in a directory "
                "that the server may write"
            ) from error


@contextmanager
def outcome_noted(note: Callable[[str], None]) -> Iterator[None]:
    """Tell what became of an act when it ends, by whatever way.

    Args:
        note: Called with ``ok``, the code of a `StorageError`, ``unknown`` for an act that was cancelled, or
            ``internal_error``.
    """
    outcome = "internal_error"
    try:
        yield
        outcome = "ok"
    except StorageError as error:
        outcome = error.code
        raise
    except trio.Cancelled:
        outcome = "unknown"
        raise
    finally:
        note(outcome)
