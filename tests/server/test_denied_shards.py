"""A subscription by filter that reaches denied shards is accepted; what is denied is left out at delivery."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import attrs
import pytest

from broker_adapter.opening import open_adapter
from broker_adapter.subscription import Delivery
from journal.protocol import Op, decode_reply, frames, messages
from journal.protocol.errors import NotAuthorizedError
from journal.settings.access import AccessRuleTable
from shards.format.record import StoredRecord
from shards.position import Start
from tests.server.json_protocol.talking import RefusedError, talking
from tests.server.people import PASSWORD, guarded, rule, write_people
from tests.server.serving import RawClient, Served, small_config, values_of
from tests.server.test_access import take_over

ANNA_NOT_SECRET = rule("secret/#", principal="anna", allow=False)
EVERYTHING = rule("#", groups=("#",))
CREDIT = 1 << 20


async def subscribe(client: RawClient, number: int = 1, start: Any = "earliest", **fields: Any) -> None:
    await client.call(Op.SUBSCRIBE, messages.SubscribeRequest(number, credit_bytes=CREDIT, start=start, **fields))


@attrs.frozen
class Writer:
    client: RawClient
    handles: dict[str, int] = attrs.field(factory=dict)

    async def append(self, shard: str, value: bytes) -> int:
        """Append a value; returns the lsn up to which everything is committed then, or more."""
        if shard not in self.handles:
            self.handles[shard] = await self.client.open(shard)
        await self.client.append_values(self.handles[shard], value)
        reply = await self.client.call(
            Op.SUBSCRIBE, messages.SubscribeRequest(999, credit_bytes=1, start="latest", shard=shard)
        )
        await self.client.call(Op.UNSUBSCRIBE, messages.UnsubscribeRequest(999))
        return int(reply.lsn)


async def pushed_before(client: RawClient, lsn: int) -> list[bytes]:
    """The values that are pushed before progress up to this lsn is reported; none of them is of a denied shard."""
    values: list[bytes] = []
    while True:
        frame = await client.receive(lambda frame: frame.op in (Op.PUSH, Op.SHARD_EVENT))
        if frame.op == Op.PUSH:
            push = frames.read_push(frame.body)
            values.extend(values_of(push.batches, push.first_offset))
            continue
        event = decode_reply(Op.SHARD_EVENT, frame.body)
        assert not event.name.startswith("secret")
        if event.event == "progress" and event.lsn >= lsn:
            return values


def rules_changed(served: Served, people: dict[str, Any], rules: Iterable[AccessRuleTable]) -> None:
    take_over(served, small_config(**people, access__rules=tuple(rules)))


async def test_what_is_denied_is_left_out_and_the_progress_goes_beyond_it(tmp_path: Path) -> None:
    async with (
        guarded(tmp_path, ANNA_NOT_SECRET, EVERYTHING) as served,
        served.client(user="admin", password=PASSWORD) as admin,
        served.client(user="anna", password=PASSWORD) as anna,
    ):
        writer = Writer(admin)
        await writer.append("secret/old", b"secret")
        lsn = await writer.append("open/old", b"old")
        await subscribe(anna, filter="#")
        assert await pushed_before(anna, lsn) == [b"old"]
        await writer.append("open/new", b"new")
        await writer.append("secret/old", b"secret")
        lsn = await writer.append("secret/new", b"secret")
        assert await pushed_before(anna, lsn) == [b"new"]


@pytest.mark.parametrize("target", [{"filter": "secret/#"}, {"filter": "secret/x"}, {"shard": "secret/x"}], ids=str)
async def test_what_lies_in_the_denied_filter_is_refused(tmp_path: Path, target: dict[str, Any]) -> None:
    async with (
        guarded(tmp_path, ANNA_NOT_SECRET, EVERYTHING) as served,
        served.client(user="anna", password=PASSWORD) as anna,
    ):
        for group in (None, "g"):
            with pytest.raises(NotAuthorizedError, match="may not subscribe"):
                await subscribe(anna, group=group, **target)


async def test_a_filter_that_is_allowed_in_part_only_is_refused(tmp_path: Path) -> None:
    async with (
        guarded(tmp_path, rule("open/#")) as served,
        served.client(user="anna", password=PASSWORD) as anna,
    ):
        with pytest.raises(NotAuthorizedError, match="may not subscribe '#'"):
            await subscribe(anna, filter="#")


async def test_a_subscription_narrows_with_the_rules_and_widens_for_what_comes_later(tmp_path: Path) -> None:
    people = write_people(tmp_path)
    async with (
        guarded(tmp_path, EVERYTHING) as served,
        served.client(user="admin", password=PASSWORD) as admin,
        served.client(user="anna", password=PASSWORD) as anna,
    ):
        writer = Writer(admin)
        await subscribe(anna, filter="#", start="latest")
        await writer.append("other/x", b"first")
        assert values_of((await anna.push()).batches) == [b"first"]
        rules_changed(served, people, [ANNA_NOT_SECRET, EVERYTHING])
        await writer.append("secret/x", b"denied")
        await writer.append("other/x", b"second")
        assert values_of((await anna.push()).batches, 1) == [b"second"]
        rules_changed(served, people, [EVERYTHING])
        await writer.append("secret/x", b"third")
        push = await anna.push()
        assert values_of(push.batches, push.first_offset) == [b"third"]


async def test_what_waits_for_credit_is_not_sent_after_the_right_has_gone(tmp_path: Path) -> None:
    people = write_people(tmp_path)
    async with (
        guarded(tmp_path, EVERYTHING) as served,
        served.client(user="admin", password=PASSWORD) as admin,
        served.client(user="anna", password=PASSWORD) as anna,
        served.client(user="bob", password=PASSWORD) as bob,
    ):
        writer = Writer(admin)
        await anna.call(Op.SUBSCRIBE, messages.SubscribeRequest(1, credit_bytes=0, start="latest", filter="#"))
        await writer.append("secret/x", b"secret")
        rules_changed(served, people, [ANNA_NOT_SECRET, EVERYTHING])
        lsn = await writer.append("open/x", b"open")
        await anna.send(frames.build_credit(1, CREDIT))
        assert await pushed_before(anna, lsn) == [b"open"]
        await subscribe(bob, filter="secret/#")
        assert values_of((await bob.push()).batches) == [b"secret"]


async def test_a_denied_shard_that_is_deleted_is_not_named(tmp_path: Path) -> None:
    async with (
        guarded(tmp_path, ANNA_NOT_SECRET, EVERYTHING) as served,
        served.client(user="admin", password=PASSWORD) as admin,
        served.client(user="anna", password=PASSWORD) as anna,
    ):
        writer = Writer(admin)
        await subscribe(anna, filter="#", start="latest")
        await writer.append("secret/x", b"secret")
        await admin.call(Op.DELETE_SHARD, messages.NameRequest("secret/x"))
        lsn = await writer.append("open/x", b"open")
        assert await pushed_before(anna, lsn) == [b"open"]


async def test_a_tail_in_json_leaves_it_out_too(tmp_path: Path) -> None:
    people = write_people(tmp_path)
    async with (
        guarded(tmp_path, ANNA_NOT_SECRET, EVERYTHING) as served,
        talking(served, user="admin", password=PASSWORD) as admin,
        talking(served, user="anna", password=PASSWORD) as anna,
    ):
        await admin.append("secret/x", "secret", create={})
        await admin.append("open/x", "first", create={})
        await anna.call("tail", tail=1, filter="#", start={"at": "earliest"})
        assert await anna.pushed_values(1, 1) == ["first"]
        assert "secret" not in str(anna.others)
        with pytest.raises(RefusedError, match="may not subscribe"):
            await anna.call("tail", tail=2, filter="secret/#")
        rules_changed(served, people, [rule("open/#", principal="anna", allow=False), EVERYTHING])
        await admin.append("open/x", "denied now")
        await admin.append("secret/x", "allowed now")
        assert await anna.pushed_values(1, 1) == ["allowed now"]


def values_in(delivery: Delivery) -> list[bytes]:
    return [record.value for record in delivery.records if isinstance(record, StoredRecord)]


async def test_an_adapter_leaves_it_out_too(tmp_path: Path) -> None:
    password_file = tmp_path / "password"
    password_file.write_text(PASSWORD)
    async with (
        guarded(tmp_path, ANNA_NOT_SECRET, EVERYTHING) as served,
        served.client(user="admin", password=PASSWORD) as admin,
        open_adapter(f"journal://anna@127.0.0.1:{served.ports['tcp']}?password_file={password_file}") as adapter,
    ):
        writer = Writer(admin)
        await writer.append("secret/x", b"secret")
        lsn = await writer.append("open/x", b"open")
        found: list[bytes] = []
        async with adapter.follow("#", 0, until_lsn=lsn) as feed:
            async for delivery in feed:
                if isinstance(delivery, Delivery):
                    found.extend(values_in(delivery))
        assert found == [b"open"]
        async with adapter.subscribe("#", Start.earliest()) as subscription:
            async for delivery in subscription:
                assert values_in(delivery) == [b"open"]
                break


async def pushed_to(client: RawClient, count: int) -> list[frames.Push]:
    return [await client.push() for _ in range(count)]


def values(pushes: Iterable[frames.Push]) -> set[bytes]:
    return {value for push in pushes for value in values_of(push.batches, push.first_offset)}


async def acknowledge(client: RawClient, pushes: Iterable[frames.Push]) -> None:
    for push in pushes:
        await client.send(
            frames.build_acknowledge(push.subscription, push.shard_ref, push.first_offset, push.next_offset)
        )


async def test_records_of_a_group_go_to_a_member_that_may_read_them(tmp_path: Path) -> None:
    async with (
        guarded(tmp_path, ANNA_NOT_SECRET, EVERYTHING) as served,
        served.client(user="admin", password=PASSWORD) as admin,
        served.client(user="anna", password=PASSWORD) as anna,
        served.client(user="bob", password=PASSWORD) as bob,
    ):
        writer = Writer(admin)
        await writer.append("secret/x", b"secret")
        await writer.append("open/x", b"open")
        await subscribe(anna, filter="#", group="g")
        first = await pushed_to(anna, 1)
        assert values(first) == {b"open"}
        await acknowledge(anna, first)
        assert served.engine.get_cursor("secret/x", "group/g") is None, "anna may not move a position there"
        await subscribe(bob, filter="#", group="g")
        held = await pushed_to(bob, 1)
        assert values(held) == {b"secret"}
        for number in range(4):
            await writer.append("secret/x", b"secret %d" % number)
        later = await pushed_to(bob, 4)
        assert values(later) == {b"secret %d" % number for number in range(4)}
        await acknowledge(bob, [*held, *later])
        await writer.append("open/y", b"all")
        assert not [frame for frame in anna.others if b"secret" in frame.body]


async def test_what_a_member_of_a_group_lost_the_right_to_goes_to_another(tmp_path: Path) -> None:
    people = write_people(tmp_path)
    async with (
        guarded(tmp_path, EVERYTHING) as served,
        served.client(user="admin", password=PASSWORD) as admin,
        served.client(user="anna", password=PASSWORD) as anna,
        served.client(user="bob", password=PASSWORD) as bob,
    ):
        writer = Writer(admin)
        await writer.append("secret/x", b"held")
        await subscribe(anna, filter="#", group="g")
        held = await pushed_to(anna, 1)
        assert values(held) == {b"held"}
        rules_changed(served, people, [ANNA_NOT_SECRET, EVERYTHING])
        await acknowledge(anna, held)
        await writer.append("secret/x", b"later")
        await subscribe(bob, filter="#", group="g")
        assert values(await pushed_to(bob, 2)) == {b"held", b"later"}
        rules_changed(served, people, [rule("secret/#", principal="bob", allow=False), EVERYTHING])
        assert values(await pushed_to(anna, 2)) == {b"held", b"later"}
