"""Standard output and error of the commands: raw lines, JSON lines, tables, progress, questions.

Data is written to stdout and all messages to stderr, so that a pipe contains data only.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs

from command_line.boundary import CommandError, OutputClosedError, OutputFailedError, UsageError

if TYPE_CHECKING:
    import rich.table

_WIDE = 240
# Those of ASCII and of Latin-1, and those that change the direction of the text around them.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def write_lines(lines: Iterable[bytes], *, raw: bool = False) -> None:
    """Write lines (without their newlines) to stdout at once and flush.

    Args:
        lines: Written as they are, except to a terminal, which gets them as `harmless` makes them.
        raw: Write them as they are to a terminal, too.

    Raises:
        OutputClosedError: The reader of stdout has closed it.
    """
    if not raw and sys.stdout.isatty():
        lines = (harmless(line.decode("utf-8", "backslashreplace")).encode() for line in lines)
    with _told():
        sys.stdout.buffer.write(b"".join(line + b"\n" for line in lines))
        sys.stdout.buffer.flush()


def harmless(text: str) -> str:
    """Text for a terminal: control characters, except newlines and tabs, as escape sequences of Python.

    They could change what the terminal shows, its title or clipboard, and any client that may append can send them.
    """
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def write_text(text: str) -> None:
    """Write one line of text to stdout."""
    write_lines([text.encode("utf-8", "surrogateescape")])


def write_json(value: object) -> None:
    """Write one value as a line of JSON."""
    import msgspec

    write_lines([msgspec.json.encode(value)])


def note(program: str, text: str) -> None:
    """Write a message of the program to stderr."""
    sys.stderr.write(f"{program}: {harmless(text)}\n")
    sys.stderr.flush()


@attrs.frozen
class Table:
    """A table for display.

    Attributes:
        columns: Headings.
        rows: Cells, shown literally.
        numeric: Headings of the columns that are aligned to the right.
    """

    columns: Sequence[str]
    rows: Iterable[Sequence[str]]
    numeric: Sequence[str] = ()

    def __rich__(self) -> rich.table.Table:
        from rich import box, table
        from rich.text import Text

        shown = table.Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for column in self.columns:
            is_numeric = column in self.numeric
            # What does not fit continues below: a name that is cut cannot be used.
            shown.add_column(column, justify="right" if is_numeric else "left", no_wrap=is_numeric, overflow="fold")
        for row in self.rows:
            shown.add_row(*(Text(harmless(cell)) for cell in row))
        return shown


def write_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, numeric: Sequence[str] = ()) -> None:
    """Write a table to stdout; in a pipe it is as wide as necessary. See `Table` for the arguments."""
    write_tables([Table(columns, rows, numeric)])


def write_tables(tables: Iterable[Table]) -> None:
    """Write tables to stdout, one below the other.

    Raises:
        OutputClosedError: The reader of stdout has closed it.
    """
    from rich.console import Console

    # Rich would end the program, with a status of its own, when it finds the pipe closed.
    shown = _Shown()
    console = Console(file=shown, width=None if shown.isatty() else _WIDE)
    for table in tables:
        console.print(table)
    with _told():
        # A name that the terminal's encoding has no characters for is shown by their numbers.
        sys.stdout.write(shown.getvalue().encode(shown.encoding, "backslashreplace").decode(shown.encoding))
        sys.stdout.flush()


class _Shown(io.StringIO):
    """Collects text for stdout, with the layout and encoding of stdout."""

    @property
    def encoding(self) -> str:  # type: ignore[override]  # it is an attribute there
        return sys.stdout.encoding

    def isatty(self) -> bool:
        return sys.stdout.isatty()


@contextmanager
def _told() -> Iterator[None]:
    """Errors of writing to stdout, as errors of commands."""
    try:
        yield
    except BrokenPipeError:
        raise OutputClosedError from None
    except OSError as error:
        raise OutputFailedError(f"the output cannot be written: {error.strerror or error}") from error


@contextmanager
def redrawing() -> Iterator[Callable[[Sequence[Table]], None]]:
    """Show tables repeatedly while the block runs: in place on a terminal, otherwise one after the other.

    Yields:
        A function to call with the tables to show now.
    """
    if not sys.stdout.isatty():
        yield write_tables
        return
    from rich.console import Group
    from rich.live import Live

    with Live(auto_refresh=False) as live:
        yield lambda tables: live.update(Group(*tables), refresh=True)


def confirmed(question: str) -> bool:
    """Ask on the terminal for the confirmation of an operation that cannot be undone; anything but yes means no.

    Raises:
        UsageError: There is no terminal.
    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{question} There is no terminal for a confirmation: add --yes to do it without one")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


async def require_yes(question: str, yes: bool) -> None:
    """Continue only if the operator confirms it.

    Raises:
        CommandError: The answer was no.
        UsageError: There is no terminal to ask on.
    """
    import trio

    if yes or await trio.to_thread.run_sync(confirmed, question, abandon_on_cancel=True):
        return
    raise CommandError("nothing was done")


def is_terminal() -> bool:
    """Whether stderr is a terminal."""
    return sys.stderr.isatty()


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show on stderr what is awaited while the block runs, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show progress on stderr while the block runs, if stderr is a terminal.

    Args:
        what: Name of the counted things.
        total: The final count, if it is known.

    Yields:
        A function to call with the count reached so far.
    """
    if not sys.stderr.isatty():
        yield lambda _completed: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.speed or 0:,.0f}/s")

    bar = [SpinnerColumn()] if total is None else [BarColumn(), TimeRemainingColumn()]
    with Progress(
        TextColumn("{task.description} {task.completed:,.0f}"),
        *bar,
        Rate(),
        console=Console(stderr=True),
        transient=True,
    ) as display:
        task = display.add_task(what, total=total)
        yield lambda completed: display.update(task, completed=completed)
