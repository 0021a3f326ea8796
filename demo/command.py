"""What the command lines of both demos share: a directory for the run, errors, exit statuses, output."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import msgspec
import trio
from rich.console import Console, RenderableType

from demo.errors import DemoError
from shards.errors import StorageError

_TABLE_WIDTH: Final = 150
_INTERRUPTED: Final = 128 + signal.SIGINT
_STOPPED: Final = 128 + signal.SIGTERM


class _StoppedError(Exception):
    """SIGTERM came."""


class Checked(Protocol):
    """The outcome of a run."""

    @property
    def broken(self) -> list[str]:
        """The promises that were not kept, a line each."""


OutcomeT = TypeVar("OutcomeT", bound=Checked)


def add_common_options(parser: argparse.ArgumentParser, *, rate: float) -> None:
    """The options that both demos have.

    Args:
        parser: The parser.
        rate: How many messages per second are published by default.
    """
    parser.add_argument(
        "--rate",
        type=float,
        default=rate,
        help=f"messages per second of both publishers together (default: {rate:g})",
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object on stdout")
    parser.add_argument("--keep", action="store_true", help="keep the data directory and the logs")
    parser.add_argument("--directory", type=Path, default=Path(".demo"), help="where to put them (default: .demo)")


def run_demo(
    parent: Path,
    scenario: Callable[[Path], Awaitable[OutcomeT]],
    present: Callable[[OutcomeT], None],
    *,
    keep: bool,
) -> int:
    """Run a demo in a fresh directory, print what came of it, and remove the directory if all is well.

    Args:
        parent: Directory in which the directory of the run is made.
        scenario: The run.
        present: Prints its outcome.
        keep: The directory is never removed.

    Returns:
        The exit status: 0 if every promise was kept, 1 if not, 130 after Ctrl-C, 143 after SIGTERM. After a signal,
        too, all processes of the demo have ended.
    """
    parent.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="run-", dir=parent)).resolve()
    try:
        outcome = trio.run(_until_stopped, scenario, directory)
    except* (DemoError, StorageError, OSError) as errors:
        for error in _leaves(errors):
            sys.stderr.write(f"demo: {error}\n")
        sys.stderr.write(f"demo: data and logs are in {directory}\n")
        return_status = 1
    except* KeyboardInterrupt:
        shutil.rmtree(directory)
        return_status = _INTERRUPTED
    except* _StoppedError:
        shutil.rmtree(directory)
        return_status = _STOPPED
    else:
        present(outcome)
        return_status = 1 if outcome.broken else 0
        if keep or outcome.broken:
            sys.stderr.write(f"demo: data and logs are in {directory}\n")
        else:
            shutil.rmtree(directory)
    return return_status


async def _until_stopped(scenario: Callable[[Path], Awaitable[OutcomeT]], directory: Path) -> OutcomeT:
    """The outcome of a run, which SIGTERM ends.

    Raises:
        _StoppedError: It came.
    """
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_raise_at, signals)
            outcome = await scenario(directory)
            nursery.cancel_scope.cancel()
    return outcome


async def _raise_at(signals: AsyncIterator[int]) -> None:
    async for _ in signals:
        raise _StoppedError


def print_document(document: dict[str, Any]) -> None:
    """Print the result for scripts."""
    sys.stdout.write(msgspec.json.encode(document).decode() + "\n")


def print_report(tables: Sequence[RenderableType], lines: Sequence[str], verdict: RenderableType) -> None:
    """Print the result for people."""
    # On a narrow terminal wrapping makes the table ugly, but cutting would lose parts of it.
    console = Console(width=max(Console().width, _TABLE_WIDTH))
    for table in tables:
        console.print()
        console.print(table)
    console.print()
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
    console.print(verdict, soft_wrap=True)


def _leaves(error: BaseExceptionGroup[Exception]) -> list[BaseException]:
    found: list[BaseException] = []
    for inner in error.exceptions:
        found += _leaves(inner) if isinstance(inner, BaseExceptionGroup) else [inner]
    return found
