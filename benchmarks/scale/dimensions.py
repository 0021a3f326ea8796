"""The dimensions: their sizes, and what is done at each size. No measuring here."""

from __future__ import annotations

from typing import Final

from benchmarks.scale.brokers import Connections, Sessions, Subscriptions
from benchmarks.scale.growth import Dimension
from benchmarks.scale.journal_servers import Batches, History, Producers, Shards

_TO_HUNDRED_THOUSAND: Final = (1, 10, 100, 1000, 10_000, 100_000)

DIMENSIONS: Final = (
    Dimension(
        "batch",
        "records",
        "Appends of batches of so many records of 100 bytes, pipelined to one shard; p99 of one batch after the other; "
        "start after SIGKILL, with 64 MiB of such batches in the journal",
        (1, 10, 100, 1000, 10_000),
        Batches,
    ),
    Dimension(
        "connections",
        "connections",
        "QoS 1 publishes of 10 connections to one broker, beside so many that do nothing; p99 from publish to "
        "delivery; start of server and broker until all of them are connected again",
        (1, 10, 100, 1000, 10_000, 20_000),
        Connections,
    ),
    Dimension(
        "subscriptions",
        "subscriptions",
        "QoS 1 publishes of 10 connections to one broker, beside so many subscriptions with a wildcard to other "
        "topics, 1,000 of each connection; p99 from publish to delivery; start of server and broker until all are made "
        "again",
        _TO_HUNDRED_THOUSAND,
        Subscriptions,
    ),
    Dimension(
        "producers",
        "producers",
        "Appends of single records with sequence numbers by up to 4,000 of so many producers, in random order, a shard "
        "for each 1,000; p99 of one append after the other; start after SIGTERM",
        _TO_HUNDRED_THOUSAND,
        Producers,
    ),
    Dimension(
        "history",
        "MB",
        "Appends of batches of 16 KiB to one shard, beside another one with so many MB of log segments; p99 of reads "
        "of single batches at random offsets of it; start after SIGTERM",
        (100, 300, 1000, 3000, 10_000, 30_000, 100_000),
        History,
    ),
    Dimension(
        "sessions",
        "sessions",
        "QoS 1 publishes of 10 connections to one broker, beside so many durable sessions that are away, each with a "
        "subscription to a topic of its own; p99 from publish to delivery; start of server and broker",
        _TO_HUNDRED_THOUSAND,
        Sessions,
    ),
    Dimension(
        "shards",
        "shards",
        "Appends of single records of 100 bytes to up to 4,000 of so many shards with one record each, in random "
        "order; p99 of one append after the other; start after SIGTERM",
        (*_TO_HUNDRED_THOUSAND, 1_000_000),
        Shards,
    ),
)
"""In the order in which they are measured: those whose largest points take long are last, and get what time is left."""
