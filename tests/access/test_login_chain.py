"""Login methods are asked in their order, and the first that accepts or refuses decides."""

from __future__ import annotations

import pytest

from journal.access.login_methods import Credentials, Logins
from journal.access.logins import Attempt, LoginStep
from journal.access.tokens import TokenHash, Tokens
from journal.access.users import Cost, PasswordHash, Users
from journal.net.certificate_names import CertificateField, name_in
from journal.protocol.errors import AuthenticationError

PEER = "10.0.0.1:4711"
USERS = Users({"anna": PasswordHash.of(b"secret", Cost(2, 1, 1))})
TOKENS = Tokens([TokenHash.of("robot", "right")])


def logins(*kinds: str, denied: tuple[str, ...] = ()) -> Logins:
    order = tuple(LoginStep(kind, frozenset(denied)) for kind in kinds) or None
    return Logins(Credentials(users=USERS, tokens=TOKENS, certificates=True, order=order), lambda: 0.0, lambda: 0.0)


def sent(**values: object) -> Attempt:
    return Attempt(PEER, **values)  # type: ignore[arg-type]


ANNA = sent(user="anna", password=b"secret", certificate_name="gateway")


async def who(by: Logins, attempt: Attempt) -> tuple[str, str]:
    identity = await by.authenticate(attempt)
    assert identity is not None
    assert by.is_still_known(identity)
    return identity.name, identity.method


async def test_the_first_method_that_accepts_decides() -> None:
    assert await who(logins("users", "certificate"), ANNA) == ("anna", "users")
    both = sent(token="right", certificate_name="gateway")
    assert await who(logins("certificate", "tokens"), both) == ("robot", "tokens")
    assert await who(logins("certificate", "users"), sent(certificate_name="gateway")) == ("gateway", "certificate")


async def test_the_first_method_that_refuses_decides() -> None:
    with pytest.raises(AuthenticationError, match="certificate is of 'gateway'"):
        await logins("certificate", "users").authenticate(ANNA)
    with pytest.raises(AuthenticationError, match="wrong user name"):
        await logins("users", "certificate").authenticate(sent(user="anna", password=b"x", certificate_name="anna"))


async def test_without_an_order_passwords_and_tokens_come_before_certificates() -> None:
    assert await who(logins(), ANNA) == ("anna", "users")
    assert await who(logins(), sent(token="right", certificate_name="gateway")) == ("robot", "tokens")
    assert await who(logins(), sent(certificate_name="gateway")) == ("gateway", "certificate")


async def test_what_no_method_decides_about_is_left_to_the_program() -> None:
    for attempt in (sent(), sent(user="anna"), sent(password=b"secret")):
        assert await logins("certificate", "users", "tokens").authenticate(attempt) is None


async def test_an_unknown_user_is_refused_by_the_last_method_that_takes_passwords() -> None:
    with pytest.raises(AuthenticationError, match="wrong user name"):
        await logins("users", "tokens", "certificate").authenticate(sent(user="eve", password=b"x"))


@pytest.mark.parametrize("kind", ["users", "tokens", "certificate"])
async def test_a_denied_user_is_refused_and_is_not_known_any_more(kind: str) -> None:
    name = {"users": "anna", "tokens": "robot", "certificate": "gateway"}[kind]
    attempt = {
        "users": sent(user="anna", password=b"secret"),
        "tokens": sent(token="right"),
        "certificate": sent(certificate_name="gateway"),
    }[kind]
    by = logins(kind)
    identity = await by.authenticate(attempt)
    assert identity is not None
    by.credentials = logins(kind, denied=(name,)).credentials
    assert not by.is_still_known(identity)
    assert not by.may_know(name)
    with pytest.raises(AuthenticationError, match="may not log in"):
        await by.authenticate(attempt)


async def test_a_login_ends_with_its_method_and_with_the_field_of_certificates() -> None:
    by = logins("certificate", "users")
    identity = await by.authenticate(sent(certificate_name="gateway"))
    assert identity is not None
    for changed in (
        Credentials(users=USERS, certificates=True, order=(LoginStep("users"),)),
        Credentials(certificates=True, certificate_field=CertificateField.DNS, order=(LoginStep("certificate"),)),
    ):
        by.credentials = changed
        assert not by.is_still_known(identity)


@pytest.mark.parametrize(
    ("field", "name"),
    [
        (CertificateField.COMMON_NAME, "anna"),
        (CertificateField.DNS, "first.example.org"),
        (CertificateField.EMAIL, "anna@example.org"),
        (CertificateField.URI, ""),
    ],
)
def test_the_name_is_the_first_one_in_the_field(field: CertificateField, name: str) -> None:
    certificate = {
        "subject": ((("organizationName", "plant"),), (("commonName", "anna"),), (("commonName", "bob"),)),
        "subjectAltName": (
            ("DNS", "first.example.org"),
            ("email", "anna@example.org"),
            ("DNS", "second.example.org"),
        ),
    }
    assert name_in(certificate, field) == name
    assert name_in(None, field) == name_in({}, field) == ""
