"""When a delayed message is to be published, and the name that it waits under until then."""

from __future__ import annotations

import secrets

import attrs


@attrs.frozen(slots=True)
class DelayedPublish:
    """When a message is to be published, and the name that it waits under.

    The name is made once for a message, not for each attempt to store it: an attempt that was carried out and not
    answered stands against the next one.
    """

    at_us: int
    name: str = attrs.field(factory=lambda: secrets.token_hex(16))
