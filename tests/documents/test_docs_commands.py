"""The commands of the pages in docs, word for word, each page from its top to its bottom on a machine of its own."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import attrs
import pytest

from tests.documents.conftest import MakeMachine, typed
from tests.documents.machine import Machine
from tests.documents.pages import PAGES, REPOSITORY, blocks_of
from tests.documents.playing import play, write_file

pytestmark = pytest.mark.wheel

SERVER: Final = "journal serve --data /var/lib/journal &"
IS_READY: Final = "until curl --silent --fail http://127.0.0.1:7422/readyz > /dev/null; do sleep 0.1; done"
# Operations installs the wheel by its own commands, and README the checkout.
INSTALLED: Final = ("pip install '.[broker]'",)


@attrs.frozen
class Given:
    """What a page takes for granted.

    Attributes:
        commands: Typed before its first one.
        files: Written before that, by name.
        begun: See `play`.
        programs: What it uses that may not be there.
    """

    commands: tuple[str, ...] = ()
    files: Mapping[str, str] = attrs.field(factory=dict)
    begun: Mapping[str, str] = attrs.field(factory=dict)
    programs: tuple[str, ...] = ()


BRIDGE: Final = """
[[bridge]]
name = "readings"
topics = ["plant/#"]
sink = { type = "files", directory = "/srv/readings", format = "ndjson" }
fields = { topic = "topic", value = "json" }
"""
GIVEN: Final = {
    "docs/mqtt.md": Given(programs=("mosquitto_sub",)),
    "docs/operations.md": Given(
        begun={"journal serve": "journal shard create plant/1 --server 127.0.0.1:7430"},
        programs=("curl",),
    ),
    "docs/analytics.md": Given(
        commands=(
            SERVER,
            IS_READY,
            "journal-broker --anonymous &",
            "until mosquitto_pub -q 1 -t plant/line1/state -m '\"on\"'; do sleep 0.1; done",
        ),
        programs=("mosquitto_pub", "curl"),
    ),
    "docs/cluster.md": Given(
        begun={
            "journal serve --data /srv/a": "journal shard list",
            "journal serve --data /srv/b": "journal cluster status --store file:///srv/store | grep -q 7430",
        },
    ),
    "docs/metrics.md": Given(commands=("mkdir -p /etc/journal /etc/prometheus",)),
    "docs/cache-queues.md": Given(
        files={"bridge.toml": BRIDGE},
        commands=(
            SERVER,
            IS_READY,
            "journal-broker --config bridge.toml --anonymous &",
            "until mosquitto_pub -q 1 -t plant/boiler/1 -m 21.5; do sleep 0.1; done",
            "mosquitto_pub -q 1 -t plant/boiler/1 -m warm",
        ),
        begun={"journal queue show": "mkdir /srv/readings"},
        programs=("mosquitto_pub", "curl"),
    ),
}
NOT_RUN_HERE: Final = ("not run", "tested by")
COMMANDS: Final = {
    str(page.relative_to(REPOSITORY)): blocks
    for page in PAGES[1:]
    if (
        blocks := [
            block for block in blocks_of(page) if block.language == "console" and block.mark[0] not in NOT_RUN_HERE
        ]
    )
}


def test_every_page_with_commands_is_run() -> None:
    about_spark = {page for page in COMMANDS if page.startswith("docs/spark")}
    assert set(COMMANDS) == {*GIVEN, *about_spark}


def prepare(machine: Machine, given: Given) -> None:
    for program in given.programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (scripts/install-peers)")
    for name, text in given.files.items():
        write_file(machine, name, text)
    for command in given.commands:
        typed(machine, command)


@pytest.mark.parametrize("page", GIVEN)
def test_the_commands_of_a_page_go_as_they_are_written(page: str, installed: MakeMachine, tmp_path: Path) -> None:
    """It starts the programs that the page starts, which takes seconds."""
    with installed(tmp_path / "machine") as machine:
        prepare(machine, GIVEN[page])
        play(machine, blocks_of(REPOSITORY / page), already_done=INSTALLED, begun=GIVEN[page].begun, timeout_s=300)
