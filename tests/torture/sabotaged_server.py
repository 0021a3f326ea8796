"""Starts the server with one thing broken on purpose, so that it can be shown that the torture run sees it.

python -m tests.torture.sabotaged_server HOW serve --data DIR ...
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import Any

import journal.engine.parts
import journal.engine.state.views
import journal.engine.subscribe.filter_subscription
import journal.engine.write.commands
from journal.cli.main import main
from journal.engine.state.views import Views
from journal.engine.wal.entry_payloads import CursorCommitted, OffsetsReserved
from shards.subscriptions.events import Push


def forget_producers() -> None:
    """What producers had sent is not known any more after a start, so a resend is stored again."""
    Views._replay_producer = lambda *_: None  # type: ignore[method-assign]
    journal.engine.parts.load_producers = lambda *_: {}  # type: ignore[attr-defined]


def lose_cursors() -> None:
    """Every third commit of a cursor is acknowledged and not folded."""
    counter = itertools.count()
    fold = journal.engine.state.views._FOLDS[CursorCommitted]

    def sometimes(*arguments: Any) -> None:
        if next(counter) % 3:
            fold(*arguments)

    journal.engine.state.views._FOLDS[CursorCommitted] = sometimes


def drop_entries() -> None:
    """A start passes over one append in nine that it finds in the journal."""
    counter = itertools.count()
    replay = Views._replay_append

    def sometimes(self: Views, entry: Any) -> None:
        if next(counter) % 9 != 5:
            replay(self, entry)

    Views._replay_append = sometimes  # type: ignore[method-assign]


def reuse_offsets() -> None:
    """A start does not know which offsets had been given out in memory mode."""
    journal.engine.state.views._FOLDS[OffsetsReserved] = lambda *_: None


def compare_nothing() -> None:
    """A compare-and-set succeeds, whatever version it finds."""
    journal.engine.write.commands.check = lambda *_: None  # type: ignore[attr-defined]


def skip_records() -> None:
    """A subscription passes over every ninth push that it reads."""
    counter = itertools.count()
    read_push = journal.engine.subscribe.filter_subscription.read_push  # type: ignore[attr-defined]

    async def sometimes(*arguments: Any) -> Push | None:
        push = await read_push(*arguments)
        return None if next(counter) % 9 == 5 else push

    journal.engine.subscribe.filter_subscription.read_push = sometimes  # type: ignore[attr-defined, assignment]


SABOTAGES: dict[str, Callable[[], None]] = {
    sabotage.__name__.replace("_", "-"): sabotage
    for sabotage in (forget_producers, lose_cursors, drop_entries, reuse_offsets, compare_nothing, skip_records)
}


if __name__ == "__main__":
    SABOTAGES[sys.argv.pop(1)]()
    main()
