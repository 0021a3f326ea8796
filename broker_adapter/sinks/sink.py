"""The interface of sinks, the destinations of bridges. All kinds pass the same test suite."""

from __future__ import annotations

import abc

import attrs

from broker_adapter.sinks.batch import Batch


@attrs.frozen(slots=True)
class SinkContext:
    """The bridge and the queue that a sink is opened for.

    Attributes:
        bridge: Name of the bridge.
        queue_id: Permanent id of the queue: another queue, even a later one of the same name, has another id. It
            consists of letters, digits and ``-``, at most 64. A sink that keeps a position stores it under this id.
        columns: Columns of all rows, in order.
        epoch: Rises with each driver of the queue. A sink that keeps a position refuses a driver with a lower epoch
            than it has seen, so that a driver that lost its lease without noticing does no harm.
    """

    bridge: str
    queue_id: str
    columns: tuple[str, ...]
    epoch: int


class Sink(abc.ABC):
    """One driver's access to a sink. Opening it does not connect; `check` does.

    Calls may be cancelled at any time; then the sink closes what the call was using, and the outcome of the batch is
    unknown. After a call that raised `SinkUnavailableError` or was cancelled, `check` is called before any other.

    A sink limits the time of its calls by itself (a setting ``timeout_s``, in seconds) and then raises
    `SinkUnavailableError`: a sink that hangs is out.

    Attributes:
        keeps_position: Whether rows and position are written together, both or neither, so that no row is ever stored
            twice; see `position`.
        max_in_flight: How many calls of `write` may be in progress at once. They are started in the order of the
            batches, and the sink keeps that order among the rows that it accepts: batches after one that fails may
            have been accepted or not. After a batch that it refuses as a whole, it accepts none of those in progress.
    """

    keeps_position: bool = False
    max_in_flight: int = 1

    @abc.abstractmethod
    async def check(self) -> None:
        """Connect to the sink if necessary, and check whether it would accept rows.

        Raises:
            SinkUnavailableError: It would not now, with the reason; for example it requires other credentials, or has
                no such table.
            DriverFencedError: The queue has a later driver.
        """

    async def position(self) -> int | None:
        """The offset of the queue up to which it has everything; None if it has nothing of the queue yet.

        Only called for a sink that ``keeps_position``, after `check`. From then on the sink refuses writers of lower
        epochs, even for writes in progress: the returned position is valid until this driver writes.

        Raises:
            SinkUnavailableError: An outage.
            DriverFencedError: The queue has a later driver.
        """
        return None

    @abc.abstractmethod
    async def write(self, batch: Batch) -> None:
        """Write a batch. Must not return before the sink has stored it, as durably as that kind of sink stores.

        A sink that keeps a position accepts the batch only if ``first_offset`` is not below its position, and advances
        the position to ``next_offset`` in the same step.

        Raises:
            SinkUnavailableError: An outage; what was stored of the batch is unknown.
            BatchRefusedError: It was refused, and nothing of it was stored.
            RowsRefusedError: Some rows were refused, all others were stored.
            DriverFencedError: The queue has a later driver.
        """

    @abc.abstractmethod
    async def aclose(self) -> None:
        """Close connections, without waiting for a reply."""
