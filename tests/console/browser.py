"""A small client of Chromium's DevTools protocol: pages are opened, asked, typed into and looked at."""

from __future__ import annotations

import base64
import json
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import attrs
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_client_stream

from tests.patience import PATIENCE_S

_KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, " ": 32}
_TEXTS = {"Enter": "\r", " ": " "}


# The middle of an element, null while it cannot be pressed there: not yet there, locked, moving, or covered.
_PLACE = """async (selector) => {
  const element = document.querySelector(selector);
  if (element === null || element.disabled) return null;
  element.scrollIntoView({ block: "center" });
  const box = () => element.getBoundingClientRect();
  const before = box();
  await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
  const after = box();
  if (before.x !== after.x || before.y !== after.y || before.width !== after.width) return null;
  const [x, y] = [after.x + after.width / 2, after.y + after.height / 2];
  return element.contains(document.elementFromPoint(x, y)) ? [x, y] : null;
}"""


class PageError(AssertionError):
    """A script of the test failed in the page."""


class Browser:
    """A headless browser. Sessions of its pages share one WebSocket."""

    def __init__(self, websocket: WebSocketConnection) -> None:
        self._websocket = websocket
        self._last_id = 0
        self._replies: dict[int, dict[str, Any]] = {}
        self._arrived = trio.lowlevel.ParkingLot()
        self._pages: dict[str, Page] = {}
        self._contexts: list[str] = []

    async def receive(self) -> None:
        """Take what comes until the browser is gone."""
        try:
            while True:
                message = json.loads(await self._websocket.get_message())
                if "id" in message:
                    self._replies[message["id"]] = message
                elif page := self._pages.get(message.get("sessionId", "")):
                    page.take(message["method"], message["params"])
                self._arrived.unpark_all()
        except ConnectionClosed:
            return

    async def call(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        self._last_id += 1
        number = self._last_id
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        await self._websocket.send_message(json.dumps(message))
        with trio.fail_after(PATIENCE_S):
            while number not in self._replies:
                await self._arrived.park()
        reply = self._replies.pop(number)
        if "error" in reply:
            raise PageError(f"{method}: {reply['error']}")
        return reply["result"]

    async def page(self, url: str, *, width: int = 1280, height: int = 800, dark: bool = False) -> Page:
        """Open a page in a context of its own, with nothing stored."""
        context = (await self.call("Target.createBrowserContext"))["browserContextId"]
        self._contexts.append(context)
        target = (await self.call("Target.createTarget", url="about:blank", browserContextId=context))["targetId"]
        session = (await self.call("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        page = Page(self, session)
        self._pages[session] = page
        for domain in ("Page", "Runtime", "Log"):
            await page.call(f"{domain}.enable")
        await page.size(width, height)
        await page.prefer(dark=dark)
        await page.open(url)
        return page

    async def close_pages(self) -> None:
        """Close all that this connection has opened."""
        for context in self._contexts:
            await self.call("Target.disposeBrowserContext", browserContextId=context)
        self._contexts.clear()


class Page:
    """One page.

    Attributes:
        errors: What its scripts threw and its console reports, refused resources among it.
    """

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.errors: list[str] = []

    def take(self, method: str, parameters: dict[str, Any]) -> None:
        """An event."""
        if method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")

    async def call(self, method: str, **parameters: Any) -> Any:
        return await self._browser.call(method, self._session, **parameters)

    async def open(self, url: str) -> None:
        """Go to an address, and wait until its scripts are loaded."""
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    async def size(self, width: int, height: int, *, phone: bool = False) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone
        )

    async def prefer(self, *, dark: bool = False) -> None:
        """What the system of the reader prefers."""
        scheme = "dark" if dark else "light"
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    async def ask(self, expression: str) -> Any:
        """The value of an expression in the page; a promise is waited for."""
        reply = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in reply:
            raise PageError(f"{expression}: {reply['exceptionDetails']}")
        return reply["result"].get("value")

    async def until(self, expression: str, *, patience_s: float = PATIENCE_S) -> Any:
        """Wait until an expression is true; gives its value."""
        value = None
        with trio.move_on_after(patience_s):
            while True:
                value = await self.ask(expression)
                if value:
                    return value
                await trio.sleep(0.03)
        raise PageError(f"never true: {expression}; the page says: {await self.text()} {self.errors}")

    async def text(self) -> str:
        """What the page shows."""
        return str(await self.ask("document.body?.innerText ?? ''"))

    async def says(self, text: str) -> None:
        """Wait until the page shows a text."""
        await self.until(f"document.body?.innerText.includes({json.dumps(text)})")

    async def click(self, selector: str) -> None:
        """Press where an element is, as a mouse would: once it can be pressed, and stays where it is."""
        box = await self.until(f"({_PLACE})({json.dumps(selector)})")
        for kind in ("mousePressed", "mouseReleased"):
            await self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    async def press(self, key: str, *, shift: bool = False) -> None:
        """Press a key."""
        code = _KEYS.get(key, ord(key.upper()) if len(key) == 1 else 0)
        shared = {"key": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        text = _TEXTS.get(key, key if len(key) == 1 else "")
        await self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **shared)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **shared)

    async def type(self, text: str) -> None:
        """Type where the focus is, in place of what is selected."""
        await self.call("Input.insertText", text=text)

    async def fill(self, selector: str, text: str) -> None:
        await self.until(f"document.querySelector({json.dumps(selector)}) !== null")
        await self.ask(f"(e => {{ e.focus(); e.select(); }})(document.querySelector({json.dumps(selector)}))")
        await self.type(text)

    async def focused(self) -> str:
        """What has the focus, in a few words."""
        return str(await self.ask("(e => e.id || e.textContent.trim() || e.name)(document.activeElement)"))

    async def too_wide(self) -> list[str]:
        """What reaches beyond the right edge of the window; nothing if the page does not scroll sideways."""
        if await self.ask("document.documentElement.scrollWidth <= document.documentElement.clientWidth"):
            return []
        found: list[str] = await self.ask(
            "[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1)"
            ".map(e => e.outerHTML.slice(0, 120))"
        )
        return found or ["the page"]

    async def screenshot(self, path: Path) -> None:
        image = await self.call("Page.captureScreenshot", format="png")
        await trio.Path(path).write_bytes(base64.b64decode(image["data"]))


@attrs.frozen
class Chromium:
    """A running browser process.

    Attributes:
        port: The port of its remote control, on this machine.
        path: Of the WebSocket there.
    """

    port: int
    path: str

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Browser]:
        """A connection for one test; at its end its pages are closed, with all that they have stored."""
        # trio-websocket leaves the stream open when the browser closes.
        async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream, trio.open_nursery() as nursery:
            websocket = await wrap_client_stream(nursery, stream, "127.0.0.1", self.path, max_message_size=64 << 20)
            browser = Browser(websocket)
            nursery.start_soon(browser.receive)
            yield browser
            await browser.close_pages()
            nursery.cancel_scope.cancel()


@contextmanager
def chromium(program: str, profile: Path) -> Iterator[Chromium]:
    """A browser process for the length of the block."""
    arguments = [
        program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
        "--lang=en-US", "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank",
    ]  # fmt: skip
    process = subprocess.Popen(
        arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield _address(process, profile / "DevToolsActivePort")
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _address(process: subprocess.Popen[bytes], file: Path) -> Chromium:
    give_up_at = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up_at:
        assert process.poll() is None, f"chromium ended with {process.returncode}"
        # It writes the port first and the path then.
        lines = file.read_text().splitlines() if file.exists() else []
        if len(lines) == 2:
            return Chromium(int(lines[0]), lines[1])
        time.sleep(0.02)
    raise AssertionError("chromium does not say where it listens")
