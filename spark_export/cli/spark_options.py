"""Options for the Spark of a command, and the session that the command uses."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated, Final

import attrs
from cyclopts import Parameter

from command_line.boundary import CommandError, UsageError
from command_line.output import waiting
from spark_export.cli.failures import explain
from spark_export.errors import is_secret

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@Parameter(name="*")
@attrs.frozen
class SparkOptions:
    """Options for running Spark.

    Attributes:
        memory: Heap of Spark's Java process, like 4g.
        cores: Number of parallel tasks; by default one per processor.
        conf: A setting of Spark, as NAME=VALUE; may be given several times.
        spark_log: Print Spark's own log on stderr.
    """

    memory: str = "2g"
    cores: int | None = None
    conf: tuple[str, ...] = ()
    spark_log: Annotated[bool, Parameter(negative="")] = False


DEFAULT: Final = SparkOptions()


def named_values(option: str, given: Sequence[str], *, example: str) -> dict[str, str]:
    """The values of an option that is given as NAME=VALUE, possibly several times.

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
def running_spark(options: SparkOptions, *, makes_archive: bool = False) -> Iterator[SparkSession]:
    """A Spark session as a context manager: that of this process if there is one, or a new one that ends with it.

    Args:
        options: How to run it.
        makes_archive: At the end of the context, write the class archive if it is time to. That takes some seconds, so
            the context should have printed its results by then.
    """
    settings = named_values("--conf", options.conf, example="spark.sql.shuffle.partitions=64")
    if shown := next(filter(is_secret, settings), None):
        raise UsageError(
            f"--conf {shown}=... is visible to all users of this machine; put it into spark-defaults.conf in a "
            f"directory of your own, and name that in SPARK_CONF_DIR"
        )
    from pyspark.sql import SparkSession

    from spark_export.class_archive import find_archive
    from spark_export.jvm import find_java
    from spark_export.session import end_session, make_session

    if (active := SparkSession.getActiveSession()) is not None:
        yield active
        return
    # A result on one machine does not need hundreds of partitions, Spark's default.
    cores = options.cores or os.cpu_count() or 1
    java = find_java()
    archive = find_archive(java, settings.get("spark.driver.extraJavaOptions", ""), may_be_made=makes_archive)
    with waiting("starting Spark"):
        session = make_session(
            "journal-spark",
            cores=options.cores or "*",
            memory=options.memory,
            extra={"spark.sql.shuffle.partitions": str(4 * cores), **settings},
            java=java,
            archive=archive,
            debug=options.spark_log,
        )
    is_done = False
    try:
        yield session
        is_done = True
    except Exception as error:
        # Spark's errors get their text from Java, which is about to end.
        message = explain(error)
        if message is None:
            raise
        raise CommandError(message) from RuntimeError(str(error)).with_traceback(error.__traceback__)
    finally:
        # An archive that Java did not write completely is not kept.
        status = 1
        makes_it = archive is not None and archive.aside is not None
        try:
            with waiting("storing Java's classes, for faster starts") if makes_it else nullcontext():
                # After an error the archive is not waited for.
                status = end_session(session, kills_java=makes_it and not is_done)
        finally:
            if archive is not None:
                archive.settle(status)
