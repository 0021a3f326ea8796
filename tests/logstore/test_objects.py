"""The bytes of the objects of a store, and their keys."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.logstore import keys
from journal.logstore.errors import ForeignStoreError, LogDamagedError
from journal.logstore.keys import Position
from journal.logstore.objects import HEADER_BYTES, Kind, LogObject, check_object, decode_object, encode_object

GOLDEN: Final = Path(__file__).parents[1] / "golden" / "logstore"
STORE: Final = bytes(range(16))
NODE: Final = bytes(range(16, 32))
NONCE: Final = bytes(range(32, 48))

SAMPLES: Final = {
    "identity.bin": LogObject(Kind.IDENTITY, STORE, NODE, NONCE),
    "claim.bin": LogObject(Kind.CLAIM, STORE, NODE, NONCE, epoch=7),
    "slot.bin": LogObject(Kind.SLOT, STORE, NODE, NONCE, 7, 12, 1001, 1004, b"commit groups"),
    "fence.bin": LogObject(Kind.FENCE, STORE, NODE, NONCE, 7, 13, body=(8).to_bytes(8, "little")),
    "piece.bin": LogObject(Kind.PIECE, STORE, NODE, NONCE, 20784, 2, 0x1122334455667788, 3, b"bytes of a file"),
    "server.bin": LogObject(Kind.SERVER, STORE, NODE, NONCE, body=b'{"tcp":"10.0.0.1:7420"}'),
    "checkpoint.bin": LogObject(Kind.CHECKPOINT, STORE, NODE, NONCE, 7, 13, next_lsn=1004, body=b"manifest"),
}

ids = st.binary(min_size=16, max_size=16)
numbers = st.integers(0, 2**64 - 1)
objects = st.builds(LogObject, st.sampled_from(Kind), ids, ids, ids, numbers, numbers, numbers, numbers, st.binary())


@pytest.mark.parametrize("name", SAMPLES)
def test_the_golden_bytes_are_what_is_written_today(name: str) -> None:
    assert encode_object(SAMPLES[name]) == (GOLDEN / name).read_bytes()


@pytest.mark.parametrize("name", SAMPLES)
def test_golden_objects_are_read(name: str) -> None:
    assert decode_object(name, (GOLDEN / name).read_bytes()) == SAMPLES[name]


@given(objects)
def test_an_object_is_decoded_as_it_was_encoded(value: LogObject) -> None:
    assert decode_object("key", encode_object(value)) == value


@given(st.binary() | st.binary().map(lambda rest: b"JRNLSLOT" + rest))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises((ForeignStoreError, LogDamagedError)):
        decode_object("key", data)


@given(objects, st.data())
def test_every_changed_bit_is_found(value: LogObject, data: st.DataObject) -> None:
    encoded = bytearray(encode_object(value))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises((ForeignStoreError, LogDamagedError)):
        decode_object("key", bytes(encoded))


@given(objects, st.data())
def test_a_torn_object_is_found(value: LogObject, data: st.DataObject) -> None:
    encoded = encode_object(value)
    with pytest.raises((ForeignStoreError, LogDamagedError)):
        decode_object("key", encoded[: data.draw(st.integers(0, len(encoded) - 1))])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"store_id": NODE}, "belongs to the store 1011"),
        ({"kind": Kind.CLAIM}, "holds a claim of epoch 7, slot 12, not a slot or fence of epoch 7, slot 12"),
        ({"epoch": 6}, "holds a slot of epoch 6, slot 12, not"),
        ({"slot": 11}, "holds a slot of epoch 7, slot 11, not"),
    ],
)
def test_an_object_that_lies_in_a_wrong_place_is_refused(changes: dict[str, object], message: str) -> None:
    data = encode_object(attrs.evolve(SAMPLES["slot.bin"], **changes))
    with pytest.raises((ForeignStoreError, LogDamagedError), match=message):
        check_object("key", data, STORE, 7, 12, Kind.SLOT, Kind.FENCE)


def test_a_header_has_104_bytes() -> None:
    assert HEADER_BYTES == 104


@given(st.integers(1, keys.LAST_EPOCH), st.integers(0, keys.LAST_SLOT))
def test_a_key_says_what_it_names(epoch: int, slot: int) -> None:
    position = Position(epoch, slot)
    assert keys.number_of(keys.slot_key("root", position)) == slot
    assert keys.number_of(keys.claim_key("root", epoch)) == epoch
    assert keys.position_of(keys.checkpoint_key("root", position)) == position
    assert keys.before_slot("root", position) < keys.slot_key("root", position)


@given(*[st.builds(Position, st.integers(1, keys.LAST_EPOCH), st.integers(0, keys.LAST_SLOT))] * 2)
def test_keys_sort_like_positions(one: Position, other: Position) -> None:
    for key_of in (keys.slot_key, keys.checkpoint_key):
        assert (key_of("root", one) < key_of("root", other)) == (one < other)


@pytest.mark.parametrize("name", ["", "x", "1", "00000000007", "0000000007x", "0000000007-1"])
def test_a_name_that_is_none_of_ours_is_no_number_and_no_position(name: str) -> None:
    assert keys.position_of(f"root/checkpoint/{name}") is None
    assert name == "00000000007" or keys.number_of(f"root/log/{name}") is None
