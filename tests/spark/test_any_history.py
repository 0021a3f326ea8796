"""Any history of appends, seals, trims, deletions and crashes: a query finds what is acknowledged and not trimmed.

Each record once and with every field, wherever it lies: in sealed segments, in logs closed or open, in the journal of a
process that was killed, and, with a server, in memory.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from pyspark.sql import DataFrame, SparkSession

from journal.check import check_directory
from spark_export.conditions import Condition
from spark_export.sealed_table import read_sealed
from tests.spark.any_history import histories, questions
from tests.spark.history_model import EVERYTHING, Question, found_rows, kept_rows, require_same
from tests.spark.history_player import Crash, Player, Restart, Seal, Step
from tests.spark.stores import planned

SHORT = settings(
    max_examples=10, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
LONG = settings(max_examples=300, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
ALL_SHARDS = ("#",)


def source(spark: SparkSession, question: Question, **options: object) -> DataFrame:
    """The answer of the data source."""
    texts = {name: str(value) for name, value in options.items()}
    asked = {"topics": json.dumps(question.topics), "shards": json.dumps(ALL_SHARDS), **texts}
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


def at_rest(spark: SparkSession, history: Sequence[Step | Restart | Crash], question: Question) -> None:
    with tempfile.TemporaryDirectory() as place:
        player = played(Path(place), history)
        directory = player.directory
        for asked in (EVERYTHING, question):
            require_answer(player, asked, lambda one: source(spark, one, path=directory), "data source")
            require_answer(player, asked, lambda one: table(spark, directory, one), "sealed and unsealed")
        assert check_directory(str(directory)).damages == []
        # Now the tree of sealed segments says all of it, by itself.
        player.play([Seal()])
        tree = directory / "sealed"
        require_answer(player, EVERYTHING, lambda one: source(spark, one, path=tree), "data source, sealed tree")
        require_answer(player, question, lambda one: table(spark, tree, one, with_unsealed=False), "sealed tree")


@SHORT
@given(histories, questions)
def test_a_query_finds_what_any_history_left(
    spark: SparkSession, history: tuple[Step | Restart | Crash, ...], question: Question
) -> None:
    at_rest(spark, history, question)


@settings(SHORT, max_examples=40)
@given(histories, questions)
def test_the_data_source_gives_what_any_history_left(
    history: tuple[Step | Restart | Crash, ...], question: Question
) -> None:
    with tempfile.TemporaryDirectory() as place:
        player = played(Path(place), history)
        answer_without_spark(player, EVERYTHING)
        answer_without_spark(player, question)


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
