"""`journal serve`, `journal config` and `journal paths`: run the server, print its configuration and paths."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from command_line.boundary import UsageError
from command_line.output import write_text
from command_line.overrides import overrides_of
from command_line.shipped_files import DIRECTORIES, print_default_file, shipped_path


def serve(
    *,
    data: Annotated[str, Parameter(name="--data")],
    config: str | None = None,
    listen: str | None = None,
    store: str | None = None,
    objects: str | None = None,
    settings: Annotated[tuple[str, ...], Parameter(name="--set", negative="")] = (),
) -> None:
    """Run the server; print `ready` with its addresses once it accepts; stop cleanly on SIGTERM or Ctrl-C.

    The exit status is 74 when its storage has failed, and 78 when its settings are wrong.

    Args:
        data: Data directory; created if it does not exist.
        config: Configuration file (`journal config --default` prints one); missing settings have their defaults.
        listen: Address for clients as HOST:PORT, instead of the configured one.
        store: Address of the log store that the servers of a cluster share, for example s3://bucket/plant, instead of
            the configured one. Credentials come from the environment.
        objects: Address of the store of the large files, if they do not lie beside the log, for example s3://bucket/plant
            for a log in PostgreSQL.
        settings: One setting as SECTION.KEY=VALUE, instead of the configured one, for example
            --set storage.journal_file_bytes="64 MiB"; may be given many times.
    """
    import trio

    from command_line.boundary import exit_status_for_supervisor
    from journal.server import run_server
    from journal.settings.server import ServerConfig
    from journal.settings.server_file import load_config
    from journal.settings.values import ConfigurationError

    overrides = overrides_of(settings, listed_by="journal config --default")
    if listen is not None:
        overrides["listen.tcp"] = listen
    if objects is not None and store is None:
        raise UsageError("--objects without --store: give the address of the log as well, or both in cluster.store")
    if store is not None:
        overrides["cluster.store"] = [store, objects or ""]

    def read() -> ServerConfig:
        return load_config(config, overrides)

    async def serving(wanted: ServerConfig) -> None:
        async with trio.open_nursery() as nursery:
            addresses = await nursery.start(run_server, wanted, data, read)
            if addresses:
                write_text(" ".join(("ready", *addresses)))

    with exit_status_for_supervisor(ConfigurationError):
        trio.run(serving, read())


def config(*, default: Annotated[bool, Parameter(negative="")] = False, check: str | None = None) -> None:
    """Print every setting at its default (`--default`), or check a configuration file (`--check FILE`).

    With --check, say instead what is wrong with a file. If nothing is, say who could connect to a server with these
    settings, what they may do, and what goes in clear text.

    Args:
        default: Print the defaults.
        check: The file to check, with all files that it names.
    """
    if check is None:
        print_default_file("conf/journal.toml", program="journal", default=default)
        return
    import trio

    from journal.access.login_report import login_report
    from journal.server.exposure import exposure_of
    from journal.server.security import read
    from journal.settings.server_file import load_config

    wanted = load_config(check)
    known = read(wanted).known
    write_text(f"{check}: a server can start with it")
    write_text(exposure_of(wanted, known).text)
    for sentence in trio.run(login_report, known):
        write_text(sentence)


def paths(what: Literal["conf", "docs"] | None = None, /) -> None:
    """Print the paths of the shipped files: `conf` (configuration, units, alert rules, dashboard) and `docs`.

    Args:
        what: One of the two; only its path is printed, for scripts.
    """
    if what is not None:
        write_text(str(shipped_path(what)))
        return
    for name in DIRECTORIES:
        write_text(f"{name}  {shipped_path(name)}")
