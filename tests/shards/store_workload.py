"""A process that writes to a RocksStore until it is killed; `test_rocks_store` judges what is left.

Every write sets, in every family, the key ``last`` and a key of its own to the write's number. A thread flushes all
the time and prints, a line each, the number that the flush must have covered.
"""

from __future__ import annotations

import sys
import threading

from shards.seams.rocks_store import RocksStore
from shards.seams.store import Family, Mutations


def main(path: str) -> None:
    store = RocksStore(path, write_buffer_bytes=256 << 10)
    written = 0

    def flush_for_ever() -> None:
        while True:
            covered = written
            store.flush()
            print(covered, flush=True)

    threading.Thread(target=flush_for_ever, daemon=True).start()
    while True:
        number = b"%08d" % (written + 1)
        mutations = Mutations()
        for family in Family:
            mutations.put(family, b"last", number)
            mutations.put(family, b"n" + number, number * 10)
        store.write(mutations)
        written += 1


if __name__ == "__main__":
    main(sys.argv[1])
