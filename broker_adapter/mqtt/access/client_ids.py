"""Which client identifiers a user may connect with: patterns with the user's name in them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from broker_adapter.mqtt.access.permissions import Principal

_USER: Final = "%u"
_TOKEN: Final = re.compile(r"(%u|\*)")


class ClientIds:
    """Patterns of client identifiers. ``%u`` stands for the user name, ``*`` for any characters, also none.

    An anonymous client has no name, so a pattern with ``%u`` does not allow it anything.

    Args:
        patterns: Without any, every client may use every identifier.
    """

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        self._patterns = tuple(patterns)

    def allow(self, principal: Principal) -> bool:
        """Whether a client may connect with its identifier."""
        return not self._patterns or any(_matches(pattern, principal) for pattern in self._patterns)

    def bind(self, principal: Principal) -> bool:
        """Whether a pattern gives the identifier to the client's user by name."""
        return any(_USER in pattern and _matches(pattern, principal) for pattern in self._patterns)


def _matches(pattern: str, principal: Principal) -> bool:
    if _USER in pattern and not principal.username:
        return False
    replaced = {_USER: re.escape(principal.username), "*": ".*"}
    expression = "".join(replaced.get(part) or re.escape(part) for part in _TOKEN.split(pattern))
    return re.fullmatch(expression, principal.client_id, re.DOTALL) is not None
