"""The servers and files of one benchmark: each started when first needed, all stopped and removed at the end."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self, TypeVar

from benchmarks import limits, processes, runs
from benchmarks.peers.nats import Nats
from benchmarks.peers.redis import Redis

T = TypeVar("T")

REPOSITORY = Path(__file__).resolve().parent.parent


# Default settings, except those that let several servers run at once and a memory-mode run end before the budget.
JOURNAL_CONFIG = """\
[listen]
websocket = ""
http = ""

[storage]
memory_budget_bytes = "4 GiB"
"""


def start_journal(
    directory: Path,
    log_path: Path,
    *,
    settings: Mapping[str, str] | None = None,
    config: str = "",
    environment: Mapping[str, str] | None = None,
    module: str = "journal.cli.main",
) -> processes.Server:
    """Start the product's server on a data directory, as a user would; its log also has its ``ready`` line.

    Args:
        directory: The data directory.
        log_path: File of its log.
        settings: Single settings that differ from the default.
        config: Sections that are added to its configuration file.
        environment: Variables in addition to those of this process.
        module: The server's program.
    """
    config_path = log_path.with_name("journal.toml")
    config_path.parent.mkdir(parents=True, exist_ok=True)
    config_path.write_text(JOURNAL_CONFIG + config)
    argv = processes.python_module(module, "serve", "--data", str(directory.resolve()))
    argv += ["--config", str(config_path.resolve()), "--listen", "127.0.0.1:0"]
    argv += [word for name, value in (settings or {}).items() for word in ("--set", f"{name}={value}")]
    return processes.start_announcing(argv, log_path, cwd=REPOSITORY, environment=environment)


class Stage:
    """All that runs in addition to the generators.

    Args:
        directory: Created if it does not exist. It must be on a real disk for the synced rows to be meaningful.
        keep: Leave the directory with data and logs instead of removing it at the end.
    """

    def __init__(self, directory: Path, *, keep: bool = False) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._things: dict[str, Any] = {}
        self._exit = ExitStack()
        if not keep:
            self._exit.callback(shutil.rmtree, directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def once(self, name: str, make: Callable[[], T], close: Callable[[T], object] | None = None) -> T:
        """Make an object at its first use and keep it; if making it failed, the error is raised again each time."""
        if name not in self._things:
            try:
                made = make()
                self._things[name] = made
                if close is not None:
                    self._exit.callback(close, made)
            except processes.NotInstalledError as error:
                self._things[name] = runs.UnavailableError(str(error))
            except processes.ProcessError as error:
                self._things[name] = runs.UnavailableError(f"failed: {error}")
        thing = self._things[name]
        if isinstance(thing, runs.UnavailableError):
            raise thing
        found: T = thing
        return found

    def nats(self) -> Nats:
        return self.once("nats", lambda: Nats(self.directory / "nats"), Nats.close)

    def nats_synced(self) -> Nats:
        return self.once("nats-synced", lambda: Nats(self.directory / "nats-synced", synced=True), Nats.close)

    def redis_plain(self) -> Redis:
        return self.once("redis", lambda: Redis(self.directory / "redis", appendfsync=None), Redis.close)

    def redis_synced(self) -> Redis:
        return self.once(
            "redis-synced", lambda: Redis(self.directory / "redis-synced", appendfsync="always"), Redis.close
        )

    def synced_file(self) -> limits.SyncedFile:
        return self.once("file", lambda: limits.SyncedFile(self.directory / "limits" / "file"), limits.SyncedFile.close)

    def journal(self) -> processes.Server:
        """The server that the rate and latency rows share."""
        return self.once(
            "journal",
            lambda: start_journal(self.directory / "journal" / "data", self.directory / "journal" / "log"),
            processes.Server.stop,
        )


def file_system_of(directory: Path) -> str:
    """Type of the file system of a directory, from the longest mount point above it."""
    path = os.path.realpath(directory)
    best = ("", "unknown")
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, *_ = line.split()
        inside = path == mount or path.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) > len(best[0]):
            best = (mount, kind)
    return best[1]
