"""TLS, access, quotas and audit log of a server, created from its settings; and reloading them."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Final

import attrs

from journal.access.audit import AuditLog
from journal.access.authenticator import Authenticator, Known
from journal.access.authorization import EVERYBODY, Action, Principal
from journal.access.certificates import server_context
from journal.access.login_settings import certificate_field_of, http_login_of, jwt_of, order_of
from journal.access.quotas import Quota, Quotas
from journal.access.refused_acts import RefusedActs
from journal.access.refused_logins import RefusedLogins
from journal.access.repeated_acts import RepeatedActs
from journal.access.rules import AccessRule, AccessRules
from journal.access.tokens import read_tokens
from journal.access.users import read_users
from journal.server.http_senders import HttpSenders
from journal.settings.access import AccessRuleTable, AccessSection, RuleAction, access_problems, allows_by_default
from journal.settings.server import ServerConfig
from journal.settings.values import ConfigurationError, Permission

_REREAD: Final = ("access", "tls")


@attrs.frozen(slots=True)
class Readable:
    """The part of the settings that is read again at SIGHUP."""

    known: Known
    tls: ssl.SSLContext | None


def read(config: ServerConfig) -> Readable:
    """Read the files that the settings name. Blocks on the disk.

    Raises:
        ConfigurationError: A file cannot be used.
    """
    access, tls = config.access, config.tls
    known = Known(
        rules=AccessRules(rules_of(access), default=allows_by_default(access, tls)),
        users=read_users(access.users_file) if access.users_file else None,
        tokens=read_tokens(access.tokens_file) if access.tokens_file else None,
        certificates=bool(tls.client_ca_file),
        anonymous=access.anonymous,
        certificate_field=certificate_field_of(access.logins),
        order=order_of(access.logins),
        jwt=jwt_of(access.logins),
        http=http_login_of(access.logins),
    )
    context = None
    if tls.certificate_file:
        context = server_context(tls.certificate_file, tls.key_file, tls.client_ca_file)
        if tls.client_ca_file:
            # A client without a certificate has to send a password or a token.
            context.verify_mode = ssl.CERT_OPTIONAL
    return Readable(known, context)


def rules_of(access: AccessSection) -> list[AccessRule]:
    """The rules in their order."""
    members = {role.name: frozenset(role.principals) for role in access.roles}
    return [_rule(table, members.get(table.role, frozenset())) for table in access.rules]


def _rule(table: AccessRuleTable, members: frozenset[str]) -> AccessRule:
    actions = (
        frozenset(Action) if RuleAction.ALL in table.actions else frozenset(Action(each) for each in table.actions)
    )
    return AccessRule(
        table.permission is Permission.ALLOW,
        table.topics,
        actions,
        table.principal,
        groups=table.groups,
        cursors=table.cursors,
        role=table.role,
        members=members,
    )


class Security:
    """Decides which clients are accepted, and with which rights.

    Args:
        config: The settings.

    Raises:
        ConfigurationError: A file that the settings name cannot be used.

    Attributes:
        access: Authenticates clients.
        quotas: The quotas of all principals.
        audit: The log of administrative acts.
        refused_logins: Writes refused logins into the same log.
        refused_acts: Writes acts that were refused or failed into it.
        repeated_acts: Writes logins and commits of cursors into it.
        tls: Certificates for new connections; None without TLS.
        http_senders: Knows which principals send requests over HTTP.
    """

    def __init__(self, config: ServerConfig) -> None:
        readable = read(config)
        self.access = Authenticator(readable.known)
        self.quotas = Quotas(
            (
                Quota(
                    table.principal,
                    table.topics,
                    table.connections,
                    table.requests_per_s,
                    table.bytes_per_s,
                    table.stored_bytes,
                    table.shards,
                    table.producers,
                    table.memory_bytes,
                    table.http_requests_per_s,
                    table.cursors,
                )
                for table in config.quotas
            ),
            memory_budget_bytes=config.storage.memory_budget_bytes,
        )
        self.http_senders = HttpSenders(self.quotas.http_rate_of)
        self.audit = AuditLog(config.access.audit_file)
        self.refused_acts = RefusedActs(self.audit)
        self.refused_logins = RefusedLogins(self.audit)
        self.repeated_acts = RepeatedActs(self.audit)
        self.tls = readable.tls
        self._has_quotas = bool(config.quotas)

    @property
    def everybody(self) -> Principal | None:
        """The principal of all clients if neither authentication nor a quota is configured; None otherwise."""
        known = self.access.known
        return None if known.has_credentials or self._has_quotas or not known.rules.allow_everything else EVERYBODY

    def current_tls(self) -> ssl.SSLContext | None:
        """The present value of `tls`, for callers that need it for every connection."""
        return self.tls

    def take_over(self, readable: Readable) -> None:
        """Apply settings that were read again. Whether TLS is used at all changes only with a restart."""
        self.access.known = readable.known
        if self.tls is not None and readable.tls is not None:
            self.tls = readable.tls


def check_reload(old: ServerConfig, new: ServerConfig) -> None:
    """Check that a reload does not remove the protection of addresses that other machines can reach.

    Raises:
        ConfigurationError: It would; such a change of settings needs a restart.
    """
    for problem in access_problems(old.listen.addresses(), new.tls, new.access, new.quotas):
        raise ConfigurationError(f"{problem}; the listening addresses change only with a restart")


def in_use(old: ServerConfig, new: ServerConfig) -> ServerConfig:
    """The settings that hold after a reload: those of ``new`` that are read again, and otherwise those of ``old``."""
    has_tls = bool(old.tls.certificate_file)
    return attrs.evolve(old, access=new.access, tls=new.tls if has_tls == bool(new.tls.certificate_file) else old.tls)


def unread_changes(old: ServerConfig, new: ServerConfig) -> list[str]:
    """Names of the sections that changed and take effect only after a restart."""
    kept = attrs.evolve(new, access=old.access, tls=old.tls)
    changed = [
        field.name
        for field in attrs.fields(ServerConfig)
        if field.name not in _REREAD and getattr(old, field.name) != getattr(kept, field.name)
    ]
    unread: Callable[[ServerConfig], tuple[object, ...]] = lambda config: (  # noqa: E731
        config.access.audit_file,
        bool(config.tls.certificate_file),
    )
    return [*changed, *(["access, tls"] if unread(old) != unread(new) else [])]
