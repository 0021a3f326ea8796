"""A session as the commands and the tests use it."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

import spark_export
from spark_export.session import java_options


def test_python_processes_of_spark_run_this_python_and_find_this_package(spark: SparkSession) -> None:
    def tell(_number: int) -> tuple[str, str]:
        import sys

        import spark_export.session

        return sys.executable, spark_export.session.__file__

    [(python, package)] = spark.sparkContext.parallelize([1], 1).map(tell).collect()
    assert python == sys.executable
    assert Path(package).parent == Path(spark_export.__file__).parent


def test_results_come_back_through_arrow_in_utc(spark: SparkSession) -> None:
    table = spark.sql("select timestamp'2026-01-31 12:00:00' as t").toArrow()
    assert table["t"][0].as_py().isoformat() == "2026-01-31T12:00:00+00:00"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_options_of_the_users_for_java_come_last_and_its_collector_is_the_only_one() -> None:
    assert java_options("", debug=True).endswith("-XX:+UseParallelGC")
    assert "log4j2.configurationFile" in java_options("", debug=False)
    for given in ("-XX:+UseG1GC -Da=b", "-Da=b -XX:+UseZGC"):
        options = java_options(given, debug=False)
        assert options.endswith(given)
        assert options.count("GC") == 1
