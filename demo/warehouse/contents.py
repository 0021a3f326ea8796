"""The rows of the warehouse at the end, read from its database."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from demo.evidence.ledger import Received, SubscriberLedger, digest_of
from demo.payload import sample_of


def read_contents(path: Path) -> SubscriberLedger:
    """The rows by topic, in the order of the queue."""
    ledger = SubscriberLedger()
    database = sqlite3.connect(path)
    try:
        for topic, message in database.execute("select topic, message from messages order by queue, place"):
            payload = message.encode()
            ledger.topics[topic].append(Received(sample_of(payload).number, digest_of(payload), 0))
    finally:
        database.close()
    return ledger
