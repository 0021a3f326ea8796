"""`journal queue ...` as an operator uses it."""

from __future__ import annotations

import base64
import importlib
import json
import re
import subprocess
import sys
import time
from importlib.metadata import EntryPoint
from typing import Any

import pytest
import trio

from broker_adapter import StorageAdapter
from broker_adapter.cache_queue import QueueLease, QueueSettings, look, names
from broker_adapter.cache_queue.cli import view_reader
from broker_adapter.cache_queue.cli.commands import COMMANDS
from broker_adapter.cache_queue.cli.connection import DEFAULT_SERVER
from broker_adapter.cache_queue.queue import QueueState, change_queue
from broker_adapter.cache_queue.stored import Counts, Definition, Lease, Progress, Status, WriterCounts
from broker_adapter.state_forms import decode, encode
from command_line import output
from command_line.app import AddedCommands, load_commands
from command_line.boundary import CommandError
from journal.cli import connection as journal_connection
from journal.cli import main
from tests.cache_queue import queues
from tests.cache_queue.cli.conftest import Store
from tests.cache_queue.queues import NAME, driven, filled, waiting

# The table


@pytest.mark.parametrize(("path", "help_line"), COMMANDS.commands.values())
def test_the_table_of_commands_says_what_the_commands_say(path: str, help_line: str) -> None:
    module, _, function = path.partition(":")
    described = getattr(importlib.import_module(module), function).__doc__
    assert described.splitlines()[0] == help_line


def test_the_program_describes_added_commands_as_they_do_themselves() -> None:
    assert main.ADDED_HELP["queue"] == COMMANDS.help_line
    assert DEFAULT_SERVER == journal_connection.DEFAULT_SERVER


def test_help_names_the_word_without_importing_what_adds_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--help"]) == 0
    assert " queue " in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS.commands)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["queue", command, "--help"]) == 0
    assert f"journal queue {command}" in capsys.readouterr().out


def test_an_error_of_an_added_command_names_where_it_comes_from(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    others = [EntryPoint("moon", "lunar.commands:TABLE", main.ADDED_GROUP)]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda *, group: others)
    assert main.run(["--help"]) == 0
    assert "Added by lunar." in capsys.readouterr().out
    assert main.run(["moon", "rise"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("journal: `journal moon` needs the Python package 'lunar'")
    assert told.count("\n") == 1


@pytest.mark.parametrize("value", ["json:NOTHING", "json:dumps"])
def test_what_is_no_table_is_refused(value: str) -> None:
    with pytest.raises(CommandError, match="not a table of commands"):
        load_commands("journal", EntryPoint("moon", value, main.ADDED_GROUP))


def test_a_table_is_loaded_by_its_entry_point() -> None:
    point = EntryPoint("queue", "broker_adapter.cache_queue.cli.commands:COMMANDS", main.ADDED_GROUP)
    assert isinstance(load_commands("journal", point), AddedCommands)


def test_the_commands_of_the_program_itself_do_not_look_for_others() -> None:
    program = (
        "import importlib.metadata, sys\n"
        "def no(**_): raise AssertionError\n"
        "importlib.metadata.entry_points = no\n"
        "from journal.cli.main import run; run(['shard', 'list', '--help'])\n"
        "assert 'trio' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


# Wrong usage


@pytest.mark.parametrize(
    "arguments",
    [
        ["queue", "nonsense"],
        ["queue", "show"],
        ["queue", "drain", "x", "--timeout", "soon"],
        ["queue", "dead-letters", "x", "--replay", "--purge"],
        ["queue", "dead-letters", "x", "--count", "0"],
    ],
)
def test_wrong_usage_is_one_line_and_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("journal: ")
    assert told.err.count("\n") == 1


@pytest.mark.parametrize("command", [each for each in COMMANDS.commands if each not in ("list", "metrics")])
def test_a_queue_that_is_not_there_is_said(store: Store, command: str) -> None:
    told = store.queue(command, "nothing", status=1)
    assert told.err == ("journal: there is no cache queue 'nothing'; `journal queue list` lists all queues\n")


def test_a_server_that_is_not_there_is_one_line_with_the_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["queue", "list", "--server", "127.0.0.1:1"]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "127.0.0.1:1" in error
    assert "journal serve" in error


# Looking


async def three_waiting(adapter: StorageAdapter) -> None:
    await filled(adapter, b"1", b"2", b"3", b"4", settings=QueueSettings(max_records=5_000, max_age_s=3600))
    drain = await driven(adapter)
    await drain.confirm(1, Counts(confirmed=1), 0)
    await adapter.put_state(names.writer_key(NAME, "broker-1"), encode(WriterCounts(7, 8)))


async def held(adapter: StorageAdapter, *, updated_us: int = 0, reason: str = "refused") -> None:
    """A driver that says that its sink is out."""
    now_us = time.time_ns() // 1000
    counts = Counts(confirmed=1, dead_lettered=2, dropped_oldest=3, expired=4, lost=5)
    status = Status(
        "broker-1", "down", now_us - 9_000_000, reason, now_us + 30_000_000, counts, 15, 3.0, 5.0, updated_us or now_us
    )
    await adapter.put_state(names.status_key(NAME), encode(status))
    shard = await adapter.describe_shard(names.shard_of(NAME))
    await adapter.put_state(names.progress_key(NAME), encode(Progress(shard.shard_id, 1, counts)))
    await adapter.put_state(names.lease_key(NAME), encode(Lease("broker-1", "c1", 4, 9)))


def test_no_queues_are_an_empty_list(store: Store) -> None:
    assert store.queue("list", "--json").out == ""
    assert "queue" in store.queue("list").out


def test_list_shows_what_waits_and_that_no_process_drives_it(store: Store) -> None:
    store.do(three_waiting)
    cells = store.queue("list").out.splitlines()[-1].split()
    assert cells[:3] == [NAME, "file", "3"]
    assert cells[-5:] == ["0/s", "0/s", "not", "driven", "none"]


def test_list_shows_rates_and_state_as_the_driver_reports_them(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.do(three_waiting)
    store.do(held)
    # Nothing has to be measured: a measurement would fail.
    monkeypatch.setattr(view_reader, "MEASURED_S", -1.0)
    line = store.queue("list").out.splitlines()[-1]
    assert line.split()[-4:] == ["3.0/s", "5.0/s", "down", "broker-1"]


def test_a_driver_that_says_nothing_any_more_is_not_believed(store: Store) -> None:
    """A queue whose driver was killed was shown as driven for ever."""
    store.do(three_waiting)
    store.do(lambda adapter: held(adapter, updated_us=time.time_ns() // 1000 - 120_000_000))
    line = store.queue("list").out.splitlines()[-1]
    assert "not driven" in line
    assert "none: broker-1 has the lease and has not renewed it for 2m" in line
    assert "0/s" in line


def test_list_as_json_has_everything(store: Store) -> None:
    store.do(three_waiting)
    store.do(held)
    told = json.loads(store.queue("list", "--json").out)
    assert (told["queue"], told["records"], told["first_offset"], told["next_offset"]) == (NAME, 3, 1, 4)
    assert (told["state"], told["holder"], told["epoch"], told["reason"]) == ("down", "broker-1", 4, "refused")
    assert (told["in_rate"], told["out_rate"], told["rates_measured_over_s"]) == (3.0, 5.0, 0.0)
    assert told["time_to_drain_s"] == 1.5
    assert told["counts"] == {
        "confirmed": 1,
        "dead_lettered": 2,
        "dropped_oldest": 3,
        "expired": 4,
        "lost": 5,
        "purged": 0,
        "rejected": 7,
        "dropped_newest": 8,
    }
    assert told["writers"] == {"broker-1": {"rejected": 7, "dropped_newest": 8}}
    assert told["settings"]["max_records"] == 5_000
    assert told["bytes"] > 0
    assert told["shard"]["name"] == names.shard_of(NAME)


def test_show_says_all_of_it(store: Store) -> None:
    store.do(three_waiting)
    began_s = time.monotonic()
    store.do(lambda adapter: held(adapter, reason="http://sink refuses connections"))
    told = store.queue("show", NAME).out
    passed_s = time.monotonic() - began_s
    for words in (
        "3 records",
        "3.0/s in, 5.0/s out",
        "about 2s",
        "http://sink refuses connections",
        "1 GiB and 5,000 records",
        "max age",
        "1h",
        "reject",
        "dropped_newest",
        "broker-1",
        "segment",
    ):
        assert words in told, words
    (left_s,) = re.findall(r"next attempt .*, in (\d+\.\d)s", told)
    assert 30 - passed_s - 0.1 <= float(left_s) <= 30


def test_show_measures_when_no_driver_reports_the_rates(store: Store) -> None:
    store.do(three_waiting)
    told = store.queue("show", NAME).out
    assert re.search(r"\(measured over [1-9]\d*s\)", told)
    assert "never while no process drives it" in told


def test_a_cut_off_purge_or_a_deleted_shard_is_said(store: Store) -> None:
    store.do(three_waiting)
    store.do(lambda adapter: adapter.delete_shard(names.shard_of(NAME)))
    assert "was deleted" in store.queue("show", NAME, status=1).err
    assert NAME not in store.queue("list").out


def test_watching_shows_it_again_and_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.do(three_waiting)
    shown = 0

    def write(value: object) -> None:
        nonlocal shown
        shown += 1
        assert isinstance(value, dict)
        assert value["records"] == 3
        if shown == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("broker_adapter.cache_queue.cli.show.write_json", write)
    store.queue("show", NAME, "--watch", "--json", status=130)
    assert shown == 3


# Wishes


def wishes(store: Store) -> Definition:
    found = store.do(lambda adapter: adapter.get_state(names.definition_key(NAME)))
    return decode(Definition, b"", found.value)  # type: ignore[attr-defined]


@pytest.mark.slow("starts the program several times")
def test_pausing_and_resuming(store: Store) -> None:
    store.do(three_waiting)
    assert "journal queue resume plant" in store.queue("pause", NAME).out
    assert wishes(store).is_paused
    assert "paused" in store.queue("list").out
    assert "never while it is paused" in store.queue("show", NAME).out
    store.queue("resume", NAME)
    assert not wishes(store).is_paused


def test_purging_asks_first(store: Store) -> None:
    store.do(three_waiting)
    told = store.queue("purge", NAME, status=2).err
    assert "Delete 3 records" in told
    assert "--yes" in told
    assert store.queue("purge", NAME, "--yes").out == "plant: 3 records deleted\n"
    assert json.loads(store.queue("list", "--json").out)["counts"]["purged"] == 3


@pytest.mark.few_cases(2, "a program for each answer")
@pytest.mark.parametrize(("answer", "status"), [("y\n", 0), ("yes\n", 0), ("n\n", 1), ("\n", 1), ("", 1)])
def test_only_yes_is_yes(store: Store, monkeypatch: pytest.MonkeyPatch, answer: str, status: int) -> None:
    store.do(three_waiting)
    terminal = Terminal(answer)
    monkeypatch.setattr(output.sys, "stdin", terminal)
    monkeypatch.setattr(output.sys.stderr, "isatty", lambda: True, raising=False)
    told = store.queue("purge", NAME, status=status)
    assert "3 records" in told.err
    assert ("nothing was done" in told.err) == bool(status)
    assert json.loads(store.queue("list", "--json").out)["records"] == (3 if status else 0)


class Terminal:
    """A user who answers."""

    def __init__(self, answer: str) -> None:
        self._answer = answer

    def isatty(self) -> bool:
        return True

    def readline(self) -> str:
        return self._answer


@pytest.mark.slow("waits for a drain that does not end")
def test_deleting_a_queue(store: Store) -> None:
    store.do(three_waiting)
    assert "--yes" in store.queue("delete", NAME, status=2).err
    store.do(held)
    # Nothing renews that lease: it is of a driver that was killed.
    told = store.queue("delete", NAME, "--yes")
    assert "broker-1 has the lease; waiting to see whether it is alive" in told.err
    assert told.out == "plant: deleted\n"
    assert store.queue("list", "--json").out == ""


# Dead letters


async def two_refused(adapter: StorageAdapter) -> None:
    await filled(adapter, b"\xff\x00", b"2")
    drain = await driven(adapter)
    await drain.set_aside([(record, "no column") for record in await waiting(drain)])
    await drain.confirm(2, Counts(dead_lettered=2), 0)


def test_dead_letters_are_listed(store: Store) -> None:
    store.do(two_refused)
    lines = store.queue("dead-letters", NAME).out.splitlines()
    assert [line.split()[0] for line in lines[-2:]] == ["0", "1"]
    assert lines[-1].split()[-5:] == ["plant/x", "1", "B", "no", "column"]
    told = store.queue("dead-letters", NAME, "--count", "1")
    assert "1 more" in told.err
    assert "no column" in told.out


def test_dead_letters_are_reported_in_full(store: Store) -> None:
    store.do(two_refused)
    first, second = map(json.loads, store.queue("dead-letters", NAME, "--json").out.splitlines())
    assert base64.b64decode(first["value_base64"]) == b"\xff\x00"
    assert second["value"] == "2", "text is text, as in `journal read`"
    assert (second["queue_offset"], second["reason"], second["topic"]) == (1, "no column", "plant/x")
    assert second["headers"] == []
    assert len(store.queue("dead-letters", NAME, "--json", "-n", "1").out.splitlines()) == 1


def test_dead_letters_are_put_back(store: Store) -> None:
    store.do(two_refused)
    assert store.queue("dead-letters", NAME, "--replay").out == (
        "plant: 2 dead letters put back at the end of the queue\n"
    )
    assert "0 dead letters put back" in store.queue("dead-letters", NAME, "--replay").out
    assert json.loads(store.queue("list", "--json").out)["records"] == 2


def test_dead_letters_are_thrown_away(store: Store) -> None:
    store.do(two_refused)
    assert "2 dead letters of the queue plant" in store.queue("dead-letters", NAME, "--purge", status=2).err
    assert store.queue("dead-letters", NAME, "--purge", "--yes").out == "plant: 2 dead letters deleted\n"
    assert store.queue("dead-letters", NAME, "--json").out == ""


# Draining


def test_a_drain_without_a_driver_says_so(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.do(three_waiting)
    store.queue("pause", NAME)
    told = store.queue("drain", NAME, "--timeout", "1s", status=1).err.splitlines()
    assert told[0] == "journal: plant was paused, and is resumed"
    assert "no process drives it now" in told[1]
    assert "0 of 3 records have left" in told[2]
    assert "start a broker that has the [[bridge]] plant" in told[2]
    assert (wishes(store).is_paused, wishes(store).wake_count) == (False, 1)


def test_a_drain_of_nothing_is_done_at_once(store: Store) -> None:
    store.do(filled)
    assert store.queue("drain", NAME).out == "plant: nothing waits in the queue\n"


@pytest.mark.parametrize(
    ("late_count", "became"),
    [
        (0, "2 delivered, 1 set aside as dead letters"),
        (1, "including newer ones, 3 delivered, 1 set aside as dead letters"),
    ],
)
async def test_a_drain_waits_for_what_waited_and_reports_the_outage(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], late_count: int, became: str
) -> None:
    from broker_adapter import open_adapter
    from broker_adapter.cache_queue.cli import drain as command

    async with open_adapter("memory:") as adapter:
        await three_waiting(adapter)
        monkeypatch.setattr(command, "connect", lambda _server: Opened(adapter))
        looks = 0

        async def counted(*arguments: Any) -> QueueState:
            nonlocal looks
            found = await look(*arguments)
            looks += 1
            return found

        monkeypatch.setattr("broker_adapter.cache_queue.queue.look", counted)

        async def seen() -> None:
            """Until the command has seen the present state and said what it thinks of it."""
            enough = looks + 2
            while looks < enough:
                await trio.sleep(0.05)

        async def drive() -> None:
            async with QueueLease(adapter, NAME, "broker-1").hold():
                await queues.said(adapter, "down", reason="refused")
                while not (await look(adapter, NAME)).definition.wake_count:
                    await trio.sleep(0.05)
                await seen()
                drain = await driven(adapter)
                record = (await waiting(drain))[0]
                await drain.set_aside([(record, "no")])
                await drain.confirm(2, Counts(dead_lettered=1), 0)
                await filled(adapter, b"later")
                await seen()
                await drain.confirm(4 + late_count, Counts(confirmed=2 + late_count), 0)
                await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(drive)
            await command._drain("", NAME, 10)
            nursery.cancel_scope.cancel()
        assert (await look(adapter, NAME)).depth.record_count == 1 - late_count
    told = capsys.readouterr()
    assert told.out.startswith("plant: 3 records left within ")
    assert told.out.endswith(f"s: {became}\n")
    assert told.err.count("its sink is out: refused") == 1


async def test_a_driver_that_does_not_renew_its_lease_is_reported(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    """The message is shown in docs/cache-queues.md."""
    from broker_adapter import open_adapter
    from broker_adapter.cache_queue.cli import drain as command

    async with open_adapter("memory:") as adapter:
        await three_waiting(adapter)
        await held(adapter)
        monkeypatch.setattr(command, "connect", lambda _server: Opened(adapter))
        began_s = trio.current_time()
        with pytest.raises(CommandError, match="broker-1, which drove it, has not renewed its lease for 9s"):
            await command._drain("", NAME, float("inf"))
        assert trio.current_time() - began_s < 30


async def test_a_queue_that_is_made_anew_under_a_drain_is_noticed(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: object
) -> None:
    from broker_adapter import open_adapter
    from broker_adapter.cache_queue.cli import drain as command

    async with open_adapter("memory:") as adapter:
        await three_waiting(adapter)
        monkeypatch.setattr(command, "connect", lambda _server: Opened(adapter))

        async def make_anew() -> None:
            await trio.sleep(0.7)
            await adapter.delete_shard(names.shard_of(NAME))
            await filled(adapter)
            await change_queue(adapter, NAME)

        with pytest.raises(ExceptionGroup) as group:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(make_anew)
                await command._drain("", NAME, 10)
        assert group.group_contains(CommandError, match="created again")


class Opened:
    """A store that is open already, as `connect` would give it."""

    def __init__(self, adapter: StorageAdapter) -> None:
        self._adapter = adapter

    async def __aenter__(self) -> StorageAdapter:
        return self._adapter

    async def __aexit__(self, *_: object) -> None:
        return None
