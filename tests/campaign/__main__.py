"""Runs the campaign and prints a table; exit code 1 if a case has a fault."""

import argparse
import collections
import sys
import tempfile
import time
from pathlib import Path

from . import judge, run, warm
from .formats import FORMATS

# Seconds of a processor until a command counts as hanging.
_LIMIT = 4 * judge.MOST_SECONDS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign")
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the number to start at")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--format", action="append", choices=FORMATS, default=[])
    parser.add_argument(
        "--inputs",
        type=Path,
        help="whole inputs of an earlier campaign, or a new folder",
    )
    parser.add_argument("--keep", type=Path, help="keeps the inputs of faulty cases")
    parser.add_argument("--verbose", action="store_true", help="prints every case")
    chosen = parser.parse_args()
    numbers = range(chosen.first, chosen.first + chosen.cases)
    rows = collections.defaultdict(list)
    start, faulty = time.monotonic(), 0
    with warm.Process(_LIMIT) as process, tempfile.TemporaryDirectory() as made:
        base = chosen.inputs or Path(made)
        if not base.exists() or not any(base.iterdir()):
            base.mkdir(exist_ok=True)
            run.write_base(process, base)
        for refused in run.refused_whole(process, base, tuple(chosen.format)):
            print(f"whole input refused: {refused}", flush=True)
            faulty += 1
        for case in run.cases(
            *(process, base, chosen.seed, numbers),
            *(tuple(chosen.format), chosen.keep),
        ):
            rows[case.format].append(case)
            faulty += bool(case.faults)
            if case.faults or chosen.verbose:
                said = (case.result.stderr.strip().splitlines() or [""])[-1]
                print(
                    f"{case.number}  {case.format}: {case.damage}: "
                    f"{case.result.code}, {case.result.processor_seconds} s, "
                    f"{'; '.join(case.faults) or said[:200]}",
                    flush=True,
                )
    print(f"{'format':24} cases  exit 0  exit 1  faults  most s  most GB  most lines")
    for name, found in sorted(rows.items()):
        results = [case.result for case in found]
        print(
            f"{name:24} {len(found):5}  {sum(r.code == 0 for r in results):6}  "
            f"{sum(r.code == 1 for r in results):6}  "
            f"{sum(bool(case.faults) for case in found):6}  "
            f"{max(r.processor_seconds for r in results):6.1f}  "
            f"{max(r.peak_gb for r in results):7.2f}  "
            f"{max(len(r.stderr.splitlines()) for r in results):10}"
        )
    print(
        f"{len(numbers)} cases of seed {chosen.seed} in "
        f"{time.monotonic() - start:.0f} s: {faulty} with faults"
    )
    return int(bool(faulty))


if __name__ == "__main__":
    sys.exit(main())
