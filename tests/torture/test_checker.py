"""The checker of histories finds each anomaly where there is one and none where there is none.

Every case is a history that shows the anomaly, written by hand, and beside it the nearest sound one. Generated histories
of a correct model have no anomalies, and one random change of them is found.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.torture.checker import check, main
from tests.torture.correct_model import MUTATIONS, CorrectModel
from tests.torture.history import (
    NEVER,
    Append,
    Death,
    Delete,
    Fault,
    Get,
    GroupPosition,
    Observed,
    Operation,
    Outcome,
    Poll,
    Put,
    Read,
    Recorder,
    Shard,
    Trim,
    load,
)

OK, FAILED, UNKNOWN = Outcome.OK, Outcome.FAILED, Outcome.UNKNOWN
MEMORY = Shard(who="setup", shard="s", always_file=False)


def at(*operations: Operation, spread: int = 0) -> list[Operation]:
    """Operations one after another, or, with ``spread``, each beginning before the one before has ended."""
    found = []
    for number, operation in enumerate(operations):
        ended = NEVER if operation.outcome is UNKNOWN else 10 * number + 5 + spread
        found.append(attrs.evolve(operation, began_ns=10 * number, ended_ns=ended))
    return found


def appended(
    number: int, offset: int = -1, *, outcome: Outcome = OK, stream: str = "p", level: str = "durable", count: int = 1
) -> Append:
    names = [f"{stream}{number}" if count == 1 else f"{stream}{number}.{place}" for place in range(count)]
    level = level if outcome is OK else ""
    return Append(
        who=stream, shard="s", values=names, stream=stream, number=number,
        offset=offset, outcome=outcome, level=level,
    )


def records(first: int, *names: str, lsn: int = 0) -> list[Observed]:
    return [Observed(offset, lsn or offset + 1, offset, name) for offset, name in enumerate(names, first)]


def read(
    first: int,
    *names: str,
    gap: int = 0,
    start: int = 0,
    last: bool = False,
    found: Sequence[Observed] | None = None,
    next_offset: int | None = None,
) -> Read:
    """A read of a gap (of ``gap`` offsets) and then of records."""
    found = records(first + gap, *names) if found is None else found
    end = first + gap + len(found) if next_offset is None else next_offset
    gaps = [(first, first + gap)] if gap else []
    return Read(
        who="r", shard="s", offset=first, records=found, gaps=gaps, next_offset=end,
        start_offset=start, last=last, outcome=OK,
    )


def refused(offset: int, end: int) -> Read:
    return Read(who="r", shard="s", offset=offset, next_offset=end, outcome=FAILED)


def polled(first: int, *names: str, by: str = "a", group: str = "", done: bool = False) -> Poll:
    return Poll(
        who="r", assignment=by, shard="s", first_offset=first, next_offset=first + len(names),
        records=records(first, *names), group=group, acknowledged=done, outcome=OK,
    )


def put(
    value: str, version: int = 0, *, expected: int | None = None, outcome: Outcome = OK, key: str = "state/k"
) -> Put:
    return Put(who="c", key=key, value=value, version=version, expected=expected, outcome=outcome)


def got(value: str | None, version: int, key: str = "state/k") -> Get:
    return Get(who="r", key=key, value=value, version=version, outcome=OK)


def together(shard: str, *, outcome: Outcome = UNKNOWN) -> Append:
    return Append(who="t", shard=shard, values=[f"t/{shard}"], transaction="t", outcome=outcome)


def last_of(shard: str, *names: str) -> Read:
    return attrs.evolve(read(0, *names, last=True), shard=shard)


DELETED = Delete(who="c", key="state/k", outcome=OK)
DIED = Death(who="driver", outcome=OK)
TRIMMED = Trim(who="a", shard="s", before=1, outcome=OK)

CASES: list[tuple[str, list[Operation], list[Operation]]] = [
    (
        "lost write",  # the shard ends before it
        at(appended(0, 0), appended(1, 1), read(0, "p0", last=True), read(1, last=True)),
        at(appended(0, 0), appended(1, outcome=UNKNOWN), read(0, "p0", last=True), read(1, last=True)),
    ),
    (
        "lost write",  # a gap in its place
        at(MEMORY, appended(0, 0), DIED, read(0, gap=1, last=True)),
        at(MEMORY, appended(0, 0, level="memory"), DIED, read(0, gap=1, last=True)),
    ),
    (
        "lost write",  # acknowledged without an offset, as a resend is whose first copy was lost with the memory
        at(MEMORY, appended(0, -1), DIED, read(0, gap=1, last=True), read(1, last=True)),
        at(MEMORY, appended(0, -1), DIED, read(0, "p0", last=True), read(1, last=True)),
    ),
    (
        "duplicate",
        at(appended(0, 0), read(0, "p0", "p0")),
        at(appended(0, 0), appended(1, 1), read(0, "p0", "p1")),
    ),
    (
        "duplicate",  # both copies of a resend are there at once, so the first was not lost with the memory
        at(MEMORY, appended(0, 1, level="memory"), DIED, read(0, "p0", "p0")),
        at(MEMORY, appended(0, 1, level="memory"), read(0, "p0"), DIED, read(0, "p0", gap=1), spread=50),
    ),
    (
        "reordering",  # of one producer
        at(appended(0, 1), appended(1, 0), spread=50),
        at(appended(0, 0), appended(1, 1), spread=50),
    ),
    (
        "reordering",  # of two, one after the other
        at(appended(0, 1), appended(0, 0, stream="q")),
        at(appended(0, 1), appended(0, 0, stream="q"), spread=50),
    ),
    (
        "inconsistent offset",  # two reads
        at(appended(0, outcome=UNKNOWN), appended(1, outcome=UNKNOWN), read(0, "p0"), read(0, "p1")),
        at(appended(0, outcome=UNKNOWN), appended(1, outcome=UNKNOWN), read(0, "p0"), read(0, "p0", "p1")),
    ),
    (
        "inconsistent offset",  # a read and an acknowledgement
        at(appended(0, 0), appended(1, outcome=UNKNOWN), read(0, "p1")),
        at(appended(0, 1), appended(1, outcome=UNKNOWN), read(1, "p0")),
    ),
    (
        "inconsistent offset",  # the same record with another lsn
        at(appended(0, 0), read(0, "p0"), read(0, found=records(0, "p0", lsn=9))),
        at(appended(0, 0), read(0, "p0"), read(0, found=records(0, "p0", lsn=1))),
    ),
    (
        "aborted read",
        at(appended(0, outcome=FAILED), read(0, "p0")),
        at(appended(0, outcome=UNKNOWN), read(0, "p0")),
    ),
    (
        "phantom record",
        at(appended(0, 0), read(0, "p0", "nobody's")),
        at(appended(0, 0), appended(1, outcome=UNKNOWN), read(0, "p0", "p1")),
    ),
    (
        "torn batch",
        at(appended(0, count=2, outcome=UNKNOWN), read(0, "p0.0", last=True), read(1, last=True)),
        at(appended(0, count=2, outcome=UNKNOWN), read(0, "p0.0", "p0.1", last=True), read(2, last=True)),
    ),
    (
        "falling lsn",
        at(appended(0, 0), appended(1, 1), read(0, found=[Observed(0, 2, 0, "p0"), Observed(1, 1, 0, "p1")])),
        at(appended(0, 0), appended(1, 1), read(0, found=[Observed(0, 1, 0, "p0"), Observed(1, 2, 0, "p1")])),
    ),
    (
        "falling append time",
        at(appended(0, 0), appended(1, 1), read(0, found=[Observed(0, 1, 7, "p0"), Observed(1, 2, 6, "p1")])),
        at(appended(0, 0), appended(1, 1), read(0, found=[Observed(0, 1, 7, "p0"), Observed(1, 2, 7, "p1")])),
    ),
    (
        "one lsn for two appends",
        at(appended(0, 0), appended(0, 1, stream="q"), read(0, found=records(0, "p0", "q0", lsn=1))),
        at(appended(0, 0), appended(1, 1), read(0, found=records(0, "p0", "p1", lsn=1))),
    ),
    (
        "hole in a read",
        at(appended(0, 0), appended(1, 1), read(0, found=records(1, "p1"), next_offset=2)),
        at(appended(0, 0), appended(1, 1), read(1, found=records(1, "p1"), next_offset=2)),
    ),
    (
        "repetition in a read",
        at(appended(0, 0), read(0, found=[*records(0, "p0"), *records(0, "p0")], next_offset=1)),
        at(appended(0, 0), read(0, found=records(0, "p0"), next_offset=1)),
    ),
    (
        "gap in file mode",
        at(appended(0, 1), read(0, "p0", gap=1)),
        at(appended(0, 1), TRIMMED, read(0, "p0", gap=1, start=1)),
    ),
    (
        "offset used again",
        at(MEMORY, DIED, read(0, gap=1), appended(0, 0), read(0, "p0")),
        at(MEMORY, DIED, read(0, gap=1), appended(0, 1), read(1, "p0")),
    ),
    (
        "record in place of a gap",
        at(MEMORY, appended(0, outcome=UNKNOWN), DIED, read(0, gap=1), read(0, "p0")),
        at(MEMORY, appended(0, outcome=UNKNOWN), read(0, "p0"), DIED, read(0, gap=1)),
    ),
    (
        "disappeared read",  # without an end of the process
        at(MEMORY, appended(0, 0, level="memory"), read(0, "p0"), read(0, gap=1)),
        at(MEMORY, appended(0, 0, level="memory"), read(0, "p0"), DIED, read(0, gap=1)),
    ),
    (
        "disappeared read",  # without a trim
        at(appended(0, 0), appended(1, 1), read(0, "p0"), read(1, "p1", start=1)),
        at(appended(0, 0), appended(1, 1), read(0, "p0"), TRIMMED, read(1, "p1", start=1)),
    ),
    (
        "trim undone",
        at(appended(0, 0), appended(1, 1), TRIMMED, read(0, "p0", "p1")),
        at(appended(0, 0), appended(1, 1), attrs.evolve(TRIMMED, outcome=UNKNOWN), read(0, "p0", "p1")),
    ),
    (
        "non-monotonic read",  # nothing new, though there was
        at(appended(0, 0), appended(1, 1), read(0, "p0"), read(1)),
        at(appended(0, 0), read(0, "p0"), read(1), appended(1, 1)),
    ),
    (
        "non-monotonic read",  # the end went back
        at(appended(0, 0), appended(1, 1), refused(9, 1)),
        at(appended(0, 0), appended(1, 1), refused(9, 2)),
    ),
    (
        "skipped poll",
        at(appended(0, 0), appended(1, 1), appended(2, 2), polled(0, "p0"), polled(2, "p2")),
        at(appended(0, 0), appended(1, 1), appended(2, 2), polled(0, "p0"), polled(1, "p1"), polled(2, "p2", by="b")),
    ),
    (
        "skipped poll",  # of a group whose position is behind it
        at(
            *(appended(0, 0), polled(0, "p0", group="g"), read(0, "p0", last=True), read(1, last=True)),
            GroupPosition(who="r", group="g", shard="s", offset=1, outcome=OK),
        ),
        at(
            *(appended(0, 0), polled(0, "p0", group="g", done=True), read(0, "p0", last=True), read(1, last=True)),
            GroupPosition(who="r", group="g", shard="s", offset=1, outcome=OK),
        ),
    ),
    (
        "repeated poll",
        at(appended(0, 0), polled(0, "p0"), polled(0, "p0")),
        at(appended(0, 0), polled(0, "p0"), polled(0, "p0", by="b")),
    ),
    (
        "repeated poll",  # to one member of a group over one connection
        at(appended(0, 0), polled(0, "p0", group="g"), polled(0, "p0", group="g")),
        at(appended(0, 0), polled(0, "p0", group="g"), polled(0, "p0", group="g", by="b")),
    ),
    (
        "stale read",
        at(put("v", 1), put("w", 2), got("v", 1)),
        at(put("v", 1), put("w", 2), got("v", 1), spread=20),
    ),
    (
        "stale read",  # nothing, though it was never deleted
        at(put("v", 1), got(None, 0)),
        at(put("v", 1), DELETED, got(None, 0)),
    ),
    (
        "stale compare-and-set",
        at(put("v", 1), put("w", 2, expected=1), put("x", 3, expected=1), spread=50),
        at(put("v", 1), put("w", 2, expected=1), put("x", 3, expected=2), spread=50),
    ),
    (
        "stale compare-and-set",  # past a write whose outcome was unknown, but which was read
        at(put("v", 1), put("w", outcome=UNKNOWN), got("w", 2), put("x", 3, expected=1), spread=50),
        at(put("v", 1), put("w", outcome=UNKNOWN), got("w", 2), put("x", 3, expected=2), spread=50),
    ),
    (
        "stale compare-and-set",  # two owners
        at(put("v", 1, expected=0), put("w", 2, expected=0)),
        at(put("v", 1, expected=0), DELETED, put("w", 3, expected=0)),
    ),
    (
        "cursor went back",
        at(put("7", 1, key="cursor/s/c"), put("9", 2, key="cursor/s/c"), got("7", 1, key="cursor/s/c")),
        at(put("9", 1, key="cursor/s/c"), put("7", 2, key="cursor/s/c"), got("7", 2, key="cursor/s/c")),
    ),
    (
        "cursor went back",  # of a group
        at(*(GroupPosition(who="r", group="g", shard="s", offset=offset, outcome=OK) for offset in (2, 1))),
        at(*(GroupPosition(who="r", group="g", shard="s", offset=offset, outcome=OK) for offset in (1, 2))),
    ),
    (
        "deleted value came back",
        at(put("v", 1), DELETED, got("v", 1)),
        at(put("v", 1), DELETED, put("w", 3), got("w", 3)),
    ),
    (
        "version given out twice",
        at(put("v", 1), put("w", 1), spread=50),
        at(put("v", 1), put("w", 2), spread=50),
    ),
    (
        "inconsistent version",
        at(put("v", outcome=UNKNOWN), put("w", outcome=UNKNOWN), got("v", 1), got("w", 1)),
        at(put("v", outcome=UNKNOWN), put("w", outcome=UNKNOWN), got("v", 1), got("w", 2)),
    ),
    (
        "phantom value",
        at(put("v", 1), got("nobody's", 2)),
        at(put("v", 1), put("w", outcome=UNKNOWN), got("w", 2)),
    ),
    (
        "aborted read",  # of a key
        at(put("v", outcome=FAILED), got("v", 1)),
        at(put("v", outcome=UNKNOWN), got("v", 1)),
    ),
    (
        "torn transaction",  # one shard has its part
        at(together("s"), together("z"), last_of("s", "t/s"), last_of("z")),
        at(together("s"), together("z"), last_of("s", "t/s"), last_of("z", "t/z")),
    ),
    (
        "torn transaction",  # a key has its part
        at(together("s"), attrs.evolve(put("t", outcome=UNKNOWN), transaction="t"), got("t", 1), last_of("s")),
        at(together("s"), attrs.evolve(put("t", outcome=UNKNOWN), transaction="t"), got(None, 0), last_of("s")),
    ),
    (
        "fault",
        at(Fault(who="c", error="CorruptionError()")),
        at(appended(0, outcome=FAILED)),
    ),
]


@pytest.mark.parametrize(
    ("kind", "broken", "sound"), CASES, ids=[f"{case[0]}-{number}" for number, case in enumerate(CASES)]
)
def test_an_anomaly_is_found_and_the_sound_history_beside_it_is_not_blamed(
    kind: str, broken: list[Operation], sound: list[Operation]
) -> None:
    assert kind in {anomaly.kind for anomaly in check(broken)}
    assert check(sound) == []


def test_every_kind_of_anomaly_has_a_case() -> None:
    described = (check.__doc__ or "").partition("Kinds: ")[2].strip().rstrip(".")
    assert {" ".join(kind.split()) for kind in described.split(",")} == {case[0] for case in CASES}


@given(st.integers(0, 2**32), st.integers(0, 150))
def test_a_history_of_a_correct_store_has_no_anomalies(seed: int, steps: int) -> None:
    assert check(CorrectModel(random.Random(seed)).run(steps)) == []


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_one_change_of_a_correct_history_is_found(
    mutation: Callable[[Sequence[Operation], random.Random], list[Operation] | None],
) -> None:
    found = 0
    for seed in itertools.count():
        rng = random.Random(seed)
        spoiled = mutation(CorrectModel(rng).run(rng.randrange(20, 120)), rng)
        if spoiled is not None:
            assert check(spoiled), f"seed {seed}"
            found += 1
        if found == 10:
            break


def test_a_history_comes_back_from_its_files_and_a_line_cut_by_a_kill_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with path.open("w") as file:
        recorder = Recorder("w0", file)
        kept = recorder.begin(Append, shard="s", values=["a", "b"], stream="w0", number=0)
        recorder.end(kept, OK, offset=0, level="durable")
        recorder.begin(Append, shard="s", values=["c"], stream="w0", number=1)
        recorder.note(Read, 5, shard="s", offset=0, records=records(0, "a"), next_offset=1)
        file.write('{"id":"w0-9","f":"append","values":["d')
    read_back, first, second = load([path])
    assert isinstance(first, Append)
    assert (first.values, first.outcome, first.offset) == (("a", "b"), OK, 0)
    assert isinstance(second, Append)
    assert (second.values, second.outcome, second.ended_ns) == (("c",), UNKNOWN, NEVER)
    assert isinstance(read_back, Read)
    assert read_back.records == (Observed(0, 1, 0, "a"),)


def test_the_command_says_what_it_found_by_its_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "history.jsonl"
    with path.open("w") as file:
        recorder = Recorder("w0", file)
        recorder.note(Read, 5, shard="s", offset=0, records=records(0, "nobody's"), next_offset=1)
    assert main([str(path)]) == 1
    assert "phantom record: s:" in capsys.readouterr().out
    path.write_text("")
    assert main([str(path)]) == 0
