"""python -m tests.mutation: mutate every rule, and see that the suite notices."""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from tests.mutation.runner import KILLERS, Job, Mutation, run


def report_one(done: int, total: int, job: Job, seconds: float) -> None:
    """A line for what survives, and one now and then."""
    if job.outcome == "survived":
        print(f"SURVIVED {', '.join(job.slots[:4])}  {job.where}  {job.text}", flush=True)
    if done % 100 == 0 or done == total:
        print(f"{done} of {total} mutants, {seconds:.0f} s", flush=True)


def table(m: Mutation) -> None:
    """What was made of each slot and how it ended."""
    per: dict[str, Counter[str]] = defaultdict(Counter)
    for job in m.jobs:
        for slot in job.slots:
            per[slot][job.outcome] += 1
            per[slot]["own"] += job.kind in ("wrapper", "zeros") or len(job.slots) == 1
    for slot, c in per.items():
        made = sum([n for k, n in c.items() if k not in ("own", "idle")])
        killed = c["killed"] + c["crashed"] + c["hung"]
        print(f"{slot:36} made {made:4}  killed {killed:4}  survived {c['survived']:3}  equivalent {c['equivalent']:3}")


def totals(m: Mutation) -> None:
    """By kind of slot, each mutant counted once."""
    per: dict[str, Counter[str]] = defaultdict(Counter)
    for job in m.jobs:
        kind = job.slots[0].rpartition(".")[2] if job.kind != "transform" else "transforms"
        per[kind][job.outcome] += 1
        per["all"][job.outcome] += 1
    for kind, c in per.items():
        print(f"{kind:12}", dict(c))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.mutation")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="primitives, slots or files")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--each", type=int, default=12, help="faults in the source of one function")
    parser.add_argument("--report", type=Path, help="write all mutants there, as JSON")
    parser.add_argument("--coverage", type=Path, help="which test reaches what: read it there, or write it")
    parser.add_argument("--killers", nargs="*", default=[], help=f"test files; default: {' '.join(KILLERS)}")
    parser.add_argument("--select", default="", help="of the test files, what pytest -k selects")
    options: Any = parser.parse_args()
    options.report_one = report_one
    m = run(options)
    if m.coverage.failed:
        print("the suite does not pass without mutants:", *m.coverage.failed, sep="\n  ")
    table(m)
    totals(m)
    if options.report:
        fields = ("where", "text", "slots", "kind", "outcome", "killer")
        options.report.write_text(json.dumps([{k: getattr(j, k) for k in fields} for j in m.jobs], indent=1))
    return int(any([j.outcome == "survived" for j in m.jobs]) or bool(m.coverage.failed))


if __name__ == "__main__":
    raise SystemExit(main())
