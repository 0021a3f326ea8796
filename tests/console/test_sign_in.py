"""The console of a node that asks who is there, and what a browser may do with its page."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from journal.access.tokens import TokenHash
from journal.server.console.pages import policy
from shards.model import ShardConfig
from tests.console.browser import chromium
from tests.server.serving import serving

TOKEN = "a-token-for-this-test"


async def test_a_token_opens_the_console_and_its_tail(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"operator:{TokenHash.of('operator', TOKEN).digest.hex()}\n")
    async with serving(tmp_path, access__tokens_file=str(tokens)) as served, chromium(tmp_path / "profile") as browser:
        await served.engine.control.create_shard("plant/a", ShardConfig())
        page = await browser.page(f"http://127.0.0.1:{served.ports['http']}/")
        await page.says("Sign in to this node")
        assert await page.focused() == "token"
        await page.press("Enter")
        await page.says("Give a token, or a user and a password.")
        await page.type("a wrong one")
        await page.press("Enter")
        await page.until("document.querySelector('.notice.bad') !== null")
        await page.fill("input[name=token]", TOKEN)
        await page.press("Enter")
        await page.says("plant/a")
        await page.ask("location.hash = '#/tail?filter=plant/%23'")
        await page.until("document.getElementById('tail-state')?.textContent === 'live'")
        # It is kept nowhere: not by the browser, not in the address.
        assert await page.ask("JSON.stringify({...localStorage, ...sessionStorage}) + location + document.cookie") == (
            f"{{}}http://127.0.0.1:{served.ports['http']}/#/tail?filter=plant/%23"
        )
        await page.click("#sign-out")
        await page.says("Sign in to this node")


async def test_the_page_and_its_files_come_under_a_strict_policy(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, httpx.AsyncClient() as client:
        base = f"http://127.0.0.1:{served.ports['http']}"
        for path in ("/", "/console/main.js", "/console/console.css", "/console/icon.svg"):
            answer = await client.get(base + path)
            assert answer.status_code == 200
            allowed = answer.headers["content-security-policy"]
            assert allowed.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
            assert "unsafe" not in allowed
            assert f"connect-src 'self' ws://127.0.0.1:{served.ports['websocket']} " in allowed
            assert answer.headers["x-content-type-options"] == "nosniff"
            again = await client.get(base + path, headers={"If-None-Match": answer.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
        for path in ("/console/pages.py", "/console/../pages.py", "/console/%2e%2e/pages.py", "/console/"):
            assert (await client.get(base + path)).status_code == 404


@pytest.mark.parametrize(
    ("host", "named"),
    [
        ("node-1.example.org:7422", "node-1.example.org"),
        ("127.0.0.1:7422", "127.0.0.1"),
        ("[::1]:7422", "*"),
        ("", "*"),
        ("a b; script-src *", "*"),
        ("x'unsafe-inline':1", "*"),
        ("[", "*"),
    ],
)
def test_the_policy_names_the_listener_and_nothing_that_a_host_header_brings(host: str, named: str) -> None:
    assert f"connect-src 'self' ws://{named}:7421 wss://{named}:7421; base-uri" in policy(host, 7421)


def test_without_a_websocket_listener_the_page_connects_to_its_node_alone() -> None:
    assert "connect-src 'self'; base-uri" in policy("127.0.0.1:7422", None)
