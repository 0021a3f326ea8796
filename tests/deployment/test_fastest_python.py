"""Continuous integration runs on the Python that is clearly the fastest of those in PATH, or on the first one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "fastest-python"


def chosen(directory: Path, said: Sequence[str]) -> str:
    """What is chosen of Pythons in PATH, each of which is a program that says this of itself."""
    path = []
    for number, line in enumerate(said):
        program = directory / str(number) / "python3.11"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n{line}\n")
        program.chmod(0o755)
        path.append(str(program.parent))
    done = subprocess.run(
        ["/bin/bash", str(SCRIPT)],
        env={"PATH": os.pathsep.join(path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.rstrip("\n")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (["echo 1000 /first", "echo 700 /second"], "/second"),
        (["echo 1000 /first", "echo 900 /second"], "/first"),
        (["echo 1000 /first", "echo 700 /second", "echo 600 /third"], "/second"),
        (["echo 700 /first", "echo 1000 /second"], "/first"),
        # A command of a version manager, for a version that is not chosen.
        (["exit 127", "echo 1000 /second"], "/second"),
        # One without pip, or without headers.
        (["true", "echo 1000 /a place/python3.11"], "/a place/python3.11"),
        (["exit 127"], ""),
    ],
)
def test_the_first_one_stays_unless_another_one_is_clearly_faster(
    tmp_path: Path, said: list[str], expected: str
) -> None:
    assert chosen(tmp_path, said) == expected


def test_without_any_python_nothing_is_chosen(tmp_path: Path) -> None:
    assert chosen(tmp_path, []) == ""


def test_a_real_one_is_found() -> None:
    done = subprocess.run([str(SCRIPT)], capture_output=True, text=True, check=True)
    if done.stdout:  # not on a machine with another version alone
        version = subprocess.run([done.stdout.strip(), "--version"], capture_output=True, text=True, check=True)
        assert version.stdout.startswith("Python 3.11.")
