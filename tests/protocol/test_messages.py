"""Bodies: newer peers are understood, wrong types are named, garbage is one kind of error."""

from __future__ import annotations

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.protocol import OPERATIONS, Op, RemoteProtocolError, decode_reply, decode_request, encode
from journal.protocol.errors import LocalProtocolError
from journal.protocol.messages import Empty, HelloRequest, ListShardsRequest
from tests.protocol.samples import REPLIES, REQUESTS


def test_table_lists_every_operation() -> None:
    assert set(OPERATIONS) == set(Op)
    assert {op for op, operation in OPERATIONS.items() if operation.request} == set(REQUESTS)
    assert {op for op, operation in OPERATIONS.items() if operation.reply} == set(REPLIES)


@pytest.mark.parametrize("op", REQUESTS)
def test_unknown_fields_are_ignored(op: Op) -> None:
    fields = msgspec.msgpack.decode(encode(REQUESTS[op]))
    assert decode_request(op, encode({**fields, "from_the_future": [1, 2]})) == REQUESTS[op]


def test_missing_fields_take_their_defaults() -> None:
    assert decode_request(Op.LIST_SHARDS, b"") == ListShardsRequest("#", "", 1000, 0)
    assert decode_request(Op.PING, b"") == Empty()
    assert decode_request(Op.HELLO, encode({"version": 1, "client": "c"})) == HelloRequest(1, "c", None)


@pytest.mark.parametrize(
    ("op", "fields", "place"),
    [
        (Op.HELLO, {"version": "1", "client": "c"}, r"HELLO request: .*\$\.version"),
        (Op.HELLO, {"version": 1}, "HELLO request: .*client"),
        (Op.TRIM, {"name": "a", "before_offset": -1}, r"TRIM request: .*\$\.before_offset"),
        (Op.CLOSE_SHARD, {"handle": 2**32}, r"CLOSE_SHARD request: .*\$\.handle"),
        (Op.SET_MODE, {"name": "a", "mode": "paper"}, r"SET_MODE request: .*\$\.mode"),
        (Op.CREATE_SHARD, {"name": "a", "config": {"mode": 1}}, r"CREATE_SHARD request: .*\$\.config\.mode"),
        (Op.SUBSCRIBE, {"subscription": 1, "start": "noon"}, r"SUBSCRIBE request: .*\$\.start"),
    ],
)
def test_wrong_value_names_operation_and_path(op: Op, fields: dict[str, object], place: str) -> None:
    with pytest.raises(RemoteProtocolError, match=place):
        decode_request(op, encode(fields))


@pytest.mark.parametrize("op", [Op.APPEND, Op.FETCH, Op.CREDIT])
def test_fixed_bodies_have_no_messagepack_form(op: Op) -> None:
    with pytest.raises(RemoteProtocolError, match=op.name):
        decode_request(op, b"\x80")


@given(st.sampled_from(sorted(REPLIES)), st.binary(max_size=60))
def test_garbage_decodes_or_is_a_protocol_error(op: Op, body: bytes) -> None:
    for decode in (decode_reply, decode_request):
        with contextlib.suppress(RemoteProtocolError):
            decode(op, body)


def test_a_reply_with_other_fields_may_come_from_a_server_of_another_version() -> None:
    with pytest.raises(RemoteProtocolError, match=r"missing required field.*; the server may be of another version"):
        decode_reply(Op.DESCRIBE_SHARD, msgspec.msgpack.encode({"other": 1}))
    with pytest.raises(RemoteProtocolError) as garbage:
        decode_reply(Op.DESCRIBE_SHARD, b"\xc1")
    assert "version" not in str(garbage.value)


def test_what_messagepack_cannot_carry_is_our_fault() -> None:
    with pytest.raises(LocalProtocolError):
        encode(HelloRequest(1, "\ud800"))
    with pytest.raises(LocalProtocolError):
        encode(HelloRequest(2**70, "c"))
