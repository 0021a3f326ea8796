"""One target under atheris, in a process of its own: `python -m tests.fuzz.coverage_run TARGET ...`.

libFuzzer chooses inputs by the code and comparisons that they reach. A finding is written to a file and does not end
the run. An input that ends the process (a crash in native code, or no end within the time limit) libFuzzer writes.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tests.fuzz.target import Target

INSTRUMENTED: Final = ("shards", "journal", "broker_adapter")
HANGS_AFTER_S: Final = 20
_ROOM_BYTES: Final = 2 << 30
_LONGEST_WORD_BYTES: Final = 64
_FROM_LIBFUZZER: Final = 0.4


def main() -> None:
    """Run until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--seconds", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--work", type=Path, required=True, help="takes corpus, seeds and findings")
    options = parser.parse_args()
    ends_s = time.monotonic() + options.seconds

    import atheris

    # What a target imports is instrumented while it is imported.
    with atheris.instrument_imports(include=list(INSTRUMENTED)):
        from tests.fuzz.targets import load

        target = load(options.target)
    from tests.fuzz import findings
    from tests.fuzz.mutation import mutate, repaired
    from tests.fuzz.target import run_bounded

    seeds = list(target.seeds())
    for data in seeds:
        run_bounded(target, data)
    _bound_memory()
    seen: set[str] = set()

    def run(data: bytes) -> None:
        finding = findings.find(target, data)
        if finding is not None and finding.place not in seen:
            seen.add(finding.place)
            path = findings.save(finding, options.work / "found")
            print(f"FOUND {path} {finding.place}", file=sys.stderr, flush=True)

    def mutator(data: bytes, max_size: int, seed: int) -> bytes:
        random_ = random.Random(seed)
        if random_.random() < _FROM_LIBFUZZER:
            return repaired(target, random_, atheris.Mutate(data, max_size))[:max_size]
        return mutate(target, random_, data, seeds)[:max_size]

    arguments = [sys.argv[0], *_arguments(options, target, seeds, max(1, round(ends_s - time.monotonic())))]
    atheris.Setup(arguments, run, custom_mutator=mutator)
    atheris.Fuzz()


def _arguments(options: argparse.Namespace, target: Target, seeds: list[bytes], seconds: int) -> list[str]:
    corpus, beginning = options.work / "corpus", options.work / "seeds"
    for directory in (corpus, beginning, options.work / "found"):
        directory.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(seeds):
        (beginning / str(number)).write_bytes(data)
    # libFuzzer takes no longer words, and no file without any.
    short = [token for token in target.tokens if len(token) <= _LONGEST_WORD_BYTES]
    dictionary = options.work / "tokens"
    escaped = ["".join(f"\\x{byte:02x}" for byte in token) for token in short]
    dictionary.write_text("".join(f'"{token}"\n' for token in escaped))
    return [
        *([f"-dict={dictionary}"] if short else []),
        str(corpus),
        str(beginning),
        f"-max_total_time={seconds}",
        f"-seed={options.seed or 1}",
        f"-max_len={target.max_input_bytes}",
        f"-timeout={HANGS_AFTER_S}",
        f"-artifact_prefix={options.work / 'found'}/",
        "-rss_limit_mb=3000",
        "-use_value_profile=1",
        "-print_final_stats=1",
        "-len_control=0",
    ]


def _bound_memory() -> None:
    """Refuse allocations far beyond every limit of the formats: they become findings even if the memory is not used."""
    with open("/proc/self/statm") as statm:
        size_bytes = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size_bytes + _ROOM_BYTES, resource.RLIM_INFINITY))


if __name__ == "__main__":
    main()
