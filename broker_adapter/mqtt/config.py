"""The broker's settings: their defaults, units and bounds. `journal.settings.file` reads a file into them.

``conf/broker.toml`` shows every setting with its default; a test keeps the two the same. A new setting is added in
these two places only, and there are at most forty. `broker.composition` makes the parts of a broker from them.
"""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal

import attrs
from attrs import field

from broker_adapter.bridge.config import BridgeTable, problems_of
from broker_adapter.errors import InvalidNameError
from broker_adapter.mqtt.model.limits import Limits
from broker_adapter.mqtt.model.storage_rules import Storage
from broker_adapter.opening import ENGINES, is_shared, may_be_behind
from broker_adapter.topic_mapping import MAX_FOLDED_SHARDS
from journal.settings.access import is_loopback, problems_of_roles
from journal.settings.file import Schema
from journal.settings.logins import LoginTable, LoginType, UserNames, login_problems
from journal.settings.values import (
    KIB,
    MIB,
    TIB,
    Address,
    File,
    Kind,
    LogConfig,
    OriginList,
    Permission,
    Size,
    Text,
    bytes_within,
    parse_filters,
    parse_text,
    within,
)
from shards.topics.names import BROKER_PREFIX, validate_shard_name
from shards.topics.topic_filters import validate_filter

_LIMITS = Limits()
_MAX_PACKET_BYTES = 256 * MIB
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_QOS = (0, 1, 2)
_MOST_PROCESSES = 64
_MANY = 1_000_000_000


def _parse_store(value: object) -> str:
    url = parse_text(value)
    scheme, colon, _ = url.partition(":")
    if not colon or scheme not in ENGINES:
        raise ValueError("is not a store URL")
    return url


def _parse_id(value: object) -> str:
    # A number is accepted, too, so that brokers can be numbered without quotation marks.
    name = str(value) if isinstance(value, int) and not isinstance(value, bool) else parse_text(value)
    if name and _NAME.fullmatch(name) is None:
        raise ValueError("is not a broker id")
    return name


def _parse_processes(value: object) -> int:
    if value == "auto":
        return min(len(os.sched_getaffinity(0)), _MOST_PROCESSES)
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= _MOST_PROCESSES:
        raise ValueError("is not a number of processes")
    return number


def _parse_filter(value: object) -> str:
    try:
        return validate_filter(parse_text(value))
    except InvalidNameError as error:
        raise ValueError("is not a topic filter") from error


def _parse_prefix(value: object) -> str:
    try:
        prefix = validate_shard_name(parse_text(value))
    except InvalidNameError as error:
        raise ValueError("is not a shard name") from error
    if prefix.startswith(BROKER_PREFIX) or prefix.endswith("/"):
        raise ValueError("cannot be used")
    return prefix


def _parse_client_ids(value: object) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    patterns = tuple(parse_text(each) for each in values)
    if not all(patterns):
        raise ValueError("has an empty pattern")
    return patterns


def _parse_qos(value: object) -> tuple[int, ...]:
    values = value if isinstance(value, list) else [value]
    if not values or not all(type(each) is int and each in _QOS for each in values):
        raise ValueError("is not a list of QoS levels")
    return tuple(sorted(set(values)))


def _parse_hashed(value: object) -> str:
    if value not in ("topic", "publisher"):
        raise ValueError("is not one of the choices")
    return str(value)


StoreUrl = Annotated[str, Kind(_parse_store, "a URL that begins with " + ", ".join(f"{name}:" for name in ENGINES))]
BrokerId = Annotated[str, Kind(_parse_id, 'up to 64 letters, digits, ".", "_" and "-", or "" for one made up')]
Processes = Annotated[
    int, Kind(_parse_processes, f'1 to {_MOST_PROCESSES}, or "auto" for one for each processor that it may use')
]
Filter = Annotated[str, Kind(_parse_filter, 'a topic filter such as "plant/+/alarm" or "plant/#"')]
Filters = Annotated[
    tuple[str, ...],
    Kind(parse_filters, 'a list of topic filters, in which "%u" and "%c" stand for the user name and the client id'),
]
Prefix = Annotated[str, Kind(_parse_prefix, f'a topic name that does not begin with "{BROKER_PREFIX}" or end with "/"')]
QosList = Annotated[tuple[int, ...], Kind(_parse_qos, "a list of 0, 1 and 2")]
ClientIdPatterns = Annotated[
    tuple[str, ...],
    Kind(
        _parse_client_ids,
        'a list of patterns, in which "%u" stands for the user name and "*" for any characters, or [] for any',
    ),
]
Hashed = Annotated[Literal["topic", "publisher"], Kind(_parse_hashed, '"topic" or "publisher"')]


class OnDifference(enum.StrEnum):
    """What a broker does if its settings have other rules than the store."""

    STOP = "stop"
    FOLLOW = "follow"


class DefaultPermission(enum.StrEnum):
    """What happens to a publish or a subscription that no rule decides about."""

    AUTO = "auto"
    """It is denied once users or rules are configured."""

    ALLOW = "allow"
    DENY = "deny"


class Action(enum.StrEnum):
    """The actions that an access rule applies to."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"
    ALL = "all"


@attrs.frozen
class BrokerSection:
    """The broker's id, its store, and general settings."""

    id: BrokerId = ""
    store: StoreUrl = "journal://127.0.0.1:7420"
    processes: Processes = 1
    offline: bool = True
    sys_interval_s: int = field(default=10, metadata=within("seconds", 0, 86_400))


@attrs.frozen
class ListenSection:
    """Addresses for clients, and for health and metrics."""

    mqtt: Address = "127.0.0.1:1883"
    mqtts: Address = ""
    websocket: Address = ""
    websockets: Address = ""
    http: Address = ""
    websocket_origins: OriginList = ()

    def addresses(self) -> dict[str, str]:
        """The addresses by name of their setting."""
        return {
            "mqtt": self.mqtt,
            "mqtts": self.mqtts,
            "websocket": self.websocket,
            "websockets": self.websockets,
            "http": self.http,
        }


@attrs.frozen
class TlsSection:
    """Certificates of `mqtts` and `websockets`."""

    certificate_file: File = ""
    key_file: File = ""
    client_ca_file: File = ""


@attrs.frozen
class RoleTable:
    """A name for a set of rules, and the users who have this role."""

    name: Text
    users: UserNames = ()


@attrs.frozen
class AccessRuleTable:
    """One rule about the permissions of clients."""

    permission: Permission
    topics: Filters
    action: Action = Action.ALL
    user: Text = ""
    client: Text = ""
    role: Text = ""


@attrs.frozen
class AccessSection:
    """Authentication and permissions."""

    users_file: File = ""
    anonymous: bool = False
    administrators: UserNames = ()
    client_ids: ClientIdPatterns = ()
    default: DefaultPermission = DefaultPermission.AUTO
    audit_file: File = ""
    max_bans: int = field(default=10_000, metadata=within("bans", 0, 100_000))
    logins: tuple[LoginTable, ...] = ()
    roles: tuple[RoleTable, ...] = ()
    rules: tuple[AccessRuleTable, ...] = ()


@attrs.frozen
class LimitsSection:
    """Limits of what one client can occupy in the broker."""

    max_connections: int = field(default=20_000, metadata=within("connections", 1, 1_000_000))
    max_packet_bytes: Size = field(default=_LIMITS.max_packet_bytes, metadata=bytes_within(1 * KIB, _MAX_PACKET_BYTES))
    receive_maximum: int = field(default=_LIMITS.receive_maximum, metadata=within("messages", 1, 65_535))
    send_maximum: int = field(default=_LIMITS.send_maximum, metadata=within("messages", 1, 65_535))
    topic_alias_maximum: int = field(default=_LIMITS.topic_alias_maximum, metadata=within("aliases", 0, 65_535))
    max_keep_alive_s: int = field(default=_LIMITS.max_keep_alive_s, metadata=within("seconds", 0, 65_535))
    max_session_expiry_s: int = field(default=_LIMITS.max_session_expiry_s, metadata=within("seconds", 0, 0xFFFF_FFFF))
    max_subscriptions: int = field(default=_LIMITS.max_subscriptions, metadata=within("subscriptions", 1, 1_000_000))
    max_delay_s: int = field(default=_LIMITS.max_delay_s, metadata=within("seconds", 0, 0xFFFF_FFFF))
    max_output_bytes: Size = field(default=_LIMITS.max_output_bytes, metadata=bytes_within(4 * KIB, _MAX_PACKET_BYTES))
    connect_timeout_s: int = field(default=10, metadata=within("seconds", 1, 3_600))


@attrs.frozen
class QuotaTable:
    """Limits of a user at this broker, and from `sessions` on in the store."""

    user: Text = ""
    connections: int = field(default=0, metadata=within("connections", 0, 1_000_000))
    publishes_per_s: int = field(default=0, metadata=within("messages", 0, _MANY))
    bytes_per_s: Size = field(default=0, metadata=bytes_within(0, TIB))
    connects_per_s: int = field(default=0, metadata=within("connections", 0, _MANY))
    subscriptions: int = field(default=0, metadata=within("subscriptions", 0, 1_000_000))
    sessions: int = field(default=0, metadata=within("sessions", 0, _MANY))
    retained: int = field(default=0, metadata=within("messages", 0, _MANY))
    retained_bytes: Size = field(default=0, metadata=bytes_within(0, TIB))
    delayed: int = field(default=0, metadata=within("messages", 0, _MANY))


@attrs.frozen
class RulesSection:
    """How the broker treats the rules that all brokers of a store share."""

    on_difference: OnDifference = OnDifference.STOP
    drive: bool = True


@attrs.frozen
class StorageTable:
    """How the messages of some topics are kept."""

    topics: Filter
    qos: QosList = _QOS
    storage: Storage | None = None
    offline: bool | None = None


@attrs.frozen
class MappingTable:
    """Maps many topics to few shards."""

    topics: Filter
    prefix: Prefix
    shards: int = field(metadata=within("shards", 1, MAX_FOLDED_SHARDS))
    by: Hashed = "topic"


@attrs.frozen
class BrokerConfig:
    """Every setting of a broker."""

    broker: BrokerSection = BrokerSection()
    listen: ListenSection = ListenSection()
    tls: TlsSection = TlsSection()
    access: AccessSection = AccessSection()
    limits: LimitsSection = LimitsSection()
    quotas: tuple[QuotaTable, ...] = ()
    rules: RulesSection = RulesSection()
    storage: tuple[StorageTable, ...] = ()
    mapping: tuple[MappingTable, ...] = ()
    bridge: tuple[BridgeTable, ...] = ()
    log: LogConfig = field(factory=LogConfig)


def _check(config: BrokerConfig) -> Iterable[str]:
    yield from _problems_of_processes(config)
    listen, tls = config.listen, config.tls
    if may_be_behind(config.broker.store):
        yield (
            f"[broker] store = {config.broker.store!r} asks for a server whose data may be old; a broker reads what it "
            "has just written: leave out read="
        )
    if not (listen.mqtt or listen.mqtts or listen.websocket or listen.websockets):
        yield "[listen] names no address, so no client could connect; give one of mqtt, mqtts, websocket, websockets"
    for name, address in (("mqtts", listen.mqtts), ("websockets", listen.websockets)):
        if address and not (tls.certificate_file and tls.key_file):
            yield f"[listen] {name} = {address!r} needs [tls] certificate_file and key_file"
    if not (is_loopback(listen.http) or has_logins(config.access) or config.access.anonymous):
        yield (
            f"[listen] http = {listen.http!r} can be reached from other machines without a password: name "
            "access.users_file, or listen on 127.0.0.1; access.anonymous = true lets all clients see metrics there"
        )
    if bool(tls.certificate_file) != bool(tls.key_file):
        yield "[tls] certificate_file and key_file belong together; give both or neither"
    if config.access.administrators and not has_logins(config.access):
        yield "[access] administrators are users of access.users_file; name that file"
    files = {
        LoginType.USERS: ("access.users_file", config.access.users_file),
        LoginType.CERTIFICATE: ("tls.client_ca_file", tls.client_ca_file),
        LoginType.JWT: ("", ""),
        LoginType.HTTP: ("", ""),
    }
    yield from login_problems(config.access.logins, files, certificates_alone=True)
    yield from problems_of_roles(
        [role.name for role in config.access.roles],
        [(rule.role, rule.user) for rule in config.access.rules],
        "user",
    )
    users = [quota.user for quota in config.quotas]
    for number, user in enumerate(users, 1):
        if user in users[: number - 1]:
            yield f"[[quotas]] number {number} is for user {user!r} again; leave one of them out"
    yield from problems_of_rules(config.storage, config.bridge)


def _problems_of_processes(config: BrokerConfig) -> Iterable[str]:
    count, store = config.broker.processes, config.broker.store
    if count > 1 and not is_shared(store):
        yield (
            f"[broker] processes = {count} needs a store that several processes can use, and {store} belongs to one: "
            "name a server with broker.store, or leave processes at 1"
        )
    if config.limits.max_connections < count:
        yield f"[limits] max_connections = {config.limits.max_connections} is less than [broker] processes = {count}"


def has_logins(access: AccessSection) -> bool:
    """Whether any login method is configured."""
    return bool(access.users_file or access.logins)


def problems_of_rules(storage: Iterable[StorageTable], bridges: Sequence[BridgeTable]) -> Iterable[str]:
    """Problems of rules that are valid each by itself, one text for each problem."""
    for number, table in enumerate(storage, 1):
        if table.storage is None and table.offline is None:
            yield f"[[storage]] number {number} decides nothing; give it storage, offline or both"
    yield from problems_of(bridges)


_SCHEMA = Schema(BrokerConfig, check=_check)

SECTIONS = _SCHEMA.sections
"""All settings by section and name, except those of lists of tables."""

TABLES = _SCHEMA.tables
"""The settings of each list of tables, by its dotted name."""


def load_broker_config(path: str | os.PathLike[str] | None, overrides: Mapping[str, object] = {}) -> BrokerConfig:
    """Read a settings file; see `journal.settings.file.Schema.load`.

    Raises:
        ConfigurationError: The file cannot be read, or a setting is unknown, of a wrong kind or out of bounds.
    """
    return _SCHEMA.load(path, overrides)
