"""From settings to the parts of a broker. What the settings are is `config`; the parts know nothing of them."""

from __future__ import annotations

import secrets
import socket
import ssl
from collections.abc import Callable
from typing import Final

import structlog

from broker_adapter.bridge.config import BridgeTable, bridge_of
from broker_adapter.bridge.spec import BridgeSpec
from broker_adapter.mqtt.access.users import AccessControl
from broker_adapter.mqtt.config import Action, BrokerConfig, LimitsSection
from broker_adapter.mqtt.model.limits import Limits
from broker_adapter.mqtt.model.storage_rules import BrokerTopicMapping, StorageRule, StorageRules
from broker_adapter.mqtt.rules.rule_set import RuleSet
from broker_adapter.mqtt.transport.listeners import ListenerLimits
from broker_adapter.topic_mapping import MappingRule
from journal.access import authorization
from journal.access.authentication import Authentication
from journal.access.certificates import server_context
from journal.access.rules import AccessRule, AccessRules
from journal.access.users import Users, read_users
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
    """The configured id, or one that no other broker has."""
    if config.broker.id:
        return config.broker.id
    host = "".join(each if each.isascii() and each.isalnum() else "-" for each in socket.gethostname())
    return f"{host[:_HOST_CHARACTERS]}-{secrets.token_hex(4)}"


def limits_of(section: LimitsSection) -> Limits:
    """What a client may make the broker hold."""
    return Limits(
        max_packet_bytes=section.max_packet_bytes,
        receive_maximum=section.receive_maximum,
        send_maximum=section.send_maximum,
        topic_alias_maximum=section.topic_alias_maximum,
        max_keep_alive_s=section.max_keep_alive_s,
        max_session_expiry_s=section.max_session_expiry_s,
        max_subscriptions=section.max_subscriptions,
        max_output_bytes=section.max_output_bytes,
        connect_timeout_s=section.connect_timeout_s,
    )


def listener_limits_of(section: LimitsSection) -> ListenerLimits:
    """What peers may make the listeners hold."""
    return ListenerLimits(
        max_connections=section.max_connections,
        handshake_timeout_s=section.connect_timeout_s,
        # A message of a WebSocket may hold the end of one packet and the whole of another.
        max_message_bytes=_MESSAGE_ROOM * section.max_packet_bytes,
    )


def storage_rules_of(rules: RuleSet) -> StorageRules:
    """What is stored, and what sessions get that were away."""
    return StorageRules(
        (StorageRule(table.topics, table.storage, table.qos, table.offline) for table in rules.storage),
        offline=rules.broker.offline,
    )


def mapping_of(rules: RuleSet) -> BrokerTopicMapping:
    """In which shards topics lie."""
    return BrokerTopicMapping(
        MappingRule(table.topics, table.prefix, table.shards, table.by) for table in rules.mapping
    )


class BridgeSpecs:
    """The bridges of one program, whose specs stay the same objects while nothing of them changes.

    Args:
        may_drive: Tells of a bridge, by its name, whether this program may drive it.
    """

    def __init__(self, may_drive: Callable[[str], bool] = lambda _name: True) -> None:
        self._may_drive = may_drive
        self._made: dict[str, tuple[BridgeTable, BridgeSpec]] = {}

    @classmethod
    def of(cls, config: BrokerConfig) -> BridgeSpecs:
        """Those of a broker with these settings."""
        undriven = {table.name for table in config.bridge if not table.drive}
        return cls(lambda name: config.rules.drive and name not in undriven)

    def of_rules(self, rules: RuleSet) -> list[BridgeSpec]:
        """The bridges of these rules. One whose sink cannot be opened by this program is not driven by it."""
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
                log.error("this bridge is not driven from here", bridge=table.name, reason=str(error))  # noqa: TRY400
        return bridge_of(table, is_driven=False)


def tls_of(config: BrokerConfig) -> ssl.SSLContext | None:
    """What `mqtts` and `websockets` speak; None without certificates.

    Raises:
        ConfigurationError: A file cannot be used.
    """
    tls = config.tls
    return server_context(tls.certificate_file, tls.key_file, tls.client_ca_file) if tls.certificate_file else None


def users_of(config: BrokerConfig) -> Users | None:
    """Who there is; None without a password file.

    Raises:
        ConfigurationError: The file cannot be used.
    """
    return read_users(config.access.users_file) if config.access.users_file else None


def access_rules_of(config: BrokerConfig) -> AccessRules:
    """What clients may do."""
    access = config.access
    return AccessRules(
        [
            AccessRule(
                rule.permission is Permission.ALLOW,
                rule.topics,
                _ACTIONS[rule.action],
                user=rule.user,
                client_id=rule.client,
            )
            for rule in access.rules
        ],
        default=access.default is Permission.ALLOW,
    )


def access_control_of(config: BrokerConfig) -> AccessControl:
    """Who gets in, and what clients may do.

    Raises:
        ConfigurationError: The password file cannot be used.
    """
    return AccessControl(
        Authentication(users_of(config)),
        access_rules_of(config),
        anonymous=config.access.anonymous,
        administrators=config.access.administrators,
    )


def nobody_can_connect(config: BrokerConfig, users: Users | None) -> str:
    """What is missing for any client to get in; empty if nothing is."""
    if config.access.anonymous or users:
        return ""
    if users is None:
        return (
            "nobody can connect: no users_file is named under [access]; `journal-broker passwd FILE USER` makes one, "
            "or let everybody in with access.anonymous = true"
        )
    return f"nobody can connect: {config.access.users_file} has no users; add one with `journal-broker passwd`"
