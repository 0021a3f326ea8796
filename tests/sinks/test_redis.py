"""What is peculiar to the sink `redis`: scripts and turns, entries, and what keeps it out."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import attrs
import pytest
import trio
import trustme
from coredis import Redis

from broker_adapter.sinks import Batch, BatchRefusedError, Sink, SinkContext, SinkUnavailableError
from broker_adapter.sinks.kinds import find_kind
from broker_adapter.sinks.redis.scripts import position_key
from broker_adapter.sinks.redis.settings import RedisSettings, read_url
from journal.settings.file import Schema
from journal.settings.values import ConfigurationError
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.sinks.redis_server import HOST, PASSWORD, USER, redis_server
from tests.sinks.stage import batch_of, batches_of, bring, numbers, open_sink, row
from tests.sinks.stages.redis import STREAM, RedisStage, open_stage

HASH = "journal:bridge:{rows}:queue-1"


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[RedisStage]:
    async with open_stage(tmp_path) as opened:
        yield opened


async def ready(sink: Sink) -> Sink:
    await sink.check()
    await sink.position()
    return sink


# Both or neither


async def test_a_reply_that_is_lost_is_found_in_the_position(stage: RedisStage) -> None:
    with trio.fail_after(PATIENCE_S):
        async with open_sink(stage) as sink, trio.open_nursery() as nursery:
            first, second = batches_of(2, 5)
            await (await ready(sink)).write(first)
            stage.proxy.hold_replies()

            async def write() -> None:
                with pytest.raises(SinkUnavailableError, match=stage.address):
                    await sink.write(second)

            nursery.start_soon(write)
            while len(await stage.rows()) < 10:
                await trio.sleep(0.01)
            stage.proxy.cut()
            while nursery.child_tasks:
                await trio.sleep(0.001)
            stage.proxy.pass_all()
            await sink.check()
            assert await sink.position() == 10
    assert await numbers(stage) == list(range(10))


async def test_what_a_lost_connection_had_still_in_its_buffers_changes_nothing_later(stage: RedisStage) -> None:
    """The same driver asks for the position on a new connection; then the server reads what the old one had sent."""
    async with open_sink(stage) as before, open_sink(stage) as after:
        await ready(before)
        await after.check()
        assert await after.position() is None
        with pytest.raises(SinkUnavailableError, match=r"turn 2, so turn 1 .*read the position again"):
            await before.write(batches_of(1, 3)[0])
        assert await stage.rows() == []
        await after.write(batches_of(1, 3)[0])
    assert await numbers(stage) == [0, 1, 2]


async def test_a_server_that_lost_the_scripts_gets_them_again(stage: RedisStage) -> None:
    async with open_sink(stage) as sink:
        await ready(sink)
        async with stage.server.client() as client:
            for batch in batches_of(3, 2):
                await client.script_flush()
                await sink.write(batch)
    assert await numbers(stage) == list(range(6))


async def test_the_position_is_in_a_hash_beside_the_stream(stage: RedisStage) -> None:
    async with open_sink(stage, epoch=3) as sink:
        await ready(sink)
        await sink.write(Batch(5, 100, [7, 90], [row(7), row(90)], 100))
    async with stage.server.client() as client:
        assert await client.hgetall(HASH) == {b"position": b"100", b"epoch": b"3", b"turn": b"1", b"bridge": b"suite"}


@pytest.mark.parametrize(
    ("stream", "key"),
    [("rows", "journal:bridge:{rows}:q"), ("plant:{7}:rows", "journal:bridge:{7}:q")],
)
def test_stream_and_position_are_in_one_slot(stream: str, key: str) -> None:
    assert position_key(stream, "q") == key


# Entries


async def test_an_entry_has_a_field_for_each_value_that_is_there(stage: RedisStage) -> None:
    columns = ("topic", "qos", "payload", "headers", "client")
    values = ("plant/1", 1, b"\xff\x00", {"a": b"b"}, None)
    async with open_sink(stage, columns=columns) as sink:
        await bring(sink, [batch_of([dict(zip(columns, values, strict=True)), dict.fromkeys(columns)])])
    async with stage.server.client() as client:
        first, second = await client.xrange(STREAM)
    assert list(first.field_values.items()) == [
        (b"topic", b"plant/1"),
        (b"qos", b"1"),
        (b"payload", b"\xff\x00"),
        (b"headers", b'{"a":"b"}'),
    ]
    assert dict(second.field_values) == {b"topic": b""}


async def test_a_row_that_cannot_be_written_is_named(stage: RedisStage) -> None:
    for bad in ("\ud800", {"a": ["\ud800"]}):
        async with open_sink(stage) as sink:
            await ready(sink)
            with pytest.raises(BatchRefusedError, match=f"^{stage.address}, stream rows: row 2 cannot") as refused:
                await sink.write(batch_of([row(0), row(1), row(2, value=bad), row(3)]))
            assert refused.value.index == 2
    assert await stage.rows() == []


async def test_the_stream_keeps_about_as_many_entries_as_it_may(stage: RedisStage) -> None:
    async with open_sink(stage, max_length=300) as sink:
        await bring(sink, batches_of(20, 100))
    kept = await numbers(stage)
    assert kept == list(range(kept[0], 2000))
    assert 300 <= len(kept) <= 500


async def test_other_databases_are_reached_by_number(stage: RedisStage) -> None:
    async with open_sink(stage, url=stage.address[:-1] + "3") as sink:
        await bring(sink, batches_of(1, 3))
    assert await stage.rows() == []
    async with Redis(host=HOST, port=stage.server.port, username=USER, password=PASSWORD, db=3) as client:
        assert await client.xlen(STREAM) == 3


# What keeps it out


async def test_a_key_of_another_type_is_reported_with_the_way_out(stage: RedisStage) -> None:
    async with stage.server.client() as client:
        await client.set(STREAM, "text")
    async with open_sink(stage) as sink:
        with pytest.raises(SinkUnavailableError, match=f"{stage.address}, .*holds a string; WRONGTYPE.*another stream"):
            await sink.check()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"maxmemory": "1"}, "OOM.*maxmemory"),
        ({"min-replicas-to-write": "1"}, "NOREPLICAS.*min-replicas-to-write"),
    ],
)
async def test_a_server_that_takes_no_changes_is_out_until_it_does(
    stage: RedisStage, settings: dict[str, str], told: str
) -> None:
    async with open_sink(stage) as sink, stage.server.client() as client:
        await ready(sink)
        await client.config_set(settings)
        with pytest.raises(SinkUnavailableError, match=f"{stage.address}, .*{told}"):
            await sink.write(batch_of([row(0)]))
        await client.config_set(dict.fromkeys(settings, "0"))
        await (await ready(sink)).write(batch_of([row(0)]))
    assert await numbers(stage) == [0]


async def test_a_replica_is_out(stage: RedisStage) -> None:
    async with open_sink(stage) as sink, stage.server.client() as client:
        await ready(sink)
        await client.replicaof(HOST, free_port())
        with pytest.raises(SinkUnavailableError, match="READONLY: this is a replica; give the primary's address"):
            await sink.write(batch_of([row(0)]))
        await client.config_set({"replica-serve-stale-data": "no"})
        with pytest.raises(SinkUnavailableError, match=r"MASTERDOWN.*primary"):
            await ready(sink)


async def test_the_error_of_a_user_without_the_rights_names_them(stage: RedisStage) -> None:
    async with stage.server.client() as client:
        await client.acl_setuser("poor", "on", f">{PASSWORD}", "~*", "+type", "+hget")
    async with open_sink(stage, user="poor") as sink:
        with pytest.raises(SinkUnavailableError, match="NOPERM: allow the user to run EVAL"):
            await ready(sink)


@pytest.mark.parametrize("denied", ["xtrim", "hset", "hincrby", "xadd"])
async def test_a_user_who_may_not_do_all_adds_nothing_twice(stage: RedisStage, denied: str) -> None:
    """Redis keeps what a script has done when a later command is refused: each retry of a batch added it again."""
    batches = batches_of(3, 5)
    async with open_sink(stage, max_length=1000) as sink, stage.server.client() as client:
        await (await ready(sink)).write(batches[0])
        await client.acl_setuser(USER, f"-{denied}")
        for _ in range(3):
            try:
                await (await ready(sink)).write(batches[1])
            except SinkUnavailableError:
                continue
            break
        await client.acl_setuser(USER, "+@all")
        await bring(sink, batches)
    assert await numbers(stage) == list(range(15))


@pytest.mark.parametrize("denied", ["xtrim", "hset", "xadd"])
async def test_a_right_that_is_taken_away_between_batches_leaves_none_half_written(
    stage: RedisStage, denied: str
) -> None:
    """Rows were there and the position was not: what the server refused came last."""
    async with open_sink(stage, max_length=1000) as sink, stage.server.client() as client:
        await ready(sink)
        await client.acl_setuser(USER, f"-{denied}")
        is_taken = True
        try:
            await sink.write(batches_of(1, 5)[0])
        except SinkUnavailableError:
            is_taken = False
        await client.acl_setuser(USER, "+@all")
        assert is_taken == (denied == "xtrim")
        await ready(sink)
        assert await sink.position() == (5 if is_taken else None)
        assert len(await stage.rows()) == (5 if is_taken else 0)


async def test_a_node_of_a_cluster_that_has_not_the_key_is_out(tmp_path: Path) -> None:
    # The port of its bus would be among those that connections take theirs from: with bad luck it is taken.
    cluster = ["--cluster-enabled", "yes", "--cluster-port", str(free_port())]
    async with redis_server(tmp_path, cluster) as server:
        settings = RedisSettings(f"redis://{HOST}:{server.port}", "rows", user=USER, password=PASSWORD)
        async with find_kind("redis").open(settings, SinkContext("b", "queue-1", ("n",), 1)) as sink:
            with pytest.raises(SinkUnavailableError, match="slot"):
                await sink.check()
            async with server.client() as client:
                await client.execute_command(client.create_request(b"CLUSTER ADDSLOTSRANGE", 0, 16383, callback=bool))
            with trio.fail_after(PATIENCE_S):
                await bring(sink, [batch_of([{"n": 1}])])


async def test_tls_needs_an_authority_that_is_known(tmp_path: Path) -> None:
    authority, files = trustme.CA(), {}
    certificate = authority.issue_cert(HOST)
    for name, blob in (
        ("ca", authority.cert_pem),
        ("cert", certificate.cert_chain_pems[0]),
        ("key", certificate.private_key_pem),
    ):
        files[name] = tmp_path / f"{name}.pem"
        blob.write_to_path(str(files[name]))
    tls_port = free_port()
    options = ["--tls-port", str(tls_port), "--tls-auth-clients", "no"]
    options += ["--tls-cert-file", str(files["cert"]), "--tls-key-file", str(files["key"])]
    options += ["--tls-ca-cert-file", str(files["ca"])]
    async with redis_server(tmp_path, options) as server:
        context = SinkContext("b", "queue-1", ("n",), 1)
        open_kind = find_kind("redis").open
        url = f"rediss://{HOST}:{tls_port}"
        known = RedisSettings(url, "rows", user=USER, password=PASSWORD, ca_file=str(files["ca"]))
        async with open_kind(known, context) as sink:
            await bring(sink, [batch_of([{"n": 1}])])
        async with open_kind(RedisSettings(url, "rows", user=USER, password=PASSWORD), context) as sink:
            with pytest.raises(SinkUnavailableError, match=f"{url}/0, .*certificate verify failed"):
                await sink.check()
        plain = RedisSettings(f"rediss://{HOST}:{server.port}", "rows", ca_file=str(files["ca"]), timeout_s=1)
        async with open_kind(plain, context) as sink:
            with pytest.raises(SinkUnavailableError, match=f"rediss://{HOST}:{server.port}/0"):
                await sink.check()


# Settings


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"url": "redis://u:secret@host"}, "url has credentials in it; give them as user and password_file"),
        ({"url": "redis://host:secret"}, "url is not a URL, or its port is not valid"),
        ({"url": "http://host/secret"}, "url is not an address of a Redis server"),
        ({"url": "redis://host/0?password=secret"}, "url has something after"),
        ({"password": "secret", "password_file": "f"}, "password and password_file are both given"),
        ({"user": "u"}, "user = 'u' is given without a password"),
        ({"ca_file": "f"}, "ca_file is given, but url is not rediss"),
    ],
)
def test_settings_that_cannot_be_used_are_reported_without_secrets(settings: dict[str, str], problem: str) -> None:
    made = RedisSettings(**({"url": "redis://host", "stream": "rows"} | settings))
    (found,) = find_kind("redis").check(made)
    assert found.startswith(problem)
    assert "secret" not in found + repr(made)


@pytest.mark.parametrize("stream", ["", "a{b", "a}b", "{}", "a{b}{c}"])
def test_a_stream_whose_slot_would_not_be_clear_is_no_stream(stream: str) -> None:
    with pytest.raises(ConfigurationError, match=r"stream = .* hash tag"):
        load(stream)


def load(stream: str) -> object:
    config = attrs.make_class("Config", {"sink": attrs.field(type=RedisSettings)})
    return Schema(config).load(None, {"sink.url": "redis://host", "sink.stream": stream}).sink


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://host", "redis://host:6379/0"),
        ("rediss://host:1/7", "rediss://host:1/7"),
        ("redis://[::1]:2/", "redis://[::1]:2/0"),
    ],
)
def test_addresses_are_shown_whole(url: str, shown: str) -> None:
    assert str(read_url(url)) == shown


async def test_a_file_of_authorities_that_is_none_is_a_mistake_in_the_settings(tmp_path: Path) -> None:
    settings = RedisSettings("rediss://host", "rows", ca_file=str(tmp_path / "absent"))
    with pytest.raises(ConfigurationError, match=r"ca_file = .*absent.* cannot be used"):
        async with find_kind("redis").open(settings, SinkContext("b", "queue-1", ("n",), 1)):
            pass


async def test_without_its_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "coredis.connection", None)
    monkeypatch.delitem(sys.modules, "broker_adapter.sinks.redis.sink", raising=False)
    settings = RedisSettings("redis://127.0.0.1", "rows")
    with pytest.raises(ConfigurationError, match=r"needs coredis .*pip install .*coredis"):
        async with find_kind("redis").open(settings, SinkContext("b", "queue-1", ("n",), 1)):
            pass
