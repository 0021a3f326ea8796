"""The notice to an application that the server does not have its former state any more."""

from __future__ import annotations

import attrs

from journal.protocol.messages import HelloReply
from shards.history import common_lsn


@attrs.frozen(slots=True)
class ServerRestored:
    """The server was restored from a backup while this client had no connection, or another server has replaced it.

    Everything that the client received with a higher lsn than ``common_lsn`` (records, also acknowledged ones,
    versions, cursors) is lost or was replaced; offsets of lost records are assigned to others. Everything up to it is
    unchanged.

    Attributes:
        node_id: The server that answers now.
        common_lsn: Up to here the server has the same data as before; 0 if it is another server.
        former_node_id: The server that answered before, if it was another one.
    """

    node_id: str
    common_lsn: int
    former_node_id: str | None = None

    def __str__(self) -> str:
        if self.former_node_id is not None:
            return (
                f"another server answers at the address: node {self.node_id} instead of node {self.former_node_id}, "
                f"with which it has no common history"
            )
        return (
            f"the server {self.node_id} was restored from a backup: data that it had sent with an lsn above "
            f"{self.common_lsn} does not exist any more"
        )


def lost_history(known: HelloReply, found: HelloReply) -> ServerRestored | None:
    """Compare the server's history with that of an earlier session; None if it is the same."""
    if found.node_id != known.node_id:
        return ServerRestored(found.node_id, 0, known.node_id)
    lsn = common_lsn(known.restores, found.restores)
    return None if lsn is None else ServerRestored(found.node_id, lsn)
