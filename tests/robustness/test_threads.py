"""Threads, garbage and processes: samples, and the faults that were found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.robustness import processes, threads

REPO = Path(__file__).resolve().parents[2]

GARBAGE = """
import gc, sys
import numpy as np
import funcgrad as fg
gc.disable()
found = []

class Late(int):  # the garbage collector does not know of it: it goes while the rest is taken apart
    __slots__ = ()
    def __del__(self):
        found.append([bytearray(b"\\xff" * n) for n in (15, 31, 47, 63) for _ in range(200)])

class User:
    def __init__(self, k):
        self.late = [Late(k)]
        self.f = fg.jit(lambda x: np.sin(x) + k + (0 if self is None else 1))
        for _ in range(3):
            self.f(np.ones(3))
        self.end = End(self, k)
        self.last = [Late(k)]
        self.kept = [self.f._target]

class End:  # younger than the code that it calls
    def __init__(self, user, k):
        self.user, self.k = user, k

    def __del__(self):  # before that, in any order
        found.append(self.user.f(np.ones(3)).tolist() == (np.sin(np.ones(3)) + self.k + 1).tolist())

for k in range(60):
    User(k)
    if k % 3 == 0:
        gc.collect()
gc.collect()
assert [f for f in found if isinstance(f, bool)] == [True] * 60
"""


def test_functions_in_garbage_may_be_called_until_it_is_gone() -> None:
    run = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", GARBAGE], cwd=REPO, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr


def test_a_finalizer_calls_what_is_being_compiled() -> None:
    """It runs wherever garbage is collected, in the thread of the compiler too."""
    code = (
        "import gc, sys, faulthandler\n"
        "import numpy as np, funcgrad as fg\n"
        "from funcgrad.lowering import machine\n"
        "faulthandler.dump_traceback_later(100, exit=True)\n"
        "results = []\n"
        "class User:\n"
        "    def __init__(self):\n"
        "        self.me = self\n"
        "    def __del__(self):\n"
        "        results.append(f(np.ones(3)).tolist())\n"
        "for where in ('_compile', '_load'):\n"
        "    f = fg.jit(lambda x, where=where: x + len(where))\n"
        "    original = getattr(machine, where)\n"
        "    def collects(*args):\n"
        "        setattr(machine, where, original)\n"
        "        User()\n"
        "        gc.collect()\n"
        "        return original(*args)\n"
        "    setattr(machine, where, collects)\n"
        "    assert f(np.ones(3)).tolist() == f(np.ones(3)).tolist() == [1.0 + len(where)] * 3\n"
        "assert results == [[9.0] * 3, [6.0] * 3], results\n"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_sixteen_threads_compute_what_one_does() -> None:
    report = threads.run(seed=0, minutes=0.05)
    assert not report.faults and report.calls > 100, str(report)


def test_forks_pools_and_pickles() -> None:
    report = processes.run(seed=0, calls=12, minutes=1.0)
    assert not report.faults, str(report)


@pytest.mark.fuzz
def test_sixteen_threads_for_minutes() -> None:
    report = threads.run(seed=1, minutes=5.0)
    assert not report.faults, str(report)


@pytest.mark.fuzz
def test_many_forks() -> None:
    report = processes.run(seed=1, minutes=3.0)
    assert not report.faults, str(report)
