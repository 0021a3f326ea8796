"""Ends the membership of a group member that sends nothing any more, so that its records go to the other members.

A process that is stopped, or hangs, keeps its TCP connection: its kernel answers keepalive probes, and takes what is
pushed until its buffers are full. Without this it would keep all that it holds, and in a sticky group its part of the
shards, for as long as it lives. WebSocket connections have pings for that: `journal.server.heartbeat`.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

PATIENCE_S = 60.0
"""Seconds for which a client with members of groups may send nothing."""

_LOOKS = 12


class MemberSilence:
    """Tells when the peer of a connection has been silent for too long.

    Only time counts in which the server waits for bytes of the peer: while it does not read from the connection, the
    peer's silence says nothing.

    Attributes:
        is_listening: The server waits for the peer to send something.
        heard: How often the peer has sent something.
    """

    __slots__ = ("heard", "is_listening")

    def __init__(self) -> None:
        self.is_listening = False
        self.heard = 0

    async def wait_silent(self, has_members: Callable[[], bool]) -> str:
        """Return when the peer has been silent for `PATIENCE_S`, or a twelfth longer, while it had a member.

        Returns:
            What to tell the peer.
        """
        looks = 0
        while looks < _LOOKS:
            heard = self.heard
            await trio.sleep(PATIENCE_S / _LOOKS)
            is_silent = self.is_listening and heard == self.heard and has_members()
            looks = looks + 1 if is_silent else 0
        return (
            f"this client is a member of a group and sent nothing for {PATIENCE_S:g} s; what it held goes to the other "
            f"members. Send PING when there is nothing else to send"
        )
