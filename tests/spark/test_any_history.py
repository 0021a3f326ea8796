"""Any history of appends, conversions, trims, deletions, crashes: a query finds what is acknowledged and not trimmed.

Each record once and with every field, wherever it is: in sealed segments, in logs closed or open, in the journal of a
process that was killed, and, with a server, in memory.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trio
from hypothesis import HealthCheck, example, given, settings
from pyspark.sql import DataFrame, SparkSession

from broker_adapter import StorageAdapter, open_adapter
from journal.check import check_directory
from shards.format.record import Record, StoredRecord
from shards.model import AckLevel, Mode
from spark_export.conditions import Condition
from spark_export.sealed_table import read_sealed
from tests.faults.processes import running
from tests.spark.any_history import FOLDED, FOREIGN, NOW_US, PLAIN, SWITCHED, histories, questions
from tests.spark.history_model import (
    EVERYTHING,
    Comparison,
    Kept,
    Question,
    Row,
    ShardModel,
    found_rows,
    kept_rows,
    require_same,
)
from tests.spark.history_player import (
    Append,
    Close,
    Convert,
    Crash,
    Delete,
    Gather,
    Player,
    Restart,
    Step,
    Sweep,
    SwitchMode,
    Trim,
)
from tests.spark.stores import planned

SHORT = settings(
    max_examples=10, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
LONG = settings(max_examples=300, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
ALL_SHARDS = ("#",)


def some(first: int, count: int, topic: str = "") -> tuple[Record, ...]:
    """Records of which every other one has expired."""
    return tuple(
        Record(b"%d" % number, b"k%d" % (number % 2), topic, NOW_US - number, expires_at_us=number % 2)
        for number in range(first, first + count)
    )


RICH = (
    Append(PLAIN, (some(0, 4), some(4, 6))),
    Append(FOREIGN, (some(0, 8),)),
    Append(FOLDED, (some(0, 3, "fold/x"), some(3, 3), some(6, 2, "$hidden/x"))),
    Append(SWITCHED, (some(0, 2),)),
    Convert(),
    Append(PLAIN, (some(10, 5),)),
    SwitchMode(SWITCHED),
    Append(SWITCHED, (some(2, 3),)),
    Trim(FOREIGN, 0.5),
    Crash(Convert(PLAIN), 9),
    SwitchMode(SWITCHED),
    Append(SWITCHED, (some(5, 4),)),
    Close(PLAIN),
    Append(PLAIN, (some(15, 2),)),
    Delete(FOREIGN, again=True),
    Append(FOREIGN, (some(20, 6),)),
    Convert(FOREIGN),
    Trim(FOREIGN, 0.5),
    Crash(look=True),
    Append(FOREIGN, (some(26, 1),)),
)
"""Sealed, closed and open segments, one trimmed inside, records lost with a node, a second shard of the same name."""


SHARED = (
    *RICH[:4],
    Gather(),
    Append(PLAIN, (some(10, 5),)),
    Append(FOLDED, (some(8, 4),)),
    SwitchMode(SWITCHED),
    Append(SWITCHED, (some(2, 3),)),
    Trim(PLAIN, 0.3),
    Gather(),
    SwitchMode(SWITCHED),
    Delete(FOREIGN, again=True),
    Append(FOREIGN, (some(20, 6),)),
    Append(SWITCHED, (some(5, 4),)),
    Gather(),
    Trim(FOREIGN, 0.5),
    Convert(FOLDED),
    Append(PLAIN, (some(15, 2),)),
)
"""Parts of shared files of which others are dead, some of the shard's own, beside what is not gathered."""


TRIMMED = (Append(PLAIN, (some(0, 10),)), Convert(), Trim(PLAIN, 0.3))
"""A segment of which less than half is trimmed, so that its file keeps the dead rows."""


def source(spark: SparkSession, question: Question, **options: object) -> DataFrame:
    """The answer of the data source, which looks for rows by the comparisons itself."""
    texts = {name: str(value) for name, value in options.items()}
    asked = {"topics": json.dumps(question.topics), "shards": json.dumps(ALL_SHARDS), "filterPushdown": "true", **texts}
    return question.put_to(spark.read.format("journal").options(**asked).load())


def table(spark: SparkSession, path: Path, question: Question, *, with_unsealed: bool = True) -> DataFrame:
    """The answer of Spark's own Parquet reader, and of the data source where nothing is sealed."""
    frame = read_sealed(spark, str(path), topics=question.topics, shards=ALL_SHARDS, with_unsealed=with_unsealed)
    return question.put_to(frame)


def look(player: Player) -> None:
    """What Spark would be given of a directory at rest, without a Spark."""
    answer_without_spark(player, EVERYTHING)


def answer_without_spark(player: Player, question: Question) -> None:
    conditions = [Condition(one.column, one.sign, one.value) for one in question.comparisons]
    options = {"path": player.directory, "topics": json.dumps(question.topics), "shards": json.dumps(ALL_SHARDS)}
    query = planned(options, *conditions)
    batches = list(query.batches())
    found = found_rows(pa.Table.from_batches(batches, query.wanted.schema))
    require_same(found, kept_rows(player.shards, question), f"{question} without Spark")


def played(place: Path, history: Sequence[Step | Restart | Crash]) -> Player:
    player = Player(place, look)
    player.play(history)
    return player


def require_answer(player: Player, question: Question, answer: Callable[[Question], DataFrame], way: str) -> None:
    require_same(found_rows(answer(question).toArrow()), kept_rows(player.shards, question), f"{way}, {question}")


def is_dead(player: Player, shard_name: str, offset: int) -> bool:
    """Whether the record was trimmed, or deleted with its shard."""
    shard = player.shards.get(shard_name)
    return shard is None or offset < shard.start or not any(kept >= shard.start for kept in shard.kept)


def require_answer_of_tree(player: Player, question: Question, found: Sequence[Row], what: str) -> None:
    """Shared files still have the dead rows of trimmed and deleted shards; nothing in a tree says which these are."""
    places = [(row[1], row[2]) for row in found]
    assert len(places) == len(set(places)), f"{what}: twice in {places}"
    live = [row for row in found if not is_dead(player, row[1], row[2])]
    require_same(live, kept_rows(player.shards, question), what)


def require_live_rows_in_each_file(player: Player) -> None:
    """A file of which every row is dead is removed, unless it has what is last of a shard: the shard ends there."""
    for path in (player.directory / "sealed").glob("date=*/*.parquet"):
        table = pq.read_table(path, columns=["shard", "offset"], partitioning=None)
        rows = [(row["shard"], row["offset"]) for row in table.to_pylist()]
        ends = {name: max(player.shards[name].kept, default=0) for name, _ in rows if name in player.shards}
        assert any(not is_dead(player, *row) or row[1] >= ends.get(row[0], row[1] + 1) for row in rows), (path, rows)


def at_rest(spark: SparkSession, history: Sequence[Step | Restart | Crash], question: Question) -> None:
    with tempfile.TemporaryDirectory() as place:
        player = played(Path(place), history)
        directory = player.directory
        for asked in (EVERYTHING, question):
            require_answer(player, asked, lambda one: source(spark, one, path=directory), "data source")
            require_answer(player, asked, lambda one: table(spark, directory, one), "sealed and unsealed")
        assert check_directory(str(directory)).damages == []
        # Now everything is sealed, and the tree of sealed segments says all of it, by itself.
        player.play([Convert(), Sweep()])
        require_live_rows_in_each_file(player)
        require_answer(player, question, lambda one: table(spark, directory, one, with_unsealed=False), "sealed")
        tree = directory / "sealed"
        for way, frame in (
            ("data source, filters left to Spark", source(spark, question, path=tree, filterPushdown="false")),
            ("table", table(spark, tree, question, with_unsealed=False)),
        ):
            require_answer_of_tree(player, question, found_rows(frame.toArrow()), f"sealed tree, {way}, {question}")


# A machine that is busy needs several times as long; ended in the middle of a call, the session is of no use any more.
@pytest.mark.slow("runs Spark")
@pytest.mark.timeout(900)
@SHORT
@given(histories, questions)
@example(TRIMMED, EVERYTHING)
def test_a_query_finds_what_any_history_left(
    spark: SparkSession, history: tuple[Step | Restart | Crash, ...], question: Question
) -> None:
    at_rest(spark, history, question)


@pytest.mark.slow("runs Spark")
@settings(SHORT, max_examples=40)
@given(histories, questions)
def test_the_data_source_gives_what_any_history_left(
    history: tuple[Step | Restart | Crash, ...], question: Question
) -> None:
    with tempfile.TemporaryDirectory() as place:
        player = played(Path(place), history)
        answer_without_spark(player, EVERYTHING)
        answer_without_spark(player, question)


@pytest.mark.slow("runs Spark")
@pytest.mark.parametrize("history", [RICH, SHARED], ids=["own files", "shared files"])
def test_a_directory_in_use_is_read_whole_by_its_server_and_by_its_path(
    spark: SparkSession, tmp_path: Path, history: Sequence[Step | Restart | Crash]
) -> None:
    player = played(tmp_path, history)
    with running(player.directory) as server:
        address = f"127.0.0.1:{server.ports['tcp']}"

        async def go_on() -> None:
            async with open_adapter(f"journal://{address}") as adapter:
                for shard in (PLAIN, SWITCHED):
                    await append_and_note(adapter, player.shards[shard], shard, 5)
                await adapter.convert(PLAIN)
                await adapter.set_mode(SWITCHED, Mode.MEMORY)
                for shard in (PLAIN, SWITCHED, FOLDED):
                    await append_and_note(adapter, player.shards[shard], shard, 3)
                await adapter.trim(PLAIN, player.shards[PLAIN].end - 6)
                player.shards[PLAIN].start = player.shards[PLAIN].end - 6

        trio.run(go_on)
        path = player.directory
        chosen = Question(("#", "$hidden/#"), (Comparison("offset", ">=", 4), Comparison("topic", ">", "fold")))
        for asked in (EVERYTHING, chosen):
            require_answer(player, asked, lambda one: source(spark, one, server=address), "server")
            require_answer(player, asked, lambda one: source(spark, one, server=address, path=path), "server and path")
            require_answer(player, asked, lambda one: source(spark, one, path=path), "path in use")
            require_answer(player, asked, lambda one: table(spark, path, one), "sealed and unsealed, in use")
        assert any(kept.in_memory for kept in player.shards[SWITCHED].kept.values())
        server.kill()
    player.lose_memory()
    require_answer(player, EVERYTHING, lambda one: source(spark, one, path=player.directory), "after a kill")


async def append_and_note(adapter: StorageAdapter, shard: ShardModel, name: str, count: int) -> None:
    """Append records and note what the server made of them."""
    records = [
        Record(b"%d" % number, b"k", "", NOW_US + number, (("h", b"\xff"), ("h", b"")), ("ü",))
        for number in range(count)
    ]
    got = await adapter.append(name, records)
    assert got.base_offset == shard.end
    for stored in (await adapter.read(name, got.base_offset)).records:
        assert isinstance(stored, StoredRecord)
        kept = Kept(records[stored.offset - got.base_offset], stored.append_time_us, got.level is AckLevel.MEMORY)
        shard.kept[stored.offset] = kept
    shard.end += count


@pytest.mark.long
@pytest.mark.timeout(0)
@LONG
@given(histories, questions)
def test_a_query_finds_what_any_history_left_for_long(
    spark: SparkSession, history: tuple[Step | Restart | Crash, ...], question: Question
) -> None:
    at_rest(spark, history, question)


@pytest.mark.long
@pytest.mark.timeout(0)
@settings(LONG, max_examples=2000)
@given(histories, questions)
def test_the_data_source_gives_what_any_history_left_for_long(
    history: tuple[Step | Restart | Crash, ...], question: Question
) -> None:
    with tempfile.TemporaryDirectory() as place:
        player = played(Path(place), history)
        answer_without_spark(player, EVERYTHING)
        answer_without_spark(player, question)
