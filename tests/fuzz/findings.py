"""Findings: inputs that broke an invariant, one file for each place in which they did."""

from __future__ import annotations

import hashlib
import traceback
from pathlib import Path
from typing import Final

import attrs

from tests.fuzz.target import LargeInputError, SlowInputError, Target, run_bounded

CASES: Final = Path(__file__).parent / "cases"
"""Inputs that were findings once, in a directory for each target: the tests run each of them."""


@attrs.frozen
class Finding:
    """An input and what it led to.

    Attributes:
        place: Class of the exception and the line that it left; findings with the same one count as one.
        words: For people.
    """

    data: bytes
    place: str
    words: str


def find(target: Target, data: bytes) -> Finding | None:
    """Run an input; None if the invariant held."""
    try:
        run_bounded(target, data)
    except Exception as error:
        return Finding(data, _place_of(error), "".join(traceback.format_exception(error)))
    return None


def _place_of(error: Exception) -> str:
    if isinstance(error, SlowInputError | LargeInputError):
        return type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "site-packages" not in frame.filename and "/lib/python" not in frame.filename]
    last = (ours or frames)[-1]
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"


def save(finding: Finding, directory: Path) -> Path:
    """Write the input, and what it led to beside it; the file's name is the digest of the input."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / hashlib.sha256(finding.data).hexdigest()[:16]
    path.write_bytes(finding.data)
    path.with_suffix(".txt").write_text(f"{finding.place}\n\n{finding.words}")
    return path
