"""Numbers that the views store about the node as a whole: one for each key of the family META.

Values are u64, big-endian. A number is durable once the store was flushed.
"""

from __future__ import annotations

import enum
import hashlib
import re
import struct

import attrs

from journal.engine.wal.recovery import Expected
from shards.errors import CorruptionError
from shards.seams.store import Family, Mutations, OrderedStore

_NUMBER = struct.Struct(">Q")
_NODE_ID = re.compile("[0-9a-f]{16}")


class NodeKey(enum.Enum):
    """The keys and what their numbers mean.

    Attributes:
        CHECKPOINT: Everything up to this lsn is durable without the journal.
        FOLDED: The views contain every decision up to this lsn.
        LSNS_RESERVED: lsns below it are never assigned again.
        JOURNAL_FILE: A journal file with this number or a higher one exists.
        STOPPED_IN: Number of the newest journal file at the last orderly stop.
        SPARES: Highest number of the spare journal files at that stop.
        NODE_ID: Number of the node that the views belong to, see `number_of_node`.
        LOG_EPOCH, LOG_SLOT: Where the log of the store goes on after `LOG_LSN`. Only if the log lies in a log store.
        LOG_LSN: The lsn of the first entry there, at most that after the checkpoint.
        NEWEST_APPEND_US: No append time up to the checkpoint is later, see `journal.engine.state.node_time`.
    """

    CHECKPOINT = b"checkpoint_lsn"
    FOLDED = b"folded_lsn"
    LSNS_RESERVED = b"lsns_reserved"
    JOURNAL_FILE = b"journal_file"
    STOPPED_IN = b"stopped_in"
    SPARES = b"spares"
    NODE_ID = b"node_id"
    NEWEST_APPEND_US = b"newest_append_us"
    LOG_EPOCH = b"log_epoch"
    LOG_SLOT = b"log_slot"
    LOG_LSN = b"log_lsn"


@attrs.frozen(slots=True)
class NodeRecord:
    """The numbers as they were read; 0 for a missing one."""

    checkpoint: int = 0
    folded: int = 0
    lsns_reserved: int = 0
    journal_file: int = 0
    stopped_in: int = 0
    spares: int = 0
    node_id: int = 0
    newest_append_us: int = 0
    log_epoch: int = 0
    log_slot: int = 0
    log_lsn: int = 0

    def expected(self, *, was_complete: bool, is_copy: bool) -> Expected:
        """Return what these numbers prove about the journal.

        Args:
            was_complete: The data directory was used before, with this layout.
            is_copy: The journal is a copy of the log of a store.
        """
        return Expected(
            self.checkpoint,
            self.folded,
            self.journal_file,
            is_unused=was_complete and not self.journal_file,
            is_copy=is_copy,
        )

    def require_node(self, state: str, node_id: str) -> None:
        """Refuse the views of another node: with them shards would be missing, and files of other shards overwritten.

        Args:
            state: Directory of the views, for the error message.
            node_id: The id of the data directory's node.

        Raises:
            CorruptionError: They belong to another node. Views of an older version have no node id and are accepted.
        """
        expected = number_of_node(node_id)
        if self.node_id not in (0, expected):
            raise CorruptionError(
                state,
                0,
                f"the views belong to another node: expected number {expected:016x}, found {self.node_id:016x}. If the "
                f"directory is a file system of its own, mount the one of this node; if it is lost, restore a backup",
            )


def number_of_node(node_id: str) -> int:
    """The number for a node id: the id itself, which is 16 hexadecimal digits, or a digest of any other text."""
    if _NODE_ID.fullmatch(node_id):
        return int(node_id, 16)
    return int.from_bytes(hashlib.blake2b(node_id.encode(), digest_size=8).digest(), "big")


def read_node_record(store: OrderedStore) -> NodeRecord:
    """Read all numbers of a store.

    Raises:
        CorruptionError: A number is damaged.
    """
    return NodeRecord(**{key.name.lower(): read_number(store, key) for key in NodeKey})


def read_number(store: OrderedStore, key: NodeKey) -> int:
    """Read one number; 0 if it was never written.

    Raises:
        CorruptionError: The number is damaged.
    """
    stored = store.get(Family.META, key.value)
    if stored is None:
        return 0
    if len(stored) != _NUMBER.size:
        what = f"{key.value.decode()} in the views"
        raise CorruptionError(what, 0, f"the value has {len(stored)} bytes, expected {_NUMBER.size}")
    return int(_NUMBER.unpack(stored)[0])


def put_number(mutations: Mutations, key: NodeKey, number: int) -> None:
    """Add the write of one number to ``mutations``."""
    mutations.put(Family.META, key.value, _NUMBER.pack(number))
