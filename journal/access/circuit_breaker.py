"""A circuit breaker: after failures in a row a service is left alone for a while, and then tried once. Pure."""

from __future__ import annotations

from typing import Final

from shards.back_off import BackOff

_FAILURES: Final = 5
_DELAYS: Final = BackOff(1.0, 30.0)


class CircuitBreaker:
    """Decides whether a service may be asked."""

    def __init__(self) -> None:
        self._failures = 0
        self._until = 0.0
        self._is_trying = False

    @property
    def is_open(self) -> bool:
        """Whether the service is left alone, or tried after that."""
        return self._failures >= _FAILURES

    def may_ask(self, now: float) -> bool:
        """Whether the service may be asked now. Then one of the other methods has to be called afterwards."""
        if not self.is_open:
            return True
        if now < self._until or self._is_trying:
            return False
        self._is_trying = True
        return True

    def succeeded(self) -> None:
        """It has answered."""
        self._failures = 0
        self._is_trying = False

    def failed(self, now: float) -> None:
        """It has not answered, or with something else."""
        self._failures += 1
        self._is_trying = False
        if self.is_open:
            self._until = now + _DELAYS.delay_s(self._failures - _FAILURES)

    def abandoned(self) -> None:
        """It is not known whether it would have answered."""
        self._is_trying = False
