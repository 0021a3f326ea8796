"""``python -m benchmarks.export_load DATA DRIVER JDBC_URL URL ROUNDS``: exports to PostgreSQL, as JSON on stdout.

Each round is an export to a new table, then a COPY of the same rows into another table of the same kind; one additional
round at the beginning is not counted.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import psycopg

from spark_export.export import ExportOptions, run_export
from spark_export.session import end_session, make_session


def main() -> None:
    path, driver, target, url, rounds = sys.argv[1:]
    settings = {"spark.driver.extraClassPath": driver}
    spark = make_session("journal benchmark", extra=settings)
    figures: dict[str, list[float]] = {"export": [], "copy": []}
    try:
        for number in range(int(rounds) + 1):
            table = f"exported_{number}"
            options = ExportOptions(path=path, target=target, format="jdbc", table=table, name=f"bench{number}")
            exported = _timed(lambda options=options: run_export(spark, options).records)
            copied = _copy(url, table)
            if number:
                figures["export"].append(exported)
                figures["copy"].append(copied)
    finally:
        end_session(spark)
    print(json.dumps(figures))


def _copy(url: str, table: str) -> float:
    """Rows per second of a COPY of a table's rows, as text, by one connection in one transaction."""
    with psycopg.connect(url) as connection:
        with connection.cursor().copy(f"COPY {table} TO STDOUT".encode()) as reading:
            chunks = [bytes(chunk) for chunk in reading]
        connection.execute(f"CREATE TABLE {table}_copied (LIKE {table} INCLUDING ALL)".encode())
        connection.commit()

        def copy() -> int:
            cursor = connection.cursor()
            with cursor.copy(f"COPY {table}_copied FROM STDIN".encode()) as writing:
                for chunk in chunks:
                    writing.write(chunk)
            connection.commit()
            return cursor.rowcount

        return _timed(copy)


def _timed(work: Callable[[], int]) -> float:
    begun_s = time.perf_counter()
    count = work()
    return count / (time.perf_counter() - begun_s)


if __name__ == "__main__":
    main()
