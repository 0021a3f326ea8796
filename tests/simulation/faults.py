"""When a simulated call fails, and how: the schedule of injected failures of one process."""

from __future__ import annotations

import errno
import re
from typing import Literal

import attrs

OperationKind = Literal["write", "sync", "entry"]
"""write: of bytes, or a truncation; sync: of a file, a directory or everything; entry: create, rename, link, remove."""

ALL_KINDS: frozenset[OperationKind] = frozenset(("write", "sync", "entry"))


@attrs.define
class Trigger:
    """Goes off at the nth operation (from 1) whose name matches, and stays for so many of them.

    Names are those of `SimulatedFileSystem.operations`, such as ``fdatasync /data/log/0a/b.log``; the pattern is a
    regular expression that is searched for in them, and an empty one matches all.
    """

    nth: int
    pattern: str = ""
    lasts: int = 1
    seen: int = 0

    def notice(self, operation: str) -> bool:
        """Count an operation; return whether it is one of those."""
        if self.pattern and not re.search(self.pattern, operation):
            return False
        self.seen += 1
        return self.is_on

    @property
    def is_on(self) -> bool:
        """Whether the last operation that matched was one of those."""
        return self.nth <= self.seen < self.nth + self.lasts


@attrs.define
class Fault:
    """Calls that fail.

    Attributes:
        trigger: Which operations.
        number: The errno.
        reached_disk: What a failing sync should have written got to the disk all the same.
        keep_entries: A failing sync keeps directory changes for the next one; otherwise it forgets those of files.
        kinds: Other kinds of operations do not fail.
        only_growth: Writes fail only where they make a file longer, syncs of files only where they have to allocate:
            so a full disk or a used-up quota behaves on a file system that writes in place.
        shows_full: `free_bytes` is 0 meanwhile. It is not for a quota.
    """

    trigger: Trigger
    number: int
    reached_disk: bool = False
    keep_entries: bool = True
    kinds: frozenset[OperationKind] = ALL_KINDS
    only_growth: bool = False
    shows_full: bool = False

    def hits(self, operation: str, kind: OperationKind, *, grows: bool) -> bool:
        """Count an operation; return whether it fails."""
        return self.trigger.notice(operation) and kind in self.kinds and (grows or not self.only_growth)


def full_disk(trigger: Trigger, number: int = errno.ENOSPC) -> Fault:
    """No space (or, with EDQUOT, no quota) for as long as the trigger lasts: at write, fsync and new names alike."""
    return Fault(trigger, number, only_growth=True, shows_full=number == errno.ENOSPC)
