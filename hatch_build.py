"""Builds the extension module of `shards.compiled` with a wheel or an editable install; part of the build back-end.

Without a C compiler or the headers of Python there is a note and a wheel without it, which does the same more slowly.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zlib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FLAGS = ("-O3", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing", "-std=c11", "-Wall", "-Wextra")

LEFT_OUT = "the compiled loops are left out, those in Python do the same"


class CompiledLoops(BuildHookInterface[Any]):
    """The hook; hatchling finds it by its base class."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the module, and say in the wheel's name what it runs on."""
        folder = Path(self.root, "shards", "compiled")
        target = target_in(folder)
        problem = build(folder, target)
        if problem is not None:
            target.unlink(missing_ok=True)
            self.app.display_warning(f"{LEFT_OUT}: {problem}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        # Git ignores it, so it has to be named.
        build_data["artifacts"].append(f"/shards/compiled/{target.name}")


def target_in(folder: Path) -> Path:
    """The file of the module, for the Python that runs this."""
    return folder / f"_loops{sysconfig.get_config_var('EXT_SUFFIX')}"


def checksum(folder: Path) -> str:
    """The checksum of the sources, which the module contains: it tells whether it was built of those beside it."""
    value = 0
    for path in sorted([*folder.glob("*.c"), *folder.glob("*.h")]):
        value = zlib.crc32(path.read_bytes(), value)
    return f"{value:08x}"


def build(folder: Path, target: Path, *flags: str) -> str | None:
    """Build the module from the sources in a folder; returns why it could not be built, or None."""
    if platform.python_implementation() != "CPython":
        return "they need CPython"
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    if shutil.which(compiler[0]) is None:
        compiler = ["cc"]
    if shutil.which(compiler[0]) is None:
        return "no C compiler was found"
    includes = [sysconfig.get_path("include"), sysconfig.get_path("platinclude")]
    if not any(Path(include, "Python.h").exists() for include in includes):
        return f"the headers of Python {sysconfig.get_python_version()} were not found"
    # It takes the place of the one before at once: processes may have that open.
    made = target.with_name(f"{target.name}.{os.getpid()}")
    command = [
        *compiler,
        *FLAGS,
        *shlex.split(os.environ.get("CFLAGS", "")),
        *flags,
        f'-DLOOPS_SOURCES="{checksum(folder)}"',
        *(f"-I{include}" for include in dict.fromkeys(includes)),
        *(["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []),
        "-shared",
        *map(str, sorted(folder.glob("*.c"))),
        *shlex.split(os.environ.get("LDFLAGS", "")),
        "-o",
        str(made),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        made.unlink(missing_ok=True)
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or [""]
        return f"{compiler[0]} failed: {lines[0]}"
    made.replace(target)
    return None


def main() -> int:
    """Build the module for the checkout that this file is in; says so if that fails, which is no failure."""
    folder = Path(__file__).parent / "shards" / "compiled"
    problem = build(folder, target_in(folder))
    if problem is not None:
        print(f"setup: {LEFT_OUT}: {problem}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
