"""A server whose log store takes long to answer, as an object store in a cloud does: ``python -m`` of this module.

It is the server's command line. Each create in a ``file://`` store takes as much longer as the environment says:
``LATE_STORE_MS``, a number of milliseconds, or two with ``-`` between them, of which each create gets one at random.
"""

from __future__ import annotations

import os
import random
import time
from typing import Final

from journal.cli.main import main
from journal.logstore.store import Created
from journal.logstore.stores.directory import DirectoryLogStore

VARIABLE: Final = "LATE_STORE_MS"


def delay(milliseconds: str) -> None:
    """Let every create take so much longer. It is applied at some time in between, as over a network."""
    least, _, most = milliseconds.partition("-")
    bounds_s = float(least) / 1000, float(most or least) / 1000
    original = DirectoryLogStore.create

    def create(self: DirectoryLogStore, key: str, data: bytes) -> Created:
        seconds = random.uniform(*bounds_s)
        time.sleep(seconds / 2)
        created = original(self, key, data)
        time.sleep(seconds / 2)
        return created

    DirectoryLogStore.create = create  # type: ignore[method-assign]


if __name__ == "__main__":
    delay(os.environ[VARIABLE])
    main()
