"""The audit log of a broker: who came in, who was refused what, and who took a session."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from broker_adapter.mqtt.access.audit import MAX_DIFFERENT, BrokerAudit
from broker_adapter.mqtt.access.quotas import Quota, Quotas
from broker_adapter.mqtt.access.users import AccessControl, ClientIds
from broker_adapter.mqtt.session import SessionSettings
from broker_adapter.mqtt_codec import Properties, ReasonCode, Version
from broker_adapter.mqtt_codec.packets import Will
from journal.access.audit import AuditLog
from journal.access.login_methods import Credentials, Logins
from journal.access.rules import AccessRule, AccessRules
from journal.access.users import Cost, PasswordHash, Users
from tests.mqtt.serving import Client, Serving, serving
from tests.patience import PATIENCE_S

USERS = Users({name: PasswordHash.of(name.encode(), Cost(2, 1, 1)) for name in ("anna", "bob")})
OPEN = AccessRules([AccessRule(True, ("open/#",))], default=False)


class Audited:
    """A broker with an audit log."""

    def __init__(self, served: Serving, access: AccessControl, file: Path) -> None:
        self.served = served
        self.access = access
        self._file = file

    def lines(self) -> list[dict[str, Any]]:
        """The lines, without what differs from run to run."""
        lines = [json.loads(line) for line in self._file.read_text().splitlines()]
        for line in lines:
            del line["time_us"]
        return lines

    def acts(self, *, but: str = "login") -> list[tuple[str, ...]]:
        """Act, principal, client, target and outcome of all lines but those of one act."""
        return [
            (line["act"], line["principal"], line.get("client", ""), line["target"], line["outcome"])
            for line in self.lines()
            if line["act"] != but
        ]

    async def client(self, user: str, client_id: str, version: Version = Version.V5, **options: Any) -> Client:
        return await self.served.client(client_id, version, username=user, password=user.encode(), **options)


@asynccontextmanager
async def audited(directory: Path, **options: Any) -> AsyncIterator[Audited]:
    file = directory / "audit.jsonl"
    access = AccessControl(Logins(Credentials(users=USERS)), OPEN, anonymous=False)
    audit = BrokerAudit(AuditLog(str(file)), lambda name: USERS.hash_of(name) is not None)
    async with serving(access=access, audit=audit, **options) as served:
        yield Audited(served, access, file)


async def test_logins_that_succeed_and_fail_have_lines(tmp_path: Path) -> None:
    async with audited(tmp_path) as there:
        for user, password in (("anna", b"anna"), ("anna", b"wrong"), ("hunter2", b"x")):
            await there.served.dial().connect("c1", username=user, password=password)
        refused = {"principal": "", "peer": "test", "act": "login", "outcome": "authentication_failed"}
        assert there.lines() == [
            {"principal": "anna", "peer": "test", "act": "login", "target": "", "outcome": "ok", "client": "c1"},
            {**refused, "target": "anna"},
            # People type passwords where the name belongs.
            {**refused, "target": ""},
        ]


@pytest.mark.parametrize("version", list(Version))
async def test_refused_publishes_and_subscriptions_have_one_line_for_each_topic(
    tmp_path: Path, version: Version
) -> None:
    async with audited(tmp_path) as there:
        anna = await there.client("anna", "c1", version)
        for _ in range(3):
            await anna.publish("secret/x", b"1", 1)
        await anna.publish("open/x", b"1", 1)
        await anna.subscribe("secret/#", "$share/g/secret/y", "open/#")
        assert there.acts() == [
            ("publish", "anna", "c1", "secret/x", "not_authorized"),
            ("subscribe", "anna", "c1", "secret/#", "not_authorized"),
            ("subscribe", "anna", "c1", "$share/g/secret/y", "not_authorized"),
        ]
        await anna.leave()


async def test_a_client_with_ever_other_topics_does_not_fill_the_log(tmp_path: Path) -> None:
    async with audited(tmp_path) as there:
        anna = await there.client("anna", "c1")
        for number in range(2 * MAX_DIFFERENT):
            await anna.publish(f"secret/{number}", b"1", 0)
        await anna.silent()
        acts = there.acts()
        assert len(acts) == MAX_DIFFERENT + 1
        assert acts[-1] == ("publish", "anna", "", "", "several")
        await anna.leave()


async def test_a_session_that_another_connection_takes_has_a_line(tmp_path: Path) -> None:
    async with audited(tmp_path) as there:
        first = await there.client("anna", "c1")
        second = await there.client("anna", "c1")
        await first.refused(ReasonCode.SESSION_TAKEN_OVER)
        assert there.acts() == [("takeover", "anna", "c1", "one", "ok")]
        await second.leave()


async def test_clients_that_are_refused_after_their_login_have_a_line_with_the_reason(tmp_path: Path) -> None:
    async with audited(tmp_path, quotas=Quotas([Quota(connections=1)])) as there:
        anna = await there.client("anna", "c1", clean_start=False, properties=Properties(session_expiry_interval=60))
        there.access.client_ids = ClientIds(["c*"])
        for user, client_id, will in (
            ("anna", "c2", None),
            ("bob", "c1", None),
            ("bob", "x", None),
            ("bob", "c3", "secret"),
        ):
            await there.served.dial().connect(
                client_id, username=user, password=user.encode(), will=Will(will, b"", 0) if will else None
            )
        assert there.acts() == [
            ("connect", "anna", "c2", "", "quota_exceeded"),
            ("connect", "bob", "c1", "", "not_authorized"),
            ("connect", "bob", "x", "", "client_identifier_not_valid"),
            ("connect", "bob", "c3", "secret", "not_authorized"),
        ]
        await anna.leave()


async def test_a_will_that_is_not_published_any_more_has_a_line(tmp_path: Path) -> None:
    settings = SessionSettings(timer_interval_s=0.05)
    async with audited(tmp_path, session_settings=settings) as there:
        anna = await there.client("anna", "c1", will=Will("open/will", b"gone", 1))
        there.access.rules = AccessRules([], default=False)
        await anna.stream.aclose()
        with trio.fail_after(PATIENCE_S):
            while not there.acts():
                await trio.sleep(0.01)
        assert there.acts() == [("will", "anna", "c1", "open/will", "not_authorized")]
