"""A machine of its own for a page: what its commands write stays there, and what they start ends with it.

Linux namespaces give it this machine's files below a layer of its own, an empty ``/tmp``, processes and a loopback of
its own, and no other network. So every user can run the pages word for word, with the paths and ports that they name.
"""

from __future__ import annotations

import errno
import functools
import os
import pty
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs

from tests.documents.pages import REPOSITORY
from tests.patience import PATIENCE_S

WHEELS: Final = "/tmp/wheels"

_EMPTY_THERE: Final = "/tmp"

_OVERLAY: Final = 'mount -t overlay overlay -o "lowerdir=/,upperdir=$upper,workdir=$work" "$root"'
_TRY: Final = f"""
set -e
root=$1 upper=$2 work=$3
{_OVERLAY}
ip link set lo up
"""
_ENTER: Final = rf"""
set -e
root=$1 upper=$2 work=$3 shell=$4
shift 4
{_OVERLAY}
while [ $# -gt 0 ]; do
    mkdir -p "$root$2"
    mount --bind "$1" "$root$2"
    shift 2
done
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
ip link set lo up
exec chroot "$root" bash --noprofile --norc -c "$shell"
"""
# Commands come by one pipe and statuses go by another, so that stdin and stdout are the commands' alone. They run in
# this one shell, with job control, as those that a user types.
_SHELL: Final = r"""
set -m
while IFS= read -r -d '' command <&$commands; do
    eval "$command" < /dev/null
    printf '%s\0' $? >&$statuses
done
"""


@attrs.frozen
class Done:
    """A command that ended.

    Attributes:
        status: Its exit status.
        told: What went to stderr meanwhile, its own and that of what runs in the background.
    """

    status: int
    told: str


class Machine:
    """A running machine with one shell; made by `machine`."""

    def __init__(self, process: subprocess.Popen[bytes], commands: int, statuses: int, terminal: int) -> None:
        self._process = process
        self._commands = commands
        self._output = bytearray()
        self._errors = bytearray()
        self._statuses = bytearray()
        self._selector = selectors.DefaultSelector()
        assert process.stderr is not None
        for source, buffer in (
            (terminal, self._output),
            (process.stderr.fileno(), self._errors),
            (statuses, self._statuses),
        ):
            os.set_blocking(source, False)
            self._selector.register(source, selectors.EVENT_READ, buffer)

    def run(self, command: str, timeout_s: float = PATIENCE_S) -> Done:
        """Type a command and wait until the shell is ready for the next one."""
        told_before = len(self._errors)
        os.write(self._commands, command.encode() + b"\0")
        self._collect(lambda: self._statuses.endswith(b"\0"), timeout_s, command)
        status = int(self._statuses.removesuffix(b"\0"))
        self._statuses.clear()
        return Done(status, self._errors[told_before:].decode(errors="replace"))

    def expect(self, lines: Sequence[str], after: str) -> None:
        """Wait until these lines, and nothing else, were printed since the last call.

        Args:
            lines: Whole lines; "..." stands for any number of lines.
            after: The command, for the message.
        """
        pattern = "".join(r"(?:.*\n)*?" if line == "..." else re.escape(line) + r"\s*\n" for line in lines)
        found = re.compile(pattern)
        self._collect(lambda: found.match(self._printed()), PATIENCE_S, f"{after!r}: wanted {list(lines)}")
        match = found.match(self._printed())
        assert match is not None
        del self._output[: len(match[0].encode())]

    def take_output(self) -> str:
        """All that was printed since it was taken the last time."""
        self._collect(lambda: True, 0, "")
        taken = self._printed()
        self._output.clear()
        return taken

    def _printed(self) -> str:
        return self._output.decode(errors="replace")

    def _collect(self, is_done: Callable[[], object], timeout_s: float, what: str) -> None:
        deadline_s = time.monotonic() + timeout_s
        while True:
            for key, _ in self._selector.select(0):
                if taken := _read(key.fd):
                    key.data.extend(taken)
                else:
                    self._selector.unregister(key.fileobj)
            if is_done():
                return
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not self._selector.get_map():
                raise AssertionError(
                    f"{what}\nprinted:\n{self._printed()}\nstderr:\n{self._errors.decode(errors='replace')[-8000:]}"
                )
            self._selector.select(min(left_s, 1.0))


def _read(descriptor: int) -> bytes:
    """What is there; nothing at the end."""
    try:
        return os.read(descriptor, 1 << 16)
    except OSError as error:
        # A terminal that no process has open any more ends with this error.
        if error.errno == errno.EIO:
            return b""
        raise


@functools.cache
def why_not() -> str:
    """Why this machine cannot make others; "" if it can."""
    if REPOSITORY.is_relative_to(_EMPTY_THERE):
        return f"the checkout lies below {_EMPTY_THERE}, which such a machine has for itself"
    with tempfile.TemporaryDirectory() as place:
        layers = [f"{place}/{name}" for name in ("root", "upper", "work")]
        for layer in layers:
            Path(layer).mkdir()
        try:
            done = subprocess.run(
                [*_namespaces(), "sh", "-c", _TRY, "machine", *layers],
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
        except OSError as error:
            return f"no namespaces: {error}"
    return "" if done.returncode == 0 else f"no namespaces: {done.stderr.strip()}"


def _namespaces() -> list[str]:
    mapped = [] if os.geteuid() == 0 else ["--map-root-user"]
    return ["unshare", *mapped, "--mount", "--net", "--pid", "--fork", "--kill-child"]


@contextmanager
def machine(place: Path, shared: Mapping[str, Path]) -> Iterator[Machine]:
    """A machine for the time of a ``with`` block.

    Args:
        place: Empty directory for its files.
        shared: Directories of this machine that it shares, by their path there; `WHEELS` has the wheels for its pip.
    """
    parts = {name: place / name for name in ("root", "upper", "work", "tmp")}
    for part in parts.values():
        part.mkdir(parents=True)
    parts["tmp"].chmod(0o1777)
    for_commands, commands = os.pipe()
    statuses, for_statuses = os.pipe()
    terminal, its_end = pty.openpty()
    tty.setraw(its_end)
    mounts = [
        str(each) for inside, outside in {_EMPTY_THERE: parts["tmp"], **shared}.items() for each in (outside, inside)
    ]
    script = f"commands={for_commands} statuses={for_statuses}\n{_SHELL}"
    process = subprocess.Popen(
        [
            *_namespaces(),
            "bash",
            "-c",
            _ENTER,
            "machine",
            *(str(parts[name]) for name in ("root", "upper", "work")),
            script,
            *mounts,
        ],
        stdin=subprocess.DEVNULL,
        stdout=its_end,
        stderr=subprocess.PIPE,
        pass_fds=(for_commands, for_statuses),
        env=_environment(),
        start_new_session=True,
    )
    for descriptor in (for_commands, for_statuses, its_end):
        os.close(descriptor)
    try:
        yield Machine(process, commands, statuses, terminal)
    finally:
        # The first process of the machine dies with this one, and all others with that.
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.stderr is not None
        process.stderr.close()
        for descriptor in (commands, statuses, terminal):
            os.close(descriptor)


def _environment() -> Mapping[str, str]:
    """That of a user who has just logged in, but that pip knows the wheels alone."""
    python = Path(getattr(sys, "_base_executable", sys.executable)).resolve().parent
    system = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
    return {
        "HOME": "/root",
        "PATH": ":".join((str(python), *system)),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "COLUMNS": "160",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": WHEELS,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
