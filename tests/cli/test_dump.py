"""`journal dump` says what it can read when it is given something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from journal.cli.main import run


@pytest.mark.parametrize(
    ("content", "told"), [(b"", "is empty"), (b"PAR1....", "begins with b'PAR1'"), (b"x", "begins with b'x'")]
)
def test_a_file_of_another_kind_is_refused(
    content: bytes, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert run(["dump", str(path)]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert str(path) in error
    assert told in error


def test_a_file_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dump", "/nowhere/file"]) == 1
    assert capsys.readouterr().err == "journal: /nowhere/file: No such file or directory\n"
