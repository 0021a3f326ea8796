"""An installation without extras: a program that needs more says what to type, and that brings it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.documents.conftest import INSTALLING_S, typed
from tests.documents.machine import WHEELS, machine
from tests.documents.pages import REPOSITORY

pytestmark = [pytest.mark.wheel, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("program", "works"),
    [
        ("journal", "journal config --default"),
        ("journal-broker", "journal-broker check --set access.anonymous=true"),
    ],
)
def test_what_a_program_says_to_install_is_all_that_it_lacks(
    program: str, works: str, wheels: Path, tmp_path: Path
) -> None:
    """A user of a wheel cannot run `pip install 'journal-engine[server]'`. pip installs it, in half a minute.

    Each program has a machine of its own: what one of them asks for is enough for the other.
    """
    with machine(tmp_path / "machine", {WHEELS: wheels}) as made:
        typed(made, f"cd {REPOSITORY} && python3 -m venv /opt/base && . /opt/base/bin/activate && cd /")
        typed(made, f"pip install {REPOSITORY}", INSTALLING_S)
        refused = made.run(works)
        assert refused.status == 1
        assert refused.told.startswith(f"{program}: the Python package "), refused.told
        line = re.search(r"`(pip install .+?)`", refused.told)
        assert line is not None, refused.told
        typed(made, line[1], INSTALLING_S)
        typed(made, works)
