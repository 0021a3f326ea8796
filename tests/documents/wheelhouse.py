"""Wheels of what is installed here, so that pip can install it elsewhere without any index.

An installed distribution lists its files, so its wheel can be put together again. It is for this machine alone.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

_PROJECT = "journal-engine"
# Made again when the wheel is installed.
_INSTALLERS_OWN = {"INSTALLER", "REQUESTED", "direct_url.json"}


def make_wheelhouse(place: Path, extras: Iterable[str]) -> None:
    """Put a wheel of each distribution that the project needs with these extras, and to be built, into a directory.

    Raises:
        PackageNotFoundError: Something of it is not installed.
    """
    place.mkdir()
    wanted = [*_required_of(distribution(_PROJECT), set(extras)), Requirement("hatchling")]
    for each in _closure(wanted):
        _repack(each, place)


def _closure(requirements: Iterable[Requirement]) -> Iterator[Distribution]:
    waiting = list(requirements)
    seen: set[tuple[str, frozenset[str]]] = set()
    given: set[str] = set()
    while waiting:
        requirement = waiting.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if (name, frozenset(requirement.extras)) in seen or name == _PROJECT:
            continue
        seen.add((name, frozenset(requirement.extras)))
        found = distribution(requirement.name)
        waiting += _required_of(found, requirement.extras)
        if name not in given:
            given.add(name)
            yield found


def _required_of(found: Distribution, extras: set[str]) -> list[Requirement]:
    requirements = [Requirement(text) for text in found.requires or ()]
    return [
        each
        for each in requirements
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in ("", *extras))
    ]


def _repack(found: Distribution, place: Path) -> None:
    tags = re.findall(r"^Tag: (.+)$", found.read_text("WHEEL") or "", re.MULTILINE)
    # Pythons, ABIs, platforms: of each all that are named.
    kinds = (".".join(dict.fromkeys(part)) for part in zip(*(tag.split("-") for tag in tags), strict=True))
    name = re.sub(r"[-_.]+", "_", found.metadata["Name"])
    wheel = place / f"{name}-{found.version}-{'-'.join(kinds)}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_STORED) as archive:
        for file in found.files or ():
            ours = file.name not in _INSTALLERS_OWN and file.suffix != ".pyc"
            if ours and not file.is_absolute() and ".." not in file.parts:
                archive.write(str(file.locate()), file.as_posix())
