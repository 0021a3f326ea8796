"""Closes connections whose peer sends nothing any more, so that other members get the records that it holds.

A process that is stopped or hangs keeps its TCP connection: its kernel answers keepalive probes, and receives pushes
until its buffers are full. A machine that lost its power sends nothing either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

MEMBER_PATIENCE_S = 60.0
"""Seconds for which a client with members of groups may send nothing if it did not promise heartbeats."""

_MISSED: Final = 3


def promised_s(heartbeat_ms: int) -> float:
    """How long a peer that promised heartbeats in its HELLO may send nothing; infinite without a promise."""
    return _MISSED * heartbeat_ms / 1000 if heartbeat_ms else float("inf")


def reason_of(silence_s: float, *, is_promise: bool) -> str:
    """The reason that is sent to a peer that was silent for this time."""
    if is_promise:
        return f"it was silent for {silence_s:g} s, {_MISSED} times the interval that it promised"
    return (
        f"this client is a member of a group and sent nothing for {silence_s:g} s; other members get the records that "
        f"it held. Send PING when there is nothing else to send"
    )


class Silence:
    """Measures how long the peer of a connection has been silent.

    Only the time counts in which the server waits for the peer: while it does not read from the connection, silence
    means nothing. The receiver notes when it begins and ends to wait; there is no other cost.

    Attributes:
        since_s: When the server began to wait for the peer, by trio's clock; None while it does not wait.
    """

    __slots__ = ("since_s",)

    def __init__(self) -> None:
        self.since_s: float | None = None

    async def wait(self, silence_s: float, counts: Callable[[], bool]) -> None:
        """Return when the peer has been silent for this time while `counts` returns True."""
        while True:
            now_s = trio.current_time()
            since_s = now_s if self.since_s is None else self.since_s
            if now_s - since_s < silence_s:
                await trio.sleep_until(since_s + silence_s)
            elif counts():
                return
            else:
                await trio.sleep(silence_s)
