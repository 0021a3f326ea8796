"""The name of a peer, from its certificate in the form of the standard library (`ssl.SSLSocket.getpeercert`). Pure."""

from __future__ import annotations

import enum


class CertificateField(enum.StrEnum):
    """The part of a certificate that has the name of its owner."""

    COMMON_NAME = "common_name"
    DNS = "dns"
    EMAIL = "email"
    URI = "uri"

    @property
    def words(self) -> str:
        """The part as a sentence names it."""
        return "common name" if self is CertificateField.COMMON_NAME else f"alternative name ({self.value})"


_KINDS = {CertificateField.DNS: "DNS", CertificateField.EMAIL: "email", CertificateField.URI: "URI"}
"""The kinds of alternative names of a subject, as the standard library calls them."""


def name_in(certificate: object, field: CertificateField = CertificateField.COMMON_NAME) -> str:
    """The name in a verified certificate: the first one in this field, empty if there is none.

    Args:
        certificate: What `getpeercert` returned; None without a certificate.
        field: Where the name is.
    """
    if not isinstance(certificate, dict):
        return ""
    if field is CertificateField.COMMON_NAME:
        names = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    else:
        names = [value for key, value in certificate.get("subjectAltName", ()) if key == _KINDS[field]]
    return next(iter(names), "")
