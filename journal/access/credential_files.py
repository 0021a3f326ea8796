"""Files of users and tokens: read line by line, and replaced as a whole. The format of lines is defined elsewhere."""

from __future__ import annotations

import os
import secrets
import stat
from typing import Final

from journal.settings.values import ConfigurationError
from shards.errors import way_out

_OWNER_ALONE: Final = 0o600


def read_lines(path: str, written_by: str) -> list[str]:
    """Read the lines of a file, without their ends.

    Args:
        path: The file.
        written_by: The command that writes such files, for messages.

    Raises:
        ConfigurationError: It cannot be read, or is not text.
    """
    try:
        with open(path, encoding="utf-8") as file:
            return [line.rstrip("\n") for line in file]
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be read: {error.strerror}; `{written_by} {path} USER` creates it"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not text as `{written_by}` writes it: {error}") from error


def replace_file(target: str, content: bytes, owner: os.stat_result | None) -> None:
    """Replace a file atomically and durably; the new one is readable only for its owner.

    Args:
        target: The path, without links in it.
        content: The new content.
        owner: Owner of the old file; None if there was none.

    Raises:
        ConfigurationError: Files cannot be created in its directory.
        OSError: It cannot be written; the old file is unchanged.
    """
    directory = os.path.dirname(target)
    beside = os.path.join(directory, f".{os.path.basename(target)}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _OWNER_ALONE)
    except OSError as error:
        # The original error would name the temporary file.
        raise ConfigurationError(f"{target} cannot be written: {error.strerror}; {way_out(error)}") from error
    try:
        with open(descriptor, "wb") as file:
            if owner is not None and (owner.st_uid, owner.st_gid) != (os.geteuid(), os.getegid()):
                # The server must still be able to read it after another user has changed a password.
                os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            os.fchmod(file.fileno(), stat.S_IRUSR | stat.S_IWUSR)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, target)
    except BaseException:
        os.unlink(beside)
        raise
    directory_descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory_descriptor)
    finally:
        os.close(directory_descriptor)
