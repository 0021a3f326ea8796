"""From settings to who may come in and on which terms: TLS, access, quotas, the audit log. And reading that again."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Final

import attrs

from journal.access.audit import AuditLog
from journal.access.authenticator import Authenticator, Known
from journal.access.authorization import EVERYBODY, Action, Principal
from journal.access.certificates import server_context
from journal.access.quotas import Quota, Quotas
from journal.access.refused_logins import RefusedLogins
from journal.access.rules import AccessRule, AccessRules
from journal.access.tokens import read_tokens
from journal.access.users import read_users
from journal.settings.access import AccessRuleTable, RuleAction, access_problems, is_loopback
from journal.settings.server import ServerConfig
from journal.settings.values import ConfigurationError, Permission

_REREAD: Final = ("access", "tls")


@attrs.frozen(slots=True)
class Readable:
    """What is read again at SIGHUP."""

    known: Known
    tls: ssl.SSLContext | None


def read(config: ServerConfig) -> Readable:
    """Read the files that the settings name. Blocks.

    Raises:
        ConfigurationError: A file cannot be used.
    """
    access, tls = config.access, config.tls
    known = Known(
        # Where nothing is said everybody may do everything, so that credentials alone keep strangers out.
        AccessRules([_rule(table) for table in access.rules], default=not access.rules),
        users=read_users(access.users_file) if access.users_file else None,
        tokens=read_tokens(access.tokens_file) if access.tokens_file else None,
        certificates=bool(tls.client_ca_file),
        anonymous=access.anonymous,
    )
    context = None
    if tls.certificate_file:
        context = server_context(tls.certificate_file, tls.key_file, tls.client_ca_file)
        if tls.client_ca_file:
            # Who shows none has to give a password or a token.
            context.verify_mode = ssl.CERT_OPTIONAL
    return Readable(known, context)


def _rule(table: AccessRuleTable) -> AccessRule:
    actions = (
        frozenset(Action) if RuleAction.ALL in table.actions else frozenset(Action(each) for each in table.actions)
    )
    return AccessRule(table.permission is Permission.ALLOW, table.topics, actions, table.principal)


class Security:
    """Decides who comes in.

    Args:
        config: The settings.

    Raises:
        ConfigurationError: A file that they name cannot be used.

    Attributes:
        access: Finds out who a peer is.
        quotas: What everybody has.
        audit: The record of administrative acts.
        refused_logins: Those who did not get in, in the same record.
        tls: For connections that come from now on; None without certificates.
    """

    def __init__(self, config: ServerConfig) -> None:
        readable = read(config)
        self.access = Authenticator(readable.known)
        self.quotas = Quotas(
            Quota(
                table.principal,
                table.topics,
                table.connections,
                table.requests_per_s,
                table.bytes_per_s,
                table.stored_bytes,
                table.shards,
                table.producers,
            )
            for table in config.quotas
        )
        self.audit = AuditLog(config.access.audit_file)
        self.refused_logins = RefusedLogins(self.audit)
        self.tls = readable.tls
        self._has_quotas = bool(config.quotas)

    @property
    def everybody(self) -> Principal | None:
        """Who everybody is where nobody is asked who they are, and nothing is bounded; None elsewhere."""
        known = self.access.known
        return None if known.has_credentials or self._has_quotas or not known.rules.allow_everything else EVERYBODY

    def current_tls(self) -> ssl.SSLContext | None:
        """`tls` as it is now, for who asks anew for every connection."""
        return self.tls

    def take_over(self, readable: Readable) -> None:
        """Decide by what was read again from now on. Whether TLS is spoken at all changes with a restart alone."""
        self.access.known = readable.known
        if self.tls is not None and readable.tls is not None:
            self.tls = readable.tls


def check_reload(old: ServerConfig, new: ServerConfig) -> None:
    """Make sure that what is read again does not open to strangers the addresses that are listened on all the same.

    Raises:
        ConfigurationError: It would; whoever changes both has to start the server again.
    """
    for problem in access_problems(old.listen.addresses(), new.tls, new.access, new.quotas):
        raise ConfigurationError(f"{problem}; where it listens, the server changes only at its next start")


def unread_changes(old: ServerConfig, new: ServerConfig) -> list[str]:
    """Names of the sections that changed and hold only after a restart."""
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


def missing_protection(config: ServerConfig) -> str:
    """What an operator should know of a server that others can reach; empty if there is nothing."""
    listen = config.listen
    wide = [
        name
        for name, address in (("tcp", listen.tcp), ("websocket", listen.websocket), ("http", listen.http))
        if not is_loopback(address)
    ]
    if not wide:
        return ""
    if not (config.access.users_file or config.access.tokens_file or config.tls.client_ca_file):
        return f"strangers can do everything: nobody is asked who they are, and listen.{wide[0]} is open to them"
    if not config.tls.certificate_file:
        return f"passwords and data travel in the clear: listen.{wide[0]} has no [tls] certificate_file"
    return ""
