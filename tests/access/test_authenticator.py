"""Which user a peer is, by its token or certificate, and that no client prevents another from logging in."""

from __future__ import annotations

import pytest

from journal.access.authenticator import Authenticator, Known
from journal.access.rules import AccessRules
from journal.access.tokens import TokenHash, Tokens
from journal.protocol.errors import AuthenticationError

PEER = "10.0.0.1:4711"


def access_by_token() -> Authenticator:
    known = Known(AccessRules(), tokens=Tokens([TokenHash.of("robot", "right")]))
    return Authenticator(known, lambda: 0.0, lambda: 0.0)


async def test_a_right_token_is_taken_whatever_wrong_ones_come_from_the_same_host() -> None:
    """A forgotten script with an old token would otherwise keep all others of its host, or of its proxy, out."""
    access = access_by_token()
    for number in range(100):
        with pytest.raises(AuthenticationError, match="too many wrong tokens" if number > 30 else "is not known"):
            await access.authenticate({"token": f"wrong{number}"}, PEER)
    assert (await access.authenticate({"token": "right"}, PEER)).name == "robot"


@pytest.mark.parametrize("name", ["anna:gateway", "*\n", " anna", "#"])
async def test_a_certificate_whose_name_no_user_can_have_is_refused(name: str) -> None:
    access = Authenticator(Known(AccessRules(), certificates=True))
    assert (await access.authenticate(None, PEER, "anna")).name == "anna"
    with pytest.raises(AuthenticationError, match="certificate"):
        await access.authenticate(None, PEER, name)
