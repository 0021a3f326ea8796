"""Two appends of one message, to its shard and to the shard of a cache queue, that are acknowledged as one."""

from __future__ import annotations

import attrs

from broker_adapter.errors import StorageError
from broker_adapter.results import PendingAppend
from shards.model import Appended


@attrs.frozen(slots=True, eq=False)
class JoinedAppend:
    """A `PendingAppend` that is done when both are; it fails if either fails."""

    first: PendingAppend
    second: PendingAppend

    @property
    def parts(self) -> tuple[PendingAppend, ...]:
        """The two appends."""
        return tuple(part for each in (self.first, self.second) for part in parts_of(each))

    @property
    def is_done(self) -> bool:
        """Whether both outcomes are known."""
        return self.first.is_done and self.second.is_done

    async def wait(self) -> Appended:
        """Wait for both; see `PendingAppend.wait`."""
        for each in (self.first, self.second):
            try:
                await each.wait()
            except StorageError:
                # The error is reported by `result_nowait`, when both are done.
                continue
        return self.result_nowait()

    def result_nowait(self) -> Appended:
        """The outcome of the first, if both were stored."""
        self.second.result_nowait()
        return self.first.result_nowait()


def parts_of(pending: PendingAppend) -> tuple[PendingAppend, ...]:
    """The appends to the store that a pending append consists of."""
    return pending.parts if isinstance(pending, JoinedAppend) else (pending,)
