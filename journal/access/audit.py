"""The audit log of administrative acts and of logins: a file with one line for each, a JSON object a line.

The callers decide what is such an act. None of the fields may contain a secret.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import attrs
import msgspec
import structlog
import trio

from journal.settings.values import ConfigurationError
from shards.errors import StorageError

_OWNER_AND_GROUP: Final = 0o640
_OWNER_ALONE: Final = 0o077
_ENCODER: Final = msgspec.json.Encoder()

log: structlog.stdlib.BoundLogger = structlog.get_logger("journal")


@attrs.frozen(slots=True, kw_only=True)
class AuditEntry:
    """An act, as a line of the log.

    Attributes:
        principal: The principal; empty for one without a name.
        peer: Its address, ``HOST:PORT``.
        act: The act, in one word.
        target: The shard, or at a broker the topic or other object, that was affected; of a refused request also the
            filter, or the key as rules name it.
        outcome: ``ok``, or the code of the error.
        cursor: The cursor of that shard, if the act affected one.
        group: The group, if the act affected one.
        client: Identifier of the MQTT client that did it or was affected.
        reason: Why an administrator did it.
        left_out: Number of lines that were left out and that this line stands for.
    """

    principal: str
    peer: str
    act: str
    target: str
    outcome: str
    cursor: str = ""
    group: str = ""
    client: str = ""
    reason: str = ""
    left_out: int = 0


class AuditLog:
    """An open audit log.

    Args:
        path: The file; created if it does not exist. Empty disables the log.
        time_ns: Nanoseconds since 1970.

    The file is created readable for the owner and the group, as far as the umask of the process allows it now.

    Raises:
        ConfigurationError: It cannot be opened.
    """

    def __init__(self, path: str = "", time_ns: Callable[[], int] = time.time_ns) -> None:
        self._path = path
        self._time_ns = time_ns
        self._mode = _OWNER_AND_GROUP & ~_umask()
        self._descriptor = self._open() if path else None
        self._is_failing = False

    @property
    def is_kept(self) -> bool:
        """Whether the log is enabled."""
        return self._descriptor is not None

    def write(self, entry: AuditEntry) -> None:
        """Add a line. Blocks only for the page cache. A write error is reported in the server's log, and not raised.

        Characters of names that cannot be printed, or that change the order of others, are escaped.
        """
        if self._descriptor is None:
            return
        fields: dict[str, str | int] = {
            "time_us": self._time_ns() // 1000,
            "principal": entry.principal,
            "peer": entry.peer,
            "act": entry.act,
            "target": entry.target,
            "outcome": entry.outcome,
        }
        optional = {"cursor": entry.cursor, "group": entry.group, "client": entry.client, "reason": entry.reason}
        fields.update({name: text for name, text in optional.items() if text})
        if entry.left_out:
            fields["left_out"] = entry.left_out
        line = _printable(_ENCODER.encode(fields).decode()).encode()
        try:
            os.write(self._descriptor, line + b"\n")
        except OSError as error:
            if not self._is_failing:
                # Reported once, until writing works again: the act itself was done and is not undone by this.
                log.error("an act is missing from the audit log", path=self._path, reason=error.strerror)  # noqa: TRY400
            self._is_failing = True
        else:
            self._is_failing = False

    def reopen(self) -> None:
        """Continue in the file that has the name now, after another program renamed the old one.

        Raises:
            ConfigurationError: It cannot be opened; the old one stays in use.
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
            return self._created(flags | os.O_EXCL)
        except FileExistsError:
            pass
        except OSError as error:
            raise self._refused(error) from error
        try:
            return os.open(self._path, flags, _OWNER_AND_GROUP)
        except OSError as error:
            raise self._refused(error) from error

    def _created(self, flags: int) -> int:
        # The server's own umask is stricter than the one that it was started with, and programs that collect logs are
        # often in the group.
        descriptor = os.open(self._path, flags, self._mode)
        os.fchmod(descriptor, self._mode)
        return descriptor

    def _refused(self, error: OSError) -> ConfigurationError:
        return ConfigurationError(
            f"access.audit_file = {self._path!r} cannot be opened: {error.strerror}; name a file in a directory "
            "that the server may write"
        )


def _umask() -> int:
    """The umask of the process, which can only be read by setting it."""
    umask = os.umask(_OWNER_ALONE)
    os.umask(umask)
    return umask


def _printable(line: str) -> str:
    """A line of JSON without characters that a terminal obeys or hides; the same values for a parser."""
    if line.isprintable():
        return line
    return "".join(each if each.isprintable() else _escaped(each) for each in line)


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


@contextmanager
def outcome_noted(note: Callable[[str], None]) -> Iterator[None]:
    """Record the outcome of an act when it ends in any way.

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
