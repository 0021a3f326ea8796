"""Which servers share a store: an object for each, with where it is reached. Pure.

It is advice, for people who look at the cluster: ownership does not depend on it. A server writes its object when it
joins and deletes it when it ends in order. What a server left that was killed is deleted by the next one that has the
same address.
"""

from __future__ import annotations

from typing import Final

from journal.logstore.keys import server_folder, server_id_of, server_key
from journal.logstore.objects import Kind, LogObject, check_object, encode_object
from journal.logstore.ownership import Member
from journal.logstore.settling import settle_create, settle_delete, settle_get, settle_list
from journal.logstore.steps import Steps

_ATTEMPTS: Final = 3


def enlist(member: Member, nonce: bytes, body: bytes) -> Steps[None]:
    """Write the object of a server.

    Args:
        member: The server, and the store.
        nonce: 16 random bytes.
        body: Where the server is reached.
    """
    value = LogObject(Kind.SERVER, member.store_id, member.node_id, nonce, body=body)
    yield from settle_create(server_key(member.root, member.node_id), encode_object(value), _ATTEMPTS)


def list_servers(root: str, store_id: bytes) -> Steps[list[LogObject]]:
    """The objects of all servers, in the order of their ids.

    Raises:
        ForeignStoreError, LogDamagedError: One of them is of another store, or damaged.
    """
    found = []
    for key in sorted((yield from settle_list(server_folder(root), _ATTEMPTS))):
        if server_id_of(key) is None:
            continue
        data = yield from settle_get(key, _ATTEMPTS)
        # One that ends meanwhile deletes its own.
        if data is not None:
            found.append(check_object(key, data, store_id, 0, 0, Kind.SERVER))
    return found


def delist(root: str, server_id: bytes) -> Steps[None]:
    """Delete the object of a server, if there is one."""
    yield from settle_delete(server_key(root, server_id), _ATTEMPTS)
