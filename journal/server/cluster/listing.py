"""The list of the servers that share a store, in the log store. It is for people; no decision depends on it."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import structlog
import trio

from journal.engine import Addresses
from journal.engine.shared_log.claims import addresses_of, encode_addresses
from journal.logstore.driver import drive
from journal.logstore.errors import LogStoreError
from journal.logstore.objects import ID_BYTES
from journal.logstore.ownership import Member
from journal.logstore.servers import delist, enlist, list_servers
from journal.logstore.steps import Steps
from journal.logstore.store import LogStore

_LAST_S: Final = 2.0
"""How long a server that ends may try to take itself off the list."""

log: structlog.stdlib.BoundLogger = structlog.get_logger("journal")


@asynccontextmanager
async def listed(store: LogStore, member: Member, addresses: Addresses) -> AsyncIterator[None]:
    """This server is on the list for the length of the block, and no former process at its address is.

    A log store that does not take it is no reason to end: the server is missing on the list, and a warning tells.
    """
    limiter = trio.CapacityLimiter(1)
    try:
        await drive(store, _replace(member, addresses), limiter)
    except LogStoreError as error:
        log.warning("this server is not on the list of the servers of its store", error=str(error))
    try:
        yield
    finally:
        with trio.move_on_after(_LAST_S, shield=True):
            try:
                await drive(store, delist(member.root, member.node_id), limiter)
            except LogStoreError as error:
                log.warning("this server stays on the list of the servers of its store", error=str(error))


def _replace(member: Member, addresses: Addresses) -> Steps[None]:
    for found in (yield from list_servers(member.root, member.store_id)):
        if addresses_of(found).tcp == addresses.tcp:
            yield from delist(member.root, found.node_id)
    yield from enlist(member, secrets.token_bytes(ID_BYTES), encode_addresses(addresses))
