"""Options are read as documented, and what is wrong with one is said with its name, its value and the way out."""

from __future__ import annotations

import pytest

from spark_export.errors import OptionError
from spark_export.options import EARLIEST, LATEST, Positions, Use, parse_options

PATH = {"path": "/data"}


@pytest.mark.parametrize(
    ("option", "value", "attribute", "read"),
    [
        ("path", "s3://bucket/sealed", "path", "s3://bucket/sealed"),
        ("server", "host:7420", "server", "journal://host:7420"),
        ("server", "journal://[::1]:7420", "server", "journal://[::1]:7420"),
        ("server", "journal+ws://host:7421", "server", "journal+ws://host:7421"),
        ("topics", "a/+, b/# ,a/+", "topics", ("a/+", "b/#")),
        ("topics", '["a,b/#", "c"]', "topics", ("a,b/#", "c")),
        ("shards", "$fold/+", "shards", ("$fold/+",)),
        ("startingOffsets", "earliest", "starting", Positions(EARLIEST)),
        ("startingOffsets", '{"s": 7, "t": "latest"}', "starting", Positions(EARLIEST, {"s": 7, "t": LATEST})),
        ("endingOffsets", "latest", "ending", Positions(LATEST)),
        ("endingOffsets", '{"s": 7}', "ending", Positions(LATEST, {"s": 7})),
        ("startingTimestamp", "1700000000123", "starting_us", 1_700_000_000_123_000),
        ("startingTimestamp", "2023-11-14T22:13:20.000001Z", "starting_us", 1_700_000_000_000_001),
        ("startingTimestamp", "2023-11-14T23:13:20+01:00", "starting_us", 1_700_000_000_000_000),
        ("startingTimestamp", "2023-11-14 22:13:20", "starting_us", 1_700_000_000_000_000),
        ("minPartitions", "8", "min_partitions", 8),
        ("failOnDataLoss", "False", "fail_on_data_loss", False),
        ("filterPushdown", "true", "filter_pushdown", True),
        ("asQueue", "true", "as_queue", True),
        ("shardIds", '{"s": 7}', "shard_ids", {"s": 7}),
    ],
)
def test_a_value_is_read(option: str, value: str, attribute: str, read: object) -> None:
    for name in (option, option.lower(), option.upper()):
        options = parse_options({**({} if option == "path" else PATH), name: value}, "batch")
        assert getattr(options, attribute) == read


def test_what_is_not_given_has_a_default() -> None:
    options = parse_options(PATH, "batch")
    assert (options.server, options.topics, options.shards) == ("", ("#",), ("#",))
    assert (options.starting, options.starting_us, options.ending) == (Positions(EARLIEST), None, Positions(LATEST))
    assert (options.min_partitions, options.max_records_per_trigger) == (0, 0)
    assert (options.fail_on_data_loss, options.filter_pushdown, options.as_queue) == (True, False, False)
    assert parse_options(PATH, "stream").starting == Positions(LATEST)


def test_the_shards_looked_into_are_those_called_like_the_topics() -> None:
    options = parse_options({**PATH, "topics": "a/#"}, "batch")
    assert (options.wants_shard("a/b"), options.wants_shard("b")) == (True, False)
    folded = parse_options({**PATH, "topics": "a/#", "shards": "$fold/+,a/#"}, "batch")
    assert (folded.wants_shard("$fold/3"), folded.wants_topic("$fold/3")) == (True, False)
    assert (folded.wants_shard("b"), folded.wants_topic("a/b")) == (False, True)


@pytest.mark.parametrize(
    ("options", "use", "named"),
    [
        ({}, "batch", ["'path'", "'server'"]),
        ({**PATH, "topic": "a"}, "batch", ["'topic'", "'a'", "topics", "startingOffsets"]),
        ({"paths": '["/a", "/b"]'}, "batch", ["one path", '["/a", "/b"]']),
        ({"server": "host"}, "batch", ["'server'", "'host'", "host:port"]),
        ({"server": "http://host:80"}, "batch", ["'server'", "http://host:80", "journal://"]),
        ({**PATH, "topics": "a/#/b"}, "batch", ["'topics'", "'a/#/b'", "MQTT"]),
        ({**PATH, "topics": ""}, "batch", ["'topics'", "''"]),
        ({**PATH, "topics": "[]"}, "batch", ["'topics'", "'[]'", "at least one"]),
        ({**PATH, "topics": "[1]"}, "batch", ["'topics'", "'[1]'", "JSON list"]),
        ({**PATH, "topics": '["a"'}, "batch", ["'topics'", "JSON list"]),
        ({**PATH, "startingOffsets": "first"}, "batch", ["'startingOffsets'", "'first'", "earliest", "JSON"]),
        ({**PATH, "startingOffsets": "latest"}, "batch", ["'startingOffsets'", "'latest'", "'earliest' or JSON"]),
        ({**PATH, "startingOffsets": "[1]"}, "batch", ["'startingOffsets'", "'[1]'", "JSON"]),
        ({**PATH, "startingOffsets": '{"s": -1}'}, "batch", ["'startingOffsets'", "'s' is -1"]),
        ({**PATH, "startingOffsets": '{"s": true}'}, "batch", ["'startingOffsets'", "'s' is True"]),
        ({**PATH, "startingOffsets": '{"a/#": 1}'}, "batch", ["'startingOffsets'", "a/#"]),
        ({**PATH, "endingOffsets": "earliest"}, "batch", ["'endingOffsets'", "'earliest'", "'latest' or JSON"]),
        ({**PATH, "endingOffsets": "latest"}, "stream", ["'endingOffsets'", "'latest'", "batch"]),
        ({**PATH, "maxRecordsPerTrigger": "5"}, "batch", ["'maxRecordsPerTrigger'", "'5'", "stream"]),
        ({**PATH, "maxRecordsPerTrigger": "0"}, "stream", ["'maxRecordsPerTrigger'", "'0'", "from 1"]),
        ({**PATH, "startingTimestamp": "noon"}, "batch", ["'startingTimestamp'", "'noon'", "ISO 8601", "milliseconds"]),
        ({**PATH, "startingTimestamp": "1969-12-31"}, "batch", ["'startingTimestamp'", "'1969-12-31'", "1970"]),
        (
            {**PATH, "startingTimestamp": "0", "startingOffsets": "earliest"},
            "batch",
            ["'startingTimestamp'", "'startingOffsets'", "one of them"],
        ),
        ({**PATH, "minPartitions": "-1"}, "batch", ["'minPartitions'", "'-1'"]),
        ({**PATH, "failOnDataLoss": "yes"}, "batch", ["'failOnDataLoss'", "'yes'", "'true' or 'false'"]),
        ({**PATH, "filterPushdown": "on"}, "batch", ["'filterPushdown'", "'on'", "'true' or 'false'"]),
    ],
)
def test_a_wrong_option_is_named_with_what_is_allowed(options: dict[str, str], use: Use, named: list[str]) -> None:
    with pytest.raises(OptionError) as caught:
        parse_options(options, use)
    for part in named:
        assert part in str(caught.value)


def test_before_the_use_is_known_what_fits_either_is_let_through() -> None:
    options = parse_options({**PATH, "maxRecordsPerTrigger": "5", "endingOffsets": "latest"})
    assert options.max_records_per_trigger == 5
    with pytest.raises(OptionError, match="unknown option"):
        parse_options({**PATH, "nope": "1"})


def test_a_position_is_an_offset_or_an_end_of_the_shard() -> None:
    positions = Positions(EARLIEST, {"s": 7, "t": LATEST})
    assert [positions.of(shard, earliest=2, latest=9) for shard in ("s", "t", "u")] == [7, 9, 2]
