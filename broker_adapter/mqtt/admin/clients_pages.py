"""`/api/v1/clients` and `/api/v1/client` of a broker: `journal-broker clients` over HTTP."""

from __future__ import annotations

from contextlib import aclosing
from http import HTTPStatus
from typing import Annotated, Final

import msgspec

from broker_adapter.mqtt.admin.administration import (
    Administration,
    Asker,
    json_reply,
    query_of,
    require_wait,
)
from broker_adapter.mqtt.admin.openapi import CLIENT_PATH, CLIENTS_PATH
from broker_adapter.mqtt.admin.problems import ClientNotFoundError
from broker_adapter.mqtt.clients.kick import Kicked, kick
from broker_adapter.mqtt.clients.listing import clients_of
from journal.access.rights import Operation
from journal.telemetry.http_pages import Page, Reply, Request, Resource

MAX_PAGE: Final = 1000
_DONE: Final = (Kicked.DISCONNECTED, Kicked.ENDED)

ClientId = Annotated[str, msgspec.Meta(min_length=1)]


class _PageQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One page of clients."""

    after: str = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_PAGE)] = 100


class _KickQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A client to disconnect."""

    client_id: ClientId
    end_session: bool = False
    wait: float = 10.0


def clients_pages(administration: Administration) -> dict[str, Page | Resource]:
    """The pages, by path."""

    async def list_clients(request: Request, _asker: Asker) -> Reply:
        query = query_of(request.query, _PageQuery)
        found = []
        async with aclosing(clients_of(administration.ready.adapter, after=query.after)) as clients:
            async for client in clients:
                found.append(client.plain)
                if len(found) > query.limit:
                    break
        return json_reply({"clients": found[: query.limit], "more": len(found) > query.limit})

    async def disconnect(request: Request, asker: Asker) -> Reply:
        query = query_of(request.query, _KickQuery)
        on = administration.ready
        result = await kick(
            on.adapter,
            query.client_id,
            by=asker.at(on.broker_id),
            end_session=query.end_session,
            timeout_s=require_wait(query.wait),
        )
        act = "end_session" if query.end_session else "kick"
        administration.audit.record(
            act,
            by=asker.name,
            peer=asker.peer,
            client=query.client_id,
            target=result.broker,
            outcome="ok" if result.outcome in _DONE else result.outcome.name.lower(),
        )
        if result.outcome is Kicked.UNKNOWN:
            raise ClientNotFoundError(f"no client {query.client_id!a} has a session")
        body = {"client_id": query.client_id, "outcome": result.outcome, "broker": result.broker or None}
        return json_reply(body, HTTPStatus.ACCEPTED if result.outcome is Kicked.UNANSWERED else HTTPStatus.OK)

    return {
        CLIENTS_PATH: Resource({"GET": administration.page(Operation.LIST_MQTT_CLIENTS, list_clients)}, 0),
        CLIENT_PATH: Resource({"DELETE": administration.page(Operation.DISCONNECT_MQTT_CLIENT, disconnect)}, 0),
    }
