"""Detects leases that have expired, from their versions as they are read at intervals. Pure.

Clocks of different machines are never compared: a lease has expired when its key has not changed for a whole lease
period, seen by an observer that could read it all that time. So after an outage of the store no holder is declared dead
before it had a whole period to renew.
"""

from __future__ import annotations

from collections.abc import Mapping


class LeaseWatch:
    """The versions of some leases as they were seen so far.

    Args:
        lease_s: A lease whose version has not changed for this long has run out.
        max_gap_s: After a longer time without reading, all leases get a whole new period.
    """

    def __init__(self, lease_s: float, max_gap_s: float) -> None:
        self._lease_s = lease_s
        self._max_gap_s = max_gap_s
        self._last_s: float | None = None
        self._first_seen: dict[str, tuple[int, float]] = {}

    def look(self, began_s: float, ended_s: float, versions: Mapping[str, int]) -> tuple[list[str], list[str]]:
        """Note the versions that were read; return the holders whose lease changed, and those whose lease ran out.

        Args:
            began_s: When reading began.
            ended_s: When it ended.
            versions: The version of every lease, by holder.
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
                # The version was stored at that time or earlier, and it was read now at ``began_s`` or later.
                if began_s - before[1] >= self._lease_s:
                    run_out.append(holder)
        self._first_seen = seen
        return changed, run_out
