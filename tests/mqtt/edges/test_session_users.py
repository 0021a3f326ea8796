"""A session belongs to the user who began it: no other user may open it, with any client identifier."""

from __future__ import annotations

import pytest

from broker_adapter.mqtt.access.permissions import Principal
from broker_adapter.mqtt.access.users import AccessControl, ClientIds
from broker_adapter.mqtt_codec import Properties, ReasonCode, Version
from broker_adapter.mqtt_codec.packets import Connack, Will
from journal.access.login_methods import Credentials, Logins
from journal.access.rules import AccessRules
from journal.access.users import Cost, PasswordHash, Users
from tests.mqtt.edges.listening import logged
from tests.mqtt.serving import Client, Serving, serving

LASTING = Properties(session_expiry_interval=3600)
BOTH = [Version.V311, Version.V5]


def access_control(*patterns: str) -> AccessControl:
    users = Users({name: PasswordHash.of(name.encode(), Cost(2, 1, 1)) for name in ("anna", "bob")})
    return AccessControl(
        Logins(Credentials(users=users)), AccessRules(default=True), anonymous=True, client_ids=ClientIds(patterns)
    )


async def ask(
    served: Serving,
    client_id: str,
    user: str,
    version: Version = Version.V5,
    *,
    clean_start: bool = False,
    will: Will | None = None,
    properties: Properties = LASTING,
) -> tuple[Client, Connack]:
    client = served.dial(version)
    credentials = {"username": user, "password": user.encode()} if user else {}
    answer = await client.connect(
        client_id,
        clean_start=clean_start,
        will=will,
        properties=properties if version is Version.V5 else Properties(),
        **credentials,  # type: ignore[arg-type]
    )
    return client, answer


async def connect(served: Serving, client_id: str, user: str, *, will: Will | None = None) -> Client:
    client, answer = await ask(served, client_id, user, will=will)
    assert answer.reason_code == ReasonCode.SUCCESS
    return client


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize("clean_start", [False, True])
@pytest.mark.parametrize(("owner", "other"), [("anna", "bob"), ("anna", ""), ("", "bob")])
async def test_another_user_takes_neither_the_connection_nor_the_will_nor_the_subscriptions_of_a_session(
    owner: str, other: str, clean_start: bool, version: Version
) -> None:
    async with serving(access=access_control()) as served:
        mine = await connect(served, "pump", owner, will=Will("wills/pump", b"lost"))
        await mine.subscribe("orders", "wills/#", qos=1)
        with logged() as entries:
            thief, answer = await ask(served, "pump", other, version, clean_start=clean_start)
        assert (answer.reason_code, answer.session_present) == (ReasonCode.NOT_AUTHORIZED, False)
        await thief.closed()
        (refusal,) = [one for one in entries if one["event"] == "refused"]
        assert "the session of client 'pump' belongs to" in refusal["error"]
        assert served.broker.statistics.refused["not_authorized"] == 1

        await mine.silent()
        publisher = await connect(served, "publisher", "")
        assert await publisher.publish("orders", b"one", qos=1) == ReasonCode.SUCCESS
        assert (await mine.message()).payload == b"one"
        await publisher.leave()
        await mine.leave()


@pytest.mark.parametrize("clean_start", [False, True])
async def test_what_waits_for_an_absent_client_is_not_deleted_by_another_user(clean_start: bool) -> None:
    async with serving(access=access_control()) as served:
        anna = await connect(served, "pump", "anna")
        await anna.subscribe("orders", qos=1)
        await anna.leave()
        publisher = await connect(served, "publisher", "")
        await publisher.publish("orders", b"waits", qos=1)
        await publisher.leave()

        _, answer = await ask(served, "pump", "bob", clean_start=clean_start)
        assert answer.reason_code == ReasonCode.NOT_AUTHORIZED

        anna, answer = await ask(served, "pump", "anna")
        assert answer.session_present
        assert (await anna.message()).payload == b"waits"
        await anna.leave()


async def test_an_identifier_is_free_again_when_its_session_has_ended() -> None:
    async with serving(access=access_control()) as served:
        anna, _ = await ask(served, "pump", "anna", properties=Properties())
        await anna.leave()
        bob = await connect(served, "pump", "bob")
        await bob.leave()
        _, answer = await ask(served, "pump", "anna")
        assert answer.reason_code == ReasonCode.NOT_AUTHORIZED


@pytest.mark.parametrize("version", BOTH)
async def test_a_user_connects_only_with_the_identifiers_that_are_configured(version: Version) -> None:
    async with serving(access=access_control("%u", "%u-*")) as served:
        for client_id, user in (("bob", "anna"), ("anna-1", "bob"), ("anna", ""), ("x", "anna")):
            refused, answer = await ask(served, client_id, user, version)
            assert answer.reason_code == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
            await refused.closed()
        for client_id in ("anna", "anna-1", "anna-"):
            client, answer = await ask(served, client_id, "anna", version)
            assert answer.reason_code == ReasonCode.SUCCESS
            await client.leave()
        # The broker makes up an identifier that no other client has.
        client, answer = await ask(served, "", "anna", version, clean_start=True)
        assert answer.reason_code == ReasonCode.SUCCESS
        await client.leave()


async def test_clients_that_get_users_keep_their_sessions_where_identifiers_are_bound_to_users() -> None:
    access = access_control()
    async with serving(access=access) as served:
        anonymous = await connect(served, "anna-1", "")
        await anonymous.subscribe("orders", qos=1)
        await anonymous.leave()
        access.client_ids = ClientIds(["%u-*"])
        anna, answer = await ask(served, "anna-1", "anna")
        assert answer.session_present
        await anna.leave()
        access.client_ids = ClientIds()
        _, answer = await ask(served, "anna-1", "")
        assert answer.reason_code == ReasonCode.NOT_AUTHORIZED


@pytest.mark.parametrize(
    ("patterns", "user", "client_id", "allowed", "bound"),
    [
        ([], "", "x", True, False),
        ([], "anna", "x", True, False),
        (["%u"], "anna", "anna", True, True),
        (["%u"], "anna", "anna2", False, False),
        (["%u"], "", "", False, False),
        (["%u*"], "", "x", False, False),
        (["line-*"], "", "line-1", True, False),
        (["line-*"], "", "line-1\n2", True, False),
        (["line-*", "%u"], "anna", "anna", True, True),
        (["*-%u-*"], "anna", "a-anna-b", True, True),
        (["%u"], "*", "anything", False, False),
        (["%u"], ".", "x", False, False),
        (["%u"], "%u", "%u", True, True),
        (["a.c"], "anna", "abc", False, False),
    ],
)
def test_patterns_of_identifiers(patterns: list[str], user: str, client_id: str, allowed: bool, bound: bool) -> None:
    principal = Principal(client_id, user)
    assert (ClientIds(patterns).allow(principal), ClientIds(patterns).bind(principal)) == (allowed, bound)
