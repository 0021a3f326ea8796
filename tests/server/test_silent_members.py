"""Group members that stop without closing their connection: what they hold goes to the other members."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from journal.client import SessionTimes, open_client
from journal.protocol import Op, decode_error, decode_reply, frames, messages
from journal.server import connection as connections
from shards.position import Start
from tests.server.serving import RawClient, serving

SHARDS = 40


async def join(client: RawClient, **request: object) -> None:
    await client.call(
        Op.SUBSCRIBE, messages.SubscribeRequest(1, filter="s/#", start="earliest", credit_bytes=1 << 20, **request)
    )


async def until_all_came(client: RawClient, names: set[str], clock: MockClock) -> None:
    """Take and acknowledge pushes, and send PING as a client does, until something of all shards came."""
    seen: dict[int, str] = {}
    came: set[str] = set()
    while came != names:
        clock.jump(0.05)
        await wait_all_tasks_blocked(0.005)
        await client.call(Op.PING)
        events, client.others = client.others, []
        for event in events:
            if event.op == Op.SHARD_EVENT:
                told: messages.ShardEvent = decode_reply(Op.SHARD_EVENT, event.body)
                seen[told.shard_ref] = told.name
            else:
                push = frames.read_push(event.body)
                came.add(seen[push.shard_ref])
                await client.send(frames.build_acknowledge(1, push.shard_ref, push.first_offset, push.next_offset))


async def test_shards_of_a_member_that_was_stopped_go_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    """A member whose process was stopped (SIGSTOP) kept its part of a sticky group for as long as it lived.

    Of 20,000 shards the other two of three members got 13,239, and nothing more came.
    """
    monkeypatch.setattr(connections, "MEMBER_PATIENCE_S", 0.6)
    names = {f"s/{number}" for number in range(SHARDS)}
    async with (
        serving(tmp_path) as served,
        served.client() as writer,
        served.client() as stopped,
        served.client() as lively,
    ):
        handles = [await writer.open(name) for name in sorted(names)]
        await join(stopped, group="sticky/g")
        await join(lively, group="sticky/g")
        for handle in handles:
            await writer.append_values(handle, b"x")
        await until_all_came(lively, names, mock_clock)
        said = await stopped.receive_until_closed()
        assert "sent nothing for 0.6 s" in str(decode_error(said[-1].status, said[-1].body))
        assert served.server.statistics.connections_closed == {"silent": 1}


async def test_a_connection_without_members_may_be_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MEMBER_PATIENCE_S", 0.1)
    async with serving(tmp_path) as served, served.client() as reader:
        await join(reader)
        await trio.sleep(0.3)
        await reader.call(Op.PING)
        # One that has left its group may be silent, too.
        await reader.call(Op.UNSUBSCRIBE, messages.UnsubscribeRequest(1))
        await join(reader, group="g")
        await reader.call(Op.UNSUBSCRIBE, messages.UnsubscribeRequest(1))
        await trio.sleep(0.3)
        await reader.call(Op.PING)


async def test_a_client_that_only_receives_shows_that_it_is_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    """A client sent PING only when it received nothing: one with much to work on would have counted as stopped."""
    monkeypatch.setattr(connections, "MEMBER_PATIENCE_S", 1.0)
    async with serving(tmp_path) as served, served.client() as writer:
        handle = await writer.open("s/1")
        async with (
            open_client(served.address, times=SessionTimes(ping_interval_s=0.2)) as client,
            client.subscribe(topic_filter="s/#", start=Start.earliest(), group="g"),
        ):
            for _ in range(30):
                # It comes all the time, and the reader is slow: nothing is taken, nothing acknowledged.
                await writer.append_values(handle, b"x")
                mock_clock.jump(0.1)
                await wait_all_tasks_blocked(0.005)
            assert not served.server.statistics.connections_closed
