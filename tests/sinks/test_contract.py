"""What every kind of sink does, against its real server; what is peculiar to one is tested beside it."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from broker_adapter.sinks import (
    BatchRefusedError,
    DriverFencedError,
    RowsRefusedError,
    SinkUnavailableError,
    Value,
)
from tests.patience import PATIENCE_S
from tests.sinks.proxy import Proxy
from tests.sinks.stage import (
    REFUSED,
    Stage,
    assert_in_order,
    batch_of,
    batches_of,
    bring,
    numbers,
    open_sink,
    row,
    write_window,
)
from tests.steady_clock import SteadyClock

STAGES = sorted(path.stem for path in (Path(__file__).parent / "stages").glob("[a-z]*.py"))

KIB = 1024

VALUES: dict[str, Value] = {
    "nothing": None,
    "true": True,
    "whole number": -7,
    "64 bits": 2**63 - 1,
    "fraction": 0.1,
    "text": 'Grüße \N{SLIGHTLY SMILING FACE}\n\t"quoted" \\ ,;\'',
    "empty text": "",
    "text with NUL": "a\x00b",
    "text that is no Unicode": "\ud800",
    "bytes of text": b"plain",
    "bytes": b"\xff\x00\xfe",
    "nested": {"a": [1, None, {"b": "c"}], "d": True},
    "list": [1, "two", None],
}


@pytest.fixture(params=STAGES)
async def stage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stage]:
    module = importlib.import_module(f"tests.sinks.stages.{request.param}")
    async with module.open_stage(tmp_path) as opened:
        yield opened


def proxy_of(stage: Stage) -> Proxy:
    if stage.proxy is None:
        pytest.skip(f"{stage.kind} has no connections")
    return stage.proxy


async def test_rows_arrive_once_and_in_order(stage: Stage) -> None:
    async with open_sink(stage) as sink:
        await bring(sink, batches_of(5, 20, body="x" * 50))
    assert await numbers(stage) == list(range(100))
    assert (await stage.rows())[41] == row(41, body="x" * 50)


async def test_batches_in_flight_keep_their_order(stage: Stage) -> None:
    async with open_sink(stage) as sink:
        await sink.check()
        await sink.position()
        batches = batches_of(40, 7)
        while batches:
            confirmed = await write_window(sink, batches[: sink.max_in_flight])
            assert confirmed == len(batches[: sink.max_in_flight])
            batches = batches[confirmed:]
    assert await numbers(stage) == list(range(280))


async def test_the_next_driver_continues(stage: Stage) -> None:
    batches = batches_of(4, 10)
    async with open_sink(stage, epoch=1) as first:
        await bring(first, batches[:2])
    async with open_sink(stage, epoch=2) as second:
        await second.check()
        assert await second.position() == (20 if second.keeps_position else None)
        for batch in batches[2:]:
            await second.write(batch)
    assert await numbers(stage) == list(range(40))


async def test_a_batch_as_bridges_make_them(stage: Stage) -> None:
    async with open_sink(stage) as sink:
        await bring(sink, batches_of(1, 500, body="x" * 200))
    assert await numbers(stage) == list(range(500))


@pytest.mark.slow("16 MiB go through each sink")
async def test_sixteen_mebibytes(stage: Stage) -> None:
    async with open_sink(stage) as sink:
        await bring(sink, batches_of(1, 256, body="x" * 64 * KIB))
    rows = await stage.rows()
    assert [each["n"] for each in rows] == list(range(256))
    assert all(each["body"] == "x" * 64 * KIB for each in rows)


async def test_each_kind_of_value_becomes_what_is_documented(stage: Stage) -> None:
    held: list[object] = []
    async with open_sink(stage) as sink:
        await sink.check()
        await sink.position()
        for offset, (name, value) in enumerate(VALUES.items()):
            written = batch_of([row(offset, value=value)], offset)
            if (expected := stage.held(value)) is REFUSED:
                with pytest.raises((BatchRefusedError, RowsRefusedError)):
                    await sink.write(written)
            else:
                await sink.write(written)
                held.append(expected)
            found = [each["value"] for each in await stage.rows()]
            assert found == held, name
            assert [type(each) for each in found] == [type(each) for each in held], name


# Refusals


async def test_one_bad_row_is_found_and_the_others_get_through(stage: Stage) -> None:
    bad = stage.refused()
    if bad is None:
        pytest.skip(f"{stage.kind} refuses no row")
    rows = [row(n) for n in range(10)]
    rows[4] = {**bad, "n": 4}
    async with open_sink(stage) as sink:
        await sink.check()
        await sink.position()
        pending = [batch_of(rows)]
        refused: list[int] = []
        while pending:
            batch = pending.pop(0)
            try:
                with trio.fail_after(PATIENCE_S):
                    await sink.write(batch)
            except RowsRefusedError as error:
                # A crash behind it would lose the row if the position had moved past it.
                assert not sink.keeps_position
                assert all(refusal.reason for refusal in error.refusals)
                refused += [batch.offsets[refusal.index] for refusal in error.refusals]
            except SinkUnavailableError:
                # Some servers refuse by going away; they must not do so for ever.
                await sink.check()
                pending.insert(0, batch)
            except BatchRefusedError as error:
                assert str(error)
                assert error.index in (None, 4 - batch.first_offset)
                if len(batch.rows) == 1:
                    refused += batch.offsets
                else:
                    middle = len(batch.rows) // 2
                    halves = batch.rows[:middle], batch.rows[middle:]
                    starts = batch.first_offset, batch.first_offset + middle
                    pending[:0] = [batch_of(half, start) for half, start in zip(halves, starts, strict=True)]
        assert refused == [4]
        await sink.write(batch_of([row(10)], 10))
    found = [n - (n > 4) for n in await numbers(stage)]
    assert_in_order(found, 10, may_repeat=not sink.keeps_position)


# Outages


@pytest.mark.slow("servers of sinks are stopped and started")
async def test_a_server_that_is_gone_is_an_outage_until_it_is_back(stage: Stage) -> None:
    async with open_sink(stage) as sink:
        await bring(sink, batches_of(1, 5))
        await stage.kill()
        with pytest.raises(SinkUnavailableError, match=stage.address):
            await sink.write(batch_of([row(5)], 5))
        with pytest.raises(SinkUnavailableError, match=stage.address):
            await sink.check()
        await stage.restart()
        await bring(sink, [batch_of([row(5)], 5)])
    assert_in_order(await numbers(stage), 6, may_repeat=not sink.keeps_position)


async def test_a_refused_connection_is_an_outage(stage: Stage) -> None:
    proxy = proxy_of(stage)
    proxy.refuse()
    async with open_sink(stage) as sink:
        with pytest.raises(SinkUnavailableError, match=stage.address):
            await sink.check()
        await proxy.listen()
        await bring(sink, batches_of(1, 5))
    assert await numbers(stage) == list(range(5))


async def test_settings_that_the_server_does_not_accept_are_an_outage_that_says_so(stage: Stage) -> None:
    for wrong in stage.misconfigured().values():
        async with open_sink(stage, **wrong.settings) as sink:
            with pytest.raises(SinkUnavailableError, match=stage.address) as told:
                await sink.check()
            assert told.match(wrong.told)
            secrets = [wrong.settings[name] for name in ("password", "token") if wrong.settings.get(name)]
            assert not any(str(secret) in str(told.value) for secret in secrets)
    async with open_sink(stage) as sink:
        await bring(sink, batches_of(1, 3))
    assert await numbers(stage) == [0, 1, 2]


@pytest.mark.few_cases(4, "waits for a timeout with each sink")
@pytest.mark.parametrize("when", ["check", "write"])
async def test_a_server_that_hangs_is_out(stage: Stage, when: str, steady_clock: SteadyClock) -> None:
    proxy = proxy_of(stage)
    async with open_sink(stage, timeout_s=1) as sink:
        if when == "write":
            await sink.check()
            await sink.position()
        proxy.hang()
        with trio.fail_after(PATIENCE_S):
            with pytest.raises(SinkUnavailableError, match=stage.address):
                await (sink.check() if when == "check" else sink.write(batch_of([row(0)])))
        proxy.pass_all()
        await bring(sink, batches_of(1, 3))
    assert_in_order(await numbers(stage), 3, may_repeat=not sink.keeps_position)


async def test_a_slow_server_is_not_out(stage: Stage) -> None:
    proxy_of(stage).slow_down(0.02)
    async with open_sink(stage) as sink:
        await bring(sink, batches_of(2, 100, body="x" * KIB))
    assert await numbers(stage) == list(range(200))


@pytest.mark.slow("kills servers of sinks")
async def test_a_server_that_is_killed_in_the_middle_loses_nothing(stage: Stage) -> None:
    proxy = proxy_of(stage)
    proxy.slow_down(0.005)
    with trio.fail_after(PATIENCE_S):
        async with open_sink(stage, timeout_s=10) as sink:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(bring, sink, batches_of(30, 20, body="x" * KIB))
                for part_bytes in (100 * KIB, 300 * KIB):
                    await proxy.wait_passed(part_bytes)
                    await stage.kill()
                    await stage.restart()
                proxy.pass_all()
    assert_in_order(await numbers(stage), 600, may_repeat=not sink.keeps_position)


async def test_connections_that_are_cut_in_the_middle_lose_nothing(stage: Stage) -> None:
    proxy = proxy_of(stage)
    with trio.fail_after(PATIENCE_S):
        async with open_sink(stage) as sink:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(bring, sink, batches_of(30, 20, body="x" * KIB))
                for part in range(1, 6):
                    proxy.cut_after(20 * KIB + part)
                    await proxy.wait_passed(part * 80 * KIB)
                proxy.pass_all()
    assert proxy.connection_count > 1
    assert_in_order(await numbers(stage), 600, may_repeat=not sink.keeps_position)


@pytest.mark.slow("starts, stops and kills servers of sinks")
async def test_a_reply_that_is_lost_does_no_harm(stage: Stage) -> None:
    proxy = proxy_of(stage)
    batches = batches_of(3, 10)
    with trio.fail_after(PATIENCE_S):
        async with open_sink(stage) as sink:
            await bring(sink, batches[:1])
            proxy.hold_replies()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(bring, sink, batches[1:])
                arriving = 10 + 10 * min(2, sink.max_in_flight)
                # Where taking them needs a reply on the way (as before COMMIT in a database) they do not get so far.
                # Looking is not cut off in the middle: the libraries that look would leave connections half closed.
                give_up_at = trio.current_time() + 1
                while len(await stage.rows()) < arriving and trio.current_time() < give_up_at:
                    await trio.sleep(0.02)
                proxy.cut()
                proxy.pass_all()
    assert_in_order(await numbers(stage), 30, may_repeat=not sink.keeps_position)


async def test_a_write_that_is_cancelled_leaves_a_sink_that_continues(stage: Stage) -> None:
    proxy = proxy_of(stage)
    batches = batches_of(3, 10)
    async with open_sink(stage) as sink:
        await bring(sink, batches[:1])
        proxy.hang()
        with trio.move_on_after(0.2) as scope:
            await sink.write(batches[1])
        assert scope.cancelled_caught
        proxy.pass_all()
        with trio.fail_after(PATIENCE_S):
            await sink.check()
            position = await sink.position() if sink.keeps_position else 10
            await bring(sink, [batch for batch in batches if batch.next_offset > (position or 0)])
    assert_in_order(await numbers(stage), 30, may_repeat=not sink.keeps_position)


# Positions


async def test_a_new_queue_has_no_position(stage: Stage) -> None:
    async with open_sink(stage, queue_id="another") as another:
        await another.check()
        assert await another.position() is None
    async with open_sink(stage) as sink:
        await bring(sink, batches_of(1, 3))
    async with open_sink(stage, queue_id="another") as another:
        await another.check()
        assert await another.position() is None


async def test_the_position_survives_the_server(stage: Stage) -> None:
    async with open_sink(stage) as sink:
        if not sink.keeps_position:
            pytest.skip(f"{stage.kind} keeps no position")
        await bring(sink, [batch_of([row(0), row(1)], 7)])
        assert await sink.position() == 9
        await stage.kill()
        await stage.restart()
    async with open_sink(stage, epoch=2) as sink:
        await sink.check()
        assert await sink.position() == 9


async def test_a_batch_below_the_position_is_not_taken(stage: Stage) -> None:
    async with open_sink(stage) as sink:
        if not sink.keeps_position:
            pytest.skip(f"{stage.kind} keeps no position")
        await bring(sink, batches_of(2, 5))
        with pytest.raises(SinkUnavailableError):
            await sink.write(batch_of([row(9), row(10)], 9))
        await sink.check()
        assert await sink.position() == 10
        await sink.write(batch_of([row(10)], 10))
    assert await numbers(stage) == list(range(11))


async def test_a_driver_that_was_followed_by_another_does_no_harm(stage: Stage) -> None:
    batches = batches_of(3, 5)
    async with open_sink(stage, epoch=1) as old, open_sink(stage, epoch=2) as new:
        if not old.keeps_position:
            pytest.skip(f"{stage.kind} keeps no position, so it cannot tell drivers apart")
        await bring(old, batches[:1])
        await new.check()
        assert await new.position() == 5
        with pytest.raises(DriverFencedError):
            await old.write(batches[1])
        with pytest.raises(DriverFencedError):
            await old.check()
            await old.position()
        await new.write(batches[1])
        async with open_sink(stage, epoch=1) as late:
            with pytest.raises(DriverFencedError):
                await late.check()
                await late.position()
        async with open_sink(stage, epoch=2) as again:
            await bring(again, batches)
    assert await numbers(stage) == list(range(15))
