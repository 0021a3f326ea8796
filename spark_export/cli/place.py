"""Which journal a command reads: the directory and the server that its arguments name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Final, TypeAlias

import attrs
import trio
from cyclopts import Parameter

from command_line.boundary import UsageError
from spark_export.options import parse_options
from spark_export.server_connection import connected

ServerOption: TypeAlias = Annotated[
    str | None,
    Parameter(
        name="--server", help="Server to ask, as HOST:PORT; JOURNAL_SERVER if neither a directory nor this is given."
    ),
]
TopicsOption: TypeAlias = Annotated[
    str,
    Parameter(name="--topics", help="MQTT topic filters with commas between them: other topics are left out."),
]
ALL_TOPICS: Final = "#"
_PATIENCE_S: Final = 3.0


@attrs.frozen
class Place:
    """A journal.

    Attributes:
        path: A data directory or a tree of sealed segments; None if the server has all of it.
        server: Address of the server, None if there is none to ask.
    """

    path: str | None
    server: str | None

    @classmethod
    def parse(cls, path: str | None, server: str | None, environment: Mapping[str, str] = os.environ) -> Place:
        """What the arguments mean.

        Raises:
            UsageError: They name nothing.
        """
        if path is None and server is None:
            server = environment.get("JOURNAL_SERVER")
        if not path and not server:
            raise UsageError("name a data directory, a tree of sealed segments, or a server with --server HOST:PORT")
        return cls(path or None, server or None)

    def require_server(self) -> None:
        """Return if the server that is named, if one is, answers: better to hear that now than from a Spark job.

        Raises:
            UnreadableError: It does not.
        """
        server = parse_options(self.options()).server
        if server:
            trio.run(_reach, server)

    def options(self, topics: str = ALL_TOPICS) -> dict[str, str]:
        """The options of the data source `journal` that say the same."""
        named = {"path": self.path, "server": self.server, "topics": topics}
        return {name: value for name, value in named.items() if value is not None}


async def _reach(server: str) -> None:
    async with connected(server, patience_s=_PATIENCE_S):
        pass
