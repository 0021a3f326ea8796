"""Standard output and error of the commands: raw lines, JSON lines, tables, progress.

Data goes to stdout and everything said about it to stderr, so that a pipe carries data alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from command_line.boundary import OutputClosedError

_WIDE = 240


def write_lines(lines: Iterable[bytes]) -> None:
    """Write lines (without their newlines) to stdout at once and flush.

    Raises:
        OutputClosedError: The reader of stdout is gone.
    """
    try:
        sys.stdout.buffer.write(b"".join(line + b"\n" for line in lines))
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise OutputClosedError from None


def write_text(text: str) -> None:
    """Write one line of text to stdout."""
    write_lines([text.encode("utf-8", "surrogateescape")])


def write_json(value: object) -> None:
    """Write one value as a line of JSON."""
    import msgspec

    write_lines([msgspec.json.encode(value)])


def note(program: str, text: str) -> None:
    """Say something on stderr, as the program of that name."""
    sys.stderr.write(f"{program}: {text}\n")
    sys.stderr.flush()


def write_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, numeric: Sequence[str] = ()) -> None:
    """Write a table to stdout; in a pipe it is as wide as it needs to be.

    Args:
        columns: Headings.
        rows: Cells, taken literally.
        numeric: Headings of the columns to align to the right.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in numeric else "left", no_wrap=column in numeric)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    try:
        Console(width=None if sys.stdout.isatty() else _WIDE).print(table)
        sys.stdout.flush()
    except BrokenPipeError:
        raise OutputClosedError from None


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Say on stderr what is waited for while the block runs, if stderr is a terminal."""
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
        what: What is counted.
        total: How many there will be, if known.

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
