"""A process that writes to a RocksStore until it is killed; `test_rocks_store` judges what is left.

Every write sets, in every family, the key ``last`` and a key of its own to the write's number. A thread flushes all the
while and tells, a line each, the number that the flush must have covered. Told how many writes to make, it flushes
none of them and tells when they are made: then they lie in the newest write-ahead log alone.
"""

from __future__ import annotations

import sys
import threading

from shards.seams.rocks_store import RocksStore
from shards.seams.store import Family, Mutations


def main(path: str, wal: str, writes: str = "") -> None:
    store = RocksStore(path, wal=wal == "wal", write_buffer_bytes=256 << 10)
    written = 0

    def flush_for_ever() -> None:
        while True:
            covered = written
            store.flush()
            print(covered, flush=True)

    if not writes:
        threading.Thread(target=flush_for_ever, daemon=True).start()
    while written != int(writes or -1):
        number = b"%08d" % (written + 1)
        mutations = Mutations()
        for family in Family:
            mutations.put(family, b"last", number)
            mutations.put(family, b"n" + number, number * 10)
        store.write(mutations)
        written += 1
    print(written, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
