"""The connection of a command to the server: the `--server` option and the client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias, TypeVar

from cyclopts import Parameter

from command_line.boundary import FIRST_WITHIN_S, CommandError, one_line, unreached
from shards.errors import CorruptionError, ShardNotFoundError

if TYPE_CHECKING:
    from journal.client import Client

ServerOption: TypeAlias = Annotated[
    str,
    Parameter(
        name="--server",
        env_var="JOURNAL_SERVER",
        help="Server to talk to, as HOST:PORT or journals://USER@HOST:PORT?password_file=PATH&ca_file=PATH "
        "(docs/operations.md has all forms); JOURNAL_PASSWORD and JOURNAL_TOKEN may hold secrets.",
    ),
]

DEFAULT_SERVER: Final = "127.0.0.1:7420"
_PATIENCE_S: Final = 30.0

_T = TypeVar("_T")


@asynccontextmanager
async def connect(server: str) -> AsyncIterator[Client]:
    """A connected client for the length of the block.

    If no server answers at first, that is an error at once; a connection that is lost later is re-established.

    Raises:
        CommandError: No server answers at that address, or the server has found damaged data.
    """
    from journal.cli.damage import WAY_OUT
    from journal.client import SessionTimes, open_client
    from journal.protocol.errors import ConnectionLostError

    stands = False
    try:
        async with open_client(
            server,
            name="journal command line",
            times=SessionTimes(give_up_after_s=_PATIENCE_S, first_within_s=FIRST_WITHIN_S),
        ) as client:
            stands = True
            yield client
    except ConnectionLostError as error:
        if stands:
            raise
        raise unreached(_with_port(server), error) from error
    except CorruptionError as error:
        raise CommandError(f"{one_line(error)}; {WAY_OUT}") from error


def explain(error: BaseException) -> str | None:
    """Explain a refusal of the server for the command line; None where its own message is sufficient."""
    if isinstance(error, ShardNotFoundError):
        # It is the server's advice for a program.
        told = one_line(error).removesuffix("; create it first")
        return f"{told}; `journal shard list` lists all shards, `journal shard create NAME` creates one"
    return None


def _with_port(server: str) -> str:
    """An address with the port that is used."""
    from journal.client.address import Address

    port = Address.parse_all(server)[0].port
    return server if f":{port}" in server else f"{server} (port {port})"


def ask(server: str, question: Callable[[Client], Awaitable[_T]]) -> _T:
    """Connect, run one function, close."""
    import trio

    async def connected() -> _T:
        async with connect(server) as client:
            return await question(client)

    return trio.run(connected)
