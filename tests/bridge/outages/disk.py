"""A disk that is small enough to be filled."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

RESERVE_BYTES: Final = 6 << 20
SETTINGS: Final = (f"storage.disk_reserve_bytes={RESERVE_BYTES}", "storage.flush_interval_ms=20")
"""For a server on such a disk."""


@contextmanager
def small_disk(place: Path, size_mib: int) -> Iterator[Path]:
    """A file system for the length of a block; skips the test where none can be mounted."""
    place.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("needs root and the mount program for a small file system")
    options = ["-t", "tmpfs", "-o", f"size={size_mib}m", "none", str(place)]
    done = subprocess.run([mount, *options], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@contextmanager
def filled(place: Path, left_bytes: int) -> Iterator[Path]:
    """Fill a disk with a file of another program, up to a given free space; the file is removed after the block."""
    ballast = place / "ballast"
    free = os.statvfs(place)
    try:
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(1, free.f_bavail * free.f_frsize - left_bytes))
        yield ballast
    finally:
        ballast.unlink()
