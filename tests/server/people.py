"""Who there is in tests of access: users, tokens, certificates, and a server that asks for them."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import trustme

from journal.access.tokens import TokenHash
from journal.access.users import Cost, PasswordHash, write_user
from journal.settings.access import AccessRuleTable, RuleAction
from journal.settings.values import Permission
from tests.server.serving import Served, serving

AUTHORITY: Final = trustme.CA()
OTHER_AUTHORITY: Final = trustme.CA()
PASSWORD: Final = "secret-of-anna"
TOKEN: Final = "token-of-robot"
EXPIRED_TOKEN: Final = "old-token-of-robot"
_CHEAP: Final = Cost(n=2, r=1, p=1)


def rule(
    *topics: str, principal: str = "", actions: tuple[str, ...] = ("all",), allow: bool = True, **names: tuple[str, ...]
) -> AccessRuleTable:
    """A rule; ``names`` are groups and cursors."""
    permission = Permission.ALLOW if allow else Permission.DENY
    return AccessRuleTable(permission, topics, tuple(RuleAction(each) for each in actions), principal, **names)


def write_people(path: Path) -> dict[str, Any]:
    """Write users ``anna``, ``bob`` and ``admin`` (password: `PASSWORD`), and tokens of ``robot``; gives settings."""
    users, tokens = path / "users", path / "tokens"
    for name in ("anna", "bob", "admin"):
        write_user(str(users), name, PasswordHash.of(PASSWORD.encode(), _CHEAP))
    tokens.write_text(
        f"{TokenHash.of('robot', TOKEN).format()}\n{TokenHash.of('robot', EXPIRED_TOKEN, 1_000_000_000.0).format()}\n"
    )
    return {"access__users_file": str(users), "access__tokens_file": str(tokens)}


@asynccontextmanager
async def guarded(path: Path, *rules: AccessRuleTable, **changes: Any) -> AsyncIterator[Served]:
    """A server that asks who is there."""
    settings = {**write_people(path), "access__rules": rules, **changes}
    async with serving(path, **settings) as served:
        yield served


def write_server_certificate(path: Path) -> dict[str, Any]:
    """Settings of a server with a certificate for 127.0.0.1 that takes client certificates of `AUTHORITY`."""
    files = {name: path / f"{name}.pem" for name in ("certificate", "key", "ca")}
    certificate = AUTHORITY.issue_cert("127.0.0.1", "localhost")
    files["certificate"].write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
    files["key"].write_bytes(certificate.private_key_pem.bytes())
    files["ca"].write_bytes(AUTHORITY.cert_pem.bytes())
    return {
        "tls__certificate_file": str(files["certificate"]),
        "tls__key_file": str(files["key"]),
        "tls__client_ca_file": str(files["ca"]),
    }


def write_client_certificate(path: Path, name: str, authority: trustme.CA = AUTHORITY, *, expired: bool = False) -> str:
    """A certificate of a user, with its key in the same file."""
    now = datetime.now(UTC)
    times = {"not_before": now - timedelta(days=9), "not_after": now - timedelta(days=2)} if expired else {}
    certificate = authority.issue_cert(f"{name}@example.org", common_name=name, **times)
    file = path / f"{name}-{expired}-{authority is AUTHORITY}.pem"
    file.write_bytes(certificate.private_key_and_cert_chain_pem.bytes())
    return str(file)


def client_context(certificate_file: str = "") -> ssl.SSLContext:
    """What trusts `AUTHORITY`, and shows a certificate if there is one."""
    context = ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    if certificate_file:
        context.load_cert_chain(certificate_file)
    return context
