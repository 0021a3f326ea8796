"""The rows of the table: their names, what they are compared to, and their goals. No measuring here."""

from __future__ import annotations

from benchmarks import append_loop, in_process, message_loops
from benchmarks.mqtt import rows as mqtt
from benchmarks.queues import rows as queues
from benchmarks.runs import Goal, Row
from benchmarks.sizes import BATCHED_STORED_MB, RECORDS_OF_A_SHARD, SINGLE_STORED_MB, WAITING_TASKS, shards_scanned

SYNCED = "fsync"
NOT_SYNCED = "no fsync"
IN_MEMORY = "memory"
LARGE_GOALS = {"encoded": 0.9, "client": 0.8, "adapter": 0.8}
"""By client: goals of the rows with 128 KiB batches, as a factor of bare writes of as many bytes."""


def rows(*, shards: int, many: int, history: int, connections: int, queued: int, waiting: int) -> list[Row]:
    """All rows.

    Args:
        history: Records of the rows about sealed segments; the goals are for 5,000,000.
        shards: Idle shards of the rows about these; the goals are for 100,000.
        many: Number of shards of the row with appends to many shards.
        connections: Idle MQTT connections; the goal is for 10,000.
        queued: Messages that wait for an MQTT session; the goal is for 100,000.
        waiting: Records that wait in a cache queue.
    """
    return [
        *_limits(),
        *_peers(many),
        *_appends(many),
        *append_loop.rows(),
        *message_loops.rows(),
        *_secured(),
        *_latency(),
        *_reading(),
        *in_process.rows(),
        *_idle(shards),
        *_history(history),
        *_gathering(shards),
        *_log_stores(),
        *mqtt.rows(idle=connections, queued=queued),
        *queues.rows(waiting=waiting),
    ]


def _limits() -> list[Row]:
    return [
        Row("limit.copy", "loopback copy, process to process", "GB/s"),
        Row("limit.sync-1m", "pwritev + fdatasync of 1 MiB, pre-zeroed file", "MB/s", SYNCED),
        Row("limit.sync-128k", "pwritev + fdatasync of 128 KiB, pre-zeroed file", "MB/s", SYNCED),
        Row("limit.sync-one", "pwritev + fdatasync of 256 B, p50", "us", SYNCED),
    ]


def _log_stores() -> list[Row]:
    put, insert = "a create in SeaweedFS", "an INSERT with commit in PostgreSQL"
    return [
        Row("limit.put-p50", f"bare: {put}, 16 KiB, one at a time, p50", "us", "its answer"),
        Row("limit.put", "bare: the same, 8 at a time", "MB/s", "its answer"),
        _one_at_a_time("store.s3.one-p50", "SeaweedFS", put, "limit.put-p50"),
        Row(
            "store.s3.batches",
            "log in SeaweedFS: 16 KiB batches, pre-encoded",
            "MB/s",
            put,
            limit="limit.put",
            goal=Goal(0.5, of="limit.put"),
        ),
        Row("limit.insert-p50", f"bare: {insert}, 16 KiB, one at a time, p50", "us", SYNCED),
        Row("limit.insert", "bare: the same, 8 at a time", "MB/s", SYNCED),
        _one_at_a_time("store.postgresql.one-p50", "PostgreSQL", insert, "limit.insert-p50"),
        Row(
            "store.postgresql.singles",
            "log in PostgreSQL: 100 B records one by one, pre-encoded",
            "records/s",
            insert,
            goal=Goal(100_000),
        ),
        *(
            row
            for key, shards in (("one", "one shard"), ("many", "100,000 shards"))
            for row in (
                Row(
                    f"store.cost.bytes.{key}",
                    f"bytes sent to the log store for each byte of 500,000 appends of 150 B to {shards}",
                    "x",
                    "",
                    goal=Goal(3.0, at_most=True),
                ),
                Row(
                    f"store.cost.requests.{key}",
                    "creates and reads for all of them, until a checkpoint has them",
                    "requests",
                    "",
                    goal=Goal(1.5, of="store.cost.requests.one", at_most=True) if key == "many" else None,
                ),
            )
        ),
        Row(
            "store.window.one",
            "log in a directory that answers 100 ms late: 16 KiB batches, pre-encoded, one slot at a time",
            "MB/s",
            "the create of the slot",
        ),
        Row(
            "store.window.four",
            "the same with up to 4 slots at a time",
            "MB/s",
            "the create of the slot",
            goal=Goal(1.5, of="store.window.one"),
        ),
        Row(
            "store.takeover",
            "SIGKILL of the owner to the first append at the other server",
            "s",
            "",
            goal=Goal(2.0, at_most=True),
        ),
    ]


def _one_at_a_time(key: str, store: str, promise: str, limit: str) -> Row:
    title = f"log in {store}: 16 KiB batches one at a time, p50"
    return Row(key, title, "us", promise, limit=limit, goal=Goal(2.0, of=limit, at_most=True))


def _peers(many: int) -> list[Row]:
    over_many = f"the same over {many:,}"
    synced = "NATS JetStream file, sync_interval always, 100 B"
    return [
        Row("jetstream.file", "NATS JetStream file, 100 B publishes", "records/s", NOT_SYNCED),
        Row("jetstream.file-many", f"{over_many} subjects of one stream", "records/s", NOT_SYNCED),
        Row("jetstream.memory", "NATS JetStream memory, 100 B publishes", "records/s", IN_MEMORY),
        Row("jetstream.file-16k", "NATS JetStream file, 16 KiB publishes", "MB/s", NOT_SYNCED),
        Row("jetstream.file-one", "NATS JetStream file, 100 B one at a time, p50", "us", NOT_SYNCED),
        Row("jetstream.synced", f"{synced} publishes", "records/s", SYNCED),
        Row("jetstream.synced-many", f"{over_many} subjects of one stream", "records/s", SYNCED),
        Row("jetstream.synced-one", f"{synced} one at a time, p50", "us", SYNCED),
        Row("jetstream.push-p50", "NATS JetStream memory, publish to push delivery, p50", "us", IN_MEMORY),
        Row("jetstream.push-p99", "the same, p99", "us", IN_MEMORY),
        Row("redis.plain", "Redis XADD 100 B, no append-only file", "records/s", IN_MEMORY),
        Row("redis.plain-many", f"{over_many} streams", "records/s", IN_MEMORY),
        Row("redis.synced", "Redis XADD 100 B, appendfsync always", "records/s", SYNCED),
        Row("redis.synced-many", f"{over_many} streams", "records/s", SYNCED),
        Row("redis.synced-one", "Redis XADD 100 B one at a time, appendfsync always, p50", "us", SYNCED),
    ]


def _appends(many: int) -> list[Row]:
    clients = (
        ("encoded", "pre-encoded"),
        ("client", "client, pipelined"),
        ("adapter", "through the adapter, pipelined"),
    )
    by_client = [_appends_of(client, words, many) for client, words in clients]
    rows = [row for same_work in zip(*by_client, strict=True) for row in same_work]
    rows.append(
        Row(
            "singles.one.waiting",
            f"100 B records one by one, {WAITING_TASKS:,} tasks that each wait, one shard, through the adapter",
            "records/s",
            SYNCED,
            peer="jetstream.file",
        )
    )
    return rows


def _appends_of(client: str, words: str, many: int) -> list[Row]:
    return [
        Row(
            f"batches.file.{client}",
            f"100 B records in 16 KiB batches, {words}",
            "records/s",
            SYNCED,
            peer="jetstream.file",
            limit="limit.sync-1m",
            limit_scale=BATCHED_STORED_MB,
            goal=Goal(5.0, of="jetstream.file"),
        ),
        Row(
            f"batches.memory.{client}",
            f"100 B records in 16 KiB batches, {words}",
            "records/s",
            IN_MEMORY,
            peer="jetstream.memory",
            limit="limit.copy",
            limit_scale=BATCHED_STORED_MB / 1e3,
            goal=Goal(5.0, of="jetstream.memory"),
        ),
        Row(
            f"singles.one.{client}",
            f"100 B records one by one, pipelined, one shard, {words}",
            "records/s",
            SYNCED,
            peer="jetstream.file",
            limit="limit.sync-1m",
            limit_scale=SINGLE_STORED_MB,
            goal=Goal(3.0, of="jetstream.file"),
            more_goals=(Goal(1.0, of="redis.plain"),),
        ),
        Row(
            f"singles.many.{client}",
            f"the same over {many:,} shards, {words}",
            "records/s",
            SYNCED,
            peer="jetstream.file-many",
            limit="limit.sync-1m",
            limit_scale=SINGLE_STORED_MB,
            goal=Goal(1.2, of="jetstream.file-many"),
            more_goals=(Goal(0.8, of=f"singles.one.{client}"),),
        ),
        Row(
            f"large.{client}",
            f"128 KiB batches, {words}",
            "MB/s",
            SYNCED,
            peer="jetstream.file-16k",
            limit="limit.sync-128k",
            goal=Goal(LARGE_GOALS[client], of="limit.sync-128k"),
        ),
    ]


def _secured() -> list[Row]:
    known = "users, rules and quotas"
    return [
        Row(
            "batches.tls.encoded",
            "100 B records in 16 KiB batches over TLS, pre-encoded",
            "records/s",
            SYNCED,
            peer="batches.file.encoded",
            goal=Goal(0.65, of="batches.file.encoded"),
        ),
        Row(
            "batches.guarded.encoded",
            f"the same in the clear to a server with {known}",
            "records/s",
            SYNCED,
            peer="batches.file.encoded",
            goal=Goal(0.95, of="batches.file.encoded"),
        ),
        Row(
            "singles.guarded.encoded",
            f"100 B records one by one, pipelined, one shard, with {known}",
            "records/s",
            SYNCED,
            peer="singles.one.encoded",
            goal=Goal(0.95, of="singles.one.encoded"),
        ),
    ]


def _latency() -> list[Row]:
    found: list[Row] = []
    for client, words in (("encoded", "pre-encoded"), ("adapter", "through the adapter")):
        found.append(
            Row(
                f"one.{client}",
                f"100 B one at a time, {words}, p50",
                "us",
                SYNCED,
                peer="redis.synced-one",
                limit="limit.sync-one",
                goal=Goal(2.5, of="limit.sync-one", at_most=True),
                more_goals=(Goal(1.0, of="redis.synced-one", at_most=True),),
            )
        )
    for client, words in (("encoded", "pre-encoded"), ("adapter", "through the adapter")):
        found += [
            Row(
                f"tail.{client}-p50",
                f"append to push, 1,000 messages/s, {words}, p50",
                "us",
                IN_MEMORY,
                peer="jetstream.push-p50",
                goal=Goal(1.5, of="jetstream.push-p50", at_most=True),
                more_goals=(Goal(1000.0, at_most=True),),
            ),
            Row(
                f"tail.{client}-p99",
                "the same, p99",
                "us",
                IN_MEMORY,
                peer="jetstream.push-p99",
                goal=Goal(1.5, of="jetstream.push-p99", at_most=True),
            ),
        ]
    return found


def _reading() -> list[Row]:
    return [
        Row(
            "read.encoded",
            "log segments through the socket, 1 MiB a request, 2 deep",
            "GB/s",
            "file",
            limit="limit.copy",
            goal=Goal(1.0),
        ),
        Row("read.adapter", "the same through the adapter, decoded to records", "records/s", "file"),
    ]


def _idle(shards: int) -> list[Row]:
    return [
        Row("idle.create", f"create {shards:,} shards with one record each", "shards/s", SYNCED),
        Row("idle.ready", "exec to ready after SIGTERM", "s", f"{shards:,} shards", goal=Goal(10.0, at_most=True)),
        Row(
            "idle.ready-killed", "exec to ready after SIGKILL", "s", f"{shards:,} shards", goal=Goal(10.0, at_most=True)
        ),
        Row(
            "idle.bytes",
            "memory an idle shard costs, its records in a shared file, after restart",
            "B",
            "RSS",
            goal=Goal(300.0, at_most=True),
        ),
        Row(
            "idle.bytes-written",
            "memory an idle shard costs just after writing and a checkpoint",
            "B",
            "RSS",
            goal=Goal(2048.0, at_most=True),
        ),
    ]


def _gathering(shards: int) -> list[Row]:
    some = shards // 10
    quiet = f"{shards:,} shards, a message a minute each"
    return [
        Row("gather.rate.one", "JSON values gathered by one core, one shard", "MB/s", SYNCED, goal=Goal(250.0)),
        Row("gather.rate.many", f"the same, {some:,} shards", "MB/s", SYNCED, goal=Goal(250.0)),
        Row("gather.ratio", "log bytes over Parquet bytes", "x", f"{some:,} shards", goal=Goal(5.0)),
        Row("gather.quiet.files", "shared files made in a day", "files", quiet, goal=Goal(300.0, at_most=True)),
        Row("gather.quiet.processor", "processor time of closing, gathering and merging in a day", "s", quiet),
        Row("gather.quiet.written", "bytes written to the disk by that in a day", "GB", quiet),
        Row("gather.quiet.step", "longest step of the event loop then", "ms", quiet, goal=Goal(50.0, at_most=True)),
        Row("gather.point_read", "one batch by offset, p50", "ms", "cold", goal=Goal(5.0, at_most=True)),
        Row("gather.read.own", "sealed values of a shard with a file of its own, through the socket", "MB/s"),
        Row("gather.read", "the same from shared files", "MB/s", goal=Goal(0.95, of="gather.read.own")),
    ]


def _history(records: int) -> list[Row]:
    sealed = f"{records / 1e6:g} M records"
    many = f"{shards_scanned(records):,} shards of {RECORDS_OF_A_SHARD}"
    return [
        Row("convert.rate", "JSON values of about 150 B converted by one core", "MB/s", SYNCED, goal=Goal(250.0)),
        Row("convert.ratio", "log bytes over Parquet bytes", "x", sealed, goal=Goal(5.0)),
        Row("convert.appends", "16 KiB batches while the worker converts, over without", "x", SYNCED, goal=Goal(0.75)),
        Row("sealed.read", "sealed values read back through the socket", "MB/s", sealed, goal=Goal(400.0)),
        Row("spark.sealed", "read_sealed: count, min, max by topic", "records/s", sealed, goal=Goal(5e6)),
        Row("spark.values", "the same and the size of all values", "records/s", sealed, goal=Goal(5e6)),
        Row("spark.source", "all of that by the data source `journal`", "records/s", sealed, goal=Goal(1e6)),
        Row(
            "spark.differences",
            "rows that differ between the two on random filters",
            "rows",
            sealed,
            goal=Goal(0.0, at_most=True),
        ),
        Row(
            "spark.shards", "read_sealed over many shards: count, min, max by topic", "records/s", many, goal=Goal(8e6)
        ),
        Row("spark.shards.scan", "count, min and max of all of them, not by topic", "records/s", many, goal=Goal(8e6)),
        Row("spark.shards.plain", "by topic, over the same of Parquet by Spark", "x", many, goal=Goal(0.9)),
        Row("spark.quiet", "bytes read for one shard, of all", "%", many, goal=Goal(2.0, at_most=True)),
        Row("sql.first.spark", "journal-spark sql: start to end of one query", "s", sealed),
        Row("sql.first.duckdb", "the same, --engine duckdb", "s", sealed, goal=Goal(1.0, at_most=True)),
    ]
