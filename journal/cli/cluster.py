"""`journal cluster status`: which servers share a store, and which one owns it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from command_line.app import JsonOption
from command_line.boundary import CommandError
from command_line.output import write_json, write_text

if TYPE_CHECKING:
    from journal.server.cluster.status import ClusterStatus, ServerStatus


def status_command(*, store: Annotated[str, Parameter(name="--store")], json: JsonOption = False) -> None:
    """Show which server owns a store that several servers share, the last checkpoint, and the lag of each server.

    It reads the log store itself, so it needs its credentials in the environment, and no server.

    Args:
        store: Address of the log store, for example s3://bucket/plant.
        json: Print one JSON object: store_id, epoch, owner, life, checkpoint_lsn, slots, and servers, each with
            address, is_owner, life, lsn and lag (entries of the log that it does not have yet).
    """
    import trio

    from journal.logstore.stores.addresses import StoreAddress
    from journal.server.cluster.status import read_status

    address = StoreAddress.parse(store)
    opened = address.open()
    try:
        found = trio.run(read_status, opened, address.root)
    finally:
        opened.close()
    if not found.store_id:
        raise CommandError(f"{store}: there is no store yet; the first `journal serve --store` makes one")
    if json:
        write_json(found)
    else:
        write_text(_told(found))


def _told(status: ClusterStatus) -> str:
    lines = []
    if status.life is None:
        lines.append(f"store {status.store_id}: no server has owned it yet")
    else:
        checkpoint = f"up to lsn {status.checkpoint_lsn}" if status.checkpoint_lsn else "none yet"
        lines += [
            f"store {status.store_id}: {status.owner} owns it in epoch {status.epoch}, and is {status.life.value}",
            f"checkpoint: {checkpoint}; slots after it: {status.slots}",
        ]
    return "\n".join([*lines, *(f"  {_told_of(server)}" for server in status.servers)])


def _told_of(server: ServerStatus) -> str:
    told = [f"{server.address}  {'owner' if server.is_owner else 'follower'}", server.life.value]
    if server.lsn is not None:
        told.append(f"at lsn {server.lsn}")
    if server.lag and not server.is_owner:
        told.append(f"{server.lag} behind")
    return ", ".join(told)
