"""Sans-IO protocol of the journal service: frames, bodies, errors, and splitting a byte stream into frames.

Uses no sockets, clocks or async library. `docs/protocol.md` specifies it for other languages.
"""

from journal.protocol.errors import (
    LocalProtocolError,
    ProtocolError,
    RemoteProtocolError,
    decode_error,
    encode_error,
)
from journal.protocol.frames import Op
from journal.protocol.message_codec import OPERATIONS, decode_reply, decode_request, encode
from journal.protocol.parser import Frame, FrameParser

__all__ = [
    "OPERATIONS",
    "Frame",
    "FrameParser",
    "LocalProtocolError",
    "Op",
    "ProtocolError",
    "RemoteProtocolError",
    "decode_error",
    "decode_reply",
    "decode_request",
    "encode",
    "encode_error",
]
