"""What a message says to install when an optional part of the installation is missing."""

from __future__ import annotations

import importlib.metadata

import pytest

from command_line.boundary import run_guarded
from shards import extras
from shards.extras import install_command


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the distribution says that it requires."""
    requirements: list[str] = []
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: requirements)
    return requirements


def test_only_what_is_missing_is_named(declared: list[str]) -> None:
    declared += [
        "attrs>=23.2; extra == 'some'",
        "no-such-package[with]>=3.2; (sys_platform == 'linux') and extra == \"some\"",
        "no-other-package; extra == 'other'",
        "no-base-package>=1",
    ]
    assert install_command("some") == "pip install 'no-such-package[with]>=3.2'"
    assert install_command("other") == "pip install 'no-other-package'"


def test_a_package_that_is_there_and_cannot_be_imported_is_named_with_all_of_its_extra(declared: list[str]) -> None:
    declared += ["attrs>=23.2; extra == 'some'", "trio; extra == 'some'"]
    assert install_command("some") == "pip install 'attrs>=23.2' 'trio'"


def test_outside_an_installation_it_is_the_line_for_a_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "_DISTRIBUTION", "no-such-distribution")
    assert install_command("server") == "pip install '.[server]'"


def test_every_extra_of_the_distribution_has_a_line() -> None:
    for extra in importlib.metadata.metadata("journal-engine").get_all("Provides-Extra") or ():
        assert install_command(extra).startswith("pip install '"), extra
        assert "journal-engine" not in install_command(extra)


@pytest.mark.parametrize("program", ["journal", "journal-broker", "journal-spark"])
def test_a_program_without_its_extra_says_what_to_type(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It said `internal error` or showed a traceback, and the way out named a package that no index has."""

    def command() -> int:
        raise ModuleNotFoundError("No module named 'cyclopts.x'", name="cyclopts.x")

    assert run_guarded(command, program=program) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"{program}: the Python package 'cyclopts' is not installed; `pip install '")
    assert "'cyclopts>=" in told
