"""A store that asks who is there: a URL says it, for adapters and for brokers."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from broker_adapter import open_adapter
from broker_adapter.mqtt.config import load_broker_config
from journal.protocol.errors import AuthenticationError, NotAuthorizedError
from shards.errors import InvalidRequestError
from shards.model import ShardConfig
from tests.patience import PATIENCE_S
from tests.server.people import AUTHORITY, PASSWORD, guarded, rule, write_server_certificate


@pytest.mark.parametrize("scheme", ["journals", "journal+wss"])
async def test_a_broker_may_what_its_rules_say(tmp_path: Path, scheme: str) -> None:
    password, ca = tmp_path / "password", tmp_path / "trusted.pem"
    password.write_text(f"{PASSWORD}\n")
    ca.write_bytes(AUTHORITY.cert_pem.bytes())
    rules = (rule("#", "$mqtt/#", "$queue/#", "$state/#", principal="anna"), rule("only/#", principal="bob"))
    async with guarded(tmp_path, *rules, **write_server_certificate(tmp_path)) as served:
        port = served.ports["tcp" if scheme == "journals" else "websocket"]
        url = f"{scheme}://anna@127.0.0.1:{port}?password_file={password}&ca_file={ca}"
        assert load_broker_config(None, {"broker.store": url}).broker.store == url
        async with open_adapter(url) as store:
            for name in ("plant/1", "$mqtt/control", "$queue/q"):
                await store.create_shard(name, ShardConfig())
                await store.append(name, [b"value"])
                assert (await store.read(name, 0)).records
            await store.put_state(b"mqtt/session/1", b"value")
            assert [value.key async for value in store.scan_state(b"mqtt/")] == [b"mqtt/session/1"]
            async with store.subscribe("plant/#"), store.follow("#"):
                pass
        async with open_adapter(url.replace("anna", "bob")) as store:
            with pytest.raises(NotAuthorizedError):
                await store.read("plant/1", 0)
            with pytest.raises(NotAuthorizedError):
                await store.put_state(b"mqtt/session/1", b"other")
        password.write_text("wrong\n")
        with pytest.raises(AuthenticationError), trio.fail_after(PATIENCE_S):
            async with open_adapter(url):
                pass


async def test_a_password_in_the_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidRequestError, match="password in it") as caught:
        async with open_adapter("journal://broker:secret-word@127.0.0.1:7420"):
            pass
    assert "secret-word" not in str(caught.value)
