"""Telemetry as kernels and containers really show it: whole, cut short, hidden."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demo.telemetry import (
    SOURCES,
    Reading,
    available_sources,
    parse_cpu,
    parse_disk,
    parse_load,
    parse_memory,
    parse_network,
)

STAT = """\
cpu  214924 4883 43380 389445 8810 0 5485 858 0 0
cpu0 100356 1173 18379 209720 2399 0 1956 397 0 0
cpu1 114567 3709
intr 7522567 0 0 0
ctxt 15157418
cpufreq 3
cpu2
"""

MEMORY = """\
MemTotal:       24684084 kB
MemFree:        22643924 kB
HugePages_Total:       0
Dirty:               many kB
"""

NETWORK = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier
    lo: 1000 10    1    2    0     0          0         0 3000 30    3    4    0     0       0          0
  ifb0:    0  0    0    0    0     0          0         0    0  0    0    0    0     0       0          0
  eth0:77 7
"""

DISKS = """\
   7       0 loop0 5 0 0 0 0 0 0 0 0 0 0
 254       0 vda 10 1 20 2 30 3 40 4 5 6 7
 253       0 zram0 0 0 0 0 0 0 0 0 0 0 0 0
 259       0 old 1 2 3
"""


def test_every_core_is_a_reading_of_the_columns_there_are() -> None:
    whole, cut = parse_cpu(STAT)
    assert whole == {
        "core": 0, "user": 100356, "nice": 1173, "system": 18379, "idle": 209720,
        "iowait": 2399, "irq": 0, "softirq": 1956, "steal": 397,
    }  # fmt: skip
    assert cut == {"core": 1, "user": 114567, "nice": 3709}


def test_memory_is_given_in_bytes_without_missing_or_invalid_numbers() -> None:
    assert parse_memory(MEMORY) == [{"total_bytes": 24684084 << 10, "free_bytes": 22643924 << 10}]


def test_interfaces_that_were_never_used_are_left_out() -> None:
    lo, eth0 = parse_network(NETWORK)
    assert lo["interface"] == "lo"
    assert (lo["received_bytes"], lo["receive_drops"], lo["sent_bytes"], lo["send_drops"]) == (1000, 2, 3000, 4)
    assert eth0 == {"interface": "eth0", "received_bytes": 77, "received_packets": 7}


def test_disks_are_devices_with_a_history() -> None:
    assert parse_disk(DISKS) == [
        {
            "device": "vda", "reads": 10, "read_bytes": 20 * 512, "writes": 30, "written_bytes": 40 * 512,
            "in_flight": 5, "busy_ms": 6,
        }
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "readings"),
    [
        (
            "1.01 1.93 1.95 3/106 24799\n",
            [{"load_1min": 1.01, "load_5min": 1.93, "load_15min": 1.95, "running": 3, "processes": 106}],
        ),
        ("0.50", [{"load_1min": 0.5}]),
        ("much", []),
        ("", []),
    ],
)
def test_the_load_is_one_reading(text: str, readings: list[Reading]) -> None:
    assert parse_load(text) == readings


@pytest.mark.parametrize("parse", [source.parse for source in SOURCES])
@settings(max_examples=30)
@given(text=st.text() | st.sampled_from([STAT, MEMORY, NETWORK, DISKS]))
def test_no_text_is_an_error_and_no_reading_is_empty(parse: Callable[[str], list[Reading]], text: str) -> None:
    assert all(parse(text))


def test_files_that_cannot_be_read_are_no_sources(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text(STAT)
    (tmp_path / "loadavg").mkdir()

    assert {source.topic: count for source, count in available_sources(tmp_path).items()} == {"cpu": 2}
