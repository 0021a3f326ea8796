"""How a command reaches the server: the `--server` option and the connection behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypeVar

from cyclopts import Parameter

from journal.cli.boundary import CommandError

if TYPE_CHECKING:
    from journal.client import Client

ServerOption: TypeAlias = Annotated[
    str, Parameter(name="--server", env_var="JOURNAL_SERVER", help="Server to talk to, as HOST:PORT.")
]
JsonOption: TypeAlias = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON for scripts.")]

DEFAULT_SERVER = "127.0.0.1:7420"

_T = TypeVar("_T")


@asynccontextmanager
async def connect(server: str) -> AsyncIterator[Client]:
    """A connected client for the length of the block.

    Raises:
        CommandError: Nothing answers at that address.
    """
    from journal.client import open_client

    async with AsyncExitStack() as stack:
        try:
            client = await stack.enter_async_context(open_client(server))
        except OSError as error:
            raise CommandError(
                f"no server answers at {server} ({error.strerror or error}); "
                "start one with `journal serve --data DIR`, or name it with --server HOST:PORT"
            ) from error
        yield client


def ask(server: str, question: Callable[[Client], Awaitable[_T]]) -> _T:
    """Connect, do one thing, close."""
    import trio

    async def connected() -> _T:
        async with connect(server) as client:
            return await question(client)

    return trio.run(connected)
