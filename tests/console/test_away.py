"""A node that goes away and comes back, as the console shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.console.browser import Browser
from tests.console.places import fill, url
from tests.server.serving import Served, serving


@pytest.mark.slow("waits until the page gives up")
async def test_a_node_that_answers_no_more_is_reported(served: Served, browser: Browser) -> None:
    page = await browser.page(url(served))
    await page.until("document.getElementById('health').textContent === 'ready'")
    # Its port is still open, but no connection is accepted: requests wait.
    served.server.stopping.set()
    await page.says("The node does not answer.")
    await page.until("document.getElementById('health').textContent === 'no answer'")


@pytest.mark.slow("waits until the page tries again")
async def test_a_node_that_comes_back_is_seen_and_looked_at_on(tmp_path: Path, browser: Browser) -> None:
    async with serving(tmp_path) as served:
        await fill(served, "plant/a", b"1", b"2")
        ports = served.ports
        page = await browser.page(url(served))
        tail = await browser.page(url(served, "#/tail?filter=plant/%23"))
        await page.says("plant/a")
        await tail.until("document.getElementById('tail-state').textContent === 'live'")
        await fill(served, "plant/a", b"before it went")
        await tail.says("before it went")
    await page.says("The node does not answer. The page shows its last answer.")
    await page.until("document.getElementById('health').textContent === 'no answer'")
    # What was known stays.
    await page.says("plant/a")
    await tail.until("document.getElementById('tail-state').textContent === 'waiting'")
    assert await tail.ask("document.querySelector('main button[aria-pressed]').disabled")
    async with serving(tmp_path, ports=ports) as served:
        await page.until("document.getElementById('health').textContent === 'ready'")
        await page.until("document.querySelector('.notice:not([hidden])') === null")
        await tail.until("document.getElementById('tail-state').textContent === 'live'")
        await fill(served, "plant/a", b"after it came back")
        await page.until("/\\b4\\b/.test(document.querySelector('tbody tr').innerText)")
        await tail.says("after it came back")
        assert await tail.ask("document.querySelector('.records .event').textContent") == (
            "The connection was lost. Records that arrive until it is back are not shown."
        )
        # A rate is of what was seen in two looks: no gap makes it negative, no old sample stands in the way.
        await page.until("parseFloat(document.querySelector('td[data-label=rate]').innerText) >= 0")
