"""Runs that kill themselves with SIGKILL before a step of the file system; a program, see `KilledUpdates`.

It imports everything once, and forks for each run, so a run takes a fraction of a second.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[2]
STEPS = ("open", "link", "rename", "remove", "mkdir", "sync_directory")
FILE_STEPS = ("pwritev", "fsync")


class KilledUpdates:
    """A process whose children update a table and kill themselves; a context manager."""

    def __enter__(self) -> Self:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()

    def run(self, place: Path, step: int, **changes: Any) -> str:
        """Update the table of a place; return the step before which it was killed, or "done" if it has fewer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(place), step, changes]) + "\n")
        self._process.stdin.flush()
        return str(json.loads(self._process.stdout.readline()))


def _main() -> None:
    from deltalake import DeltaTable  # noqa: F401

    from spark_export.tables.files import TableFileSystem
    from spark_export.tables.updater import TableUpdater
    from tests.tables.declared import declared, tree

    class Countdown:
        def __init__(self, step: int, told: int) -> None:
            self.left = step
            self._told = told
            self._begun: set[str] = set()

        def count(self, name: str, path: str) -> None:
            if name == "pwritev":
                # A file that is half written is like one that is empty: nobody looks into either.
                if path in self._begun:
                    return
                self._begun.add(path)
            self.left -= 1
            if not self.left:
                os.write(self._told, f"{name} {path}".encode())
                os.kill(os.getpid(), signal.SIGKILL)

    def wrapped(inner: Any, names: tuple[str, ...], countdown: Countdown, path: str = "") -> Any:
        """The same object, but with some methods counted."""

        class Counted:
            def __getattr__(self, name: str) -> Any:
                found = getattr(inner, name)
                if name not in names:
                    return found

                def call(*arguments: Any, **more: Any) -> Any:
                    reads = name == "open" and not more.get("create")
                    place = path or arguments[0]
                    if not reads:
                        countdown.count(name, place)
                    answer = found(*arguments, **more)
                    return wrapped(answer, FILE_STEPS, countdown, place) if name == "open" and not reads else answer

                return call

        return Counted()

    def update(place: str, step: int, changes: dict[str, Any], told: int) -> None:
        files = wrapped(TableFileSystem(), STEPS, Countdown(step, told))
        rebuild = changes.pop("rebuild", False)
        table = declared(Path(place), **changes)
        with TableUpdater(table, tree(Path(place)), rebuild=rebuild, files=files) as updater:
            while updater.add_batch() is not None:
                pass
            while updater.merge_files() is not None:
                pass
        os.write(told, b"done")

    def in_child(work: Callable[[int], None]) -> str:
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            try:
                work(writing)
            finally:
                os._exit(0)
        os.close(writing)
        os.waitpid(pid, 0)
        with os.fdopen(reading) as answer:
            return answer.read()

    for line in sys.stdin:
        place, step, changes = json.loads(line)
        print(json.dumps(in_child(lambda told: update(place, step, changes, told))), flush=True)  # noqa: B023


if __name__ == "__main__":
    _main()
