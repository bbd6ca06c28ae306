"""How the time to compile grows with the number of kernels: ``python benchmarks/compile_scaling.py``.

A chain of running sums over ever other shapes, so that no two kernels are equal and none can be fused with another.
The ratio to the first line is divided by the ratio of kernels: 1 is linear. Nothing is read from the disk cache.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import numpy as np

import funcgrad as fg
from funcgrad.lowering.emit import emit
from funcgrad.lowering.executable import Native
from funcgrad.lowering.schedule import schedule
from funcgrad.lowering.simplify import simplify
from funcgrad.lowering.stages import this_target

BAR = 13.0  # times the time of 100 kernels that 1 000 may take


def chain(kernels: int) -> Any:
    """A simplified Program of that many kernels: x_k has k elements, and is made from a sum over x_(k - 1)."""

    def f(x: Any, parts: Any) -> Any:
        total = np.sum(x)
        for part in parts:
            total = np.sum(part * total)
        return total

    return simplify(fg.make_program(f)(np.ones(2), [np.ones(n + 3) for n in range(kernels - 1)]))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", type=int, nargs="*", default=[100, 300, 1000])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    os.environ["FUNCGRAD_CACHE_DIR"] = ""
    Native(chain(2))  # LLVM is loaded
    first = 0.0
    print(f"{'kernels':>8}{'functions':>11}{'ms':>9}{'times':>8}{'per kernel':>12}")
    for n in arguments.kernels:
        program = chain(n)
        assert len(schedule(program).kernels) == n
        functions = emit(program, this_target()).text.count("\ndefine ")
        times = []
        for _ in range(arguments.rounds):
            start = time.process_time()
            Native(program)
            times.append(time.process_time() - start)
        took = min(times)
        first = first or took
        ratio = took / first
        print(f"{n:8}{functions:11}{took * 1e3:9.1f}{ratio:8.1f}{ratio * arguments.kernels[0] / n:12.2f}")
    if arguments.kernels[0] * 10 == arguments.kernels[-1]:
        print(f"{'bar':>8}{'':20}{BAR:8.1f}")


if __name__ == "__main__":
    main()
