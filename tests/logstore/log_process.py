"""A node in a process of its own: takes a store over, writes slots until it is deposed, and takes it over again.

``python -m tests.logstore.log_process DIRECTORY NODE LEDGER`` appends a line to the ledger for each acknowledged value.
"""

from __future__ import annotations

import os
import random
import sys
import time
from contextlib import suppress
from typing import Final

from journal.logstore import LogStore, run
from journal.logstore.checkpoints import Checkpoint, create_checkpoint
from journal.logstore.collection import collect
from journal.logstore.errors import StoreDeposedError
from journal.logstore.ownership import Member, check_owned, own
from journal.logstore.reading import AtTail, LogReader, SlotRead
from journal.logstore.settling import settle_create
from journal.logstore.stores.directory import DirectoryLogStore
from journal.logstore.writing import SlotWriter

ROOT: Final = "store"
STORE_ID: Final = b"P" * 16
SLOTS_BETWEEN_CHECKPOINTS: Final = 16


def values_of(checkpoint: Checkpoint | None) -> list[str]:
    return checkpoint.manifest.decode().split() if checkpoint else []


def take_over(store: LogStore, member: Member) -> tuple[int, list[str], int]:
    """The epoch that this node owns now, all values before it, and the next lsn."""
    ownership = run(store, own(member, os.urandom(16)))
    values = values_of(ownership.checkpoint)
    reader = LogReader(member, ownership.checkpoint)
    while not isinstance(found := run(store, reader.read(ownership.epoch)), AtTail):
        if isinstance(found, SlotRead):
            values.append(found.slot.body.decode())
        else:
            values = values_of(found.checkpoint)
    return ownership.epoch, values, reader.next_lsn


def serve(store: LogStore, member: Member, ledger: int) -> None:
    """Write until another node owns the store."""
    epoch, values, next_lsn = take_over(store, member)
    writer = SlotWriter(member, epoch, next_lsn)
    while True:
        value = f"{member.node_id[-1]}-{os.getpid()}-{epoch}-{writer.acknowledged.slot}"
        write = writer.prepare(value.encode(), writer.acknowledged_lsn + 1, os.urandom(16))
        settlement = run(store, settle_create(write.key, write.data))
        for _ in writer.settle(write.position, settlement.is_ours):
            values.append(value)
            os.write(ledger, f"{value}\n".encode())
        if writer.is_fenced:
            return
        if writer.acknowledged.slot % SLOTS_BETWEEN_CHECKPOINTS == 0:
            run(store, check_owned(ROOT, epoch))
            checkpoint = Checkpoint(writer.acknowledged, writer.acknowledged_lsn, " ".join(values).encode())
            run(store, create_checkpoint(ROOT, STORE_ID, member.node_id, os.urandom(16), checkpoint))
            run(store, collect(member, epoch, max(1, epoch - 3)))


def main(directory: str, node: str, ledger_path: str) -> None:
    store = DirectoryLogStore(directory)
    member = Member(ROOT, STORE_ID, int(node).to_bytes(16, "big"))
    ledger = os.open(ledger_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    source = random.Random(int(node))
    while True:
        with suppress(StoreDeposedError):
            serve(store, member, ledger)
        # Others are left some time in which they own the store.
        time.sleep(source.uniform(0.05, 0.3))


if __name__ == "__main__":
    main(*sys.argv[1:])
