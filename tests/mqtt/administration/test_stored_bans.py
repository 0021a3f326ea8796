"""What brokers have written about bans is read by later ones; the golden files never change."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from broker_adapter.mqtt.access.bans import Ban, BanKind
from broker_adapter.mqtt.bans.stored import (
    BANS_FOLLOWERS,
    BANS_KEY,
    BANS_SHARD,
    Announcement,
    BansVersion,
    StoredBan,
    ban_key,
)
from broker_adapter.state_forms import decode, encode

GOLDEN = Path(__file__).parents[2] / "golden" / "v6" / "mqtt_state"

BAN = Ban(BanKind.NETWORK, "192.0.2.0/24", 1_700_003_600_000_000, "floods é", 1_700_000_000_000_000, "anna@b1")
SAMPLES: dict[str, msgspec.Struct] = {
    "bans": BansVersion(7, "anna@b1"),
    "ban": StoredBan.of(BAN),
    "ban_for_good": StoredBan.of(Ban(BanKind.USER, "mallory", since_us=5)),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_the_golden_bytes_are_what_is_written_and_read_today(name: str) -> None:
    golden = (GOLDEN / f"{name}.bin").read_bytes()
    assert encode(SAMPLES[name]) == golden
    assert decode(type(SAMPLES[name]), b"key", golden) == SAMPLES[name]


def test_a_stored_ban_is_the_ban() -> None:
    assert StoredBan.of(BAN).ban == BAN


def test_keys_and_the_shard_are_where_they_have_always_been() -> None:
    assert (BANS_KEY, BANS_FOLLOWERS, BANS_SHARD) == (b"mqtt/bans", b"mqtt/bans-at/", "$mqtt/bans")
    assert ban_key(BanKind.CLIENT, "a/é") == b"mqtt/ban/client/a/\xc3\xa9"
    assert ban_key(BanKind.NETWORK, "192.0.2.0/24") == b"mqtt/ban/network/192.0.2.0/24"


def test_the_announcement_is_json_that_programs_read() -> None:
    made = Announcement(7, "banned", BanKind.USER, "mallory", "anna@b1", "floods", 5)
    assert msgspec.json.encode(made) == (
        b'{"version":7,"change":"banned","kind":"user","name":"mallory","by":"anna@b1","reason":"floods","until_us":5}'
    )
