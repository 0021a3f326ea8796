"""One class archive for the Javas of all tests: `make class-archive` makes it, each test finds it in its own cache.

A short query takes half the processor time with it, and tests start Java by the dozen. Making it takes as much as three
queries, so a run of a few tests does without it, unless it is there.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from spark_export.class_archive import MADE_AT_RUN, find_archive
from spark_export.jvm import JavaNotFoundError, find_java

_SHARED: Final = Path(sys.prefix) / "class-archive"
_DIRECTORY: Final = "journal-engine"
_QUERY: Final = "select topic, count(*) as n from records where offset > 1 group by topic order by n"


def link_archive(cache: Path) -> None:
    """Make the archive, if there is one, that of a cache.

    Args:
        cache: What `XDG_CACHE_HOME` will say.
    """
    place = cache / _DIRECTORY
    place.mkdir(mode=0o700)
    for path in (_SHARED / _DIRECTORY).glob("*.jsa"):
        (place / path.name).symlink_to(path)


def make_archive() -> bool:
    """Make it, unless it is there.

    Returns:
        Whether it is there now. Some Javas have no archive of their own to build on, and it only saves time.
    """
    os.environ["XDG_CACHE_HOME"] = str(_SHARED)
    try:
        java = find_java()
    except JavaNotFoundError:
        return False
    if (archive := find_archive(java, "", may_be_made=False)) is None:
        return False
    if archive.path is None:
        (archive.directory / f"{archive.name}.runs").write_bytes(b"." * MADE_AT_RUN)
        with tempfile.TemporaryDirectory() as empty:
            command = [sys.executable, "-m", "spark_export.cli.main", "sql", empty, _QUERY]
            subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
        archive = find_archive(java, "", may_be_made=False)
    return archive is not None and archive.path is not None


if __name__ == "__main__":
    if not make_archive():
        sys.stderr.write("class-archive: this Java makes none; tests that start it take longer\n")
