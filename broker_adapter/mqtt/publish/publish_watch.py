"""Finds publishes that have had no outcome for long, and logs what the oldest one waits for."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import structlog

from broker_adapter.mqtt.session import Session

STUCK_S: Final = 30.0
"""A publish without an outcome for this long is logged."""

_TOLD_EVERY_S: Final = 60.0

log: structlog.stdlib.BoundLogger = structlog.get_logger("broker")


class PublishWatch:
    """Looks at the publishes of all sessions of a broker.

    Attributes:
        oldest_s: For how many seconds the oldest publish had no outcome, at the last look; 0 if all have one.
    """

    def __init__(self) -> None:
        self.oldest_s = 0.0
        self._told_at_s = -math.inf

    def look(self, sessions: Iterable[Session], now_s: float) -> None:
        """Look at sessions, including closed ones whose publishes are not all answered; called once a second."""
        self.oldest_s = 0.0
        oldest: Session | None = None
        for session in sessions:
            if session.publishes is not None and (for_s := session.publishes.oldest_s(now_s)) > self.oldest_s:
                self.oldest_s, oldest = for_s, session
        if oldest is None or self.oldest_s < STUCK_S or now_s - self._told_at_s < _TOLD_EVERY_S:
            return
        self._told_at_s = now_s
        assert oldest.publishes is not None
        log.warning(
            "a publish is not acknowledged",
            client=oldest.client_id,
            for_s=round(self.oldest_s),
            waits_for=oldest.publishes.why_it_waits(),
        )
