"""What an export remembers of its last run: how far each shard was read, and what it was asked to do then."""

from __future__ import annotations

import json
from collections.abc import Mapping

import attrs

from spark_export.errors import OptionError, UnreadableError
from spark_export.history import Reached

_VERSION = 1


@attrs.frozen(slots=True)
class ExportState:
    """The state after a run.

    Attributes:
        run: Number of the run, from 1 on; 0 before the first.
        settings: See `ExportOptions.settings`.
        reached: By shard: how far it was read.
    """

    run: int
    settings: Mapping[str, object]
    reached: Mapping[str, Reached]

    def encode(self) -> str:
        """As JSON."""
        shards = {shard: [f"{one.shard_id:016x}", one.next_offset] for shard, one in sorted(self.reached.items())}
        return json.dumps({"version": _VERSION, "run": self.run, "settings": self.settings, "shards": shards})

    @classmethod
    def decode(cls, text: str, where: str) -> ExportState:
        """Read what `encode` wrote.

        Args:
            text: JSON.
            where: Where it was found, for the message.

        Raises:
            UnreadableError: It is not what `encode` writes, or what a newer version wrote.
        """
        try:
            found = json.loads(text)
            if found["version"] != _VERSION:
                raise UnreadableError(
                    f"{where} is of version {found['version']}, this program knows {_VERSION}: use a newer one"
                )
            reached = {shard: Reached(int(one[0], 16), int(one[1])) for shard, one in found["shards"].items()}
            return cls(int(found["run"]), dict(found["settings"]), reached)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise UnreadableError(
                f"{where} does not hold the state of an export: {error!r} in {text[:80]!r}"
            ) from error

    def check_settings(self, settings: Mapping[str, object], name: str) -> None:
        """Refuse to go on with other settings than those of the run before.

        Raises:
            OptionError: It names the setting, the value before and the value now.
        """
        for setting, before in self.settings.items():
            if self.run and settings.get(setting) != before:
                raise OptionError(
                    f"export {name!r} has {self.run} runs with {setting} {before!r}, now it is "
                    f"{settings.get(setting)!r}: runs of one export are one table, so give the export another name, or "
                    "another target"
                )


BEFORE_FIRST = ExportState(0, {}, {})
