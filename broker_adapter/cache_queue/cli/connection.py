"""Connection of these commands to the store: the `--server` option, which also accepts a store's URL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Final, TypeAlias, TypeVar

from cyclopts import Parameter

from broker_adapter.adapter import StorageAdapter
from broker_adapter.opening import ENGINES, is_shared, open_adapter
from command_line.boundary import FIRST_WITHIN_S, unreached

StoreOption: TypeAlias = Annotated[
    str,
    Parameter(
        name="--server",
        env_var="JOURNAL_SERVER",
        help="Server to connect to, as HOST:PORT, or the URL of a store, such as embedded:/directory.",
    ),
]

DEFAULT_SERVER: Final = "127.0.0.1:7420"
"""The same as that of the other `journal` commands."""

SERVER_OPTION: Final = "--server HOST:PORT"
_PATIENCE_S: Final = 30.0

_T = TypeVar("_T")


@asynccontextmanager
async def connect(server: str, option: str = SERVER_OPTION) -> AsyncIterator[StorageAdapter]:
    """Open a store as an async context manager.

    If no server answers at first, that is an error at once; a connection that is lost later is retried for a while.

    Args:
        server: ``host:port`` or the URL of a store.
        option: The option that names another store, for error messages.

    Raises:
        CommandError: Nothing answers at that address.
    """
    scheme = server.partition(":")[0]
    if scheme in ENGINES and not is_shared(server):
        async with open_adapter(server) as adapter:
            yield adapter
        return
    async with _connect_to_server(server, option) as adapter:
        yield adapter


@asynccontextmanager
async def _connect_to_server(server: str, option: str) -> AsyncIterator[StorageAdapter]:
    from broker_adapter.engines.journal import JournalAdapter
    from broker_adapter.errors import ConnectionLostError
    from journal.client import SessionTimes, open_client

    stands = False
    try:
        async with (
            open_client(
                server,
                name="journal command line",
                ends_at_restore=True,
                times=SessionTimes(give_up_after_s=_PATIENCE_S, first_within_s=FIRST_WITHIN_S),
            ) as client,
            JournalAdapter(client) as adapter,
        ):
            stands = True
            yield adapter
    except ConnectionLostError as error:
        if stands:
            raise
        raise unreached(server, error, option) from error


def ask(server: str, question: Callable[[StorageAdapter], Awaitable[_T]], option: str = SERVER_OPTION) -> _T:
    """Connect, call ``question``, close; see `connect`."""
    import trio

    async def connected() -> _T:
        async with connect(server, option) as adapter:
            return await question(adapter)

    return trio.run(connected)
