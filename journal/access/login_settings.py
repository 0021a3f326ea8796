"""From the settings of logins to the parts of `journal.access`, for the server and the MQTT broker."""

from __future__ import annotations

from collections.abc import Sequence

from journal.access.logins import LoginStep
from journal.net.certificate_names import CertificateField
from journal.settings.logins import LoginTable, LoginType


def order_of(logins: Sequence[LoginTable]) -> tuple[LoginStep, ...] | None:
    """The login methods in their order; None if the settings name none."""
    return tuple(LoginStep(table.type.value, frozenset(table.denied)) for table in logins) or None


def certificate_field_of(logins: Sequence[LoginTable]) -> CertificateField:
    """The part of a client certificate that has the name of the user."""
    fields = (table.field for table in logins if table.type is LoginType.CERTIFICATE)
    return next(fields, CertificateField.COMMON_NAME)
