"""The demo: two models, fitted with exact derivatives. Run it with ``python -m funcgrad demo``.

Needs the extra ``funcgrad[demo]``. These files are written as any program that uses funcgrad would be.
"""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

from funcgrad.demo import logistic, mlp


def main(out: Path, seed: int = 0) -> int:
    """Run both parts, with pictures in `out`. Returns an exit code: 0 when every target is met."""
    console = Console(highlight=False)
    out.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    checks = logistic.run(console, out) | mlp.run(console, out, seed)
    console.rule("[bold]Targets")
    for check, met in checks.items():
        console.print(f"  {'[green]✓' if met else '[red]✗'}[/] {check}")
    console.print(f"\n  {time.perf_counter() - start:.1f} s; pictures in [bold]{out}[/]\n")
    return 0 if all(checks.values()) else 1
