"""Addresses of log stores: what they name, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from journal.logstore.errors import StoreUnreachableError
from journal.logstore.store import Created
from journal.logstore.stores.addresses import StoreAddress
from shards.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("text", "root"),
    [
        ("s3://bucket/plant", "plant"),
        ("s3://bucket/plants/north/", "plants/north"),
        ("s3://bucket", "journal"),
        ("gs://bucket/a", "a"),
        ("az://container/a", "a"),
        ("postgresql://host/db", "journal"),
        ("postgresql://anna@host:5433/db?sslmode=require#north", "north"),
        ("postgresql:///db#north", "north"),
        ("file:///var/lib/store", "journal"),
    ],
)
def test_an_address_names_what_keys_begin_with(text: str, root: str) -> None:
    assert StoreAddress.parse(text).root == root


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("http://host/db", "allowed are s3://"),
        ("bucket/plant", "allowed are s3://"),
        ("s3:///plant", "the name of the bucket is missing"),
        ("s3://bucket/../up", "is no key"),
        ("s3://bucket/a b", "is no key"),
        ("file://store", "file:///absolute/path"),
        ("file:///", "file:///absolute/path"),
    ],
)
def test_what_is_no_address_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        StoreAddress.parse(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("postgresql://anna:s3cret@host/db", "PGPASSFILE"),
        ("postgresql://host/db?password=s3cret#north", "PGPASSFILE"),
        ("postgresql://host/db?sslmode=require&PASSWORD=s3cret", "PGPASSFILE"),
        ("s3://bucket/plant?access_key=s3cret", r"behind '\?'.*environment"),
    ],
)
def test_a_secret_in_an_address_is_refused_and_not_repeated(text: str, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason) as refused:
        StoreAddress.parse(text)
    assert "s3cret" not in str(refused.value)


def test_a_directory_is_opened(tmp_path: Path) -> None:
    store = StoreAddress.parse(f"file://{tmp_path}").open()
    assert store.create("journal/a", b"1") is Created.OURS
    store.close()


def test_a_directory_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreUnreachableError, match="is no directory"):
        StoreAddress.parse(f"file://{tmp_path}/none").open()


@pytest.mark.parametrize(
    ("text", "place", "slots"),
    [
        ("s3://bucket/plant", "s3://bucket/plant", None),
        ("s3://bucket/plant?slots=4", "s3://bucket/plant", 4),
        ("file:///var/lib/store?slots=16", "file:///var/lib/store", 16),
        ("postgresql://host/db?slots=2&sslmode=require#north", "postgresql://host/db?sslmode=require#north", 2),
    ],
)
def test_an_address_says_how_many_slots_are_written_at_a_time(text: str, place: str, slots: int | None) -> None:
    address = StoreAddress.parse(text)
    assert (address.place, address.slots) == (place, slots)
    assert StoreAddress.parse(address.place).root == address.root


@pytest.mark.parametrize("slots", ["0", "17", "many", "", "-1", "4&slots=4"])
def test_another_number_of_slots_is_refused(slots: str) -> None:
    with pytest.raises(InvalidRequestError, match="one number from 1 to 16"):
        StoreAddress.parse(f"s3://bucket/plant?slots={slots}")


@pytest.mark.parametrize(
    ("text", "place", "interval_s"),
    [
        ("s3://bucket/plant", "s3://bucket/plant", None),
        ("s3://bucket/plant?interval=250ms", "s3://bucket/plant", 0.25),
        ("file:///var/lib/store?interval=0ms&slots=2", "file:///var/lib/store", 0.0),
        ("postgresql://host/db?interval=10000ms&sslmode=require#n", "postgresql://host/db?sslmode=require#n", 10.0),
    ],
)
def test_an_address_says_how_much_time_is_between_two_slots(text: str, place: str, interval_s: float | None) -> None:
    address = StoreAddress.parse(text)
    assert (address.place, address.interval_s) == (place, interval_s)


@pytest.mark.parametrize("interval", ["1", "ms", "10001ms", "-1ms", "1.5ms", "1s", "", "1ms&interval=1ms"])
def test_another_interval_is_refused(interval: str) -> None:
    with pytest.raises(InvalidRequestError, match="the time between two slots is one number of milliseconds"):
        StoreAddress.parse(f"s3://bucket/plant?interval={interval}")
