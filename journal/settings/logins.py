"""The settings of logins, which the server and the MQTT broker have in common: ``[[access.logins]]``."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final
from urllib.parse import urlsplit

import attrs

from journal.net.address import is_loopback_host
from journal.net.certificate_names import CertificateField
from journal.settings.values import File, Kind, OptionalUrl, Text, parse_text, within


class LoginType(enum.StrEnum):
    """The login methods."""

    USERS = "users"
    TOKENS = "tokens"
    CERTIFICATE = "certificate"
    JWT = "jwt"
    HTTP = "http"


class OnError(enum.StrEnum):
    """What happens to a client if the web service that decides about it gives no answer."""

    DENY = "deny"
    IGNORE = "ignore"


def _texts(value: object, what: str) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    texts = tuple(parse_text(each) for each in values)
    if not all(texts):
        raise ValueError(f"names {what}")
    return texts


UserNames = Annotated[
    tuple[str, ...],
    Kind(lambda value: _texts(value, "a user without a name"), "a list of user names, or [] for none"),
]
Audience = Annotated[tuple[str, ...], Kind(lambda value: _texts(value, "an empty audience"), "a list of texts")]


@attrs.frozen
class LoginTable:
    """One login method."""

    type: LoginType
    denied: UserNames = ()
    field: CertificateField = CertificateField.COMMON_NAME
    keys_file: File = ""
    keys_url: OptionalUrl = attrs.field(default="", repr=False)
    refresh_s: int = attrs.field(default=300, metadata=within("seconds", 10, 86_400))
    audience: Audience = ()
    issuer: Text = ""
    user_claim: Text = "sub"
    roles_claim: Text = "journal_roles"
    rules_claim: Text = "journal_rules"
    leeway_s: int = attrs.field(default=30, metadata=within("seconds", 0, 600))
    ca_file: File = ""
    timeout_s: int = attrs.field(default=5, metadata=within("seconds", 1, 60))
    url: OptionalUrl = attrs.field(default="", repr=False)
    token_file: File = ""
    max_in_flight: int = attrs.field(default=16, metadata=within("requests", 1, 1_000))
    cache_s: int = attrs.field(default=60, metadata=within("seconds", 0, 3_600))
    on_error: OnError = OnError.DENY


_OF_TYPES: Final[Mapping[str, tuple[LoginType, ...]]] = {
    "field": (LoginType.CERTIFICATE,),
    **dict.fromkeys(
        (
            "keys_file",
            "keys_url",
            "refresh_s",
            "audience",
            "issuer",
            "user_claim",
            "roles_claim",
            "rules_claim",
            "leeway_s",
        ),
        (LoginType.JWT,),
    ),
    **dict.fromkeys(("ca_file", "timeout_s"), (LoginType.JWT, LoginType.HTTP)),
    **dict.fromkeys(("url", "token_file", "max_in_flight", "cache_s", "on_error"), (LoginType.HTTP,)),
}
"""The types of methods that settings are for; those that are not listed here are for all."""


def login_problems(
    logins: Sequence[LoginTable], files: Mapping[LoginType, tuple[str, str]], *, certificates_alone: bool = False
) -> Iterable[str]:
    """Problems of login methods that are valid one by one.

    Args:
        logins: The tables in their order; without any, the program uses all methods that have a file.
        files: The setting, by name and value, that each method needs, where it has one; methods that the program does
            not have are missing.
        certificates_alone: Whether certificates may be required of clients without a login by them.
    """
    types = [table.type for table in logins]
    for number, table in enumerate(logins, 1):
        place = f"[[access.logins]] number {number}"
        if table.type in types[: number - 1]:
            yield f"{place} is of type {str(table.type)!r} again; leave one of them out"
        if table.type not in files:
            known = ", ".join(repr(str(each)) for each in files)
            yield f"{place} is of type {str(table.type)!r}, which this program does not have; choose one of {known}"
        elif not files[table.type][1] and files[table.type][0]:
            yield f"{place} is of type {str(table.type)!r} and needs {files[table.type][0]}; set it"
        for name, owners in _OF_TYPES.items():
            if table.type not in owners and getattr(table, name) != getattr(attrs.fields(LoginTable), name).default:
                yield f"{place} has {name}, which is for {' and '.join(map(repr, map(str, owners)))}; leave it out"
        if table.type is LoginType.JWT:
            yield from _problems_of_jwt(table, place)
        if table.type is LoginType.HTTP and not table.url:
            yield f"{place} needs url, the address of the web service"
        if table.ca_file and not (table.keys_url or table.url).startswith("https:"):
            yield f"{place} has ca_file, but its web service is not https"
    if logins:
        for kind, (name, value) in files.items():
            if value and kind not in types and not (certificates_alone and kind is LoginType.CERTIFICATE):
                yield f"{name} is set, but no [[access.logins]] is of type {str(kind)!r}; add one, or unset {name}"


def _problems_of_jwt(table: LoginTable, place: str) -> Iterable[str]:
    if bool(table.keys_file) == bool(table.keys_url):
        yield f"{place} needs either keys_file or keys_url, where the keys of the issuer are"
    if not table.audience:
        yield f"{place} needs audience: without it tokens for other services would be accepted"
    if not table.user_claim:
        yield f"{place} has no user_claim; name the claim with the user"


def service_words(logins: Sequence[LoginTable], kind: LoginType) -> str:
    """Who is accepted by JSON Web Tokens or by a web service, as a sentence says it."""
    table = next(table for table in logins if table.type is kind)
    if kind is LoginType.HTTP:
        return f"those whom {table.url.partition('?')[0]} allows"
    keys = table.keys_file or table.keys_url.partition("?")[0]
    issuer = f" of {table.issuer}" if table.issuer else ""
    return f"JSON Web Tokens{issuer} for {' or '.join(table.audience)} with keys of {keys}"


def may_give_rights(logins: Sequence[LoginTable]) -> bool:
    """Whether a login may give rights to a client, beside the rules of the settings."""
    return any(table.type in (LoginType.JWT, LoginType.HTTP) for table in logins)


def clear_words(logins: Sequence[LoginTable]) -> list[str]:
    """A sentence about web services that are asked in clear text, if there are any."""
    services = clear_services(logins)
    return [f"Logins go in clear text to {' and '.join(services)}: use https."] if services else []


def clear_services(logins: Sequence[LoginTable]) -> list[str]:
    """Web services on other machines that are asked in clear text, without their queries."""
    services = []
    for url in (table.url or table.keys_url for table in logins):
        parts = urlsplit(url)
        if parts.scheme == "http" and not is_loopback_host(parts.hostname or ""):
            services.append(url.partition("?")[0])
    return services
