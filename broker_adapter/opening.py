"""Opens an adapter by its URL, with the table of engines. The engines are in `broker_adapter.engines`."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from urllib.parse import parse_qs, unquote, urlsplit

from broker_adapter.adapter import StorageAdapter
from shards.errors import InvalidRequestError
from shards.extras import install_command

_Opener = Callable[..., AbstractAsyncContextManager[StorageAdapter]]

ENGINES = {
    "memory": "broker_adapter.engines.embedded:open_memory",
    "rocksdb": "broker_adapter.engines.embedded:open_embedded",
    "embedded": "broker_adapter.engines.embedded:open_embedded",
    "journal": "broker_adapter.engines.journal:open_journal",
    "journals": "broker_adapter.engines.journal:open_journal",
    "journal+ws": "broker_adapter.engines.journal:open_journal",
    "journal+wss": "broker_adapter.engines.journal:open_journal",
}
"""URL scheme -> module and function that opens it. The function takes the URL; for a server also its options."""

_SERVED = ("journal", "journals", "journal+ws", "journal+wss")

_EXTRAS = {"journal+ws": "websocket", "journal+wss": "websocket"}
"""URL scheme -> extra that installs what its engine needs, if the extra has another name than the scheme."""


@asynccontextmanager
async def open_adapter(
    url: str, *, name: str | None = None, ends_at_restore: bool = False, first_within_s: float | None = None
) -> AsyncIterator[StorageAdapter]:
    """Open a store as an async context manager; its background tasks run inside the context.

    Args:
        url: ``memory:``, ``embedded:/directory`` (or ``rocksdb:/directory``, which is the same),
            ``journal://host:port`` or ``journal+ws://host:port``; with TLS ``journals://`` and ``journal+wss://``.
        name: Name of this client in the log and in the list of connections of a journal server. A suffix makes it
            unique.
        ends_at_restore: When a journal server comes back with data that was restored from a backup, let every call fail
            with `ServerRestoredError` and `StorageAdapter.wait_failed` return, before anything is sent to it. For
            programs that keep positions, versions or records of the store themselves: these may belong to a history
            that is lost. Without it subscriptions and feeds continue in the restored history.
        first_within_s: How long to try a server that does not answer at the start, in seconds; None means 10,
            `math.inf` without a limit. A connection that is lost later is retried without a limit.

    Raises:
        ConnectionLostError: No server answers.
        InvalidRequestError: No engine has that scheme, or what the engine needs is not installed.
    """
    async with AsyncExitStack() as stack:
        try:
            opener = _opener(url)
            if url.startswith("journal"):
                opener = partial(opener, name=name, ends_at_restore=ends_at_restore, first_within_s=first_within_s)
            adapter = await stack.enter_async_context(opener(url))
        except ModuleNotFoundError as error:
            raise _not_installed(url, error) from error
        yield adapter


def is_shared(url: str) -> bool:
    """Whether the URL names a server, which any number of processes can use at once."""
    return url.partition(":")[0] in _SERVED


def may_be_behind(url: str) -> bool:
    """Whether the URL asks for a server that follows the owner of its store: what it reads may be old."""
    return is_shared(url) and "read" in parse_qs(urlsplit(url).query, keep_blank_values=True)


def directory_of(url: str) -> str:
    """The directory that a URL like ``rocksdb:/var/lib/broker`` names.

    Raises:
        InvalidRequestError: It names no directory, or also a host.
    """
    parts = urlsplit(url)
    if parts.netloc or not parts.path:
        raise InvalidRequestError(
            f"{url!r} must name a directory and nothing else, like {parts.scheme}:/var/lib/broker"
        )
    return unquote(parts.path)


def _opener(url: str) -> _Opener:
    scheme = url.partition(":")[0]
    if scheme not in ENGINES or ":" not in url:
        raise InvalidRequestError(
            f"no storage engine for {url!r}: the URL must begin with one of {', '.join(f'{name}:' for name in ENGINES)}"
        )
    module, _, function = ENGINES[scheme].partition(":")
    try:
        opener: _Opener = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        raise _not_installed(url, error) from error
    return opener


def _not_installed(url: str, error: ModuleNotFoundError) -> InvalidRequestError:
    scheme = url.partition(":")[0]
    return InvalidRequestError(
        f"{url!r} needs the Python package {error.name!r}, which is not installed: "
        f"{install_command(_EXTRAS.get(scheme, scheme))}"
    )
