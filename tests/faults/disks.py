"""Small real file systems that a test can fill up or break. They need root and the programs for it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

MIB = 1 << 20


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{command[0]} does not work here: {done.stderr.strip()}")


@contextmanager
def mounted(place: Path, *arguments: str) -> Iterator[Path]:
    """Something mounted at a directory, which is made."""
    if os.geteuid() != 0 or any(shutil.which(program) is None for program in ("mount", "umount", "mkfs.ext4")):
        pytest.skip("needs root, mount and mkfs.ext4 for a file system of its own")
    place.mkdir(exist_ok=True)
    _run("mount", *arguments, str(place))
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@contextmanager
def ext4(place: Path, image: Path, size_bytes: int) -> Iterator[Path]:
    """A new ext4 of this size, in a file, mounted at a directory."""
    with image.open("wb") as file:
        file.truncate(size_bytes)
    _run("mkfs.ext4", "-q", "-m", "0", str(image))
    with mounted(place, "-o", "loop", str(image)):
        yield place


@contextmanager
def ext4_on_too_little(place: Path, aside: Path) -> Iterator[tuple[Path, Path]]:
    """An ext4 that believes to have 200 MiB, on a device that has 24: (where it is mounted, what fills the device up).

    Background writes fail while the second path is a file as large as what the device has left.
    """
    with ExitStack() as stack:
        device = stack.enter_context(mounted(aside, "-t", "tmpfs", "-o", "size=24m", "none"))
        image = device / "image"
        with image.open("wb") as file:
            file.truncate(200 * MIB)
        # Without a journal a lost page of data is no reason for the file system to stop.
        _run("mkfs.ext4", "-q", "-O", "^has_journal", str(image))
        stack.enter_context(mounted(place, "-o", "loop", str(image)))
        yield place, device / "ballast"


def fill(path: Path) -> None:
    """Make a file that takes all that is left of its file system."""
    with path.open("wb", buffering=0) as file:
        for size_bytes in (MIB, 4096, 1):
            try:
                while True:
                    file.write(bytes(size_bytes))
            except OSError:
                continue
        try:
            os.fsync(file.fileno())
        except OSError:
            return
