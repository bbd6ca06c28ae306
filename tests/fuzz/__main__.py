"""``python -m tests.fuzz --minutes 60``: random programs for as long as one likes."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.fuzz import run
from tests.fuzz.aim import Known
from tests.fuzz.cases import Case
from tests.fuzz.impossible import IMPOSSIBLE
from tests.fuzz.planted import FAULTS

parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
parser.add_argument("--minutes", type=float, default=60.0)
parser.add_argument("--seed", type=int, default=0, help="of the first program; each program has the next one")
parser.add_argument("--jax", action="store_true", help="compare with JAX, which has to be installed")
parser.add_argument("--cuda", action="store_true", help="also compile for a GPU, and execute that in the interpreter")
parser.add_argument("--report", type=Path, help="a JSON file that runs add to")
parser.add_argument("--case", help="run one program that a run reported, and print it")
parser.add_argument("--workers", type=int, default=1, help="how many programs at a time, each in a process")
parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
parser.add_argument("--planted", help="plant this fault, and search until it is found")
options = parser.parse_args()
also = [name for name in ("jax", "cuda") if getattr(options, name)]

if options.child:
    tried, samples = json.load(sys.stdin)
    run.child(options.seed, options.child, {tuple(cell): n for cell, n in tried}, Known(samples), also)
elif options.planted:
    if options.planted not in FAULTS:
        parser.error(f"argument --planted: no fault {options.planted!r}; there are {', '.join(FAULTS)}")
    print(json.dumps(run.search(options.planted, 60 * options.minutes, options.seed)))
elif options.case:
    try:
        case = Case.of(options.case)
    except ValueError as error:
        parser.error(f"argument --case: {options.case!r}: {error}")
    run.prepare()
    print(case.recipe)
    report = run.one(case, also)
    print(report.get("code", ""))
    sys.exit(report.get("fault"))
else:
    finished = run.main(options.minutes, options.seed, also, options.report, IMPOSSIBLE, max(options.workers, 1))
    sys.exit(f"{finished.total['faults']} faults" if finished.faults else None)
