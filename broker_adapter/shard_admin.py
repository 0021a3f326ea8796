"""Shards of a store: created, listed, described, configured, rolled, converted, trimmed and deleted.

This is a part of `broker_adapter.adapter.StorageAdapter`.
"""

from __future__ import annotations

import abc

from shards.model import Mode, Retention, ShardConfig, ShardInfo

DEFAULT_CONFIG = ShardConfig()


class ShardAdmin(abc.ABC):
    """The shards of one store. Operations on a shard that does not exist raise `ShardNotFoundError`."""

    @abc.abstractmethod
    async def create_shard(
        self, name: str, config: ShardConfig = DEFAULT_CONFIG, *, exist_ok: bool = False
    ) -> ShardInfo:
        """Create an empty shard.

        Must not return until the shard would survive a crash of the node (on engines that store on disk).

        Raises:
            ShardExistsError: It exists and ``exist_ok`` is false; with ``exist_ok`` the existing shard is returned
                unchanged.
            InvalidNameError: The name breaks the naming rules.
        """

    @abc.abstractmethod
    async def list_shards(self, topic_filter: str = "#", *, with_segments: bool = False) -> list[ShardInfo]:
        """All shards whose name matches the topic filter, sorted by name.

        A filter that begins with a wildcard leaves out names that begin with ``$``.

        Args:
            topic_filter: The filter.
            with_segments: Whether each shard has its segments, as from `describe_shard`, in few requests for all.
        """

    @abc.abstractmethod
    async def describe_shard(self, name: str) -> ShardInfo:
        """One shard with its segments. Raises `ShardNotFoundError`."""

    @abc.abstractmethod
    async def delete_shard(self, name: str) -> None:
        """Delete a shard with its records and cursors.

        Must not return until the shard would stay deleted after a crash. A shard created later under the same name
        starts at offset 0 and has another ``shard_id``.
        """

    @abc.abstractmethod
    async def set_mode(self, name: str, mode: Mode) -> ShardInfo:
        """Set the mode (memory or file) of the records appended from now on; offsets and order are unbroken.

        Writers and readers continue meanwhile. Must not return until the new mode would survive a crash.
        """

    @abc.abstractmethod
    async def configure_shard(
        self, name: str, *, retention: Retention | None = None, segment_bytes: int | None = None
    ) -> ShardInfo:
        """Change settings of a shard; None leaves one as it is. Must not return until they would survive a crash."""

    @abc.abstractmethod
    async def roll(self, name: str) -> ShardInfo:
        """Close the active segment, so that the next append opens a new one. Must not return until that is durable."""

    @abc.abstractmethod
    async def convert(self, name: str) -> ShardInfo:
        """Roll, and return when all closed file segments of the shard are Parquet files, which may take minutes.

        Engines that do not convert (``memory``, and ``embedded`` unless its configuration switches it on) only roll.

        Raises:
            ConversionFailedError: A segment could not be converted this time. It stays as it was, and nothing is lost.
            InvalidRequestError: The journal service is configured not to convert segments.
        """

    @abc.abstractmethod
    async def trim(self, name: str, before_offset: int) -> ShardInfo:
        """Drop all records below an offset.

        Must not return until the dropped records would stay gone after a crash.

        Raises:
            OffsetOutOfRangeError: ``before_offset`` is past the shard's end. One below its start does nothing.
        """
