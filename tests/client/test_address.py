"""An address names a server, a user and files with secrets; messages about it show no secret."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from journal.client.address import Address
from shards.errors import InvalidRequestError

SECRET = "correct-horse-battery"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("host", Address("tcp", "host", 7420)),
        ("anna@host", Address("tcp", "host", 7420, user="anna")),
        ("journals://host", Address("tls", "host", 7420)),
        ("journal+wss://host:1/x", Address("wss", "host", 1, "/x")),
        ("journal://an%40na@[::1]:9", Address("tcp", "::1", 9, user="an@na")),
        (
            "journals://anna@host?password_file=/a%20b&ca_file=/c",
            Address("tls", "host", 7420, user="anna", password_file="/a b", ca_file="/c"),
        ),
        ("journal://host?token_file=/t/x", Address("tcp", "host", 7420, token_file="/t/x")),
        ("journal://host?read=follower", Address("tcp", "host", 7420, read="follower")),
        (
            "journal+wss://host/p?certificate_file=c&key_file=k",
            Address("wss", "host", 7421, "/p", certificate_file="c", key_file="k"),
        ),
    ],
)
def test_an_address_says_where_the_server_is_and_where_secrets_lie(text: str, expected: Address) -> None:
    assert Address.parse(text) == expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"journal://anna:{SECRET}@host", "password in it"),
        (f"anna:{SECRET}@host:7420", "password in it"),
        (f"journal://anna:{SECRET}@host:none", "password in it"),
        (f"journal://host?password={SECRET}", "unknown option 'password'"),
        (f"journal://host?token={SECRET}", "unknown option 'token'"),
        ("journal://host?password_file=x", "no user"),
        ("journal://a@host?password_file=x&token_file=y", "give one"),
        ("journal://host?ca_file=x", "no TLS"),
        ("journals://host?key_file=x", "no certificate_file"),
        ("journal://host?read=owner", "can only be follower"),
        ("journal://@host", "none of host:port"),
        (f"https://host?x={SECRET}", "none of host:port"),
        # Found by fuzzing: these were shown, since what the password ends was taken for the address.
        (f"journals://anna:{SECRET}@journals://host", "password in it"),
        (f"anna:{SECRET}@https://host", "none of host:port"),
        (f"anna:{SECRET}/x@host", "none of host:port"),
        (f"anna:{SECRET}?x@host", "none of host:port"),
        (f"journal://anna:80?{SECRET}@host", "an option is unknown"),
        ("journal://host:\u00b2", "none of host:port"),
    ],
)
def test_what_makes_no_sense_or_would_show_a_secret_is_refused_without_repeating_it(text: str, told: str) -> None:
    with pytest.raises(InvalidRequestError, match=told) as caught:
        Address.parse(text)
    assert SECRET not in str(caught.value)


def test_secrets_come_from_files_or_the_environment_each_time_anew(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\r\nmore\n")
    environment = {"JOURNAL_PASSWORD": "from-environment", "JOURNAL_TOKEN": "token"}

    def credentials(text: str) -> dict[str, str] | None:
        return Address.parse(text).credentials(environment)

    assert credentials(f"anna@host?password_file={file}") == {"user": "anna", "password": SECRET}
    assert credentials(f"host?token_file={file}") == {"token": SECRET}
    assert credentials("anna@host") == {"user": "anna", "password": "from-environment"}
    assert credentials("host") == {"token": "token"}
    assert Address.parse("anna@host").credentials({}) == {"user": "anna"}, "a certificate may do"
    assert Address.parse("host").credentials({}) is None
    file.write_text("another")
    assert credentials(f"host?token_file={file}") == {"token": "another"}
    assert SECRET not in repr(Address.parse(f"anna@host?password_file={file}"))


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    missing, empty, binary = tmp_path / "missing", tmp_path / "empty", tmp_path / "binary"
    empty.write_text("\n" + SECRET)
    binary.write_bytes(b"\xff" + SECRET.encode())
    for path, told in ((missing, "cannot be read"), (empty, "has an empty first line"), (binary, "is not text")):
        with pytest.raises(InvalidRequestError, match=told) as caught:
            Address.parse(f"anna@host?password_file={path}").credentials({})
        assert str(path) in str(caught.value)
        assert SECRET not in str(caught.value)
    for option in (f"ca_file={missing}", f"ca_file={binary}", f"certificate_file={missing}"):
        with pytest.raises(InvalidRequestError, match="no usable certificates"):
            Address.parse(f"journals://host?{option}").tls_context()
    assert Address.parse("journals://host").tls_context().verify_mode is ssl.CERT_REQUIRED


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("journal://a:1,b:2?read=follower", "journal://a:1,b:2"),
        (
            "journals://anna@a?ca_file=/c&read=follower&password_file=/p",
            "journals://anna@a?ca_file=/c&password_file=/p",
        ),
        ("journal://a?token_file=/t", "journal://a?token_file=/t"),
        ("a:1", "a:1"),
    ],
)
def test_the_address_for_writes_is_the_same_without_the_option_for_reads(text: str, expected: str) -> None:
    assert Address.to_write(text) == expected
