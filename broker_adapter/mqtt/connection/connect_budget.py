"""Memory that clients can occupy in a broker, all together, before they are accepted."""

from __future__ import annotations

from typing import Final

FREE_BYTES: Final = 4096
"""So much does not count: all connections together can have it, and most CONNECTs are shorter."""


class ConnectBudget:
    """Bytes that clients sent which are not accepted yet, beyond `FREE_BYTES` of each.

    Args:
        limit_bytes: The most that they may be together.

    Attributes:
        used_bytes: What they are now.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.used_bytes = 0
        self._limit_bytes = limit_bytes

    def replace(self, counted: int, held: int) -> int:
        """A connection that was counted with some bytes holds this many now.

        Returns:
            The bytes that it is counted with from now on; -1 if there is no room for them, and it counts no more.
        """
        self.used_bytes -= counted
        now = max(0, held - FREE_BYTES)
        if self.used_bytes + now > self._limit_bytes:
            return -1
        self.used_bytes += now
        return now
