"""python -m tests.mutation: mutate every rule, and see that the suite notices."""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.mutation.runner import KILLERS, Job, Mutation, run
from tests.mutation.targets import filled, refuses

FIELDS = ("where", "text", "slots", "kind", "outcome", "killer")


class Report:
    """Says what survives, and keeps how each mutant ended, a line of JSON each."""

    def __init__(self, path: Path | None, resume: bool) -> None:
        self.path = path
        self.known: dict[tuple[str, str, str], Any] = {}
        if path is not None and resume and path.exists():
            for line in path.read_text().splitlines():
                d = json.loads(line)
                self.known[d["where"], d["text"], d["slots"][0]] = d
        elif path is not None:
            path.write_text("")

    def settled(self, job: Job) -> bool:
        """Whether an earlier run caught it."""
        d = self.known.get((job.where, job.text, job.slots[0]))
        if d is None or d["outcome"] in ("survived", "hung", "crashed"):
            return False
        job.outcome, job.killer = d["outcome"], d["killer"]
        return True

    def seen(self, job: Job) -> bool:
        """Whether it was judged before."""
        return (job.where, job.text, job.slots[0]) in self.known

    def one(self, done: int, total: int, job: Job, seconds: float) -> None:
        """A mutant has ended."""
        if job.outcome in ("survived", "hung"):
            how = job.killer or f"{job.killers} tests" if job.killers else "no test reaches it"
            print(f"{job.outcome.upper()} {', '.join(job.slots[:4])}  {job.where}  {job.text}  ({how})", flush=True)
        if done % 50 == 0 or done == total:
            print(f"{done} of {total} mutants, {seconds:.0f} s of a processor", flush=True)
        if self.path is not None:
            with self.path.open("a") as f:
                f.write(json.dumps({k: getattr(job, k) for k in FIELDS}) + "\n")


SURE = 5  # faults at least, of each of these slots alone
OWN = ("jvp", "transpose", "batch", "split")


def counted(jobs: Iterable[Job]) -> Counter[str]:
    """How many were made that change something, and how they ended."""
    c = Counter([job.outcome for job in jobs])
    ended = {"killed": c["killed"] + c["crashed"] + c["hung"], "equivalent": c["equivalent"], "survived": c["survived"]}
    return Counter({"made": sum(ended.values()), **ended, "idle": c["idle"]})


def line(name: str, c: Counter[str]) -> str:
    """A row of the table."""
    return f"{name:36}" + "".join([f" {k} {c[k]:4} " for k in ("made", "killed", "equivalent", "survived", "idle")])


def table(m: Mutation) -> None:
    """What was made of each slot and how it ended."""
    per: dict[str, list[Job]] = defaultdict(list)
    for job in m.jobs:
        for slot in job.slots:
            per[slot].append(job)
    for slot, jobs in per.items():
        print(line(slot, counted(jobs)))


def kind_of(job: Job) -> str:
    """The kind of slot where it is, or the transforms."""
    return "transforms" if job.kind == "transform" else job.slots[0].rpartition(".")[2]


def totals(m: Mutation) -> None:
    """By kind of slot, each mutant counted once."""
    print()
    for kind in dict.fromkeys(map(kind_of, m.jobs)):
        slots = {job.slots[0] for job in m.jobs if kind_of(job) == kind}
        print(line(f"{kind} ({len(slots)} slots)", counted([j for j in m.jobs if kind_of(j) == kind])))
    print(line("all", counted(m.jobs)))


def fewest(m: Mutation) -> tuple[int, list[str]]:
    """The smallest number of faults that a slot alone has and that do change something; and the slots with so many."""
    count = {f"{name}.{slot}": 0 for name, slot in filled() if slot in OWN and not refuses(name, slot)}
    for job in m.jobs:
        changed = job.outcome in ("killed", "crashed", "hung", "survived")
        if changed and len(job.slots) == 1 and job.slots[0] in count:
            count[job.slots[0]] += 1
    least = min(count.values())
    return least, [slot for slot, n in count.items() if n == least]


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m tests.mutation")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="primitives, slots or files")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--each", type=int, default=5, help="faults in the source of one function")
    parser.add_argument("--report", type=Path, help="write all mutants there, a line of JSON each")
    parser.add_argument("--resume", action="store_true", help="do not run again what was caught in the report")
    parser.add_argument("--coverage", type=Path, help="which test reaches what: read it there, or write it")
    parser.add_argument("--killers", nargs="*", default=[], help=f"test files; default: {' '.join(KILLERS)}")
    parser.add_argument("--equivalent", action="store_true", help="run those, too, that are known to be equivalent")
    parser.add_argument("--select", default="", help="of the test files, what pytest -k selects")
    options: Any = parser.parse_args()
    options.report = Report(options.report, options.resume)
    m = run(options)
    if m.coverage.failed:
        print("the suite does not pass without mutants:", *m.coverage.failed, sep="\n  ")
    table(m)
    totals(m)
    least, slots = fewest(m)
    print(f"\nat least {least} faults of every slot that change something ({', '.join(slots[:4])})")
    few = least < SURE and not options.only
    return int(few or any([j.outcome == "survived" for j in m.jobs]) or bool(m.coverage.failed))


if __name__ == "__main__":
    raise SystemExit(main())
