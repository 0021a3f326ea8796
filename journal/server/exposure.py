"""Who can reach a server with some settings, what they may do, and what goes in clear text: one paragraph. Pure."""

from __future__ import annotations

from typing import Final

from journal.access.authenticator import Known
from journal.settings.access import AccessRuleTable, RuleAction
from journal.settings.logins import LoginType, clear_words, may_give_rights, service_words
from journal.settings.server import ServerConfig
from journal.settings.values import Permission
from journal.telemetry.exposure import Exposure, reachable, remote_addresses, strangers_in_rules
from shards.quantities import counted

_SHOWN_RULES: Final = 10
_SHOWN_NAMES: Final = 6


def exposure_of(config: ServerConfig, known: Known) -> Exposure:
    """What is open to whom with these settings.

    It is questionable if other machines can do everything without a login or send passwords in clear text, if
    clients can log in and do nothing, or if rules name clients that cannot log in.

    Args:
        config: The settings.
        known: The users, tokens and rules that they name.
    """
    addresses = {name: address for name, address in config.listen.addresses().items() if address}
    remote = remote_addresses(addresses)
    in_clear = bool(remote) and not config.tls.certificate_file
    sentences = [reachable(addresses), _admitted(config, known), _allowed(config, known)]
    if known.has_credentials and config.listen.http:
        sentences.append("/livez, the status of /readyz and the files of the console need no login.")
    if in_clear:
        what = "Passwords and data" if known.has_credentials else "Data"
        sentences.append(f"{what} go in clear text at {' and '.join(remote)}: set [tls], or listen on 127.0.0.1.")
    access = config.access
    named = [*(rule.principal for rule in access.rules), *(name for role in access.roles for name in role.principals)]
    strangers = known.strangers_among(named)
    if strangers:
        sentences.append(strangers_in_rules(strangers))
    sentences += (in_clear_elsewhere := clear_words(config.access.logins))
    gives_rights = may_give_rights(config.access.logins)
    can_do_nothing = not known.rules.allow_by_default and not config.access.rules and not gives_rights
    is_open = bool(remote) and not known.has_credentials
    sends_in_clear = in_clear or bool(in_clear_elsewhere)
    is_questionable = is_open or sends_in_clear or can_do_nothing or bool(strangers)
    return Exposure(" ".join(sentences), bool(remote), is_questionable)


def _admitted(config: ServerConfig, known: Known) -> str:
    if not known.has_credentials:
        return "They need no login."
    ways = [_way(kind, config, known) for kind in _kinds(known)]
    if known.anonymous:
        ways.append("clients without credentials")
    return f"Accepted are {', '.join(ways)}."


def _kinds(known: Known) -> list[str]:
    kinds = {step.kind for step in known.steps}
    order = list(LoginType) if known.order is None else [step.kind for step in known.order]
    return [str(kind) for kind in order if kind in kinds]


def _way(kind: str, config: ServerConfig, known: Known) -> str:
    match kind:
        case LoginType.USERS:
            return f"{counted(len(known.users or ()), 'user')} of {config.access.users_file}"
        case LoginType.TOKENS:
            return f"{counted(len(known.tokens or ()), 'token')} of {config.access.tokens_file}"
        case LoginType.JWT | LoginType.HTTP:
            return service_words(config.access.logins, LoginType(kind))
        case _:
            return f"certificates of {config.tls.client_ca_file} by their {known.certificate_field.words}"


def _allowed(config: ServerConfig, known: Known) -> str:
    rules = config.access.rules
    if not rules:
        if known.rules.allow_by_default:
            return "They may do everything."
        if may_give_rights(config.access.logins):
            return "They may do what their logins allow."
        return "They may do nothing, because no rule allows anything: add [[access.rules]]."
    allowing = [rule for rule in rules if rule.permission is Permission.ALLOW]
    grants = [_grant(rule) for rule in allowing[:_SHOWN_RULES]]
    if len(allowing) > _SHOWN_RULES:
        grants.append(counted(len(allowing) - _SHOWN_RULES, "other rule"))
    if denying_count := len(rules) - len(allowing):
        grants.append(f"{counted(denying_count, 'rule')} to deny")
    return f"What no rule allows is denied. The rules are: {'; '.join(grants)}."


def _grant(rule: AccessRuleTable) -> str:
    subject = f"role {rule.role!r}" if rule.role else repr(rule.principal) if rule.principal else "every client"
    actions = "everything" if RuleAction.ALL in rule.actions else ", ".join(rule.actions)
    names = [
        *rule.topics,
        *(f"group {name}" for name in rule.groups),
        *(f"cursor {name}" for name in rule.cursors),
    ]
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return f"{subject} {actions} on {', '.join(names[:_SHOWN_NAMES])}{more}"
