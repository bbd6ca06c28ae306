"""``python -m tests.robustness SUITE [--minutes M] [--seed S] [--report PATH]``: a suite with a budget."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

SUITES = ("arguments", "depth", "entries", "interrupts", "memory", "processes", "threads")


def main() -> int:
    """Run a suite, print what it did; the exit status says whether it found a fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.robustness", description=__doc__)
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--calls", type=int, default=10**9)
    parser.add_argument("--only", default="", help="functions whose name starts like this")
    parser.add_argument("--report", default="")
    a = parser.parse_args()
    module = import_module(f"tests.robustness.{a.suite}")
    report = module.run(a.seed, a.calls, a.minutes, a.first, a.only, a.report)
    print(report)
    return int(bool(report.faults))


sys.exit(main())
