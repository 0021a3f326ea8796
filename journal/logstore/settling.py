"""The one loop that repeats requests to a log store, and finds out what became of a create.

After a timeout, a 5xx, a 409 or a lost answer, a create may have been applied, may be applied later, or never. The
same bytes are sent again until the store gives an answer that decides it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import attrs

from journal.logstore.errors import (
    LogStoreError,
    StoreCredentialsError,
    StoreFullError,
    StoreUnreachableError,
    UnknownOutcomeError,
)
from journal.logstore.steps import Steps, create, delete, get, list_after, pause
from journal.logstore.store import Created

_T = TypeVar("_T")

MOST_ATTEMPTS: Final = 1000
"""With the delays of `driver.DELAYS`, several minutes."""

_TRANSIENT: Final = (UnknownOutcomeError, StoreUnreachableError)


@attrs.frozen(slots=True)
class Settlement:
    """What became of a create.

    Attributes:
        is_ours: Whether the object holds our bytes.
        found: What the object holds.
    """

    is_ours: bool
    found: bytes


def settle_create(key: str, data: bytes, attempts: int = MOST_ATTEMPTS) -> Steps[Settlement]:
    """Create an object, and find out whether the object that is there afterwards is ours.

    The bytes must differ from those of every other create, by any node: they tell which create was applied.

    Raises:
        UnknownOutcomeError: It is not known after so many attempts, or fewer if the driver gives up. The object may
            still appear at any time.
        StoreUnreachableError: No attempt reached the store: the object is not there by our doing, and will not be.
        StoreCredentialsError, StoreFullError: The store refused every attempt so far, with the same consequence.
    """
    may_be_applied = False
    last: LogStoreError | None = None
    for failures in range(1, attempts + 1):
        try:
            if (yield from create(key, data)) is Created.OURS:
                return Settlement(True, data)
            # From here on it can be an earlier attempt of ours, which a library or a proxy repeated.
            may_be_applied = True
            found = yield from get(key)
            if found is not None:
                return Settlement(found == data, found)
            # Absent: the store said so while a rival was being decided about, or the object was deleted since.
        except UnknownOutcomeError as error:
            may_be_applied = True
            last = error
        except (StoreCredentialsError, StoreFullError) as error:
            if not may_be_applied:
                raise
            last = error
        except StoreUnreachableError as error:
            last = error
        if failures == attempts or not (yield from pause(failures)):
            break
    if isinstance(last, StoreUnreachableError) and not may_be_applied:
        raise last
    reason = f": {last}" if last is not None else ""
    raise UnknownOutcomeError(f"it is unknown after {failures} attempts whether {key} was created{reason}") from last


def settle_get(key: str, attempts: int = MOST_ATTEMPTS) -> Steps[bytes | None]:
    """Read an object; `None` if there is none."""
    return (yield from _repeat(lambda: get(key), attempts))


def settle_list(key: str, attempts: int = MOST_ATTEMPTS) -> Steps[list[str]]:
    """List the keys of the same folder that sort after this one, in any order."""
    return (yield from _repeat(lambda: list_after(key), attempts))


def settle_delete(key: str, attempts: int = MOST_ATTEMPTS) -> Steps[None]:
    """Delete an object."""
    yield from _repeat(lambda: delete(key), attempts)


def _repeat(request: Callable[[], Steps[_T]], attempts: int) -> Steps[_T]:
    """Repeat what may be repeated without harm."""
    for failures in range(1, attempts + 1):
        try:
            return (yield from request())
        except _TRANSIENT as error:
            last: LogStoreError = error
        if failures == attempts or not (yield from pause(failures)):
            break
    raise last
