"""The types of requests and answers of the administration API. Pure.

Numbers are below 2**53, which every JSON reader can represent exactly. An unknown field is an error, so that a mistyped
retention does not go unnoticed.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import attrs
from msgspec import Meta, Struct

from journal.server.open_connections import ConnectionInfo, SubscriptionInfo
from shards.model import Mode, Retention, ShardConfig

LARGEST_NUMBER = 2**53 - 1

Number: TypeAlias = Annotated[int, Meta(ge=0, le=LARGEST_NUMBER)]
Bytes: TypeAlias = Annotated[int, Meta(ge=0, le=LARGEST_NUMBER, description="Bytes; 0 means no bound.")]
ShardName: TypeAlias = Annotated[
    str, Meta(description="Name of a shard: an MQTT topic name, so slashes are part of it. 1 to 1024 bytes of UTF-8.")
]
CursorName: TypeAlias = Annotated[str, Meta(description="Name of a cursor. 1 to 255 bytes of UTF-8.")]
Filter: TypeAlias = Annotated[str, Meta(description="An MQTT topic filter: `+` for one level, `#` for all below.")]
Limit: TypeAlias = Annotated[int, Meta(ge=1, le=10_000, description="Page size; no page has more than 1,000 entries.")]


class Form(Struct, frozen=True, forbid_unknown_fields=True):
    """The query or body of a request."""


class NoQuery(Form, frozen=True):
    """A request without parameters."""


class PageQuery(Form, frozen=True):
    """One page of objects that belong to shards."""

    filter: Filter = "#"
    after: Annotated[str, Meta(description="Only entries after this name: the last of the page before.")] = ""
    limit: Limit = 100


class CursorsQuery(PageQuery, frozen=True):
    """One page of cursors."""

    after_cursor: Annotated[
        str, Meta(description="Only cursors of the shard `after` after this one, then those of the shards that follow.")
    ] = ""


class QueuesQuery(Form, frozen=True):
    """One page of cache queues."""

    after: Annotated[str, Meta(description="Only entries after this shard: the last of the page before.")] = ""
    limit: Limit = 100


class ConnectionsQuery(Form, frozen=True):
    """One page of connections."""

    after: Annotated[int, Meta(ge=0, le=LARGEST_NUMBER, description="Only connections with higher numbers.")] = 0
    limit: Limit = 100


class ShardQuery(Form, frozen=True):
    """Names a shard."""

    name: ShardName


class CursorQuery(Form, frozen=True):
    """Names a cursor of a shard."""

    shard: ShardName
    name: CursorName
    version: Annotated[
        Annotated[int, Meta(ge=1, le=LARGEST_NUMBER)] | None,
        Meta(description="Delete only this version; without it, any version."),
    ] = None


class RetentionForm(Form, frozen=True):
    """Retention of a shard: whole segments are dropped, oldest first, when a bound is exceeded. 0 means no bound."""

    max_age_s: Number = 0
    max_bytes: Bytes = 0
    max_records: Number = 0

    def retention(self) -> Retention:
        """Convert to the type of the engine."""
        return Retention(self.max_age_s, self.max_bytes, self.max_records)


class CreateShardForm(Form, frozen=True):
    """A shard to create."""

    name: ShardName
    mode: Mode = Mode.FILE
    retention: RetentionForm = RetentionForm()
    segment_bytes: Annotated[
        int,
        Meta(ge=0, le=LARGEST_NUMBER, description="A segment is closed at this size; 0 means the server's default."),
    ] = 0
    index_keys: Annotated[bool, Meta(description="Keep an index for reads by key.")] = False
    index_tags: Annotated[bool, Meta(description="Keep an index for reads by tag.")] = False
    exist_ok: Annotated[bool, Meta(description="Return an existing shard unchanged.")] = False

    def config(self) -> ShardConfig:
        """Convert to the type of the engine."""
        return ShardConfig(self.mode, self.retention.retention(), self.segment_bytes, self.index_keys, self.index_tags)


class ConfigureShardForm(Form, frozen=True):
    """Changes of a shard's configuration; fields that are left out stay unchanged."""

    retention: RetentionForm | None = None
    segment_bytes: Number | None = None


class ModeForm(Form, frozen=True):
    """Mode of a shard: the kind of its next segment."""

    mode: Mode


class TrimForm(Form, frozen=True):
    """Records below this offset are dropped."""

    before_offset: Number


@attrs.frozen(slots=True)
class ConnectionPage:
    """Connections sorted by number; ``more`` means that connections with higher numbers follow."""

    connections: list[ConnectionInfo]
    more: bool


@attrs.frozen(slots=True)
class SubscriptionPage:
    """Subscriptions of a page of connections; ``more`` means that connections with higher numbers follow."""

    subscriptions: list[SubscriptionInfo]
    more: bool


@attrs.frozen(slots=True)
class NodeInfo:
    """Description of the node.

    Attributes:
        node_id: Permanent id of the node's data.
        server: Program and version.
        ready: It accepts appends.
        reasons: Why it does not.
        addresses: Addresses of its listeners, as ``name=HOST:PORT``.
        statistics: Numbers by name, as in `journal status`.
        restores: Restores of the node from backups, oldest first: ``lsn_before``, ``lsn_after``, ``restored_us``.
    """

    node_id: str
    server: str
    ready: bool
    reasons: list[str]
    addresses: list[str]
    statistics: dict[str, int | float | bool | str]
    restores: list[dict[str, int]]


@attrs.frozen(slots=True)
class Problem:
    """Why a request was not carried out (RFC 9457).

    Attributes:
        type: The code as a URN.
        title: The code in words.
        status: HTTP status.
        detail: For people: the object, the value found, the values allowed, and what can be done.
        code: Stable name of the error, the same in every protocol of the server.
        retriable: The same request may succeed later without being changed.
        details: Attributes of the error; which ones depends on the code.
    """

    type: str
    title: str
    status: int
    detail: str
    code: str
    retriable: bool
    details: dict[str, Any]
