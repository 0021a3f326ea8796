"""What a log store says about the servers that share it. Nothing is changed."""

from __future__ import annotations

import attrs
import trio

from journal.engine.shared_log.claims import Claim, claim_of
from journal.logstore.driver import drive
from journal.logstore.errors import ForeignStoreError
from journal.logstore.keys import identity_key
from journal.logstore.objects import Kind, decode_object
from journal.logstore.ownership import Member, newest_claim, read_claim
from journal.logstore.settling import settle_get
from journal.logstore.steps import Steps
from journal.logstore.store import LogStore
from journal.server.cluster.liveness import Life, ask

_ATTEMPTS = 5


@attrs.frozen(slots=True)
class ClusterStatus:
    """A store and its owner.

    Attributes:
        store_id: The store, 32 hexadecimal digits; empty if there is no store yet.
        epoch: The newest epoch; it grows with each takeover. 0 if no server has owned the store.
        owner: ``HOST:PORT`` of the server that claimed it.
        life: Whether that server is alive, as seen from here; None without an owner.
    """

    store_id: str = ""
    epoch: int = 0
    owner: str = ""
    life: Life | None = None


async def read_status(store: LogStore, root: str) -> ClusterStatus:
    """Read the newest claim of a store, and ask its server whether it is alive.

    Raises:
        LogStoreError: The store cannot be read.
    """
    limiter = trio.CapacityLimiter(1)
    store_id = await drive(store, _store_id(root), limiter)
    if not store_id:
        return ClusterStatus()
    claim = await drive(store, _claim(Member(root, store_id, bytes(16))), limiter)
    if not claim.epoch:
        return ClusterStatus(store_id.hex())
    addresses = claim.addresses
    life = Life.SILENT
    if addresses.http:
        life = await ask(addresses.http, claim.server_id, claim.epoch, encrypted=addresses.encrypted)
    return ClusterStatus(store_id.hex(), claim.epoch, addresses.tcp, life)


def _store_id(root: str) -> Steps[bytes]:
    key = identity_key(root)
    data = yield from settle_get(key, _ATTEMPTS)
    if data is None:
        return b""
    found = decode_object(key, data)
    if found.kind is not Kind.IDENTITY:
        raise ForeignStoreError(f"{key} holds a {found.kind.name.lower()}, not the identity of a store")
    return found.store_id


def _claim(member: Member) -> Steps[Claim]:
    epoch = yield from newest_claim(member.root)
    found = None
    if epoch:
        found = yield from read_claim(member, epoch)
    return Claim() if found is None else claim_of(found)
