"""Clients that may have left before they were accepted."""

from __future__ import annotations

from typing import Final

import trio

from broker_adapter.mqtt.connection.services import PauseDetector
from broker_adapter.mqtt.transport.streams import KnowsPeer

_OLD_AFTER_PAUSE_S: Final = 0.5
"""Bytes received this soon after the process was paused may have arrived during the pause."""


def client_may_have_left(
    stream: trio.abc.Stream, pause_detector: PauseDetector, heard_at_s: float, has_published: bool, is_owned: bool
) -> bool:
    """Whether a client may have closed its connection before it was accepted, and be connected elsewhere.

    If it were accepted, its session would be taken from the newer connection, and the messages sent here would be
    stored behind newer ones.

    Args:
        stream: To the client.
        pause_detector: Knows whether the process was paused.
        heard_at_s: When its CONNECT was received, which may be long after it was sent.
        has_published: It sent messages without waiting for CONNACK: they are wanted, unless the session has an owner.
        is_owned: Another connection has its session, at this or another broker.
    """
    if pause_detector.has_ended_since(heard_at_s - _OLD_AFTER_PAUSE_S):
        return True
    has_left = isinstance(stream, KnowsPeer) and stream.has_peer_left()
    return has_left and (is_owned or not has_published)
