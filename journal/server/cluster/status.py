"""What a log store says about the servers that share it. Nothing is changed."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import trio

from journal.engine.shared_log.claims import Addresses, Claim, addresses_of, claim_of
from journal.logstore.checkpoints import checkpoint_after
from journal.logstore.driver import drive
from journal.logstore.errors import ForeignStoreError
from journal.logstore.keys import BEGINNING, Position, before_slot, identity_key
from journal.logstore.ownership import Member, newest_claim, read_claim
from journal.logstore.probe import Holds, read_identity, told_of
from journal.logstore.servers import list_servers
from journal.logstore.settling import settle_list
from journal.logstore.steps import Steps
from journal.logstore.store import LogStore
from journal.server.cluster.liveness import Life, Seen, ask

_ATTEMPTS = 5
_MOST_ASKED_AT_ONCE = 100


@attrs.frozen(slots=True)
class ServerStatus:
    """A server of a store.

    Attributes:
        address: ``HOST:PORT`` of the native protocol.
        is_owner: Whether it owns the store.
        life: Whether it is alive, as seen from here.
        lsn: The newest lsn that it has of the log; None if it did not say.
        lag: How many entries of the log the owner has and it has not; None if that is not known.
    """

    address: str
    is_owner: bool
    life: Life
    lsn: int | None
    lag: int | None


@attrs.frozen(slots=True)
class ClusterStatus:
    """A store, its owner and its servers.

    Attributes:
        store_id: The store, 32 hexadecimal digits; empty if there is no store yet.
        epoch: The newest epoch; it grows with each takeover. 0 if no server has owned the store.
        owner: ``HOST:PORT`` of the server that claimed it.
        life: Whether that server is alive, as seen from here; None without an owner.
        checkpoint_lsn: Everything up to this lsn is in the newest checkpoint; 0 if there is none.
        slots: Number of slots after it, which a server with an empty directory reads.
        servers: The servers, by address. One that was killed is there until a server with its address starts.
    """

    store_id: str = ""
    epoch: int = 0
    owner: str = ""
    life: Life | None = None
    checkpoint_lsn: int = 0
    slots: int = 0
    servers: tuple[ServerStatus, ...] = ()


async def read_status(store: LogStore, root: str) -> ClusterStatus:
    """Read the newest claim and the list of servers of a store, and ask all servers whether they are alive.

    Raises:
        LogStoreError: The store cannot be read.
    """
    limiter = trio.CapacityLimiter(1)
    identity = await drive(store, read_identity(root), limiter)
    if identity is None:
        return ClusterStatus()
    if identity.body == Holds.FILES.value:
        raise ForeignStoreError(
            f"{identity_key(root)} is the identity of {told_of(identity)}: give the place of the log"
        )
    store_id = identity.store_id
    member = Member(root, store_id, bytes(16))
    claim = await drive(store, _claim(member), limiter)
    listed = await drive(store, list_servers(root, store_id), limiter)
    servers = {found.node_id.hex(): addresses_of(found) for found in listed}
    if claim.epoch:
        servers[claim.server_id] = claim.addresses
    seen = await _ask_all(servers, claim)
    owner = seen.get(claim.server_id, Seen(Life.SILENT))
    lsn, slots = await drive(store, _to_read(member, claim.epoch), limiter) if claim.epoch else (0, 0)
    return ClusterStatus(
        store_id.hex(),
        claim.epoch,
        claim.addresses.tcp,
        owner.life if claim.epoch else None,
        lsn,
        slots,
        tuple(
            sorted(
                (
                    ServerStatus(
                        addresses.tcp,
                        server_id == claim.server_id,
                        seen[server_id].life,
                        seen[server_id].lsn,
                        _lag(owner.lsn, seen[server_id].lsn),
                    )
                    for server_id, addresses in servers.items()
                ),
                key=lambda server: server.address,
            )
        ),
    )


def _lag(owner_lsn: int | None, lsn: int | None) -> int | None:
    # A follower that was asked later may have more.
    return None if owner_lsn is None or lsn is None else max(0, owner_lsn - lsn)


async def _ask_all(servers: Mapping[str, Addresses], claim: Claim) -> dict[str, Seen]:
    """Ask all servers at the same time."""
    seen: dict[str, Seen] = {}
    limiter = trio.CapacityLimiter(_MOST_ASKED_AT_ONCE)

    async def ask_one(server_id: str, addresses: Addresses) -> None:
        epoch = claim.epoch if server_id == claim.server_id else 0
        seen[server_id] = Seen(Life.SILENT)
        if addresses.http:
            async with limiter:
                seen[server_id] = await ask(addresses.http, server_id, epoch, encrypted=addresses.encrypted)

    async with trio.open_nursery() as nursery:
        for server_id, addresses in servers.items():
            nursery.start_soon(ask_one, server_id, addresses)
    return seen


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
