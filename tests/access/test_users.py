"""The password file."""

from __future__ import annotations

import base64
import hashlib
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.access.users import Cost, PasswordHash, Users, check_name, read_users, write_user
from journal.settings.values import ConfigurationError

CHEAP = Cost(n=2, r=1, p=1)


def kept(password: bytes) -> PasswordHash:
    return PasswordHash.of(password, CHEAP)


# Scrypt fills short passwords up with zero bytes, so one that ends in them is the same as one without.
PASSWORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20).map(str.encode)


@given(PASSWORDS, PASSWORDS)
def test_only_the_password_matches_and_a_line_keeps_that(password: bytes, other: bytes) -> None:
    again = PasswordHash.parse(kept(password).format())
    assert again.matches(password)
    assert again.matches(other) == (other == password)


def test_the_hash_is_scrypt_with_the_parameters_and_the_salt_of_the_line() -> None:
    _, kind, n, r, p, salt, digest = PasswordHash.of(b"secret").format().split("$")
    assert (kind, n, r, p) == ("scrypt", "16384", "8", "1")
    assert base64.b64decode(digest) == hashlib.scrypt(
        b"secret", salt=base64.b64decode(salt), n=16384, r=8, p=1, dklen=32
    )


def test_the_same_password_has_another_hash_each_time() -> None:
    assert kept(b"secret").format() != kept(b"secret").format()


def test_a_hash_does_not_show_itself_in_messages() -> None:
    assert base64.b64encode(kept(b"secret").digest).decode() not in repr(kept(b"secret"))


@pytest.mark.parametrize("cost", [Cost(), Cost(n=1 << 10), Cost(n=1 << 5, r=4, p=2)])
def test_a_name_that_does_not_exist_costs_as_much_as_one_that_does(monkeypatch: pytest.MonkeyPatch, cost: Cost) -> None:
    """The time must not show which users exist. The work is compared: time on a busy machine proves nothing."""
    users = Users({name: PasswordHash.of(b"secret", cost) for name in ("there", "too")})
    scrypt = hashlib.scrypt

    def work(name: str) -> list[dict[str, int]]:
        done = []

        def counted(password: bytes, *, salt: bytes, **cost: int) -> bytes:
            done.append({"password": len(password), "salt": len(salt), **cost})
            return scrypt(password, salt=salt, **cost)

        monkeypatch.setattr(hashlib, "scrypt", counted)
        assert not users.check(name, b"wrong")
        return done

    assert work("not there") == work("there")
    assert len(work("there")) == 1


def test_users_are_written_changed_and_removed_and_the_rest_of_the_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "users"
    assert write_user(str(path), "anna", kept(b"one")) is False
    path.write_text(f"# who is who\n\n{path.read_text()}")
    assert write_user(str(path), "bo$b ü", kept(b"two")) is False
    assert write_user(str(path), "anna", kept(b"three")) is True

    users = read_users(str(path))
    assert len(users) == 2
    assert users.check("anna", b"three")
    assert not users.check("anna", b"one")
    assert users.check("bo$b ü", b"two")
    assert not users.check("carl", b"")
    assert [line.partition(":")[0] for line in path.read_text().splitlines()] == ["# who is who", "", "anna", "bo$b ü"]

    assert write_user(str(path), "anna", None) is True
    assert write_user(str(path), "anna", None) is False
    assert not read_users(str(path)).check("anna", b"three")
    assert [line.partition(":")[0] for line in path.read_text().splitlines()] == ["# who is who", "", "bo$b ü"]


def test_only_the_owner_may_read_the_file(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.touch(mode=0o644)
    path.chmod(0o644)
    write_user(str(path), "anna", kept(b"one"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["users"], "nothing is left beside it"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_the_file_stays_its_owners_when_root_changes_a_password(tmp_path: Path) -> None:
    path = tmp_path / "users"
    write_user(str(path), "anna", kept(b"one"))
    os.chown(path, 4711, 4712)
    write_user(str(path), "anna", kept(b"two"))
    assert (path.stat().st_uid, path.stat().st_gid) == (4711, 4712)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "users"
    link.symlink_to("real/users")
    write_user(str(link), "anna", kept(b"one"))
    assert link.is_symlink()
    assert read_users(str(tmp_path / "real" / "users")).check("anna", b"one")


def test_a_file_that_is_no_password_file_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "letter"
    path.write_text("Dear Anna,\n")
    with pytest.raises(ConfigurationError, match="line 1: is not of the form name:"):
        write_user(str(path), "anna", kept(b"one"))
    assert path.read_text() == "Dear Anna,\n"


GOOD = PasswordHash(CHEAP, b"salt" * 4, b"hash" * 8).format()  # the same in every process that collects tests


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("anna", r"is not of the form name:\$scrypt\$n\$r\$p\$salt\$hash; `journal passwd"),
        ("anna:secret", r"is not of the form \$scrypt"),
        ("anna:$6$salt$hash", r"is not of the form \$scrypt"),
        (f":{GOOD}", "has '' for a user name"),
        (f" anna:{GOOD}", "has ' anna' for a user name"),
        ("anna:$scrypt$x$1$1$MTIzNDU2Nzg=$MTIzNDU2Nzg5MDEyMzQ1Ng==", "has a cost that is not a number"),
        ("anna:$scrypt$15$1$1$MTIzNDU2Nzg=$MTIzNDU2Nzg5MDEyMzQ1Ng==", "n=15 r=1 p=1 is not a valid cost"),
        (
            "anna:$scrypt$1048576$8$1$MTIzNDU2Nzg=$MTIzNDU2Nzg5MDEyMzQ1Ng==",
            "n=1048576 r=8 p=1 costs too much; .* 256 MiB",
        ),
        ("anna:$scrypt$2$1$17$MTIzNDU2Nzg=$MTIzNDU2Nzg5MDEyMzQ1Ng==", "n=2 r=1 p=17 costs too much"),
        ("anna:$scrypt$2$1$1$MTIzNDU2Nzg=$!!!!", "has a salt or a hash that is not base64"),
        ("anna:$scrypt$2$1$1$MTIz$MTIzNDU2Nzg5MDEyMzQ1Ng==", "has a salt of 3 and a hash of 16 bytes"),
        ("anna:$scrypt$2$1$1$MTIzNDU2Nzg=$", "has a salt of 8 and a hash of 0 bytes"),
    ],
)
def test_a_line_that_is_none_is_named_by_its_number_and_not_repeated(tmp_path: Path, line: str, expected: str) -> None:
    path = tmp_path / "users"
    path.write_text(f"# users\nbob:{GOOD}\n{line}\n")
    with pytest.raises(ConfigurationError, match=rf"^{path}, line 3: {expected}") as refused:
        read_users(str(path))
    assert "MTIzNDU2Nzg5" not in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_user_has_one_line(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text(f"bob:{GOOD}\nbob:{GOOD}\n")
    with pytest.raises(ConfigurationError, match="line 2: names 'bob' again; leave one of the lines out"):
        read_users(str(path))


def test_a_file_that_cannot_be_read_is_named_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"/none cannot be read: No such file.* passwd .* USER`"):
        read_users(str(tmp_path / "none"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe:x")
    with pytest.raises(ConfigurationError, match="is not text as `journal passwd` writes it"):
        read_users(str(tmp_path / "binary"))


def test_a_file_in_no_directory_is_named_itself(tmp_path: Path) -> None:
    """The message named the temporary file beside it."""
    path = tmp_path / "none" / "users"
    with pytest.raises(ConfigurationError, match=f"^{path} cannot be written: No such file or directory; create the"):
        write_user(str(path), "anna", PasswordHash.of(b"secret"))


@pytest.mark.parametrize("name", ["", "a:b", "#a", " a", "a ", "a\nb", "a\x00", "a\x85", "ü" * 32_768])
def test_what_no_user_can_be_called(name: str) -> None:
    with pytest.raises(ValueError, match="user name"):
        check_name(name)
