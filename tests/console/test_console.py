"""The console in a real browser, on a real node."""

from __future__ import annotations

import json

from shards.model import Mode, ShardConfig
from tests.console.browser import Browser, Page
from tests.server.serving import MEMORY, Served


def url(served: Served, place: str = "") -> str:
    return f"http://127.0.0.1:{served.ports['http']}/{place}"


async def fill(served: Served, name: str, *values: bytes, config: ShardConfig | None = None) -> None:
    async with served.client() as client:
        handle = await client.open(name, config or ShardConfig())
        await client.append_values(handle, *values)


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


async def test_the_mode_is_switched_after_it_was_confirmed(served: Served, browser: Browser) -> None:
    await fill(served, "plant/a", b"1", b"2")
    shard = served.engine.table.by_name("plant/a")
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


async def test_segments_retention_and_sealing(served: Served, browser: Browser) -> None:
    await fill(served, "plant/a", b"1", b"2")
    page = await browser.page(url(served, "#/shard?name=plant%2Fa"))
    await page.says("active")
    await page.click("#seal")
    await page.click("dialog button[type=submit]")
    await page.until("document.querySelector('section[aria-label=Segments]').innerText.includes('sealed')")
    await page.fill("input[name=max_records]", "1000")
    await page.press("Enter")
    await page.says("Keep less?")
    await page.click("dialog button[type=submit]")
    await page.says("Retention of plant/a is set.")
    assert served.engine.table.by_name("plant/a").config.retention.max_records == 1000
    assert page.errors == []


async def test_a_shard_is_deleted_only_after_the_word_is_typed(served: Served, browser: Browser) -> None:
    await fill(served, "plant/a", b"1")
    page = await browser.page(url(served, "#/shard?name=plant%2Fa"))
    await page.click("#delete")
    await page.until("document.querySelector('dialog button[type=submit]')?.disabled")
    await page.fill("dialog input", "delete")
    await page.click("dialog button[type=submit]")
    await page.says("No shard matches this filter.")
    assert served.engine.table.catalogue.id_of("plant/a") is None


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


async def test_topics_and_payloads_are_text(served: Served, browser: Browser) -> None:
    name = "plant/<img src=x onerror=alert(1)>/<script>window.hit=1</script>"
    payload = b"<script>window.hit=1</script><img src=x onerror='window.hit=1'>"
    await fill(served, name, payload)
    page = await browser.page(url(served))
    await page.says(name)
    await page.click("tbody a")
    await page.until(f"document.querySelector('h1').textContent === {json.dumps(name)}")
    await page.says("Next offset")
    await page.open(url(served, "#/tail?from=earliest&filter=%23"))
    await page.says(payload.decode())
    assert await page.ask("window.hit") is None
    assert await page.ask("document.querySelectorAll('main script, main img').length") == 0
    assert page.errors == []
    # And if some line did make markup of a text, the browser would not take it.
    refused = await page.ask("(() => { try { document.body.innerHTML = '<b>'; } catch (e) { return e.name; } })()")
    assert refused == "TypeError"


async def test_a_queue_drains(served: Served, browser: Browser) -> None:
    await fill(served, "$queue/warehouse", *[b"row"] * 400)
    page = await browser.page(url(served, "#/queues"))
    await page.until("document.querySelector('[data-queue=warehouse]')?.innerText.includes('400')")
    await page.says("0 % of 400 drained")
    await served.engine.control.commit_cursor("$queue/warehouse", "drained", 300, None)
    await page.says("75 % of 400 drained")
    await page.until("document.querySelector('[data-queue=warehouse] progress').value === 0.75")
    await served.engine.control.commit_cursor("$queue/warehouse", "drained", 400, None)
    await page.says("empty")
    assert page.errors == []


async def test_cursors_show_how_far_they_are_behind(served: Served, browser: Browser) -> None:
    await fill(served, "plant/a", *[b"row"] * 40)
    await served.engine.control.commit_cursor("plant/a", "report", 15, None)
    page = await browser.page(url(served, "#/cursors"))
    await page.says("report")
    row = await page.ask("document.querySelector('tbody tr').innerText.replace(/\\s+/g, ' ')")
    assert row.startswith("plant/a report 15 25 0")
    await page.click("tbody button")
    await page.click("dialog button[type=submit]")
    await page.says("There are no cursors.")


async def test_the_node_says_how_it_is(served: Served, browser: Browser) -> None:
    page = await browser.page(url(served, "#/node"))
    await page.until("document.getElementById('health').textContent === 'ready'")
    await page.says(f"http=127.0.0.1:{served.ports['http']}")
    served.server.why_not_ready = lambda: ["the disk is <full>"]  # type: ignore[method-assign]
    await page.says("the disk is <full>")
    await page.until("document.getElementById('health').textContent === 'not ready'")


async def test_everything_fits_a_phone(served: Served, browser: Browser) -> None:
    await fill(served, "plant/" + "a-very-long-level-without-a-break" * 4, *[b"x" * 3_000] * 3)
    await fill(served, "$queue/warehouse-of-the-second-plant", b"1")
    await served.engine.control.commit_cursor("$queue/warehouse-of-the-second-plant", "drained", 0, None)
    page = await browser.page(url(served))
    await page.size(360, 740, phone=True)
    name = "plant%2F" + "a-very-long-level-without-a-break" * 4
    for place, awaited in [
        ("#/shards", "a-very-long-level"),
        (f"#/shard?name={name}", "Switch to memory mode"),
        ("#/queues", "warehouse-of-the-second-plant"),
        ("#/cursors?filter=$queue/%23", "drained"),
        ("#/tail?from=earliest&filter=plant/%23", "xxxx"),
        ("#/node", "Checkpoints"),
    ]:
        await page.open(url(served, place))
        await page.says(awaited)
        assert await page.too_wide() == [], place


async def tab_to(page: Page, wanted: str) -> None:
    for _ in range(40):
        await page.press("Tab")
        if await page.focused() == wanted:
            return
    raise AssertionError(f"{wanted!r} was not reached by the keyboard; the focus is on {await page.focused()!r}")


async def test_the_keyboard_is_enough(served: Served, browser: Browser) -> None:
    await fill(served, "plant/a", b"1")
    page = await browser.page(url(served))
    await page.says("plant/a")
    await page.press("Tab")
    assert await page.focused() == "Skip to content"
    assert await page.ask("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    await page.press("/")
    assert await page.focused() == "filter"
    await tab_to(page, "plant/a")
    await page.press("Enter")
    await page.says("Switch to memory mode")
    assert await page.focused() == "main"
    await tab_to(page, "switch-mode")
    await page.press("Enter")
    await page.until("document.querySelector('dialog[open]') !== null")
    # The focus stays in the dialog, begins at what changes nothing, and comes back.
    assert await page.focused() == "Cancel"
    await page.press("Tab")
    assert await page.focused() == "Switch to memory"
    await page.press("Enter")
    await page.says("plant/a is in memory mode.")
    assert await page.ask("document.querySelector('dialog') === null")


async def test_every_control_has_a_name(served: Served, browser: Browser) -> None:
    await fill(served, "plant/a", b"1")
    await served.engine.control.commit_cursor("plant/a", "report", 0, None)
    page = await browser.page(url(served))
    for place, awaited in [
        ("#/shards", "plant/a"),
        ("#/shard?name=plant/a", "report"),
        ("#/tail", "Tail"),
        ("#/node", "Up for"),
    ]:
        await page.open(url(served, place))
        await page.says(awaited)
        nodes = (await page.call("Accessibility.getFullAXTree"))["nodes"]
        controls = ("button", "link", "textbox", "spinbutton", "combobox", "progressbar", "table", "region")
        nameless = [
            node
            for node in nodes
            if node.get("role", {}).get("value") in controls
            and not node.get("name", {}).get("value")
            and not node["ignored"]
        ]
        assert nameless == []
        roles = {node.get("role", {}).get("value") for node in nodes}
        assert {"main", "banner", "navigation", "heading", "status"} <= roles


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
    assert await page.ask(f"({_LOWEST_CONTRAST})()") >= 4.5
    await page.click("#theme")
    await page.until(f"{ground} === 'rgb(246, 247, 248)'")
    assert await page.ask(f"({_LOWEST_CONTRAST})()") >= 4.5


# Of all pairs of text and ground that the style sheet has.
_LOWEST_CONTRAST = """() => {
  const style = getComputedStyle(document.documentElement);
  const light = (name) => {
    const channels = style.getPropertyValue(name).trim().slice(1).match(/../g).map((each) => parseInt(each, 16) / 255);
    const [r, g, b] = channels.map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const pairs = [["text", "ground"], ["text", "panel"], ["text", "track"], ["faint", "ground"], ["faint", "panel"],
    ["accent", "ground"], ["accent", "panel"], ["on-accent", "accent"], ["good", "good-ground"],
    ["warn", "warn-ground"], ["warn", "panel"], ["bad", "bad-ground"]];
  return Math.min(...pairs.map(([a, b]) => {
    const [x, y] = [light("--" + a), light("--" + b)].sort((p, q) => q - p);
    return (x + 0.05) / (y + 0.05);
  }));
}"""


async def test_a_node_that_answers_no_more_is_told(served: Served, browser: Browser) -> None:
    page = await browser.page(url(served))
    await page.until("document.getElementById('health').textContent === 'ready'")
    # Its port is still open, but nobody accepts: whoever asks waits.
    served.server.stopping.set()
    await page.says("The node does not answer.")
    await page.until("document.getElementById('health').textContent === 'no answer'")
