"""From the settings of logins to the parts of `journal.access`, for the server and the MQTT broker."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from journal.access.http_login import HttpLoginSettings
from journal.access.jwt_login import JwtSettings
from journal.access.logins import LoginStep
from journal.net.certificate_names import CertificateField
from journal.settings.logins import LoginTable, LoginType
from journal.settings.values import ConfigurationError
from shards.extras import install_command

if TYPE_CHECKING:
    from journal.access.json_web_keys import KeySet

_EXTRA: Final = "logins"
_MAX_TOKEN_CHARACTERS: Final = 16 * 1024
_MAX_KEYS_FILE_BYTES: Final = 1 << 20


def order_of(logins: Sequence[LoginTable]) -> tuple[LoginStep, ...] | None:
    """The login methods in their order; None if the settings name none."""
    return tuple(LoginStep(table.type.value, frozenset(table.denied)) for table in logins) or None


def certificate_field_of(logins: Sequence[LoginTable]) -> CertificateField:
    """The part of a client certificate that has the name of the user."""
    fields = (table.field for table in logins if table.type is LoginType.CERTIFICATE)
    return next(fields, CertificateField.COMMON_NAME)


def jwt_of(logins: Sequence[LoginTable]) -> JwtSettings | None:
    """How JSON Web Tokens are checked; None if the settings do not have them. Reads the file of keys.

    Raises:
        ConfigurationError: A file or a package is missing or cannot be used.
    """
    table = next((table for table in logins if table.type is LoginType.JWT), None)
    if table is None:
        return None
    try:
        from journal.access.key_source import KeyAddress
    except ImportError as error:
        raise ConfigurationError(f"logins of type 'jwt' need a package: {install_command(_EXTRA)}") from error
    has_file = bool(table.keys_file)
    return JwtSettings(
        table.audience,
        table.issuer,
        table.user_claim,
        table.roles_claim,
        table.rules_claim,
        table.leeway_s,
        keys=read_keys(table.keys_file) if has_file else None,
        address=None if has_file else KeyAddress(table.keys_url, table.ca_file, table.timeout_s, table.refresh_s),
        tls=authorities_of(table.keys_url, table.ca_file),
    )


def http_login_of(logins: Sequence[LoginTable]) -> HttpLoginSettings | None:
    """How a web service is asked about clients; None if the settings have none. Reads the file of its token.

    Raises:
        ConfigurationError: A file or a package is missing or cannot be used.
    """
    table = next((table for table in logins if table.type is LoginType.HTTP), None)
    if table is None:
        return None
    try:
        import httpx

        httpx.URL(table.url)
    except ImportError as error:
        raise ConfigurationError(f"logins of type 'http' need a package: {install_command(_EXTRA)}") from error
    except httpx.InvalidURL as error:
        raise ConfigurationError(f"url of the login 'http' is not a URL of a web service: {error}") from error
    return HttpLoginSettings(
        table.url,
        _read_token(table.token_file) if table.token_file else "",
        table.ca_file,
        table.timeout_s,
        table.max_in_flight,
        table.cache_s,
        table.on_error,
        tls=authorities_of(table.url, table.ca_file),
    )


def _read_token(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            token = file.read(_MAX_TOKEN_CHARACTERS).strip()
    except OSError as error:
        raise ConfigurationError(f"token_file = {path!r} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        # The error's own text would show bytes of the secret.
        raise ConfigurationError(f"token_file = {path!r} is not ASCII text") from None
    if not token or not token.isprintable():
        raise ConfigurationError(f"token_file = {path!r} has no token of printable characters in one line")
    return token


def read_keys(path: str) -> KeySet:
    """Read a file with a JSON Web Key Set.

    Raises:
        ConfigurationError: It cannot be read or used. The message repeats nothing of a key.
    """
    from journal.access.json_web_keys import KeySetError, parse_key_set

    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_KEYS_FILE_BYTES)
        return parse_key_set(data, takes_secrets=True)
    except OSError as error:
        raise ConfigurationError(f"keys_file = {path!r} cannot be read: {error.strerror}") from error
    except KeySetError as error:
        raise ConfigurationError(f"keys_file = {path!r} {error}") from error


def authorities_of(url: str, ca_file: str) -> ssl.SSLContext | bool:
    """The authorities that a web service is checked by.

    Raises:
        ConfigurationError: The file cannot be used.
    """
    if not url.startswith("https:"):
        # Avoids reading a few hundred certificates that are not needed.
        return False
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except ssl.SSLError as error:
        raise ConfigurationError(f"ca_file = {ca_file!r} holds no certificates: {error.reason}") from error
    except OSError as error:
        raise ConfigurationError(f"ca_file = {ca_file!r} cannot be read: {error.strerror}") from error
