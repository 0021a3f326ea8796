"""What a request brought: whether it was carried out, and everything that the answer shows."""

from __future__ import annotations

from typing import Any, Final

import attrs

from journal.protocol.errors import NotAuthorizedError
from shards.errors import StorageError
from tests.server.json_protocol.talking import RefusedError

REFUSED: Final = NotAuthorizedError.code


@attrs.frozen
class Answer:
    """An answer.

    Attributes:
        code: The code of the error; empty if the request was carried out.
        text: All of it, readable.
    """

    code: str
    text: str

    @property
    def is_done(self) -> bool:
        """Whether it was carried out."""
        return not self.code

    @property
    def is_refused(self) -> bool:
        """Whether the principal may not ask for this."""
        return self.code == REFUSED


def done(*parts: Any) -> Answer:
    """What came of a request that was carried out."""
    return Answer("", " ".join(part if isinstance(part, str) else repr(part) for part in parts))


def failed(error: StorageError | RefusedError) -> Answer:
    """What came of one that was not."""
    return Answer(error.code, str(error))
