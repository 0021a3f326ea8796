"""When a delayed message is to be published, and the name under which it is stored until then."""

from __future__ import annotations

import secrets

import attrs


@attrs.frozen(slots=True)
class DelayedPublish:
    """When a message is to be published, and the name under which it is stored until then.

    The name is made once for a message, not for each attempt to store it: so a second attempt conflicts with a first
    one that was carried out although its answer was lost.
    """

    at_us: int
    name: str = attrs.field(factory=lambda: secrets.token_hex(16))
