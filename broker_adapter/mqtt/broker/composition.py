"""Creates the parts of a broker from its settings (`config`). The parts do not know the settings."""

from __future__ import annotations

import secrets
import socket
import ssl
from collections.abc import Callable
from typing import Final

import structlog

from broker_adapter.bridge.config import BridgeTable, bridge_of
from broker_adapter.bridge.spec import BridgeSpec
from broker_adapter.mqtt.access.audit import BrokerAudit
from broker_adapter.mqtt.access.quotas import Quota, Quotas
from broker_adapter.mqtt.access.users import AccessControl, ClientIds
from broker_adapter.mqtt.broker.exposure import allows_by_default
from broker_adapter.mqtt.config import Action, BrokerConfig, LimitsSection
from broker_adapter.mqtt.model.limits import Limits
from broker_adapter.mqtt.model.storage_rules import BrokerTopicMapping, StorageRule, StorageRules
from broker_adapter.mqtt.rules.rule_set import RuleSet
from broker_adapter.mqtt.transport.listeners import ListenerLimits
from broker_adapter.topic_mapping import MappingRule
from journal.access import authorization
from journal.access.audit import AuditLog
from journal.access.certificates import server_context
from journal.access.login_methods import Credentials, Logins
from journal.access.login_settings import certificate_field_of, http_login_of, jwt_of, order_of
from journal.access.rules import AccessRule, AccessRules
from journal.access.users import Users, read_users
from journal.settings.logins import LoginType
from journal.settings.values import ConfigurationError, Permission

log: structlog.stdlib.BoundLogger = structlog.get_logger("broker")

_HOST_CHARACTERS: Final = 40
_MESSAGE_ROOM: Final = 2
_ACTIONS: Final = {
    Action.PUBLISH: frozenset({authorization.Action.APPEND}),
    Action.SUBSCRIBE: frozenset({authorization.Action.SUBSCRIBE}),
    Action.ALL: frozenset({authorization.Action.APPEND, authorization.Action.SUBSCRIBE}),
}


def broker_id_of(config: BrokerConfig) -> str:
    """The configured id, or a random one."""
    if config.broker.id:
        return config.broker.id
    host = "".join(each if each.isascii() and each.isalnum() else "-" for each in socket.gethostname())
    return f"{host[:_HOST_CHARACTERS]}-{secrets.token_hex(4)}"


def limits_of(section: LimitsSection, processes: int = 1) -> Limits:
    """Limits of one client, and the part of one process in those of all clients together."""
    return Limits(
        max_unaccepted_bytes=Limits().max_unaccepted_bytes // processes,
        max_packet_bytes=section.max_packet_bytes,
        receive_maximum=section.receive_maximum,
        send_maximum=section.send_maximum,
        topic_alias_maximum=section.topic_alias_maximum,
        max_keep_alive_s=section.max_keep_alive_s,
        max_session_expiry_s=section.max_session_expiry_s,
        max_subscriptions=section.max_subscriptions,
        max_delay_s=section.max_delay_s,
        max_output_bytes=section.max_output_bytes,
        connect_timeout_s=section.connect_timeout_s,
    )


def quotas_of(config: BrokerConfig) -> Quotas:
    """Limits of users."""
    return Quotas(
        Quota(
            table.user,
            table.connections,
            table.publishes_per_s,
            table.bytes_per_s,
            table.connects_per_s,
            table.subscriptions,
            table.sessions,
            table.retained,
            table.retained_bytes,
            table.delayed,
        )
        for table in config.quotas
    )


def listener_limits_of(section: LimitsSection) -> ListenerLimits:
    """Limits of the listeners."""
    return ListenerLimits(
        max_connections=section.max_connections,
        handshake_timeout_s=section.connect_timeout_s,
        # A WebSocket message may contain the end of one packet and the whole of another.
        max_message_bytes=_MESSAGE_ROOM * section.max_packet_bytes,
    )


def storage_rules_of(rules: RuleSet) -> StorageRules:
    """Which messages are kept, and which of them sessions get that were away."""
    return StorageRules(
        (StorageRule(table.topics, table.storage, table.qos, table.offline) for table in rules.storage),
        offline=rules.broker.offline,
    )


def mapping_of(rules: RuleSet) -> BrokerTopicMapping:
    """The shards of topics."""
    return BrokerTopicMapping(
        MappingRule(table.topics, table.prefix, table.shards, table.by) for table in rules.mapping
    )


class BridgeSpecs:
    """The bridges of one program; a spec stays the same object while its settings do not change.

    Args:
        may_drive: Returns whether this program may drive the bridge with this name.
    """

    def __init__(self, may_drive: Callable[[str], bool] = lambda _name: True) -> None:
        self._may_drive = may_drive
        self._made: dict[str, tuple[BridgeTable, BridgeSpec]] = {}

    @classmethod
    def of(cls, config: BrokerConfig) -> BridgeSpecs:
        """The bridges that a broker with these settings may drive."""
        undriven = {table.name for table in config.bridge if not table.drive}
        return cls(lambda name: config.rules.drive and name not in undriven)

    def of_rules(self, rules: RuleSet) -> list[BridgeSpec]:
        """The bridges of these rules. A bridge whose sink cannot be opened by this program is not driven by it."""
        self._made = {table.name: (table, self._spec_of(table)) for table in rules.bridge}
        return [spec for _, spec in self._made.values()]

    def _spec_of(self, table: BridgeTable) -> BridgeSpec:
        made = self._made.get(table.name)
        if made is not None and made[0] == table:
            return made[1]
        if self._may_drive(table.name):
            try:
                return bridge_of(table)
            except ConfigurationError as error:
                log.error("this bridge is not driven here", bridge=table.name, reason=str(error))  # noqa: TRY400
        return bridge_of(table, is_driven=False)


def tls_of(config: BrokerConfig) -> ssl.SSLContext | None:
    """TLS context of the listeners `mqtts` and `websockets`; None without certificates.

    Raises:
        ConfigurationError: A file cannot be used.
    """
    tls = config.tls
    return server_context(tls.certificate_file, tls.key_file, tls.client_ca_file) if tls.certificate_file else None


def users_of(config: BrokerConfig) -> Users | None:
    """The users of the password file; None without one.

    Raises:
        ConfigurationError: The file cannot be used.
    """
    return read_users(config.access.users_file) if config.access.users_file else None


def credentials_of(config: BrokerConfig) -> Credentials:
    """All that clients can log in with.

    Raises:
        ConfigurationError: A file cannot be used.
    """
    logins = config.access.logins
    return Credentials(
        users=users_of(config),
        certificates=any(table.type is LoginType.CERTIFICATE for table in logins),
        certificate_field=certificate_field_of(logins),
        order=order_of(logins),
        jwt=jwt_of(logins),
        http=http_login_of(logins),
    )


def access_rules_of(config: BrokerConfig) -> AccessRules:
    """The permissions of clients."""
    access = config.access
    members = {role.name: frozenset(role.users) for role in access.roles}
    return AccessRules(
        [
            AccessRule(
                rule.permission is Permission.ALLOW,
                rule.topics,
                _ACTIONS[rule.action],
                user=rule.user,
                client_id=rule.client,
                role=rule.role,
                members=members.get(rule.role, frozenset()),
            )
            for rule in access.rules
        ],
        default=allows_by_default(config),
    )


def access_control_of(config: BrokerConfig) -> AccessControl:
    """Authentication and permissions.

    Raises:
        ConfigurationError: A file cannot be used.
    """
    return AccessControl(
        Logins(credentials_of(config)),
        access_rules_of(config),
        anonymous=config.access.anonymous,
        administrators=config.access.administrators,
        client_ids=ClientIds(config.access.client_ids),
    )


def audit_of(config: BrokerConfig, access: AccessControl) -> BrokerAudit:
    """The audit log.

    Raises:
        ConfigurationError: The file cannot be opened.
    """

    def is_user(name: str) -> bool:
        users = access.logins.credentials.users
        return users is not None and users.hash_of(name) is not None

    return BrokerAudit(AuditLog(config.access.audit_file), is_user)


def why_no_client_can_connect(config: BrokerConfig, credentials: Credentials) -> str:
    """The reason why no client can connect, with the way out; empty if clients can connect."""
    users = credentials.users
    if config.access.anonymous or users or any(step.kind != LoginType.USERS for step in credentials.steps):
        return ""
    if users is None:
        return (
            "no client can connect: no users_file is named under [access]; `journal-broker passwd FILE USER` creates "
            "one, or accept all clients with access.anonymous = true (--anonymous)"
        )
    return f"no client can connect: {config.access.users_file} has no users; add one with `journal-broker passwd`"
