"""What claims and the list of servers say of a server: who it is, and where it is reached. Pure."""

from __future__ import annotations

import attrs
import msgspec

from journal.logstore.objects import LogObject


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
    """

    epoch: int = 0
    server_id: str = ""
    addresses: Addresses = Addresses()


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Addresses)


def encode_addresses(addresses: Addresses) -> bytes:
    """The body of a claim, or of a server's object."""
    return _encoder.encode(addresses)


def addresses_of(found: LogObject) -> Addresses:
    """The addresses in a claim or a server's object. A body that another version wrote gives none."""
    try:
        return _decoder.decode(found.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Addresses()


def claim_of(found: LogObject) -> Claim:
    """What an object says that is a claim."""
    return Claim(found.epoch, found.node_id.hex(), addresses_of(found))
