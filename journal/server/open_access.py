"""Who may come in while nothing is configured: anybody. The listeners are bound to loopback then."""

from __future__ import annotations

from collections.abc import Mapping

from journal.access.principal import EVERYBODY, Principal


class AllowAll:
    """Lets everybody do everything."""

    async def authenticate(
        self, credentials: Mapping[str, str] | None, peer: str, certificate_name: str = ""
    ) -> Principal:
        return EVERYBODY
