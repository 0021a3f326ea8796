"""A log store in memory, for tests and simulations. Each create can be given a fault."""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable

from journal.logstore.errors import StoreUnreachableError, UnknownOutcomeError
from journal.logstore.keys import check_key, folder_of
from journal.logstore.store import Created


class Fault(enum.Enum):
    """What happens to a create."""

    NONE = "applied and answered"
    ANSWER_LOST = "applied, and the answer lost"
    LATE = "not applied yet and not answered; applied by `MemoryLogStore.apply_late`"
    REFUSED = "not applied, and known not to be"
    CONFLICT = "not applied, and answered by 409, which some libraries report as an object that exists"
    UNAVAILABLE = "not applied, and answered by 503"


class MemoryLogStore:
    """Objects in dictionaries, one for each folder.

    Args:
        fault: Of a create, by its key.

    Attributes:
        late: Creates that were neither applied nor answered yet.
    """

    def __init__(self, fault: Callable[[str], Fault] = lambda _: Fault.NONE) -> None:
        self._fault = fault
        self._folders: dict[str, dict[str, bytes]] = {}
        self._lock = threading.Lock()
        self.late: list[tuple[str, bytes]] = []

    def create(self, key: str, data: bytes) -> Created:
        check_key(key)
        with self._lock:
            match self._fault(key):
                case Fault.NONE:
                    return self._apply(key, data)
                case Fault.ANSWER_LOST:
                    self._apply(key, data)
                    raise UnknownOutcomeError(f"create of {key}: the answer was lost")
                case Fault.LATE:
                    self.late.append((key, data))
                    raise UnknownOutcomeError(f"create of {key}: no answer in time")
                case Fault.REFUSED:
                    raise StoreUnreachableError(f"create of {key}: no connection")
                case Fault.CONFLICT:
                    return Created.EXISTS
                case Fault.UNAVAILABLE:
                    raise UnknownOutcomeError(f"create of {key}: answered by 503")

    def apply_late(self, index: int = 0) -> None:
        """Apply one of the creates in `late`, as if it arrived now."""
        with self._lock:
            self._apply(*self.late.pop(index))

    def get(self, key: str) -> bytes | None:
        check_key(key)
        with self._lock:
            return self._folders.get(folder_of(key), {}).get(key)

    def list_after(self, key: str) -> list[str]:
        folder = folder_of(key)
        with self._lock:
            return [name for name in self._folders.get(folder, ()) if name > key]

    def delete(self, key: str) -> None:
        check_key(key)
        with self._lock:
            self._folders.get(folder_of(key), {}).pop(key, None)

    def close(self) -> None:
        """Nothing is open."""

    def _apply(self, key: str, data: bytes) -> Created:
        objects = self._folders.setdefault(folder_of(key), {})
        if key in objects:
            return Created.EXISTS
        objects[key] = data
        return Created.OURS
