"""The generator can see: a bounded number of examples names each defect of access that is put back into the server.

The default run takes two of them. `make crash` takes all, and prints what was said of each.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import Phase, given, seed, settings

from tests.rights.defects import DEFECTS, Defect
from tests.rights.trial import SEEDS, FoundError, try_many
from tests.rights.ways import PAIRS

EXAMPLES = 150
QUICK = ("lets readers move and delete cursors", "takes a filter for the name of a shard")
WITHOUT_COMMANDS = [pair for pair in PAIRS if pair[0] != "commands"]
"""Commands take ten times as long as what they send."""


def name(defect: Defect, path: Path) -> str:
    """What the generator says of a server with a defect; empty if it finds nothing."""

    def check(play: Callable[[int], None]) -> None:
        few = settings(deadline=None, max_examples=EXAMPLES, phases=[Phase.generate], database=None)
        seed(0)(few(given(SEEDS)(play)))()

    with pytest.MonkeyPatch.context() as patch:
        defect.put(patch)
        try:
            pairs = [pair for pair in WITHOUT_COMMANDS if not defect.kinds or pair[1] in defect.kinds]
            try_many(path, check, pairs, shortens=False)
        except FoundError as error:
            return str(error)
    return ""


def test_there_are_many_defects_with_names_of_their_own() -> None:
    names = {defect.name for defect in DEFECTS}
    assert len(names) == len(DEFECTS) >= 25
    assert names >= set(QUICK)


@pytest.mark.slow("plays up to 150 examples for each defect")
@pytest.mark.parametrize("defect", [each for each in DEFECTS if each.name in QUICK], ids=lambda each: each.name)
def test_a_server_with_a_defect_is_found(defect: Defect, tmp_path: Path) -> None:
    found = name(defect, tmp_path)
    assert re.search(defect.named, found), found


@pytest.mark.long
@pytest.mark.timeout(0)
def test_every_defect_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missed = []
    for number, defect in enumerate(DEFECTS):
        place = tmp_path / str(number)
        place.mkdir()
        found = name(defect, place)
        is_named = bool(re.search(defect.named, found))
        with capsys.disabled():
            how = found.partition("\n")[0][:200] if is_named else f"NOT NAMED, but {found[:500] or 'nothing'}"
            print(f"\n{defect.name:<75} {how}", end="", flush=True)
        if not is_named:
            missed.append(defect.name)
    assert not missed
