"""Messages of the JSON sub-protocol."""

from __future__ import annotations

import json

from journal.protocol.errors import RemoteProtocolError
from journal.server.json_protocol.messages import (
    Append,
    BadRequestError,
    decode_request,
    encode_error,
    encode_json,
    encode_result,
)
from journal.server.json_protocol.records import encode_batch
from shards.errors import InvalidNameError, InvalidRequestError, LimitExceededError, StorageError
from shards.format import batch
from shards.topics.names import validate_shard_name
from shards.topics.topic_filters import validate_filter
from tests.fuzz.target import Target, text_of

_NOW_US = 1_700_000_000_000_000


def run_json_messages(data: bytes) -> None:
    """A text is a request or refused by a StorageError that can be sent as JSON; a request encodes to the same again.

    The records of an append make a batch with these records, or are refused by an error of the request.
    """
    text = text_of(data)
    try:
        request = decode_request(text)
    except StorageError as error:
        assert isinstance(error, RemoteProtocolError)
        told_id = error.id if isinstance(error, BadRequestError) else None
        assert json.loads(encode_error(told_id, error))["error"]["code"] == error.code
        return
    assert json.loads(encode_result(request.id, {}))["id"] == request.id
    assert decode_request(encode_json(request).decode()) == request
    for name in (getattr(request, "shard", None), getattr(request, "filter", None)):
        if isinstance(name, str):
            for check in (validate_shard_name, validate_filter):
                try:
                    check(name)
                except InvalidNameError as error:
                    encode_error(request.id, error)
    if isinstance(request, Append):
        try:
            made = encode_batch(request, _NOW_US)
        except (InvalidRequestError, LimitExceededError) as error:
            encode_error(request.id, error)
            return
        assert len(batch.values(made)) == len(request.records)


def _seeds() -> list[bytes]:
    texts = (
        '{"op":"hello","id":1,"client":"c","credentials":{"token":"t"}}',
        '{"op":"ping","id":"a"}',
        '{"op":"list","id":2,"filter":"a/#","after":"a","limit":5}',
        '{"op":"describe","id":3,"shard":"s"}',
        (
            '{"op":"append","id":4,"shard":"s","records":[{"value":"v"},{"value_base64":"AAE=","key":"k","topic":"t",'
            '"timestamp_us":5,"headers":[{"name":"n","value":"x"}],"tags":["a"],"expires_at_us":9}],"ack":"durable",'
            '"expected_offset":7,"create":{"mode":"memory"}}'
        ),
        '{"op":"read","id":5,"shard":"s","start":{"at":"offset","value":3},"max_bytes":100,"wait_ms":10}',
        '{"op":"tail","id":6,"tail":1,"filter":"#","start":{"at":"time","value":1},"credit_bytes":5}',
        '{"op":"credit","tail":1,"bytes":5}',
        '{"op":"untail","id":8,"tail":1}',
    )
    return [text.encode() for text in texts]


_TOKENS = (
    *tuple(
        text.encode()
        for text in (
            '"',
            "{",
            "}",
            "[",
            "]",
            ",",
            ":",
            "null",
            "true",
            "-1",
            "1e400",
            "9007199254740993",
            "\\ud800",
            "[" * 1200,
            '"records":',
            '"value":',
            '"value_base64":',
            '"tags":',
            '"headers":',
            '"create":',
            '"op":"append"',
            '"op":"tail"',
        )
    ),
    b"\xed\xa0\x80",
    b"\xff",
    b'{"a":' * 40,
)

TARGETS = (Target("json_messages", run_json_messages, _seeds, tokens=_TOKENS),)
