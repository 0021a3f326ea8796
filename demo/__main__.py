"""``python -m demo``: the command line. Exit status 0 if every promise was kept, 1 if not, 2 for wrong usage."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import trio
from rich.console import Console

from demo.display import Display
from demo.errors import DemoError
from demo.results.outcome import Outcome
from demo.results.report import NOTE, document, render, render_history, summary, verdict
from demo.scenario import run_scenario
from shards.errors import StorageError

_LEAST_SECONDS, _MOST_SECONDS = 3.0, 3600.0
_TABLE_WIDTH = 150


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and print the results. Returns the exit status."""
    given = _parse(arguments)
    given.directory.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="run-", dir=given.directory))
    try:
        outcome = trio.run(run_scenario, directory, given.seconds, given.rate, Display())
    except* (DemoError, StorageError, OSError) as errors:
        for error in _leaves(errors):
            sys.stderr.write(f"demo: {error}\n")
        sys.stderr.write(f"demo: data and logs are in {directory}\n")
        return_status = 1
    except* KeyboardInterrupt:
        shutil.rmtree(directory)
        return_status = 130
    else:
        _print(outcome, as_json=given.json)
        return_status = 1 if outcome.broken else 0
        if given.keep or outcome.broken:
            sys.stderr.write(f"demo: data and logs are in {directory}\n")
        else:
            shutil.rmtree(directory)
    return return_status


def _print(outcome: Outcome, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(msgspec.json.encode(document(outcome)).decode() + "\n")
        return
    # On a narrow terminal wrapping makes the table ugly, but cutting would lose parts of it.
    console = Console(width=max(Console().width, _TABLE_WIDTH))
    console.print()
    console.print(render(outcome))
    console.print()
    console.print(render_history(outcome.history))
    console.print()
    for line in (NOTE, *summary(outcome), *outcome.broken):
        console.print(line, highlight=False, soft_wrap=True)
    console.print(verdict(outcome), soft_wrap=True)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m demo",
        description="Live telemetry of this machine through three MQTT brokers on one journal server; a broker and the "
        "server are killed during the run. Then what every client published and received is compared with the store. "
        "The exit status says whether all promises were kept.",
    )
    parser.add_argument("--seconds", type=float, default=15.0, help="how long the clients publish (default: 15)")
    parser.add_argument(
        "--rate", type=float, default=200.0, help="messages per second of both publishers together (default: 200)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object on stdout")
    parser.add_argument("--keep", action="store_true", help="keep the data directory and the logs")
    parser.add_argument("--directory", type=Path, default=Path(".demo"), help="where to put them (default: .demo)")
    given = parser.parse_args(arguments)
    if not _LEAST_SECONDS <= given.seconds <= _MOST_SECONDS:
        parser.error(f"--seconds is {given.seconds:g}; it must be from {_LEAST_SECONDS:g} to {_MOST_SECONDS:g}")
    if not given.rate > 0:
        parser.error(f"--rate is {given.rate:g}; it must be more than 0")
    return given


def _leaves(error: BaseExceptionGroup[Exception]) -> list[BaseException]:
    found: list[BaseException] = []
    for inner in error.exceptions:
        found += _leaves(inner) if isinstance(inner, BaseExceptionGroup) else [inner]
    return found


if __name__ == "__main__":
    sys.exit(main())
