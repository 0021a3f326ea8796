"""The journal that a command reads: the directory and the server in its arguments."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Final, TypeAlias

import attrs
from cyclopts import Parameter

from command_line.boundary import UsageError
from spark_export.errors import UnreadableError
from spark_export.options import parse_options

ServerOption: TypeAlias = Annotated[
    str | None,
    Parameter(
        name="--server", help="Server to read from, as HOST:PORT; JOURNAL_SERVER if this and the directory are missing."
    ),
]
TopicsOption: TypeAlias = Annotated[
    str,
    Parameter(name="--topics", help="MQTT topic filters separated by commas: other topics are left out."),
]
ALL_TOPICS: Final = "#"
_PATIENCE_S: Final = 3.0


@attrs.frozen
class Place:
    """A journal.

    Attributes:
        path: A data directory or a tree of sealed segments; None if the server has everything.
        server: Address of the server; None if there is none.
    """

    path: str | None
    server: str | None

    @classmethod
    def parse(
        cls,
        path: str | None,
        server: str | None,
        environment: Mapping[str, str] = os.environ,
        *,
        only: str | None = None,
        wanted: str = "",
    ) -> Place:
        """The journal that the arguments name.

        Args:
            path: The directory; None if one word alone was given, which then is not the directory.
            server: The value of `--server`.
            environment: Its JOURNAL_SERVER counts if neither is given.
            only: The only positional argument, if there is just one.
            wanted: What that word is, like "query".

        Raises:
            UsageError: They name none, or the only argument is a journal itself.
        """
        if path is None and only is not None and _is_journal(only):
            raise UsageError(f"{only} is a directory with records; write the {wanted} behind it")
        if path is None and server is None:
            server = environment.get("JOURNAL_SERVER")
        if not path and not server:
            places = "a data directory, a tree of sealed segments, or a server with --server HOST:PORT"
            raise UsageError(f"name {places}" if only is None else f"name, before the {wanted} {only!r}, {places}")
        return cls(path or None, server or None)

    def require(self) -> None:
        """Return if the directory, if it is local, exists, and the server, if there is one, answers.

        Spark takes seconds to start, and its errors are less clear.

        Raises:
            UnreadableError: There is no such directory, or the server does not answer.
        """
        if self.path and "://" not in self.path and not os.path.isdir(self.path):
            raise UnreadableError(
                f"there is no directory {self.path}; name the data directory or a tree of sealed segments"
            )
        server = parse_options(self.options()).server
        if server:
            import trio

            trio.run(_reach, server)

    def options(self, topics: str = ALL_TOPICS) -> dict[str, str]:
        """The same as options of the data source `journal`."""
        named = {"path": self.path, "server": self.server, "topics": topics}
        return {name: value for name, value in named.items() if value is not None}


def _is_journal(path: str) -> bool:
    """Whether there is a data directory or a tree of sealed segments."""
    names = os.listdir(path) if os.path.isdir(path) else []
    return any(name in ("FORMAT", "sealed") or name.startswith("date=") for name in names)


async def _reach(server: str) -> None:
    # Imported late: most commands read files of this machine.
    from spark_export.server_connection import connected

    async with connected(server, patience_s=_PATIENCE_S):
        pass
