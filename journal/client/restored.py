"""What an application is told when the server comes back with a restored state."""

from __future__ import annotations

import attrs


@attrs.frozen(slots=True)
class ServerRestored:
    """The server's data was restored from a backup while this client had no connection.

    What the client was told with a higher lsn than ``common_lsn`` (records, also acknowledged ones, versions, cursors)
    is lost or was replaced; offsets of lost records are given to others. Everything up to that lsn is as it was.

    Attributes:
        node_id: The server.
        common_lsn: Up to here the server has what it had before.
    """

    node_id: str
    common_lsn: int

    def __str__(self) -> str:
        return (
            f"the server {self.node_id} was restored from a backup: what it had told with an lsn above "
            f"{self.common_lsn} is not there any more"
        )
