"""The manifest of a checkpoint in the log store: which stored files the views consist of. JSON.

``{"version": 1, "files": [{"path": "000012.sst", "file_id": 16 hexadecimal digits, "size_bytes": 4096, "sha256": 64
hexadecimal digits}]}``
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import attrs
import msgspec

from journal.logstore.errors import LogDamagedError
from journal.logstore.keys import FileName
from shards.errors import FormatVersionError

VERSION: Final = 1
NO_DAY: Final = 0
"""Files of checkpoints have no day: their names have this one."""

_PATH: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_FILE_ID: Final = re.compile("[0-9a-f]{16}")
_SHA256: Final = re.compile("[0-9a-f]{64}")


@attrs.frozen(slots=True)
class ManifestFile:
    """One file of a checkpoint.

    Attributes:
        path: Its name in the directory of the views.
        file_id: 16 hexadecimal digits.
        size_bytes: Its size.
        sha256: 64 hexadecimal digits.
    """

    path: str
    file_id: str
    size_bytes: int
    sha256: str

    @property
    def name(self) -> FileName:
        """Its name in the log store."""
        return FileName(NO_DAY, int(self.file_id, 16))


@attrs.frozen(slots=True)
class Manifest:
    """See the module."""

    files: tuple[ManifestFile, ...]


@attrs.frozen(slots=True)
class _Stored:
    version: int
    files: tuple[ManifestFile, ...] = ()


def encode_manifest(files: Iterable[ManifestFile]) -> bytes:
    """The bytes of a manifest."""
    return msgspec.json.encode(_Stored(VERSION, tuple(files)))


def decode_manifest(key: str, data: bytes) -> Manifest:
    """The manifest in a checkpoint.

    Args:
        key: The key of the checkpoint, for messages.
        data: Its body.

    Raises:
        FormatVersionError: A newer program wrote it.
        LogDamagedError: It is none.
    """
    try:
        stored = msgspec.json.decode(data, type=_Stored)
    except msgspec.DecodeError as error:
        raise LogDamagedError(f"{key} holds no manifest: {error}") from error
    if stored.version != VERSION:
        raise FormatVersionError(f"{key} has version {stored.version} of a manifest; this program reads {VERSION}")
    for file in stored.files:
        if not (
            _PATH.fullmatch(file.path)
            and _FILE_ID.fullmatch(file.file_id)
            and _SHA256.fullmatch(file.sha256)
            and file.size_bytes >= 0
        ):
            raise LogDamagedError(f"{key} holds a manifest with an impossible file: {file}")
    return Manifest(stored.files)
