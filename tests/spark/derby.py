"""What tests do to a Derby database beside exporting to it."""

from __future__ import annotations

from pyspark.sql import SparkSession


def tables(spark: SparkSession, url: str) -> set[str]:
    query = "select tablename from sys.systables where tabletype = 'T'"
    return {row[0].lower() for row in spark.read.format("jdbc").options(url=url, query=query).load().collect()}


def run_table(spark: SparkSession, url: str) -> str:
    """The table that the tasks of a run have written."""
    (found,) = (name for name in tables(spark, url) if name.startswith("journal_run_"))
    return found


def statement(spark: SparkSession, url: str, sql: str) -> None:
    connection = spark._jvm.java.sql.DriverManager.getConnection(url)
    try:
        connection.createStatement().executeUpdate(sql)
    finally:
        connection.close()


def add_attempts(spark: SparkSession, url: str) -> None:
    """Have the table of a run as if another attempt of each task had committed, too, without an answer."""
    table = run_table(spark, url)
    columns = spark.read.format("jdbc").options(url=url, dbtable=table).load().columns
    given = ", ".join(f'"{one}"' for one in columns)
    taken = given.replace('"journal_attempt"', '"journal_attempt" + 1000000')
    statement(spark, url, f"INSERT INTO {table} ({given}) SELECT {taken} FROM {table}")
