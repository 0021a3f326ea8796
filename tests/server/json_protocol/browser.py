"""A headless Chromium that opens one page, and what that page writes to its console.

The page itself brings its lines to the server that it came from, so nothing drives the browser from outside.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from functools import partial
from pathlib import Path

import h11
import trio

from tests.patience import PATIENCE_S

CHROMIUM = shutil.which("chromium")

_PAGE = """<!doctype html><meta charset="utf-8"><title>test</title><script type="module">
let told = Promise.resolve();
// One after another: requests that are sent at the same time arrive in any order.
const tell = (line) => {{ told = told.then(() => fetch("/line", {{method: "POST", body: line}})); }};
console.log = (...words) => tell(words.join(" "));
window.onerror = (message) => tell(`error: ${{message}}`);
window.onunhandledrejection = (event) => tell(`error: ${{event.reason}}`);
</script><script type="module">
{script}
</script>"""


async def console_of(script: str, profile: Path, *, lines: int, host: str = "127.0.0.1") -> list[str]:
    """The first lines that a module script logs in a page; errors are lines, too.

    Args:
        script: JavaScript.
        profile: Directory for what the browser keeps.
        lines: How many lines to wait for.
        host: Name by which the page is reached; it is resolved to this machine.
    """
    assert CHROMIUM is not None
    told: list[str] = []
    page = _PAGE.format(script=script).encode()
    enough = trio.Event()

    async def serve(stream: trio.SocketStream) -> None:
        try:
            await answer(stream)
        except (OSError, trio.BrokenResourceError, h11.RemoteProtocolError):
            # The browser was killed, or closed what it opened ahead of use.
            return

    async def answer(stream: trio.SocketStream) -> None:
        connection = h11.Connection(h11.SERVER)
        async with stream:
            while True:
                event = connection.next_event()
                while event is h11.NEED_DATA:
                    connection.receive_data(await stream.receive_some())
                    event = connection.next_event()
                if not isinstance(event, h11.Request):
                    return
                body = b""
                while not isinstance(part := connection.next_event(), h11.EndOfMessage):
                    if part is h11.NEED_DATA:
                        connection.receive_data(await stream.receive_some())
                    elif isinstance(part, h11.Data):
                        body += part.data
                    else:
                        return
                if event.target == b"/line":
                    told.append(body.decode())
                    if len(told) >= lines:
                        enough.set()
                content = page if event.target == b"/" else b""
                head = [("content-type", "text/html"), ("content-length", str(len(content)))]
                for each in (h11.Response(status_code=200, headers=head), h11.Data(content), h11.EndOfMessage()):
                    await stream.send_all(connection.send(each) or b"")
                connection.start_next_cycle()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        options = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            f"--user-data-dir={profile}",
            f"--host-resolver-rules=MAP {host} 127.0.0.1",
            f"http://{host}:{port}/",
        ]
        # A session of its own: the browser has processes that must go with it.
        browser = await trio.lowlevel.open_process(
            [CHROMIUM, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            with trio.move_on_after(PATIENCE_S):
                await enough.wait()
        finally:
            os.killpg(browser.pid, signal.SIGKILL)
            with trio.CancelScope(shield=True):
                await browser.wait()
        nursery.cancel_scope.cancel()
    return told[:lines]
