"""Starts the Python programs of tests by forking a process that has loaded their modules already.

Tests start servers, brokers and commands by the thousand. Of half a second of a processor that each start takes, four
fifths are imports. So while `PreloadedPrograms` is installed, a process of tests has one helper process which has the
modules loaded. `python -m module arguments` becomes a fork of the helper that runs the module as `__main__`: a process
with an id, an environment, streams and an end of its own. It is a child of the process of tests (CLONE_PARENT), which
can wait for it and send signals to it, as to any other.

A start is left as it is if it asks for something that a fork cannot give: other options of the interpreter, other
variables that the interpreter or a library reads when it starts, descriptors to be passed on, another user. So is
every start in a test with the mark `own_interpreter`, everything that a shell or another program starts, and
everything on other systems than Linux.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import json
import os
import platform
import resource
import runpy
import signal
import socket
import subprocess
import sys
import threading
from _posixsubprocess import fork_exec
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal

import attrs

_LOADED: Final = (
    "broker_adapter.engines.embedded",
    "broker_adapter.engines.journal",
    "broker_adapter.mqtt.cli.serve",
    "broker_adapter.mqtt.server.bridge_process",
    "broker_adapter.mqtt.server.process",
    "command_line.app",
    "cyclopts.validators",
    "encodings.idna",
    "importlib.readers",
    "journal.backup",
    "journal.check",
    "journal.cli.append",
    "journal.cli.connection",
    "journal.cli.serve",
    "journal.client",
    "journal.engine.parquet.worker",
    "journal.server",
    "journal.settings.server_file",
    "rocksdict",
    "shards.parquet.shared_file",
    "shards.parquet.shared_reading",
    "shards.seams.rocks_store",
)
"""What servers, brokers and the commands that tests start most often load. None of it may start a thread."""

_NO_THREADS: Final = {"JE_ARROW_MALLOC_CONF": "background_thread:false", "OPENBLAS_NUM_THREADS": "1"}
"""With these variables in its environment, pyarrow and numpy start no thread when they are loaded."""

_CLONE_CALL: Final = {"x86_64": 56, "aarch64": 220}
"""Number of the system call `clone`, by machine."""

_CLONE_PARENT: Final = 0x8000
_LIMITS: Final = sorted(number for name, number in vars(resource).items() if name.startswith("RLIMIT_"))
_SET_DEATH_SIGNAL: Final = 1
_LENGTH_BYTES: Final = 8
_READ_AT_START: Final = (
    *("PYTHON", "LD_", "MALLOC_", "MIMALLOC_", "JOURNAL_PURE", "LC_", "LANG", "GLIBC_", "OPENSSL_"),
    *("ARROW_", "JE_ARROW_", "OMP_", "OPENBLAS_"),
)
"""How the variables begin that the interpreter, the C library or a module reads while it is loaded."""

_ENDS_WITH_PARENT: Final = ("setpriv", "--pdeathsig", "KILL")
"""The prefix of a command that is to be killed when the process of tests ends."""


class PreloadedPrograms:
    """Forks what `subprocess` starts with `python -m`, while it is installed.

    Starts from several threads take turns.

    Attributes:
        helper: The process that forks programs; None before the first one.
    """

    _excused: ClassVar = 0

    def __init__(self) -> None:
        self._before: Any = None
        self._environment = dict(os.environ)
        self._lock = threading.Lock()
        self.helper: subprocess.Popen[bytes] | None = None
        self._keeper: threading.Thread | None = None
        self._connection: socket.socket | None = None

    def install(self) -> None:
        if sys.platform == "linux" and platform.machine() in _CLONE_CALL:
            self._before = subprocess._fork_exec  # type: ignore[attr-defined]
            subprocess._fork_exec = self._start  # type: ignore[attr-defined]

    def uninstall(self) -> None:
        """End the helper process; what was forked from it goes on."""
        if self._before is not None:
            subprocess._fork_exec = self._before  # type: ignore[attr-defined]
            self._before = None
        if self._connection is not None and self._keeper is not None:
            self._connection.close()
            self._keeper.join()
            self._connection = self._keeper = None

    @contextlib.contextmanager
    def excused(self) -> Iterator[None]:
        """Within the block every start is a new interpreter."""
        PreloadedPrograms._excused += 1
        try:
            yield
        finally:
            PreloadedPrograms._excused -= 1

    def _start(self, *arguments: Any) -> int:
        """Stands in the place of `_posixsubprocess.fork_exec`, whose arguments and result these are."""
        wanted = None if self._excused else _program_of(_Start(*arguments), self._environment)
        if wanted is None:
            return fork_exec(*arguments)
        with self._lock:
            return self._fork(wanted)

    def _fork(self, wanted: _Program) -> int:
        if self._connection is None:
            self._connection = self._start_helper()
        description = json.dumps(attrs.asdict(wanted)).encode("utf-8", "surrogateescape")
        streams = [wanted.stdin, wanted.stdout, wanted.stderr]
        self._connection.sendall(len(description).to_bytes(_LENGTH_BYTES, "big"))
        socket.send_fds(self._connection, [description[:1]], streams)
        self._connection.sendall(description[1:])
        answer = self._connection.recv(_LENGTH_BYTES, socket.MSG_WAITALL)
        assert len(answer) == _LENGTH_BYTES, "the process that forks programs has ended"
        return int.from_bytes(answer, "big")

    def _start_helper(self) -> socket.socket:
        near, far = socket.socketpair()
        begun = threading.Event()

        def keep() -> None:
            try:
                with far:
                    self.helper = subprocess.Popen(
                        [sys.executable, "-m", __name__, str(far.fileno())],
                        pass_fds=[far.fileno()],
                        cwd=_ROOT,
                        env={**self._environment, **_NO_THREADS},
                    )
            finally:
                begun.set()
            self.helper.wait()

        # To the system, a process is the child of a thread. When that thread ends, the system kills its children that
        # are to end with their parent, and what the helper forks are the children of the thread that started it.
        self._keeper = threading.Thread(target=keep, name="preloaded-programs", daemon=True)
        self._keeper.start()
        begun.wait()
        return near


_ROOT: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_PATH: Final = "PYTHONPATH"


@attrs.frozen
class _Start:
    """The arguments of `_posixsubprocess.fork_exec`, in order."""

    args: Sequence[str | bytes | os.PathLike[str]]
    executables: Sequence[bytes]
    close_fds: bool
    fds_to_keep: Sequence[int]
    cwd: str | bytes | os.PathLike[str] | None
    environment: Sequence[bytes] | None
    stdin_read: int
    stdin_write: int
    stdout_read: int
    stdout_write: int
    stderr_read: int
    stderr_write: int
    errpipe_read: int
    errpipe_write: int
    restore_signals: bool
    start_new_session: bool
    process_group: int
    gid: int | None
    gids: Sequence[int] | None
    uid: int | None
    umask: int
    preexec_fn: object
    use_vfork: bool


@attrs.frozen
class _Program:
    """What the helper needs to know to run a program.

    Attributes:
        module: What stands after `-m`.
        arguments: What stands after the module.
        finds_root: It searches for modules in the project's directory after its own.
        stdin, stdout, stderr: Descriptors; 0, 1 and 2 for those of the process of tests.
        umask: Of the process of tests.
        limits: Its soft and hard limit of each resource, by the number of the resource.
    """

    module: str
    arguments: list[str]
    cwd: str
    finds_root: bool
    environment: dict[str, str]
    stdin: int
    stdout: int
    stderr: int
    new_session: bool
    ends_with_parent: bool
    umask: int
    limits: list[tuple[int, tuple[int, int]]]


def _program_of(start: _Start, of_helper: Mapping[str, str]) -> _Program | None:
    """The program to fork; None for a start that has to be left as it is.

    Args:
        of_helper: The environment of the helper.
    """
    words = [os.fsdecode(word) for word in start.args]
    ends_with_parent = tuple(words[: len(_ENDS_WITH_PARENT)]) == _ENDS_WITH_PARENT
    if ends_with_parent:
        words = words[len(_ENDS_WITH_PARENT) :]
    if len(words) < 3 or words[0] != sys.executable or words[1] != "-m":
        return None
    if (
        not start.close_fds
        or len(start.fds_to_keep) != 1  # the pipe over which a failed exec is reported
        or not start.restore_signals
        or start.process_group != -1
        or start.umask != -1
        or any(each is not None for each in (start.gid, start.gids, start.uid, start.preexec_fn))
    ):
        return None
    environment = _environment_of(start.environment)
    read_at_start = _read_at_start(environment)
    finds_root = read_at_start.get(_PATH) == _ROOT and _PATH not in of_helper
    if finds_root:
        # So engines start their workers. The helper has its modules from there, too.
        del read_at_start[_PATH]
    if read_at_start != _read_at_start(of_helper):
        return None
    cwd = os.path.abspath(os.fsdecode(start.cwd or "."))
    if not os.path.isdir(cwd):
        return None
    # `-1` is what the process of tests has itself.
    stdin, stdout, stderr = (
        given if given != -1 else own
        for given, own in ((start.stdin_read, 0), (start.stdout_write, 1), (start.stderr_write, 2))
    )
    return _Program(
        module=words[2],
        arguments=words[3:],
        cwd=cwd,
        finds_root=finds_root,
        environment=environment,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        new_session=start.start_new_session,
        ends_with_parent=ends_with_parent,
        umask=_own_umask(),
        limits=[(number, resource.getrlimit(number)) for number in _LIMITS],
    )


def _own_umask() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1], 8) for line in status if line.startswith("Umask:"))


def _environment_of(given: Sequence[bytes] | None) -> dict[str, str]:
    if given is None:
        return dict(os.environ)
    pairs = (os.fsdecode(each).partition("=") for each in given)
    return {name: value for name, _, value in pairs}


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_READ_AT_START)}


def _serve(connection: socket.socket) -> _Program | None:
    """Fork a program for each request, until the process of tests ends.

    Returns:
        In the process of a program, that; None in the helper, at its end.
    """
    # Ctrl-C is for the process of tests, whose end is the end of the helper.
    at_interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    while length := connection.recv(_LENGTH_BYTES, socket.MSG_WAITALL):
        first, descriptors, _, _ = socket.recv_fds(connection, 1, 3)
        rest = connection.recv(int.from_bytes(length, "big") - 1, socket.MSG_WAITALL)
        described: dict[str, Any] = json.loads((first + rest).decode("utf-8", "surrogateescape"))
        program = _Program(**described)
        pid = _fork_sibling()
        if pid == 0:
            signal.signal(signal.SIGINT, at_interrupt)
            try:
                _become(program)
            finally:
                # Not before: the process of tests may send a signal to its session at once.
                connection.sendall(os.getpid().to_bytes(_LENGTH_BYTES, "big"))
                connection.close()
            _take_streams(descriptors)
            return program
        for descriptor in descriptors:
            os.close(descriptor)
    return None


def _fork_sibling() -> int:
    """Fork a process whose parent is this process's parent.

    Returns:
        The id of the new process; 0 in that process.

    Raises:
        OSError: The system has no room for another process.
    """
    # `os.fork` has no flags. What it does before and after the system call is in these functions of Python's C API.
    calls = ctypes.PyDLL(None, use_errno=True)
    calls.syscall.restype = ctypes.c_long
    calls.PyOS_BeforeFork()
    pid: int = calls.syscall(_CLONE_CALL[platform.machine()], _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        calls.PyOS_AfterFork_Child()
    else:
        calls.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(ctypes.get_errno(), "clone")
    return pid


def _become(program: _Program) -> None:
    """Have what the process of tests gives to a program that it starts."""
    os.environ.clear()
    os.environ.update(program.environment)
    os.chdir(program.cwd)
    os.umask(program.umask)
    for number, (soft, hard) in program.limits:
        resource.setrlimit(number, (soft, hard))
    if program.new_session:
        os.setsid()
    if program.ends_with_parent:
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)


def _take_streams(descriptors: Sequence[int]) -> None:
    """Make the descriptors 0, 1 and 2 of these. The helper has no others."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)


def _run(program: _Program) -> None:
    """Be the program, as if the interpreter had been started with it.

    Raises:
        BaseException: What ended the program, unless it was the ordinary `sys.exit`.
    """
    sys.stdin, sys.stdout, sys.stderr = _stream(0, "r"), _stream(1, "w"), _stream(2, "w")
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
    sys.orig_argv = [sys.executable, "-m", program.module, *program.arguments]
    sys.argv = [program.module, *program.arguments]
    sys.path[0] = program.cwd
    if program.finds_root:
        # Once: an editable install has it at the end, where a new interpreter would leave it out.
        sys.path[1:] = [_ROOT, *(path for path in sys.path[1:] if path != _ROOT)]
    sys.modules.pop(program.module, None)
    status = 0
    try:
        runpy.run_module(program.module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        status = end.code or 0
    # As the interpreter ends, but for taking all modules apart: that would copy the memory shared with the helper.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _stream(descriptor: int, mode: Literal["r", "w"]) -> io.TextIOWrapper:
    """A standard stream as the interpreter makes it."""
    like = {0: sys.stdin, 1: sys.stdout, 2: sys.stderr}[descriptor]
    assert isinstance(like, io.TextIOWrapper)
    is_unbuffered = like.write_through and mode == "w"
    return io.TextIOWrapper(
        open(descriptor, f"{mode}b", buffering=0 if is_unbuffered else -1, closefd=False),  # type: ignore[arg-type]
        like.encoding,
        like.errors,
        line_buffering=not is_unbuffered and (descriptor == 2 or os.isatty(descriptor)),
        write_through=is_unbuffered,
    )


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    for module in _LOADED:
        importlib.import_module(module)
    assert len(os.listdir("/proc/self/task")) == 1, "a module that is loaded here starts a thread"
    # A collection must not write to what all forks share.
    gc.collect()
    gc.freeze()
    program = _serve(connection)
    if program is not None:
        _run(program)


if __name__ == "__main__":
    main()
