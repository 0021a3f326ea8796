"""A `LogLibrary` that folds the commits of a Delta log, for any file system: the real library reads only the machine's.

It makes no checkpoints. Files with unreadable content raise, as in the real one.
"""

from __future__ import annotations

import json
import re
from typing import Any

from shards.delta.actions import APPLICATION, PresentFile
from shards.delta.log_files import LOG
from shards.delta.log_library import TableState, UnreadableTableError
from shards.seams.file_system import FileSystem

_COMMIT = re.compile(r"\d{20}\.json")


class JsonLog:
    """The log of the tables on a file system."""

    def __init__(self, files: FileSystem) -> None:
        self._files = files

    def read(self, root: str) -> TableState:
        directory = f"{root}/{LOG}"
        names = [name for name in self._files.listdir(directory) if _COMMIT.fullmatch(name)]
        if not names or names != [f"{version:020}.json" for version in range(len(names))]:
            raise UnreadableTableError(f"{directory} has the commits {names}")
        present: dict[str, PresentFile] = {}
        found: dict[str, Any] = {"txn": {"version": -1}}
        for name in names:
            for action in self._actions(f"{directory}/{name}"):
                found |= action if action.get("txn", {}).get("appId", APPLICATION) == APPLICATION else {}
                if "add" in action:
                    present[action["add"]["path"]] = PresentFile(action["add"]["path"], action["add"]["size"])
                elif "remove" in action:
                    del present[action["remove"]["path"]]
        try:
            return TableState(
                version=len(names) - 1,
                schema=json.loads(found["metaData"]["schemaString"]),
                is_plain=found["protocol"] == {"minReaderVersion": 1, "minWriterVersion": 2},
                partitions=tuple(found["metaData"]["partitionColumns"]),
                lsn=found["txn"]["version"],
                files=present,
            )
        except KeyError as error:
            raise UnreadableTableError(f"{directory} has no {error}") from error

    def _actions(self, path: str) -> list[dict[str, Any]]:
        file = self._files.open(path, write=False)
        try:
            return [json.loads(line) for line in file.pread(file.size(), 0).splitlines()]
        except ValueError as error:
            raise UnreadableTableError(f"{path}: {error}") from error
        finally:
            file.close()

    def make_checkpoint(self, root: str) -> None:
        """Do nothing."""

    def remove_old_versions(self, root: str) -> None:
        """Do nothing."""
