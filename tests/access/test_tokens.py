"""The file of tokens, and the command that writes it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from journal.access.tokens import TokenHash, Tokens, add_token, read_tokens, remove_tokens
from journal.cli.main import run
from journal.settings.values import ConfigurationError


def test_a_token_is_shown_once_and_found_by_itself_alone(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    token = add_token(str(path), "robot", 2_000_000_000.0)
    other = add_token(str(path), "robot")
    assert token != other
    assert len(token) >= 43, "256 bits"
    text = path.read_text()
    assert token not in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    tokens = read_tokens(str(path))
    assert len(tokens) == 2
    assert tokens.find(token) == TokenHash.of("robot", token, 2_000_000_000.0)
    assert tokens.find(other) == TokenHash.of("robot", other)
    digest = text.splitlines()[0].split(":")[1]
    for wrong in ("", token[:-1], token + "x", token.swapcase(), digest, "\udcff"):
        assert tokens.find(wrong) is None
    assert digest not in repr(tokens.find(token))


def test_removing_a_users_tokens_leaves_the_rest_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("# for robots\n\n")
    add_token(str(path), "a")
    kept = add_token(str(path), "b")
    add_token(str(path), "a")
    assert remove_tokens(str(path), "a") == 2
    assert remove_tokens(str(path), "a") == 0
    assert path.read_text() == f"# for robots\n\n{TokenHash.of('b', kept).format()}\n"


@pytest.mark.parametrize("expires", [None, 0.0, 1_999_999_999.0])
def test_a_line_is_read_as_it_was_written(expires: float | None) -> None:
    kept = TokenHash.of("robot", "token", expires)
    assert TokenHash.parse(kept.format()) == kept


def test_a_time_without_a_zone_is_in_utc() -> None:
    line = f"robot:{'0' * 64}:2001-09-09T01:46:40"
    assert TokenHash.parse(line).expires_at_s == 1_000_000_000


@pytest.mark.parametrize(
    "line",
    ["robot", "robot:", ":" + "0" * 64, "robot:" + "0" * 63, "robot:" + "G" * 64, f"robot:{'0' * 64}:soon", "\x01:x"],
)
def test_what_is_no_line_is_refused_without_being_repeated(tmp_path: Path, line: str) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"# one\n{line}\n")
    with pytest.raises(ConfigurationError, match=r"tokens, line 2: .*`journal token .* USER` writes") as caught:
        read_tokens(str(path))
    assert "0" * 60 not in str(caught.value)


def test_the_same_token_twice_is_a_slip(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"a:{'0' * 64}\nb:{'0' * 64}\n")
    with pytest.raises(ConfigurationError, match="line 2: has a token that an earlier line has"):
        read_tokens(str(path))


def test_what_was_let_in_is_still_there_only_with_the_same_name_and_time() -> None:
    kept = TokenHash.of("robot", "token")
    assert Tokens([kept]).holds(TokenHash.of("robot", "token"))
    assert not Tokens([TokenHash.of("other", "token")]).holds(kept)
    assert not Tokens([TokenHash.of("robot", "token", 1.0)]).holds(kept)
    assert not Tokens([]).holds(kept)


def test_the_command_makes_and_removes_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "tokens")
    assert run(["token", path, "robot", "--expires-in", "90d"]) == 0
    token = capsys.readouterr().out.strip()
    found = read_tokens(path).find(token)
    assert found is not None
    assert found.name == "robot"
    assert found.expires_at_s is not None
    assert run(["token", path, "robot", "--remove"]) == 0
    assert capsys.readouterr().out == "robot: 1 removed\n"
    assert run(["token", path, "robot", "--remove"]) == 1
    assert "has no token of 'robot'" in capsys.readouterr().err
    assert run(["token", path, "a:b"]) == 2
