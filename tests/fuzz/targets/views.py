"""What is in the views: catalogue, cursors, state, producers, segments; and the records of brokers and queues."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from broker_adapter import state_forms
from broker_adapter.cache_queue import stored as queue_stored
from broker_adapter.mqtt.rules import stored as rules_stored
from broker_adapter.mqtt.rules.rule_set import RuleSet
from broker_adapter.mqtt.session import keys
from broker_adapter.mqtt.session import stored as session_stored
from journal.settings.values import ConfigurationError
from shards.errors import CorruptionError, FormatVersionError, UnknownProducerError
from shards.idempotence.producer_state import ProducerState
from shards.model import ShardConfig
from shards.seams.memory_store import MemoryStore
from shards.seams.store import Family, Mutations
from shards.segments.chunks import ChunkPool
from shards.segments.shard import Shard
from shards.views import catalogue, cursors, producer_records, producers, shard_records, state_store
from tests.fuzz.target import Target

_GOLDEN = Path(__file__).parents[2] / "golden" / "v1"
_SHARD_ID = 7
_LENGTHS = struct.Struct("<BBH")


def _items(data: bytes) -> list[tuple[Family, bytes, bytes]]:
    """Keys and values by family; a key of the views begins with the number of a shard."""
    found = []
    at = 0
    families = tuple(Family)
    while len(data) - at >= _LENGTHS.size:
        family, key_size, value_size = _LENGTHS.unpack_from(data, at)
        at += _LENGTHS.size
        key, value = data[at : at + key_size], data[at + key_size : at + key_size + value_size]
        at += key_size + value_size
        found.append((families[family % len(families)], key, value))
    return found


def _store(items: list[tuple[Family, bytes, bytes]]) -> MemoryStore:
    store = MemoryStore()
    mutations = Mutations()
    for family, key, value in items:
        mutations.put(family, key, value)
    store.write(mutations)
    return store


def run_views(data: bytes) -> None:
    """Each view of a store reads what is there or refuses it by CorruptionError or FormatVersionError.

    What is read and can be stored is stored to what reads the same.
    """
    store = _store(_items(data))
    for read in _READS:
        try:
            read(store)
        except (CorruptionError, FormatVersionError):
            continue


def _read_catalogue(store: MemoryStore) -> None:
    for _ in catalogue.Catalogue(store).records():
        pass
    for _, value in store.scan(Family.CATALOGUE):
        record = catalogue.decode_record(1, value)
        mutations = Mutations()
        again = MemoryStore()
        catalogue.Catalogue(again).fold_put(mutations, 1, record)
        again.write(mutations)
        assert catalogue.Catalogue(again).record(1) == record


def _read_cursors(store: MemoryStore) -> None:
    view = cursors.Cursors(store)
    for shard_id, name, offset in view.all():
        assert isinstance(name, str)
        assert offset >= 0
        view.list(shard_id)


def _read_state(store: MemoryStore) -> None:
    view = state_store.StateStore(store)
    view.expired(1 << 62, 100)
    for value in view.scan(b"", 0, limit=100):
        mutations = Mutations()
        view.fold_put(mutations, value.key, value.value, value.version, value.expires_at_us)
        again = MemoryStore()
        again.write(mutations)
        assert state_store.StateStore(again).get(value.key, 0) == value


def _read_producers(store: MemoryStore) -> None:
    for key, value in store.scan(Family.PRODUCERS):
        if key[:1] == b"n":
            producers.decode_identity(value)
        elif key[:1] == b"i":
            producers.decode_epoch(value)
            producers.decode_name(value)
        elif key[:1] == b"s":
            state = ProducerState.decode(value)
            assert ProducerState.decode(state.encode()) == state
            state.before(50)
            state.offset_of(5)
            state.is_repeat(5)


def _read_sequences(store: MemoryStore) -> None:
    producer_records.load_producers(store, Shard(_SHARD_ID, "s", ShardConfig(), 5))


def _read_identity(store: MemoryStore) -> None:
    try:
        producers.Producers(store).epoch(1)
        producers.Producers(store).check_name_begins(1, "a")
    except UnknownProducerError:
        pass


def _read_segments(store: MemoryStore) -> None:
    shard = Shard(_SHARD_ID, "s", ShardConfig(), 5)
    shard_records.load(store, shard, lambda shard_id, offset: f"/{shard_id}-{offset}", ChunkPool(0), sealed_root="/p")


def _read_outlines(store: MemoryStore) -> None:
    for _ in shard_records.outlines(store):
        pass
    for _ in shard_records.logs(store):
        pass
    for _ in shard_records.newest_lsns(store, 0):
        pass
    shard_records.held_ranges(store, _SHARD_ID)
    shard_records.newest_lsn(store, _SHARD_ID, 0)


_READS: tuple[Callable[[MemoryStore], None], ...] = (
    _read_catalogue,
    _read_cursors,
    _read_state,
    _read_producers,
    _read_sequences,
    _read_identity,
    _read_segments,
    _read_outlines,
)


def _item(family: Family, key: bytes, value: bytes) -> bytes:
    return _LENGTHS.pack(tuple(Family).index(family), len(key), len(value)) + key + value


def _view_seeds() -> list[bytes]:
    written = MemoryStore()
    mutations = Mutations()
    shards = catalogue.Catalogue(written)
    shards.fold_put(mutations, _SHARD_ID, catalogue.CatalogueRecord("plant/line-\u00fc", ShardConfig(), 5))
    cursors.Cursors(written).fold_commit(mutations, _SHARD_ID, "reader", 41, 9)
    state_store.StateStore(written).fold_put(mutations, b"key", b"value", 9, 77)
    producers.Producers(written).fold_use(mutations, "bridge", 1, 3, 5)
    state = ProducerState(3, 10, [(5, 0, 5), (20, 5, 5)], True)
    mutations.put(Family.PRODUCERS, b"s" + struct.pack(">QQ", _SHARD_ID, 1), state.encode())
    head = struct.pack("<BQQQQ", 1, 0, 61, 100, 33)
    mutations.put(Family.SEGMENTS, struct.pack(">Q", _SHARD_ID), head + b"damaged")
    log = struct.pack("<BBxxIQQQQQQ", 1, 1, 2, 5, 4096, 42, 6, 20, 7)
    mutations.put(Family.SEGMENTS, struct.pack(">QQ", _SHARD_ID, 0), log)
    parquet = struct.pack("<B3xIQQQQQQQQ", 3, 19_000, 61, 4096, 5, 6, 33, 7, 9, 0)
    mutations.put(Family.SEGMENTS, struct.pack(">QQ", _SHARD_ID, 42), parquet)
    written.write(mutations)
    items = [_item(family, key, value) for family in Family for key, value in written.scan(family)]
    return [b"".join(items), *items]


_FORMS: tuple[type[msgspec.Struct], ...] = (
    session_stored.StoredMessage,
    session_stored.SessionRecord,
    session_stored.ProgressRecord,
    session_stored.Lease,
    session_stored.ShareRecord,
    session_stored.CleanupRecord,
    queue_stored.Definition,
    queue_stored.Lease,
    queue_stored.Request,
    queue_stored.Status,
    queue_stored.WriterCounts,
    queue_stored.LettersDone,
    rules_stored.StoredRules,
    rules_stored.StoredFollower,
)
_FORM_FILES = {
    "mqtt_state/message.bin": session_stored.StoredMessage,
    "mqtt_state/session.bin": session_stored.SessionRecord,
    "mqtt_state/session_owned.bin": session_stored.SessionRecord,
    "mqtt_state/progress.bin": session_stored.ProgressRecord,
    "mqtt_state/lease.bin": session_stored.Lease,
    "mqtt_state/share.bin": session_stored.ShareRecord,
    "mqtt_state/cleanup.bin": session_stored.CleanupRecord,
    "queue_state/definition.bin": queue_stored.Definition,
    "queue_state/definition_new.bin": queue_stored.Definition,
    "queue_state/lease.bin": queue_stored.Lease,
    "queue_state/request.bin": queue_stored.Request,
    "queue_state/status.bin": queue_stored.Status,
    "queue_state/writer.bin": queue_stored.WriterCounts,
    "queue_state/letters_done.bin": queue_stored.LettersDone,
    "mqtt_state/rules.bin": rules_stored.StoredRules,
    "mqtt_state/rules_follower.bin": rules_stored.StoredFollower,
}


def run_state_forms(data: bytes) -> None:
    """A record of a broker or a queue is read or refused by CorruptionError or FormatVersionError.

    What is read encodes to the same again. Rules that are read are understood or refused by ConfigurationError. The key
    of a timer is read or refused by CorruptionError.
    """
    if not data:
        return
    kind: Any = _FORMS[data[0] % len(_FORMS)]
    try:
        record = state_forms.decode(kind, b"key", data[1:])
    except (CorruptionError, FormatVersionError):
        record = None
    if record is not None:
        again = state_forms.decode(kind, b"key", state_forms.encode(record))
        assert again == record or "nan" in repr(record)
        if isinstance(record, rules_stored.StoredRules):
            with suppress(ConfigurationError):
                assert isinstance(record.rules, RuleSet)
    for key in (data[1:], keys.TIMERS + data[1:]):
        try:
            timer = keys.TimerKey.decode(key)
        except CorruptionError:
            continue
        assert keys.TimerKey.decode(timer.encode()) == timer


def _form_seeds() -> list[bytes]:
    forms = [bytes([_FORMS.index(kind)]) + (_GOLDEN / name).read_bytes() for name, kind in _FORM_FILES.items()]
    return [*forms, b"\0" + b"0" * 15 + b"9/will/client"]


_TOKENS = (b"\xc1", b"\x91" * 1200, b"\xa1\xff", b"\xdd\xff\xff\xff\xff", b"\xcb\x7f\xf8\0\0\0\0\0\0")
TARGETS = (
    Target("views", run_views, _view_seeds, tokens=_TOKENS, is_slow=True),
    Target("state_forms", run_state_forms, _form_seeds, tokens=(*_TOKENS, b"/will/", b"/expiry/")),
)
