"""The demo: two models, fitted with exact derivatives. Run it with ``python -m funcgrad demo``.

It needs the extra ``funcgrad[demo]``. These files are written as any program that uses funcgrad would be.
"""

from __future__ import annotations

import time
from pathlib import Path

from threadpoolctl import threadpool_limits

from funcgrad.demo import logistic, mlp, report


def main(out: Path, seed: int = 0) -> int:
    """Run both parts, with pictures in `out`. Returns an exit code: 0 when every target is met, else 1."""
    console = report.console()
    out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    with threadpool_limits(1):  # the matrices are small: more threads would mostly wait for each other
        targets = logistic.run(console, out) | mlp.run(console, out, seed)
    console.rule("[bold]Targets", align="left")
    for target, met in targets.items():
        console.print(f"  {'[green]✓[/]' if met else '[red]✗[/]'} {target}")
    console.print(f"\n  {time.perf_counter() - start:.1f} s in all; pictures in {out}\n", soft_wrap=True)
    return 0 if all(targets.values()) else 1
