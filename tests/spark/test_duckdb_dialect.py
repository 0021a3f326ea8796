"""Queries in Spark's SQL for DuckDB."""

from __future__ import annotations

import pytest

from spark_export.duckdb_dialect import translate
from spark_export.errors import QueryError


def test_names_are_quoted_because_some_are_words_of_sql() -> None:
    assert translate("select offset, timestamp from records") == 'SELECT "offset", "timestamp" FROM "records"'


@pytest.mark.parametrize("query", ["", "-- nothing", "select 1; select 2"])
def test_there_has_to_be_one_query(query: str) -> None:
    with pytest.raises(QueryError, match="one query"):
        translate(query)


@pytest.mark.parametrize("query", ["drop view records", "insert into records values (1)", "create table t (a int)"])
def test_only_queries_are_answered(query: str) -> None:
    with pytest.raises(QueryError, match="only queries"):
        translate(query)


def test_an_error_names_the_place() -> None:
    with pytest.raises(QueryError, match=r"line 2, column \d+: "):
        translate("select topic\nfrom where")
