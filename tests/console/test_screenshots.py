"""The pictures in README.md and docs/console.md, taken of a node at work: `make screenshots` writes them."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
import trio

from broker_adapter import open_adapter
from tests.cache_queue.queues import filled, told
from tests.console.browser import Browser, Page
from tests.server.serving import FILE, MEMORY, Served, batch_of

LARGEST_BYTES = 150_000
_TOPICS = {
    "plant/line1/energy": 9,
    "plant/line1/temperature": 40,
    "plant/line1/vibration": 160,
    "plant/line2/camera/events": 3,
    "plant/line2/temperature": 25,
    "plant/line2/vibration": 120,
    "site/weather": 1,
}
_IN_MEMORY = ("plant/line1/vibration", "plant/line2/vibration")
_TICK_S = 0.25
_OUTAGE = "https://archive.example.org/rows cannot be reached: Connection refused"
# More than is drained while the pictures are taken.
WAITING = 12_000


@pytest.mark.slow("draws curves of many samples")
async def test_screenshots(served: Served, browser: Browser, tmp_path: Path) -> None:
    wanted = os.environ.get("SCREENSHOTS", "")
    folder, samples = (Path(wanted), 13) if wanted else (tmp_path, 2)
    folder.mkdir(parents=True, exist_ok=True)
    await prepare(served)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(work, served)
        views = {
            "console-shards": await look(browser, served, "#/shards", 1180, 590),
            "console-shard": await look(browser, served, "#/shard?name=plant/line1/temperature", 1180, 944, dark=True),
            "console-queues": await look(browser, served, "#/queues", 1180, 640),
            "console-node": await look(browser, served, "#/node", 1180, 740, dark=True),
            "console-tail": await look(browser, served, "#/tail?filter=plant/%2B/temperature", 1180, 640, dark=True),
            "console-phone": await look(browser, served, "#/shards", 390, 780),
        }
        for name, page in views.items():
            if "tail" in name:
                await page.until("document.querySelectorAll('.records li').length > 30")
            else:
                drawn = "document.querySelector('main .spark polyline')?.getAttribute('points').split(' ').length"
                await page.until(f"{drawn} >= {samples}", patience_s=40)
            assert await page.too_wide() == []
            assert page.errors == []
            await page.screenshot(folder / f"{name}.png")
            assert 5_000 < (folder / f"{name}.png").stat().st_size < LARGEST_BYTES
        nursery.cancel_scope.cancel()


async def look(browser: Browser, served: Served, place: str, width: int, height: int, *, dark: bool = False) -> Page:
    url = f"http://127.0.0.1:{served.ports['http']}/{place}"
    return await browser.page(url, width=width, height=height, dark=dark)


async def prepare(served: Served) -> None:
    async with served.client() as client:
        for name in _TOPICS:
            handle = await client.open(name)
            await client.append_values(handle, *[b"21.5"] * 300)
        # Segments of every kind: sealed in Parquet, a stretch in memory, and the log that goes on.
        handle = await client.open("plant/line1/temperature")
        for count in (500, 350):
            await served.engine.convert("plant/line1/temperature")
            await client.append_values(handle, *[b"21.5"] * count)
        await served.engine.set_mode("plant/line1/temperature", MEMORY.mode)
        await client.append_values(handle, *[b"21.5"] * 250)
        await served.engine.set_mode("plant/line1/temperature", FILE.mode)
        for name in _IN_MEMORY:
            await served.engine.set_mode(name, MEMORY.mode)
    async with open_adapter(f"journal://127.0.0.1:{served.ports['tcp']}") as adapter:
        for queue, waiting in (("warehouse", WAITING), ("cloud-archive", 900)):
            await filled(adapter, *[b'{"value": 21.5}'] * waiting, queue=queue)
    await served.engine.commit_cursor("plant/line1/temperature", "report", 700, None)
    await served.engine.commit_cursor("plant/line1/temperature", "dashboard", 1_040, None)


async def work(served: Served) -> None:
    """Append at rates that swing, and drain one of the queues."""
    drained = 0
    async with (
        served.client() as client,
        open_adapter(f"journal://127.0.0.1:{served.ports['tcp']}") as adapter,
    ):
        handles = {name: await client.open(name) for name in _TOPICS}
        for tick in range(10_000):
            for place, (name, rate) in enumerate(_TOPICS.items()):
                swing = 1 + 0.6 * math.sin(tick / (7 + 3 * place) + place)
                count = max(1 if tick % 4 == 0 else 0, round(rate * swing * _TICK_S))
                values = [b'{"value": %.2f, "unit": "C"}' % (20 + swing + at / 10) for at in range(count)]
                if values:
                    await client.append(handles[name], batch_of(*values, timestamp_us=served.engine.now_us()))
            drained = min(WAITING, drained + 60)
            await told(adapter, "ok", done_offset=drained, queue="warehouse")
            await told(adapter, "down", reason=_OUTAGE, queue="cloud-archive")
            await trio.sleep(_TICK_S)
