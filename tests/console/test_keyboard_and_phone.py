"""The console without a mouse, and on a phone."""

from __future__ import annotations

import pytest

from tests.console.browser import Browser, Page
from tests.console.places import fill, url
from tests.server.serving import Served


async def tab_to(page: Page, wanted: str) -> None:
    for _ in range(40):
        await page.press("Tab")
        if await page.focused() == wanted:
            return
    raise AssertionError(f"{wanted!r} was not reached by the keyboard; the focus is on {await page.focused()!r}")


@pytest.mark.slow("drives a browser")
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
    await page.press("Escape")
    await page.until("document.querySelector('dialog') === null")
    assert await page.focused() == "switch-mode"
    await page.press("Enter")
    await page.until("document.querySelector('dialog[open]') !== null")
    await page.press("Tab")
    assert await page.focused() == "Switch to memory"
    await page.press("Enter")
    await page.says("plant/a is in memory mode.")
    assert await page.ask("document.querySelector('dialog') === null")


@pytest.mark.slow("starts a browser")
async def test_tab_reaches_every_control_in_order_and_shows_where_it_is(served: Served, browser: Browser) -> None:
    await fill(served, "plant/a", b"1")
    await served.engine.commit_cursor("plant/a", "report", 0, None)
    page = await browser.page(url(served))
    for place, awaited in [
        ("#/shards", "plant/a"),
        ("#/shard?name=plant/a", "Switch to memory mode"),
        ("#/cursors", "report"),
        ("#/tail?filter=plant/%23", "records so far"),
        ("#/node", "Up for"),
    ]:
        await page.open(url(served, place))
        if "tail" in place:
            await page.until("document.getElementById('tail-state')?.textContent === 'live'")
            await fill(served, "plant/a", b"2")
        await page.says(awaited)
        there = await page.ask(f"{_CONTROLS}.length")
        seen: list[int] = []
        while len(seen) < there:
            await page.press("Tab")
            if await page.ask("document.activeElement === document.body"):
                # Once round: from here it would go to the browser's own controls.
                continue
            at, is_shown = await page.ask(
                f"[{_CONTROLS}.indexOf(document.activeElement),"
                "(s => s.outlineStyle === 'solid' && parseFloat(s.outlineWidth) >= 2)"
                "(getComputedStyle(document.activeElement))]"
            )
            assert is_shown, (place, await page.focused())
            seen.append(at)
        start = seen.index(0)
        assert seen[start:] + seen[:start] == list(range(there)), place


_CONTROLS = (
    "[...document.querySelectorAll('a[href], button, input, select, [tabindex=\"0\"]')]"
    ".filter(e => e.checkVisibility() && !e.disabled)"
)


@pytest.mark.slow("drives a browser")
async def test_every_control_has_a_name(served: Served, browser: Browser) -> None:
    await fill(served, "plant/a", b"1")
    await served.engine.commit_cursor("plant/a", "report", 0, None)
    page = await browser.page(url(served))
    for place, awaited in [
        ("#/shards", "plant/a"),
        ("#/shard?name=plant/a", "report"),
        ("#/tail", "Start"),
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


@pytest.mark.slow("starts a browser")
async def test_everything_fits_a_phone(served: Served, browser: Browser) -> None:
    await fill(served, "plant/" + "a-very-long-level-without-a-break" * 4, *[b"x" * 3_000] * 3)
    await fill(served, "$queue/warehouse-of-the-second-plant", b"1")
    await served.engine.commit_cursor("$queue/warehouse-of-the-second-plant", "drained", 0, None)
    page = await browser.page(url(served))
    await page.size(390, 780, phone=True)
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
        assert await page.ask(_TOO_SMALL) == [], place
    await page.open(url(served, f"#/shard?name={name}"))
    for button in ("#switch-mode", "#delete"):
        await page.click(button)
        await page.until("document.querySelector('dialog[open]') !== null")
        assert await page.too_wide() == []
        assert await page.ask(_TOO_SMALL) == []
        await page.press("Escape")
        await page.until("document.querySelector('dialog') === null")
    # The narrowest that is still sold.
    await page.size(320, 640, phone=True)
    for place in ("#/shards", f"#/shard?name={name}", "#/queues", "#/node"):
        await page.open(url(served, place))
        await page.until("document.querySelector('main .spark polyline') !== null")
        assert await page.too_wide() == [], place


_TOO_SMALL = """[...document.querySelectorAll('a[href], button, input, select')]
  .filter((e) => e.checkVisibility())
  .map((e) => [e.outerHTML.slice(0, 100), e.getBoundingClientRect()])
  .filter(([, box]) => Math.round(box.width) < 44 || Math.round(box.height) < 44)
  .map(([what, box]) => `${what} ${box.width} x ${box.height}`)"""
