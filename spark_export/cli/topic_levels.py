"""``topic[1]`` in a query: one level of a topic, counted from 0, null if there is none; the same as in bridges. Pure.

A topic is text, so Spark refuses the brackets. They are written with functions of Spark instead. Only brackets behind
the name are replaced, found by a tokenizer: the rest of the query, with its texts and comments, stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from sqlglot import Token

_NAME: Final = "topic"
DIALECT: Final = "databricks"
"""The dialect of sqlglot that is nearest to Spark's: it knows ``value:member`` and ``::double``."""


@attrs.frozen
class Replaced:
    """A query with levels written by functions.

    Attributes:
        text: The query.
        pieces: From, to, and new text of each replaced piece of the original, in order.
    """

    text: str
    pieces: tuple[tuple[int, int, str], ...]

    def original_position(self, position: int) -> int:
        """The place in the original query of a place in the text."""
        shift = 0
        for start, end, new in self.pieces:
            begin = start + shift
            if position < begin:
                break
            if position < begin + len(new):
                return start
            shift += len(new) - (end - start)
        return position - shift


def with_levels(query: str) -> Replaced | None:
    """The query with functions in place of ``topic[N]``; None if there is none, or it is no SQL."""
    from sqlglot import tokenize
    from sqlglot.errors import SqlglotError

    try:
        tokens = list(tokenize(query, read=DIALECT))
    except SqlglotError:
        return None
    pieces = sorted(_pieces(query, tokens))
    if not pieces:
        return None
    text, at = "", 0
    for start, end, new in pieces:
        text += query[at:start] + new
        at = end
    return Replaced(text + query[at:], tuple(pieces))


def _pieces(query: str, tokens: list[Token]) -> Iterable[tuple[int, int, str]]:
    for at in range(len(tokens) - 1):
        if not _is_topic(tokens, at) or tokens[at + 1].token_type.name != "L_BRACKET":
            continue
        close = _closing(tokens, at + 1)
        if close is None:
            continue
        first = _qualified_from(tokens, at)
        from_the_end = tokens[at + 2].token_type.name == "DASH"
        yield tokens[first].start, tokens[first].start, "try_element_at(split(" if from_the_end else "get(split("
        yield tokens[at + 1].start, tokens[at + 1].end + 1, ", '/'), "
        yield tokens[close].start, tokens[close].end + 1, ")"


def _is_topic(tokens: list[Token], at: int) -> bool:
    return tokens[at].token_type.name in ("VAR", "IDENTIFIER") and tokens[at].text.lower() == _NAME


def _qualified_from(tokens: list[Token], at: int) -> int:
    """The first token of a name with its table: ``r`` of ``r.topic``."""
    while at >= 2 and tokens[at - 1].token_type.name == "DOT":
        at -= 2
    return at


def _closing(tokens: list[Token], opening: int) -> int | None:
    depth = 0
    for at in range(opening, len(tokens)):
        kind = tokens[at].token_type.name
        depth += (kind == "L_BRACKET") - (kind == "R_BRACKET")
        if not depth:
            return at
    return None
