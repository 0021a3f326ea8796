"""What pages are run on: wheels of what is installed here, and an environment with the project's own in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.documents.machine import WHEELS, Machine, machine, why_not
from tests.documents.pages import REPOSITORY
from tests.documents.wheelhouse import make_wheelhouse
from tests.patience import PATIENCE_S

EXTRAS = "server,broker,sinks"
EXTRAS_WITH_SPARK = f"{EXTRAS},spark,duckdb,java"
ENVIRONMENT = str(REPOSITORY / "venv")
"""Where README makes it."""

INSTALLING_S = 300.0
"""How long an installation may take at most, of hundreds of megabytes."""

MakeMachine = Callable[[Path], AbstractContextManager[Machine]]


def _wheels(tmp_path_factory: pytest.TempPathFactory, extras: str) -> Path:
    if reason := why_not():
        pytest.skip(reason)
    place = tmp_path_factory.mktemp("wheels") / "wheels"
    make_wheelhouse(place, extras.split(","))
    return place


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that pip needs for the project without Spark."""
    return _wheels(tmp_path_factory, EXTRAS)


@pytest.fixture(scope="session")
def wheels_with_spark(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that pip needs for the project."""
    return _wheels(tmp_path_factory, EXTRAS_WITH_SPARK)


@pytest.fixture(scope="session")
def installed(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> MakeMachine:
    """Makes machines with the project's wheel installed, but for Spark."""
    return _maker(wheels, EXTRAS, tmp_path_factory.mktemp("environment"))


@pytest.fixture(scope="session")
def installed_with_spark(wheels_with_spark: Path, tmp_path_factory: pytest.TempPathFactory) -> MakeMachine:
    """Makes machines with the project's wheel installed, and Spark."""
    return _maker(wheels_with_spark, EXTRAS_WITH_SPARK, tmp_path_factory.mktemp("environment"))


def _maker(wheels: Path, extras: str, environment: Path) -> MakeMachine:
    """Of machines with one environment, which uv makes in seconds; `make wheel` runs what pages have for it as well."""
    uv = REPOSITORY / ".tools" / "bin" / "uv"
    if not uv.exists():
        pytest.skip("uv is not there (make setup)")

    @contextmanager
    def make(place: Path) -> Iterator[Machine]:
        with machine(place, {WHEELS: wheels, ENVIRONMENT: environment}) as made:
            typed(made, f"cd {REPOSITORY}")
            if not (environment / "bin" / "journal").exists():
                typed(made, f"{uv} venv --quiet --offline --python python3 {ENVIRONMENT}")
                # The cache is on the same file system: its files are linked, not copied.
                options = f"--no-index --find-links {WHEELS} --cache-dir {ENVIRONMENT}/cache --python {ENVIRONMENT}"
                typed(made, f"{uv} pip install --quiet {options} '.[{extras}]'", INSTALLING_S)
            # The modules are the installed ones, though this is the checkout.
            typed(made, f". {ENVIRONMENT}/bin/activate && export PYTHONSAFEPATH=1")
            yield made

    return make


def typed(on: Machine, command: str, timeout_s: float = PATIENCE_S) -> None:
    """Type a command that has to succeed."""
    done = on.run(command, timeout_s)
    assert done.status == 0, f"{command}\n{on.take_output()}\n{done.told}"
