"""What claims and the list of servers say of a server: who it is, and where it is reached. Pure."""

from __future__ import annotations

import attrs
import msgspec

from journal.logstore.objects import LogObject
from journal.logstore.ownership import MOST_UNDER_WAY


@attrs.frozen(slots=True)
class Addresses:
    """Where other servers and clients reach a server.

    Attributes:
        tcp: ``HOST:PORT`` of the native protocol.
        http: ``HOST:PORT`` of the HTTP listener; empty if there is none.
        encrypted: Whether both use TLS.
    """

    tcp: str = ""
    http: str = ""
    encrypted: bool = False


@attrs.frozen(slots=True)
class Claim:
    """A claim of a store.

    Attributes:
        epoch: The epoch; 0 if no server has claimed the store yet.
        server_id: The process that made it, 32 hexadecimal digits.
        addresses: Where that one is reached.
        nonce: Its random bytes, which only who can read the log store knows; empty if they are not known.
    """

    epoch: int = 0
    server_id: str = ""
    addresses: Addresses = Addresses()
    nonce: bytes = attrs.field(default=b"", eq=False, repr=False)


@attrs.frozen(slots=True)
class _ClaimBody:
    """What a claim says: `Addresses`, and how many slots its owner has under way at most."""

    tcp: str
    http: str
    encrypted: bool
    window: int = 1


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Addresses)
_claim_decoder = msgspec.json.Decoder(_ClaimBody)


def encode_addresses(addresses: Addresses) -> bytes:
    """The body of a server's object."""
    return _encoder.encode(addresses)


def encode_claim(addresses: Addresses, window: int) -> bytes:
    """The body of a claim.

    Args:
        window: How many slots the owner has under way at most.
    """
    return _encoder.encode(_ClaimBody(addresses.tcp, addresses.http, addresses.encrypted, window))


def window_of(body: bytes) -> int:
    """How many slots the owner has under way at most that made a claim with this body.

    A claim that does not say it was made by a version that had one under way. So a slot that is missing before others
    is damage.
    """
    try:
        window = _claim_decoder.decode(body).window
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 1
    return min(max(window, 1), MOST_UNDER_WAY)


def addresses_of(found: LogObject) -> Addresses:
    """The addresses in a claim or a server's object. A body that another version wrote gives none."""
    try:
        return _decoder.decode(found.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Addresses()


def claim_of(found: LogObject) -> Claim:
    """What an object says that is a claim."""
    return Claim(found.epoch, found.node_id.hex(), addresses_of(found), found.nonce)
