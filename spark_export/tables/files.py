"""The files of tables: those of the operating system, with the modes that the umask gives them.

A table is made for other programs, often of other users; what a server creates is its own user's alone.
"""

from __future__ import annotations

import os

from shards.seams.os_file_system import OsFile, OsFileSystem


class TableFileSystem(OsFileSystem):
    """The operating system's files. What it creates has the modes of the umask."""

    def open(self, path: str, *, create: bool = False, write: bool = True) -> OsFile:
        if not create:
            return super().open(path, write=write)
        return OsFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), path)

    def mkdir(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)
