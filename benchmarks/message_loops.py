"""What is done for each message that is appended or delivered, in Python and compiled, in turns, without sockets.

Values are encoded as batches, as a client does, records are decoded from the body of a batch, PUBLISH packets are made,
each message for one client, and received PUBLISH and PUBACK packets are read. Both forms get the same input, a piece
each in turns, so that the noise of the machine is in both figures.

``python -m benchmarks.message_loops [--work KEY] [--form pure|compiled] [--pieces N]`` does so many pieces by one form
alone, for tools that count instructions.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from benchmarks.load import Timing
from benchmarks.runs import Measurement, Row, UnavailableError
from broker_adapter.mqtt_codec import EMPTY, Decoder, Packet, Properties, Version, publish_template
from broker_adapter.mqtt_codec import encode as packet_of
from broker_adapter.mqtt_codec.packets import Puback, Publish
from broker_adapter.mqtt_codec.publish_template import PurePublishTemplate, make_template
from shards import compiled
from shards.format.batch import encode
from shards.format.batch_header import HEADER_SIZE, BatchHeader
from shards.format.columns import binary_in_python, write_binary
from shards.format.record import Record
from shards.format.record_decoder import decode_in_python, decode_records

MESSAGES: Final = 2000
"""Of a piece."""

FORMS: Final = ("pure", "compiled")
_TOPIC: Final = "plant/line1/temperature"
_PAYLOAD: Final = bytes(100)
_NOW_US: Final = 1_700_000_000_000_000
_HEADERS: Final = (("client", b"sensor-0001"), ("qos", b"1"))
_PROPERTIES: Final = Properties(
    content_type="application/json", message_expiry_interval=3600, user_properties=(("unit", "celsius"),)
)


def _records(in_batch: int, form: str) -> Callable[[], object]:
    """Decode batches of so many records, as a broker stores them."""
    whole = encode([Record(_PAYLOAD, headers=_HEADERS)] * in_batch, now_us=_NOW_US)
    header, body = BatchHeader.unpack(whole), whole[HEADER_SIZE:]
    decode = decode_in_python if form == "pure" else decode_records
    batches = range(MESSAGES // in_batch)
    return lambda: [decode(header, body, 0) for _ in batches]


def _batches(form: str) -> Callable[[], object]:
    """Encode batches of 1,000 values, as a client that appends many at a time."""
    values = [_PAYLOAD] * 1000
    write = binary_in_python if form == "pure" else write_binary
    batches = range(MESSAGES // len(values))
    return lambda: [b"".join(write(values)) for _ in batches]


def _packets(version: Version, values: Properties, form: str) -> Callable[[], object]:
    """Make packets of QoS 1."""
    make = PurePublishTemplate if form == "pure" else make_template
    messages = range(1, MESSAGES + 1)
    return lambda: [
        publish_template(_TOPIC, _PAYLOAD, 1, version, values=values, make=make).packet(number) for number in messages
    ]


class _DecoderInPython(Decoder):
    __slots__ = ()
    read_usual = None


def _received(version: Version, packet: Callable[[int], Packet], form: str) -> Callable[[], object]:
    """Read packets that come 500 at a time."""
    decoder = (_DecoderInPython if form == "pure" else Decoder)(version=version)
    data = b"".join(packet_of(packet(number), version) for number in range(1, 501))
    chunks = range(MESSAGES // 500)
    return lambda: [decoder.receive(data) for _ in chunks]


def _publish(number: int) -> Publish:
    return Publish(_TOPIC, _PAYLOAD, 1, packet_id=number)


WORK: Final[Mapping[str, tuple[str, Callable[[str], Callable[[], object]]]]] = {
    "decoded.batch": ("records with two headers decoded, 100 a batch", functools.partial(_records, 100)),
    "decoded.one": ("the same, one a batch", functools.partial(_records, 1)),
    "batched.values": ("values encoded as a column, 1,000 a batch", _batches),
    "encoded.v311": ("PUBLISH of QoS 1 made, MQTT 3.1.1", functools.partial(_packets, Version.V311, EMPTY)),
    "encoded.v5": ("the same, MQTT 5 without properties", functools.partial(_packets, Version.V5, EMPTY)),
    "encoded.properties": ("the same with three properties", functools.partial(_packets, Version.V5, _PROPERTIES)),
    "received.v311": ("PUBLISH of QoS 1 read, MQTT 3.1.1", functools.partial(_received, Version.V311, _publish)),
    "received.v5": ("the same, MQTT 5 without properties", functools.partial(_received, Version.V5, _publish)),
    "received.puback": ("PUBACK read", functools.partial(_received, Version.V5, Puback)),
}
"""By key: a title, and what makes a function that does a piece of the work in one form."""


def rows() -> list[Row]:
    """A row for each work and form; the compiled form is compared to that in Python."""
    words = {"pure": "in Python", "compiled": "compiled"}
    return [
        Row(
            _row(key, form),
            f"100 B messages, {title}, {words[form]}",
            "messages/s",
            peer=_row(key, "pure") if form == "compiled" else "",
        )
        for key, (title, _) in WORK.items()
        for form in FORMS
    ]


def _row(key: str, form: str) -> str:
    what, kind = key.split(".")
    return f"{what}.{form}.{kind}"


def measurements() -> list[Measurement]:
    """One for each work."""
    return [_measurement(key) for key in WORK]


def _measurement(key: str) -> Measurement:
    def run(timing: Timing) -> Mapping[str, float]:
        forms = FORMS if compiled.decode_records is not None else FORMS[:1]
        work = {form: WORK[key][1](form) for form in forms}
        taken_s = dict.fromkeys(forms, 0.0)
        pieces = 0
        begun_at = time.perf_counter()
        while (now := time.perf_counter()) < begun_at + 2 * timing.total_s:
            measured = now >= begun_at + timing.warm_up_s
            pieces += measured
            for form, do in work.items():
                taken_s[form] += _timed(do) * measured
        if not pieces:
            raise UnavailableError("not one piece within the time of a run")
        return {_row(key, form): pieces * MESSAGES / taken for form, taken in taken_s.items()}

    return Measurement(tuple(_row(key, form) for form in FORMS), run)


def _timed(do: Callable[[], object]) -> float:
    begun_at = time.perf_counter()
    do()
    return time.perf_counter() - begun_at


def main(argv: Sequence[str] | None = None) -> int:
    """Do pieces of a work by one form."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.message_loops")
    parser.add_argument("--work", choices=tuple(WORK), default="decoded.batch")
    parser.add_argument("--form", choices=FORMS, default="compiled")
    parser.add_argument("--pieces", type=int, default=20)
    arguments = parser.parse_args(argv)
    do = WORK[arguments.work][1](arguments.form)
    taken_s = sum(_timed(do) for _ in range(arguments.pieces))
    print(f"{arguments.work}, {arguments.form}: {taken_s / arguments.pieces / MESSAGES * 1e6:.3f} us a message")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
