"""Hypothesis strategies for histories of a journal, and for questions about what is left of them."""

from __future__ import annotations

import hypothesis.strategies as st

from shards.format.record import Record
from shards.seams.clock import ManualClock
from tests.spark.history_model import Comparison, Question
from tests.spark.history_player import (
    Append,
    Checkpoint,
    Close,
    Convert,
    Crash,
    Delete,
    Gather,
    Restart,
    Step,
    SwitchMode,
    Trim,
)

PLAIN, FOREIGN, FOLDED, SWITCHED = "plant/a", "größe/µ 100%/水", "fold/0", "switched"
SHARDS = (PLAIN, FOREIGN, FOLDED, SWITCHED)
NOW_US = ManualClock().now_us()
_YEAR_2200_US = 7_258_118_400_000_000

names = st.sampled_from(SHARDS)
texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=6)
small_bytes = st.one_of(st.just(b""), st.sampled_from([b"k1", b"k2", b"\x00", b"\xff\xfe"]), st.binary(max_size=12))
# Large ones make segments roll.
stored_values = st.one_of(small_bytes, st.binary(max_size=40), st.integers(300, 1100).map(lambda size: b"x" * size))
times = st.one_of(st.integers(-20, 20).map(lambda shift: NOW_US + shift * 1000), st.integers(1, _YEAR_2200_US))
own_topics = st.sampled_from(["", "fold/x", "fold/ü/水", "plant/a", "$hidden/x"])


def records(shard: str) -> st.SearchStrategy[Record]:
    return st.builds(
        Record,
        value=stored_values,
        key=small_bytes,
        topic=own_topics if shard == FOLDED else st.just(""),
        timestamp_us=times,
        headers=st.lists(st.tuples(texts, small_bytes), max_size=2).map(tuple),
        tags=st.lists(texts, max_size=2, unique=True).map(tuple),
        expires_at_us=st.sampled_from([0, 0, 1, NOW_US + 5000, _YEAR_2200_US]),
    )


def _appends(shard: str, least: int = 1) -> st.SearchStrategy[Append]:
    # A batch fits a journal file of the player's engine.
    batch = st.lists(records(shard), min_size=least, max_size=4).map(tuple)
    return st.builds(Append, st.just(shard), st.lists(batch, min_size=least, max_size=3).map(tuple))


appends = names.flatmap(_appends)
shares = st.sampled_from([0.5, 0.3, 0.7, 0.9, 0.1, 1.0, 0.0])
conversions = st.builds(Convert, names)
gatherings = st.just(Gather())
trims = st.builds(Trim, names, shares, st.sampled_from([False, False, True]))
deletions = st.builds(Delete, names, st.booleans())
switches = st.builds(SwitchMode, st.sampled_from([SWITCHED, SWITCHED, SWITCHED, FOREIGN]))
changes: st.SearchStrategy[Step] = st.one_of(
    conversions, trims, switches, deletions, gatherings, st.builds(Close, names), st.builds(Checkpoint, st.booleans())
)
crashes = st.one_of(
    st.builds(Crash, st.one_of(conversions, gatherings, trims, appends, changes), st.sampled_from(range(1, 31))),
    st.builds(Crash, look=st.booleans()),
)
_nothing = st.just(())
# Drawn one by one, steps are mostly appends: Hypothesis likes to repeat itself.
_rounds = st.tuples(
    appends,
    st.sampled_from(SHARDS).flatmap(
        lambda name: st.sampled_from(
            [
                (),
                (Convert(name),),
                (Convert(name), Trim(name, 0.3)),
                (Close(name),),
                (Convert(name), Trim(name, 0.6, True)),
                (Gather(),),
                # Most of the file is dead: it is rewritten.
                (Gather(), Trim(name, 0.7), Gather()),
                (Gather(), Delete(name, True), Gather()),
            ]
        )
    ),
    st.one_of(appends, changes),
    trims,
    st.one_of(crashes.map(lambda end: (end,)), st.builds(Restart, st.booleans()).map(lambda end: (end,)), _nothing),
).map(lambda found: (found[0], *found[1], found[2], found[3], *found[4]))
_in_memory = st.tuples(st.just(SwitchMode(SWITCHED)), _appends(SWITCHED), st.just(SwitchMode(SWITCHED)))
_openings = st.builds(
    lambda filled, sealed, switched: (*filled, *map(Convert, sealed), *switched),
    st.tuples(*(_appends(shard, least=2) for shard in SHARDS)),
    st.lists(names, min_size=2, max_size=3, unique=True),
    st.one_of(_in_memory, _in_memory.map(lambda steps: steps[:2]), _nothing),
)
histories = st.builds(
    lambda opening, rounds: (*opening, *(step for one in rounds for step in one)),
    _openings,
    st.lists(_rounds, min_size=2, max_size=4),
)

_orders = st.sampled_from(["=", "<", "<=", ">", ">="])


def _comparisons(column: str, values: st.SearchStrategy[object]) -> st.SearchStrategy[Comparison]:
    several = st.builds(Comparison, st.just(column), st.just("in"), st.lists(values, min_size=1, max_size=4).map(tuple))
    return st.one_of(st.builds(Comparison, st.just(column), _orders, values), several)


comparisons = st.one_of(
    _comparisons("offset", st.integers(0, 12)),
    _comparisons("timestamp", times),
    # The player's clock goes on by a millisecond with each step.
    _comparisons("append_time", st.integers(0, 2000).map(lambda shift: NOW_US + shift * 10)),
    _comparisons("topic", st.sampled_from([*SHARDS, "fold/x", "fold/ü/水"])),
    _comparisons("shard", names),
)
questions = st.builds(
    Question,
    st.sampled_from([("#",), ("#",), ("#",), ("fold/#",), ("+/a", FOREIGN), ("$hidden/#", "#"), ("nothing",)]),
    st.one_of(comparisons.map(lambda one: (one,)), st.tuples(comparisons, comparisons)),
)
