"""Output while the demo runs: a line for each step, and on a terminal a live bar with the counts below them.

Everything goes to standard error; standard output has only the result.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

_PLAIN_WIDTH = 200


class Display:
    """Prints steps and shows counts; without a terminal there is no bar."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        if not self._console.is_terminal:
            self._console = Console(stderr=True, width=_PLAIN_WIDTH)
        self._begun_at = time.monotonic()

    def step(self, text: str) -> None:
        """Print the step that begins now."""
        self._console.print(Text(f"{time.monotonic() - self._begun_at:5.1f} s  {text}"), soft_wrap=True)

    @contextmanager
    def working(self, text: str) -> Iterator[None]:
        """Print the step that begins now, and on a terminal show activity during the context."""
        self.step(text)
        if self._console.is_terminal:
            with self._console.status(Text(text)):
                yield
        else:
            yield

    @contextmanager
    def counting(self, seconds: float | None) -> Iterator[Callable[[str], None]]:
        """Show a bar over the time of the run during the context.

        Args:
            seconds: Planned duration; None if it is not known.

        Yields:
            A function to call with the counts so far, as text.
        """
        begun_at = time.monotonic()
        with Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(20),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        ) as bar:
            task = bar.add_task("starting", total=seconds)

            def show(words: str) -> None:
                so_far = time.monotonic() - begun_at
                bar.update(task, completed=so_far if seconds is None else min(so_far, seconds), description=words)

            yield show
