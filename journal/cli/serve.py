"""`journal serve`: run the server on a data directory until it is told to stop."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from journal.cli.output import write_text


def serve(
    *,
    data: Annotated[str, Parameter(name="--data")],
    config: str | None = None,
    listen: str | None = None,
) -> None:
    """Run the server; print `ready` with its addresses once it accepts; stop cleanly on SIGTERM or Ctrl-C.

    Args:
        data: Data directory; made if it is not there.
        config: Configuration file (see conf/journal.toml); what it leaves out has its default.
        listen: Address for clients as HOST:PORT, in place of the configured one.
    """
    import trio

    from journal.config import load_config
    from journal.server import run_server

    settings = load_config(config, {"listen.tcp": listen} if listen is not None else {})

    async def serving() -> None:
        async with trio.open_nursery() as nursery:
            addresses = await nursery.start(run_server, settings, data)
            write_text(" ".join(("ready", *addresses)))

    trio.run(serving)
