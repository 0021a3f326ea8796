"""What a log store says about the servers that share it. Nothing is changed."""

from __future__ import annotations

import attrs
import trio

from journal.engine.shared_log.claims import Claim, claim_of
from journal.logstore.checkpoints import checkpoint_after
from journal.logstore.driver import drive
from journal.logstore.errors import ForeignStoreError
from journal.logstore.keys import BEGINNING, Position, before_slot, identity_key
from journal.logstore.objects import Kind, decode_object
from journal.logstore.ownership import Member, newest_claim, read_claim
from journal.logstore.settling import settle_get, settle_list
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
        checkpoint_lsn: Everything up to this lsn is in the newest checkpoint; 0 if there is none.
        slots: Number of slots after it, which a server with an empty directory reads.
    """

    store_id: str = ""
    epoch: int = 0
    owner: str = ""
    life: Life | None = None
    checkpoint_lsn: int = 0
    slots: int = 0


async def read_status(store: LogStore, root: str) -> ClusterStatus:
    """Read the newest claim of a store, and ask its server whether it is alive.

    Raises:
        LogStoreError: The store cannot be read.
    """
    limiter = trio.CapacityLimiter(1)
    store_id = await drive(store, _store_id(root), limiter)
    if not store_id:
        return ClusterStatus()
    member = Member(root, store_id, bytes(16))
    claim = await drive(store, _claim(member), limiter)
    if not claim.epoch:
        return ClusterStatus(store_id.hex())
    lsn, slots = await drive(store, _to_read(member, claim.epoch), limiter)
    addresses = claim.addresses
    life = Life.SILENT
    if addresses.http:
        life = await ask(addresses.http, claim.server_id, claim.epoch, encrypted=addresses.encrypted)
    return ClusterStatus(store_id.hex(), claim.epoch, addresses.tcp, life, lsn, slots)


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


def _to_read(member: Member, newest_epoch: int) -> Steps[tuple[int, int]]:
    """The newest lsn in the newest checkpoint, and the number of slots after it, fences included."""
    checkpoint = yield from checkpoint_after(member.root, member.store_id, None)
    start = BEGINNING if checkpoint is None else checkpoint.position
    slots = 0
    for epoch in range(start.epoch, newest_epoch + 1):
        first = start if epoch == start.epoch else Position(epoch, 0)
        slots += len((yield from settle_list(before_slot(member.root, first), _ATTEMPTS)))
    return 0 if checkpoint is None else checkpoint.next_lsn - 1, slots
