"""The pages `/livez`, `/readyz` and `/metrics` of a broker, and access to them."""

from __future__ import annotations

from typing import Final

from broker_adapter.mqtt.access.users import AccessControl
from broker_adapter.mqtt.telemetry.health import Health
from broker_adapter.mqtt.telemetry.metrics import broker_metrics
from journal.telemetry.exposition import CONTENT_TYPE, page_of
from journal.telemetry.http_pages import Page, Reply, Request, health_reply

_CHALLENGE: Final = 'Basic realm="journal-broker", charset="UTF-8"'


def broker_pages(health: Health, max_connections: int, access: AccessControl | None) -> dict[str, Page]:
    """The pages, by path.

    Args:
        health: Health of the broker.
        max_connections: The configured limit of connections.
        access: Users who may connect may see metrics; None: no password is needed. Health needs no password: it has no
            data about clients, and programs that check it have no passwords.
    """

    async def livez(_request: Request) -> Reply:
        return Reply(b"ok\n")

    async def readyz(_request: Request) -> Reply:
        return health_reply(health.why_not_ready())

    async def metrics(request: Request) -> Reply:
        if access is not None and not await _may_see(access, request):
            return Reply(b"name a user of access.users_file and its password\n", 401, challenge=_CHALLENGE)
        return Reply(page_of(await broker_metrics(health, max_connections)), content_type=CONTENT_TYPE)

    return {"/livez": livez, "/readyz": readyz, "/metrics": metrics}


async def _may_see(access: AccessControl, request: Request) -> bool:
    user, password = request.basic_credentials
    return await access.authenticate("", user, password, f"{request.host}:0") is not None
