"""README from its top to its bottom, word for word, on the installed wheel, by a user who has only this machine."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.documents.conftest import EXTRAS, MakeMachine, typed
from tests.documents.machine import WHEELS, machine
from tests.documents.pages import REPOSITORY, blocks_of
from tests.documents.playing import play

README = blocks_of(REPOSITORY / "README.md")
INSTALLING = ("python3 -m venv venv && . venv/bin/activate", f"pip install '.[{EXTRAS}]'")
# These take minutes: `make wheel` runs them.
LONG = ("make demo", "pip install '.[server,spark,java]'")
DEMONSTRATION = [block for block in README if block.text == "$ make demo\n"]


SUBSCRIBED = "curl --silent http://127.0.0.1:7422/api/v1/subscriptions | grep --quiet 'plant/#'"
BEGUN = {"mosquitto_sub -p 1883": SUBSCRIBED}

pytestmark = pytest.mark.skipif(
    shutil.which("mosquitto_sub") is None or shutil.which("curl") is None,
    reason="mosquitto_sub or curl is not installed",
)


@pytest.mark.slow("installs a wheel and runs servers")
def test_what_readme_says_goes_as_it_is_written(installed: MakeMachine, tmp_path: Path) -> None:
    """All but the demonstration and Spark. It installs the wheel and starts five programs, in over ten seconds."""
    commands = [step.command for block in README if block.language == "console" for step in block.steps()]
    spark = [command for command in commands if command.startswith("journal-spark ")]
    assert set(commands) > {*INSTALLING, *LONG, *spark}
    assert len(spark) == len(DEMONSTRATION) == 1
    with installed(tmp_path / "machine") as made:
        play(made, README, already_done={*INSTALLING, *LONG, *spark}, begun=BEGUN, timeout_s=60)


@pytest.mark.wheel
@pytest.mark.timeout(900)
def test_the_demonstration_goes_as_it_is_written(wheels: Path, tmp_path: Path) -> None:
    """It takes a minute. What `make` would set up from a package index is here already."""
    with machine(tmp_path / "machine", {WHEELS: wheels}) as made:
        typed(made, f"cd {REPOSITORY} && touch .tools/.installed .venv/.installed")
        play(made, DEMONSTRATION, timeout_s=600)


@pytest.mark.wheel
@pytest.mark.timeout(1800)
def test_all_else_of_readme_goes_as_it_is_written(wheels_with_spark: Path, tmp_path: Path) -> None:
    """By pip into a fresh environment, with Spark, which takes minutes."""
    with machine(tmp_path / "machine", {WHEELS: wheels_with_spark}) as made:
        # The modules are the installed ones, though this is the checkout.
        typed(made, f"cd {REPOSITORY} && export PYTHONSAFEPATH=1")
        play(made, README, already_done={"make demo"}, begun=BEGUN, timeout_s=600)
