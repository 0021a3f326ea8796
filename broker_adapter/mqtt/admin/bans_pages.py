"""`/api/v1/bans` and `/api/v1/ban` of a broker: `journal-broker ban` over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Annotated, Final

import msgspec

from broker_adapter.errors import StorageError
from broker_adapter.mqtt.access.bans import MAX_REASON_CHARACTERS, Ban, BanKind, checked_name
from broker_adapter.mqtt.admin.administration import (
    Administration,
    Asker,
    AtWork,
    body_of,
    json_reply,
    query_of,
    require_wait,
)
from broker_adapter.mqtt.admin.openapi import BAN_PATH, BANS_PATH
from broker_adapter.mqtt.bans.store import add_ban, read_bans, remove_ban
from broker_adapter.mqtt.bans.stored import BANS_FOLLOWERS, shown_ban
from broker_adapter.mqtt.rules.followers import wait_followed
from broker_adapter.mqtt.rules.report import brokers
from journal.access.rights import Operation
from journal.telemetry.http_pages import Page, Reply, Request, Resource

MAX_BODY_BYTES: Final = 16 * 1024
MAX_PAGE: Final = 1000
LONGEST_S: Final = 100 * 366 * 86_400
"""Longest ban with an end, in seconds: a hundred years."""

_SECOND_US: Final = 1_000_000


class _PageQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One page of bans."""

    after: str = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_PAGE)] = 100


class _WaitQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long to wait for brokers."""

    wait: float = 10.0


class _RemovalQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A ban to remove."""

    kind: BanKind
    name: str
    wait: float = 10.0


class _NewBan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A ban to add."""

    kind: BanKind
    name: str
    expires_in_s: Annotated[int, msgspec.Meta(ge=1, le=LONGEST_S)] | None = None
    reason: Annotated[str, msgspec.Meta(max_length=MAX_REASON_CHARACTERS)] = ""


def bans_pages(administration: Administration, max_bans: int) -> dict[str, Page | Resource]:
    """The pages, by path.

    Args:
        administration: Authenticates the askers.
        max_bans: How many bans there may be.
    """
    pages = _BansPages(administration, max_bans)
    return {
        BANS_PATH: Resource(
            {
                "GET": administration.page(Operation.LIST_BANS, pages.list_bans),
                "POST": administration.page(Operation.CHANGE_BANS, pages.add),
            },
            MAX_BODY_BYTES,
        ),
        BAN_PATH: Resource({"DELETE": administration.page(Operation.CHANGE_BANS, pages.remove)}, 0),
    }


class _BansPages:
    def __init__(self, administration: Administration, max_bans: int) -> None:
        self._administration = administration
        self._max_bans = max_bans

    async def list_bans(self, request: Request, _asker: Asker) -> Reply:
        query = query_of(request.query, _PageQuery)
        stored = await read_bans(self._administration.ready.adapter)
        named = sorted((f"{ban.kind}:{ban.name}", ban) for ban in stored.lasting(self._administration.clock.now_us()))
        found = [shown_ban(ban) for name, ban in named if name > query.after]
        return json_reply({"version": stored.version, "bans": found[: query.limit], "more": len(found) > query.limit})

    async def add(self, request: Request, asker: Asker) -> Reply:
        wait_s = require_wait(query_of(request.query, _WaitQuery).wait)
        asked = body_of(request, _NewBan)
        now_us = self._administration.clock.now_us()
        name = checked_name(asked.kind, asked.name)
        until_us = 0 if asked.expires_in_s is None else now_us + asked.expires_in_s * _SECOND_US

        async def change(on: AtWork) -> int:
            ban = Ban(asked.kind, name, until_us, asked.reason, now_us, asker.at(on.broker_id))
            return await add_ban(on.adapter, ban, now_us=now_us, max_bans=self._max_bans, within_s=wait_s)

        return await self._change("ban", asker, asked.kind, name, asked.reason, wait_s, change)

    async def remove(self, request: Request, asker: Asker) -> Reply:
        query = query_of(request.query, _RemovalQuery)
        wait_s = require_wait(query.wait)
        now_us = self._administration.clock.now_us()
        name = checked_name(query.kind, query.name)

        async def change(on: AtWork) -> int:
            by = asker.at(on.broker_id)
            return await remove_ban(on.adapter, query.kind, name, by=by, now_us=now_us, within_s=wait_s)

        return await self._change("unban", asker, query.kind, name, "", wait_s, change)

    async def _change(
        self,
        act: str,
        asker: Asker,
        kind: BanKind,
        name: str,
        reason: str,
        wait_s: float,
        change: Callable[[AtWork], Awaitable[int]],
    ) -> Reply:
        on = self._administration.ready
        outcome = "internal_error"
        try:
            version = await change(on)
            outcome = "ok"
        except StorageError as error:
            outcome = error.code
            raise
        finally:
            self._administration.audit.record(
                act, by=asker.name, peer=asker.peer, target=f"{kind} {name}", reason=reason, outcome=outcome
            )
        behind = await wait_followed(on.adapter, version, timeout_s=wait_s, prefix=BANS_FOLLOWERS)
        body = {"version": version, "kind": kind, "name": name, "behind": brokers(behind)}
        return json_reply(body, HTTPStatus.ACCEPTED if behind else HTTPStatus.OK)
