"""What Java has loaded for Spark, kept in a file for the next start: a class data sharing archive of this user's own.

Spark loads many thousand classes before it answers a short query. To parse and verify them takes over a third of the
processor time (14 s in all, 9 s without that, Java 17). An archive has them ready. To make it takes 20 s of processor
time, so it is made at the end of the third run with the same Java and the same Spark, and not for who asks once.

An archive never decides whether Spark starts. Java compares its own version and all jars with what the archive was made
of and goes on without one that does not fit. It would crash over one that is cut short or changed: so the name has a
checksum, which is compared before each start. One with which Java does not start is removed.
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
"""An archive takes some 170 MB."""
_KEPT: Final = 3
_CHUNK_BYTES: Final = 1 << 20
_ABANDONED_S: Final = 3600.0
_GIVEN: Final = ("-XX:SharedArchiveFile", "-XX:ArchiveClassesAtExit", "-Xshare", "-XX:AOT")
_UNFIT: Final = re.compile(r"[^\w./+@:-]", re.ASCII)
"""Spark splits the options of Java at spaces and takes quotation marks away."""
_QUIET: Final = "-XX:+DisplayVMOutputToStderr -Xlog:disable -Xlog:all=warning:stderr"
"""Java says on stdout that an archive does not fit, where the rows of the answer go."""


@attrs.define
class ClassArchive:
    """The archive for one Java and one Spark.

    Attributes:
        name: What the names of its files begin with.
        directory: Where they lie.
        path: The archive; None if there is none.
        aside: Where Java is to write it at its end; None if it is not to be made in this run.
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
        """Do without it from now on: Java did not start with it."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
        self.path = self.aside = None

    def settle(self, java_status: int) -> None:
        """Java has ended: keep what it made, if it made it to the end.

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

    There can be none if the user's options speak of one, if this Java has none of its own to build on (the packaged
    one), and if the cache directory of this user cannot be written or may be written by others: Java trusts an archive.

    Args:
        given_options: Options of Java that the user gave.
        may_be_made: Whether this run may make it, at its end.
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
        # It is a matter of speed alone, and a home directory that is read-only is no fault.
        return None
    return archive


def _whole(directory: Path, name: str) -> Path | None:
    """The archive that is as it was written; others are removed."""
    for path in directory.glob(f"{name}-*.jsa"):
        if path.name == f"{name}-{_checksum(path)}.jsa":
            return path
        path.unlink(missing_ok=True)
    return None


def _checksum(path: Path) -> str:
    """Of a whole file; of an archive it takes a twentieth of a second."""
    found = 0
    buffer = bytearray(_CHUNK_BYTES)
    with path.open("rb", buffering=0) as file:
        while size_bytes := file.readinto(buffer):
            found = crc32c(memoryview(buffer)[:size_bytes], found)
    return f"{found:08x}"


def _digest(java: Java, base: Path) -> str:
    """Stands for what an archive is made of. Java compares more, so this need not notice everything."""
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    made_of = [str(java.home.resolve()), str(jars), pyspark.__version__]
    for path in (base, jars):
        found = path.stat()
        made_of += [str(found.st_size), str(found.st_mtime_ns)]
    return hashlib.sha256("\0".join(made_of).encode()).hexdigest()[:16]


def _count_run(path: Path) -> int:
    """Count this run; how many there were with it. The file has a byte for each."""
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
    """Remove archives of Javas and Sparks that are gone, all but the newest, and what a killed Java left."""
    for left in directory.glob(".classes-*.jsa"):
        if time.time() - left.stat().st_mtime > _ABANDONED_S:
            left.unlink(missing_ok=True)
    archives = sorted(directory.glob("classes-*.jsa"), key=lambda one: one.stat().st_mtime_ns, reverse=True)
    for old in archives[_KEPT:]:
        old.unlink(missing_ok=True)
