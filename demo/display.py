"""What is seen while the demo runs: a line for each step, and on a terminal a live bar with the counts below them.

Everything goes to standard error, so that standard output carries the result alone.
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
    """Tells steps and shows counts; where there is no terminal the bar is left out."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        if not self._console.is_terminal:
            self._console = Console(stderr=True, width=_PLAIN_WIDTH)
        self._begun_at = time.monotonic()

    def step(self, text: str) -> None:
        """Say what happens now."""
        self._console.print(Text(f"{time.monotonic() - self._begun_at:5.1f} s  {text}"), soft_wrap=True)

    @contextmanager
    def working(self, text: str) -> Iterator[None]:
        """Say what happens now, and on a terminal that it goes on while the block runs."""
        self.step(text)
        if self._console.is_terminal:
            with self._console.status(Text(text)):
                yield
        else:
            yield

    @contextmanager
    def counting(self, seconds: float) -> Iterator[Callable[[str], None]]:
        """Show a bar over the time of the run while the block runs.

        Args:
            seconds: How long it is meant to take.

        Yields:
            A function to call with the counts reached so far, in words.
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
                bar.update(task, completed=min(time.monotonic() - begun_at, seconds), description=words)

            yield show
