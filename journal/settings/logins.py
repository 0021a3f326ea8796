"""The settings of logins, which the server and the MQTT broker have in common: ``[[access.logins]]``."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final

import attrs

from journal.net.certificate_names import CertificateField
from journal.settings.values import Kind, parse_text


class LoginType(enum.StrEnum):
    """The login methods."""

    USERS = "users"
    TOKENS = "tokens"
    CERTIFICATE = "certificate"


def _parse_users(value: object) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    names = tuple(parse_text(each) for each in values)
    if not all(names):
        raise ValueError("names a user without a name")
    return names


UserNames = Annotated[tuple[str, ...], Kind(_parse_users, "a list of user names, or [] for none")]


@attrs.frozen
class LoginTable:
    """One login method."""

    type: LoginType
    denied: UserNames = ()
    field: CertificateField = CertificateField.COMMON_NAME


_OF_TYPE: Final[Mapping[str, LoginType]] = {"field": LoginType.CERTIFICATE}
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
        for name, owner in _OF_TYPE.items():
            if table.type is not owner and getattr(table, name) != getattr(attrs.fields(LoginTable), name).default:
                yield f"{place} has {name}, which is for the type {str(owner)!r} alone; leave it out"
    if logins:
        for kind, (name, value) in files.items():
            if value and kind not in types and not (certificates_alone and kind is LoginType.CERTIFICATE):
                yield f"{name} is set, but no [[access.logins]] is of type {str(kind)!r}; add one, or unset {name}"
