"""What reads and subscriptions need of an engine: of one that is open, or of a follower whose recovery goes on."""

from __future__ import annotations

from typing import Self

import attrs

from journal.engine.directory.restores import Restores
from journal.engine.environment import Environment
from journal.engine.read.reader import Reader
from journal.engine.state.committed_lsns import CommittedLsns, LsnSource
from journal.engine.state.node_time import NodeTime
from journal.engine.state.shard_discovery import ShardDiscovery
from journal.engine.state.shard_table import ShardTable
from journal.engine.state.views import Views
from journal.engine.subscribe.subscriptions import Subscriptions
from journal.settings.server import ServerConfig


@attrs.frozen
class Readable:
    """See the module. It goes on when a follower becomes the owner, and with it what was begun there.

    Attributes:
        config: Sizes and limits.
        node_id: The id of the node that the data directory belongs to.
        restores: The restores of the node from backups.
        table: The shards.
        time: The node's time.
        lsns: Tells up to which lsn everything is published.
        reader: Reads.
        discovery: Finds shards that have something newer than an lsn.
        subscriptions: Subscriptions.
    """

    config: ServerConfig
    node_id: str
    restores: Restores
    table: ShardTable
    time: NodeTime
    lsns: CommittedLsns
    reader: Reader
    discovery: ShardDiscovery
    subscriptions: Subscriptions

    @classmethod
    def of(
        cls,
        *,
        config: ServerConfig,
        node_id: str,
        restores: Restores,
        views: Views,
        time: NodeTime,
        environment: Environment,
        lsns: CommittedLsns,
    ) -> Self:
        """What reads the views of an engine.

        Args:
            config: Sizes and limits.
            node_id: The id of the node.
            restores: Its restores from backups.
            views: The views. Their open shards are published.
            time: The node's time.
            environment: What the engine runs on.
            lsns: Tells what is published.
        """
        table = views.table
        reader = Reader(environment.files, table, views, config.limits.max_batch_bytes, environment.off_loop)
        discovery = ShardDiscovery(table, views.store, lsns)
        subscriptions = Subscriptions(table, reader, discovery, lsns)
        return cls(config, node_id, restores, table, time, lsns, reader, discovery, subscriptions)

    def take_over(self, source: LsnSource) -> None:
        """The follower owns the store now, and publishes itself.

        Args:
            source: Tells the lsns from now on.
        """
        self.lsns.take_over(source)
        self.discovery.take_over()
