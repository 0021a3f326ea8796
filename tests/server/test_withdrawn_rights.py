"""What is under way when a right or a credential is taken away: it gives nothing that comes later."""

from __future__ import annotations

from pathlib import Path

import pytest

from journal.protocol import Op, decode_error, frames, messages
from journal.protocol.errors import AuthenticationError, NotAuthorizedError
from tests.server.json_protocol.talking import RefusedError, talking
from tests.server.people import PASSWORD, TOKEN, rule, write_people
from tests.server.serving import batch_of, serving, small_config
from tests.server.test_access import take_over

LONG_MS = 30_000


async def test_a_fetch_that_waits_gives_no_record_that_came_after_the_right_to_it_had_gone(tmp_path: Path) -> None:
    people = write_people(tmp_path)
    async with (
        serving(tmp_path, **people) as served,
        served.client(user="admin", password=PASSWORD) as admin,
        served.client(token=TOKEN) as robot,
    ):
        handle, read = await admin.open("x"), await robot.open("x")
        correlation = robot.next_correlation()
        await robot.send(frames.build_fetch(correlation, read, 0, 1 << 20, LONG_MS))
        await robot.call(Op.PING)
        take_over(served, small_config(**people, access__rules=(rule("#", principal="admin"),)))
        await admin.append_values(handle, b"secret")
        with pytest.raises(NotAuthorizedError, match="may not read 'x'"):
            await robot.fetched(correlation)


async def test_a_fetch_that_waits_ends_with_the_credentials(tmp_path: Path) -> None:
    people = write_people(tmp_path)
    async with (
        serving(tmp_path, **people) as served,
        served.client(user="admin", password=PASSWORD) as admin,
        served.client(token=TOKEN) as robot,
    ):
        handle, read = await admin.open("x"), await robot.open("x")
        await robot.send(frames.build_fetch(robot.next_correlation(), read, 0, 1 << 20, LONG_MS))
        await robot.call(Op.PING)
        Path(people["access__tokens_file"]).write_text("")
        take_over(served, small_config(**people))
        await admin.append_values(handle, b"secret")
        received = await robot.receive_until_closed()
        assert not any(b"secret" in frame.body for frame in received)
        assert any(isinstance(decode_error(each.status, each.body), AuthenticationError) for each in received)


async def test_whose_credentials_are_gone_is_pushed_nothing_more_while_its_connection_ends(tmp_path: Path) -> None:
    """A peer that reads nothing keeps its connection for a moment, until the error is sent."""
    people = write_people(tmp_path)
    async with (
        serving(tmp_path, socket_buffer_bytes=4096, **people) as served,
        served.client(user="admin", password=PASSWORD) as admin,
        served.client(token=TOKEN, receive_buffer_bytes=4096) as robot,
    ):
        handle = await admin.open("x")
        await robot.call(Op.SUBSCRIBE, messages.SubscribeRequest(1, credit_bytes=1 << 24, start="latest", shard="x"))
        await admin.append(handle, batch_of(b"public" * 50_000))
        Path(people["access__tokens_file"]).write_text("")
        take_over(served, small_config(**people))
        await admin.append_values(handle, b"secret")
        received = await robot.receive_until_closed()
        assert not any(b"secret" in frame.body for frame in received)
        last = received[-1]
        assert isinstance(decode_error(last.status, last.body), AuthenticationError)


async def test_a_client_whose_rights_were_removed_gets_one_error_however_often_the_rules_are_read_again(
    tmp_path: Path,
) -> None:
    people = write_people(tmp_path)
    async with serving(tmp_path, **people) as served, served.client(token=TOKEN) as robot:
        Path(people["access__tokens_file"]).write_text("")
        for _ in range(3):
            take_over(served, small_config(**people))
        (told,) = await robot.receive_until_closed()
        assert isinstance(decode_error(told.status, told.body), AuthenticationError)


async def test_a_read_that_waits_in_json_ends_likewise(tmp_path: Path) -> None:
    people = write_people(tmp_path)
    async with (
        serving(tmp_path, **people) as served,
        talking(served, user="admin", password=PASSWORD) as admin,
        talking(served, token=TOKEN) as robot,
        talking(served, user="anna", password=PASSWORD) as anna,
    ):
        await admin.append("x", "known", create={})
        waiting = [
            await each.start("read", shard="x", start={"at": "latest"}, wait_ms=LONG_MS) for each in (robot, anna)
        ]
        for each in (robot, anna):
            await each.call("ping")
        Path(people["access__tokens_file"]).write_text("")
        take_over(served, small_config(**people, access__rules=(rule("#", principal="admin"),)))
        await admin.append("x", "secret")
        with pytest.raises(RefusedError, match="may not read 'x'"):
            await anna.result(waiting[1])
        received = await robot.receive_until_closed()
        assert "secret" not in str(received)
        assert "authentication_failed" in [each["error"]["code"] for each in received]
