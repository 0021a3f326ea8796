"""Making new inputs of known ones: seeded, so that a number and a seed always give the same input."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from tests.fuzz.target import Target

_MOST_STEPS: Final = 6
_REPAIRED: Final = 0.85
_SIZES: Final = (1, 2, 4, 8)
_NUMBERS: Final = tuple(
    sorted(
        {0, 1, 2, 3, 7, 8, 40, 64, 88, 100, 255, 1000, 4096, 1 << 20, 64 << 20}
        | {1 << bits for bits in (7, 8, 15, 16, 31, 32, 53, 62, 63)}
        | {(1 << bits) - 1 for bits in (7, 8, 15, 16, 31, 32, 53, 63, 64)}
    )
)


def input_number(target: Target, seeds: Sequence[bytes], seed: int, number: int) -> bytes:
    """The input of this number in a run with this seed."""
    random_ = random.Random(f"{seed}/{target.name}/{number}")
    return mutate(target, random_, random_.choice(seeds), seeds)


def mutate(target: Target, random_: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Change an input in a few places, and most often make its checksums right again."""
    changed = bytearray(data)
    for _ in range(random_.randint(1, _MOST_STEPS)):
        random_.choice(_STEPS)(target, random_, changed, others)
    del changed[target.max_input_bytes :]
    return repaired(target, random_, bytes(changed))


def repaired(target: Target, random_: random.Random, data: bytes) -> bytes:
    """The same input with right checksums; now and then as it is, since wrong ones must be refused."""
    return target.repair(data)[: target.max_input_bytes] if random_.random() < _REPAIRED else data


_Step = Callable[[Target, random.Random, bytearray, Sequence[bytes]], None]


def _flip_bit(_target: Target, random_: random.Random, data: bytearray, _others: Sequence[bytes]) -> None:
    if data:
        data[random_.randrange(len(data))] ^= 1 << random_.randrange(8)


def _set_byte(_target: Target, random_: random.Random, data: bytearray, _others: Sequence[bytes]) -> None:
    if data:
        data[random_.randrange(len(data))] = random_.randrange(256)


def _set_number(_target: Target, random_: random.Random, data: bytearray, _others: Sequence[bytes]) -> None:
    size = random_.choice(_SIZES)
    if len(data) < size:
        return
    at = random_.randrange(len(data) - size + 1)
    if random_.random() < 0.7:
        at -= at % size
    order = random_.choice(("little", "big"))
    if random_.random() < 0.5:
        number = random_.choice(_NUMBERS)
    else:
        number = int.from_bytes(data[at : at + size], order) + random_.choice((-8, -4, -1, 1, 4, 8))  # type: ignore[arg-type]
    data[at : at + size] = (number % (1 << 8 * size)).to_bytes(size, order)  # type: ignore[arg-type]


def _remove(_target: Target, random_: random.Random, data: bytearray, _others: Sequence[bytes]) -> None:
    if data:
        start = random_.randrange(len(data))
        del data[start : start + _length(random_, len(data) - start)]


def _cut_off(_target: Target, random_: random.Random, data: bytearray, _others: Sequence[bytes]) -> None:
    if data:
        del data[random_.randrange(len(data)) :]


def _insert(_target: Target, random_: random.Random, data: bytearray, _others: Sequence[bytes]) -> None:
    at = random_.randrange(len(data) + 1)
    data[at:at] = random_.randbytes(_length(random_, 64))


def _repeat(_target: Target, random_: random.Random, data: bytearray, _others: Sequence[bytes]) -> None:
    if data:
        start = random_.randrange(len(data))
        piece = data[start : start + _length(random_, len(data) - start)]
        data[start:start] = piece * random_.choice((1, 1, 1, 2, 8))


def _move(_target: Target, random_: random.Random, data: bytearray, _others: Sequence[bytes]) -> None:
    if data:
        start, to = random_.randrange(len(data)), random_.randrange(len(data))
        piece = data[start : start + _length(random_, len(data) - start)]
        data[to : to + len(piece)] = piece


def _splice(_target: Target, random_: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    other = random_.choice(others)
    if other:
        start = random_.randrange(len(other))
        piece = other[start : start + _length(random_, len(other) - start)]
        at = random_.randrange(len(data) + 1)
        data[at : at + random_.choice((0, len(piece)))] = piece


def _append(_target: Target, random_: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    data += random_.choice(others)


def _token(target: Target, random_: random.Random, data: bytearray, _others: Sequence[bytes]) -> None:
    if target.tokens:
        token = random_.choice(target.tokens)
        at = random_.randrange(len(data) + 1)
        data[at : at + random_.choice((0, len(token)))] = token


def _length(random_: random.Random, most: int) -> int:
    return min(most, random_.choice((1, 2, 4, 8, 16, random_.randint(1, max(1, most)))))


_STEPS: Final[tuple[_Step, ...]] = (
    _flip_bit,
    _set_byte,
    _set_number,
    _set_number,
    _set_number,
    _remove,
    _cut_off,
    _insert,
    _repeat,
    _move,
    _splice,
    _append,
    _token,
    _token,
)
