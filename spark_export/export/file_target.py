"""Exports to a directory. A run is a directory in it, which appears by one rename.

::

    target/
      run=default-00000001/               a published run, never changed again
        _export.json                      state after it: how far each shard was read
        date=2026-03-01/topic_dir=plant%2Fa/part-....parquet
      _writing-default-00000002-1f2e3d4c/ a run being written, or killed: readers ignore names with an underscore

State and data are renamed together, so they cannot differ; and a run number can be used only once, because a rename
never replaces an existing directory. Readers list either the whole run or nothing of it.
"""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING, Final

from spark_export.export.options import ExportOptions
from spark_export.export.outcome import ExportConflictError, ExportError
from spark_export.export.rows import DIRECTORY_COLUMNS, gathered, ordered
from spark_export.export.state import BEFORE_FIRST, ExportState
from spark_export.hadoop_files import ATOMIC_RENAME_SCHEMES, HadoopFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_STATE = "_export.json"


class FileTarget:
    """A directory.

    Args:
        spark: The session that writes.
        options: The export.

    Raises:
        ExportError: The file system cannot rename a directory in one step.
        UnreadableError: It cannot be reached.
    """

    def __init__(self, spark: SparkSession, options: ExportOptions) -> None:
        self._options = options
        self._root = options.target.rstrip("/")
        self._files = HadoopFiles(spark, self._root)
        if not self._files.renames_atomically:
            raise ExportError(
                f"{self._root} is on a file system ({self._files.scheme}) that does not rename directories in one "
                "step, so readers would see runs half: export to a database, or to one of "
                f"{', '.join(sorted(ATOMIC_RENAME_SCHEMES))} and copy from there"
            )
        self._written = ""
        name = re.escape(options.name)
        self._published_name = re.compile(rf"run={name}-([0-9]{{8}})")
        self._writing_name = re.compile(rf"_writing-{name}-([0-9]{{8}})-[0-9a-f]+")

    @property
    def shown(self) -> str:
        """The directory, for messages."""
        return self._root

    def last_state(self) -> ExportState:
        """The state after the last published run."""
        last = max(self._numbered(self._published_name), default=None)
        if last is None:
            return BEFORE_FIRST
        path = f"{self._root}/{last[1]}/{_STATE}"
        return ExportState.decode(self._files.read_text(path), path)

    def write(self, rows: DataFrame, run: int) -> int:
        """Write the rows of a run to a directory that no reader sees; return their number."""
        from pyspark.sql import Observation, functions

        options = self._options
        written = Observation()
        self._written = f"{self._root}/_writing-{options.name}-{run:08}-{secrets.token_hex(4)}"
        counted = gathered(rows, options).observe(written, functions.count(functions.lit(1)).alias("records"))
        writer = ordered(counted, options).write.format(options.format).mode("error")
        if options.partition_by:
            writer = writer.partitionBy(*(DIRECTORY_COLUMNS[one] for one in options.partition_by))
        writer.options(**WRITER_OPTIONS[options.format]).save(self._written)
        return int(written.get["records"])

    def publish(self, state: ExportState) -> None:
        """Rename the run's directory, with the state in it."""
        self._files.write_text(f"{self._written}/{_STATE}", state.encode())
        target = f"{self._root}/run={self._options.name}-{state.run:08}"
        if not self._files.publish(self._written, target):
            raise self.conflict(state.run)
        self._written = ""

    def conflict(self, run: int) -> ExportConflictError:
        """The error for a run that another process published first."""
        return ExportConflictError(
            f"run {run} of export {self._options.name!r} to {self._root} was published by another process while this "
            "one was writing it: nothing of this one was added; run it again for what is new since then"
        )

    def abandon(self) -> None:
        """Remove the unpublished files of this run."""
        if self._written:
            self._files.delete(self._written)

    def clean(self, run: int) -> None:
        """Remove the unpublished files of killed runs up to this number."""
        for number, name in self._numbered(self._writing_name):
            if number <= run:
                self._files.delete(f"{self._root}/{name}")

    def _numbered(self, pattern: re.Pattern[str]) -> list[tuple[int, str]]:
        found = ((pattern.fullmatch(name), name) for name in self._files.names(self._root))
        return [(int(match[1]), name) for match, name in found if match]


_TIMES = {"timeZone": "UTC", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'"}
WRITER_OPTIONS: Final[dict[str, dict[str, str]]] = {
    "parquet": {"compression": "zstd"},
    "json": {**_TIMES, "ignoreNullFields": "false"},
    # A quote inside a text is doubled, as in RFC 4180, and spaces are kept.
    "csv": {
        **_TIMES,
        "header": "true",
        "escape": '"',
        "quoteAll": "true",
        "ignoreLeadingWhiteSpace": "false",
        "ignoreTrailingWhiteSpace": "false",
    },
}
