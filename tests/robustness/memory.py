"""Memory that is not there: MemoryError, and afterwards everything works as before.

A child process limits its address space, asks for too much in every way that there is, and computes known things
after each. The arrays that it holds meanwhile leave less and less, so that every allocation fails sometimes.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import funcgrad as fg
from funcgrad.lowering.pool import POOL
from tests.robustness.arguments import state

REPO = Path(__file__).resolve().parents[2]
N = 2**27  # doubles: 1 GiB
ROOM = 600 * 2**20


def greedy() -> dict[str, Callable[[], Any]]:
    """What asks for more than there is."""
    small, many = np.ones(3), fg.ShapeDtypeStruct((N,), float)
    wide = lambda x: np.sum(x) + np.zeros(N)
    grow = lambda x: fg.lax.while_loop(lambda y: y[0] < 2.0**26, lambda y: np.sin(y) * 0.5 + y + 1.0, x * np.ones(3))
    step = lambda c, _: (np.sin(c), c)
    stacked = lambda x: fg.lax.scan(step, x, None, length=N // 3)
    residuals = lambda x: np.sum(fg.lax.fori_loop(0, N // 3, lambda i, c: np.sin(c) * 1.01, x))
    growing = lambda x: np.sum(grow(x))
    return {
        "eager": lambda: fg.numpy.ones(N) + 1.0,
        "outer product": lambda: fg.numpy.outer(np.ones(2**14), np.ones(2**14)),
        "grad": lambda: fg.grad(lambda x: np.sum(wide(x)))(small),
        "result of jit": lambda: fg.jit(wide)(small),
        "arena of jit": lambda: fg.jit(lambda x: np.cumsum(np.cumsum(wide(x))[::-1])[::2][-1])(small),
        "vmap": lambda: fg.vmap(lambda x: x * np.ones(N // 3))(small),
        "hessian": lambda: fg.jit(fg.hessian(lambda x: np.sum(x[:, None] * x)))(np.ones(2**14)),
        "stacked outputs": lambda: stacked(small),
        "stacked outputs of jit": lambda: fg.jit(stacked)(small),
        "residuals": lambda: fg.jit(fg.grad(residuals))(small),
        "growing residuals": lambda: fg.jit(fg.grad(growing))(small),
        "callback": lambda: fg.jit(lambda x: fg.pure_callback(lambda v: np.ones(N), many, x))(small),
        "huge": lambda: fg.jit(lambda x: fg.numpy.zeros((2**20, 2**20)) + x)(1.0),
    }  # fmt: skip


def fine() -> None:
    """Known things, with functions known before and new ones."""
    x = np.array([0.5, 1.0, 2.0])
    assert not state(), state()
    assert fg.grad(lambda x: np.sum(x**3))(x).tolist() == (3 * x**2).tolist()
    for _ in range(2):
        assert known(x).tolist() == [1.25, 2.0, 5.0]
    assert fg.jit(lambda x: x - 1.0)(x).tolist() == [-0.5, 0.0, 1.0]


known = fg.jit(lambda x: x * x + 1.0)


def limited(room: int) -> None:
    """From now on there are that many bytes more than now."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + room, resource.getrlimit(resource.RLIMIT_AS)[1]))


def one_after_another() -> int:
    """Every way to ask for too much; how often MemoryError came."""
    warm = greedy()
    fine()
    count = 0
    for name, call in warm.items():
        for _ in range(2):
            limited(ROOM)
            try:
                call()
            except (MemoryError, fg.errors.ParameterError):
                count += 1
            else:
                print(f"{name}: there was enough")
            limited(2**33)
            fine()
    return count


def less_and_less(seconds: float) -> int:
    """Calls while the room shrinks to nothing, from large steps to single pages."""
    x, big = np.ones(3), np.ones(2**20)
    f = fg.jit(lambda x: np.sin(x) * 2.0 + x)
    s = fg.jit(lambda x: fg.lax.scan(lambda c, v: (c + v, c * v), 0.0, x))
    g = fg.jit(fg.grad(lambda x: fg.lax.while_loop(lambda y: y < 1e300, lambda y: y * 1.0001 + x, x)))
    f(x), s(big), g(1.0), f(big)
    trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda n: 0)  # what was freed goes back to the system
    count, end, room = 0, time.monotonic() + seconds, 64 * 2**20
    while time.monotonic() < end:
        room = room // 2 if room > 4096 else 64 * 2**20
        POOL.clear()
        trim(0)
        limited(room)
        held: list[Any] = []
        try:
            for call in (lambda: f(big), lambda: s(big), lambda: g(1.0), lambda: fg.jit(lambda x: x + 1.0)(big)):
                held.append(call())
        except MemoryError:
            count += 1
        except RuntimeError as error:  # a thread could not be started, LLVM had no memory
            print(f"told: {type(error).__name__} {error}")
        limited(2**33)
        del held
        fine()
        assert np.array_equal(f(x), np.sin(x) * 2 + x) or np.allclose(f(x), np.sin(x) * 2 + x, rtol=1e-15)
    return count


class Report:
    """What a run did."""

    def __init__(self, line: str, text: str, code: int) -> None:
        self.line = line
        self.faults = [text] if code else []

    def __str__(self) -> str:
        return "\n".join([f"{self.line}\n{len(self.faults)} faults", *self.faults])


def run(seed: int = 0, calls: int = 0, minutes: float = 1.0, *unused: Any) -> Report:
    """In a process of its own."""
    command = [sys.executable, "-m", "tests.robustness.memory", str(60 * minutes)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "FUNCGRAD_CACHE_DIR": ""}
    process = subprocess.run(command, cwd=REPO, env=environment, capture_output=True, text=True)
    return Report(process.stdout.strip(), process.stderr[-4000:], process.returncode)


if __name__ == "__main__":
    faulthandler.enable()
    print(f"{one_after_another()} times too much was asked for")
    print(f"{less_and_less(float(sys.argv[1]))} times an allocation failed on the way")
