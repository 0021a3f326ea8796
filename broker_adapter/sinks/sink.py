"""The contract of sinks: what a bridge asks of the place that it brings records to. All kinds pass one test suite."""

from __future__ import annotations

import abc

import attrs

from broker_adapter.sinks.batch import Batch


@attrs.frozen(slots=True)
class SinkContext:
    """Whom a sink works for.

    Attributes:
        bridge: Name of the bridge.
        queue_id: Names the queue for ever: another queue, even one of the same name made later, has another. It is
            made of letters, digits and ``-``, at most 64. A sink that keeps a position keeps it under this name.
        columns: Columns of all rows that will come, in order.
        epoch: Rises with each driver of the queue. A sink that keeps a position refuses a driver with a lower one than
            it has seen, so that one that lost its lease without noticing does no harm.
    """

    bridge: str
    queue_id: str
    columns: tuple[str, ...]
    epoch: int


class Sink(abc.ABC):
    """One driver's way to a sink. Opening it connects to nothing yet; `check` does.

    Calls may be cancelled at any time, and then the sink closes what the call was using: what became of the batch is
    not known. After a call that raised `SinkUnavailableError` or was cancelled, `check` is called before any other.

    A sink bounds by itself how long a call takes (a setting ``timeout_s``) and then raises `SinkUnavailableError`: one
    that hangs is out.

    Attributes:
        keeps_position: Whether rows and position are written together, both or neither, so that no row is ever there
            twice; see `position`.
        max_in_flight: How many calls of `write` may be under way at once. They are started in the order of the
            batches, and the sink keeps that order among the rows that it takes: what follows a batch that fails may
            have been taken or not. What was under way behind a batch that it refuses as a whole it does not take.
    """

    keeps_position: bool = False
    max_in_flight: int = 1

    @abc.abstractmethod
    async def check(self) -> None:
        """Reach the sink (connecting if need be) and find out whether it would take rows.

        Raises:
            SinkUnavailableError: It would not now, and why: also when it wants other credentials, or has no such table.
            DriverFencedError: See there.
        """

    async def position(self) -> int | None:
        """Up to which offset of the queue it has everything; None if it has nothing of it yet.

        Only asked of a sink that ``keeps_position``, after `check`. It makes the sink refuse writers of lower epochs
        from then on, also such as are under way: what it returns stays true until this driver writes.

        Raises:
            SinkUnavailableError, DriverFencedError: See there.
        """
        return None

    @abc.abstractmethod
    async def write(self, batch: Batch) -> None:
        """Write a batch. Must not return before the sink has it for good, as it understands that.

        A sink that keeps a position takes the batch only if ``first_offset`` is not below its position, and moves that
        to ``next_offset`` in the same step.

        Raises:
            SinkUnavailableError: An outage; see there.
            BatchRefusedError: It was refused, nothing of it was taken.
            RowsRefusedError: Some rows were refused, all others were taken.
            DriverFencedError: See there.
        """

    @abc.abstractmethod
    async def aclose(self) -> None:
        """Let go of connections. It waits for no reply."""
