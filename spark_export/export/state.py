"""The stored state of an export after its last run: how far each shard was read, and its settings."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs

from spark_export.errors import OptionError, UnreadableError
from spark_export.history import Places, Reached
from spark_export.read_history import decode_restores, encode_restores

_VERSION = 2
"""Version 1 had neither ``missing`` nor ``restores`` nor ``common_lsns``."""


@attrs.frozen(slots=True)
class ExportState:
    """The state after a run.

    Attributes:
        run: Number of the run, from 1 on; 0 before the first.
        settings: See `ExportOptions.settings`.
        places: How far each shard was read.
    """

    run: int
    settings: Mapping[str, object]
    places: Places

    def encode(self) -> str:
        """Encode as JSON."""
        members: dict[str, object] = {"version": _VERSION, "run": self.run, "settings": self.settings}
        members["shards"] = _encoded(self.places.reached)
        members["missing"] = _encoded(self.places.missing)
        members["restores"] = encode_restores(self.places.restores)
        members["common_lsns"] = dict(self.places.read_history.common_lsns)
        return json.dumps(members)

    @classmethod
    def decode(cls, text: str, where: str) -> ExportState:
        """Decode the result of `encode`.

        Args:
            text: JSON.
            where: Where it was found, for messages.

        Raises:
            UnreadableError: It is not valid, or was written by a newer version.
        """
        try:
            found = json.loads(text)
            if found["version"] not in range(1, 1 + _VERSION):
                raise UnreadableError(
                    f"{where} has version {found['version']}, this program supports versions up to {_VERSION}: use a "
                    "newer program"
                )
            lsns = {str(shard): int(lsn) for shard, lsn in found.get("common_lsns", {}).items()}
            places = Places(
                _decoded(found["shards"], lsns),
                _decoded(found.get("missing", {}), lsns),
                decode_restores(found.get("restores", ())),
            )
            return cls(int(found["run"]), dict(found["settings"]), places)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise UnreadableError(
                f"{where} does not have the state of an export: {error!r} in {text[:80]!r}"
            ) from error

    def check_settings(self, settings: Mapping[str, object], name: str) -> None:
        """Check that the settings are those of the run before.

        Raises:
            OptionError: A setting differs; the message has its name, the value before and the value now.
        """
        for setting, before in self.settings.items():
            if self.run and settings.get(setting) != before:
                raise OptionError(
                    f"export {name!r} has {self.run} runs with {setting} {before!r}, now it is "
                    f"{settings.get(setting)!r}: runs of one export are one table, so give the export another name, or "
                    "another target"
                )


def _encoded(places: Mapping[str, Reached]) -> dict[str, list[object]]:
    return {shard: [f"{one.shard_id:016x}", one.next_offset] for shard, one in sorted(places.items())}


def _decoded(found: Mapping[str, Any], lsns: Mapping[str, int]) -> dict[str, Reached]:
    return {shard: Reached(int(one[0], 16), int(one[1]), lsns.get(shard)) for shard, one in found.items()}


BEFORE_FIRST = ExportState(0, {}, Places())
