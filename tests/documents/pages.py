"""A page of README or docs as its fenced blocks: the content of each, and how the page's source marks it.

What is not simply run says so in the source, where readers of the page do not see it: behind the language of its fence
(```` ```text layout ````), or in a comment on the line above.

- ``<!-- not run: REASON -->``: nothing runs it.
- ``<!-- tested by: PATH -->``: that test runs it.
- ``<!-- goes on: REASON -->``: its commands do not end, and run on while what follows them is done.
- ``<!-- output differs: REASON -->``: its commands run, and what they print is not compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import attrs

REPOSITORY = Path(__file__).parents[2]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]

SHOWN_ONLY = {"output": "what a program prints", "layout": "bytes, files or messages", "diagram": "a drawing"}
"""Kinds of ``text``, named behind the language of the fence."""

_FENCED = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_MARK = re.compile(r"\s*<!-- (not run|tested by|output differs|goes on): (.+) -->")


@attrs.frozen
class Step:
    """A command, as it is typed, and the lines that are shown below it."""

    command: str
    shown: tuple[str, ...]


@attrs.frozen
class Block:
    """A fenced block.

    Attributes:
        page: Name of the page.
        line: Number of the line with the opening fence.
        language: First word behind the fence, or "".
        kind: Second word, or "".
        mark: What a comment above it says: its word, as ``not run``, and the text behind; ("", "") without one.
        text: What is between the fences.
    """

    page: str
    line: int
    language: str
    kind: str
    mark: tuple[str, str]
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    def steps(self) -> Iterator[Step]:
        """The commands of a ``console`` block with what is shown below each."""
        command, shown, goes_on = "", list[str](), False
        for line in self.text.splitlines():
            if goes_on:
                command += f"\n{line}"
            elif line[:2] in ("$ ", "# "):
                if command:
                    yield Step(command, tuple(shown))
                command, shown = line[2:], []
            else:
                shown.append(line)
            goes_on = line.endswith("\\") and not shown
        yield Step(command, tuple(shown))


def blocks_of(page: Path) -> list[Block]:
    """All fenced blocks of a page, in their order."""
    found = []
    lines = page.read_text().splitlines()
    name = str(page.relative_to(REPOSITORY))
    start = None
    for number, line in enumerate(lines):
        if not line.lstrip().startswith("```"):
            continue
        if start is None:
            start = number
            continue
        indent = len(lines[start]) - len(lines[start].lstrip())
        language, _, kind = lines[start].strip().removeprefix("```").partition(" ")
        mark = _MARK.fullmatch(lines[start - 1])
        text = "".join(f"{each[indent:]}\n" for each in lines[start + 1 : number])
        found.append(Block(name, start + 1, language, kind, (mark[1], mark[2]) if mark else ("", ""), text))
        start = None
    return found


def prose_of(page: Path) -> str:
    """The page without its fenced blocks."""
    return _FENCED.sub("", page.read_text())


def anchors_of(page: Path) -> set[str]:
    """The names that GitHub gives to the headings of a page."""
    titles = _HEADING.findall(prose_of(page))
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}
