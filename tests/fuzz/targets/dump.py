"""`journal dump` of one file of a data directory."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from command_line.boundary import CommandError
from journal.cli.dump import dump
from shards.errors import StorageError
from tests.fuzz.target import Target
from tests.fuzz.targets import journal_files, parquet, segments

_KINDS = ("log", "index", "journal", "parquet")
_SOURCES: dict[str, Target] = {
    "log": next(target for target in segments.TARGETS if target.name == "log_segments"),
    "index": next(target for target in segments.TARGETS if target.name == "sparse_index"),
    "journal": next(target for target in journal_files.TARGETS if target.name == "journal_files"),
    "parquet": next(target for target in parquet.TARGETS if target.name == "shared_file"),
}


def run_dump(data: bytes) -> None:
    """A file is shown, or refused by a CommandError or a StorageError; in JSON each line is an object."""
    if not data:
        return
    kind = _KINDS[data[0] % len(_KINDS)]
    content = data[1:]
    if kind == "journal":
        content = next(iter(journal_files.files_of(content).values()), b"")
    with tempfile.TemporaryDirectory(prefix="fuzz-dump-") as directory:
        path = os.path.join(directory, f"file.{kind}")
        Path(path).write_bytes(content)
        for as_json in (True, False):
            out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
            try:
                with contextlib.redirect_stdout(out):
                    dump(path, records=True, json=as_json)
            except (CommandError, StorageError):
                pass
            out.flush()
            if as_json:
                for line in out.buffer.getvalue().splitlines():  # type: ignore[attr-defined]
                    assert isinstance(json.loads(line), dict)


def _seeds() -> Sequence[bytes]:
    made = []
    for number, kind in enumerate(_KINDS):
        made += [bytes((number,)) + data for data in _SOURCES[kind].seeds() if len(data) < 15_000]
    return made


def _repair(data: bytes) -> bytes:
    if not data:
        return data
    repair: Callable[[bytes], bytes] = _SOURCES[_KINDS[data[0] % len(_KINDS)]].repair
    return data[:1] + repair(data[1:])


TARGETS = (Target("dump", run_dump, _seeds, _repair, max_input_bytes=16_384, max_growth_bytes=64 << 20, is_slow=True),)
