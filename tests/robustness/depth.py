"""Programs of very many equations, and deep nests: no recursion limit, no overflow of the C stack."""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import funcgrad as fg

REPO = Path(__file__).resolve().parents[2]


def chain(n: int) -> Callable[[Any], Any]:
    """n equations, each needs the one before; no two steps alike, so that they do not become a loop."""

    def f(x: Any) -> Any:
        for i in range(n):
            x = np.sin(x) if i * i % 7 in (1, 4) else x * (1.0 + 1.0 / (i + 1)) if i % 3 else x - i % 5 * 1e-3
        return x

    return f


def by_hand(n: int, x: float) -> tuple[float, float]:
    """The value of a chain, and its derivative."""
    slope = 1.0
    for i in range(n):
        if i * i % 7 in (1, 4):
            x, slope = float(np.sin(x)), slope * float(np.cos(x))
        elif i % 3:
            x, slope = x * (1.0 + 1.0 / (i + 1)), slope * (1.0 + 1.0 / (i + 1))
        else:
            x -= i % 5 * 1e-3
    return x, slope


def close(a: Any, b: Any) -> bool:
    return bool(np.all(abs(np.asarray(a) - np.asarray(b)) <= 1e-9 * (1 + abs(np.asarray(b)))))


def long_program(n: int) -> None:
    """Through every transform that does not compile."""
    f = chain(n)
    value, slope = by_hand(n, 0.7)
    program = fg.make_program(f)(0.7)
    assert len(program.equations) >= n * 0.9
    text = str(program)
    assert text.count("\n") >= n * 0.9
    assert hash(program.fingerprint) == hash(program.fingerprint)
    assert close(fg.jvp(f, (0.7,), (1.0,)), (value, slope))
    assert close(fg.grad(f)(0.7), slope)
    _, back = fg.vjp(f, 0.7)
    assert close(back(1.0)[0], slope)
    assert close(fg.vmap(f)(np.array([0.7, 0.7])), value)
    assert fg.eval_shape(f, 0.7).shape == ()
    del program, back


def long_compiled(n: int) -> None:
    f = fg.jit(fg.value_and_grad(chain(n)))
    for _ in range(2):
        assert close(f(0.7), by_hand(n, 0.7))


def nests(depth: int = 200) -> None:
    """jit in jit, derivatives in derivatives, branches in branches, or an error that says that it is too deep."""
    f: Any = lambda x: x * x
    for _ in range(depth):
        f = fg.jit(lambda x, f=f: f(x) + 1.0)
    limit = sys.getrecursionlimit()
    if depth > 100:
        told(lambda: close(f(2.0), 4.0 + depth))
        sys.setrecursionlimit(20_000)
    assert close(f(2.0), 4.0 + depth)
    told(lambda: close(f(2.0), 4.0 + depth) and close(fg.grad(f)(2.0), 4.0) and close(f(2.0), 4.0 + depth))
    sys.setrecursionlimit(limit)
    g: Any = lambda x: x
    for i in range(50):
        g = lambda x, g=g, i=i: fg.lax.cond(x > i, g, lambda x: x * 2.0, x)
    told(lambda: close(fg.jit(g)(100.0), 100.0) and close(fg.jit(fg.grad(g))(-1.0), 2.0))
    h: Any = lambda x: x * 1.5
    for _ in range(20):
        h = lambda x, h=h: fg.lax.fori_loop(0, 1, lambda i, y: h(y), x)
    told(lambda: close(fg.jit(h)(2.0), 3.0) and close(fg.grad(h)(2.0), 1.5))
    k: Any = lambda x: x
    for _ in range(40):
        k = fg.checkpoint(lambda x, k=k: k(x) * 1.0)
    told(lambda: close(fg.grad(k)(2.0), 1.0))
    v: Any = lambda x: x * 2.0
    for _ in range(30):
        v = fg.vmap(v)
    told(lambda: close(v(np.ones((1,) * 30)), 2.0))
    d: Any = np.exp
    for _ in range(6):
        d = fg.grad(d)
    told(lambda: close(d(0.5), np.exp(0.5)))


def told(call: Callable[[], bool]) -> None:
    """Right, or refused by an error of ours."""
    try:
        assert call()
    except fg.errors.FuncgradError as error:
        print("refused:", error.message[:100])


SUITES: dict[str, Callable[[], None]] = {
    "10000 equations": lambda: long_program(10_000),
    "2000 compiled": lambda: long_compiled(2_000),
    "nests": lambda: nests(60),
    "200 jits": lambda: nests(200),
    "100000 equations": lambda: long_program(100_000),
    "20000 compiled": lambda: long_compiled(20_000),
}


class Report:
    """What a run did."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.faults: list[str] = []

    def __str__(self) -> str:
        return "\n".join([*self.lines, f"{len(self.faults)} faults", *self.faults])


def run(*unused: Any, names: tuple[str, ...] = tuple(SUITES)) -> Report:
    """Each in a process of its own."""
    report = Report()
    for name in names:
        started = time.monotonic()
        command = [sys.executable, "-X", "faulthandler", "-m", "tests.robustness.depth", name]
        environment = {**os.environ, "FUNCGRAD_CHECK": "0", "FUNCGRAD_CACHE_DIR": ""}
        done = subprocess.run(command, cwd=REPO, env=environment, capture_output=True, text=True)
        report.lines += [f"{name}: {time.monotonic() - started:.0f} s", *done.stdout.split("\n")[:-1]]
        if done.returncode:
            report.faults.append(f"{name} ends with {done.returncode}: {done.stderr[-1500:]}")
    return report


if __name__ == "__main__":
    faulthandler.enable()
    SUITES[sys.argv[1]]()
