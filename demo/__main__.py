"""``python -m demo``: the command line. Exit status 0 if every promise was kept, 1 if not, 2 for wrong usage."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from demo.command import add_common_options, print_document, print_report, run_demo
from demo.display import Display
from demo.results.outcome import Outcome
from demo.results.report import NOTE, document, render, render_history, summary, verdict
from demo.scenario import run_scenario

_LEAST_SECONDS, _MOST_SECONDS = 3.0, 3600.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and print the results. Returns the exit status."""
    given = _parse(arguments)

    async def scenario(directory: Path) -> Outcome:
        return await run_scenario(directory, given.seconds, given.rate, Display())

    def present(outcome: Outcome) -> None:
        if given.json:
            print_document(document(outcome))
        else:
            tables = (render(outcome), render_history(outcome.history))
            print_report(tables, (NOTE, *summary(outcome), *outcome.broken), verdict(outcome))

    return run_demo(given.directory, scenario, present, keep=given.keep)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m demo",
        description="Live telemetry of this machine through three MQTT brokers on one journal server; a broker and the "
        "server are killed during the run. Then what every client published and received is compared with the store. "
        "The exit status says whether all promises were kept.",
    )
    parser.add_argument("--seconds", type=float, default=15.0, help="how long the clients publish (default: 15)")
    add_common_options(parser, rate=200.0)
    given = parser.parse_args(arguments)
    if not _LEAST_SECONDS <= given.seconds <= _MOST_SECONDS:
        parser.error(f"--seconds is {given.seconds:g}; it must be from {_LEAST_SECONDS:g} to {_MOST_SECONDS:g}")
    if not given.rate > 0:
        parser.error(f"--rate is {given.rate:g}; it must be more than 0")
    return given


if __name__ == "__main__":
    sys.exit(main())
