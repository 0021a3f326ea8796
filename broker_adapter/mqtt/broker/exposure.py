"""Who can reach a broker with some settings, what they may do, and what goes in clear text: one paragraph. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from broker_adapter.mqtt.config import AccessSection, BrokerConfig, DefaultPermission, has_logins
from journal.access.login_methods import Credentials
from journal.access.login_settings import certificate_field_of
from journal.settings.access import is_loopback
from journal.settings.logins import LoginType, clear_words, may_give_rights, service_words
from journal.telemetry.exposure import Exposure, reachable, remote_addresses, strangers_in_rules
from shards.quantities import counted

_CLEAR: Final = ("mqtt", "websocket")
_ENCRYPTED: Final = ("mqtts", "websockets")


def allows_by_default(config: BrokerConfig) -> bool:
    """Whether a publish or a subscription is allowed if no rule decides about it.

    Unless it is configured, that is so only without users and without rules.
    """
    access = config.access
    if access.default is DefaultPermission.AUTO:
        return not (has_logins(access) or access.rules)
    return access.default is DefaultPermission.ALLOW


def strangers_of(config: BrokerConfig, credentials: Credentials) -> list[str]:
    """The users that rules or roles name, and as which no client can log in."""
    access = config.access
    return credentials.strangers_among(
        [*(rule.user for rule in access.rules), *(name for role in access.roles for name in role.users)]
    )


def exposure_of(config: BrokerConfig, user_count: int, strangers: Sequence[str] = ()) -> Exposure:
    """What is open to whom with these settings.

    It is questionable if passwords may go in clear text, all may do everything, clients can get the rights of others by
    their identifiers, no client can do anything, or rules name users who cannot log in.

    Args:
        config: The settings.
        user_count: Number of users in the password file.
        strangers: See `strangers_of`.
    """
    listen, access = config.listen, config.access
    addresses = {name: getattr(listen, name) for name in (*_CLEAR, *_ENCRYPTED) if getattr(listen, name)}
    remote = remote_addresses(addresses)
    in_clear = [name for name in _CLEAR if name in remote]
    allows = allows_by_default(config)
    gives_rights = may_give_rights(access.logins)
    can_do_nothing = not allows and not access.rules and not gives_rights
    sentences = [reachable(addresses), _admitted(config, user_count)]
    if can_do_nothing:
        sentences.append(
            "They may neither publish nor subscribe, because users are configured and no rule allows anything: add "
            '[[access.rules]], or set access.default = "allow".'
        )
    elif access.rules:
        count = len(access.rules)
        other = "allowed" if allows else "denied"
        rules = "1 rule does" if count == 1 else f"{count} rules do"
        sentences.append(f"What they may publish and subscribe to is {other} where {rules} not decide.")
    elif allows:
        sentences.append("They may publish and subscribe to everything.")
    else:
        sentences.append("They may publish and subscribe to what their logins allow.")
    if strangers:
        sentences.append(strangers_in_rules(strangers))
    sends_secrets = bool(user_count) or gives_rights
    if in_clear:
        what = "Passwords and messages" if sends_secrets else "Messages"
        sentences.append(
            f"{what} go in clear text at {' and '.join(in_clear)}: listen with mqtts or websockets instead, or on "
            "127.0.0.1."
        )
    trusts_identifiers = not access.client_ids and any("%c" in each for rule in access.rules for each in rule.topics)
    if trusts_identifiers:
        sentences.append(
            'Rules give rights to client identifiers ("%c"), and a client may send any identifier: bind them to users '
            "with access.client_ids."
        )
    if listen.http and not is_loopback(listen.http) and (access.anonymous or not config.tls.certificate_file):
        of_all = "Metrics at http are open to everyone." if access.anonymous else "Passwords go in clear text at http."
        sentences.append(of_all)
    sentences += (in_clear_elsewhere := clear_words(access.logins))
    is_open = bool(remote) and access.anonymous and allows and not access.rules
    sends_in_clear = (bool(in_clear) and sends_secrets) or bool(in_clear_elsewhere)
    return Exposure(
        " ".join(sentences),
        is_remote=bool(remote),
        is_questionable=sends_in_clear or is_open or can_do_nothing or trusts_identifiers or bool(strangers),
    )


def _admitted(config: BrokerConfig, user_count: int) -> str:
    access = config.access
    if access.anonymous and not has_logins(access):
        return "Clients need no password."
    ways = [_way(kind, config, user_count) for kind in kinds_of(access)]
    if access.anonymous:
        return f"Anonymous clients and {', '.join(ways)} are accepted."
    certificate = ", and need a certificate at TLS listeners" if config.tls.client_ca_file else ""
    return f"Accepted are {', '.join(ways)}{certificate}." if ways else "No client is accepted."


def kinds_of(access: AccessSection) -> tuple[LoginType, ...]:
    """The login methods in their order."""
    return tuple(table.type for table in access.logins) or ((LoginType.USERS,) if access.users_file else ())


def _way(kind: LoginType, config: BrokerConfig, user_count: int) -> str:
    match kind:
        case LoginType.USERS:
            return f"{counted(user_count, 'user')} of {config.access.users_file}"
        case LoginType.JWT | LoginType.HTTP:
            return service_words(config.access.logins, kind)
        case _:
            field = certificate_field_of(config.access.logins)
            return f"certificates of {config.tls.client_ca_file} by their {field.words}"
