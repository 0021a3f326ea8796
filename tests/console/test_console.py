"""The console in a real browser, on a real node."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from broker_adapter import open_adapter
from shards.model import Mode
from tests.cache_queue.queues import filled, told
from tests.console.browser import Browser
from tests.console.places import fill, url
from tests.journal.engines import stop_without_checkpoint
from tests.server.serving import MEMORY, Served, serving


@pytest.mark.slow("drives a browser")
async def test_shards_are_listed_with_rates_and_filtered(served: Served, browser: Browser) -> None:
    await fill(served, "plant/line1/temperature", b"1", b"2", b"3")
    await fill(served, "plant/line2/noise", b"1", config=MEMORY)
    page = await browser.page(url(served))
    await page.says("plant/line1/temperature")
    await page.says("plant/line2/noise")
    rows = await page.ask("[...document.querySelectorAll('tbody tr')].map(r => r.innerText.replace(/\\s+/g, ' '))")
    assert rows[0].startswith("plant/line1/temperature file 3 ")
    assert rows[1].startswith("plant/line2/noise memory 1 ")
    async with served.client() as client:
        handle = await client.open("plant/line1/temperature")
        await client.append_values(handle, *[b"x"] * 500)
        await page.until("/\\b503\\b/.test(document.querySelector('tbody tr').innerText)")
    # The sample with the 500 records was taken: its rate is there as a number and as a line.
    await page.until("parseFloat(document.querySelector('td[data-label=rate]').innerText) > 0")
    await page.until("document.querySelector('.spark polyline').getAttribute('points') !== ''")
    await page.fill("input[name=filter]", "plant/line2/#")
    await page.press("Enter")
    await page.until("document.querySelectorAll('tbody tr').length === 1")
    await page.says("plant/line2/noise")
    await page.fill("input[name=filter]", "plant/#/bad")
    await page.press("Enter")
    await page.says("has '#' elsewhere than as the whole last level")
    assert [error for error in page.errors if "status of 400" not in error] == []


@pytest.mark.slow("drives a browser")
async def test_many_shards_come_a_page_at_a_time(served: Served, browser: Browser) -> None:
    async with served.client() as client:
        for number in range(120):
            await client.open(f"many/{number:03}")
    page = await browser.page(url(served))
    await page.until("document.querySelectorAll('tbody tr').length === 50")
    await page.click("a[rel=next]")
    await page.says("many/099")
    assert "many/049" not in await page.text()
    await page.click("a[rel=next]")
    await page.until("document.querySelectorAll('tbody tr').length === 20")
    assert await page.ask("document.querySelector('a[rel=next]').hidden")


@pytest.mark.slow("drives a browser")
async def test_the_mode_is_switched_after_it_was_confirmed(served: Served, browser: Browser) -> None:
    await fill(served, "plant/a", b"1", b"2")
    shard = served.engine.parts.table.by_name("plant/a")
    page = await browser.page(url(served, "#/shard?name=plant%2Fa"))
    await page.click("#switch-mode")
    await page.says("they are lost when the node stops")
    await page.press("Escape")
    await page.until("document.querySelector('dialog') === null")
    assert shard.config.mode is Mode.FILE
    await page.click("#switch-mode")
    await page.click("dialog button[type=submit]")
    await page.says("plant/a is in memory mode.")
    assert shard.config.mode is Mode.MEMORY
    await page.says("Switch to file mode")


@pytest.mark.slow("drives a browser")
async def test_segments_retention_and_rolling(served: Served, browser: Browser) -> None:
    await fill(served, "plant/a", b"1", b"2")
    page = await browser.page(url(served, "#/shard?name=plant%2Fa"))
    await page.says("active")
    await page.click("#roll")
    await page.click("dialog button[type=submit]")
    await page.until("document.querySelector('section[aria-label=Segments]').innerText.includes('closed')")
    await page.fill("input[name=max_records]", "1000")
    await page.press("Enter")
    await page.says("Keep less?")
    await page.click("dialog button[type=submit]")
    await page.says("Retention of plant/a is set.")
    assert served.engine.parts.table.by_name("plant/a").config.retention.max_records == 1000
    assert page.errors == []


@pytest.mark.slow("drives a browser")
async def test_a_shard_is_deleted_only_after_the_word_is_typed(served: Served, browser: Browser) -> None:
    await fill(served, "plant/a", b"1")
    page = await browser.page(url(served, "#/shard?name=plant%2Fa"))
    await page.click("#delete")
    await page.until("document.querySelector('dialog button[type=submit]')?.disabled")
    await page.fill("dialog input", "delete")
    await page.click("dialog button[type=submit]")
    await page.says("No shard matches this filter.")
    assert served.engine.parts.table.catalogue.id_of("plant/a") is None


@pytest.mark.slow("drives a browser")
async def test_a_filter_is_tailed_paused_and_bounded(served: Served, browser: Browser) -> None:
    await fill(served, "plant/a", b"before")
    page = await browser.page(url(served, "#/tail?filter=plant%2F%23"))
    await page.until("document.getElementById('tail-state').textContent === 'live'")
    async with served.client() as client:
        handle = await client.open("plant/a")
        await client.append_values(handle, b"first", b"\xff\xfe")
        await page.says("first")
        await page.says("base64 //4=")
        assert "before" not in await page.text()
        await page.click("main button[aria-pressed]")
        await page.until("document.getElementById('tail-state').textContent === 'paused'")
        await client.append_values(handle, b"while paused")
        # Far more than the credit: the node keeps what the page has not asked for.
        for _ in range(12):
            await client.append_values(handle, *[b"y" * 4_000] * 25)
        rows = "document.querySelectorAll('.records li').length"
        assert await page.ask(rows) == 2
        await page.click("main button[aria-pressed]")
        await client.append_values(handle, *[b"z"] * 600, b"the last")
        await page.says("the last")
        assert await page.ask(rows) == 500
        await page.says("904 records so far")
    assert page.errors == []


@pytest.mark.slow("drives a browser")
@pytest.mark.smoke
async def test_a_queue_drains(served: Served, browser: Browser) -> None:
    await fill(served, "$queue/warehouse", *[b"row"] * 400)
    page = await browser.page(url(served, "#/queues"))
    await page.until("document.querySelector('[data-queue=warehouse]')?.innerText.includes('400')")
    await page.says("400 records wait")
    await served.engine.commit_cursor("$queue/warehouse", "drained", 300, None)
    await page.says("75 % of 400 drained")
    await page.until("document.querySelector('[data-queue=warehouse] progress').value === 0.75")
    await served.engine.commit_cursor("$queue/warehouse", "drained", 400, None)
    await page.says("empty")
    assert page.errors == []


@pytest.mark.slow("drives a browser")
async def test_records_that_memory_lost_are_shown_nowhere_as_records(tmp_path: Path, browser: Browser) -> None:
    """After a crash a shard in memory mode had over a million records, and so had a queue: offsets were subtracted."""
    async with serving(tmp_path / "data") as served:
        await fill(served, "plant/a", *[b"lost"] * 10, config=MEMORY)
        await fill(served, "$queue/warehouse", *[b"lost"] * 10, config=MEMORY)
        await served.engine.commit_cursor("$queue/warehouse", "drained", 4, None)
        stop_without_checkpoint(served.engine)
    async with serving(tmp_path / "data") as served:
        await fill(served, "plant/a", *[b"kept"] * 7)
        await fill(served, "$queue/warehouse", *[b"kept"] * 3)
        shard = served.engine.parts.table.by_name("plant/a")
        assert shard.next_offset > 1 << 20
        page = await browser.page(url(served, "#/shards?filter=plant/%23"))
        await page.says("plant/a")
        row = await page.ask("document.querySelector('tbody tr').innerText.replace(/\\s+/g, ' ')")
        assert row.startswith("plant/a memory 7 ")
        await page.open(url(served, "#/queues"))
        await page.says("3 records wait")
        await page.open(url(served, "#/shard?name=plant%2Fa"))
        facts = "document.querySelector('section[aria-label=Numbers]').innerText.replace(/\\s+/g, ' ')"
        await page.until(f"{facts}.includes('Records 7 ')")
        assert page.errors == []


@pytest.mark.slow("starts a browser")
async def test_the_rules_of_brokers_are_shown_and_follow_each_change(served: Served, browser: Browser) -> None:
    page = await browser.page(url(served, "#/rules"))
    await page.says("No rules are stored in this node")
    table = {"name": "warehouse", "topics": ["plant/#"], "sink": {"type": "http", "url": "(not shown)"}}
    told = {
        "version": 1,
        "applied_us": 1_700_000_000_000_000,
        "applied_by": "anna@plant-1",
        "changes": ["a bridge more"],
    }
    await fill(served, "$mqtt/rules", msgspec.json.encode({**told, "rules": {"bridge": [table]}}))
    await page.says("by anna@plant-1")
    bridges = "document.querySelector('[data-rules=bridge]')?.innerText.replace(/\\s+/g, ' ')"
    assert (
        await page.ask(bridges) == 'Bridges name warehouse topics ["plant/#"] sink {"type":"http","url":"(not shown)"}'
    )
    changed = {**told, "version": 2, "changes": ["<b>a bridge less</b>"], "rules": {"broker": {"offline": False}}}
    await fill(served, "$mqtt/rules", msgspec.json.encode(changed))
    await page.says("version 2")
    assert await page.ask(bridges) is None
    await page.says("<b>a bridge less</b>")
    await page.says("a bridge more")
    assert [error for error in page.errors if "status of 404" not in error] == []


@pytest.mark.slow("starts a browser")
async def test_a_queue_says_first_how_its_sink_is_and_why(served: Served, browser: Browser) -> None:
    """One whose sink was out was shown as `0 % of 400 drained`, one that kept up flipped between that and `empty`."""
    progress = "document.querySelector('[data-queue=plant] progress').hidden"
    async with open_adapter(f"journal://127.0.0.1:{served.ports['tcp']}") as adapter:
        await filled(adapter, *[b"row"] * 400)
        await told(adapter, "down", reason="http://sink: Connection refused")
        page = await browser.page(url(served, "#/queues"))
        await page.says("sink is out")
        await page.says("by broker-1 · http://sink: Connection refused · next attempt at")
        await page.says("400 records wait")
        assert await page.ask(progress) is True
        await told(adapter, "ok", done_offset=20)
        await page.says("delivering")
        await page.says("5 % of 400 drained")
        await told(adapter, "ok", done_offset=400)
        await page.says("keeps up")
        assert await page.ask(progress) is True
        assert "drained" not in await page.ask("document.querySelector('[data-queue=plant] .head').innerText")
        await told(adapter, "ok", done_offset=400, age_s=60)
        await page.says("no bridge drives it")
        state = "document.querySelector('[data-queue=plant]').dataset.state"
        assert await page.ask(state) == "unused", "an empty queue without a driver is no alarm"
        await filled(adapter, b"row")
        await page.until(f"{state} === 'not driven'")
    assert page.errors == []


@pytest.mark.slow("drives a browser")
async def test_cursors_show_how_far_they_are_behind(served: Served, browser: Browser) -> None:
    await fill(served, "plant/a", *[b"row"] * 40)
    await served.engine.commit_cursor("plant/a", "report", 15, None)
    page = await browser.page(url(served, "#/cursors"))
    await page.says("report")
    row = await page.ask("document.querySelector('tbody tr').innerText.replace(/\\s+/g, ' ')")
    assert row.startswith("plant/a report 15 25 0")
    await page.click("tbody button")
    await page.click("dialog button[type=submit]")
    await page.says("There are no cursors.")


@pytest.mark.slow("starts a browser")
async def test_the_node_says_how_it_is(served: Served, browser: Browser) -> None:
    page = await browser.page(url(served, "#/node"))
    await page.until("document.getElementById('health').textContent === 'ready'")
    await page.says(f"http=127.0.0.1:{served.ports['http']}")
    served.server.why_not_ready = lambda: ["the disk is <full>"]  # type: ignore[method-assign]
    await page.says("the disk is <full>")
    await page.until("document.getElementById('health').textContent === 'not ready'")


@pytest.mark.slow("drives a browser")
async def test_dark_and_light(served: Served, browser: Browser) -> None:
    page = await browser.page(url(served), dark=True)
    ground = "getComputedStyle(document.body).backgroundColor"
    await page.until(f"{ground} === 'rgb(15, 21, 25)'")
    await page.prefer(dark=False)
    await page.until(f"{ground} === 'rgb(246, 247, 248)'")
    await page.click("#theme")
    await page.until(f"{ground} === 'rgb(15, 21, 25)'")
    await page.call("Page.reload")
    await page.says("Theme: dark")
    await page.until(f"{ground} === 'rgb(15, 21, 25)'")
    assert await page.ask(f"({_LOWEST_CONTRAST})({_TEXTS})") >= 4.5
    assert await page.ask(f"({_LOWEST_CONTRAST})({_EDGES})") >= 3
    await page.click("#theme")
    await page.until(f"{ground} === 'rgb(246, 247, 248)'")
    assert await page.ask(f"({_LOWEST_CONTRAST})({_TEXTS})") >= 4.5
    assert await page.ask(f"({_LOWEST_CONTRAST})({_EDGES})") >= 3


# Of all pairs of text and ground that the style sheet has.
_TEXTS = """[["text", "ground"], ["text", "panel"], ["text", "track"], ["faint", "ground"], ["faint", "panel"],
  ["accent", "ground"], ["accent", "panel"], ["on-accent", "accent"], ["good", "good-ground"], ["warn", "warn-ground"],
  ["warn", "panel"], ["bad", "bad-ground"], ["ground", "text"]]"""
# And of what is no text: the edges of controls, the drawings.
_EDGES = """[["edge", "ground"], ["edge", "panel"], ["memory", "panel"], ["log", "panel"], ["parquet", "panel"]]"""
_LOWEST_CONTRAST = """(pairs) => {
  const style = getComputedStyle(document.documentElement);
  const light = (name) => {
    const channels = style.getPropertyValue(name).trim().slice(1).match(/../g).map((each) => parseInt(each, 16) / 255);
    const [r, g, b] = channels.map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  return Math.min(...pairs.map(([a, b]) => {
    const [x, y] = [light("--" + a), light("--" + b)].sort((p, q) => q - p);
    return (x + 0.05) / (y + 0.05);
  }));
}"""
