"""Which JSON Web Tokens are accepted, and why others are not."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given
from hypothesis import strategies as st

from journal.access.authorization import Action
from journal.access.json_web_keys import KeyMissingError, KeySetError, parse_key_set
from journal.access.json_web_tokens import TokenRefusedError, claim, claims_of
from journal.access.jwt_login import JwtLogin, JwtSettings
from journal.access.login_grants import grants_of
from journal.access.login_settings import read_keys
from journal.access.logins import Attempt
from journal.protocol.errors import AuthenticationError
from journal.settings.values import ConfigurationError
from tests.access.issuer import AUDIENCE, SECRET, STANDARD, key_set, private_key, public_jwk, token

SHORT = json.loads(jwt.get_algorithm_by_name("RS256").to_jwk(rsa.generate_private_key(65_537, 1024).public_key()))
KEYS = parse_key_set(key_set(*STANDARD), takes_secrets=True)


def why_not(text: str, **settings: Any) -> str:
    with pytest.raises((TokenRefusedError, KeyMissingError)) as caught:
        claims_of(text, KEYS, **{"audience": [AUDIENCE], "issuer": "", "leeway_s": 30, **settings})
    assert len(text) < 40 or text[:40] not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "HS256"])
def test_a_token_of_each_algorithm_is_accepted_by_its_own_key_alone(algorithm: str) -> None:
    claims, key = claims_of(token(algorithm=algorithm), KEYS, audience=[AUDIENCE], issuer="", leeway_s=0)
    assert (claims["sub"], key.algorithm) == ("anna", algorithm)
    other = {"RS256": "e", "ES256": "h", "HS256": "r"}[algorithm]
    assert "but its key is for" in why_not(token(algorithm=algorithm, key_id=other))
    if algorithm != "HS256":
        assert why_not(token(algorithm=algorithm, number=1)) == "its signature is wrong"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"expires_in_s": -31}, "it has expired"),
        ({"exp": None}, "it lacks the claim exp"),
        ({"exp": "soon"}, "it cannot be read"),
        ({"exp": "4000000000"}, "its exp is not a number"),
        ({"nbf": 4_000_000_000}, "it is not valid yet"),
        ({"aud": None}, "it lacks the claim aud"),
        ({"aud": "other"}, "it is for another audience"),
        ({"aud": ["other", "mqtt2"]}, "it is for another audience"),
        ({"key_id": "x"}, "its key (kid) 'x' is not known"),
        ({"key_id": "x" * 500}, f"its key (kid) '{'x' * 60}' is not known"),
    ],
)
def test_what_is_wrong_with_a_token_is_said(changes: dict[str, Any], reason: str) -> None:
    assert why_not(token(**changes)) == reason


def test_the_issuer_is_checked_if_it_is_configured() -> None:
    mine = token(iss="https://issuer.example")
    claims_of(mine, KEYS, audience=[AUDIENCE], issuer="https://issuer.example", leeway_s=0)
    assert why_not(mine, issuer="https://other.example") == "it is of another issuer"
    assert why_not(token(), issuer="https://other.example") == "it lacks the claim iss"


def test_clocks_may_differ_by_the_leeway() -> None:
    early, late = token(nbf=int(time.time()) + 20), token(expires_in_s=-20)
    for text in (early, late):
        claims_of(text, KEYS, audience=[AUDIENCE], issuer="", leeway_s=30)
        why_not(text, leeway_s=5)


def unsigned(header: dict[str, Any], signature: bytes = b"") -> str:
    claims = {"sub": "anna", "aud": AUDIENCE, "exp": int(time.time()) + 600}
    parts = [json.dumps(header).encode(), json.dumps(claims).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


OTHERS = ["none", "None", "NONE", "", "RS512", "PS256", "HS512", "EdDSA", None, 1, ["ES256"]]


@pytest.mark.parametrize("algorithm", OTHERS)
def test_other_algorithms_are_refused(algorithm: object) -> None:
    for header in ({"alg": algorithm, "kid": "e"}, {"alg": algorithm}):
        why_not(unsigned(header))
        why_not(unsigned(header, b"x" * 64))


def test_a_public_key_is_no_secret() -> None:
    """The old mistake: HS256 with the text of the public key, which everyone has, as the secret."""
    pem = (
        private_key("RS256")
        .public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    reasons = {"r": "its algorithm is 'HS256', but its key is for RS256", "h": "its signature is wrong"}
    for key_id, reason in reasons.items():
        text = unsigned({"alg": "HS256", "kid": key_id}).rpartition(".")[0]
        signature = base64.urlsafe_b64encode(hmac.digest(pem, text.encode(), hashlib.sha256)).rstrip(b"=").decode()
        assert why_not(f"{text}.{signature}") == reason


def test_headers_that_name_keys_or_extensions_are_not_followed() -> None:
    foreign = private_key("ES256", 7)
    jwk = {key: value for key, value in public_jwk("ES256", "new", 7).items() if key != "use"}
    claims = {"sub": "anna", "aud": AUDIENCE, "exp": int(time.time()) + 600}
    url = "http://127.0.0.1/"
    for header in ({"jwk": jwk, "kid": "new"}, {"jku": url, "kid": "e"}, {"x5u": url, "kid": "e"}):
        why_not(jwt.encode(claims, foreign, "ES256", header))
    own = jwt.encode(claims, private_key("ES256"), "ES256", {"kid": "e", "crit": ["x"], "x": 1})
    why_not(own)


HEADERS = st.binary(max_size=200).map(lambda data: f"{base64.urlsafe_b64encode(data).decode()}.e.s")


@given(st.text(max_size=200) | HEADERS)
def test_what_is_no_token_is_refused(text: str) -> None:
    why_not(text or ".", leeway_s=0)


def test_deep_nesting_is_refused() -> None:
    deep = base64.urlsafe_b64encode(b"[" * 9000).rstrip(b"=").decode()
    why_not(f"{deep}.{deep}.{deep}")


def test_a_token_without_a_kid_needs_one_key_alone_of_its_algorithm() -> None:
    one = parse_key_set(key_set(public_jwk("ES256", "a"), public_jwk("RS256", "b")), takes_secrets=False)
    claims_of(token(key_id=""), one, audience=[AUDIENCE], issuer="", leeway_s=0)
    two = parse_key_set(key_set(public_jwk("ES256", "a"), public_jwk("ES256", "b", 1)), takes_secrets=False)
    with pytest.raises(KeyMissingError, match="names no key"):
        claims_of(token(key_id=""), two, audience=[AUDIENCE], issuer="", leeway_s=0)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "is not JSON"),
        (b"[]", "is not JSON of the form"),
        (b"[" * 100_000, "is not JSON"),
        (b"{}", 'not of the form {"keys"'),
        (b'{"keys": [1]}', 'not of the form {"keys"'),
        (b'{"keys": []}', "has no key that can be used"),
        (key_set({"kty": "RSA"}), "key 1 cannot be read"),
        (key_set(SHORT), "key 1 is too short"),
        (key_set({"kty": "oct", "k": "c2hvcnQ"}), "key 1 is too short"),
        (key_set({**public_jwk("RS256", "r"), "alg": "HS256"}), "is for an algorithm other than RS256"),
        (key_set({**public_jwk("RS256", "r"), "use": "enc"}), "is not for signatures"),
        (key_set({**public_jwk("RS256", "r"), "d": "AQ"}), "has its private part"),
        (key_set({"kty": "EC", "crv": "P-384"}), "is neither RSA"),
        (key_set({"kty": ["RSA"]}), "is neither RSA"),
        (key_set(public_jwk("ES256", "a"), public_jwk("ES256", "a", 1)), "two keys with the kid 'a'"),
        (key_set(*[{"kty": "x"}] * 101), "has 101 keys"),
    ],
)
def test_a_key_set_that_cannot_be_used_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(KeySetError) as caught:
        parse_key_set(data, takes_secrets=True)
    assert problem in str(caught.value)


def test_a_secret_counts_only_in_a_file_and_other_keys_are_used_beside_it(tmp_path: Path) -> None:
    fetched = parse_key_set(key_set(*STANDARD), takes_secrets=False)
    assert (len(fetched), fetched.unusable) == (2, ("key 3 is a secret, which only a file may have",))
    file = tmp_path / "keys.json"
    file.write_bytes(key_set(*STANDARD))
    assert len(read_keys(str(file))) == 3
    file.write_bytes(b"{}")
    with pytest.raises(ConfigurationError, match="keys_file"):
        read_keys(str(file))
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_keys(str(tmp_path / "none"))


def test_a_claim_is_found_by_its_name_or_its_path() -> None:
    claims = {"a.b": 1, "realm": {"roles": ["x"], "deep": {"n": 2}}}
    assert [claim(claims, path) for path in ("a.b", "realm.roles", "realm.deep.n", "realm.none", "none.x", "a")] == [
        1, ["x"], 2, None, None, None,
    ]  # fmt: skip


def test_roles_and_rules_of_a_login() -> None:
    deny_own = {"permission": "deny", "topics": ["a/%u/#"], "actions": ["publish"]}
    grants = grants_of(["operators"], [deny_own, {"permission": "allow", "groups": ["g"]}])
    deny, allow = grants.rules
    assert (grants.roles, deny.allow, deny.actions) == (frozenset({"operators"}), False, frozenset({Action.APPEND}))
    assert (allow.groups, allow.actions) == (("g",), frozenset(Action))
    assert grants_of("one", None).roles == {"one"}
    assert grants_of(None, None) == grants_of([], [])


@pytest.mark.parametrize(
    ("roles", "rules"),
    [
        (1, None),
        ([1], None),
        (["x"] * 101, None),
        (None, "x"),
        (None, [{"permission": "allow"}]),
        (None, [{"permission": "maybe", "topics": ["a"]}]),
        (None, [{"permission": "allow", "topics": ["a/#/b"]}]),
        (None, [{"permission": "allow", "topics": ["a"] * 101}]),
        (None, [{"permission": "allow", "topics": ["a"], "actions": ["eat"]}]),
        (None, [{"permission": "allow", "topics": ["a"], "actions": []}]),
        (None, [{"permission": "allow", "topics": ["a"], "user": "x"}]),
        (None, [{"permission": "allow", "topics": ["a"]}] * 101),
    ],
)
def test_roles_and_rules_of_another_form_refuse_the_login(roles: object, rules: object) -> None:
    with pytest.raises(ValueError, match=r"role|rule"):
        grants_of(roles, rules)


def login(**settings: Any) -> JwtLogin:
    return JwtLogin(JwtSettings((AUDIENCE,), keys=KEYS, **settings))


async def check(text: str | bytes, user: str | None = None, by: JwtLogin | None = None) -> Any:
    secret: Any = {"password": text} if isinstance(text, bytes) else {"token": text}
    return await (by or login()).check(Attempt("10.0.0.1:1", user, **secret), is_last=True)


async def test_a_token_gives_user_end_roles_and_rules() -> None:
    rules = [{"permission": "allow", "topics": ["a"]}]
    text = token(expires_in_s=100, realm={"user": "anna", "roles": ["x"]}, sub="other", journal_rules=rules)
    by = login(user_claim="realm.user", roles_claim="realm.roles", leeway_s=7)
    for sent in (text, text.encode()):
        identity = await check(sent, by=by)
        assert (identity.name, identity.grants) == ("anna", grants_of(["x"], rules))
        assert 100 < identity.expires_at_s - time.time() <= 108
        assert by.still_accepts(identity)


@pytest.mark.parametrize("user", [None, 1, "", "a:b", " a", ["anna"]])
async def test_a_token_without_a_valid_user_is_refused(user: Any) -> None:
    with pytest.raises(AuthenticationError, match="the token is not accepted"):
        await check(token(user))


async def test_a_user_that_is_sent_must_be_that_of_the_token() -> None:
    assert (await check(token(), "anna")).name == "anna"
    with pytest.raises(AuthenticationError, match="not accepted"):
        await check(token(), "bob")


@pytest.mark.parametrize("sent", ["opaque", b"password", b"a.b", b"\xff.\xff.\xff", b"x." * 20_000 + b"x", ""])
async def test_what_does_not_look_like_a_token_is_left_to_other_methods(sent: str | bytes) -> None:
    assert await check(sent) is None


async def test_an_expiry_beyond_all_times_is_no_error() -> None:
    assert (await check(token(exp=10**400))).expires_at_s > time.time()


async def test_a_login_ends_when_its_key_issuer_or_audience_does() -> None:
    by = login()
    identity = await check(token(iss="i"), by=by)
    other = parse_key_set(key_set(public_jwk("ES256", "e", 1)), takes_secrets=False)
    for changed in (
        None,
        JwtSettings((AUDIENCE,), keys=other),
        JwtSettings(("else",), keys=KEYS),
        JwtSettings((AUDIENCE,), "other", keys=KEYS),
    ):
        by.settings = changed
        assert not by.still_accepts(identity)
    by.settings = JwtSettings((AUDIENCE, "else"), "i", keys=KEYS)
    assert by.still_accepts(identity)
    assert SECRET.decode() not in repr(by.settings)
