"""`journal-broker bridge`: drive bridges in a process of their own until SIGTERM or Ctrl-C."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from broker_adapter.mqtt.cli.settings_options import ConfigOption, SetOption, load
from command_line.output import write_text


def bridge(
    names: Annotated[tuple[str, ...], Parameter(name="NAME", negative="")] = (),
    /,
    *,
    config: ConfigOption = None,
    store: str | None = None,
    settings: SetOption = (),
) -> None:
    """Drive bridges, all or those named, in a process of their own; print `ready` with their names.

    Brokers drive bridges as well, unless `drive = false`; each bridge is driven by one process at a time. The exit
    status is 74 when the store was restored from a backup, so that a supervisor starts it again.

    Args:
        names: Names of bridges in the configuration.
        store: URL of the store, instead of the configured one.
    """
    import trio

    from broker_adapter.mqtt.server.bridge_process import run_bridges
    from command_line.serving import exit_status_for_supervisor
    from journal.settings.values import ConfigurationError

    wanted = load(config, settings, broker__store=store)

    async def running() -> None:
        async with trio.open_nursery() as nursery:
            found = await nursery.start(run_bridges, wanted, names)
            if found:
                write_text(" ".join(("ready", *found)))

    with exit_status_for_supervisor(ConfigurationError):
        trio.run(running)
