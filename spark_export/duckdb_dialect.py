"""Queries in Spark's SQL for DuckDB: the same text, where it is standard. Pure.

sqlglot parses the query and writes it again. Here is what it does not know: levels of topics, and that a member of JSON
as text has no quotation marks.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from spark_export.errors import QueryError

Expression: TypeAlias = Any
"""A node of a parsed query; the name of its type in sqlglot depends on the version."""

_READ: Final = "databricks"
_TOPIC: Final = "topic"


def translate(query: str) -> str:
    """One query for DuckDB.

    Raises:
        QueryError: It is not one query, or has something that DuckDB lacks.
    """
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import ErrorLevel, ParseError, SqlglotError, UnsupportedError

    try:
        [tree] = [each for each in sqlglot.parse(query, read=_READ) if each is not None]
    except ParseError as error:
        raise QueryError(_told(error)) from error
    except SqlglotError as error:
        raise QueryError(f"the query cannot be read: {' '.join(str(error).split())}") from error
    except ValueError as error:
        raise QueryError("give one query, without a second one behind a semicolon") from error
    if not isinstance(tree, exp.Query | exp.Describe):
        raise QueryError("with --engine duckdb only queries are possible, which begin with SELECT or WITH")
    try:
        return str(tree.transform(_changed).sql(dialect="duckdb", identify=True, unsupported_level=ErrorLevel.RAISE))
    except UnsupportedError as error:
        raise QueryError(
            f"DuckDB has nothing for a part of the query ({' '.join(str(error).split())}); use --engine spark"
        ) from error


def _changed(node: Expression) -> Expression:
    from sqlglot import exp

    if isinstance(node, exp.Bracket) and _is_topic(node.this) and len(node.expressions) == 1:
        return _level(node.this, node.expressions[0])
    if (
        isinstance(node, exp.Cast)
        and isinstance(node.this, exp.JSONExtract)
        and node.to.is_type(*exp.DataType.TEXT_TYPES)
    ):
        member: Any = node.this
        return exp.JSONExtractScalar(this=member.this, expression=member.expression)
    return node


def _is_topic(node: Expression | None) -> bool:
    from sqlglot import exp

    return isinstance(node, exp.Column) and node.name.lower() == _TOPIC


def _level(topic: Expression, number: Expression) -> Expression:
    from sqlglot import exp

    # The elements of a list are counted from 1 in DuckDB, and from -1 from its end, as here.
    counted = (
        number if isinstance(number, exp.Neg) else exp.Add(this=exp.paren(number), expression=exp.Literal.number(1))
    )
    levels = exp.Anonymous(this="string_split", expressions=[topic, exp.Literal.string("/")])
    return exp.Anonymous(this="list_extract", expressions=[levels, counted])


def _told(error: Any) -> str:
    found = error.errors[0] if error.errors else {}
    what = " ".join(str(found.get("description") or error).split()).rstrip(".")
    place = f"line {found['line']}, column {found['col']}: " if found.get("line") and found.get("col") else ""
    return f"{place}{what}"
