"""`journal queue pause`, `resume`, `purge` and `delete`: commands that change a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker_adapter.cache_queue.cli.connection import DEFAULT_SERVER, StoreOption, ask, connect
from command_line.app import JsonOption, YesOption
from command_line.boundary import CommandError
from command_line.output import note, require_yes, write_json, write_text
from command_line.quantities import parse_timeout_s
from shards.quantities import counted, format_size

if TYPE_CHECKING:
    from broker_adapter.adapter import StorageAdapter
    from broker_adapter.cache_queue.pausing import Pause

_QUIET_S = 2.0


def pause_command(
    name: str, /, *, timeout: str = "", json: JsonOption = False, server: StoreOption = DEFAULT_SERVER
) -> None:
    """Stop sending a queue's records to its sink; new ones are queued.

    Waits until nothing is being sent any more. Batches that are on their way are finished first.

    Args:
        name: Name of the queue.
        timeout: Stop waiting after this time, such as 1m, with an error; the queue is paused nevertheless.
    """
    import trio

    trio.run(_pause, server, name, parse_timeout_s(timeout), json)


async def _pause(server: str, name: str, timeout_s: float, as_json: bool) -> None:
    import trio

    from broker_adapter.cache_queue.pausing import pause_queue

    waiting = _Waiting(name, trio.current_time())
    async with connect(server) as adapter:
        with trio.move_on_after(timeout_s):
            pause = await pause_queue(adapter, name, on_wait=waiting.told)
            _write_pause(name, pause, trio.current_time() - waiting.began_s, as_json)
            return
    if not waiting.driver:
        raise CommandError(f"{name}: the store has not answered within {timeout_s:g}s; the queue may be paused or not")
    raise CommandError(
        f"{name}: paused, but {waiting.driver} has not reported within {timeout_s:g}s that it sends nothing any more; "
        "batches may still be on their way to the sink"
    )


class _Waiting:
    """A wait for the driver of a paused queue.

    Attributes:
        began_s: When it began.
        driver: The driver that has not answered yet; empty before one was found.
    """

    def __init__(self, name: str, began_s: float) -> None:
        self.began_s = began_s
        self.driver = ""
        self._name = name
        self._noted = ""

    def told(self, driver: str) -> None:
        """Note that a driver has not answered; said to the operator if that takes long."""
        import trio

        self.driver = driver
        if driver != self._noted and trio.current_time() - self.began_s >= _QUIET_S:
            self._noted = driver
            note("journal", f"{self._name}: waiting until {driver} has finished the batches that it is sending")


def _write_pause(name: str, pause: Pause, waited_s: float, as_json: bool) -> None:
    from broker_adapter.cache_queue.lease import LeaseSettings
    from broker_adapter.cache_queue.pausing import PauseOutcome

    if pause.outcome is PauseOutcome.RESUMED:
        raise CommandError(f"{name}: another command resumed it, or created it again, before its driver had paused")
    if as_json:
        write_json(
            {
                "queue": name,
                "is_paused": True,
                "outcome": pause.outcome,
                "driver": pause.driver,
                "waited_s": round(waited_s, 3),
            }
        )
        return
    why = {
        PauseOutcome.ANSWERED: f"{pause.driver} sends nothing any more",
        PauseOutcome.NOT_DRIVEN: "no process drives it",
        PauseOutcome.LEASE_EXPIRED: (
            f"{pause.driver}, which drove it, has not renewed its lease for {LeaseSettings().lease_s:.0f}s"
        ),
        PauseOutcome.DRAINED_ONCE: f"{pause.driver} drains it to another target, which goes on",
    }
    write_text(f"{name}: paused until `journal queue resume {name}`; {why[pause.outcome]}")


def resume_command(name: str, /, *, server: StoreOption = DEFAULT_SERVER) -> None:
    """Let a paused queue drain again.

    Args:
        name: Name of the queue.
    """
    from broker_adapter.cache_queue.queue import change_queue

    ask(server, lambda adapter: change_queue(adapter, name, is_paused=False))
    write_text(f"{name}: resumed")


def purge_command(name: str, /, *, yes: YesOption = False, server: StoreOption = DEFAULT_SERVER) -> None:
    """Delete all records of a queue permanently.

    Records that are being sent to the sink may still arrive there.

    Args:
        name: Name of the queue.
    """
    import trio

    trio.run(_purge, server, name, yes)


async def _purge(server: str, name: str, yes: bool) -> None:
    from broker_adapter.cache_queue.queue import purge_queue

    async with connect(server) as adapter:
        await require_yes(await _question(adapter, name), yes)
        count = await purge_queue(adapter, name)
    write_text(f"{name}: {counted(count, 'record')} deleted")


async def _question(adapter: StorageAdapter, name: str) -> str:
    from broker_adapter.cache_queue.queue import look

    depth = (await look(adapter, name)).depth
    waits = counted(depth.record_count, "record")
    return f"Delete {waits} ({format_size(depth.size_bytes)}) of the queue {name} permanently?"


def delete_command(name: str, /, *, yes: YesOption = False, server: StoreOption = DEFAULT_SERVER) -> None:
    """Delete a queue that has no driver, with its records and its dead letters.

    A driver that was killed still has the lease; after at most nine seconds the lease has expired.

    Args:
        name: Name of the queue.
    """
    import trio

    trio.run(_delete, server, name, yes)


async def _delete(server: str, name: str, yes: bool) -> None:
    from broker_adapter.cache_queue.queue import definition_of, delete_queue

    async with connect(server) as adapter:
        await definition_of(adapter, name)
        await require_yes(f"Delete the queue {name} with all its records and dead letters permanently?", yes)
        await delete_queue(
            adapter,
            name,
            on_wait=lambda holder: note(
                "journal", f"{name}: {holder} has the lease; waiting to see whether it is alive"
            ),
        )
    write_text(f"{name}: deleted")
