"""`journal queue drain`: have a sink tried at once, and wait until the queue's records have left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker_adapter.cache_queue.cli.connection import DEFAULT_SERVER, StoreOption, connect
from command_line.boundary import CommandError
from command_line.output import is_terminal, note, progress, write_text
from command_line.quantities import parse_timeout_s
from shards.quantities import counted

if TYPE_CHECKING:
    from broker_adapter.adapter import StorageAdapter
    from broker_adapter.cache_queue.lease import LeaseSettings
    from broker_adapter.cache_queue.queue import QueueState

_LOOK_INTERVAL_S = 0.5
_NOTE_INTERVAL_S = 5.0
_PROGRAM = "journal"


def drain_command(name: str, /, *, timeout: str = "", server: StoreOption = DEFAULT_SERVER) -> None:
    """Have a queue's sink tried at once, and wait until the records that wait now have left the queue.

    A paused queue is resumed. Records that are put in meanwhile are not waited for.

    Args:
        name: Name of the queue.
        timeout: Stop waiting after this time, such as 5m; draining continues.
    """
    import trio

    trio.run(_drain, server, name, parse_timeout_s(timeout))


async def _drain(server: str, name: str, timeout_s: float) -> None:
    import trio

    from broker_adapter.cache_queue.cli.view import outcomes_between
    from broker_adapter.cache_queue.lease import LeaseSettings
    from broker_adapter.cache_queue.queue import change_queue, definition_of, look

    async with connect(server) as adapter:
        began_s = trio.current_time()
        is_paused = (await definition_of(adapter, name)).is_paused
        await change_queue(adapter, name, is_paused=False, wake=True)
        if is_paused:
            note(_PROGRAM, f"{name} was paused, and is resumed")
        start = await look(adapter, name)
        following = Following(start, LeaseSettings())
        with trio.move_on_after(timeout_s) as patience:
            await following.follow(adapter)
        last = following.last
    seconds = trio.current_time() - began_s
    if patience.cancelled_caught:
        raise CommandError(
            f"{name}: {following.done(last):,} of {following.total:,} records have left within {seconds:.1f}s; "
            f"{following.why(last)}"
        )
    if not following.total:
        write_text(f"{name}: nothing waits in the queue")
        return
    became = outcomes_between(start, last, following.total)
    write_text(f"{name}: {counted(following.total, 'record')} left within {seconds:.1f}s{became and f': {became}'}")


class Following:
    """Observes the records that waited at the start leave a queue.

    Attributes:
        total: Records that waited at the start.
        last: The newest state that was read.
    """

    def __init__(self, start: QueueState, lease: LeaseSettings) -> None:
        from broker_adapter.lease_watch import LeaseWatch

        self.total = start.depth.record_count
        self.last = start
        self._start = start
        self._lease_s = lease.lease_s
        self._leases = LeaseWatch(lease.lease_s, lease.lease_s)
        self._reason = ""

    def done(self, state: QueueState) -> int:
        """How many of them have left."""
        from broker_adapter.cache_queue.gauge import depth_of

        left = depth_of(state.shard, state.progress.offset, self._start.depth.next_offset).record_count
        return max(0, self.total - left)

    def why(self, state: QueueState) -> str:
        """Why it takes long, as far as that is known."""
        status = state.status
        if state.lease is None or not state.lease.holder:
            return self._why_not_driven()
        if status is None or not status.reason:
            return f"it is driven by {state.lease.holder}"
        return f"its sink is out: {status.reason}"

    async def follow(self, adapter: StorageAdapter) -> None:
        """Return when all of them have left.

        Raises:
            CommandError: The queue has no driver.
        """
        import trio

        from broker_adapter.cache_queue.queue import look

        name = self._start.name
        driven_s = noted_s = trio.current_time()
        if self.total and self._is_free():
            note(_PROGRAM, f"{name}: no process drives it now; waiting {self._lease_s:.0f}s for one")
        with progress(f"draining {name}", self.total) as show:
            while self.done(self.last) < self.total:
                show(self.done(self.last))
                await trio.sleep(_LOOK_INTERVAL_S)
                began_s = trio.current_time()
                self.last = await look(adapter, name)
                if self.last.shard.shard_id != self._start.shard.shard_id:
                    raise CommandError(f"the queue {name} was deleted and created again; its earlier records are gone")
                if self._is_driven(self.last, began_s, trio.current_time()):
                    driven_s = began_s
                elif began_s - driven_s >= self._lease_s:
                    left = self.total - self.done(self.last)
                    raise CommandError(f"{name}: {left:,} records wait, and {self._why_not_driven()}")
                self._note_reason()
                if not is_terminal() and began_s - noted_s >= _NOTE_INTERVAL_S:
                    noted_s = began_s
                    note(_PROGRAM, f"{name}: {self.done(self.last):,} of {self.total:,} records have left")

    def _is_driven(self, state: QueueState, began_s: float, ended_s: float) -> bool:
        """Whether a driver holds the lease and renews it."""
        if state.lease is None or not state.lease.holder:
            return False
        _, run_out = self._leases.look(began_s, ended_s, {state.lease.claim: state.lease.renewal_count})
        return not run_out

    def _why_not_driven(self) -> str:
        lease = self.last.lease
        if lease is not None and lease.holder:
            return f"{lease.holder}, which drove it, has not renewed its lease for {self._lease_s:.0f}s: start it again"
        return f"no process drives it: start a broker that has the [[bridge]] {self._start.name}"

    def _note_reason(self) -> None:
        status = self.last.status
        reason = status.reason if status is not None and not self._is_free() else ""
        if reason and reason != self._reason:
            note(_PROGRAM, f"{self._start.name}: its sink is out: {reason}")
        self._reason = reason

    def _is_free(self) -> bool:
        return self.last.lease is None or not self.last.lease.holder
