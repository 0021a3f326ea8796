"""The state of a simulated machine's disk and page cache: what is durable, what is only cached, what a loss leaves.

Nothing here counts operations or raises injected errors; that is `tests.simulation.file_system`, the view that one
process has of a `Disk`. A disk outlives its processes: when a process is killed, the next one finds the same disk with
the same cached pages. A power loss makes another disk.
"""

from __future__ import annotations

import errno
import itertools
import os
import posixpath
from collections.abc import Callable, Iterable, Sequence

import attrs

SECTOR_BYTES = 512
"""A disk writes a sector whole or not at all."""

_HELD = "@held"

Choose = Callable[[int], int]
"""Chooses one of n fates, 0 to n - 1: `random.Random(seed).randrange`, a draw of Hypothesis, or one of those below."""


def everything_lost(fates: int) -> int:
    """Choose that nothing unsynced is there after the crash."""
    return 0


def everything_survived(fates: int) -> int:
    """Choose that everything unsynced is there after the crash."""
    return 1


@attrs.define(eq=False)
class Content:
    """The bytes of one file.

    Attributes:
        volatile: What a read shows.
        durable: What is on the disk for certain.
        unsynced: Writes (position, data) and truncations (size, None) that a sync would still bring to the disk, in
            order. After a failed sync the pages count as clean: the writes are in `volatile` but not here any more.
        changes: Number of changes so far; serves as the time of the last one.
    """

    volatile: bytearray = attrs.field(factory=bytearray, repr=False)
    durable: bytearray = attrs.field(factory=bytearray, repr=False)
    unsynced: list[tuple[int, bytes | None]] = attrs.field(factory=list, repr=False)
    changes: int = 0

    def change(self, position: int, data: bytes | None) -> None:
        self.changes += 1
        _apply(self.volatile, position, data)
        self.unsynced.append((position, data))

    def sync(self) -> None:
        for position, data in self.unsynced:
            _apply(self.durable, position, data)
        self.unsynced.clear()

    @property
    def needs_space(self) -> bool:
        """Whether a sync has to allocate space: the file is longer than what is on the disk."""
        return bool(self.unsynced) and len(self.volatile) > len(self.durable)

    def evict(self) -> None:
        """Forget the clean pages: the next read shows what the disk has, and the unsynced writes on top of it."""
        self.volatile = bytearray(self.durable)
        for position, data in self.unsynced:
            _apply(self.volatile, position, data)

    def after_power_loss(self, choose: Choose) -> Content:
        found = bytearray(self.durable)
        for position, data in self.unsynced:
            if data is None:
                if choose(2):
                    _apply(found, position, None)
                continue
            fate = choose(3)  # lost, survived, torn
            if fate == 1:
                _apply(found, position, data)
            elif fate == 2:
                for start, end in _sectors(position, position + len(data)):
                    if choose(2):
                        _apply(found, start, data[start - position : end - position])
        return Content(volatile=found, durable=bytearray(found))


@attrs.define(eq=False)
class Directory:
    """The entries of one directory."""

    volatile: dict[str, Node] = attrs.field(factory=dict, repr=False)
    durable: dict[str, Node] = attrs.field(factory=dict, repr=False)


Node = Content | Directory


@attrs.frozen
class EntryChange:
    """A create, rename or remove: entries that change together or not at all."""

    entries: tuple[tuple[Directory, str, Node | None], ...]

    def apply_durably(self) -> None:
        for directory, name, node in self.entries:
            _set_entry(directory.durable, name, node)

    def touches(self, directories: set[int]) -> bool:
        return any(id(directory) in directories for directory, _, _ in self.entries)

    @property
    def makes_directory(self) -> bool:
        return any(isinstance(node, Directory) for _, _, node in self.entries)


@attrs.frozen
class Vanished:
    """Something that was taken away behind the engine's back, or is hidden by a mount that is missing."""

    path: str
    directory: Directory
    name: str
    volatile: Node | None
    durable: Node | None


@attrs.define(eq=False)
class Disk:
    """A file tree with its page cache.

    Attributes:
        capacity_bytes: Its size.
        contents: Every file that was ever made, so that all of them can be synced at once.
        entry_changes: Directory changes that are not durable yet, in order.
        has_lasting_paths: Open directories have paths that mean them wherever they are, as on Linux.
        held: The directories that were opened, by their numbers, with their paths.
        on_loss: Called with the `Choose` of a kill or power loss before it happens: a store keeps, of what it holds in
            its process's memory, what it had written by itself until then.
    """

    capacity_bytes: int
    root: Directory = attrs.Factory(Directory)
    contents: list[Content] = attrs.Factory(list)
    entry_changes: list[EntryChange] = attrs.Factory(list)
    on_loss: list[Callable[[Choose], None]] = attrs.Factory(list)
    has_lasting_paths: bool = False
    held: list[tuple[Directory, str]] = attrs.Factory(list)

    def hold(self, path: str) -> str:
        """Return a path that means the directory that is at a path now, wherever it will be."""
        if not self.has_lasting_paths:
            return path
        self.held.append((self.directory(path), self.shown(path)))
        return f"/{_HELD}/{len(self.held) - 1}"

    def shown(self, path: str) -> str:
        """A path with the one in it by which a directory was opened."""
        if not path.startswith(f"/{_HELD}/"):
            return path
        number, _, below = path[len(_HELD) + 2 :].partition("/")
        opened = self.held[int(number)][1]
        return f"{opened}/{below}" if below else opened

    def start(self, path: str) -> tuple[Directory, list[str]]:
        """The directory at which a path begins, and the names from there on."""
        names = names_of(path)
        if names[:1] == [_HELD]:
            return self.held[int(names[1])][0], names[2:]
        return self.root, names

    def lose_process(self, choose: Choose) -> None:
        """The process is killed, the machine stays up: files and cached pages stay as they are."""
        losses, self.on_loss = self.on_loss, []
        for lose in losses:
            lose(choose)

    def lose_power(self, choose: Choose) -> Disk:
        """Return what the next start of the machine finds; this disk must not be used any more."""
        self.lose_process(choose)
        for change in self.entry_changes:
            if choose(2):
                change.apply_durably()
        self.entry_changes.clear()
        known: dict[int, Content] = {}
        root = _after_power_loss(self.root, choose, known)
        return Disk(self.capacity_bytes, root, list(known.values()), has_lasting_paths=self.has_lasting_paths)

    def evict(self) -> None:
        """Forget all clean pages, as a machine that needs its memory does."""
        for content in self.contents:
            content.evict()

    def lose_pages(self) -> None:
        """Fail to write back every unsynced write: the pages count as clean, still show it, and are never written."""
        for content in self.contents:
            content.unsynced.clear()

    def put_durably(self, path: str, data: bytes) -> None:
        """Make a file with this content, by itself and for certain: what a store does in a thread of its own."""
        directory, name = self.parent(path)
        node = directory.volatile.get(name)
        if not isinstance(node, Content):
            node = Content()
            self.contents.append(node)
        node.volatile, node.durable = bytearray(data), bytearray(data)
        node.unsynced.clear()
        node.changes += 1
        self._forget_changes(directory, name)
        directory.volatile[name] = directory.durable[name] = node

    def vanish(self, path: str, *, leave_empty_directory: bool = False, leave_copy: bool = False) -> Vanished:
        """Take a file or directory away, from the disk too; or hide a directory behind an empty one or a copy."""
        directory, name = self.parent(path)
        vanished = Vanished(path, directory, name, directory.volatile.get(name), directory.durable.get(name))
        if vanished.volatile is None:
            raise not_found(path)
        # Otherwise a later sync or power loss would write the entry that was taken away.
        self._forget_changes(directory, name)
        left: Node | None = Directory() if leave_empty_directory else None
        if leave_copy:
            left = self._copy(vanished.volatile)
        _set_entry(directory.volatile, name, left)
        _set_entry(directory.durable, name, left)
        return vanished

    def _copy(self, node: Node) -> Node:
        if isinstance(node, Directory):
            entries = {name: self._copy(below) for name, below in node.volatile.items()}
            return Directory(entries, dict(entries))
        copy = Content(bytearray(node.volatile), bytearray(node.volatile))
        self.contents.append(copy)
        return copy

    def put_back(self, vanished: Vanished) -> None:
        """Undo it. What was put in its place meanwhile is gone; a directory that was removed then is there again."""
        directory = self._restored(posixpath.dirname(vanished.path), vanished.directory)
        self._forget_changes(directory, vanished.name)
        _set_entry(directory.volatile, vanished.name, vanished.volatile)
        _set_entry(directory.durable, vanished.name, vanished.durable)
        if vanished.volatile is not vanished.durable:
            change = (directory, vanished.name, vanished.volatile)
            self.entry_changes.append(EntryChange((change,)))

    def _restored(self, path: str, removed: Directory) -> Directory:
        """The directory at a path; the one that was removed from there, durably, if there is none."""
        if self.exists(path):
            return self.directory(path)
        above, name = posixpath.split(path)
        parent = self._restored(above, Directory())
        self._forget_changes(parent, name)
        _set_entry(parent.volatile, name, removed)
        _set_entry(parent.durable, name, removed)
        return removed

    def _forget_changes(self, directory: Directory, name: str) -> None:
        self.entry_changes = [
            change
            for change in self.entry_changes
            if not any(entry[:2] == (directory, name) for entry in change.entries)
        ]

    @property
    def used_bytes(self) -> int:
        return sum(len(content.volatile) for content in self.contents)

    # Syncing

    def sync(self, contents: Iterable[Content], changes: Sequence[EntryChange]) -> None:
        for content in contents:
            content.sync()
        for change in changes:
            change.apply_durably()
            self.entry_changes.remove(change)

    def fail_sync(self, contents: Iterable[Content], changes: Sequence[EntryChange], *, keep_entries: bool) -> None:
        """A sync that failed: its pages are clean and will not be written any more.

        Args:
            contents: The files.
            changes: The directory changes.
            keep_entries: Directory changes stay to be written by the next sync. Otherwise those of files are forgotten
                like pages; a directory that was made always stays, since a journaling file system would rather stop.
        """
        for content in contents:
            content.unsynced.clear()
        for change in changes:
            if not (keep_entries or change.makes_directory):
                self.entry_changes.remove(change)

    def changes_of(self, directory: Directory) -> list[EntryChange]:
        """Return the unsynced changes of a directory, and of others the earlier ones that these may build on."""
        directories = {id(directory)}
        changes = []
        for change in reversed(self.entry_changes):
            if change.touches(directories):
                changes.append(change)
                directories.update(id(touched) for touched, _, _ in change.entries)
        return changes[::-1]

    def change_entries(self, entries: Sequence[tuple[Directory, str, Node | None]]) -> None:
        for directory, name, node in entries:
            _set_entry(directory.volatile, name, node)
        self.entry_changes.append(EntryChange(tuple(entries)))

    # Paths

    def node(self, path: str) -> Node:
        node: Node
        node, names = self.start(path)
        for name in names:
            if isinstance(node, Content):
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            if name not in node.volatile:
                raise not_found(path)
            node = node.volatile[name]
        return node

    def exists(self, path: str) -> bool:
        try:
            self.node(path)
        except OSError:
            return False
        return True

    def directory(self, path: str) -> Directory:
        node = self.node(path)
        if isinstance(node, Content):
            raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return node

    def parent(self, path: str) -> tuple[Directory, str]:
        head, name = posixpath.split(posixpath.normpath(path))
        return self.directory(head), name


def names_of(path: str) -> list[str]:
    return [name for name in posixpath.normpath(path).split("/") if name not in ("", ".")]


def not_found(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _apply(content: bytearray, position: int, data: bytes | None) -> None:
    """Carry out one write, or a truncation if `data` is None."""
    if len(content) < position:
        content.extend(bytes(position - len(content)))
    if data is None:
        del content[position:]
    else:
        content[position : position + len(data)] = data


def _sectors(start: int, end: int) -> list[tuple[int, int]]:
    """Cut a range of bytes at the borders of sectors."""
    borders = [start, *range(start - start % SECTOR_BYTES + SECTOR_BYTES, end, SECTOR_BYTES), end]
    return list(itertools.pairwise(borders))


def _set_entry(entries: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node


def _after_power_loss(directory: Directory, choose: Choose, known: dict[int, Content]) -> Directory:
    found = Directory()
    for name, node in sorted(directory.durable.items()):
        if isinstance(node, Directory):
            found.volatile[name] = _after_power_loss(node, choose, known)
        else:
            # A rename that was lost and one that was not can leave one file under two names.
            if id(node) not in known:
                known[id(node)] = node.after_power_loss(choose)
            found.volatile[name] = known[id(node)]
    found.durable.update(found.volatile)
    return found
