"""The Java classes that Spark loads, kept in a file for the next start: a class data sharing archive of this user.

Spark loads many thousand classes before it answers a short query. Parsing and verifying them takes over a third of the
processor time (14 s in all, 9 s without that, Java 17). An archive has them ready. Making it takes 20 s of processor
time, so it is made at the end of the third run with the same Java and the same Spark, not for a single query.

An archive never decides whether Spark starts. Java compares its own version and all jars with those that the archive
was made from, and continues without an archive that does not match. It would crash on one that is truncated or changed:
so the name has a checksum, which is compared before each start. An archive with which Java does not start is removed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import time
from pathlib import Path
from typing import Final

import attrs
from crc32c import crc32c

from spark_export.jvm import Java, cache_directory

MADE_AT_RUN: Final = 3
_MIN_FREE_BYTES: Final = 1 << 30
"""An archive has about 170 MB."""
_KEPT: Final = 3
_CHUNK_BYTES: Final = 1 << 20
_ABANDONED_S: Final = 3600.0
_GIVEN: Final = ("-XX:SharedArchiveFile", "-XX:ArchiveClassesAtExit", "-Xshare", "-XX:AOT")
_UNFIT: Final = re.compile(r"[^\w./+@:-]", re.ASCII)
"""Spark splits the options of Java at spaces and removes quotation marks."""
_QUIET: Final = "-XX:+DisplayVMOutputToStderr -Xlog:disable -Xlog:all=warning:stderr"
"""Java reports on stdout that an archive does not match; stdout is for the rows of the answer."""


@attrs.define
class ClassArchive:
    """The archive for one Java and one Spark.

    Attributes:
        name: Prefix of the names of its files.
        directory: Directory of its files.
        path: The archive; None if there is none.
        aside: File that Java is to write at its end; None if it is not to be made in this run.
    """

    name: str
    directory: Path
    path: Path | None = None
    aside: Path | None = None

    @property
    def java_options(self) -> str:
        """Options of Java: to use the archive, to make it, or none."""
        if self.aside is not None:
            return f"-XX:ArchiveClassesAtExit={self.aside} {_QUIET}"
        return f"-XX:SharedArchiveFile={self.path} {_QUIET}" if self.path is not None else ""

    def discard(self) -> None:
        """Use it no more: Java did not start with it."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
        self.path = self.aside = None

    def settle(self, java_status: int) -> None:
        """Java has ended: keep the archive that it wrote, if it is complete.

        Args:
            java_status: The exit status of Java.
        """
        if self.aside is None:
            return
        try:
            if java_status == 0 and self.aside.exists():
                _sync(self.aside)
                self.path = self.directory / f"{self.name}-{_checksum(self.aside)}.jsa"
                self.aside.replace(self.path)
                _sync(self.directory)
                _remove_others(self.directory)
        finally:
            self.aside.unlink(missing_ok=True)
            self.aside = None


def find_archive(java: Java, given_options: str, *, may_be_made: bool) -> ClassArchive | None:
    """The archive for this Java, with the Spark that is installed here; None where there can be none.

    There can be none if the user's options name one, if this Java has none of its own to build on (the packaged one),
    or if the cache directory of this user cannot be written or can be written by others: Java trusts an archive.

    Args:
        given_options: Options of Java that the user gave.
        may_be_made: Whether this run may make it at its end.
    """
    base = java.home / "lib" / "server" / "classes.jsa"
    if any(option in given_options for option in _GIVEN) or not base.is_file():
        return None
    directory = cache_directory(os.environ)
    if _UNFIT.search(str(directory)):
        return None
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = directory.stat()
        if found.st_uid != os.getuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return None
        name = f"classes-{_digest(java, base)}"
        archive = ClassArchive(name, directory, _whole(directory, name))
        if (
            archive.path is None
            and _count_run(directory / f"{name}.runs") >= MADE_AT_RUN
            and may_be_made
            and shutil.disk_usage(directory).free >= _MIN_FREE_BYTES
        ):
            archive.aside = directory / f".{name}-{os.getpid()}.jsa"
    except OSError:
        # It only saves time, and a read-only home directory is not an error.
        return None
    return archive


def _whole(directory: Path, name: str) -> Path | None:
    """The archive that has not changed since it was written; others are removed."""
    for path in directory.glob(f"{name}-*.jsa"):
        if path.name == f"{name}-{_checksum(path)}.jsa":
            return path
        path.unlink(missing_ok=True)
    return None


def _checksum(path: Path) -> str:
    """Checksum of a whole file; for an archive it takes a twentieth of a second."""
    found = 0
    buffer = bytearray(_CHUNK_BYTES)
    with path.open("rb", buffering=0) as file:
        while size_bytes := file.readinto(buffer):
            found = crc32c(memoryview(buffer)[:size_bytes], found)
    return f"{found:08x}"


def _digest(java: Java, base: Path) -> str:
    """Hash of what an archive is made from. Java compares more, so this need not detect everything."""
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    made_of = [str(java.home.resolve()), str(jars), pyspark.__version__]
    for path in (base, jars):
        found = path.stat()
        made_of += [str(found.st_size), str(found.st_mtime_ns)]
    return hashlib.sha256("\0".join(made_of).encode()).hexdigest()[:16]


def _count_run(path: Path) -> int:
    """Count this run; return the number of runs including it. The file has a byte for each."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        size_bytes = os.fstat(descriptor).st_size
        if size_bytes >= MADE_AT_RUN:
            return size_bytes
        os.write(descriptor, b".")
        return size_bytes + 1
    finally:
        os.close(descriptor)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_others(directory: Path) -> None:
    """Remove archives of other Javas and Sparks, except the newest, and files that a killed Java left."""
    for left in directory.glob(".classes-*.jsa"):
        if time.time() - left.stat().st_mtime > _ABANDONED_S:
            left.unlink(missing_ok=True)
    archives = sorted(directory.glob("classes-*.jsa"), key=lambda one: one.stat().st_mtime_ns, reverse=True)
    for old in archives[_KEPT:]:
        old.unlink(missing_ok=True)
