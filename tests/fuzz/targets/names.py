"""Topic filters, names, addresses."""

from __future__ import annotations

import contextlib

from journal.client.address import Address
from shards.errors import InvalidNameError, InvalidRequestError
from shards.topics.filter_index import FilterIndex, TopicIndex
from shards.topics.names import validate_name, validate_shard_name
from shards.topics.topic_filters import covers, literal_prefix, matches, overlap, pattern, validate_filter
from tests.fuzz.target import Target, text_of


def run_filters(data: bytes) -> None:
    """Lines of text are filters and topics, or refused by InvalidNameError; every way to match them says the same.

    Filters of which one topic matches both overlap; one that covers another matches all that the other matches.
    """
    filters, topics = [], []
    for line in text_of(data).split("\n")[:8]:
        with contextlib.suppress(InvalidNameError):
            filters.append(validate_filter(line))
        with contextlib.suppress(InvalidNameError):
            topics.append(validate_shard_name(line))
    by_filter: FilterIndex[str] = FilterIndex()
    for each in filters:
        by_filter.add(each, each)
    by_topic = TopicIndex(topics)
    for each in filters:
        expected = sorted({topic for topic in topics if matches(each, topic)})
        compiled = pattern(each)
        assert [topic for topic in sorted(set(topics)) if compiled.fullmatch(topic)] == expected
        assert by_topic.match(each) == expected
        assert by_topic.count_looked_at(each) >= len(expected)
        prefix = literal_prefix(each)
        assert all(topic.startswith(prefix) or f"{topic}/" == prefix for topic in expected)
    for topic in topics:
        assert set(by_filter.match(topic)) == {each for each in filters if matches(each, topic)}
    for left in filters:
        for right in filters:
            both = [topic for topic in topics if matches(left, topic) and matches(right, topic)]
            assert overlap(left, right) == overlap(right, left)
            assert overlap(left, right) or not both
            if covers(left, right):
                assert overlap(left, right)
                assert all(matches(left, topic) for topic in topics if matches(right, topic))
        assert covers(left, left)
    for each in dict.fromkeys(filters):
        by_filter.discard(each, each)
    assert by_filter.is_empty


def run_names(data: bytes) -> None:
    """A text is a name of a shard or of something else as it is, or refused by InvalidNameError alone."""
    text = text_of(data)
    with contextlib.suppress(InvalidNameError):
        assert validate_shard_name(text) == text
    with contextlib.suppress(InvalidNameError):
        assert validate_name("cursor name", text) == text


def run_addresses(data: bytes) -> None:
    """A text is an address or refused by InvalidRequestError; an address reads the same again from what it shows.

    Neither the address nor the error shows the text in the place of a password.
    """
    text = text_of(data)
    for secret in ("s3cr3t", "s3cr3t/x", "s3cr3t?x", "s3cr3t@x"):
        for beginning in ("journals://anna:", "anna:"):
            try:
                Address.parse(f"{beginning}{secret}@{text}")
            except InvalidRequestError as error:
                assert "s3cr3t" not in str(error) or "s3cr3t" in text
            else:
                raise AssertionError("an address with a password in it was taken")
    try:
        address = Address.parse(text)
    except InvalidRequestError:
        return
    again = Address.parse(str(address))
    assert (again.kind, again.host, again.port) == (address.kind, address.host, address.port)
    assert 0 <= address.port <= 65535
    if not (address.token_file or address.password_file):
        address.credentials({})


_FILTERS = (
    b"a/b\na/+\na/#\n+/b\n#\n",
    b"$SYS/a\n#\n$SYS/#\n+/a\n",
    b"a\na/\n/a\n//\n+/+\n/+\na/+/#\n",
    b"a/b/c\na/+/c\n+/b/#",
)
_ADDRESSES = (
    b"localhost:7420",
    b"journals://anna@store.example:7420?password_file=/etc/p&ca_file=/etc/ca.pem",
    b"journal+ws://[::1]:80/path",
    b"wss://h?certificate_file=a&key_file=b",
    b"tcp://h",
)

TARGETS = (
    Target("filters", run_filters, lambda: _FILTERS, tokens=(b"+", b"#", b"/", b"$", b"\n", b"/#\n", b"+/", b"\n#\n")),
    Target(
        "names",
        run_names,
        lambda: (b"plant/line-1", b"/", "\u00fc~a".encode() * 80, b"x" * 1025),
        tokens=(b"+", b"#", b"..", b"/", b"\0", b"\x7f", b"\xc2\x85", b"\xed\xa0\x80"),
    ),
    Target(
        "addresses",
        run_addresses,
        lambda: _ADDRESSES,
        tokens=(
            b"://",
            b"@",
            b":",
            b"?",
            b"&",
            b"=",
            b"[",
            b"]",
            b"%",
            b"password_file=",
            b"key_file=",
            "\u00b2".encode(),
        ),
    ),
)
