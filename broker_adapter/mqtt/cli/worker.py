"""The program of one of several processes of a broker: `journal-broker serve --processes` starts it, users do not."""

from __future__ import annotations

import sys
from functools import partial

import trio

from broker_adapter.mqtt.cli.main import PROGRAM, explain
from broker_adapter.mqtt.server.worker import run_worker
from broker_adapter.mqtt.server.worker_lines import Failed
from command_line.boundary import exit_status_for_supervisor, outcome_of
from command_line.interpreter import prepare_interpreter
from journal.settings.values import ConfigurationError


def failure_of(error: BaseException) -> Failed:
    """What the supervisor learns of an error: its line and exit status are those of a broker in one process."""
    try:
        with exit_status_for_supervisor(ConfigurationError):
            raise error  # noqa: TRY301 only to have it converted
    except Exception as converted:  # noqa: BLE001 it becomes a line
        return Failed(*outcome_of(converted, PROGRAM, explain))


def main() -> None:
    """Run the process."""
    prepare_interpreter()
    sys.exit(trio.run(partial(run_worker, failure_of)))


if __name__ == "__main__":
    main()
