"""Check of ``sealed/`` and ``sealing/``: the shared files, whatever else is there, and leftovers."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable

from journal.check.journal_files import CheckedJournal
from journal.check.report import Progress, Report
from journal.check.shared_files import SharedPass, is_date_directory
from journal.check.views import CheckedViews
from journal.engine.directory.data_directory import MARKER
from shards.delta.log_files import ASIDE, LOG
from shards.seams.file_system import FileSystem


class SealedPass:
    """The check of ``sealed/`` and ``sealing/``.

    Args:
        files: The file system.
        path: The data directory.
        views: The result of the check of the views.
        journal: The result of the check of the journal, whose decisions the views may not contain yet.
        report: Gets the findings.
        progress: Called with the bytes read so far.
    """

    def __init__(
        self,
        files: FileSystem,
        path: str,
        views: CheckedViews,
        journal: CheckedJournal,
        report: Report,
        progress: Progress | None,
    ) -> None:
        self._files = files
        self._root = f"{path}/sealed"
        self._sealing = f"{path}/sealing"
        self._views = views
        self._journal = journal
        self._report = report
        self._shared = SharedPass(
            files, self._root, views, journal, self._read_places(), self._name_of, report, progress
        )

    def check(self) -> None:
        """Check everything."""
        self._shared.check_recorded()
        for directory in self._listed(self._root):
            if is_date_directory(posixpath.basename(directory)):
                self._shared.check_directory(directory)
            elif posixpath.basename(directory) not in (MARKER, LOG, ASIDE):
                self._report.note(directory, 0, "a directory of Parquet segments has no such name")
        for path in self._listed(self._sealing):
            self._report.note(path, 0, "left over from a conversion that was not finished; the next start removes it")

    def _listed(self, directory: str) -> Iterable[str]:
        names = self._files.listdir(directory) if self._files.exists(directory) else []
        return [f"{directory}/{name}" for name in names]

    def _read_places(self) -> set[str]:
        """Files that were moved into place shortly before the end, as their notes in ``sealing/`` name them."""
        placed: set[str] = set()
        for path in self._listed(self._sealing):
            content = self._read_json(path) if path.endswith(".place") else None
            if isinstance(content, dict) and isinstance(content.get("files"), list):
                placed.update(f"{self._root}/{place}" for place in content["files"])
        return placed

    def _read_json(self, path: str) -> object:
        file = self._files.open(path, write=False)
        try:
            return json.loads(file.pread(file.size(), 0))
        except ValueError:
            return None
        finally:
            file.close()

    def _name_of(self, shard_id: int) -> str:
        record = self._views.shards.get(shard_id)
        return record.name if record is not None else self._journal.created.get(shard_id, "")
