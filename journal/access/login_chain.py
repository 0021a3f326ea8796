"""The login methods of a program, asked in their order: the first one that accepts or refuses a client decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from functools import reduce
from operator import or_
from typing import Final

import attrs
import structlog
import trio

from journal.access.logins import Attempt, Identity, LoginMethod, Secret
from journal.protocol.errors import AuthenticationError

_SHOWN_CHARACTERS: Final = 100

log: structlog.stdlib.BoundLogger = structlog.get_logger("journal")


@attrs.frozen(slots=True)
class Step:
    """A method in the order of a program.

    Attributes:
        method: The method.
        denied: Names that are refused although the method accepts them.
    """

    method: LoginMethod
    denied: frozenset[str] = frozenset()

    def accepts(self, identity: Identity) -> bool:
        """Whether a client that the method has accepted may stay."""
        return identity.name not in self.denied and self.method.still_accepts(identity)


@attrs.frozen(slots=True)
class LoginCounts:
    """Logins since the start, by the kind of the method that decided."""

    accepted: Counter[str] = attrs.field(factory=Counter)
    refused: Counter[str] = attrs.field(factory=Counter)


class LoginChain:
    """Asks methods in their order.

    Args:
        steps: The methods. `arrange` replaces them.

    Attributes:
        counts: What was decided.
    """

    def __init__(self, steps: Iterable[Step] = ()) -> None:
        self._steps: Sequence[Step] = ()
        self.counts = LoginCounts()
        self.arrange(steps)

    def arrange(self, steps: Iterable[Step]) -> None:
        """Use these methods from now on."""
        self._steps = tuple(steps)
        takes = [step.method.takes for step in self._steps]
        none: frozenset[Secret] = frozenset()
        self._is_last = [not (each & reduce(or_, takes[at + 1 :], none)) for at, each in enumerate(takes)]

    async def authenticate(self, attempt: Attempt) -> Identity | None:
        """Who a client is; None if no method decides about what it sent.

        Raises:
            AuthenticationError: It is refused. The message goes to the client.
        """
        for step, is_last in zip(self._steps, self._is_last, strict=True):
            kind = step.method.kind
            try:
                identity = await step.method.check(attempt, is_last=is_last)
            except AuthenticationError:
                self.counts.refused[kind] += 1
                raise
            if identity is None:
                continue
            if identity.name in step.denied:
                self.counts.refused[kind] += 1
                log.info(
                    "login refused",
                    method=identity.method,
                    user=identity.name[:_SHOWN_CHARACTERS],
                    peer=attempt.peer,
                    reason="the user is in denied of this method",
                )
                raise AuthenticationError("this user may not log in")
            self.counts.accepted[kind] += 1
            return identity
        await trio.lowlevel.checkpoint()
        return None

    def is_still_known(self, identity: Identity) -> bool:
        """Whether a client would still be accepted with the same credentials, by the method that accepted it."""
        return any(step.accepts(identity) for step in self._steps if step.method.kind == identity.method)

    def may_know(self, name: str, kinds: Container[str] | None = None) -> bool:
        """Whether any method, or any of these kinds, may accept a user of this name."""
        return any(
            name not in step.denied and step.method.may_know(name)
            for step in self._steps
            if kinds is None or step.method.kind in kinds
        )
