"""Keys of a store's objects, and positions in its log. Pure.

Numbers have leading zeros, so that keys sort like what they name::

    <root>/store                          what the store is (its identity)
    <root>/epoch/<epoch>                  claims, 1 and up
    <root>/log/<epoch>/<slot>             slots and fences, 0 and up in each epoch
    <root>/checkpoint/<epoch>-<slot>      checkpoints, by the position at which reading goes on
    <root>/file/<day>-<file id>-<piece>   files of the history, in pieces, 0 and up
    <root>/server/<server id>             the servers that share the store
"""

from __future__ import annotations

import re
from typing import Final

import attrs

_EPOCH_DIGITS: Final = 10
_SLOT_DIGITS: Final = 16
FIRST_EPOCH: Final = 1
LAST_EPOCH: Final = 10**_EPOCH_DIGITS - 1
LAST_SLOT: Final = 10**_SLOT_DIGITS - 1
_NUMBER: Final = re.compile(rf"[0-9]{{{_EPOCH_DIGITS},{_SLOT_DIGITS}}}")
_POSITION: Final = re.compile(rf"([0-9]{{{_EPOCH_DIGITS}}})-([0-9]{{{_SLOT_DIGITS}}})")
_PIECE: Final = re.compile(r"([0-9]{7})-([0-9a-f]{16})-([0-9]{6})")
LAST_DAY: Final = 10**7 - 1
LAST_PIECE: Final = 10**6 - 1
_SERVER: Final = re.compile(r"[0-9a-f]{32}")
_KEY: Final = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")
_MOST_KEY_BYTES: Final = 512


@attrs.frozen(order=True, slots=True)
class Position:
    """A place in the log: a slot of an epoch. The log is ordered by epoch, then by slot."""

    epoch: int
    slot: int


BEGINNING: Final = Position(FIRST_EPOCH, 0)


@attrs.frozen(order=True, slots=True)
class FileName:
    """Which file of the history: the UTC day of its records, in days since 1970, and a random number of 64 bits."""

    day: int
    file_id: int

    def __str__(self) -> str:
        return f"{self.day:07}-{self.file_id:016x}"


def check_key(key: str) -> None:
    """Check the form of a key: parts of letters, digits, ``.``, ``_`` and ``-`` with ``/`` between them.

    Raises:
        ValueError: It has another form, a part that is ``.`` or ``..``, or more than 512 bytes.
    """
    if not _KEY.fullmatch(key) or len(key) > _MOST_KEY_BYTES or any(part in {".", ".."} for part in key.split("/")):
        raise ValueError(f"{key[:80]!r} is no key: parts of letters, digits, '.', '_' and '-', with '/' between them")


def folder_of(key: str) -> str:
    """What comes before the last part of a key, with its ``/``."""
    return key[: key.rfind("/") + 1]


def identity_key(root: str) -> str:
    """Key of the store's identity."""
    return f"{root}/store"


def claim_key(root: str, epoch: int) -> str:
    """Key of a claim. Epoch 0 is before all claims: it is for listing."""
    assert 0 <= epoch <= LAST_EPOCH
    return f"{root}/epoch/{epoch:0{_EPOCH_DIGITS}}"


def epoch_folder(root: str, epoch: int) -> str:
    """What the keys of an epoch's slots begin with. It sorts before all of them: it is for listing."""
    assert FIRST_EPOCH <= epoch <= LAST_EPOCH
    return f"{root}/log/{epoch:0{_EPOCH_DIGITS}}/"


def slot_key(root: str, position: Position) -> str:
    """Key of a slot or a fence."""
    assert 0 <= position.slot <= LAST_SLOT
    return f"{epoch_folder(root, position.epoch)}{position.slot:0{_SLOT_DIGITS}}"


def before_slot(root: str, position: Position) -> str:
    """The key after which a listing begins with this slot."""
    return (
        slot_key(root, attrs.evolve(position, slot=position.slot - 1))
        if position.slot
        else epoch_folder(root, position.epoch)
    )


def checkpoint_folder(root: str) -> str:
    """What the keys of checkpoints begin with. It sorts before all of them: it is for listing."""
    return f"{root}/checkpoint/"


def checkpoint_key(root: str, position: Position) -> str:
    """Key of a checkpoint that holds all that is before a position."""
    assert 0 <= position.slot <= LAST_SLOT
    return f"{checkpoint_folder(root)}{position.epoch:0{_EPOCH_DIGITS}}-{position.slot:0{_SLOT_DIGITS}}"


def number_of(key: str) -> int | None:
    """The number that the last part of a key is; `None` if it is none of ours."""
    name = key[key.rfind("/") + 1 :]
    return int(name) if _NUMBER.fullmatch(name) else None


def position_of(key: str) -> Position | None:
    """The position in the key of a checkpoint; `None` if it is none of ours."""
    match = _POSITION.fullmatch(key[key.rfind("/") + 1 :])
    return Position(int(match[1]), int(match[2])) if match else None


def file_folder(root: str) -> str:
    """What the keys of files begin with. It sorts before all of them: it is for listing."""
    return f"{root}/file/"


def piece_key(root: str, name: FileName, piece: int) -> str:
    """Key of a piece of a file."""
    assert 0 <= name.day <= LAST_DAY
    assert 0 <= piece <= LAST_PIECE
    return f"{file_folder(root)}{name}-{piece:06}"


def piece_of(key: str) -> tuple[FileName, int] | None:
    """The file and the number of the piece in a key; `None` if it is none of ours."""
    match = _PIECE.fullmatch(key[key.rfind("/") + 1 :])
    return (FileName(int(match[1]), int(match[2], 16)), int(match[3])) if match else None


def server_folder(root: str) -> str:
    """What the keys of servers begin with. It sorts before all of them: it is for listing."""
    return f"{root}/server/"


def server_key(root: str, server_id: bytes) -> str:
    """Key of the object of a server."""
    return f"{server_folder(root)}{server_id.hex()}"


def server_id_of(key: str) -> bytes | None:
    """The id in the key of a server; `None` if it is none of ours."""
    name = key[key.rfind("/") + 1 :]
    return bytes.fromhex(name) if _SERVER.fullmatch(name) else None
