"""System calls of a real process that fail as configured, by strace."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def failing(injection: str, *, path: Path | None = None) -> list[str]:
    """The command that runs a server some of whose system calls fail: all, or those on one file."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("needs strace to make system calls fail")
    call = injection.partition(":")[0]
    under = [strace, "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}"]
    if subprocess.run([*under, "true"], capture_output=True, check=False).returncode:
        pytest.skip("strace may not trace here")
    return [*under, *(["-P", str(path)] if path else []), "-e", f"inject={injection}"]
