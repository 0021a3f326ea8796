"""A program that is forked from a process with all modules loaded cannot tell that from a new interpreter."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.preloaded import PreloadedPrograms

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each program is a new interpreter")

PROGRAM = """
import atexit, json, os, resource, signal, sys, threading

class Here:
    pass

what = sys.argv[1]
if what == "tell":
    atexit.register(print, "exit function", flush=True)
    death_signal = __import__("ctypes").c_int()
    __import__("ctypes").CDLL(None).prctl(2, __import__("ctypes").byref(death_signal))
    json.dump({
        "argv": sys.argv, "main": __name__, "same main": sys.modules["__main__"].Here is Here, "class": Here.__module__,
        "orig": sys.orig_argv, "cwd": os.getcwd(), "environment": dict(os.environ), "parent": os.getppid(),
        "pid": os.getpid(), "session": os.getsid(0), "fds": sorted(os.listdir("/proc/self/fd"), key=int),
        "threads": threading.active_count(), "files": resource.getrlimit(resource.RLIMIT_NOFILE), "umask": os.umask(0),
        "text": [sys.stdout.encoding, sys.stdout.errors, sys.stderr.errors],
        "buffered": [sys.stdout.line_buffering, sys.stderr.line_buffering],
        "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "pipe": signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN, "death signal": death_signal.value,
        "read": sys.stdin.read(), "path": sys.path,
    }, sys.stdout)
    print(file=sys.stdout)
    print("to stderr", file=sys.stderr)
elif what == "command line":
    print(*open("/proc/self/cmdline").read().split("\\0")[:-1], sep="\\n")
elif what == "fail":
    raise ValueError("this failed")
elif what == "exit":
    sys.exit("a message" if sys.argv[2] == "text" else int(sys.argv[2]))
elif what == "thread":
    threading.Thread(target=lambda: (sys.stdin.read(), print("the thread ended"))).start()
elif what == "wait":
    print("waiting", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def programs() -> Iterator[PreloadedPrograms]:
    programs = PreloadedPrograms()
    programs.install()
    yield programs
    programs.uninstall()


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    (tmp_path / "probe.py").write_text(PROGRAM)
    return [sys.executable, "-m", "probe"]


def _is_new(command: list[str], **options: object) -> bool:
    """Whether a command is started as what it is, and not forked."""
    told = subprocess.run([*command, "command line"], capture_output=True, text=True, check=True, **options)  # type: ignore[call-overload]
    return bool(told.stdout.splitlines() == [*command, "command line"])


def _told(command: list[str], **options: object) -> dict[str, object]:
    done = subprocess.run(
        [*command, "tell", "an argument"], capture_output=True, text=True, check=True, input="typed", **options
    )  # type: ignore[call-overload]
    told: dict[str, object] = json.loads(done.stdout.splitlines()[0])
    assert done.stdout.splitlines()[1:] == ["exit function"]
    assert done.stderr == "to stderr\n"
    return told


def test_a_forked_program_finds_what_a_new_interpreter_finds(
    programs: PreloadedPrograms, command: list[str], tmp_path: Path
) -> None:
    environment = {**os.environ, "OF_THE_TEST": "ü\udcff"}
    forked = _told(command, cwd=tmp_path, env=environment)
    with programs.excused():
        new = _told(command, cwd=tmp_path, env=environment)
    assert forked.pop("pid") != new.pop("pid")
    assert forked == new
    assert forked["parent"] == os.getpid()


def test_a_program_that_is_to_find_the_project_finds_it(
    programs: PreloadedPrograms, command: list[str], tmp_path: Path
) -> None:
    """Engines start their workers so."""
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    forked = _told(command, cwd=tmp_path, env=environment)
    with programs.excused():
        new = _told(command, cwd=tmp_path, env=environment)
    assert forked.pop("pid") != new.pop("pid")
    assert forked == new
    assert not _is_new(command, cwd=tmp_path, env=environment)


def test_it_is_a_fork(programs: PreloadedPrograms, command: list[str], tmp_path: Path) -> None:
    assert not _is_new(command, cwd=tmp_path)


def test_its_limits_and_its_umask_are_those_of_the_process_that_starts_it(
    programs: PreloadedPrograms, command: list[str], tmp_path: Path
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    _told(command, cwd=tmp_path)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    umask = os.umask(0o123)
    try:
        told = _told(command, cwd=tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.umask(umask)
    assert (told["files"], told["umask"]) == ([soft - 1, hard], 0o123)


def test_it_can_have_a_session_of_its_own(programs: PreloadedPrograms, command: list[str], tmp_path: Path) -> None:
    told = _told(command, cwd=tmp_path, start_new_session=True)
    assert told["session"] == told["pid"]


def test_it_can_end_with_the_process_of_tests(programs: PreloadedPrograms, command: list[str], tmp_path: Path) -> None:
    told = _told(["setpriv", "--pdeathsig", "KILL", *command], cwd=tmp_path)
    assert told["death signal"] == signal.SIGKILL


@pytest.mark.parametrize(("words", "status"), [(["exit", "3"], 3), (["exit", "text"], 1), (["fail"], 1)])
def test_it_ends_with_the_status_and_the_words_of_a_new_interpreter(
    programs: PreloadedPrograms, command: list[str], tmp_path: Path, words: list[str], status: int
) -> None:
    forked = subprocess.run([*command, *words], cwd=tmp_path, capture_output=True, text=True)
    with programs.excused():
        new = subprocess.run([*command, *words], cwd=tmp_path, capture_output=True, text=True)
    assert forked.returncode == new.returncode == status
    assert forked.stderr.splitlines()[-1:] == new.stderr.splitlines()[-1:]


def test_its_threads_end_before_it_does(programs: PreloadedPrograms, command: list[str], tmp_path: Path) -> None:
    done = subprocess.run([*command, "thread"], cwd=tmp_path, capture_output=True, text=True, input="", check=True)
    assert done.stdout == "the thread ended\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_ends_it_as_any_process(
    programs: PreloadedPrograms, command: list[str], tmp_path: Path, number: signal.Signals
) -> None:
    with subprocess.Popen(
        [*command, "wait"], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"waiting\n"
        assert process.poll() is None
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == -number


def test_programs_run_at_the_same_time(programs: PreloadedPrograms, command: list[str], tmp_path: Path) -> None:
    started = [
        subprocess.Popen([*command, "wait"], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == b"waiting\n"
    assert len({process.pid for process in started}) == 3
    for process in started:
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"env": {**os.environ, "PYTHONUTF8": "1"}}, []),
        ({"env": {**os.environ, "PYTHONPATH": "/elsewhere"}}, []),
        ({"env": {**os.environ, "OPENBLAS_NUM_THREADS": "3"}}, []),
        ({"preexec_fn": os.getpid}, []),
        ({"umask": 0o77}, []),
        ({"process_group": 0}, []),
        ({"pass_fds": [0]}, []),
        ({}, ["-E"]),
    ],
)
def test_what_a_fork_cannot_give_is_a_new_interpreter(
    programs: PreloadedPrograms, command: list[str], tmp_path: Path, options: dict[str, object], words: list[str]
) -> None:
    assert _is_new([command[0], *words, *command[1:]], cwd=tmp_path, **options)


def test_a_variable_that_is_set_for_all_programs_later_is_no_less_another_one(
    programs: PreloadedPrograms, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOURNAL_PURE_PYTHON", os.environ.get("JOURNAL_PURE_PYTHON", "") + "1")
    assert _is_new(command, cwd=tmp_path)


def test_the_process_that_forks_ends_with_the_one_that_started_it(command: list[str], tmp_path: Path) -> None:
    programs = PreloadedPrograms()
    programs.install()
    told = _told(command, cwd=tmp_path)
    assert told["main"] == "__main__"
    helper = programs.helper
    programs.uninstall()
    assert helper is not None
    assert helper.returncode == 0


@pytest.fixture
def unused_programs() -> Iterator[PreloadedPrograms]:
    """The process that forks is not there yet."""
    programs = PreloadedPrograms()
    programs.install()
    yield programs
    programs.uninstall()


def test_a_program_outlives_the_thread_that_started_the_first_one(
    unused_programs: PreloadedPrograms, command: list[str], tmp_path: Path
) -> None:
    """The system kills what is to end with its parent when the parent's thread ends that started it."""
    begun, go_on = threading.Event(), threading.Event()

    def start_one() -> None:
        _told(command, cwd=tmp_path)
        begun.set()
        go_on.wait(PATIENCE_S)

    thread = threading.Thread(target=start_one)
    thread.start()
    assert begun.wait(PATIENCE_S)
    assert unused_programs.helper is not None
    with subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", *command, "wait"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"waiting\n"
        go_on.set()
        # Its end is that of the system's thread, some time after that of Python's.
        while os.path.exists(f"/proc/self/task/{thread.native_id}"):
            thread.join(0.01)
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0


@pytest.mark.own_interpreter("that is its subject")
def test_a_test_with_the_mark_starts_new_interpreters(
    programs: PreloadedPrograms, command: list[str], tmp_path: Path
) -> None:
    assert _is_new(command, cwd=tmp_path)
