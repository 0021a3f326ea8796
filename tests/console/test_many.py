"""The console of a node with very many shards: what it asks for, gets and shows stays small."""

from __future__ import annotations

import pytest
import trio

from shards.model import ShardConfig
from tests.console.browser import Browser
from tests.console.places import url
from tests.server.serving import Served

SHARDS = 100_000
AT_ONCE = 500
PAGE = 50
LARGEST_ANSWER_BYTES = 32 * 1024


@pytest.mark.slow("makes 100,000 shards")
async def test_100_000_shards_are_filtered_and_paged_by_the_node(served: Served, browser: Browser) -> None:
    async with trio.open_nursery() as nursery:
        for first in range(AT_ONCE):
            nursery.start_soon(make, served, first)
    page = await browser.page(url(served))
    rows = "document.querySelectorAll('tbody tr').length"
    await page.until(f"{rows} === {PAGE}")
    await page.says("many/000/049")
    await page.says("50 shards on this page")
    await page.click("a[rel=next]")
    await page.says("many/000/099")
    await page.fill("input[name=filter]", "many/+/777")
    await page.press("Enter")
    await page.says("many/049/777")
    assert await page.ask(rows) == PAGE
    await page.click("a[rel=next]")
    await page.says("many/099/777")
    assert await page.ask("document.querySelector('a[rel=next]').hidden")
    await page.fill("input[name=filter]", "many/099/999")
    await page.press("Enter")
    await page.until(f"{rows} === 1")
    await page.open(url(served, "#/cursors"))
    await page.says("None of these 50 shards has a cursor")
    # Counted in answers and elements, which do not hang on how fast this machine is.
    sizes = await page.ask(
        "performance.getEntriesByType('resource').filter(e => e.name.includes('/api/')).map(e => e.encodedBodySize)"
    )
    assert 0 < max(sizes) < LARGEST_ANSWER_BYTES
    assert await page.ask("document.querySelectorAll('*').length") < 2_000
    assert page.errors == []


async def make(served: Served, first: int) -> None:
    for number in range(first, SHARDS, AT_ONCE):
        await served.engine.create_shard(f"many/{number // 1000:03}/{number % 1000:03}", ShardConfig())


@pytest.mark.slow("drives a browser")
async def test_of_a_shard_with_very_many_cursors_some_are_listed(served: Served, browser: Browser) -> None:
    await served.engine.create_shard("plant/a", ShardConfig())
    async with trio.open_nursery() as nursery:
        for number in range(450):
            nursery.start_soon(served.engine.parts.commands.commit_cursor, "plant/a", f"reader-{number:03}", 0, None)
    page = await browser.page(url(served, "#/cursors"))
    await page.says("250 more are not listed")
    assert await page.ask("document.querySelectorAll('tbody tr').length") == 200
    await page.open(url(served, "#/shard?name=plant/a"))
    await page.until("document.querySelectorAll('section[aria-label=Cursors] tbody tr').length === 200")
    await page.says("250 more are not listed")
