"""What reads need of an engine: of one that is open, or of a follower whose recovery goes on."""

from __future__ import annotations

import attrs

from journal.engine.directory.restores import Restores
from journal.engine.read.reader import Reader
from journal.engine.state.node_time import NodeTime
from journal.engine.state.shard_table import ShardTable
from journal.settings.server import ServerConfig


@attrs.frozen
class Readable:
    """See the module.

    Attributes:
        config: Sizes and limits.
        node_id: The id of the node that the data directory belongs to.
        restores: The restores of the node from backups.
        table: The shards.
        time: The node's time.
        reader: Reads.
    """

    config: ServerConfig
    node_id: str
    restores: Restores
    table: ShardTable
    time: NodeTime
    reader: Reader
