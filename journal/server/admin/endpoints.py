"""The endpoints of the administration API, in a table from which the routes and the OpenAPI document are generated.

A shard is named in the query, not in the path: its name has slashes, and may have `.` and `..` between them, which
browsers and proxies resolve in paths, even if they are escaped.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

import attrs

from journal.access.rights import Operation, Use
from journal.server.admin import forms
from journal.server.open_connections import OpenConnections
from journal.server.queues import QueueOperations, QueuePage
from journal.server.shard_operations import CursorPage, Requester, ShardOperations, ShardPage
from shards.errors import InvalidRequestError
from shards.model import ShardInfo

PREFIX: Final = "/api/v1"


@attrs.frozen
class Administered:
    """The objects that the endpoints work on.

    Attributes:
        shards: Operations on shards.
        queues: Describes cache queues.
        connections: The open connections.
        describe_node: Describes the node.
    """

    shards: ShardOperations
    queues: QueueOperations
    connections: OpenConnections
    describe_node: Callable[[], forms.NodeInfo]


Handler: TypeAlias = Callable[[Administered, Requester, Any, Any], Awaitable[object]]


@attrs.frozen
class Endpoint:
    """One method of one path.

    Attributes:
        method: HTTP method, in capitals.
        path: Path after the prefix.
        name: Name of the operation, as an identifier.
        summary: What it does, in a few words.
        query: Type of its parameters.
        result: Type of its result; None for an empty answer.
        handle: The function that carries it out.
        body: Type of its body; None for no body.
        status: HTTP status of the answer.
        changes: It changes something, and is recorded in the audit log.
        may_conflict: It may be refused because of the present state.
        finds: It may be refused because its object does not exist.
    """

    method: str
    path: str
    name: str
    summary: str
    query: type[forms.Form]
    result: type | None
    handle: Handler
    body: type[forms.Form] | None = None
    status: int = 200
    changes: bool = False
    may_conflict: bool = False
    finds: bool = False


async def _list_shards(on: Administered, requester: Requester, query: forms.PageQuery, _: None) -> ShardPage:
    return await on.shards.list_shards(requester, query.filter, query.after, query.limit)


async def _create_shard(
    on: Administered, requester: Requester, _: forms.NoQuery, body: forms.CreateShardForm
) -> ShardInfo:
    return await on.shards.create(requester, body.name, body.config(), exist_ok=body.exist_ok)


async def _describe_shard(on: Administered, requester: Requester, query: forms.ShardQuery, _: None) -> ShardInfo:
    return on.shards.describe(requester, query.name)


async def _configure_shard(
    on: Administered, requester: Requester, query: forms.ShardQuery, body: forms.ConfigureShardForm
) -> ShardInfo:
    if body.retention is None and body.segment_bytes is None:
        raise InvalidRequestError(f"no change of shard {query.name!r} is requested; give retention or segment_bytes")
    retention = None if body.retention is None else body.retention.retention()
    return await on.shards.configure(requester, query.name, retention=retention, segment_bytes=body.segment_bytes)


async def _delete_shard(on: Administered, requester: Requester, query: forms.ShardQuery, _: None) -> None:
    await on.shards.delete(requester, query.name)


async def _set_mode(on: Administered, requester: Requester, query: forms.ShardQuery, body: forms.ModeForm) -> ShardInfo:
    return await on.shards.set_mode(requester, query.name, body.mode)


async def _roll(on: Administered, requester: Requester, query: forms.ShardQuery, _: None) -> ShardInfo:
    return await on.shards.roll(requester, query.name)


async def _trim(on: Administered, requester: Requester, query: forms.ShardQuery, body: forms.TrimForm) -> ShardInfo:
    return await on.shards.trim(requester, query.name, body.before_offset)


async def _list_cursors(on: Administered, requester: Requester, query: forms.CursorsQuery, _: None) -> CursorPage:
    return await on.shards.cursors(requester, query.filter, query.after, query.limit, query.after_cursor)


async def _delete_cursor(on: Administered, requester: Requester, query: forms.CursorQuery, _: None) -> None:
    await on.shards.delete_cursor(requester, query.shard, query.name, query.version)


async def _list_queues(on: Administered, requester: Requester, query: forms.QueuesQuery, _: None) -> QueuePage:
    return await on.queues.list_queues(requester, query.after, query.limit)


async def _list_connections(
    on: Administered, requester: Requester, query: forms.ConnectionsQuery, _: None
) -> forms.ConnectionPage:
    Use(Operation.SEE_NODE).require(requester.principal)
    return forms.ConnectionPage(*on.connections.page(query.after, query.limit))


async def _list_subscriptions(
    on: Administered, requester: Requester, query: forms.ConnectionsQuery, _: None
) -> forms.SubscriptionPage:
    Use(Operation.SEE_NODE).require(requester.principal)
    return forms.SubscriptionPage(*on.connections.subscriptions(query.after, query.limit))


async def _describe_node(on: Administered, requester: Requester, _query: forms.NoQuery, _: None) -> forms.NodeInfo:
    Use(Operation.SEE_NODE).require(requester.principal)
    return on.describe_node()


ENDPOINTS: Final = (
    Endpoint(
        "GET", "/shards", "list_shards", "Shards that match a filter, by name", forms.PageQuery, ShardPage, _list_shards
    ),
    Endpoint(
        "POST",
        "/shards",
        "create_shard",
        "Create a shard",
        forms.NoQuery,
        ShardInfo,
        _create_shard,
        body=forms.CreateShardForm,
        status=201,
        changes=True,
        may_conflict=True,
    ),
    Endpoint(
        "GET",
        "/shard",
        "describe_shard",
        "A shard with its segments",
        forms.ShardQuery,
        ShardInfo,
        _describe_shard,
        finds=True,
    ),
    Endpoint(
        "PATCH",
        "/shard",
        "configure_shard",
        "Change the retention of a shard and the size of its segments",
        forms.ShardQuery,
        ShardInfo,
        _configure_shard,
        body=forms.ConfigureShardForm,
        changes=True,
        may_conflict=True,
        finds=True,
    ),
    Endpoint(
        "DELETE",
        "/shard",
        "delete_shard",
        "Delete a shard with its records, cursors and files",
        forms.ShardQuery,
        None,
        _delete_shard,
        status=204,
        changes=True,
        finds=True,
    ),
    Endpoint(
        "PUT",
        "/shard/mode",
        "set_mode",
        "Switch a shard between memory and file mode while it is in use",
        forms.ShardQuery,
        ShardInfo,
        _set_mode,
        body=forms.ModeForm,
        changes=True,
        may_conflict=True,
        finds=True,
    ),
    Endpoint(
        "POST",
        "/shard/roll",
        "roll",
        "Close the active segment of a shard; it becomes a Parquet file in the background",
        forms.ShardQuery,
        ShardInfo,
        _roll,
        changes=True,
        may_conflict=True,
        finds=True,
    ),
    Endpoint(
        "POST",
        "/shard/trim",
        "trim",
        "Drop the records of a shard below an offset",
        forms.ShardQuery,
        ShardInfo,
        _trim,
        body=forms.TrimForm,
        changes=True,
        may_conflict=True,
        finds=True,
    ),
    Endpoint(
        "GET",
        "/cursors",
        "list_cursors",
        "Cursors and their lag; the limit is the number of shards examined, and a page has at most 1,000 cursors",
        forms.CursorsQuery,
        CursorPage,
        _list_cursors,
    ),
    Endpoint(
        "DELETE",
        "/cursor",
        "cursor_delete",
        "Delete a cursor; a missing one is an error only if a version was expected",
        forms.CursorQuery,
        None,
        _delete_cursor,
        status=204,
        changes=True,
        may_conflict=True,
        finds=True,
    ),
    Endpoint(
        "GET",
        "/queues",
        "list_queues",
        "Cache queues with their depth, driver and sink state; the limit is the number of shards examined",
        forms.QueuesQuery,
        QueuePage,
        _list_queues,
    ),
    Endpoint(
        "GET",
        "/connections",
        "list_connections",
        "Open connections",
        forms.ConnectionsQuery,
        forms.ConnectionPage,
        _list_connections,
    ),
    Endpoint(
        "GET",
        "/subscriptions",
        "list_subscriptions",
        "Subscriptions of open connections; the limit is the number of connections",
        forms.ConnectionsQuery,
        forms.SubscriptionPage,
        _list_subscriptions,
    ),
    Endpoint(
        "GET",
        "/node",
        "describe_node",
        "The node, whether it is ready, and its statistics",
        forms.NoQuery,
        forms.NodeInfo,
        _describe_node,
    ),
)
