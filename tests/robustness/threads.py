"""16 threads trace, compile and call the same and different functions; every result equals the serial one.

Meanwhile caches are cleared, functions are dropped, callbacks call their callers, garbage is collected, and Ctrl-C
handlers of the user's run. A watch dog ends the process, with the stacks of all threads, if it waits for ever.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import funcgrad as fg

REPO = Path(__file__).resolve().parents[2]
THREADS = 16


def shared() -> dict[str, tuple[Callable[..., Any], Callable[[int], tuple[Any, ...]]]]:
    """Functions that all threads call, and the arguments of call number k."""
    vector = lambda k: (np.linspace(0.1, 1.0 + k % 5, 3 + k % 7),)
    grad = fg.jit(fg.grad(lambda x: np.sum(np.sin(x) * np.exp(-x))))
    nested = fg.jit(lambda x: grad(x) * grad(2 * x))
    rows = fg.jit(fg.vmap(fg.grad(lambda v: fg.lax.while_loop(lambda t: t > 1.0, lambda t: t * 0.5, v))))
    scan = fg.jit(fg.value_and_grad(lambda x: fg.lax.scan(lambda c, v: (c * 0.9 + v * v, c), 0.0, x)[0]))
    donated = fg.jit(lambda x, y: x * 2.0 + y, donate_argnums=0)

    def host(v: Any) -> Any:
        return grad(v) if v.size < 4 else again(v[:3]).sum() * v

    again = fg.jit(lambda x: fg.pure_callback(host, x, x) + x)
    hess = fg.jit(fg.hessian(lambda x: np.sum(x[1:] * x[:-1] ** 2)))
    tree = fg.jit(lambda p: {"a": p["b"] + 1.0, "b": p["a"] * 2.0})
    static = fg.jit(lambda x, n: x**n, static_argnums=1)
    return {
        "grad": (grad, vector),
        "nested": (nested, vector),
        "rows": (rows, lambda k: (np.arange(1.0, 3.0 + k % 4),)),
        "scan": (scan, vector),
        "donated": (donated, lambda k: (np.ones(3 + k % 5), np.arange(3.0 + k % 5))),
        "again": (again, vector),
        "hess": (hess, vector),
        "static": (static, lambda k: (np.ones(3) * 2, k % 6)),
        "eager": (fg.grad(lambda x: np.sum(np.where(x > 0.5, x**3, np.sqrt(x)))), vector),
        "tree": (tree, lambda k: ({"a": np.ones(k % 3 + 1), "b": 2.0},)),
    }  # fmt: skip


def fresh(k: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A function of its own, that is dropped after its calls; the same for the same k."""
    scale = 1.0 + k % 50
    f = fg.jit(fg.value_and_grad(lambda x: np.sum(np.tanh(x * scale) * np.arange(1.0, 2.0 + k % 3)[:, None])))
    return f, (np.linspace(-1, 1, 4),)


def leaves(x: Any) -> list[Any]:
    """The bytes of a result."""
    return [(v.dtype, v.shape, v.tobytes()) for v in fg.tree.leaves(x)]


def _work(seed: int, functions: Any, expected: Any, calls: list[int], end: float, errors: list[Any]) -> None:
    r = random.Random(seed)
    try:
        while time.monotonic() < end and not errors:
            calls[seed] += 1
            what = r.random()
            if what < 0.01:
                name = r.choice(list(functions))
                clear = getattr(functions[name][0], "clear_cache", None)
                if clear:
                    clear()
            elif what < 0.015:
                gc.collect()
            elif what < 0.06:
                k = r.randrange(50)
                f, args = fresh(k)
                for _ in range(3):
                    if leaves(f(*args)) not in expected["fresh", k]:
                        raise AssertionError(f"fresh {k}")
            else:
                name, k = r.choice(list(functions)), r.randrange(30)
                f, make = functions[name]
                if leaves(f(*make(k))) not in expected[name, k]:
                    raise AssertionError(f"{name} {k}: {f(*make(k))}")
    except BaseException as error:
        errors.append(error)


def serial(functions: Any) -> dict[Any, list[Any]]:
    """The results, as Python evaluates the first call and as machine code does."""
    expected: dict[Any, list[Any]] = {}
    for name, (f, make) in functions.items():
        for k in range(30):
            expected[name, k] = [leaves(f(*make(k))) for _ in range(3)]
    for k in range(50):
        f, args = fresh(k)
        expected["fresh", k] = [leaves(f(*args)) for _ in range(2)]
    return expected


def compare(seconds: float, seed: int, threads: int = THREADS, signals: bool = False) -> int:
    """Calls made by all threads in that time; raises the first error of any."""
    expected = serial(shared())
    functions, errors, calls = shared(), [], [0] * threads  # type: ignore[var-annotated]
    heard: list[int] = []
    if signals:  # a handler that does not raise: nobody is to notice
        signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    end = time.monotonic() + seconds
    pool = [threading.Thread(target=_work, args=(i, functions, expected, calls, end, errors)) for i in range(threads)]
    try:
        for t in pool:
            t.start()
        while signals and time.monotonic() < end and not errors:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
        for t in pool:
            t.join()
    finally:
        sys.setswitchinterval(switch)
    if errors:
        raise errors[0]
    assert not signals or heard
    return sum(calls)


class Report:
    """What a run did."""

    def __init__(self, calls: int, text: str, code: int) -> None:
        self.calls = calls
        self.faults = [text] if code else []

    def __str__(self) -> str:
        return "\n".join([f"{THREADS} threads, {self.calls} calls, {len(self.faults)} faults", *self.faults])


def run(seed: int, calls: int = 0, minutes: float = 1.0, *unused: Any) -> Report:
    """In a process of its own, which is ended if it waits for ever."""
    command = [sys.executable, "-m", "tests.robustness.threads", str(seed), str(60 * minutes)]
    process = subprocess.run(command, cwd=REPO, capture_output=True, text=True)
    done = int(process.stdout.split()[-1]) if process.returncode == 0 else 0
    return Report(done, process.stderr[-6000:], process.returncode)


if __name__ == "__main__":
    faulthandler.enable()
    faulthandler.dump_traceback_later(float(sys.argv[2]) + 300, exit=True)
    half = float(sys.argv[2]) / 2
    print(compare(half, int(sys.argv[1])) + compare(half, int(sys.argv[1]) + 1, signals=True))
