"""What loops cost as they grow: ``python benchmarks/loops.py [--small]``.

Time and memory of recurrences of n and 10 n steps, forward, reverse and vmapped with a choice for each row: the ratio
is to be at most 11. Then the reverse mode of a while loop: at most 4 times the time of the loop, and memory of the
trips times the bytes of their residuals. Memory is what the first call takes at most. Each case has processes of its
own, three for n and three for 10 n in turn. Time is the least of all calls, since others on the machine only add to it;
memory is the most.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.lowering.executable import Executable

BAR, SLOWER, NEAR = 11, 4, 0.2
PROCESSES, SECONDS = 3, 0.3  # for each number of steps; how long one of them calls, ten times at least


def recurrence(r: Any, n: int) -> Any:
    """The logistic map, all steps in one array."""
    x = fnp.zeros(n).at[0].set(0.5)
    x = lax.fori_loop(1, n, lambda i, x: x.at[i].set(r * x[i - 1] * (1 - x[i - 1])), x)
    return np.mean(x)


def choice(r: Any, n: int) -> Any:
    """A recurrence that branches in each step, on what is another value in each row."""
    step = lambda i, y: lax.cond(y > 0.6, lambda y: r * y * (1 - y), lambda y: y + 0.1 * r, y)
    return lax.fori_loop(0, n, step, 0.5)


def trips(a: Any, n: Any) -> Any:
    """A while loop of n trips."""
    return lax.while_loop(lambda s: s[1] < n, lambda s: (np.sin(s[0]) * a + 0.1, s[1] + 1), (a, 0))[0]


ROWS = np.array([2.5, 3.1, 3.3, 3.7])
CASES: dict[str, Callable[[int], tuple[Callable[..., Any], tuple[Any, ...]]]] = {
    "recurrence": lambda n: (lambda r: recurrence(r, n), (2.5,)),
    "recurrence, reverse": lambda n: (fg.grad(lambda r: recurrence(r, n)), (2.5,)),
    "recurrence, reverse twice": lambda n: (fg.grad(fg.grad(lambda r: recurrence(r, n))), (2.5,)),
    "rows that choose": lambda n: (fg.vmap(lambda r: choice(r, n)), (ROWS,)),
    "rows that choose, reverse": lambda n: (fg.vmap(fg.grad(lambda r: choice(r, n))), (ROWS,)),
    "while": lambda n: (trips, (0.9, n)),
    "while, reverse": lambda n: (fg.grad(trips), (0.9, n)),
}


def memory(field: str) -> int:
    """Bytes that this process has (VmRSS), or had at most since `forget_peak` (VmHWM)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) * 1024


def forget_peak() -> None:
    """From now on VmHWM is counted anew."""
    Path("/proc/self/clear_refs").write_text("5")


def measure(name: str, n: int) -> tuple[float, int]:
    """Seconds of CPU time of one call, the fastest, and the bytes that the first call takes at most."""
    f, args = CASES[name](n)
    compiled = Executable(fg.make_program(f)(*args))
    assert compiled.whole() is not None, "not one native module"
    forget_peak()
    before = memory("VmRSS")
    values = [np.asarray(a) for a in args]
    compiled(values)
    taken = memory("VmHWM") - before
    times: list[float] = []
    while len(times) < 10 or sum(times) < SECONDS:
        start = time.process_time()
        compiled(values)
        times.append(time.process_time() - start)
    return min(times), taken


def apart(name: str, n: int) -> tuple[float, int]:
    """`measure` in a process of its own."""
    command = [sys.executable, __file__, "--case", name, "--n", str(n)]
    root = str(Path(__file__).parent.parent)
    out = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": root})
    seconds, memory = out.stdout.split()
    return float(seconds), int(memory)


def compared(name: str, n: int) -> tuple[tuple[float, int], tuple[float, int]]:
    """Time and memory of n and of 10 n steps."""
    rows = [(apart(name, n), apart(name, 10 * n)) for _ in range(PROCESSES)]
    column = lambda k: (min([row[k][0] for row in rows]), max([row[k][1] for row in rows]))
    return column(0), column(1)


def residual_bytes() -> int:
    """Bytes that one trip of the while loop keeps: the results of the known loop."""
    known = fg.make_program(fg.grad(trips))(0.9, 10).equations
    stacks = [v.aval.elem for e in known if e.primitive.name == "loop" for v in e.outputs if hasattr(v.aval, "elem")]
    return sum([-(-a.size * a.dtype.itemsize // 8) * 8 for a in stacks])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a tenth of the steps")
    parser.add_argument("--case")
    parser.add_argument("--n", type=int)
    options = parser.parse_args()
    if options.case:
        print(*measure(options.case, options.n))
        return
    n = 10_000 if options.small else 100_000
    print(f"{'':28}{f'{n} ms':>12}{f'{10 * n} ms':>12}{'ratio':>8}{'MB':>8}{'MB':>8}{'ratio':>8}   bar {BAR}")
    large = {}
    for name in CASES:
        (t, m), (t10, m10) = compared(name, n)
        large[name] = t10, m10
        line = f"{name:28}{t * 1e3:12.2f}{t10 * 1e3:12.2f}{t10 / t:8.1f}{m / 1e6:8.1f}{m10 / 1e6:8.1f}"
        print(line + (f"{m10 / m:8.1f}" if m > 1e5 else f"{'-':>8}"))
    t, m = large["while, reverse"]
    want = 10 * n * residual_bytes()
    print(f"\nwhile of {10 * n} trips: reverse / forward {t / large['while'][0]:.2f}, bar {SLOWER}")
    print(
        f"  {m / 1e6:.1f} MB for {residual_bytes()} bytes in each trip: {m / want:.2f} of their product, bar 1 ± {NEAR}"
    )


if __name__ == "__main__":
    main()
