"""`bench trace` on real servers: every hop of every message, at three rates."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_commands_end_to_end import JOURNAL, Server, run
from tests.mqtt.cluster.processes import BROKER, Process
from tests.patience import PATIENCE_S
from tests.trace.test_capture import NEEDS_CAPTURE

ENDS = ["acknowledgement", "delivery"]
RATE = ["--highest-rate", "500", "--duration", "400ms"]
"""Few enough for a machine that does much else."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server.start(tmp_path_factory.mktemp("server"))
    yield server
    server.kill()


@pytest.fixture(scope="module")
def brokers(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[int]]:
    """The MQTT ports of two brokers on the server."""
    directory = tmp_path_factory.mktemp("brokers")
    started = []
    for name in ("publisher", "subscriber"):
        settings = directory / f"{name}.toml"
        settings.write_text(
            f'[broker]\nstore = "journal://{server.address}"\n[listen]\nmqtt = "127.0.0.1:0"\nhttp = ""\n'
            "[access]\nanonymous = true\n"
        )
        argv = [sys.executable, "-m", *BROKER, "serve", "--config", str(settings)]
        started.append(Process(argv, directory / f"{name}.log"))
    try:
        for broker in started:
            broker.start()
        yield [broker.ports["mqtt"] for broker in started]
    finally:
        for broker in started:
            broker.end(signal.SIGTERM)


def traced(text: str) -> list[dict]:
    """The levels, whose hops add up."""
    levels = json.loads(text)["levels"]
    assert [level["load_percent"] for level in levels] == [10, 50, 80]
    assert [level["rate_per_s"] for level in levels] == [50, 250, 400]
    for level in levels:
        assert level["lost_packets"] == 0
        for path in level["paths"]:
            assert path["messages"] == level["messages"], path["name"]
            assert path["p50_us"] <= path["p99_us"]
            assert sum(hop["share"] for hop in path["hops"]) == pytest.approx(1)
            for begin, end in zip(path["hops"], path["hops"][1:], strict=False):
                assert begin["end"] == end["begin"]
            if path["name"] in ENDS:
                # Nobody receives what was not sent before.
                assert all(0 < hop["p50_us"] <= path["p99_us"] for hop in path["hops"])
    return levels


@NEEDS_CAPTURE
@pytest.mark.slow("starts a server, and sends for seconds")
@pytest.mark.parametrize("mode", ["file", "memory"])
def test_every_message_is_found_at_every_point_of_a_server_and_its_shard_is_deleted(server: Server, mode: str) -> None:
    levels = traced(server.journal("bench", "trace", "--json", "--mode", mode, *RATE))
    for level in levels:
        assert [path["name"] for path in level["paths"]] == [*ENDS, "reply to push"]
        assert [hop["process"] for hop in level["paths"][0]["hops"]] == ["this tool", "server", "this tool"]
    assert server.journal("shard", "list", "--json", "bench/#") == ""


@NEEDS_CAPTURE
@pytest.mark.slow("sends some hundred megabytes")
def test_messages_that_come_faster_than_they_are_stored_are_all_found_and_are_late(server: Server) -> None:
    # 100,000 messages/s of 16 KiB come in a moment, as if nothing had taken them for a while.
    options = ["--size", "16384", "--highest-rate", "100000", "--duration", "1s"]
    levels = json.loads(server.journal("bench", "trace", "--json", *options))["levels"]
    for level in levels:
        assert all(path["messages"] == level["messages"] > 1000 for path in level["paths"])
    late = levels[-1]["paths"][0]
    assert late["p99_us"] > 1e6 * levels[-1]["messages"] / levels[-1]["rate_per_s"]


@NEEDS_CAPTURE
@pytest.mark.slow("starts a server and two brokers")
def test_every_message_is_found_at_every_point_between_two_brokers(server: Server, brokers: list[int]) -> None:
    levels = traced(trace_brokers(server, brokers, "--json", *RATE))
    for level in levels:
        acknowledgement, delivery, _ = level["paths"]
        assert [hop["process"] for hop in acknowledgement["hops"]] == [
            "this tool",
            "publisher's broker",
            "server",
            "publisher's broker",
            "this tool",
        ]
        assert [hop["process"] for hop in delivery["hops"]] == [
            "this tool",
            "publisher's broker",
            "server",
            "subscriber's broker",
            "this tool",
        ]


@NEEDS_CAPTURE
@pytest.mark.slow("starts a server and two brokers")
def test_one_broker_may_be_that_of_publisher_and_subscriber(server: Server, brokers: list[int]) -> None:
    traced(trace_brokers(server, brokers[:1], "--json", *RATE))


@NEEDS_CAPTURE
@pytest.mark.slow("starts a server and two brokers")
def test_messages_that_go_another_way_are_an_error_that_says_so(server: Server, brokers: list[int]) -> None:
    error = trace_brokers(server, brokers, *RATE, journal="127.0.0.1:1", status=1)
    assert error.count("\n") == 1
    assert "not found in packets" in error


@pytest.mark.slow("starts a server, and sends for seconds")
def test_the_ends_alone_are_measured_without_a_capture(server: Server) -> None:
    text = server.journal("bench", "trace", "--ends-only", *RATE)
    assert text.count("% of the highest rate") == 3
    assert text.count("\nacknowledgement ") == 3
    assert text.count("\ndelivery ") == 3
    levels = traced(server.journal("bench", "trace", "--ends-only", "--json", *RATE))
    assert all(len(path["hops"]) == 1 for level in levels for path in level["paths"])


@pytest.mark.slow("starts a server")
def test_a_journal_server_that_is_named_as_the_broker_is_an_error_that_says_so(server: Server) -> None:
    port = int(server.address.rpartition(":")[2])
    error = trace_brokers(server, [port], "--ends-only", *RATE, status=1)
    assert error.startswith(f"journal-broker: what answers at 127.0.0.1:{port} is not a broker of MQTT 5: ")
    assert error.count("\n") == 1


@pytest.mark.slow("starts a server")
@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--size", "10"], "payloads of 10 bytes"),
        (["--duration", "0s"], "it must be more than 0"),
        (["--duration", "11m"], "at most 600"),
    ],
)
def test_sizes_and_durations_out_of_bounds_are_refused(server: Server, options: list[str], told: str) -> None:
    done = run("bench", "trace", *options, "--server", server.address, status=1)
    assert told in done.stderr.decode()


def test_an_encrypted_connection_is_refused_before_anything_is_sent() -> None:
    done = run("bench", "trace", "--server", "journals://127.0.0.1:1", status=2)
    assert "plain TCP" in done.stderr.decode()
    assert "--ends-only" in done.stderr.decode()


@pytest.mark.slow("starts the command")
def test_bench_alone_is_the_command_that_it_was() -> None:
    done = subprocess.run([*JOURNAL, "bench", "--help"], capture_output=True, text=True, timeout=PATIENCE_S)
    assert "--records" in done.stdout
    assert "--highest-rate" not in done.stdout
    done = subprocess.run([*JOURNAL, "bench", "trace", "--help"], capture_output=True, text=True, timeout=PATIENCE_S)
    assert "Usage: journal bench trace" in done.stdout
    assert "--highest-rate" in done.stdout


def trace_brokers(server: Server, brokers: list[int], *options: str, journal: str = "", status: int = 0) -> str:
    """Output of the command, or its error."""
    argv = [sys.executable, "-m", *BROKER, "bench", "trace", "--journal", journal or server.address, *options]
    places = zip(("--publish-to", "--subscribe-at"), brokers, strict=False)
    argv += [word for option, port in places for word in (option, f"127.0.0.1:{port}")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=2 * PATIENCE_S, cwd=Path(__file__).parents[2])
    assert done.returncode == status, done.stderr
    return done.stderr if status else done.stdout
