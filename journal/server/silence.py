"""Ends a connection whose peer says nothing any more, so that what it holds of groups goes to others.

A process that is stopped, or hangs, keeps its TCP connection: its kernel answers keepalive probes, and takes what is
pushed until its buffers are full. A machine that lost its power says nothing either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

MEMBER_PATIENCE_S = 60.0
"""Seconds for which a client with members of groups may send nothing if it promised no heartbeats."""

_MISSED: Final = 3


def promised_s(heartbeat_ms: int) -> float:
    """How long a peer may say nothing that promised heartbeats in its HELLO; for ever without a promise."""
    return _MISSED * heartbeat_ms / 1000 if heartbeat_ms else float("inf")


def reason_of(silence_s: float, *, is_promise: bool) -> str:
    """What to tell a peer that was silent for so long."""
    if is_promise:
        return f"it was silent for {silence_s:g} s, {_MISSED} times as long as it promised at most"
    return (
        f"this client is a member of a group and sent nothing for {silence_s:g} s; what it held goes to the other "
        f"members. Send PING when there is nothing else to send"
    )


class Silence:
    """Tells when the peer of a connection has been silent for too long.

    Only time counts in which the server waits for the peer: while it does not read from the connection, the peer's
    silence says nothing. Whoever receives notes when it begins to wait and when it ends; that is all it costs.

    Attributes:
        since_s: When the server began to wait for the peer, by trio's clock; None while it does not wait.
    """

    __slots__ = ("since_s",)

    def __init__(self) -> None:
        self.since_s: float | None = None

    async def wait(self, silence_s: float, counts: Callable[[], bool]) -> None:
        """Return when the peer has been silent for so long, and `counts` says that this matters."""
        while True:
            now_s = trio.current_time()
            since_s = now_s if self.since_s is None else self.since_s
            if now_s - since_s < silence_s:
                await trio.sleep_until(since_s + silence_s)
            elif counts():
                return
            else:
                await trio.sleep(silence_s)
