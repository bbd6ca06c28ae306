"""A long run: random programs one after the other, those first that fill the matrix.

Programs run in a process of their own, so that one that crashes or hangs is reported like any other fault.
"""

from __future__ import annotations

import json
import os
import signal
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from funcgrad.control import roll
from funcgrad.testing.recipes import Recipe
from tests.fuzz.aim import LARGE, SLOTS, Known, wanted, weight
from tests.fuzz.cases import Case
from tests.fuzz.comparisons import Outcome, TooSlow, check, equations, limit, primitives, trace
from tests.fuzz.matrix import COLUMNS, DEPTHS, ROWS, Cell, cells_of, empty, table
from tests.fuzz.minimise import minimised
from tests.fuzz.workers import Worker, ready

CHUNK = 200  # programs of one process
SECONDS = 40.0  # for one program
NUMBA = 40  # one program in so many goes through Numba, too
ROLLED = 3, 20  # equal steps that become a loop


def prepare() -> None:
    """Settings of a process of the run."""
    os.environ["FUNCGRAD_CHECK"] = "1"
    os.environ["FUNCGRAD_CACHE_DIR"] = ""
    roll.STEPS, roll.EQUATIONS = ROLLED
    np.seterr(all="ignore")


def one(case: Case, also: Sequence[str] = ()) -> dict[str, Any]:
    """A program in all ways; what is to be reported."""
    start = time.process_time()
    recipe = case.recipe
    numba = case.seed % NUMBA == 0 and recipe.size < 40
    size = equations(trace(recipe))
    outcome = _checked(recipe, case.seed, also, numba=numba, differences=size <= LARGE, seconds=SECONDS)
    if size > LARGE:
        outcome.unsettled.append("derivatives: large")
    report: dict[str, Any] = {"case": str(case), "ways": outcome.ways, "unsettled": outcome.unsettled}
    if outcome.failure is not None:
        report |= {
            "kind": outcome.failure.kind,
            "fault": str(outcome.failure),
            "code": _smallest(recipe, outcome, case, also),
        }
    else:
        report |= {"cells": cells_of(recipe, outcome), "equations": size}
        report |= {"height": recipe.height, "weight": weight(recipe)}
    return report | {"seconds": time.process_time() - start}


def _checked(recipe: Recipe, seed: int, also: Sequence[str], *, seconds: float, **how: bool) -> Outcome:
    others = [import_module(f"tests.fuzz.with_{name}") for name in also]
    with ExitStack() as stack:
        for other in others:
            stack.enter_context(other.settings(seed))
        outcome = check(recipe, seed, seconds=seconds, **how)
        for name, other in zip(also, others, strict=True):
            if outcome.failure is None:
                try:
                    with limit(seconds):
                        other.compare(recipe, outcome, seed)
                except TooSlow:
                    outcome.unsettled.append(f"{name}: slow")
    return outcome


def _smallest(recipe: Recipe, outcome: Outcome, case: Case, also: Sequence[str]) -> str:
    assert outcome.failure is not None
    kind = outcome.failure.kind

    def fails(simpler: Recipe) -> bool:
        failure = _checked(simpler, case.seed, also, numba=kind.startswith("numba"), seconds=10.0).failure
        return failure is not None and failure.kind == kind

    return repr(minimised(recipe, fails))


def search(name: str, seconds: float, first: int = 0) -> dict[str, Any]:
    """How many programs it takes to find a planted fault, and how much CPU time; run in a process of its own."""
    from tests.fuzz.planted import FAULTS

    prepare()
    FAULTS[name]()
    start, programs = time.process_time(), 0
    primitive, _, slot = name.partition(".")
    rows, columns = ((primitive,), SLOTS[slot]) if slot in SLOTS else (ROWS, COLUMNS)
    every = {(p, c, d): 0 for p in rows for c in columns for d in DEPTHS}
    report = {"fault": name, "found": ""}
    known = Known()
    while time.process_time() - start < seconds and not report["found"]:
        try:
            case = wanted(first + programs, every, known)
            print(json.dumps({"start": str(case)}), flush=True)
            outcome = check(case.recipe, case.seed, seconds=SECONDS)
            report["found"] = str(outcome.failure or "")
            if not report["found"]:
                known.add(sorted(primitives(case.recipe)), case.recipe.height, weight(case.recipe), str(case))
        except Exception as error:  # derivatives of the oracle are those of funcgrad, too
            report["found"] = f"{type(error).__name__}: {error}"
        programs += 1
    return report | {"programs": programs, "seconds": time.process_time() - start}


def learn(known: Known, report: dict[str, Any]) -> None:
    """Remember what a program held."""
    if "cells" in report:
        names = {name for name, column, _ in report["cells"] if column == "eager"}
        known.add(sorted(names), report["height"], report["weight"], report["case"])


def child(first: int, count: int, tried: dict[Cell, int], known: Known, also: Sequence[str]) -> None:
    """The work of one process: a line before and after each program."""
    prepare()
    for seed in range(first, first + count):
        case = Case(seed)
        try:
            case = wanted(seed, tried, known)  # what is drawn is computed, with derivatives
            print(json.dumps({"start": str(case)}), flush=True)
            report = one(case, also)
        except Exception as error:  # a fault of the fuzzer itself is a fault, too
            where = traceback.extract_tb(error.__traceback__)[-1]
            what = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
            report = {"case": str(case), "kind": f"fuzzer: {what[:60]}", "fault": what, "code": "", "ways": []}
        learn(known, report)
        for cell in report.get("cells", ()):
            tried.pop(cell, None)
        print(json.dumps(report), flush=True)
    print(json.dumps({"tried": list(tried.items())}), flush=True)


class Run:
    """What a run has found so far."""

    def __init__(self, path: Path | None, impossible: dict[Any, str]) -> None:
        self.path = path
        self.impossible = impossible
        self.seen: Counter[Any] = Counter()
        self.known = Known()
        self.tried: Counter[Any] = Counter()
        self.total: Counter[str] = Counter()
        self.seconds = 0.0
        self.faults: list[dict[str, Any]] = []
        if path is not None and path.exists():
            self._read(json.loads(path.read_text()))

    def _read(self, found: dict[str, Any]) -> None:
        self.seen.update({tuple(cell): n for cell, n in found["cells"]})
        self.total.update(found["total"])
        self.seconds = found["seconds"]
        self.faults = found["faults"]
        self.known = Known(found.get("known", ()))
        self.tried.update({tuple(cell): n for cell, n in found.get("tried", ())})

    def write(self) -> None:
        """Keep it for the next run, which adds to it."""
        if self.path is not None:
            found = {
                "total": dict(self.total), "seconds": self.seconds, "faults": self.faults,
                "cells": [[list(cell), n] for cell, n in sorted(self.seen.items())], "known": self.known.all(),
                "tried": sorted(self.tried.items()),
            }  # fmt: skip
            new = self.path.with_name(self.path.name + ".new")
            new.write_text(json.dumps(found, indent=1))
            new.replace(self.path)

    def add(self, report: dict[str, Any]) -> None:
        """What became of a program, or what a process says at its end."""
        if "tried" in report:
            for cell, n in report["tried"]:
                self.tried[tuple(cell)] = max(self.tried[tuple(cell)], n)
            return
        self.total["programs"] += 1
        self.total["equations"] += report.get("equations", 0)
        self.total.update([f"compared: {w}" for w in report["ways"]])
        self.total.update([f"unsettled: {w.split()[0]}" for w in report.get("unsettled", ())])
        self.seconds += report.get("seconds", 0.0)
        self.seen.update([tuple(cell) for cell in report.get("cells", ())])
        learn(self.known, report)
        if self.total["programs"] % 20 == 0:
            self.write()
        if "fault" in report:
            self.total["faults"] += 1
            self.faults.append({k: report[k] for k in ("case", "kind", "fault", "code")})
            print(f"FAULT {report['case']}\n{report['fault']}\n{report['code']}", flush=True)

    def empty(self) -> list[Cell]:
        """The cells that are wanted."""
        return empty(self.seen, self.impossible)

    def wanted(self) -> list[tuple[Cell, int]]:
        """These, and how often programs were drawn for them."""
        return [(cell, self.tried[cell]) for cell in self.empty()]

    def worker(self, first: int, count: int, also: Sequence[str]) -> Worker:
        """A process for the programs of some seeds."""
        return Worker(first, count, [f"--{name}" for name in also], [self.wanted(), self.known.all()])

    def ended(self, worker: Worker, also: Sequence[str]) -> list[Worker]:
        """If a process died: the case is a fault, and another process runs the rest."""
        what = "the process died, or hung"
        if worker.started:
            self.add({"case": worker.started, "kind": f"crash: {what}", "fault": what, "code": "", "ways": []})
            worker.finish()
        elif worker.process.returncode > 0:
            raise RuntimeError(f"{' '.join(map(str, worker.process.args))} ended with {worker.process.returncode}")
        self.write()
        return [self.worker(worker.first, worker.count, also)] if worker.count else []

    def summary(self, matrix: bool = True) -> str:
        """The run as text."""
        lines = [table(self.seen, self.impossible)] if matrix else []
        missing = self.empty()
        cells = f"{len(missing)} empty cells" + (
            ": " + ", ".join([f"{p} {c} {d}" for p, c, d in missing[:60]]) if missing else ""
        )
        counts = ", ".join([f"{name} {n}" for name, n in sorted(self.total.items())])
        kinds = Counter([f["kind"] for f in self.faults])
        return "\n".join(
            [*lines, cells, f"{counts}, CPU {self.seconds:.0f} s", *[f"{n} x {k}" for k, n in kinds.items()]]
        )


def main(
    minutes: float, seed: int, also: Sequence[str], path: Path | None, impossible: dict[Any, str], workers: int = 1
) -> Run:
    """A run of so many minutes, or until it is interrupted."""
    run = Run(path, impossible)
    end = time.monotonic() + 60 * minutes
    crew: list[Worker] = []
    interrupted: list[int] = []  # looked at when no process is being started, and nothing written
    before = [(n, signal.signal(n, lambda n, _: interrupted.append(n))) for n in (signal.SIGINT, signal.SIGTERM)]
    try:
        while (left := end - time.monotonic()) > 0 and not interrupted:
            while len(crew) < workers:
                crew.append(run.worker(seed, CHUNK, also))
                seed += CHUNK
            for worker in ready(crew, min(left, 1.0)):
                for report in worker.reports():
                    run.add(report)
            for worker in [w for w in crew if w.stopped]:
                crew.remove(worker)
                crew += run.ended(worker, also)
                print(f"next seed {seed}; {run.summary(matrix=False)}", flush=True)
    finally:
        for number, handler in before:
            signal.signal(number, handler)
        for worker in crew:
            worker.stop()
        run.write()
    print(f"{'interrupted; ' if interrupted else ''}next seed {seed}; {run.summary()}")
    return run
