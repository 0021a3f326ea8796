"""The available kinds of sinks: plug-ins of the entry point group ``journal.sinks``.

A distribution adds a kind with

    [project.entry-points."journal.sinks"]
    http = "broker_adapter.sinks.http:KIND"
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, Generic, TypeVar

import attrs

from broker_adapter.sinks.sink import Sink, SinkContext
from journal.settings.values import ConfigurationError

GROUP: Final = "journal.sinks"

Settings = TypeVar("Settings")


@attrs.frozen(slots=True)
class SinkKind(Generic[Settings]):
    """A kind of sink.

    Attributes:
        settings: attrs class of the settings in ``[bridge.sink]``, except ``type``. It has the form of a section of
            `journal.settings.file`: each attribute has a kind that is known there, with unit and bounds.
        open: Opens a sink for one driver. It may raise `ConfigurationError` when the settings cannot be used, or when a
            dependency of the kind is not installed.
        check: Returns the problems of settings that are valid each by itself, one text for each problem.
    """

    settings: type[Settings]
    open: Callable[[Settings, SinkContext], AbstractAsyncContextManager[Sink]]
    check: Callable[[Settings], tuple[str, ...]] = lambda _settings: ()


def find_kind(name: str) -> SinkKind[Any]:
    """A kind by its name.

    Raises:
        ConfigurationError: There is no such kind, or it cannot be loaded.
    """
    found = _found()
    if name not in found:
        raise ConfigurationError(
            f"there is no kind of sink {name!r}; installed are {', '.join(sorted(found)) or 'none'}"
        )
    try:
        kind = found[name].load()
    except ImportError as error:
        raise ConfigurationError(f"the sink {name!r} ({found[name].value}) cannot be loaded: {error}") from error
    if not isinstance(kind, SinkKind):
        raise ConfigurationError(f"{found[name].value} is no kind of sink: it must be a broker_adapter.sinks.SinkKind")
    return kind


def _found() -> dict[str, EntryPoint]:
    return {each.name: each for each in entry_points(group=GROUP)}
