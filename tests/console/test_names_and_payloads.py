"""Any client can choose names and payloads: in the console they are text, whatever they contain."""

from __future__ import annotations

import json

import pytest

from journal.protocol import Op, frames
from journal.protocol.messages import HelloRequest
from tests.console.browser import Browser
from tests.console.places import fill, url
from tests.server.serving import RawClient, Served

MARKUP = "<img src=x onerror=window.hit=1>"


@pytest.mark.slow("drives a browser")
async def test_topics_and_payloads_are_text(served: Served, browser: Browser) -> None:
    name = "plant/<img src=x onerror=alert(1)>/<script>window.hit=1</script>"
    payload = b"<script>window.hit=1</script><img src=x onerror='window.hit=1'>"
    await fill(served, name, payload)
    await fill(served, f"$queue/{MARKUP}", b"1")
    await served.engine.commit_cursor(name, MARKUP, 0, None)
    page = await browser.page(url(served))
    await page.says(name)
    await page.click("tbody a")
    await page.until(f"document.querySelector('h1').textContent === {json.dumps(name)}")
    await page.says("Next offset")
    await page.open(url(served, "#/tail?from=earliest&filter=%23"))
    await page.says(payload.decode())
    await page.open(url(served, "#/cursors"))
    await page.until(f"document.querySelector('tbody td:nth-child(2)')?.textContent === {json.dumps(MARKUP)}")
    await page.click("tbody button")
    await page.says(f"Delete cursor {MARKUP}?")
    await page.press("Escape")
    await page.until("document.querySelector('dialog') === null")
    await page.open(url(served, "#/queues"))
    await page.until(f"document.querySelector('.queue h2')?.textContent === {json.dumps(MARKUP)}")
    async with served.stream() as stream:
        await RawClient(stream).call(Op.HELLO, HelloRequest(frames.PROTOCOL_VERSION, MARKUP, None))
        await page.open(url(served, "#/node"))
        await page.says(MARKUP)
    # What the node says of a name that came in the address.
    await page.open(url(served, "#/shard?name=%3Cb%3E%3Cimg%20src%3Dx%20onerror%3Dwindow.hit%3D1%3E"))
    await page.until("document.querySelector('.notice.bad:not([hidden])')?.textContent.includes('<b><img')")
    assert await page.ask("document.title") == "<b><img src=x onerror=window.hit=1> · Journal console"
    assert await page.ask("window.hit") is None
    assert await page.ask("document.querySelectorAll('main script, main img, main b').length") == 0
    assert [error for error in page.errors if "status of 404" not in error] == []
    # And if some line did make markup of a text, the browser would not take it.
    refused = await page.ask("(() => { try { document.body.innerHTML = '<b>'; } catch (e) { return e.name; } })()")
    assert refused == "TypeError"
