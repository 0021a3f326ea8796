"""What the requests of the administration API hold and what its answers look like. Pure.

Numbers stay below 2**53, so that every JSON reader gives them exactly. A field that is not listed is an error: a slip
of the pen in a retention must not go unnoticed.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import attrs
import msgspec
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
Limit: TypeAlias = Annotated[int, Meta(ge=1, le=10_000, description="Most that one page holds; none holds over 1,000.")]


class Form(Struct, frozen=True, forbid_unknown_fields=True):
    """What a request holds in its query or body."""


class NoQuery(Form, frozen=True):
    """A request without parameters."""


class PageQuery(Form, frozen=True):
    """One page of what belongs to shards."""

    filter: Filter = "#"
    after: Annotated[str, Meta(description="Only what sorts behind this name: the last of the page before.")] = ""
    limit: Limit = 100


class QueuesQuery(Form, frozen=True):
    """One page of cache queues."""

    after: Annotated[str, Meta(description="Only what sorts behind this shard: the last of the page before.")] = ""
    limit: Limit = 100


class ConnectionsQuery(Form, frozen=True):
    """One page of connections."""

    after: Annotated[int, Meta(ge=0, le=LARGEST_NUMBER, description="Only connections with higher numbers.")] = 0
    limit: Limit = 100


class ShardQuery(Form, frozen=True):
    """Which shard."""

    name: ShardName


class CursorQuery(Form, frozen=True):
    """Which cursor of which shard."""

    shard: ShardName
    name: CursorName
    version: Annotated[
        Annotated[int, Meta(ge=1, le=LARGEST_NUMBER)] | None,
        Meta(description="Only if it has this version; without it, whatever it has."),
    ] = None


class RetentionForm(Form, frozen=True):
    """What a shard keeps; whole segments go, oldest first, when any bound is passed. 0 means no bound."""

    max_age_s: Number = 0
    max_bytes: Bytes = 0
    max_records: Number = 0

    def retention(self) -> Retention:
        """The same as the engine takes it."""
        return Retention(self.max_age_s, self.max_bytes, self.max_records)


class CreateShardForm(Form, frozen=True):
    """A shard to create."""

    name: ShardName
    mode: Mode = Mode.FILE
    retention: RetentionForm = RetentionForm()
    segment_bytes: Annotated[
        int,
        Meta(ge=0, le=LARGEST_NUMBER, description="A segment is closed at this size; 0 takes the server's default."),
    ] = 0
    index_keys: Annotated[bool, Meta(description="Keep an index for reads by key.")] = False
    index_tags: Annotated[bool, Meta(description="Keep an index for reads by tag.")] = False
    exist_ok: Annotated[bool, Meta(description="A shard that is there is given as it is.")] = False

    def config(self) -> ShardConfig:
        """The same as the engine takes it."""
        return ShardConfig(self.mode, self.retention.retention(), self.segment_bytes, self.index_keys, self.index_tags)


class ConfigureShardForm(Form, frozen=True):
    """What is to change of how a shard is kept; what is left out stays."""

    retention: RetentionForm | None = None
    segment_bytes: Number | None = None


class ModeForm(Form, frozen=True):
    """Where the next segment of a shard lies."""

    mode: Mode


class TrimForm(Form, frozen=True):
    """Records below this offset are dropped."""

    before_offset: Number


@attrs.frozen(slots=True)
class ConnectionPage:
    """Connections by number; ``more`` says that others have higher numbers."""

    connections: list[ConnectionInfo]
    more: bool


@attrs.frozen(slots=True)
class SubscriptionPage:
    """Subscriptions of a page of connections; ``more`` says that others have higher numbers."""

    subscriptions: list[SubscriptionInfo]
    more: bool


@attrs.frozen(slots=True)
class NodeInfo:
    """The node and how it is.

    Attributes:
        node_id: Stable name of the node's data.
        server: Program and version.
        ready: It takes appends.
        reasons: Why it does not.
        addresses: What it listens on, as ``name=HOST:PORT``.
        statistics: Plain numbers by name, as `journal status` shows them.
        restores: When the node was restored from backups, oldest first: ``lsn_before``, ``lsn_after``, ``restored_us``.
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
        detail: For people: names the thing, the value found, the value allowed, the way out.
        code: Stable name of the error, the same in every protocol of the server.
        retriable: The same request may succeed later without being changed.
        details: Attributes of the error, by its code.
    """

    type: str
    title: str
    status: int
    detail: str
    code: str
    retriable: bool
    details: dict[str, Any]


def fields_of(form: type[Form]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """The fields of a form."""
    return msgspec.structs.fields(form)
