"""Every operation is refused to a client without credentials, with wrong ones, or without the right."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import attrs
import pytest
import trio
from structlog.testing import capture_logs

from journal.protocol import Op, decode_error, encode, frames, messages
from journal.protocol.errors import AuthenticationError, NotAuthorizedError, RemoteProtocolError, UnknownHandleError
from shards.errors import InvalidNameError, StorageError, UnknownProducerError
from shards.model import Mode
from tests.server.people import EXPIRED_TOKEN, PASSWORD, TOKEN, guarded, rule
from tests.server.serving import FILE, RawClient, Served, batch_of

THERE: Final = "plant/there"
ELSEWHERE: Final = (
    rule("elsewhere/#", "$state/elsewhere/#", principal="anna"),
    rule("#", "$state/#", principal="admin"),
    rule("#", "$state/#", principal="robot"),
)
NO_REPLY: Final = {Op.CREDIT, Op.ACKNOWLEDGE}
"""They have no reply, and say only what the connection does with its own subscriptions."""
OWN: Final = {Op.HELLO, Op.PING, Op.END_CLIENT, Op.CLOSE_SHARD, Op.UNSUBSCRIBE, Op.PRODUCER_OPEN, *NO_REPLY}
"""What every client may do after its login: it touches nothing but what belongs to the connection or its principal."""
PUSHED: Final = {Op.APPENDED, Op.PUSH, Op.SHARD_EVENT}

BODIES: Final[dict[Op, bytes]] = {
    Op.PING: b"",
    Op.STATUS: b"",
    Op.SNAPSHOT: b"",
    Op.END_CLIENT: encode(messages.EndClientRequest("admin")),
    Op.CREATE_SHARD: encode(messages.CreateShardRequest("plant/new")),
    Op.OPEN_SHARD: encode(messages.OpenShardRequest(THERE)),
    Op.CLOSE_SHARD: encode(messages.HandleRequest(0)),
    Op.LIST_SHARDS: encode(messages.ListShardsRequest()),
    Op.DESCRIBE_SHARD: encode(messages.NameRequest(THERE)),
    Op.DELETE_SHARD: encode(messages.NameRequest(THERE)),
    Op.SET_MODE: encode(messages.SetModeRequest(THERE, Mode.MEMORY)),
    Op.CONFIGURE_SHARD: encode(messages.ConfigureShardRequest(THERE, segment_bytes=1 << 20)),
    Op.ROLL: encode(messages.RollRequest(THERE)),
    Op.TRIM: encode(messages.TrimRequest(THERE, 1)),
    Op.APPEND: frames.build_append(7, 0, batch_of(b"x"))[12:],
    Op.FETCH: frames.build_fetch(7, 0, 0, 1000, 0)[12:],
    Op.FIND_OFFSET: encode(messages.FindOffsetRequest(0, "earliest")),
    Op.FETCH_INDEXED: encode(messages.FetchIndexedRequest(0, "key", b"k")),
    Op.SUBSCRIBE: encode(messages.SubscribeRequest(1, credit_bytes=1000, start="earliest", filter="plant/#")),
    Op.UNSUBSCRIBE: encode(messages.UnsubscribeRequest(1)),
    Op.CREDIT: b"\0" * 12,
    Op.ACKNOWLEDGE: b"\0" * 32,
    Op.CURSOR_GET: encode(messages.CursorRequest(THERE, "c")),
    Op.CURSOR_LIST: encode(messages.CursorListRequest(THERE)),
    Op.CURSOR_COMMIT: encode(messages.CursorCommitRequest(THERE, "c", 1)),
    Op.CURSOR_DELETE: encode(messages.CursorDeleteRequest(THERE, "c")),
    Op.STATE_GET: encode(messages.StateGetRequest(b"key")),
    Op.STATE_PUT: encode(messages.StatePutRequest(b"key", b"changed")),
    Op.STATE_DELETE: encode(messages.StateDeleteRequest(b"key")),
    Op.STATE_SCAN: encode(messages.StateScanRequest(b"")),
    Op.COMMIT: encode(messages.CommitRequest(appends=[messages.ShardBatch(THERE, batch_of(b"x"))])),
    Op.PRODUCER_OPEN: encode(messages.ProducerOpenRequest("p")),
}


def test_the_table_has_every_operation() -> None:
    assert {Op.HELLO, *BODIES, *PUSHED} == set(Op)


@asynccontextmanager
async def plant(path: Path) -> AsyncIterator[Served]:
    """A server with data that an unknown client could want."""
    async with guarded(path, *ELSEWHERE) as served:
        async with served.client(user="admin", password=PASSWORD) as admin:
            handle = await admin.open(THERE)
            await admin.append_values(handle, b"one", b"two")
            await admin.call(Op.STATE_PUT, messages.StatePutRequest(b"key", b"kept"))
            await admin.call(Op.CURSOR_COMMIT, messages.CursorCommitRequest(THERE, "c", 0))
            await admin.open("elsewhere/a")
        before = await contents(served)
        yield served
        assert await contents(served) == before


async def contents(served: Served) -> list[object]:
    """Everything that an unknown client could have changed."""
    async with served.client(user="admin", password=PASSWORD) as admin:
        return [
            await admin.call(Op.DESCRIBE_SHARD, messages.NameRequest(THERE)),
            [shard.name for shard in (await admin.call(Op.LIST_SHARDS, messages.ListShardsRequest())).shards],
            await admin.call(Op.CURSOR_LIST, messages.CursorListRequest(THERE)),
            (await admin.call(Op.STATE_GET, messages.StateGetRequest(b"key"))).value,
        ]


async def outcome(client: RawClient, op: Op) -> StorageError | None:
    """What the server answers to an operation."""
    correlation = client.next_correlation()
    await client.send(frames.build(op, correlation, BODIES[op]))
    try:
        reply = await client.receive(lambda frame: frame.correlation in (correlation, 0))
        return error_of(reply.status, reply.body)
    except (EOFError, trio.BrokenResourceError):
        return None


def error_of(status: int, body: bytes | memoryview) -> StorageError | None:
    return decode_error(status, body) if status else None


STRANGERS: Final[dict[str, dict[str, str]]] = {
    "no credentials": {},
    "wrong password": {"user": "anna", "password": "guess"},
    "no such user": {"user": "eve", "password": PASSWORD},
    "no password": {"user": "admin"},
    "password without a user": {"password": PASSWORD},
    "empty": {"user": "", "password": ""},
    "expired token": {"token": EXPIRED_TOKEN},
    "wrong token": {"token": "guess"},
    "a hash for a token": {"token": "0" * 64},
    "a name of a certificate": {"certificate": "admin"},
    "a password for a token": {"token": PASSWORD},
}


@pytest.mark.few_cases(2, "a client for each way in")
@pytest.mark.parametrize("credentials", STRANGERS.values(), ids=STRANGERS)
async def test_who_cannot_show_who_it_is_may_do_nothing(tmp_path: Path, credentials: dict[str, str]) -> None:
    async with plant(tmp_path) as served:
        with capture_logs() as logs:
            for op in BODIES:
                async with served.stream() as stream:
                    client = RawClient(stream)
                    hello = frames.build(
                        Op.HELLO, 1, encode(messages.HelloRequest(frames.PROTOCOL_VERSION, "eve", credentials or None))
                    )
                    # What follows at once must not be carried out before HELLO was looked at.
                    await client.send(hello, frames.build(op, 2, BODIES[op]))
                    received = await client.receive_until_closed()
                    assert [(frame.op, frame.correlation) for frame in received] == [(Op.HELLO, 1)], op.name
                    assert isinstance(error_of(received[0].status, received[0].body), AuthenticationError)
        for secret in (PASSWORD, TOKEN, EXPIRED_TOKEN):
            assert secret not in repr(logs)


async def test_who_says_no_hello_may_do_nothing(tmp_path: Path) -> None:
    async with plant(tmp_path) as served:
        for op in BODIES:
            async with served.stream() as stream:
                client = RawClient(stream)
                await client.send(frames.build(op, 2, BODIES[op]))
                (only,) = await client.receive_until_closed()
                assert isinstance(error_of(only.status, only.body), RemoteProtocolError), op.name


@pytest.mark.parametrize("op", [op for op in BODIES if op not in OWN], ids=lambda op: op.name)
async def test_who_is_allowed_elsewhere_only_may_do_nothing_here(tmp_path: Path, op: Op) -> None:
    async with plant(tmp_path) as served, served.client(user="anna", password=PASSWORD) as anna:
        error = await outcome(anna, op)
        # A client without rights on a shard gets no handle of it, so these requests cannot even name the shard.
        expected = UnknownHandleError if op in BY_HANDLE else NotAuthorizedError
        assert type(error) is expected, error


BY_HANDLE: Final = {Op.APPEND, Op.FETCH, Op.FIND_OFFSET, Op.FETCH_INDEXED}


async def test_what_there_is_not_is_denied_like_what_there_is(tmp_path: Path) -> None:
    async with plant(tmp_path) as served, served.client(user="anna", password=PASSWORD) as anna:
        told = set()
        for name in (THERE, "plant/not-there"):
            for message, op in (
                (messages.OpenShardRequest(name), Op.OPEN_SHARD),
                (messages.OpenShardRequest(name, FILE), Op.OPEN_SHARD),
                (messages.NameRequest(name), Op.DESCRIBE_SHARD),
                (messages.NameRequest(name), Op.DELETE_SHARD),
            ):
                with pytest.raises(NotAuthorizedError) as caught:
                    await anna.call(op, message)
                told.add(str(caught.value).replace(name, ""))
        assert len(told) == 3, told


ALLOWED: Final[list[tuple[str, dict[str, str]]]] = [
    ("a password", {"user": "admin", "password": PASSWORD}),
    ("a token", {"token": TOKEN}),
]


@pytest.mark.parametrize("credentials", [pytest.param(given, id=name) for name, given in ALLOWED])
async def test_who_may_gets_everything_done(tmp_path: Path, credentials: dict[str, str]) -> None:
    async with guarded(tmp_path, *ELSEWHERE) as served, served.client(**credentials) as client:
        await client.append_values(await client.open(THERE), b"one", b"two")
        last = (Op.CLOSE_SHARD, Op.DELETE_SHARD)
        for op in (*(op for op in BODIES if op not in NO_REPLY and op not in last), *last):
            error = await acknowledged(client) if op is Op.APPEND else await outcome(client, op)
            # The trim took what the fetch asks for, and the shard has no index.
            told = {Op.FETCH: "offset_out_of_range", Op.FETCH_INDEXED: "index_missing"}.get(op)
            assert (error and error.code) == told, op.name


async def acknowledged(client: RawClient) -> StorageError | None:
    assert (await client.append_values(0, b"value")).level
    return None


RIGHTS: Final[list[tuple[str, str, Callable[[RawClient], Awaitable[object]]]]] = [
    ("append", "read", lambda client: client.append_values(0, b"x")),
    ("read", "append", lambda client: client.fetch(0, 0)),
    ("read", "append", lambda client: client.call(Op.FIND_OFFSET, messages.FindOffsetRequest(0, "latest"))),
    ("read", "append", lambda client: client.call(Op.DESCRIBE_SHARD, messages.NameRequest("own"))),
    ("read", "append", lambda client: client.call(Op.CURSOR_GET, messages.CursorRequest("own", "c"))),
    ("administer", "read", lambda client: client.call(Op.CURSOR_COMMIT, messages.CursorCommitRequest("own", "c", 0))),
    ("administer", "append", lambda client: client.call(Op.DELETE_SHARD, messages.NameRequest("own"))),
    ("administer", "read", lambda client: client.call(Op.TRIM, messages.TrimRequest("own", 0))),
    (
        "subscribe",
        "read",
        lambda client: client.call(
            Op.SUBSCRIBE, messages.SubscribeRequest(1, credit_bytes=1, start="latest", shard="own")
        ),
    ),
]


@pytest.mark.parametrize(("right", "other", "do"), RIGHTS)
async def test_one_right_is_not_another(
    tmp_path: Path, right: str, other: str, do: Callable[[RawClient], Awaitable[object]]
) -> None:
    rules = (
        rule("own", principal="anna", actions=(right, "append")),
        rule("own", principal="bob", actions=(other,)),
        rule("#", principal="admin"),
    )
    async with guarded(tmp_path, *rules) as served:
        async with served.client(user="admin", password=PASSWORD) as admin:
            await admin.open("own")
        async with served.client(user="bob", password=PASSWORD) as bob:
            await bob.open("own", None)
            with pytest.raises(NotAuthorizedError, match="'bob' may not"):
                await do(bob)
        async with served.client(user="anna", password=PASSWORD) as anna:
            await anna.open("own", None)
            await do(anna)


async def test_a_rule_with_the_name_in_it_gives_everybody_their_own(tmp_path: Path) -> None:
    async with guarded(tmp_path, rule("of/%u/#")) as served:
        for name in ("anna", "bob"):
            async with served.client(user=name, password=PASSWORD) as client:
                await client.append_values(await client.open(f"of/{name}/x"), name.encode())
        async with served.client(user="anna", password=PASSWORD) as anna:
            with pytest.raises(NotAuthorizedError):
                await anna.open("of/bob/x", None)
            for refused in ("#", "of/#", "of/+/x"):
                with pytest.raises(NotAuthorizedError):
                    await anna.call(Op.LIST_SHARDS, messages.ListShardsRequest(refused))
            (own,) = (await anna.call(Op.LIST_SHARDS, messages.ListShardsRequest("of/anna/#"))).shards
            assert own.name == "of/anna/x"


async def test_no_client_can_fence_the_producer_of_another(tmp_path: Path) -> None:
    request = messages.ProducerOpenRequest("gateway")
    async with (
        guarded(tmp_path, rule("#")) as served,
        served.client(user="anna", password=PASSWORD) as anna,
        served.client(user="bob", password=PASSWORD) as bob,
    ):
        first = await anna.call(Op.PRODUCER_OPEN, request)
        other = await bob.call(Op.PRODUCER_OPEN, request)
        again = await anna.call(Op.PRODUCER_OPEN, request)
        assert other.producer_id != first.producer_id == again.producer_id
        assert again.epoch == first.epoch + 1


async def test_no_client_can_send_as_the_producer_of_another(tmp_path: Path) -> None:
    """Ids are small numbers that every client can guess, and a batch names its producer itself."""
    async with (
        guarded(tmp_path, rule("#")) as served,
        served.client(user="anna", password=PASSWORD) as anna,
        served.client(user="bob", password=PASSWORD) as bob,
    ):
        identity = await anna.call(Op.PRODUCER_OPEN, messages.ProducerOpenRequest("gateway"))
        shared, own = await anna.open("shared"), await bob.open("own")

        def sent_as_anna(sequence: int, value: bytes) -> bytes:
            return batch_of(value, producer_id=identity.producer_id, producer_epoch=identity.epoch, sequence=sequence)

        await anna.append(shared, sent_as_anna(0, b"0"))
        for handle in (await bob.open("shared"), own):
            with pytest.raises(UnknownProducerError, match="was never opened"):
                await bob.append(handle, sent_as_anna(1, b"forged"))
        # Neither fenced nor taken for a repetition.
        assert not (await anna.append(shared, sent_as_anna(1, b"1"))).is_duplicate
        assert await anna.read_values(shared) == [b"0", b"1"]
        # She herself goes on over another connection.
        async with served.client(user="anna", password=PASSWORD) as again:
            await again.append(await again.open("shared"), sent_as_anna(2, b"2"))


async def test_clients_without_credentials_are_accepted_where_that_is_configured(tmp_path: Path) -> None:
    rules = (rule("open/#"), rule("#", principal="admin"))
    async with guarded(tmp_path, *rules, access__anonymous=True) as served, served.client() as unnamed:
        await unnamed.append_values(await unnamed.open("open/x"), b"value")
        with pytest.raises(NotAuthorizedError, match="without a name"):
            await unnamed.open("closed")
        with pytest.raises(AuthenticationError):
            async with served.client(user="admin", password="guess"):
                pass


async def test_a_client_that_guesses_is_slowed_down_and_gets_the_reason(tmp_path: Path) -> None:
    async with guarded(tmp_path) as served:
        for _ in range(5):
            with pytest.raises(AuthenticationError, match="wrong user name or password"):
                async with served.client(user="anna", password="guess"):
                    pass
        with pytest.raises(AuthenticationError, match="wait a minute"):
            async with served.client(user="anna", password=PASSWORD):
                pass
        async with served.client(user="bob", password=PASSWORD):
            pass


async def test_a_shard_with_the_name_of_a_groups_filter_does_not_lead_into_the_group(tmp_path: Path) -> None:
    """Both were one key, so a shard called ``filter secret/#`` was the filter ``secret/#``."""
    rules = (
        rule("#", principal="admin"),
        rule("secret/#", allow=False),
        rule("#", principal="anna"),
    )
    async with (
        guarded(tmp_path, *rules) as served,
        served.client(user="admin", password=PASSWORD) as admin,
        served.client(user="anna", password=PASSWORD) as anna,
    ):
        on_filter = messages.SubscribeRequest(
            1, credit_bytes=1000, start="earliest", filter="secret/#", group="billing"
        )
        handle = await admin.open("secret/a")
        await admin.call(Op.SUBSCRIBE, on_filter)
        with pytest.raises(InvalidNameError, match="shard name"):
            await anna.call(Op.SUBSCRIBE, attrs.evolve(on_filter, filter=None, shard="filter secret/#"))
        with pytest.raises(NotAuthorizedError):
            await anna.call(Op.SUBSCRIBE, on_filter)
        assert served.engine.parts.subscriptions.count == 1
        await admin.append_values(handle, b"secret")
        assert (await admin.push()).first_offset == 0
