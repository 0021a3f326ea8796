"""The console of a node that asks who is there, and what a browser may do with its page."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from journal.access.tokens import TokenHash
from journal.server.console.pages import policy
from shards.model import ShardConfig
from tests.console.browser import Browser, Page
from tests.console.places import url
from tests.patience import PATIENCE_S
from tests.server.people import PASSWORD, client_context, guarded, rule, write_server_certificate
from tests.server.serving import serving

TOKEN = "a-token-for-this-test"


@pytest.mark.slow("drives a browser")
async def test_a_token_opens_the_console_and_its_tail(tmp_path: Path, browser: Browser) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(f"operator:{TokenHash.of('operator', TOKEN).digest.hex()}\n")
    async with serving(tmp_path, access__tokens_file=str(tokens)) as served:
        await served.engine.create_shard("plant/a", ShardConfig())
        page = await browser.page(f"http://127.0.0.1:{served.ports['http']}/")
        await page.says("Sign in to this node")
        assert await page.focused() == "token"
        await page.press("Enter")
        await page.says("Give a token, or a user and a password.")
        await page.type("a wrong one")
        await page.press("Enter")
        await page.says("the token is not known to this server")
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


READER = rule("plant/#", principal="anna", actions=("read",))
ALL = rule("#", principal="admin")


@pytest.mark.slow("drives a browser")
@pytest.mark.smoke
async def test_a_password_opens_the_console_and_is_kept_nowhere(tmp_path: Path, browser: Browser) -> None:
    async with guarded(tmp_path, ALL) as served:
        await served.engine.create_shard("plant/a", ShardConfig())
        page = await browser.page(url(served))
        await page.says("Sign in to this node")
        await sign_in(page, "admin", "a guess")
        await page.until("document.querySelector('.notice.bad:not([hidden])') !== null")
        await sign_in(page, "admin", PASSWORD)
        await page.says("plant/a")
        await page.until("document.getElementById('health').textContent === 'ready'")
        # A wrong password counts as one failed login: those before it came without any.
        assert len([error for error in page.errors if "status of 401" in error and "limit=1 " in f"{error} "]) == 1
        assert len([error for error in page.errors if "status of 401" in error]) <= 3
        await page.open(url(served, "#/tail?filter=plant/%23"))
        await page.until("document.getElementById('tail-state')?.textContent === 'live'")
        kept = await page.ask(
            "JSON.stringify({...localStorage, ...sessionStorage}) + location + document.cookie + document.title"
            " + performance.getEntries().map(e => e.name) + document.documentElement.outerHTML"
            " + [...document.querySelectorAll('input')].map(e => e.value)"
        )
        assert PASSWORD not in kept
        # Only this page of this tab had it.
        await page.call("Page.reload")
        await page.says("Sign in to this node")
        assert "Tail" not in await page.ask("document.querySelector('main').innerText")


@pytest.mark.slow("drives a browser")
async def test_what_a_principal_may_not_do_is_said(tmp_path: Path, browser: Browser) -> None:
    async with guarded(tmp_path, READER, ALL) as served:
        async with served.client(user="admin", password=PASSWORD) as client:
            await client.append_values(await client.open("plant/a"), b"1", b"2")
        await served.engine.commit_cursor("plant/a", "report", 0, None)
        page = await browser.page(url(served))
        await page.says("Sign in to this node")
        await sign_in(page, "anna", PASSWORD)
        await page.says("principal 'anna' may not read or administer '#'")
        await page.says("give a filter of what you may read")
        assert await page.ask("document.getElementById('health').hidden")
        await page.fill("input[name=filter]", "plant/#")
        await page.press("Enter")
        await page.says("plant/a")
        await page.click("tbody a")
        refused = "principal 'anna' may not administer 'plant/a'"
        notice = "document.querySelector('section[aria-labelledby=settings] .notice:not([hidden])')"
        for button in ("#switch-mode", "#roll"):
            await page.click(button)
            await page.click("dialog button[type=submit]")
            await page.until(f"{notice}?.textContent.includes({refused!r})".replace('"', "`"))
            # It gets the token again.
            await page.ask(f"{notice}.hidden = true")
        await page.fill("input[name=max_records]", "1")
        await page.press("Enter")
        await page.click("dialog button[type=submit]")
        await page.until(f"{notice} !== null")
        await page.ask(f"{notice}.hidden = true")
        await page.click("#delete")
        await page.fill("dialog input", "delete")
        await page.click("dialog button[type=submit]")
        await page.until(f"{notice} !== null")
        await page.click("section[aria-label=Cursors] tbody button")
        await page.click("dialog button[type=submit]")
        await page.until("document.getElementById('status').textContent.includes('or administer')")
        await page.open(url(served, "#/tail?filter=plant/%23"))
        await page.says("principal 'anna' may not subscribe 'plant/#'")
        await page.until("document.getElementById('tail-state').textContent === 'stopped'")
        for place, awaited in (("node", "may not administer '#'"), ("queues", "may not read or administer '$queue/#'")):
            await page.open(url(served, f"#/{place}"))
            await page.says(awaited)
        shard = served.engine.parts.table.by_name("plant/a").info(with_segments=True)
        assert (shard.config, len(shard.segments)) == (ShardConfig(), 1)
        assert len(served.engine.list_cursors("plant/a")) == 1


@pytest.mark.slow("drives a browser")
async def test_signing_in_fits_a_phone(tmp_path: Path, browser: Browser) -> None:
    async with guarded(tmp_path, ALL) as served:
        page = await browser.page(url(served), width=390, height=780)
        await page.says("Sign in to this node")
        assert await page.too_wide() == []
        assert await page.ask(
            "[...document.querySelectorAll('main input, main button')].every(e => e.offsetHeight >= 44)"
        )
        await sign_in(page, "admin", PASSWORD)
        await page.says("Sign out")
        await page.until("document.getElementById('health').textContent === 'ready'")
        assert await page.too_wide() == []


async def sign_in(page: Page, user: str, password: str) -> None:
    await page.fill("input[name=user]", user)
    await page.fill("input[name=password]", password)
    await page.press("Enter")


@pytest.mark.slow("drives a browser")
async def test_the_page_and_its_files_come_under_a_strict_policy(tmp_path: Path) -> None:
    async with serving(tmp_path) as served, httpx.AsyncClient(timeout=PATIENCE_S) as client:
        base = f"http://127.0.0.1:{served.ports['http']}"
        for path in ("/", "/console/main.js", "/console/console.css", "/console/icon.svg"):
            answer = await client.get(base + path)
            assert answer.status_code == 200
            allowed = answer.headers["content-security-policy"]
            assert allowed.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
            assert "unsafe" not in allowed
            assert f"connect-src 'self' ws://127.0.0.1:{served.ports['websocket']} " in allowed
            assert "; frame-ancestors 'none'; " in allowed
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
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


@pytest.mark.slow("starts a browser")
@pytest.mark.parametrize("asks_for_certificates", [False, True])
async def test_under_tls_the_page_and_its_tail_are_encrypted(
    tmp_path: Path, browser: Browser, asks_for_certificates: bool
) -> None:
    tls = write_server_certificate(tmp_path)
    if not asks_for_certificates:
        del tls["tls__client_ca_file"]
    async with guarded(tmp_path, ALL, **tls) as served:
        base = f"https://127.0.0.1:{served.ports['http']}"
        async with httpx.AsyncClient(verify=client_context(), timeout=PATIENCE_S) as client:
            allowed = (await client.get(base)).headers["content-security-policy"]
            assert f" wss://127.0.0.1:{served.ports['websocket']}; " in allowed
        page = await browser.page("about:blank#")
        await page.call("Security.setIgnoreCertificateErrors", ignore=True)
        await page.open(f"{base}/#/tail?filter=plant/%23")
        await page.says("Sign in to this node")
        await sign_in(page, "admin", PASSWORD)
        if asks_for_certificates:
            # Chromium asks its user which certificate to show for pages only.
            listener = f"https://127.0.0.1:{served.ports['websocket']}/"
            await page.says(f"the browser may first have to be asked for a certificate, at {listener}")
            await page.open(listener)
            await page.open(f"{base}/#/tail?filter=plant/%23")
            await page.says("Sign in to this node")
            await sign_in(page, "admin", PASSWORD)
        await page.until("document.getElementById('tail-state')?.textContent === 'live'")
