"""``python -m demo.cluster``: the command line. Its exit statuses are those of ``python -m demo``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from demo.cluster.network.namespaces import isolated
from demo.cluster.network.ways import Way
from demo.cluster.outcome import ClusterOutcome
from demo.cluster.report import NOTE, document, render, summary, verdict
from demo.cluster.scenario import run_scenario
from demo.command import add_common_options, print_document, print_report, run_demo
from demo.display import Display
from demo.errors import DemoError
from demo.processes.seaweedfs import find_seaweedfs

_MOST_KILLS = 100
_ISOLATED = "--isolated"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and print the results. Returns the exit status."""
    given = _parse(arguments)
    try:
        find_seaweedfs()
    except DemoError as error:
        sys.stderr.write(f"demo: {error}\n")
        return 1
    way = Way.NAMESPACES if given.isolated else Way.RELAYS
    # A proxy knows nothing of the addresses of the demo.
    os.environ |= {"NO_PROXY": "*", "no_proxy": "*"}
    if not given.isolated and given.cut != Way.RELAYS.value:
        words = sys.argv[1:] if arguments is None else arguments
        command = isolated([sys.executable, "-m", "demo.cluster", *words, _ISOLATED])
        if command is not None:
            os.execvp(command[0], command)
        if given.cut == Way.NAMESPACES.value:
            sys.stderr.write(
                "demo: this machine lets us make no network namespace (or has no unshare, nsenter and ip)\n"
            )
            return 1

    async def scenario(directory: Path) -> ClusterOutcome:
        return await run_scenario(directory, given.kills, given.rate, way, Display(), is_timed=not given.untimed)

    def present(outcome: ClusterOutcome) -> None:
        if given.json:
            print_document(document(outcome))
        else:
            print_report([render(outcome)], (NOTE, *summary(outcome), *outcome.broken), verdict(outcome))

    return run_demo(given.directory, scenario, present, keep=given.keep)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m demo.cluster",
        description="Live telemetry of this machine through three MQTT brokers on three journal servers, whose log "
        "lies in SeaweedFS. The owner is killed, the disk of a server is emptied, and the owner is cut from the "
        "network. Then what every client published and received is compared with what each server has. The exit "
        "status says whether all promises were kept.",
    )
    parser.add_argument("--kills", type=int, default=3, help="how often the owner is killed (default: 3)")
    parser.add_argument(
        "--cut",
        choices=["auto", *(way.value for way in Way)],
        default="auto",
        help="how a server is cut from the network: by network namespaces of Linux, or by relays that stop to forward "
        "(default: namespaces where this machine lets us make them)",
    )
    parser.add_argument(
        "--untimed",
        action="store_true",
        help="takeovers need not meet their goals: for a machine that is busy with other work",
    )
    parser.add_argument(_ISOLATED, action="store_true", help=argparse.SUPPRESS)
    add_common_options(parser, rate=60.0)
    given = parser.parse_args(arguments)
    if not 1 <= given.kills <= _MOST_KILLS:
        parser.error(f"--kills is {given.kills}; it must be from 1 to {_MOST_KILLS}")
    if not given.rate > 0:
        parser.error(f"--rate is {given.rate:g}; it must be more than 0")
    return given


if __name__ == "__main__":
    sys.exit(main())
