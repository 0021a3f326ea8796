"""Spark sessions for the command line and the tests: local, quiet, started with a Java that was found.

A program with a session of its own does not need this module: the data source works in any session.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_export.jvm import Java, find_java, why_it_ends

if TYPE_CHECKING:
    from typing import IO

    from py4j.java_gateway import JavaGateway
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    from spark_export.class_archive import ClassArchive

_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")
_JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
_COMPILE_LATER: Final = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 -XX:Tier4CompileThreshold=150000 "
    "-XX:Tier4BackEdgeThreshold=400000"
)
"""Ten times Java's own thresholds for its optimising compiler. Spark's start runs much code a few thousand times;
compiling it took a third of the processor time of a short query. Loops over records reach the thresholds in moments."""
_SETTINGS: Final[dict[str, str]] = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Spark passes filters to a load of the data source that requests them by its option `filterPushdown`.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    # For one machine: the default of 200 is for a cluster, and each costs every task a file.
    "spark.sql.shuffle.partitions": "16",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


class SparkStartError(Exception):
    """Spark did not start; the message has the last output of its Java."""


def make_session(
    app_name: str,
    *,
    cores: int | str = "*",
    memory: str = "2g",
    extra: Mapping[str, str] | None = None,
    java: Java | None = None,
    archive: ClassArchive | None = None,
    debug: bool = False,
) -> SparkSession:
    """Start Spark in a Java process of its own, on this machine; `end_session` ends both.

    Args:
        app_name: Name of the session in Spark.
        cores: Number of parallel tasks; `*` for one per processor.
        memory: Heap of the Java process (driver and tasks), as `512m` or `4g`.
        extra: Settings of Spark to add or override.
        java: The Java to use; None to search for one.
        archive: Class archive that Java uses, or writes at its end (`ClassArchive.settle`).
        debug: Print all output of Java on stderr; otherwise it is only shown if Spark does not start, and refused
            queries are only raised, not logged.

    Raises:
        JavaNotFoundError: There is no Java on which Spark runs.
        SparkStartError: Spark did not start.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    settings = {
        **_SETTINGS,
        "spark.app.name": app_name,
        "spark.master": f"local[{cores}]",
        "spark.driver.memory": memory,
        # Set because Spark may use tables: without it a directory appears in the user's working directory.
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / f"journal-spark-warehouse-{os.getuid()}"),
        **(extra or {}),
    }
    given = settings.get(_JAVA_OPTIONS, "")
    # The Python processes that Spark starts must find this package, however this process found it.
    own_path = str(Path(__file__).parent.parent)
    environment = {
        "JAVA_HOME": str((java or find_java()).home),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, [own_path, os.environ.get("PYTHONPATH", "")])),
    }
    with _environment(environment):
        try:
            conf, gateway = _launch(settings, java_options(given, archive, debug=debug), debug=debug)
        except SparkStartError:
            if archive is None or not archive.java_options:
                raise
            conf, gateway = _launch(settings, java_options(given, debug=debug), debug=debug)
            # It starts without the archive.
            archive.discard()
        if not debug:
            _silence_query_logs()
        SparkContext(conf=conf, gateway=gateway)
        return SparkSession.builder.getOrCreate()


def _launch(settings: Mapping[str, str], options: str, *, debug: bool) -> tuple[SparkConf, JavaGateway]:
    """Start Java."""
    from pyspark import SparkConf
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway

    conf = SparkConf(loadDefaults=False).setAll([*settings.items(), (_JAVA_OPTIONS, options)])
    with tempfile.TemporaryFile() as said:
        try:
            return conf, launch_gateway(conf, None if debug else {"stderr": said})  # type: ignore[no-untyped-call]
        except PySparkException as error:
            why = _last_words(said) or why_it_ends(os.environ["JAVA_HOME"]) or error
            raise SparkStartError(f"Spark did not start: {why}") from error


def java_options(given: str, archive: ClassArchive | None = None, *, debug: bool) -> str:
    """Options of the Java process: the defaults, then the given ones, which override them."""
    ours = [_COMPILE_LATER]
    if archive is not None and archive.java_options:
        ours.append(archive.java_options)
    if not re.search(r"-XX:[+-]Use\w*GC\b", given):
        # Java ends with an error if two garbage collectors are given.
        ours.append("-XX:+UseParallelGC")
    if not debug:
        ours.append(f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}")
    return " ".join([*ours, given]).rstrip()


def end_session(session: SparkSession, *, kills_java: bool = False) -> int:
    """Stop Spark and its Java process, and wait until both are gone.

    Args:
        kills_java: Kill Java after Spark has stopped, without its own shutdown work.

    Returns:
        The exit status of Java; 0 if this process did not start it.
    """
    from pyspark import SparkContext

    gateway: JavaGateway = SparkContext._gateway  # noqa: SLF001 - no public name leads to the Java process
    session.stop()
    gateway.shutdown()
    process = getattr(gateway, "proc", None)
    status = 0
    if process is not None:
        if kills_java:
            process.kill()
        # Java ends when its stdin is closed.
        process.stdin.close()
        status = process.wait()
    SparkContext._gateway = None  # noqa: SLF001 - or the next session would talk to the process that is gone
    SparkContext._jvm = None  # noqa: SLF001
    return status


def _silence_query_logs() -> None:
    """Stop PySpark from logging refused queries with their stack traces to stderr; it raises them as well."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _last_words(said: IO[bytes]) -> str:
    """The last lines of Java's output, as one."""
    said.seek(0)
    lines = said.read().decode(errors="replace").split("\n")
    return " ".join(line.strip() for line in lines[-6:] if line.strip())
