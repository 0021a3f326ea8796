"""Running a page: its files are written and its commands typed, in the order of the page."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Final

from tests.documents.machine import Machine
from tests.documents.pages import Block, Step

_FILE: Final = re.compile(r"# (\S+\.(?:toml|py|service))\b")


def play(
    machine: Machine,
    blocks: Iterable[Block],
    *,
    already_done: Iterable[str] = (),
    begun: Mapping[str, str] | None = None,
    timeout_s: float,
) -> None:
    """Run blocks of a page one after the other.

    A block whose first line is a comment with the name of a file is written to it. A command has to succeed and, where
    anything is shown below it, to print just that; what runs in the background may print it as well.

    Args:
        machine: Where to.
        blocks: What to run; those that are marked as run by nothing, or elsewhere, are left out.
        already_done: Commands that need not be typed.
        begun: By beginnings of commands that go on in the background without a word: a command that succeeds when they
            do what people see them do before they type the next line.
        timeout_s: How long a command may take.
    """
    skipped = set(already_done)
    going_on = 0
    for block in blocks:
        if block.mark[0] in ("not run", "tested by"):
            continue
        if named := _FILE.match(block.text):
            write_file(machine, named[1], block.text)
        elif block.language == "console":
            for step in block.steps():
                if step.command not in skipped:
                    goes_on = block.mark[0] == "goes on"
                    going_on += goes_on
                    typed = Step(f"{{ {step.command}\n}} &", step.shown) if goes_on else step
                    _type(machine, typed, compared=block.mark[0] != "output differs", timeout_s=timeout_s)
                    for start, is_begun in (begun or {}).items():
                        if step.command.startswith(start):
                            _type(machine, Step(f"until {is_begun}; do sleep 0.1; done", ()), timeout_s=timeout_s)
    still = machine.run(f"jobs -r; test $(jobs -r | wc -l) -ge {going_on}")
    assert still.status == 0, f"of {going_on} commands that go on, these run:\n{machine.take_output()}\n{still.told}"


def write_file(machine: Machine, name: str, text: str) -> None:
    """Write a file as if it was edited there."""
    done = machine.run(f"mkdir -p $(dirname {name}) && printf %s {shlex.quote(text)} > {name}")
    assert done.status == 0, done.told


def _type(machine: Machine, step: Step, *, compared: bool = True, timeout_s: float) -> None:
    done = machine.run(step.command, timeout_s)
    assert done.status == 0, f"{step.command}: status {done.status}\n{machine.take_output()}\n{done.told}"
    if step.shown and compared:
        machine.expect(step.shown, step.command)
    else:
        machine.take_output()
