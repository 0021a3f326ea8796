"""The server's settings: their defaults, units and bounds. `journal.settings.server_file` reads them from a file.

``conf/journal.toml`` shows every setting with its default; a test keeps the two the same. A new setting is added only
here and there. There are at most forty, in addition to those of TLS and access in `journal.settings.access`. The effect
of a setting is implemented by the code that reads it.
"""

from __future__ import annotations

import enum

import attrs
from attrs import field

from journal.settings.access import AccessSection, QuotaTable, TlsSection
from journal.settings.values import (
    GIB,
    KIB,
    MIB,
    TIB,
    Address,
    LogConfig,
    OriginList,
    Size,
    StorePlaces,
    bytes_within,
    within,
)
from shards.model import Mode


class OnFailure(enum.StrEnum):
    """What a server does when its storage has failed."""

    EXIT = "exit"
    READ_ONLY = "read_only"


@attrs.frozen
class ListenConfig:
    """Addresses of the listeners."""

    tcp: Address = "127.0.0.1:7420"
    websocket: Address = "127.0.0.1:7421"
    http: Address = "127.0.0.1:7422"
    websocket_origins: OriginList = ()

    def addresses(self) -> dict[str, str]:
        """The addresses by name of their setting."""
        return {"tcp": self.tcp, "websocket": self.websocket, "http": self.http}


@attrs.frozen
class StorageConfig:
    """Files, buffers, and intervals of background work."""

    journal_file_bytes: Size = field(default=128 * MIB, metadata=bytes_within(1 * MIB, 4 * GIB))
    journal_budget_bytes: Size = field(default=512 * MIB, metadata=bytes_within(2 * MIB, 1 * TIB))
    segment_bytes: Size = field(default=256 * MIB, metadata=bytes_within(64 * KIB, 64 * GIB))
    tail_budget_bytes: Size = field(default=256 * MIB, metadata=bytes_within(1 * MIB, 1 * TIB))
    memory_budget_bytes: Size = field(default=1 * GIB, metadata=bytes_within(1 * MIB, 16 * TIB))
    memory_segment_bytes: Size = field(default=8 * MIB, metadata=bytes_within(64 * KIB, 1 * GIB))
    disk_reserve_bytes: Size = field(default=256 * MIB, metadata=bytes_within(0, 16 * TIB))
    page_cache_bytes: Size = field(default=2 * GIB, metadata=bytes_within(0, 16 * TIB))
    flush_interval_ms: int = field(default=1_000, metadata=within("milliseconds", 1, 60_000))
    retention_interval_s: int = field(default=10, metadata=within("seconds", 1, 86_400))
    on_failure: OnFailure = OnFailure.EXIT
    receive_buffer_bytes: Size = field(default=1 * MIB, metadata=bytes_within(4 * KIB, 16 * MIB))
    receive_buffers: int = field(default=64, metadata=within("buffers", 1, 100_000))


@attrs.frozen
class ShardsConfig:
    """Defaults of shards that do not set these values."""

    default_mode: Mode = Mode.FILE
    max_age_s: int = field(default=0, metadata=within("seconds", 0, 3_153_600_000))
    max_bytes: Size = field(default=0, metadata=bytes_within(0, 1_024 * TIB))
    max_records: int = field(default=0, metadata=within("records", 0, 1 << 53))
    memory_max_bytes: Size = field(default=64 * MIB, metadata=bytes_within(0, 16 * TIB))
    max_shards: int = field(default=1_000_000, metadata=within("shards", 1, 100_000_000))


@attrs.frozen
class ConversionConfig:
    """When log segments are converted to Parquet: ``max_age_s`` bounds the time from an append to the shared file."""

    enabled: bool = True
    max_age_s: int = field(default=600, metadata=within("seconds", 1, 86_400))
    delta: bool = True
    delta_grace_s: int = field(default=600, metadata=within("seconds", 0, 86_400))

    @property
    def gather_after_s(self) -> float:
        """How long closed segments wait for those of other shards: a tenth of the time."""
        return self.max_age_s / 10

    @property
    def close_after_s(self) -> float:
        """How old an active segment gets: the rest of the time."""
        return self.max_age_s - self.gather_after_s


@attrs.frozen
class LimitsConfig:
    """Limits on the resources that one peer can use."""

    max_connections: int = field(default=10_000, metadata=within("connections", 1, 1_000_000))
    max_frame_bytes: Size = field(default=16 * MIB, metadata=bytes_within(64 * KIB, 1 * GIB))
    max_batch_bytes: Size = field(default=8 * MIB, metadata=bytes_within(4 * KIB, 512 * MIB))
    max_inflight_bytes_per_connection: Size = field(default=32 * MIB, metadata=bytes_within(64 * KIB, 16 * GIB))
    max_output_bytes_per_connection: Size = field(default=16 * MIB, metadata=bytes_within(64 * KIB, 16 * GIB))
    max_subscriptions_per_connection: int = field(default=1_000, metadata=within("subscriptions", 1, 1_000_000))
    max_handles_per_connection: int = field(default=200_000, metadata=within("handles", 1, 100_000_000))
    max_wait_ms: int = field(default=60_000, metadata=within("milliseconds", 0, 3_600_000))
    hello_timeout_s: int = field(default=10, metadata=within("seconds", 1, 3_600))


@attrs.frozen
class ClusterConfig:
    """Servers that share a store: where its log and its files lie, and where the others reach this one."""

    store: StorePlaces = ()
    advertise: Address = ""


@attrs.frozen
class ServerConfig:
    """Every setting of a server."""

    listen: ListenConfig = ListenConfig()
    storage: StorageConfig = StorageConfig()
    shards: ShardsConfig = ShardsConfig()
    conversion: ConversionConfig = ConversionConfig()
    limits: LimitsConfig = LimitsConfig()
    cluster: ClusterConfig = ClusterConfig()
    tls: TlsSection = field(factory=TlsSection)
    access: AccessSection = field(factory=AccessSection)
    quotas: tuple[QuotaTable, ...] = ()
    log: LogConfig = field(factory=LogConfig)
