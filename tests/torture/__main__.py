"""`make torture`: one phase after another, again and again, for some minutes; exit status 1 if a promise was broken.

    python -m tests.torture --minutes 60 --seed 7 --phases kills,faults

Everything is decided by the seed, but for what real processes and the machine decide by themselves. Every phase is a
round with a directory of its own, which is removed when all promises were kept and stays when one was broken.
"""

from __future__ import annotations

import argparse
import logging
import random
import secrets
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import attrs

from tests.torture.bit_flips import bit_flips
from tests.torture.bridge_phases import bridges, queues
from tests.torture.broker_phases import brokers, frozen_brokers, lost_answers, mqtt_histories
from tests.torture.cluster_phase import clusters
from tests.torture.export_phase import exports
from tests.torture.fault_phases import failing_starts, faults
from tests.torture.full_disk import full_disk
from tests.torture.gathering_phase import gathering
from tests.torture.process_phases import clock, kills, pauses
from tests.torture.queue_steps import queue_steps
from tests.torture.rounds import Result
from tests.torture.sequences_phase import sequences
from tests.torture.store_phase import troubled_stores
from tests.torture.stream_phase import streams

Phase = Callable[[Path, random.Random, float], Result]

PHASES: dict[str, Phase] = {
    "sequences": sequences,
    "kills": kills,
    "faults": faults,
    "failing-starts": failing_starts,
    "gathering": gathering,
    "full-disk": full_disk,
    "pauses": pauses,
    "clock": clock,
    "bit-flips": bit_flips,
    "clusters": clusters,
    "troubled-stores": troubled_stores,
    "brokers": brokers,
    "frozen-brokers": frozen_brokers,
    "lost-answers": lost_answers,
    "mqtt-histories": mqtt_histories,
    "queue-steps": queue_steps,
    "queues": queues,
    "bridges": bridges,
    "exports": exports,
    "streams": streams,
}
ROUND_S = 15
"""How long something is done to the server in one round; looking at everything afterwards comes on top."""


@attrs.define
class Torture:
    """A run.

    Args:
        seed: Of everything.
        directory: Where rounds have theirs.
        phases: Which, in their order.
        round_s: Length of a round.
        write: Takes a line of the report.
    """

    seed: int
    directory: Path
    phases: Mapping[str, Phase]
    round_s: float
    write: Callable[[str], None]
    counts: Counter[str] = attrs.Factory(Counter)
    skipped: dict[str, str] = attrs.Factory(dict)
    broken: int = 0
    _told_at: float = attrs.field(factory=time.monotonic)
    _since: Counter[str] = attrs.Factory(Counter)

    def run(self, seconds: float, first_turn: int = 0) -> int:
        """Run whole rounds until the time is over, each phase at least once; gives the exit status."""
        ends_at = time.monotonic() + seconds
        turn = first_turn
        while turn == first_turn or time.monotonic() < ends_at:
            for name in self.phases:
                if turn > first_turn and time.monotonic() >= ends_at:
                    break
                if name not in self.skipped:
                    self._round(name, turn)
            turn += 1
        self._tell("in all", self.counts)
        for name, reason in self.skipped.items():
            self.write(f"skipped: {name}: {reason}")
        self.write("HELD: every promise was kept" if not self.broken else f"BROKEN: {self.broken} promises, see above")
        return 1 if self.broken else 0

    def _round(self, name: str, turn: int) -> None:
        directory = self.directory / f"{name}-{turn}"
        directory.mkdir()
        try:
            result = self.phases[name](directory, random.Random(f"{self.seed}/{name}/{turn}"), self.round_s)
        except Exception:
            result = Result(broken=[f"the round itself failed: {traceback.format_exc()}"])
        counts = result.counts + Counter({f"{name} rounds": 0 if result.skipped else 1})
        self.counts += counts
        self._since += counts
        if result.skipped:
            self.skipped[name] = result.skipped
            self.write(f"skipped: {name}: {result.skipped}")
        for problem in result.broken:
            self.write(f"BROKEN: {name}: {problem}")
        if result.broken:
            self.broken += len(result.broken)
            again = f"make torture SEED={self.seed} PHASES={name} TURN={turn} MINUTES=0"
            self.write(f"again: {again}; the round lies in {directory}")
        else:
            shutil.rmtree(directory)
        if time.monotonic() - self._told_at >= 60:
            self._tell("held" if not self.broken else "broken", self._since)
            self._told_at = time.monotonic()
            self._since = Counter()

    def _tell(self, what: str, counts: Counter[str]) -> None:
        told = ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()) if count)
        self.write(f"{time.strftime('%H:%M:%S')} {what}: {told}")


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    """Run as the command line says."""
    parser = argparse.ArgumentParser(prog="make torture", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10, help="rounds begin until this is over (10)")
    parser.add_argument("--seed", type=int, default=None, help="a random one unless given; it is printed")
    parser.add_argument("--turn", type=int, default=0, help="which turn to begin with, to repeat a round")
    parser.add_argument("--phases", default=",".join(PHASES), help=f"some of {','.join(PHASES)}")
    parser.add_argument("--round-seconds", type=float, default=ROUND_S, help=f"length of a round ({ROUND_S})")
    options = parser.parse_args(arguments)
    # What engines log in this process is part of what is done to them, not of the report.
    logging.getLogger().addHandler(logging.NullHandler())
    names = options.phases.split(",")
    if unknown := sorted(set(names) - PHASES.keys()):
        parser.error(f"there is no phase {', '.join(unknown)}; there are {', '.join(PHASES)}")
    seed = secrets.randbelow(1 << 31) if options.seed is None else options.seed
    directory = Path(tempfile.mkdtemp(prefix="torture-"))
    _write(f"seed {seed}, {options.minutes:g} minutes, phases {', '.join(names)}")
    torture = Torture(seed, directory, {name: PHASES[name] for name in names}, options.round_seconds, _write)
    status = torture.run(options.minutes * 60, options.turn)
    if not status:
        shutil.rmtree(directory)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
