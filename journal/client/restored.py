"""What an application is told when the server that comes back does not have the state that it had."""

from __future__ import annotations

import attrs

from journal.protocol.messages import HelloReply
from shards.history import common_lsn


@attrs.frozen(slots=True)
class ServerRestored:
    """The server was restored from a backup while this client had no connection, or another one answers in its place.

    What the client was told with a higher lsn than ``common_lsn`` (records, also acknowledged ones, versions, cursors)
    is lost or was replaced; offsets of lost records are given to others. Everything up to that lsn is as it was.

    Attributes:
        node_id: The server that answers now.
        common_lsn: Up to here the server has what it had before; 0 if it is another one.
        former_node_id: The server that answered before, if it was another one.
    """

    node_id: str
    common_lsn: int
    former_node_id: str | None = None

    def __str__(self) -> str:
        if self.former_node_id is not None:
            return (
                f"another server answers at the address: node {self.node_id} in place of node {self.former_node_id}, "
                f"with which it has no history in common"
            )
        return (
            f"the server {self.node_id} was restored from a backup: what it had told with an lsn above "
            f"{self.common_lsn} is not there any more"
        )


def lost_history(known: HelloReply, found: HelloReply) -> ServerRestored | None:
    """What became of the history that a server told in an earlier session; None if it is the same one."""
    if found.node_id != known.node_id:
        return ServerRestored(found.node_id, 0, known.node_id)
    lsn = common_lsn(known.restores, found.restores)
    return None if lsn is None else ServerRestored(found.node_id, lsn)
