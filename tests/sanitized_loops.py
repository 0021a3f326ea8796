"""``python -m tests.sanitized_loops``: the properties of the compiled loops, with the loops built with sanitizers.

The addresses of all memory accesses are checked, and undefined behaviour ends the run. The sanitizer of addresses must
be loaded before Python; so the tests run in a process of their own, in which this module is a plugin that puts the
module with the sanitizers in the place of the one that was installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hypothesis import settings

REPOSITORY: Final = Path(__file__).parents[1]
TESTS: Final = (
    "tests/journal/test_append_loop.py",
    "tests/journal/test_direct_commits.py",
    "tests/journal/test_disk.py",
    "tests/mqtt/codec/test_packet_reader.py",
    "tests/mqtt/codec/test_publish_template.py",
    "tests/shards/test_column_encoder.py",
    "tests/shards/test_compiled.py",
    "tests/shards/test_record_decoder.py",
)
EXAMPLES: Final = 300
FLAGS: Final = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
# They take several times as long as usual. What a sanitizer says at the end must not be held back.
_OPTIONS: Final = ("-o", "timeout=3000", "--capture=sys")
_NAME: Final = "shards.compiled._loops"
_MODULE: Final = "SANITIZED_LOOPS"
_EXAMPLES: Final = "SANITIZED_EXAMPLES"


def libraries() -> list[str]:
    """The libraries of the sanitizers, which must be loaded first; none if this machine has no compiler with them."""
    compiler = shutil.which("gcc")
    if compiler is None:
        return []
    found = []
    for name in ("libasan.so", "libubsan.so"):
        asked = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
        # Without such a file it answers with the bare name.
        if not os.path.isabs(asked.stdout.strip()):
            return []
        found.append(asked.stdout.strip())
    return found


def run(directory: Path, examples: int, *options: str) -> subprocess.CompletedProcess[str]:
    """Build the loops into a directory, and run their tests with so many examples of each property."""
    specification = importlib.util.spec_from_file_location("hatch_build", REPOSITORY / "hatch_build.py")
    assert specification is not None
    assert specification.loader is not None
    build_hook = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(build_hook)
    folder = REPOSITORY / "shards" / "compiled"
    target = directory / build_hook.target_in(folder).name
    problem = build_hook.build(folder, target, *FLAGS)
    assert problem is None, problem
    environment = {
        **os.environ,
        "CC": "gcc",
        "LD_PRELOAD": " ".join(libraries()),
        # Each object has memory of its own then, whose end is checked.
        "PYTHONMALLOC": "malloc",
        # Python itself frees little at its end.
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        _MODULE: str(target),
        _EXAMPLES: str(examples),
    }
    environment.pop("JOURNAL_PURE_PYTHON", None)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.sanitized_loops",
        "-p",
        "no:cacheprovider",
        *_OPTIONS,
        *options,
        *TESTS,
    ]
    return subprocess.run(command, cwd=REPOSITORY, env=environment, text=True, check=False)


def _replace_module(path: str) -> None:
    specification = importlib.util.spec_from_file_location(_NAME, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    sys.modules[_NAME] = module


if _MODULE in os.environ:
    # When pytest loads this plugin: its conftest files, which are loaded next, import what uses the module.
    _replace_module(os.environ[_MODULE])


def pytest_configure() -> None:
    """See that the module with the sanitizers is used, and try as many examples as wanted."""
    from shards import compiled

    assert compiled.append_loop_type is sys.modules[_NAME].AppendLoop, compiled.DESCRIPTION
    assert sys.modules[_NAME].__file__ == os.environ[_MODULE]
    settings.register_profile("sanitized", settings.get_profile("full"), max_examples=int(os.environ[_EXAMPLES]))
    settings.load_profile("sanitized")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tests; ends with their status."""
    parser = argparse.ArgumentParser(prog="python -m tests.sanitized_loops")
    parser.add_argument("--examples", type=int, default=EXAMPLES)
    arguments = parser.parse_args(argv)
    if not libraries():
        print("sanitize: gcc with its sanitizers (libasan, libubsan) is needed", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as directory:
        return run(Path(directory), arguments.examples).returncode


if __name__ == "__main__":
    raise SystemExit(main())
