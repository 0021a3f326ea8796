"""`journal serve`: run the server on a data directory until it is told to stop."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from command_line.boundary import UsageError
from command_line.output import write_text


def serve(
    *,
    data: Annotated[str, Parameter(name="--data")],
    config: str | None = None,
    listen: str | None = None,
    settings: Annotated[tuple[str, ...], Parameter(name="--set", negative="")] = (),
) -> None:
    """Run the server; print `ready` with its addresses once it accepts; stop cleanly on SIGTERM or Ctrl-C.

    Args:
        data: Data directory; made if it is not there.
        config: Configuration file (see conf/journal.toml); what it leaves out has its default.
        listen: Address for clients as HOST:PORT, in place of the configured one.
        settings: One setting as SECTION.KEY=VALUE, in place of the configured one, for example
            --set storage.journal_file_bytes="64 MiB"; may be given many times.
    """
    import trio

    from journal.config import load_config
    from journal.server import run_server

    overrides = overrides_of(settings)
    if listen is not None:
        overrides["listen.tcp"] = listen
    wanted = load_config(config, overrides)

    async def serving() -> None:
        async with trio.open_nursery() as nursery:
            addresses = await nursery.start(run_server, wanted, data)
            write_text(" ".join(("ready", *addresses)))

    trio.run(serving)


def overrides_of(settings: tuple[str, ...]) -> dict[str, object]:
    """Settings by dotted name, out of ``SECTION.KEY=VALUE`` texts.

    Raises:
        UsageError: A text has another form, or a setting is named twice.
    """
    overrides: dict[str, object] = {}
    for setting in settings:
        name, equals, value = (part.strip() for part in setting.partition("="))
        section, dot, key = name.partition(".")
        if not (equals and section and dot and key):
            raise UsageError(
                f"--set {setting!r} is no setting; write it as SECTION.KEY=VALUE, for example "
                f"--set log.level=debug (conf/journal.toml lists all settings)"
            )
        if name in overrides:
            raise UsageError(f"--set names {name} twice, as {overrides[name]} and as {value}; leave one of them out")
        overrides[name] = _value(value)
    return overrides


def _value(text: str) -> object:
    """What a configuration file would have: no setting is a text that reads like a number or like true and false."""
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.removeprefix("-").isdecimal() else text
