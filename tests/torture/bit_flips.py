"""A bit of a file changes by itself: `journal check` and the reads of it name the file, and no reader gets wrong data.

    python -m tests.torture.bit_flips DIRECTORY SEED SECONDS

prints a line of JSON for each flip. A process of its own, because a library may crash on what it reads: then the last
line says which file it was. What is done to one flip: the store is copied, a bit of one file flipped, the copy checked,
opened and read in full. Either everything is as it was written, or the check has found a damage and whatever is not
given comes as an error with a name.
"""

from __future__ import annotations

import fnmatch
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from broker_adapter.engines.embedded import EmbeddedAdapter
from journal.backup import Source, back_up, restore
from journal.check import check_directory
from journal.engine import Engine, open_engine
from journal.settings.server import ConversionConfig, ServerConfig, StorageConfig
from journal.settings.values import KIB, MIB
from shards.errors import StorageError
from shards.format.record import Gap
from shards.seams.os_file_system import OsFileSystem
from tests.patience import PATIENCE_S
from tests.torture import values
from tests.torture.rounds import Result

CONFIG: Final = ServerConfig(
    storage=StorageConfig(
        journal_file_bytes=1 * MIB,
        journal_budget_bytes=2 * MIB,
        segment_bytes=512 * KIB,
        disk_reserve_bytes=0,
        flush_interval_ms=20,
    ),
    conversion=ConversionConfig(max_age_s=86_400),
)

KINDS: Final = {
    "journal file": "journal/journal-*",
    "log segment": "log/*/*.log",
    "log index": "log/*/*.index",
    "shared file": "sealed/date=*/*.parquet",
    "RocksDB table": "state/*.sst",
    "RocksDB manifest": "state/MANIFEST-*",
    "RocksDB current": "state/CURRENT",
    "RocksDB options": "state/OPTIONS-*",
    "FORMAT": "FORMAT",
    "backup object": "objects/*/*",
    "backup manifest": "manifests/*",
    "backup marker": "BACKUP",
}
"""Files by what they are called in the report, and where they are."""

SHARDS: Final = 5
GATHERED: Final = ("flip/3", "flip/4")
"""Shards of which the records are in a shared file, but for the newest."""

Truth = dict[str, Any]


async def fill(adapter: EmbeddedAdapter, seed: int) -> None:
    """Write what the flips are tried on: shards that are in logs and in Parquet files, cursors and state."""
    rng = random.Random(seed)
    for number in range(SHARDS - len(GATHERED)):
        shard = f"flip/{number}"
        await fill_shard(adapter, number, 120, rng)
        if number == 0:
            await adapter.convert(shard)
            await adapter.append(shard, [values.encode("0/after/0")])
    for number in range(200):
        await adapter.put_state(f"key/{number}".encode(), values.encode(f"state {number}"))
        await adapter.commit_cursor(f"flip/{number % SHARDS}", f"cursor-{number % 7}", number % 50)


async def fill_shard(adapter: EmbeddedAdapter, number: int, batches: int, rng: random.Random) -> None:
    """Create a shard and append to it."""
    await adapter.create_shard(f"flip/{number}")
    for batch in range(batches):
        names = [f"{number}/{batch}/{place}" for place in range(rng.randrange(1, 20))]
        await adapter.append(f"flip/{number}", [values.encode(name) for name in names])


async def gather(engine: Engine, adapter: EmbeddedAdapter, seed: int) -> None:
    """Write shards whose segments are gathered into a shared file."""
    for shard in GATHERED:
        await fill_shard(adapter, int(shard.rpartition("/")[2]), 10, random.Random(seed))
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            for shard in GATHERED:
                nursery.start_soon(engine.convert, shard)


async def contents(adapter: EmbeddedAdapter) -> tuple[Truth, list[str]]:
    """Everything that can be read, and the names of the errors that came in place of the rest."""
    found: Truth = {}
    errors: list[str] = []
    for number in range(SHARDS):
        shard = f"flip/{number}"
        try:
            await _records(adapter, shard, found)
        except StorageError as error:
            errors.append(f"{shard}: {error!r}")
        try:
            for cursor in await adapter.list_cursors(shard):
                found[f"cursor {shard} {cursor.name}"] = [cursor.offset, cursor.version]
        except StorageError as error:
            errors.append(f"cursors of {shard}: {error!r}")
    try:
        async for value in adapter.scan_state(b"key/"):
            found[f"state {value.key.decode()}"] = [values.decode(value.value), value.version]
    except StorageError as error:
        errors.append(f"state: {error!r}")
    return found, errors


async def _records(adapter: EmbeddedAdapter, shard: str, found: Truth) -> None:
    info = await adapter.describe_shard(shard)
    found[f"range {shard}"] = [info.start_offset, info.next_offset]
    offset = info.start_offset
    while offset < info.next_offset:
        result = await adapter.read(shard, offset, max_bytes=64 << 10)
        for item in result.records:
            if isinstance(item, Gap):
                found[f"gap {shard} {item.first_offset}"] = item.next_offset
            else:
                found[f"record {shard} {item.offset}"] = [item.lsn, item.append_time_us, values.decode(item.value)]
        offset = result.next_offset


@attrs.frozen
class Template:
    """A store to flip bits in, as it is on the disk.

    Attributes:
        directory: A data directory or a backup directory.
        truth: What it holds.
    """

    name: str
    directory: Path
    truth: Truth


async def make_templates(directory: Path, seed: int) -> list[Template]:
    """A store as a kill leaves it, one as a stop leaves it, and a backup."""
    data, killed, stopped, backup = (directory / name for name in ("data", "killed", "stopped", "backup"))
    async with open_engine(str(data), CONFIG) as engine, EmbeddedAdapter(engine) as adapter:
        await gather(engine, adapter, seed)
    async with open_engine(str(data), CONFIG) as engine, EmbeddedAdapter(engine) as adapter:
        await fill(adapter, seed)
        for shard in GATHERED:
            await adapter.append(shard, [values.encode(f"{shard.rpartition('/')[2]}/after/0")])
        await engine.parts.checkpointer.checkpoint()
        await adapter.append("flip/1", [values.encode("1/behind the checkpoint/0")])
        await adapter.append("flip/2", [values.encode("2/behind the checkpoint/0")])
        await adapter.append("flip/1", [values.encode("1/behind the checkpoint/1")])
        # At rest for a moment, as the promise about a damaged last group says.
        await trio.sleep(1.5)
        truth, errors = await contents(adapter)
        assert not errors, errors
        shutil.copytree(data, killed)
        lsn = engine.parts.committer.journal_lsn
    shutil.copytree(data, stopped)
    back_up(OsFileSystem(), Source(str(stopped), lsn), str(backup), now_us=time.time_ns() // 1000, keep=1)
    return [Template("killed", killed, truth), Template("stopped", stopped, truth), Template("backup", backup, truth)]


@attrs.define
class Flip:
    """One flip and what came of it.

    Attributes:
        found_by_check: Damages that `journal check` reports.
        errors: Names of the errors that a start or reads gave.
        broken: What must not be; empty if all is as promised.
    """

    kind: str
    path: str
    position: int
    bit: int
    found_by_check: int = 0
    errors: list[str] = attrs.Factory(list)
    broken: list[str] = attrs.Factory(list)


def files_of(template: Template) -> list[tuple[str, Path]]:
    """The files of a template by kind, those that hold something."""
    found = []
    for path in sorted(template.directory.rglob("*")):
        if path.is_file() and path.stat().st_size:
            inner = str(path.relative_to(template.directory))
            found += [(kind, path) for kind, pattern in KINDS.items() if fnmatch.fnmatch(inner, pattern)]
    return found


def flip(template: Template, kind: str, path: Path, rng: random.Random, work: Path) -> Flip:
    """Flip a bit of a copy, and see what comes of it."""
    data = path.read_bytes()
    used = len(data.rstrip(b"\0"))
    position, bit = rng.randrange(max(1, used)), rng.randrange(8)
    one = Flip(kind, f"{template.name}/{path.relative_to(template.directory)}", position, bit)
    shutil.copytree(template.directory, work / "store")
    with (work / "store" / path.relative_to(template.directory)).open("r+b") as file:
        file.seek(position)
        file.write(bytes([data[position] ^ 1 << bit]))
    store = work / "store"
    try:
        one.found_by_check = len(check_directory(str(store)).damages)
    except StorageError as error:
        one.found_by_check, one.errors = 1, [f"check: {error!r}"]
    except Exception as error:
        one.broken.append(f"journal check ends with {error!r}")
    if template.name == "backup":
        try:
            restore(OsFileSystem(), str(store), str(work / "restored"))
        except StorageError as error:
            one.errors.append(f"restore: {error!r}")
        except Exception as error:
            one.broken.append(f"the restore ends with {error!r}")
        store = work / "restored"
    if not one.errors and not one.broken:
        _look(store, template.truth, one)
    if one.errors and not one.found_by_check:
        one.broken.append(f"journal check finds nothing, but there are errors: {one.errors[:2]}")
    return one


def _look(store: Path, truth: Truth, one: Flip) -> None:
    """Open a store and compare it with what was written."""

    async def look() -> tuple[Truth, list[str]]:
        with trio.fail_after(PATIENCE_S):
            async with open_engine(str(store), CONFIG) as engine, EmbeddedAdapter(engine) as adapter:
                found, errors = await contents(adapter)
                return found, [*errors, *(f"stopped: {damage}" for damage in engine.recovery.damages)]

    try:
        found, errors = trio.run(look)
    except StorageError as error:
        one.errors.append(f"start: {error!r}")
        return
    except BaseException as error:
        one.broken.append(f"the start or a read ends with {error!r}")
        return
    one.errors += errors
    wrong = [key for key, value in found.items() if not key.startswith("range ") and truth.get(key) != value]
    if wrong:
        one.broken.append(
            f"wrong data: {wrong[0]} is {found[wrong[0]]}, not {truth.get(wrong[0])}; {len(wrong)} in all"
        )
    missing = [key for key in truth if key not in found]
    if missing and not one.errors:
        one.broken.append(f"{len(missing)} things are missing without an error, among them {missing[0]}")


def run(directory: Path, seed: int, seconds: float) -> None:
    """Flip bits for a while, kind after kind, and print a line for each."""
    rng = random.Random(seed)
    templates = trio.run(make_templates, directory, seed)
    files: dict[str, list[tuple[Template, Path]]] = {}
    for template in templates:
        for kind, path in files_of(template):
            files.setdefault(kind, []).append((template, path))
    print(json.dumps({"kinds": sorted(files), "missing": sorted(KINDS.keys() - files.keys())}), flush=True)
    ends_at = time.monotonic() + seconds
    tries = 0
    while True:
        for kind in sorted(files):
            template, path = rng.choice(files[kind])
            print(json.dumps({"trying": f"{template.name}/{path.relative_to(template.directory)}"}), flush=True)
            # A directory of its own each time: RocksDB keeps a lock on a path while a forgotten error refers to it.
            tries += 1
            one = flip(template, kind, path, rng, directory / f"work-{tries}")
            shutil.rmtree(directory / f"work-{tries}")
            print(json.dumps(attrs.asdict(one)), flush=True)
            if time.monotonic() > ends_at:
                return


def bit_flips(directory: Path, rng: random.Random, seconds: float) -> Result:
    """The phase: run the program, and judge what it prints."""
    result = Result()
    log = directory / "flips.log"
    with log.open("w") as errors:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "tests.torture.bit_flips",
                str(directory),
                str(rng.randrange(1 << 30)),
                str(seconds),
            ],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            check=False,
            timeout=seconds + 3 * PATIENCE_S,
            env={**os.environ, "PYTHONFAULTHANDLER": "1"},
        )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    by_kind: Counter[str] = Counter()
    for line in lines:
        if "kind" in line:
            by_kind[line["kind"]] += 1
            seen = bool(line["found_by_check"] or line["errors"])
            result.counts["bits flipped and found" if seen else "bits flipped in bytes that are not needed"] += 1
            place = f"{line['path']} byte {line['position']} bit {line['bit']}"
            result.broken += [f"{place}: {problem}" for problem in line["broken"]]
        elif line.get("missing"):
            result.broken.append(f"the store has no {line['missing']}: the phase does not do what it says")
    if done.returncode:
        last = lines[-1] if lines else {}
        result.broken.append(f"the process ended with status {done.returncode} at {last}: {log.read_text()[-2000:]}")
    return result


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
