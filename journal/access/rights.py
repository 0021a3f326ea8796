"""The rights that operations need: one table for every way into the server.

Frames, the JSON sub-protocol and HTTP, which the console and the commands use, name an `Operation` and what it touches
(`Use`); `Use.require` decides by the table. The administration of MQTT brokers over HTTP has its rows here, too.
docs/security.md shows the table. Tests fail when an operation of any way in has no row, when the document differs from
the table, and when an operation needs another right than its row says.

Pure: no files, clocks or sockets.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final

import attrs

from journal.access.authorization import Action, Principal, Resource
from journal.protocol.errors import NotAuthorizedError
from shards.topics.names import group_of_cursor

METRICS: Final = "$metrics"
"""Name of the metrics in access rules: a program that scrapes them needs no right to read records."""

_STATE: Final = "$state/"
_ALL_SHARDS: Final = "#"


class Operation(enum.StrEnum):
    """What a principal asks for. One request may be several, such as a commit that appends and stores state."""

    LOG_IN = "log in"
    USE_OWN = "use or end what this connection has opened"
    SEE_HEALTH = "see whether the server lives and is ready"
    LOAD_CONSOLE = "load the files of the console"
    READ_API_DESCRIPTION = "read the description of the API"
    SEE_METRICS = "see metrics, and why the server is not ready"
    SEE_NODE = "see the node, its connections and subscriptions"
    TAKE_SNAPSHOT = "take a snapshot for a backup"
    END_OWN_CLIENT = "end connections of the same principal"
    END_ANY_CLIENT = "end connections of other principals"
    LIST_SHARDS = "list shards"
    DESCRIBE_SHARD = "describe a shard"
    OPEN_SHARD = "open a shard"
    CREATE_BY_APPENDING = "create a shard in order to append"
    CREATE_SHARD = "create a shard"
    DELETE_SHARD = "delete a shard"
    CONFIGURE_SHARD = "change the mode, retention or segment size of a shard"
    ROLL_SHARD = "close the active segment of a shard"
    TRIM_SHARD = "drop the oldest records of a shard"
    APPEND = "append records"
    READ = "read records"
    SUBSCRIBE_SHARD = "subscribe to a shard"
    SUBSCRIBE_FILTER = "subscribe to all shards of a filter"
    JOIN_GROUP_ON_SHARD = "join a group on a shard"
    JOIN_GROUP_ON_FILTER = "join a group on a filter"
    GET_CURSOR = "see the cursors of a shard"
    LIST_CURSORS = "see the cursors of all shards of a filter"
    CHANGE_CURSOR = "move or delete a cursor"
    GET_STATE = "read a key of the state store"
    SCAN_STATE = "list keys of the state store"
    CHANGE_STATE = "write or delete a key of the state store"
    OPEN_PRODUCER = "open a producer of one's own"
    LIST_QUEUES = "see cache queues"
    READ_BROKER_API_DESCRIPTION = "read the description of a broker's API"
    SEE_BROKER_RULES = "see the rules of all brokers"
    CHANGE_BROKER_RULES = "change the rules of all brokers"
    LIST_MQTT_CLIENTS = "list the MQTT clients of all brokers"
    DISCONNECT_MQTT_CLIENT = "disconnect an MQTT client, or end its session"
    LIST_BANS = "list the bans of all brokers"
    CHANGE_BANS = "ban users, MQTT clients and networks, and remove bans"


@attrs.frozen(slots=True)
class Right:
    """An action that an access rule allows, and the object in the request that the rule must name."""

    action: Action
    resource: Resource


@attrs.frozen(slots=True)
class Row:
    """A row of the table.

    Attributes:
        operation: The operation.
        ways: Any of these sets of rights is enough; none at all means that nothing is needed.
        frames: The operations of the native protocol that are or contain it.
        json: Those of the JSON sub-protocol.
        http: Methods and paths.
        broker: Methods and paths at an MQTT broker. A broker knows one right, to administer all brokers: the users that
            `access.administrators` of its settings lists have it.
        without_login: It is open to peers without credentials, also where others need some.
    """

    operation: Operation
    ways: tuple[tuple[Right, ...], ...] = ()
    frames: tuple[str, ...] = ()
    json: tuple[str, ...] = ()
    http: tuple[str, ...] = ()
    broker: tuple[str, ...] = ()
    without_login: bool = False


def _to(action: Action, *resources: Resource) -> tuple[Right, ...]:
    return tuple(Right(action, resource) for resource in resources)


_ADMINISTER_SHARD: Final = _to(Action.ADMINISTER, Resource.SHARD)
_ADMINISTER_FILTER: Final = _to(Action.ADMINISTER, Resource.FILTER)
_ADMINISTER_NODE: Final = _to(Action.ADMINISTER, Resource.EVERYTHING)
_ADMINISTER_BROKERS: Final = _to(Action.ADMINISTER, Resource.BROKERS)
_APPEND_SHARD: Final = _to(Action.APPEND, Resource.SHARD)
_READ_SHARD: Final = _to(Action.READ, Resource.SHARD)
_READ_FILTER: Final = _to(Action.READ, Resource.FILTER)
_SUBSCRIBE_SHARD: Final = _to(Action.SUBSCRIBE, Resource.SHARD)
_SUBSCRIBE_FILTER: Final = _to(Action.SUBSCRIBE, Resource.PARTIAL_FILTER)
_READ_GROUP: Final = _to(Action.READ, Resource.GROUP)
_READ_CURSOR: Final = _to(Action.READ, Resource.CURSOR)

_O: Final = Operation
_ROWS: Final = (
    Row(_O.LOG_IN, frames=("HELLO",), json=("hello",), without_login=True),
    Row(
        _O.USE_OWN,
        frames=("PING", "CLOSE_SHARD", "UNSUBSCRIBE", "CREDIT", "ACKNOWLEDGE"),
        json=("ping", "credit", "untail"),
    ),
    Row(_O.SEE_HEALTH, http=("GET /livez", "GET /readyz"), without_login=True),
    Row(_O.LOAD_CONSOLE, http=("GET /", "GET /console/"), without_login=True),
    Row(_O.READ_API_DESCRIPTION, http=("GET /api/v1/openapi.json",)),
    Row(
        _O.SEE_METRICS,
        (_to(Action.READ, Resource.METRICS), _to(Action.READ, Resource.EVERYTHING), _ADMINISTER_NODE),
        http=("GET /metrics",),
    ),
    Row(
        _O.SEE_NODE,
        (_ADMINISTER_NODE,),
        frames=("STATUS",),
        http=("GET /api/v1/node", "GET /api/v1/connections", "GET /api/v1/subscriptions"),
    ),
    Row(_O.TAKE_SNAPSHOT, (_ADMINISTER_NODE,), frames=("SNAPSHOT",)),
    Row(_O.END_OWN_CLIENT, frames=("END_CLIENT",)),
    Row(_O.END_ANY_CLIENT, (_ADMINISTER_NODE,), frames=("END_CLIENT",)),
    Row(
        _O.LIST_SHARDS,
        (_READ_FILTER, _ADMINISTER_FILTER),
        frames=("LIST_SHARDS",),
        json=("list",),
        http=("GET /api/v1/shards",),
    ),
    Row(
        _O.DESCRIBE_SHARD,
        (_READ_SHARD, _ADMINISTER_SHARD),
        frames=("DESCRIBE_SHARD",),
        json=("describe",),
        http=("GET /api/v1/shard",),
    ),
    Row(_O.OPEN_SHARD, (_APPEND_SHARD, _READ_SHARD), frames=("OPEN_SHARD",)),
    Row(_O.CREATE_BY_APPENDING, (_APPEND_SHARD, _ADMINISTER_SHARD), frames=("OPEN_SHARD",), json=("append",)),
    Row(_O.CREATE_SHARD, (_ADMINISTER_SHARD,), frames=("CREATE_SHARD",), http=("POST /api/v1/shards",)),
    Row(_O.DELETE_SHARD, (_ADMINISTER_SHARD,), frames=("DELETE_SHARD",), http=("DELETE /api/v1/shard",)),
    Row(
        _O.CONFIGURE_SHARD,
        (_ADMINISTER_SHARD,),
        frames=("SET_MODE", "CONFIGURE_SHARD"),
        http=("PUT /api/v1/shard/mode", "PATCH /api/v1/shard"),
    ),
    Row(_O.ROLL_SHARD, (_ADMINISTER_SHARD,), frames=("ROLL",), http=("POST /api/v1/shard/roll",)),
    Row(_O.TRIM_SHARD, (_ADMINISTER_SHARD,), frames=("TRIM",), http=("POST /api/v1/shard/trim",)),
    Row(_O.APPEND, (_APPEND_SHARD,), frames=("APPEND", "COMMIT"), json=("append",)),
    Row(_O.READ, (_READ_SHARD,), frames=("FETCH", "FIND_OFFSET", "FETCH_INDEXED"), json=("read",)),
    Row(_O.SUBSCRIBE_SHARD, (_SUBSCRIBE_SHARD,), frames=("SUBSCRIBE",), json=("tail",)),
    Row(_O.SUBSCRIBE_FILTER, (_SUBSCRIBE_FILTER,), frames=("SUBSCRIBE",), json=("tail",)),
    Row(
        _O.JOIN_GROUP_ON_SHARD,
        ((*_SUBSCRIBE_SHARD, *_READ_GROUP), (*_SUBSCRIBE_SHARD, *_ADMINISTER_SHARD)),
        frames=("SUBSCRIBE",),
    ),
    Row(
        _O.JOIN_GROUP_ON_FILTER,
        ((*_SUBSCRIBE_FILTER, *_READ_GROUP), (*_SUBSCRIBE_FILTER, *_ADMINISTER_FILTER)),
        frames=("SUBSCRIBE",),
    ),
    Row(_O.GET_CURSOR, (_READ_SHARD, _ADMINISTER_SHARD), frames=("CURSOR_GET", "CURSOR_LIST", "COMMIT")),
    Row(_O.LIST_CURSORS, (_READ_FILTER, _ADMINISTER_FILTER), http=("GET /api/v1/cursors",)),
    Row(
        _O.CHANGE_CURSOR,
        ((*_READ_SHARD, *_READ_CURSOR), _ADMINISTER_SHARD),
        frames=("CURSOR_COMMIT", "CURSOR_DELETE"),
        http=("DELETE /api/v1/cursor",),
    ),
    Row(_O.GET_STATE, (_to(Action.READ, Resource.STATE),), frames=("STATE_GET",)),
    Row(_O.SCAN_STATE, (_to(Action.READ, Resource.STATE_PREFIX),), frames=("STATE_SCAN",)),
    Row(
        _O.CHANGE_STATE,
        (_to(Action.APPEND, Resource.STATE),),
        frames=("STATE_PUT", "STATE_DELETE", "COMMIT"),
    ),
    Row(_O.OPEN_PRODUCER, (_to(Action.APPEND, Resource.SOMEWHERE),), frames=("PRODUCER_OPEN",)),
    Row(_O.LIST_QUEUES, (_READ_FILTER, _ADMINISTER_FILTER), http=("GET /api/v1/queues",)),
    Row(_O.READ_BROKER_API_DESCRIPTION, broker=("GET /api/v1/openapi.json",), without_login=True),
    Row(_O.SEE_BROKER_RULES, (_ADMINISTER_BROKERS,), broker=("GET /api/v1/rules",)),
    Row(_O.CHANGE_BROKER_RULES, (_ADMINISTER_BROKERS,), broker=("PUT /api/v1/rules",)),
    Row(_O.LIST_MQTT_CLIENTS, (_ADMINISTER_BROKERS,), broker=("GET /api/v1/clients",)),
    Row(_O.DISCONNECT_MQTT_CLIENT, (_ADMINISTER_BROKERS,), broker=("DELETE /api/v1/client",)),
    Row(_O.LIST_BANS, (_ADMINISTER_BROKERS,), broker=("GET /api/v1/bans",)),
    Row(_O.CHANGE_BANS, (_ADMINISTER_BROKERS,), broker=("POST /api/v1/bans", "DELETE /api/v1/ban")),
)

TABLE: Final[dict[Operation, Row]] = {row.operation: row for row in _ROWS}
"""The rows by operation."""


class UseRefusedError(NotAuthorizedError):
    """A principal lacks the rights that the table asks for.

    Attributes:
        use: The operation and its objects, for the audit log; not sent to the client.
    """

    def __init__(self, message: str, use: Use) -> None:
        super().__init__(message)
        self.use = use


@attrs.frozen(slots=True)
class Use:
    """An operation on the objects that a request names; a field is None where the operation touches no such object."""

    operation: Operation
    shard: str | None = None
    topic_filter: str | None = None
    group: str | None = None
    cursor: str | None = None
    key: bytes | None = None
    prefix: bytes | None = None

    def is_allowed(self, principal: Principal) -> bool:
        """Whether a principal has the rights that the table asks for."""
        ways = TABLE[self.operation].ways
        return not ways or any(all(self._has(principal, right) for right in way) for way in ways)

    def require(self, principal: Principal) -> None:
        """Raise an error unless a principal has the rights that the table asks for.

        Raises:
            UseRefusedError: It has not; the message says which are missing, whether the object exists or not.
        """
        if self.is_allowed(principal):
            return
        missing = [
            tuple(right for right in way if not self._has(principal, right)) for way in TABLE[self.operation].ways
        ]
        who = f"principal {principal.name!a}" if principal.name else "a principal without a name"
        raise UseRefusedError(f"{who} may not {self._described(missing)}; allow it in the server's access rules", self)

    @property
    def target(self) -> str:
        """The shard, filter or state key, as access rules name it; empty for an operation on none."""
        if self.key is not None:
            return _state_name(self.key)
        if self.prefix is not None:
            return _state_filter(self.prefix)
        return self.shard or self.topic_filter or ""

    def _has(self, principal: Principal, right: Right) -> bool:
        resource, name = self._target(right.resource)
        return principal.may(right.action, resource, name)

    def _target(self, resource: Resource) -> tuple[Resource, str]:
        """The kind of names in rules, and the name, for an object of this operation."""
        kind, name = resource, None
        match resource:
            case Resource.SHARD:
                name = self.shard
            case Resource.FILTER | Resource.PARTIAL_FILTER:
                name = self.topic_filter
            case Resource.GROUP:
                name = self.group
            case Resource.CURSOR:
                # The position of a group is a cursor, so who may set it decides what the group reads.
                group = None if self.cursor is None else group_of_cursor(self.cursor)
                kind, name = (Resource.CURSOR, self.cursor) if group is None else (Resource.GROUP, group)
            case Resource.STATE:
                kind, name = Resource.SHARD, None if self.key is None else _state_name(self.key)
            case Resource.STATE_PREFIX:
                kind, name = Resource.FILTER, None if self.prefix is None else _state_filter(self.prefix)
            case Resource.METRICS:
                kind, name = Resource.SHARD, METRICS
            case Resource.EVERYTHING:
                kind, name = Resource.FILTER, _ALL_SHARDS
            case Resource.SOMEWHERE | Resource.BROKERS:
                name = ""
        if name is None:
            raise TypeError(f"{self.operation.name} needs a {resource}, which was not given")
        return kind, name

    def _described(self, missing: list[tuple[Right, ...]]) -> str:
        targets = {self._target(right.resource) for way in missing for right in way}
        if len(targets) == 1 and all(len(way) == 1 for way in missing):
            (target,) = targets
            return f"{' or '.join(way[0].action for way in missing)} {_shown(*target)}"
        ways = (
            " and ".join(f"{right.action} {_shown(*self._target(right.resource))}" for right in way) for way in missing
        )
        return " or ".join(ways)


def subscription_use(shard: str | None, topic_filter: str | None, group: str | None) -> Use:
    """The use of a subscription to a shard or to a filter, in a group or not."""
    if topic_filter is not None:
        by_filter = _O.SUBSCRIBE_FILTER if group is None else _O.JOIN_GROUP_ON_FILTER
        return Use(by_filter, topic_filter=topic_filter, group=group)
    by_name = _O.SUBSCRIBE_SHARD if group is None else _O.JOIN_GROUP_ON_SHARD
    return Use(by_name, shard=shard or "", group=group)


def shards_delivered(use: Use, principal: Principal) -> Callable[[str], bool] | None:
    """Which shards a subscription delivers to a principal, by their names; None for all that it matches."""
    topic_filter = use.topic_filter
    if topic_filter is None or principal.may(Action.SUBSCRIBE, Resource.FILTER, topic_filter):
        return None
    return lambda shard: principal.may(Action.SUBSCRIBE, Resource.SHARD, shard)


def _state_name(key: bytes) -> str:
    """The name of a key of the state store in access rules."""
    return _STATE + key.decode(errors="backslashreplace")


def _state_filter(prefix: bytes) -> str:
    """The filter of all keys with a prefix in access rules: all below its last level."""
    above, slash, _ = prefix.rpartition(b"/")
    return _state_name(above + slash) + "#"


def _shown(kind: Resource, name: str) -> str:
    match kind:
        case Resource.SOMEWHERE:
            return "to any topic"
        case Resource.BROKERS:
            return "all brokers"
        case Resource.GROUP | Resource.CURSOR:
            return f"{kind} {name!a}"
        case _:
            return f"{name!a}"
