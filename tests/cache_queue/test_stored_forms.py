"""What queues have written into the state store is read by later programs; the golden files never change."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.cache_queue import names, stored
from broker_adapter.cache_queue.dead_letters import as_letter, from_stored
from broker_adapter.cache_queue.queue import settings_of
from broker_adapter.cache_queue.settings import Overflow, QueueMode, QueueSettings
from broker_adapter.cache_queue.stored import (
    Counts,
    Definition,
    KnownEnd,
    Lease,
    LettersDone,
    Progress,
    Request,
    Status,
    WriterCounts,
)
from broker_adapter.state_forms import decode, encode
from shards.errors import CorruptionError, FormatVersionError
from shards.format.record import Record, StoredRecord
from shards.topics.names import QUEUE_CURSOR

GOLDEN = Path(__file__).parents[1] / "golden" / "v1" / "queue_state"

SETTINGS = QueueSettings(
    mode=QueueMode.HYBRID,
    max_bytes=1 << 40,
    max_records=1_000_000,
    max_age_s=86_400,
    memory_bytes=64 << 20,
    overflow=Overflow.DROP_OLDEST,
)

SAMPLES: dict[str, msgspec.Struct] = {
    "definition": Definition(
        queue_id="0123456789abcdef",
        shard_id=2**40,
        settings={
            "mode": "hybrid",
            "max_bytes": 1 << 40,
            "max_records": 1_000_000,
            "max_age_s": 86_400,
            "memory_bytes": 64 << 20,
            "overflow": "drop_oldest",
        },
        is_paused=True,
        wake_count=3,
        purged_count=2**33,
    ),
    "definition_new": Definition("0123456789abcdef", 0, {}),
    "lease": Lease("broker-1", "0123456789abcdef", 7, 1234),
    "lease_free": Lease("", "0123456789abcdef", 7, 1234),
    "request": Request("spark drain", "0123456789abcdef", 3),
    "status": Status(
        holder="broker-1",
        state="open",
        since_us=1_700_000_000_000_000,
        reason="http://127.0.0.1:8080 refuses connections: é",
        next_attempt_us=1_700_000_030_000_000,
        counts=Counts(2**40, 5, 4, 3, 2, 1),
        counted_offset=2**40 + 15,
        in_rate=1234.5,
        out_rate=0.0,
        updated_us=1_700_000_001_000_000,
    ),
    "progress": Progress(
        shard_id=2**40,
        offset=2**41,
        counts=Counts(2**40, 5, 4, 3, 2, 1),
        set_aside=((2**41, 2**41 + 3), (2**41 + 7, 2**41 + 8)),
        epoch=7,
    ),
    "progress_new": Progress(2),
    "known_end": KnownEnd(shard_id=2**40, end_offset=2**41, unused=((17, 1_048_577), (2**40, 2**40 + 1))),
    "writer": WriterCounts(rejected=2**33, dropped_newest=1),
    "letters_done": LettersDone(shard_id=12, next_offset=345),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_the_golden_bytes_are_what_is_written_and_read_today(name: str) -> None:
    golden = (GOLDEN / f"{name}.bin").read_bytes()
    assert encode(SAMPLES[name]) == golden
    assert decode(type(SAMPLES[name]), b"key", golden) == SAMPLES[name]


def test_every_form_has_a_golden_file_that_is_looked_at() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(SAMPLES)
    forms = {value for value in vars(stored).values() if isinstance(value, type) and issubclass(value, msgspec.Struct)}
    # Counts are in a status.
    assert {type(sample) for sample in SAMPLES.values()} | {Counts, msgspec.Struct} >= forms


def test_settings_are_what_was_written() -> None:
    definition = SAMPLES["definition"]
    assert isinstance(definition, Definition)
    assert settings_of(definition) == SETTINGS


def test_counts_that_an_older_program_wrote_have_no_purged_ones() -> None:
    five = b"\x01" + msgspec.msgpack.encode([1, 2, 3, 4, 5])
    assert decode(Counts, b"key", five) == Counts(1, 2, 3, 4, 5, 0)


def test_names_are_where_they_have_always_been() -> None:
    assert {
        "shard": names.shard_of("q-1.A_b"),
        "dead letters": names.dead_letters_of("q"),
        "cursor": QUEUE_CURSOR,
        "definition": names.definition_key("q"),
        "lease": names.lease_key("q"),
        "request": names.request_key("q"),
        "status": names.status_key("q"),
        "progress": names.progress_key("q"),
        "known end": names.known_end_key("q", "broker/é"),
        "writer": names.writer_key("q", "broker/é"),
        "letters done": names.letters_done_key("q"),
    } == {
        "shard": "$queue/q-1.A_b",
        "dead letters": "$queue/q/dead-letters",
        "cursor": "drained",
        "definition": b"queue/q",
        "lease": b"queue-lease/q",
        "request": b"queue-request/q",
        "status": b"queue-status/q",
        "progress": b"queue-progress/q",
        "known end": b"queue-end/q/broker/\xc3\xa9",
        "writer": b"queue-writer/q/broker/\xc3\xa9",
        "letters done": b"queue-letters-done/q",
    }


def test_a_dead_letter_has_the_headers_that_it_has_always_had() -> None:
    record = StoredRecord(17, 1, 2, b"value", b"key", "a/b", 3, (("h", b"1"),), ("t",), 4)
    letter = as_letter(record, 5, "no such table")
    assert letter == Record(
        b"value",
        b"key",
        "a/b",
        3,
        (
            ("dead-letter-offset", b"17"),
            ("dead-letter-shard", b"5"),
            ("dead-letter-reason", b"no such table"),
            ("h", b"1"),
        ),
        ("t",),
        0,
    )


HEADERS = st.lists(st.tuples(st.text(max_size=20), st.binary(max_size=20)), max_size=4).map(tuple)


@given(st.integers(0, 2**60), st.integers(0, 2**60), st.text(max_size=50), HEADERS)
def test_a_dead_letter_is_read_as_it_was_written(
    offset: int, shard_id: int, reason: str, headers: tuple[tuple[str, bytes], ...]
) -> None:
    record = StoredRecord(offset, 1, 2, b"value", b"key", "a/b", 3, headers, ("t",), 4)
    letter = as_letter(record, shard_id, reason)
    kept = StoredRecord(9, 10, 11, letter.value, letter.key, letter.topic, 3, letter.headers, letter.tags)
    found = from_stored(kept)
    assert (found.offset, found.refused_us) == (9, 11)
    assert (found.queue_offset, found.queue_shard_id, found.reason) == (offset, shard_id, reason)
    assert found.record == Record(b"value", b"key", "a/b", 3, headers, ("t",))


@given(HEADERS)
def test_any_record_may_be_among_the_dead_letters(headers: tuple[tuple[str, bytes], ...]) -> None:
    found = from_stored(StoredRecord(9, 10, 11, b"value", headers=headers))
    assert found.record.headers == headers
    assert found.queue_offset == -1


@given(st.sampled_from(list(SAMPLES)), st.binary(max_size=60), st.integers(0, 200))
def test_damaged_values_are_recognised_or_read_and_nothing_else_happens(name: str, noise: bytes, at: int) -> None:
    good = encode(SAMPLES[name])
    for value in (noise, b"\x01" + noise, good[:at], good[:at] + noise + good[at + len(noise) :]):
        try:
            decode(type(SAMPLES[name]), b"key", value)
        except (CorruptionError, FormatVersionError) as error:
            assert "b'key'" in str(error)
