"""The Spark that a command runs in: the options that shape it, and the session for the length of a command."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import attrs
from cyclopts import Parameter

from command_line.boundary import CommandError, UsageError
from command_line.output import waiting
from spark_export.cli.failures import explain

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


DEFAULT: Final = SparkOptions()


def named_values(option: str, given: Sequence[str], *, example: str) -> dict[str, str]:
    """What an option says that is given as NAME=VALUE, several times maybe.

    Raises:
        UsageError: One of them is not of that form.
    """
    values = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise UsageError(f"{option} {each!r} is not NAME=VALUE, like {example}")
        values[name] = value
    return values


@contextmanager
def running_spark(options: SparkOptions) -> Iterator[SparkSession]:
    """A session for the length of the block: the one that runs in this process already, or one that ends with it."""
    settings = named_values("--conf", options.conf, example="spark.sql.shuffle.partitions=64")
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
    except Exception as error:
        # Spark's errors ask Java for their text, and Java is about to end.
        told = explain(error)
        if told is None:
            raise
        raise CommandError(told) from RuntimeError(str(error)).with_traceback(error.__traceback__)
    finally:
        end_session(session)
