"""A `FileSystem` that reaches some directories by their descriptors: they may be moved, and another one put in place.

Whatever their paths mean by then, every file is created, found and removed in the directories that were opened. So a
directory that is put back has everything, and one that was moved away only for a moment makes no difference. Nothing
of this is for directories below: `FileSystem.identity` tells whether they are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from shards.errors import StorageFailedError
from shards.seams.file_system import File, FileSystem, Identity, Lock, OpenDirectory
from shards.seams.held_directory import replaced_text

_T = TypeVar("_T")


class HeldFiles:
    """A directory, and some of the directories in it, held open until `close`. Several threads may use it.

    Args:
        files: The file system.
        root: The path of the directory, which exists.
        parts: Names of the directories in it, which exist. Each may be a mount of its own.

    Raises:
        OSError: One of them cannot be opened.
    """

    def __init__(self, files: FileSystem, root: str, parts: Sequence[str]) -> None:
        self._files = files
        self._root = root.rstrip("/")
        self._held: list[tuple[str, OpenDirectory]] = []
        self._lasting: dict[str, str] = {}
        try:
            self._lasting_root = self._hold(root, self._root)
            for part in parts:
                self._lasting[part] = self._hold(f"{root}/{part}", f"{self._root}/{part}")
        except BaseException:
            self.close()
            raise

    def _hold(self, path: str, name: str) -> str:
        directory = self._files.open_directory(path)
        self._held.append((name, directory))
        return directory.lasting_path

    def require_in_place(self) -> None:
        """Check that each directory is under its path.

        Raises:
            StorageFailedError: One was moved, unmounted or replaced. Nothing is lost: what was written is in it.
        """
        for name, directory in self._held:
            if found := directory.found_instead:
                raise StorageFailedError(replaced_text(name, found))

    def close(self) -> None:
        """Close the directories; a second call does nothing. No other method may be called after it."""
        while self._held:
            self._held.pop()[1].close()

    # FileSystem.

    def open(self, path: str, *, create: bool = False, write: bool = True) -> File:
        return self._call(lambda at: self._files.open(at, create=create, write=write), path)

    def exists(self, path: str) -> bool:
        return self._call(self._files.exists, path)

    def listdir(self, path: str) -> list[str]:
        return self._call(self._files.listdir, path)

    def mkdir(self, path: str) -> None:
        self._call(self._files.mkdir, path)

    def rename(self, source: str, target: str) -> None:
        self._call(self._files.rename, source, target)

    def link(self, source: str, target: str) -> None:
        self._call(self._files.link, source, target)

    def remove(self, path: str) -> None:
        self._call(self._files.remove, path)

    def remove_directory(self, path: str) -> None:
        self._call(self._files.remove_directory, path)

    def sync_directory(self, path: str) -> None:
        self._call(self._files.sync_directory, path)

    def sync_all(self, path: str) -> None:
        self._call(self._files.sync_all, path)

    def open_directory(self, path: str) -> OpenDirectory:
        return self._call(self._files.open_directory, path)

    def identity(self, path: str) -> Identity | None:
        return self._call(self._files.identity, path)

    def free_bytes(self, path: str) -> int:
        return self._call(self._files.free_bytes, path)

    def lock(self, directory: str) -> Lock:
        # For others: they know the directory by its path.
        return self._files.lock(directory)

    def _call(self, work: Callable[..., _T], *paths: str) -> _T:
        try:
            return work(*map(self._at, paths))
        except OSError as error:
            # People know the directories by their paths.
            error.filename = self._named(error.filename)
            if error.filename2 is not None:
                error.filename2 = self._named(error.filename2)
            raise

    def _at(self, path: str) -> str:
        if not path.startswith(self._root):
            return path
        below = path[len(self._root) :]
        if not below:
            return self._lasting_root
        if below[0] != "/":
            return path
        part, _, rest = below.lstrip("/").partition("/")
        lasting = self._lasting.get(part)
        if lasting is None:
            return f"{self._lasting_root}{below}"
        return f"{lasting}/{rest}" if rest else lasting

    def _named(self, path: object) -> object:
        if isinstance(path, str):
            for name, directory in self._held:
                if path == directory.lasting_path or path.startswith(f"{directory.lasting_path}/"):
                    return name + path[len(directory.lasting_path) :]
        return path
