"""The user of a session in the store: it is decided before anything of the session changes, at any broker."""

from __future__ import annotations

import msgspec
import pytest
import trio

from broker_adapter.mqtt.session import SessionOfAnotherUserError, keys
from broker_adapter.mqtt.session.stored import SessionRecord
from broker_adapter.state_forms import decode, encode
from tests.mqtt.session.brokers import Cluster, cluster


async def stored(cluster: Cluster, client_id: str = "c") -> SessionRecord:
    value = await cluster.store.get_state(keys.session(client_id))
    assert value is not None
    return decode(SessionRecord, value.key, value.value)


async def test_another_broker_does_not_even_ask_the_owner(autojump_clock: trio.abc.Clock) -> None:
    async with cluster() as members:
        one, two = await members.start("one"), await members.start("two")
        await one.open(user="anna")
        before = await stored(members)
        with pytest.raises(SessionOfAnotherUserError, match=r"belongs to user 'anna': user 'bob' may not open it"):
            await two.open(user="bob", clean_start=True)
        assert await stored(members) == before
        assert (before.owner, before.user) == ("one", "anna")
        assert not one.fenced


async def test_a_session_stays_with_its_user_across_brokers(autojump_clock: trio.abc.Clock) -> None:
    async with cluster() as members:
        one, two = await members.start("one"), await members.start("two")
        opened = await one.open(user="anna")
        await one.sessions.close(opened.session, publish_will=False)
        assert (await two.open(user="anna")).present
        with pytest.raises(SessionOfAnotherUserError, match="an anonymous client may not open it"):
            await one.open()


async def test_a_session_of_an_older_program_goes_to_the_first_user_who_opens_it(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with cluster() as members:
        one = await members.start("one")
        opened = await one.open(user="anna")
        await one.sessions.close(opened.session, publish_will=False)
        old = msgspec.structs.replace(await stored(members), user=None)
        await members.store.put_state(keys.session("c"), encode(old))

        opened = await one.open(user="bob")
        assert opened.present
        await one.sessions.close(opened.session, publish_will=False)
        with pytest.raises(SessionOfAnotherUserError):
            await one.open(user="anna")


async def test_a_session_that_has_expired_belongs_to_no_user(autojump_clock: trio.abc.Clock) -> None:
    async with cluster() as members:
        one = await members.start("one", timer_interval_s=3600.0)
        opened = await one.open(user="anna", expiry_s=5)
        await one.sessions.close(opened.session, publish_will=False)
        await trio.sleep(5)
        assert not (await one.open(user="bob")).present
        assert (await stored(members)).user == "bob"
