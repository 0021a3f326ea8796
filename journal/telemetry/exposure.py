"""What is open to whom, as a paragraph in the log: at the start, and after a reload that changed it.

`journal.server.exposure` and `broker_adapter.mqtt.broker.exposure` write the paragraph from their settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import attrs
import structlog

from journal.settings.access import is_loopback

_SHOWN_NAMES: Final = 6


@attrs.frozen(slots=True)
class Exposure:
    """What is open to whom.

    Attributes:
        text: A paragraph.
        is_remote: Whether other machines can reach a listener.
        is_questionable: Whether the settings are probably a mistake: they give more than one expects, or nothing.
    """

    text: str
    is_remote: bool
    is_questionable: bool


class ExposureLog:
    """Writes what is open to whom into the log of a process.

    Args:
        log: Gets a warning where the settings are probably a mistake, otherwise a message.
        exposure: What is open at the start. It is logged if other machines can reach a listener, or if the settings are
            probably a mistake.
    """

    def __init__(self, log: structlog.stdlib.BoundLogger, exposure: Exposure) -> None:
        self._log = log
        self._exposure = exposure
        if exposure.is_questionable or exposure.is_remote:
            self._write()

    def reloaded(self, exposure: Exposure) -> None:
        """Log what is open after a reload, if it is not the same as before."""
        if exposure != self._exposure:
            self._exposure = exposure
            self._write()

    def _write(self) -> None:
        (self._log.warning if self._exposure.is_questionable else self._log.info)(self._exposure.text)


def remote_addresses(addresses: Mapping[str, str]) -> dict[str, str]:
    """Those addresses of ``[listen]``, by their names, that other machines can reach."""
    return {name: address for name, address in addresses.items() if not is_loopback(address)}


def reachable(addresses: Mapping[str, str]) -> str:
    """A sentence that says which clients can connect, and where.

    Args:
        addresses: The addresses of ``[listen]`` that are not empty, by their names.
    """
    if not addresses:
        return "No client can connect: every address of [listen] is empty."
    if remote := remote_addresses(addresses):
        return f"Clients on other machines can connect, to {_listed(remote)}."
    return f"Only clients on this machine can connect, to {_listed(addresses)}."


def strangers_in_rules(names: Sequence[str]) -> str:
    """A sentence about names in rules with which no client can log in.

    Args:
        names: At least one.
    """
    shown = ", ".join(map(repr, names[:_SHOWN_NAMES]))
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return f"Rules or roles name {shown}{more}, but no client can log in with such a name: correct it, or add the user."


def _listed(addresses: Mapping[str, str]) -> str:
    return " and ".join(f"{name} = {address}" for name, address in addresses.items())
