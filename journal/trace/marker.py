"""Payloads that are found again in packets: a random word, and the number of the message. Pure."""

from __future__ import annotations

import os
import re
from typing import Final

_WORD_BYTES: Final = 8
_DIGITS: Final = 9
MIN_BYTES: Final = 2 * _WORD_BYTES + _DIGITS
MAX_COUNT: Final = 10**_DIGITS


class Marker:
    """Marks the messages of one run.

    Args:
        word: Hexadecimal digits that occur in no other bytes of the machine; by default random ones.
    """

    def __init__(self, word: str | None = None) -> None:
        self._word = (word or os.urandom(_WORD_BYTES).hex()).encode()
        self._pattern = re.compile(re.escape(self._word) + rb"([0-9]{%d})" % _DIGITS)

    def payload(self, number: int, size_bytes: int) -> bytes:
        """A payload of this size, which is at least `MIN_BYTES`, with the number of a message."""
        return (self._word + b"%0*d" % (_DIGITS, number)).ljust(size_bytes, b".")

    def numbers(self, data: bytes | bytearray | memoryview) -> list[int]:
        """Numbers of the messages in these bytes, in their order."""
        return [int(digits) for digits in self._pattern.findall(data)]
