"""The Spark that a command runs in: the options that shape it, and the session for the length of a command."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import attrs
from cyclopts import Parameter

from command_line.boundary import UsageError
from command_line.output import waiting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@Parameter(name="*")
@attrs.frozen
class SparkOptions:
    """How to run Spark.

    Attributes:
        memory: Heap of Spark's Java process, like 4g.
        cores: Tasks at a time; all processors by default.
        conf: A setting of Spark's, as NAME=VALUE; may be given several times.
        spark_log: Let what Spark itself says come out on stderr.
    """

    memory: str = "2g"
    cores: int | None = None
    conf: tuple[str, ...] = ()
    spark_log: Annotated[bool, Parameter(negative="")] = False

    def settings(self) -> dict[str, str]:
        """Those of `conf`.

        Raises:
            UsageError: One of them is not NAME=VALUE.
        """
        settings = {}
        for each in self.conf:
            name, equals, value = each.partition("=")
            if not name or not equals:
                raise UsageError(f"--conf {each!r} is not NAME=VALUE, like spark.sql.shuffle.partitions=64")
            settings[name] = value
        return settings


DEFAULT: Final = SparkOptions()


@contextmanager
def running_spark(options: SparkOptions) -> Iterator[SparkSession]:
    """A session for the length of the block: the one that runs in this process already, or one that ends with it."""
    settings = options.settings()
    from pyspark.sql import SparkSession

    from spark_export.session import end_session, make_session

    if (active := SparkSession.getActiveSession()) is not None:
        yield active
        return
    # A result on one machine needs no hundreds of partitions, Spark's default.
    cores = options.cores or os.cpu_count() or 1
    with waiting("starting Spark"):
        session = make_session(
            "journal-spark",
            cores=options.cores or "*",
            memory=options.memory,
            extra={"spark.sql.shuffle.partitions": str(4 * cores), **settings},
            debug=options.spark_log,
        )
    try:
        yield session
    finally:
        end_session(session)
