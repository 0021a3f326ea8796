"""`journal-broker serve` and `journal-broker bridge`: run a broker, or bridges alone, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from broker_adapter.mqtt.cli.config import ConfigOption, SetOption, load
from command_line.output import write_text

if TYPE_CHECKING:
    from broker_adapter.mqtt.config import BrokerConfig


_WORKER: Final = (sys.executable, "-m", "broker_adapter.mqtt.cli.worker")


def serve(
    *,
    config: ConfigOption = None,
    store: str | None = None,
    listen: str | None = None,
    processes: str | None = None,
    anonymous: Annotated[bool, Parameter(negative="")] = False,
    settings: SetOption = (),
) -> None:
    """Run the broker (also without a command); print `ready` with its addresses once it accepts clients.

    SIGTERM and Ctrl-C stop it in order, SIGHUP makes it read users, access rules and certificates again. The exit
    status is 74 when its own store (embedded:) failed, when its store was restored from a backup or when the mapping
    rules of the store changed, so that a supervisor starts it again, and 78 when its settings are wrong or have other
    rules than the store.

    Args:
        store: URL of the store, instead of the configured one: journal://127.0.0.1:7420, embedded:/var/lib/broker,
            memory:
        listen: Address for MQTT over TCP as HOST:PORT, instead of the configured one.
        processes: Number of processes that are this broker, or `auto` for one for each processor, instead of the
            configured number. More than one needs a store that brokers share.
        anonymous: Accept all clients without a password.
    """
    import trio

    from broker_adapter.mqtt.server.process import run_broker
    from command_line.boundary import STORAGE_FAILED, CommandError, exit_status_for_supervisor
    from journal.settings.values import ConfigurationError

    def read() -> BrokerConfig:
        return load(
            config,
            settings,
            broker__store=store,
            listen__mqtt=listen,
            broker__processes=processes,
            access__anonymous=True if anonymous else None,
        )

    async def several(
        wanted: BrokerConfig, read: Callable[[], BrokerConfig], *, task_status: trio.TaskStatus[list[str]]
    ) -> None:
        from broker_adapter.mqtt.server.supervisor import ProcessFailedError, run_processes

        try:
            await run_processes(wanted, read, command=_WORKER, passing={STORAGE_FAILED}, task_status=task_status)
        except ProcessFailedError as error:
            raise CommandError(str(error), error.status) from error

    async def serving(wanted: BrokerConfig) -> None:
        async with trio.open_nursery() as nursery:
            run = run_broker if wanted.broker.processes == 1 else several
            addresses = await nursery.start(run, wanted, read)
            if addresses:
                write_text(" ".join(("ready", *addresses)))

    with exit_status_for_supervisor(ConfigurationError):
        trio.run(serving, read())


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
    from command_line.boundary import exit_status_for_supervisor
    from journal.settings.values import ConfigurationError

    wanted = load(config, settings, broker__store=store)

    async def running() -> None:
        async with trio.open_nursery() as nursery:
            found = await nursery.start(run_bridges, wanted, names)
            if found:
                write_text(" ".join(("ready", *found)))

    with exit_status_for_supervisor(ConfigurationError):
        trio.run(running)
