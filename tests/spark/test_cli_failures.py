"""Spark's errors in one line. The texts are Spark's own, shortened in the middle of their stack traces."""

from __future__ import annotations

import pytest

from spark_export.cli.failures import explain, summarize
from spark_export.errors import OptionError
from spark_export.jvm import JavaNotFoundError

UNKNOWN_COLUMN = """\
[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `topci` cannot be resolved. Did you mean one of \
[`topic`, `key`]. SQLSTATE: 42703; line 3 pos 1;
'Project [id#0L, 'topci]
+- SubqueryAlias records
"""
UNKNOWN_TABLE = """\
[TABLE_OR_VIEW_NOT_FOUND] The table or view `nowhere` cannot be found. Verify the spelling of the schema.
Search path: [`system`.`builtin`, `system`.`session`, `spark_catalog`.`default`].
To tolerate the error on drop use DROP VIEW IF EXISTS or DROP TABLE IF EXISTS. SQLSTATE: 42P01; line 1 pos 14;
'Project [*]
"""
BAD_SYNTAX = """
[PARSE_SYNTAX_ERROR] Syntax error at or near 'selec'. SQLSTATE: 42601 (line 1, pos 0)

== SQL ==
selec 1
^^^
"""
DIVISION = """\
[DIVIDE_BY_ZERO] Division by zero. Use `try_divide` to tolerate divisor being 0 and return NULL instead. SQLSTATE: 22012
== SQL (line 1, position 8) ==
select 1/0
       ^^^
"""
JAVA = """An error occurred while calling o218.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult:
\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(SparkThreadUtils.scala:70)
\tat java.base/java.lang.Thread.run(Thread.java:840)
Caused by: org.apache.spark.SparkRuntimeException: [SCALAR_SUBQUERY_TOO_MANY_ROWS] More than one row returned by a \
subquery used as an expression. SQLSTATE: 21000
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.multipleRowScalarSubqueryError(QueryExecutionErrors.scala:2)
\t... 2 more
"""
PYTHON = """\
Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times: org.apache.spark.SparkException: Traceback \
(most recent call last):
  File "/x/pyspark/worker.py", line 1, in read
    yield from it
spark_export.errors.DataLossError: shard 'a': offsets 3 to 9 are
\tat org.apache.spark.api.python.BasePythonRunner(PythonRunner.scala:1)
"""
OTHER_PYTHON = """\
Traceback (most recent call last):
  File "/x/a.py", line 1, in f
ZeroDivisionError: division by zero
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            UNKNOWN_COLUMN,
            "line 3, column 2: A column with name `topci` cannot be resolved. Did you mean one of [`topic`, `key`]",
        ),
        (
            UNKNOWN_TABLE,
            "line 1, column 15: The table or view `nowhere` cannot be found. Verify the spelling of the schema.",
        ),
        (BAD_SYNTAX, "line 1, column 1: Syntax error at or near 'selec'"),
        (
            DIVISION,
            "line 1, column 8: Division by zero. Use `try_divide` to tolerate divisor being 0 and return NULL instead",
        ),
        (JAVA, "More than one row returned by a subquery used as an expression"),
        (PYTHON, "shard 'a': offsets 3 to 9 are"),
        (OTHER_PYTHON, "ZeroDivisionError: division by zero"),
        ("", "Spark failed without a message"),
    ],
)
def test_one_line_holds_the_sense_and_the_place(text: str, line: str) -> None:
    assert summarize(text) == line


@pytest.mark.parametrize(
    ("text", "way_out"),
    [
        (
            "Total size of serialized results of 9 tasks (1 GiB) is bigger than spark.driver.maxResultSize (1 GiB)",
            "--limit",
        ),
        ("Job aborted\nCaused by: java.lang.OutOfMemoryError: Java heap space\n\tat x", "--memory"),
    ],
)
def test_what_has_a_way_out_names_it(text: str, way_out: str) -> None:
    assert way_out in summarize(text)


@pytest.mark.parametrize("error", [OptionError("option 'topics'\nis bad"), JavaNotFoundError("no Java")])
def test_errors_of_our_own_say_all_of_it(error: Exception) -> None:
    assert explain(error) == " ".join(str(error).split())


def test_other_errors_are_left_to_speak_for_themselves() -> None:
    assert explain(ValueError("x")) is None
