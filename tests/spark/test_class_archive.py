"""The archive of what Java has loaded: when it is made, that it is used, and that a bad one breaks nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from crc32c import crc32c

from spark_export.class_archive import MADE_AT_RUN, ClassArchive, find_archive
from spark_export.jvm import Java, find_java
from tests.patience import PATIENCE_S

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "journal-engine"


@pytest.fixture
def java(tmp_path: Path) -> Java:
    """A Java that has an archive of its own."""
    base = tmp_path / "java" / "lib" / "server" / "classes.jsa"
    base.parent.mkdir(parents=True)
    base.touch()
    return Java(tmp_path / "java", 17)


def find(java: Java, given: str = "", *, may_be_made: bool = True) -> ClassArchive:
    found = find_archive(java, given, may_be_made=may_be_made)
    assert found is not None
    return found


def made(java: Java) -> ClassArchive:
    """One that Java has written."""
    archives = [find(java) for _ in range(MADE_AT_RUN)]
    assert [each.aside is None for each in archives] == [True, True, False]
    archive = archives[-1]
    assert archive.aside is not None
    archive.aside.write_bytes(b"classes")
    return archive


def test_it_is_made_at_the_third_run_and_used_from_then_on(cache: Path, java: Java) -> None:
    archive = made(java)
    aside = archive.aside
    assert archive.java_options.startswith(f"-XX:ArchiveClassesAtExit={aside} ")
    archive.settle(0)
    assert archive.path is not None
    assert archive.path.read_bytes() == b"classes"
    later = find(java)
    assert later.java_options.startswith(f"-XX:SharedArchiveFile={archive.path} ")
    assert sorted(path.suffix for path in cache.iterdir()) == [".jsa", ".runs"]


def test_what_java_did_not_write_to_the_end_is_not_kept(cache: Path, java: Java) -> None:
    archive = made(java)
    archive.settle(1)
    assert archive.java_options == ""
    assert [path.suffix for path in cache.iterdir()] == [".runs"]
    # The next run tries again.
    assert find(java).aside is not None


def test_one_that_was_cut_short_or_changed_is_not_given_to_java(java: Java, cache: Path) -> None:
    """Java 17 ended with SIGBUS over half an archive."""
    for _ in range(MADE_AT_RUN - 1):
        find(java)
    for change in (b"class", b"clazzes", b""):
        archive = find(java)
        assert archive.aside is not None
        archive.aside.write_bytes(b"classes")
        archive.settle(0)
        assert archive.path is not None
        archive.path.write_bytes(change)
        again = find(java)
        assert (again.path, again.aside is None) == (None, False)
        assert [path.suffix for path in cache.iterdir()] == [".runs"]


def test_only_a_run_that_may_take_longer_makes_it(cache: Path, java: Java) -> None:
    archives = [find(java, may_be_made=False) for _ in range(MADE_AT_RUN + 1)]
    assert [each.java_options for each in archives] == [""] * len(archives)
    assert find(java).aside is not None


def test_another_java_has_another_archive_and_few_are_kept(cache: Path, java: Java) -> None:
    base = java.home / "lib" / "server" / "classes.jsa"
    for size in range(5):
        base.write_bytes(b"x" * size)
        made(java).settle(0)
        path = find(java).path
        assert path is not None
        os.utime(path, ns=(size, size))
    assert len(list(cache.glob("*.jsa"))) == 3


def read_only(cache: Path) -> None:
    cache.parent.write_bytes(b"no directory")


def writable_by_others(cache: Path) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o777)


@pytest.mark.parametrize("spoil", [read_only, writable_by_others])
def test_there_is_none_where_it_could_not_be_trusted_or_written(
    spoil: Callable[[Path], None], cache: Path, java: Java
) -> None:
    spoil(cache)
    assert find_archive(java, "", may_be_made=True) is None


@pytest.mark.usefixtures("cache")
def test_there_is_none_where_java_or_the_user_has_other_plans(
    java: Java, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for given in ("-Xshare:off", "-Xmx1g -XX:SharedArchiveFile=/a.jsa", "-XX:ArchiveClassesAtExit=/a.jsa"):
        assert find_archive(java, given, may_be_made=True) is None
    assert find_archive(Java(tmp_path / "packaged", 25), "", may_be_made=True) is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a b"))
    assert find_archive(java, "", may_be_made=True) is None


@pytest.mark.slow("starts Spark four times")
@pytest.mark.timeout(400)
def test_java_takes_classes_from_it_and_a_bad_one_breaks_no_query(cache: Path) -> None:
    """Four runs of `journal-spark sql`, in half a minute and more."""
    java = find_java()
    if find_archive(java, "", may_be_made=False) is None:
        pytest.skip("this Java has no archive of its own to build on")
    (runs,) = cache.glob("*.runs")
    runs.write_bytes(b"." * (MADE_AT_RUN - 1))
    log = cache / "classes.log"

    def run(query: str) -> tuple[int, str, str]:
        option = f"spark.driver.extraJavaOptions=-Xlog:class+load:file={log}"
        arguments = ["sql", str(cache), query, "--csv", "--conf", option]
        done = subprocess.run(
            [sys.executable, "-m", "spark_export.cli.main", *arguments],
            capture_output=True,
            text=True,
            timeout=4 * PATIENCE_S,
            cwd=REPOSITORY,
        )
        return done.returncode, done.stdout, done.stderr

    def ask() -> str:
        """Ask; where Java's classes came from."""
        assert run("select 1 as one") == (0, "one\n1\n", "")
        return log.read_text()

    # An error does not wait for it to be made.
    status, _, said = run("selec 1")
    assert (status, said[:32]) == (1, "journal-spark: line 1, column 1:")
    assert not list(cache.glob("*.jsa"))
    assert not list(cache.glob(".*"))

    assert "shared objects file (top)" not in ask()
    (archive,) = cache.glob("*.jsa")
    assert ask().count("source: shared objects file (top)") > 5000
    # Whatever Java finds wrong with one: it starts without, and says nothing on stdout.
    archive.unlink()
    bad = b"no archive at all"
    (cache / re.sub(r"-\w{8}\.jsa$", f"-{crc32c(bad):08x}.jsa", archive.name)).write_bytes(bad)
    assert "shared objects file (top)" not in ask()
