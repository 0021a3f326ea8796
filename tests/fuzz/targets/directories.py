"""A whole data directory of which bytes changed, files are cut or gone, or records of the views are not as written."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache

import attrs
import trio

from journal.check import Report, check_directory
from journal.engine import Engine
from shards.errors import DataDirectoryError, FormatVersionError, StorageError
from shards.format.batch import read_records
from shards.format.record import Gap
from shards.model import Mode, ShardConfig
from shards.seams.store import Family, Mutations
from tests.fuzz.target import Target
from tests.journal.engines import DATA, append, config, open_simulated, stop_without_checkpoint
from tests.simulation.file_system import SimulatedFileSystem, everything_survived
from tests.simulation.store import SimulatedStore

_STATE = f"{DATA}/state"
_EDIT = struct.Struct("<BB3sB")
_SHARDS = ("plant/line", "volatile", "other")
_MOST_EDITS = 4
_Values = dict[str, list[tuple[int, bytes]]]
_Item = tuple[Family, bytes, bytes]


@attrs.frozen
class _Made:
    """A directory as it was left: its files by path, its views, and what its readers saw."""

    contents: dict[str, bytes]
    directories: list[str]
    items: list[_Item]
    values: _Values


async def _write(engine: Engine, *, is_left_open: bool) -> None:
    commands = engine.parts.commands
    await commands.create_shard("plant/line", ShardConfig(index_keys=True, index_tags=True))
    await commands.create_shard("volatile", ShardConfig(mode=Mode.MEMORY))
    await commands.create_shard("other", ShardConfig())
    for number in range(2):
        await append(engine, "plant/line", b"%d" % number * 36_000)
    await commands.roll("plant/line")
    await append(engine, "plant/line", b"second", b"segment")
    await append(engine, "volatile", b"x")
    await commands.commit_cursor("plant/line", "reader", 2, None)
    await commands.put_state(b"key", b"value", None, 1 << 60)
    await commands.open_producer("bridge")
    if is_left_open:
        await engine.parts.checkpointer.checkpoint()
        await append(engine, "plant/line", b"after the checkpoint")
        await append(engine, "other", b"first")
        await append(engine, "other", b"second")
        await engine.parts.checkpointer.flush()


async def _make(is_left_open: bool) -> _Made:
    files = SimulatedFileSystem()
    async with open_simulated(files, config(journal_file_bytes=1 << 17)) as engine:
        await _write(engine, is_left_open=is_left_open)
        if is_left_open:
            stop_without_checkpoint(engine)
    if is_left_open:
        files = files.crash(everything_survived)
    contents, directories = _contents(files, DATA)
    store = SimulatedStore(files, _STATE)
    items = [(family, key, value) for family in Family for key, value in store.scan(family)]
    kept = {path: content for path, content in contents.items() if not path.startswith(_STATE)}
    made = _Made(kept, directories, items, {})
    values = await _read_all(_rebuilt(made, made.contents, items))
    assert values is not None
    return attrs.evolve(made, values=values)


@cache
def _prepared(is_left_open: bool) -> _Made:
    return trio.run(_make, is_left_open)


def _contents(files: SimulatedFileSystem, path: str) -> tuple[dict[str, bytes], list[str]]:
    contents: dict[str, bytes] = {}
    directories = [path]
    for name in files.listdir(path):
        below = f"{path}/{name}"
        try:
            file = files.open(below, write=False)
        except IsADirectoryError:
            found, inner = _contents(files, below)
            contents |= found
            directories += inner
        else:
            contents[below] = file.pread(file.size(), 0)
    return contents, directories


def _rebuilt(made: _Made, contents: dict[str, bytes], items: list[_Item]) -> SimulatedFileSystem:
    files = SimulatedFileSystem()
    for path in made.directories:
        files.mkdir(path)
    for path, content in contents.items():
        files.open(path, create=True).pwritev([content], 0)
    store = SimulatedStore(files, _STATE)
    mutations = Mutations()
    for family, key, value in items:
        mutations.put(family, key, value)
    store.write(mutations)
    store.flush()
    return files


def _edits(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    for at in range(1, min(len(data), 1 + _MOST_EDITS * _EDIT.size) - _EDIT.size + 1, _EDIT.size):
        place, action, position, byte = _EDIT.unpack_from(data, at)
        yield place, action, int.from_bytes(position, "little"), byte


def run_directories(data: bytes) -> None:
    """A data directory that was changed is opened or refused by a StorageError, and so is each read.

    A check of it ends and reports damages. If only files were changed, a reader gets the records that were written,
    at their offsets, or an error; and if the check finds no damage, all of them are there.
    """
    made = _prepared(bool(data and data[0] & 1))
    contents, items = dict(made.contents), list(made.items)
    are_views_changed = False
    for place, action, position, byte in _edits(data):
        if place & 1 and items:
            are_views_changed = True
            _change_item(items, place >> 1, action, position, byte)
        elif contents:
            path = sorted(contents)[(place >> 1) % len(contents)]
            changed = _changed(contents[path], action, position, byte)
            if changed is None:
                del contents[path]
            else:
                contents[path] = changed
    report = _check(_rebuilt(made, contents, items))
    values = trio.run(_read_all, _rebuilt(made, contents, items))
    if are_views_changed or values is None:
        assert are_views_changed or report is None or report.damages
        return
    for name, found in values.items():
        expected = dict(made.values[name])
        assert all(expected.get(offset) == value for offset, value in found)
    if report is not None and not (report.damages or report.notes):
        assert values == made.values


def _changed(content: bytes, action: int, position: int, byte: int) -> bytes | None:
    at = position % (len(content) or 1)
    match action % 8:
        case 0:
            return content[:at]
        case 1:
            return None
        case 2:
            return content + bytes((byte,))
        case 3:
            return content[:at] + bytes(min(512, len(content) - at)) + content[at + 512 :]
        case _:
            return content[:at] + bytes((content[at] ^ (byte or 1),)) + content[at + 1 :] if content else content


def _change_item(items: list[_Item], place: int, action: int, position: int, byte: int) -> None:
    index = place % len(items)
    family, key, value = items[index]
    if action & 16:
        changed_key = _changed(key, action, position, byte)
        items[index] = (family, key if changed_key is None else changed_key, value)
        return
    changed = _changed(value, action, position, byte)
    if changed is None:
        del items[index]
    else:
        items[index] = (family, key, changed)


def _check(files: SimulatedFileSystem) -> Report | None:
    try:
        return check_directory(DATA, files=files, open_store=lambda path: SimulatedStore(files, path))
    except (DataDirectoryError, FormatVersionError):
        return None


async def _read_all(files: SimulatedFileSystem) -> _Values | None:
    """What readers see of each shard that is there and can be read; None if the directory is refused."""
    found: _Values = {}
    try:
        async with open_simulated(files, config(journal_file_bytes=1 << 17)) as engine:
            for name in _SHARDS:
                try:
                    found[name] = await _read(engine, name)
                except StorageError:
                    continue
            stop_without_checkpoint(engine)
    except StorageError:
        return None
    return found


async def _read(engine: Engine, name: str) -> list[tuple[int, bytes]]:
    shard = engine.parts.table.by_name(name)
    values: list[tuple[int, bytes]] = []
    offset = shard.start_offset
    while offset < shard.published_offset:
        extent = await engine.parts.reader.read(shard, offset, 1 << 20)
        records = read_records(b"".join(map(bytes, extent.buffers)), start_offset=offset)
        values += [(record.offset, record.value) for record in records if not isinstance(record, Gap)]
        assert extent.next_offset > offset
        offset = extent.next_offset
    return values


def _seeds() -> list[bytes]:
    def edits(*each: tuple[int, int, int, int]) -> bytes:
        return b"".join(_EDIT.pack(place, action, at.to_bytes(3, "little"), byte) for place, action, at, byte in each)

    return [
        b"\0",
        b"\1",
        *(
            bytes((kind,)) + edits((place, action, 4200 + place, 1))
            for kind in (0, 1)
            for place in range(0, 20, 4)
            for action in (0, 1, 4)
        ),
        *(b"\1" + edits((place, action, 5, 1)) for place in range(1, 40, 6) for action in (4, 20)),
    ]


TARGETS = (Target("directories", run_directories, _seeds, max_input_bytes=1 + _MOST_EDITS * _EDIT.size, is_slow=True),)
