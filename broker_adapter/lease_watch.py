"""Tells from the versions of leases, as they are seen now and then, which have run out. Pure.

No clock is compared with another: a lease has run out when its key has not changed for a whole lease period, as seen by
somebody who could look all the time. So after the store itself was away, nobody is dead before having had a whole
period to come back.
"""

from __future__ import annotations

from collections.abc import Mapping


class LeaseWatch:
    """What was seen of some leases so far.

    Args:
        lease_s: A version that has not changed for so long has run out.
        max_gap_s: A longer time without a look proves nothing about anybody: watching begins anew.
    """

    def __init__(self, lease_s: float, max_gap_s: float) -> None:
        self._lease_s = lease_s
        self._max_gap_s = max_gap_s
        self._last_s: float | None = None
        self._first_seen: dict[str, tuple[int, float]] = {}

    def look(self, began_s: float, ended_s: float, versions: Mapping[str, int]) -> tuple[list[str], list[str]]:
        """Note what was seen, and return those whose lease has changed since the last look, and those who are dead.

        Args:
            began_s: When reading began.
            ended_s: When it ended.
            versions: Of all leases, by holder.
        """
        if self._last_s is None or ended_s - self._last_s > self._max_gap_s:
            self._first_seen.clear()
        self._last_s = ended_s
        changed: list[str] = []
        run_out: list[str] = []
        seen: dict[str, tuple[int, float]] = {}
        for holder, version in versions.items():
            before = self._first_seen.get(holder)
            if before is None or before[0] != version:
                seen[holder] = (version, ended_s)
                if before is not None:
                    changed.append(holder)
            else:
                seen[holder] = before
                # It was first seen at that time or earlier, and this look was made at its beginning or later.
                if began_s - before[1] >= self._lease_s:
                    run_out.append(holder)
        self._first_seen = seen
        return changed, run_out
