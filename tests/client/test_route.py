"""Which server of several a client tries next."""

from __future__ import annotations

import pytest
import trio

from journal.client.address import Address
from journal.client.route import REACH_S, Route
from journal.protocol.errors import ConnectionLostError
from journal.protocol.messages import HelloReply
from shards.errors import InvalidRequestError, NotOwnerError

LOST = ConnectionLostError("lost")


def route_of(text: str) -> Route:
    return Route(Address.parse_all(text))


def test_an_address_names_several_servers_that_have_the_rest_in_common() -> None:
    found = Address.parse_all("journals://anna@a:1,b,[::1]:3/?password_file=/p&ca_file=/c")
    assert [(one.kind, one.host, one.port, one.user, one.password_file, one.ca_file) for one in found] == [
        ("tls", "a", 1, "anna", "/p", "/c"),
        ("tls", "b", 7420, "anna", "/p", "/c"),
        ("tls", "::1", 3, "anna", "/p", "/c"),
    ]


@pytest.mark.parametrize("text", ["a", "journal://a:1", "journal://anna@a/?token_file=/with,comma", "a:1/path,b"])
def test_an_address_without_a_comma_among_its_places_names_one_server(text: str) -> None:
    assert Address.parse_all(text) == (Address.parse(text),)


@pytest.mark.parametrize("text", ["a:1,", ",a:1", "journal://a:1,,b:2", "a:1,b:x"])
def test_a_place_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        Address.parse_all(text)


def test_a_password_in_an_address_of_several_is_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidRequestError, match="password_file") as refused:
        Address.parse_all("journal://anna:s3cret@a:1,b:2")
    assert "s3cret" not in str(refused.value)


def test_servers_are_tried_in_turn() -> None:
    route = route_of("a:1,b:2,c:3")
    tried = []
    for _ in range(5):
        tried.append(str(route.place))
        route.ended(LOST)
    assert tried == ["tcp://a:1", "tcp://b:2", "tcp://c:3", "tcp://a:1", "tcp://b:2"]


def test_the_owner_that_a_server_names_is_tried_next_also_if_the_address_does_not_name_it() -> None:
    route = route_of("journals://anna@a:1,b:2")
    route.ended(NotOwnerError("d:4"))
    assert (str(route.place), route.place.user) == ("tls://d:4", "anna")


def test_an_owner_that_is_none_is_not_followed_for_ever() -> None:
    """Servers that name each other, or one that is gone, must not keep a client from the others."""
    route = route_of("a:1,b:2")
    route.ended(NotOwnerError("d:4"))
    route.ended(NotOwnerError("a:1"))
    assert str(route.place) == "tcp://b:2"
    route.ended(NotOwnerError("d:4"))
    route.ended(LOST)
    assert str(route.place) == "tcp://a:1"


@pytest.mark.parametrize("owner", ["", "not an address", "d:port"])
def test_a_server_that_knows_no_owner_is_left_for_the_next(owner: str) -> None:
    route = route_of("a:1,b:2")
    route.ended(NotOwnerError(owner))
    assert str(route.place) == "tcp://b:2"


def test_over_websocket_the_owner_is_found_by_trying() -> None:
    route = route_of("journal+ws://a:1,b:2")
    route.ended(NotOwnerError("d:4"))
    assert str(route.place) == "ws://b:2"


async def hang(*_: object) -> None:
    await trio.sleep_forever()


@pytest.mark.parametrize("scheme", ["journal", "journals", "journal+ws"])
async def test_a_server_of_several_whose_machine_is_gone_is_left_soon(
    scheme: str, monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """Followers name it as the owner until one of them takes over; a client that waits for it must not miss that."""
    monkeypatch.setattr(trio, "open_tcp_stream", hang)
    began_at = trio.current_time()
    async with trio.open_nursery() as nursery:
        with pytest.raises(ConnectionLostError, match="nothing answers at a:1 within 1 s"):
            await route_of(f"{scheme}://a:1,b:2").connect(nursery)
    assert trio.current_time() - began_at == pytest.approx(REACH_S)


async def test_the_only_server_is_waited_for(monkeypatch: pytest.MonkeyPatch, autojump_clock: object) -> None:
    """The bound on the session is the only one."""
    monkeypatch.setattr(trio, "open_tcp_stream", hang)
    with trio.move_on_after(100.0) as waiting:
        async with trio.open_nursery() as nursery:
            await route_of("a:1").connect(nursery)
    assert waiting.cancelled_caught


def answer(*, is_follower: bool) -> HelloReply:
    return HelloReply(2, "server", "node", 1 << 20, 1 << 20, is_follower=is_follower)


def test_a_client_that_only_reads_prefers_a_follower_to_the_owner() -> None:
    route = route_of("a:1,b:2,c:3?read=follower")
    for _ in range(2):
        with pytest.raises(NotOwnerError) as refused:
            route.check(answer(is_follower=False))
        before = route.place
        route.ended(refused.value)
        assert route.place != before
    route.check(answer(is_follower=True))


@pytest.mark.parametrize("reason", [LOST, NotOwnerError("c:3")])
def test_it_takes_the_owner_when_no_follower_has_answered(reason: ConnectionLostError | NotOwnerError) -> None:
    route = route_of("a:1,b:2?read=follower")
    route.ended(reason)
    route.check(answer(is_follower=False))
    # The next time it looks for a follower again.
    with pytest.raises(NotOwnerError):
        route.check(answer(is_follower=False))


def test_it_goes_to_an_owner_that_its_address_does_not_name_after_one_round_without_a_follower() -> None:
    route = route_of("a:1,b:2?read=follower")
    route.ended(NotOwnerError("d:4"))
    assert route.place.host in ("a", "b")
    route.ended(NotOwnerError("d:4"))
    assert str(route.place) == "tcp://d:4"
    route.check(answer(is_follower=False))


def test_the_only_server_of_an_address_is_taken_whatever_it_is() -> None:
    route_of("a:1?read=follower").check(answer(is_follower=False))


def test_clients_that_only_read_begin_at_different_servers() -> None:
    assert {route_of("a:1,b:2,c:3?read=follower").place.host for _ in range(200)} == {"a", "b", "c"}


def test_a_client_that_also_writes_takes_no_notice_of_followers() -> None:
    route = route_of("a:1,b:2")
    assert str(route.place) == "tcp://a:1"
    route.check(answer(is_follower=False))
