"""What connects a broker to the supervisor of its processes, if it is one of several."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import attrs

from journal.telemetry.http_pages import Page, Resource


class Control(Protocol):
    """A running broker, for its supervisor."""

    @property
    def pages(self) -> Mapping[str, Page | Resource]:
        """The pages of the broker over HTTP, and those for its supervisor alone, by path."""
        ...

    def request_stop(self, reason: str) -> None:
        """Begin to stop in order; a broker that has not started yet ends at once."""
        ...

    async def reload(self) -> None:
        """Apply the settings that may change while the broker runs."""
        ...


@attrs.frozen
class Member:
    """One of several processes that are one broker to clients.

    Attributes:
        number: Number of the process, from 1.
        obey: Does what the supervisor asks for, until cancelled.
    """

    number: int
    obey: Callable[[Control], Awaitable[None]]
