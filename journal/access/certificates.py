"""The TLS settings of a server from certificate files: version 1.2 or newer, with client certificates if configured."""

from __future__ import annotations

import ssl

from journal.settings.values import ConfigurationError


def server_context(certificate_file: str, key_file: str, client_ca_file: str = "") -> ssl.SSLContext:
    """Read the files and create the TLS context.

    Args:
        certificate_file: The server's certificate and those between it and the authority's, PEM.
        key_file: Its private key, PEM, without a passphrase.
        client_ca_file: If it is given, clients must have a certificate that one of these authorities signed.

    Raises:
        ConfigurationError: A file cannot be read or has another content; the message names it.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    files = f"tls.certificate_file = {certificate_file!r} and tls.key_file = {key_file!r}"
    try:
        for path in (certificate_file, key_file):
            # The library's error does not name which of the two is missing.
            with open(path, "rb"):
                pass
        context.load_cert_chain(certificate_file, key_file, password=_no_passphrase)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigurationError(f"{files} are not a certificate and its key: {_told(error)}") from error
    except OSError as error:
        raise ConfigurationError(f"{files}: {error.filename or ''} cannot be read: {error.strerror}") from error
    if client_ca_file:
        try:
            context.load_verify_locations(client_ca_file)
        except ssl.SSLError as error:
            raise ConfigurationError(
                f"tls.client_ca_file = {client_ca_file!r} holds no certificates: {_told(error)}"
            ) from error
        except OSError as error:
            raise ConfigurationError(
                f"tls.client_ca_file = {client_ca_file!r} cannot be read: {error.strerror}"
            ) from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _no_passphrase() -> str:
    # Otherwise the library would ask for it on the terminal.
    raise ValueError("the key has a passphrase; write it without one, in a file that the server alone can read")


def _told(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error)
