"""Payload of the demo's messages: a number, a time, and the measured values; JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from demo.telemetry import Reading


class Sample(msgspec.Struct, frozen=True):
    """The decoded payload.

    ``number`` counts the messages of its publisher and topic from 0, -1 if the payload is not from this demo;
    ``time_us`` is when it was published.
    """

    number: int = -1
    time_us: int = 0


_SAMPLES = msgspec.json.Decoder(Sample)


def payload_of(number: int, time_us: int, reading: Reading) -> bytes:
    """A message's payload."""
    return msgspec.json.encode({"number": number, "time_us": time_us, **reading})


def sample_of(payload: bytes) -> Sample:
    """Decode a payload; any bytes are accepted."""
    try:
        return _SAMPLES.decode(payload)
    except msgspec.MsgspecError:
        return Sample()


def metric_of(payload: bytes, metric: str) -> float | None:
    """The value of a metric in a payload of the demo, if it is a number."""
    reading: dict[str, Any] = msgspec.json.decode(payload)
    return number_of(reading.get(metric))


def number_of(value: object) -> float | None:
    """A measured value as a number, if it is one."""
    return float(value) if isinstance(value, int | float) else None
