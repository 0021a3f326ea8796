"""The ways into the server: for each, how each kind of request is sent over it."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio

from broker_adapter import StorageAdapter
from journal.cli.main import run
from journal.protocol import Op, frames, messages
from journal.server.shard_operations import LARGEST_PAGE
from shards.format.batch import read_records
from shards.model import Mode
from shards.topics.names import group_cursor
from tests.rights.answers import REFUSED, Answer, done
from tests.rights.deeds import ADMIN, Deed
from tests.rights.scene import INDEXED, Live, Scene, token_of
from tests.server.serving import RawClient, batch_of

Send = Callable[[Scene, Deed], Awaitable[Answer]]

VICTIM: Final = "a client of another"
CREDIT: Final = 1 << 20


# Frames


def _call(op: Op, message: Callable[[Deed], object | None]) -> Send:
    async def send(scene: Scene, deed: Deed) -> Answer:
        live = await scene.live(deed.who, deed.way)
        return done(await live.client.call(op, message(deed)))

    return send


async def _handle(live: Live, deed: Deed) -> int:
    """The handle of the shard, an old one if there is one: its rights are those of now."""
    handle = live.handles.get(deed.shard)
    if handle is None:
        handle = live.handles[deed.shard] = await live.client.open(deed.shard, None)
    return handle


async def _open(scene: Scene, deed: Deed) -> Answer:
    live = await scene.live(deed.who, deed.way)
    request = messages.OpenShardRequest(deed.shard, INDEXED if deed.create else None)
    reply = await live.client.call(Op.OPEN_SHARD, request)
    live.handles[deed.shard] = reply.handle
    return done(reply)


async def _append(scene: Scene, deed: Deed) -> Answer:
    live = await scene.live(deed.who, deed.way)
    return done(await live.client.append(await _handle(live, deed), batch_of(b"appended")))


async def _fetch(scene: Scene, deed: Deed) -> Answer:
    live = await scene.live(deed.who, deed.way)
    return _shown(await live.client.fetch(await _handle(live, deed), 0))


def _shown(reply: frames.FetchReply) -> Answer:
    return done(reply, [getattr(each, "value", each) for each in read_records(reply.batches)])


async def _find_offset(scene: Scene, deed: Deed) -> Answer:
    live = await scene.live(deed.who, deed.way)
    request = messages.FindOffsetRequest(await _handle(live, deed), "latest")
    return done(await live.client.call(Op.FIND_OFFSET, request))


async def _fetch_indexed(scene: Scene, deed: Deed) -> Answer:
    live = await scene.live(deed.who, deed.way)
    request = messages.FetchIndexedRequest(await _handle(live, deed), "key", b"key")
    correlation, frame = live.client.start(Op.FETCH_INDEXED, request)
    await live.client.send(frame)
    return _shown(await live.client.fetched(correlation))


def _subscribe(use: Callable[[Deed], dict[str, Any]]) -> Send:
    async def send(scene: Scene, deed: Deed) -> Answer:
        live = await scene.live(deed.who, deed.way)
        number = live.next_subscription
        live.next_subscription += 1
        request = messages.SubscribeRequest(number, credit_bytes=CREDIT, start="earliest", **use(deed))
        reply = await live.client.call(Op.SUBSCRIBE, request)
        if request.group is not None:
            scene.joined_groups.add(group_cursor(request.group))
        live.subscriptions[number] = deed
        return done(reply, await pushed(live.client))

    return send


async def pushed(client: RawClient) -> str:
    """What was pushed until now."""
    # Pushes are sent by another task than replies.
    for _ in range(3):
        await client.call(Op.PING)
    others, client.others = client.others, []
    return " ".join(repr(frame.body) for frame in others)


async def _end_another(scene: Scene, deed: Deed) -> Answer:
    live = await scene.live(deed.who, deed.way)
    async with scene.served.stream() as stream:
        other = RawClient(stream)
        hello = messages.HelloRequest(frames.PROTOCOL_VERSION, VICTIM, {"token": token_of(ADMIN)})
        await other.call(Op.HELLO, hello)
        reply = await live.client.call(Op.END_CLIENT, messages.EndClientRequest(VICTIM))
        return done(reply) if reply.connections else Answer(REFUSED, repr(reply))


def _commit(deed: Deed) -> messages.CommitRequest:
    return messages.CommitRequest(
        appends=[messages.ShardBatch(deed.shard, batch_of(b"committed"))],
        puts=[messages.StatePutRequest(deed.key, b"committed")],
        cursors=[messages.CursorCheck(deed.shard, deed.cursor, 1 << 40)],
    )


FRAMES: Final[dict[str, Send]] = {
    "list": _call(Op.LIST_SHARDS, lambda deed: messages.ListShardsRequest(deed.topic_filter)),
    "describe": _call(Op.DESCRIBE_SHARD, lambda deed: messages.DescribeShardRequest(deed.shard)),
    "open": _open,
    "create": _call(
        Op.CREATE_SHARD, lambda deed: messages.CreateShardRequest(deed.shard, INDEXED, exist_ok=deed.create)
    ),
    "delete": _call(Op.DELETE_SHARD, lambda deed: messages.NameRequest(deed.shard)),
    "set mode": _call(Op.SET_MODE, lambda deed: messages.SetModeRequest(deed.shard, Mode.MEMORY)),
    "configure": _call(
        Op.CONFIGURE_SHARD, lambda deed: messages.ConfigureShardRequest(deed.shard, segment_bytes=1 << 20)
    ),
    "roll": _call(Op.ROLL, lambda deed: messages.RollRequest(deed.shard)),
    "trim": _call(Op.TRIM, lambda deed: messages.TrimRequest(deed.shard, 0)),
    "append": _append,
    "read": _fetch,
    "find offset": _find_offset,
    "read by key": _fetch_indexed,
    "subscribe": _subscribe(lambda deed: {"shard": deed.shard}),
    "subscribe filter": _subscribe(lambda deed: {"filter": deed.topic_filter}),
    "join": _subscribe(lambda deed: {"shard": deed.shard, "group": deed.group}),
    "join filter": _subscribe(lambda deed: {"filter": deed.topic_filter, "group": deed.group}),
    "cursors": _call(Op.CURSOR_LIST, lambda deed: messages.CursorListRequest(deed.shard)),
    "cursor": _call(Op.CURSOR_GET, lambda deed: messages.CursorRequest(deed.shard, deed.cursor)),
    "set cursor": _call(Op.CURSOR_COMMIT, lambda deed: messages.CursorCommitRequest(deed.shard, deed.cursor, 0)),
    "delete cursor": _call(Op.CURSOR_DELETE, lambda deed: messages.CursorDeleteRequest(deed.shard, deed.cursor)),
    "state": _call(Op.STATE_GET, lambda deed: messages.StateGetRequest(deed.key)),
    "states": _call(Op.STATE_SCAN, lambda deed: messages.StateScanRequest(deed.prefix)),
    "put state": _call(Op.STATE_PUT, lambda deed: messages.StatePutRequest(deed.key, b"put")),
    "delete state": _call(Op.STATE_DELETE, lambda deed: messages.StateDeleteRequest(deed.key)),
    "commit": _call(Op.COMMIT, _commit),
    "open producer": _call(Op.PRODUCER_OPEN, lambda deed: messages.ProducerOpenRequest("gateway")),
    "node": _call(Op.STATUS, lambda deed: None),
    "end another": _end_another,
    "open to all": _call(Op.PING, lambda deed: None),
}


async def _snapshot(scene: Scene, deed: Deed) -> Answer:
    # A connection of its own, since it is held until that ends.
    async with scene.served.client(**scene.credentials(deed.who)) as client:
        return done(await client.call(Op.SNAPSHOT))


FRAMES["snapshot"] = _snapshot


# JSON


def _json(op: str, fields: Callable[[Deed], dict[str, Any]]) -> Send:
    async def send(scene: Scene, deed: Deed) -> Answer:
        return done(await (await scene.talker(deed.who)).call(op, **fields(deed)))

    return send


def _tail(field: str) -> Send:
    async def send(scene: Scene, deed: Deed) -> Answer:
        talker = await scene.talker(deed.who)
        open_tails = scene.talker_subscriptions[deed.who]
        number = len(open_tails) + 1
        target = deed.shard if field == "shard" else deed.topic_filter
        fields = {field: target, "start": {"at": "earliest"}, "credit_bytes": CREDIT}
        reply = await talker.call("tail", tail=number, **fields)
        open_tails[number] = deed
        await talker.call("ping")
        others, talker.others = talker.others, []
        return done(reply, others)

    return send


JSON: Final[dict[str, Send]] = {
    "list": _json("list", lambda deed: {"filter": deed.topic_filter}),
    "describe": _json("describe", lambda deed: {"shard": deed.shard}),
    "append": _json(
        "append",
        lambda deed: {
            "shard": deed.shard,
            "records": [{"value": "appended"}],
            **({"create": {}} if deed.create else {}),
        },
    ),
    "read": _json("read", lambda deed: {"shard": deed.shard}),
    "subscribe": _tail("shard"),
    "subscribe filter": _tail("filter"),
    "open to all": _json("ping", lambda deed: {}),
}


# HTTP


def _http(
    method: str, path: str, query: Callable[[Deed], dict[str, Any]], body: Callable[[Deed], object] | None = None
) -> Send:
    async def send(scene: Scene, deed: Deed) -> Answer:
        content = {} if body is None else {"json": body(deed)}
        answer = await scene.http.request(method, path, params=query(deed), headers=scene.headers(deed.who), **content)
        text = f"{answer.text} {answer.headers}"
        return done(text) if answer.is_success else Answer(_code_of(answer.text), text)

    return send


def _code_of(text: str) -> str:
    _, found, rest = text.partition('"code":"')
    return rest.partition('"')[0] if found else "unknown"


def _shard(deed: Deed) -> dict[str, Any]:
    return {"name": deed.shard}


def _page(deed: Deed) -> dict[str, Any]:
    return {"filter": deed.topic_filter, "limit": LARGEST_PAGE}


def _nothing(deed: Deed) -> dict[str, Any]:
    return {}


HTTP: Final[dict[str, Send]] = {
    "list": _http("GET", "/api/v1/shards", _page),
    "create": _http("POST", "/api/v1/shards", _nothing, lambda deed: {"name": deed.shard, "exist_ok": deed.create}),
    "describe": _http("GET", "/api/v1/shard", _shard),
    "configure": _http("PATCH", "/api/v1/shard", _shard, lambda deed: {"segment_bytes": 1 << 20}),
    "delete": _http("DELETE", "/api/v1/shard", _shard),
    "set mode": _http("PUT", "/api/v1/shard/mode", _shard, lambda deed: {"mode": "memory"}),
    "roll": _http("POST", "/api/v1/shard/roll", _shard),
    "trim": _http("POST", "/api/v1/shard/trim", _shard, lambda deed: {"before_offset": 0}),
    "cursors of filter": _http("GET", "/api/v1/cursors", _page),
    "delete cursor": _http("DELETE", "/api/v1/cursor", lambda deed: {"shard": deed.shard, "name": deed.cursor}),
    "queues": _http("GET", "/api/v1/queues", _nothing),
    "connections": _http("GET", "/api/v1/connections", _nothing),
    "subscriptions": _http("GET", "/api/v1/subscriptions", _nothing),
    "node": _http("GET", "/api/v1/node", _nothing),
    "metrics": _http("GET", "/metrics", _nothing),
}


def _pages(paths: tuple[str, ...]) -> Send:
    async def send(scene: Scene, deed: Deed) -> Answer:
        shown = []
        for path in paths:
            answer = await scene.http.get(path, headers=scene.headers(deed.who))
            if not answer.is_success:
                return Answer(_code_of(answer.text), answer.text)
            shown.append(answer.text)
        return done(*shown)

    return send


HTTP["open to all"] = _pages(
    ("/livez", "/readyz", "/", "/console/listeners.json", "/console/app.js", "/api/v1/openapi.json")
)


# Commands


def _command(arguments: Callable[[Deed], tuple[str, ...]]) -> Send:
    async def send(scene: Scene, deed: Deed) -> Answer:
        given = (*arguments(deed), f"--server={scene.url(deed.who)}")
        return await trio.to_thread.run_sync(_run, given)

    return send


def _run(arguments: tuple[str, ...]) -> Answer:
    output, errors = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        status = run(arguments)
        output.flush()
    text = output.buffer.getvalue().decode() + errors.getvalue()  # type: ignore[attr-defined]
    if not status:
        return done(text)
    return Answer(REFUSED if "allow it in the server's access rules" in text else f"status {status}", text)


COMMANDS: Final[dict[str, Send]] = {
    "list": _command(lambda deed: ("shard", "list", "--json", f"{deed.topic_filter}")),
    "create": _command(
        lambda deed: ("shard", "create", "--index-keys", *(["--exist-ok"] if deed.create else []), deed.shard)
    ),
    "describe": _command(lambda deed: ("shard", "show", deed.shard)),
    "set mode": _command(lambda deed: ("shard", "mode", deed.shard, "memory")),
    "configure": _command(lambda deed: ("shard", "set", "--segment-bytes", "1MiB", deed.shard)),
    "roll": _command(lambda deed: ("shard", "roll", deed.shard)),
    "trim": _command(lambda deed: ("shard", "trim", "--yes", deed.shard, "0")),
    "delete": _command(lambda deed: ("shard", "delete", "--yes", deed.shard)),
    "cursors": _command(lambda deed: ("cursor", "list", deed.shard)),
    "cursor": _command(lambda deed: ("cursor", "get", deed.shard, deed.cursor)),
    "set cursor": _command(lambda deed: ("cursor", "set", deed.shard, deed.cursor, "0")),
}


# The storage adapter


def _adapted(do: Callable[[StorageAdapter, Deed], Awaitable[object]]) -> Send:
    async def send(scene: Scene, deed: Deed) -> Answer:
        return done(await do(await scene.adapter(deed.who), deed))

    return send


async def _scan(store: StorageAdapter, deed: Deed) -> list[object]:
    return [each async for each in store.scan_state(deed.prefix)]


ADAPTER: Final[dict[str, Send]] = {
    "list": _adapted(lambda store, deed: store.list_shards(deed.topic_filter)),
    "describe": _adapted(lambda store, deed: store.describe_shard(deed.shard)),
    "create": _adapted(lambda store, deed: store.create_shard(deed.shard, exist_ok=deed.create)),
    "delete": _adapted(lambda store, deed: store.delete_shard(deed.shard)),
    "set mode": _adapted(lambda store, deed: store.set_mode(deed.shard, Mode.MEMORY)),
    "configure": _adapted(lambda store, deed: store.configure_shard(deed.shard, segment_bytes=1 << 20)),
    "roll": _adapted(lambda store, deed: store.roll(deed.shard)),
    "trim": _adapted(lambda store, deed: store.trim(deed.shard, 0)),
    "read": _adapted(lambda store, deed: store.read(deed.shard, 0)),
    "cursors": _adapted(lambda store, deed: store.list_cursors(deed.shard)),
    "cursor": _adapted(lambda store, deed: store.get_cursor(deed.shard, deed.cursor)),
    "set cursor": _adapted(lambda store, deed: store.commit_cursor(deed.shard, deed.cursor, 0)),
    "delete cursor": _adapted(lambda store, deed: store.delete_cursor(deed.shard, deed.cursor)),
    "state": _adapted(lambda store, deed: store.get_state(deed.key)),
    "states": _adapted(_scan),
    "put state": _adapted(lambda store, deed: store.put_state(deed.key, b"put")),
    "delete state": _adapted(lambda store, deed: store.delete_state(deed.key)),
}

WAYS: Final[dict[str, dict[str, Send]]] = {
    "frames": FRAMES,
    "websocket": FRAMES,
    "json": JSON,
    "http": HTTP,
    "commands": COMMANDS,
    "adapter": ADAPTER,
}
"""How each kind is sent, by way in."""

PAIRS: Final = [(way, kind) for way, kinds in WAYS.items() for kind in kinds]
