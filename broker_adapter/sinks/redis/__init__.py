"""The sink ``redis``: one script on the server adds rows to a stream and stores the queue's position with them.

`sink` is the sink of a driver, `scripts` has the scripts and the encoding of rows for them.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from broker_adapter.background_tasks import background_tasks
from broker_adapter.sinks.kinds import SinkKind
from broker_adapter.sinks.redis.settings import RedisSettings, check, read_url
from broker_adapter.sinks.sink import Sink, SinkContext
from journal.settings.values import ConfigurationError
from shards.extras import install_command

__all__ = ["KIND"]


@asynccontextmanager
async def open_redis_sink(settings: RedisSettings, context: SinkContext) -> AsyncIterator[Sink]:
    """Open the sink; nothing is connected yet.

    Raises:
        ConfigurationError: coredis is not installed, the URL is not valid, or the CA file cannot be used.
    """
    try:
        from broker_adapter.sinks.redis.sink import RedisSink
    except ImportError as error:
        raise ConfigurationError(f"the sink redis needs coredis ({error}): {install_command('sinks')}") from error
    tls = _tls(settings)
    async with background_tasks() as connections:
        yield RedisSink(settings, context, connections, tls)


def _tls(settings: RedisSettings) -> ssl.SSLContext | None:
    try:
        if not read_url(settings.url).uses_tls:
            return None
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    try:
        return ssl.create_default_context(cafile=settings.ca_file or None)
    except OSError as error:
        raise ConfigurationError(f"ca_file = {settings.ca_file!r} cannot be used: {error}") from error


KIND: Final = SinkKind(settings=RedisSettings, open=open_redis_sink, check=check)
