"""Interrupts, memory, depth, and odd arrays for compiled functions: samples, and the faults that were found."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import errors
from funcgrad.base.shelter import all_locks, lock, sheltered, uninterrupted
from funcgrad.core.trace import TRACE
from tests.robustness import depth, entries, interrupts, memory

LOOP = fg.jit(lambda n, x: fg.lax.fori_loop(0, n, lambda i, y: np.sin(y) + 1.0, x))


def test_interrupts_leave_everything_sound() -> None:
    report = interrupts.run(seed=0, calls=40, minutes=0.15, names=("derivatives", "callbacks"))
    assert not report.faults and report.counts["interrupts"] > 0, str(report)


@pytest.mark.fuzz
def test_many_interrupts_leave_everything_sound() -> None:
    report = interrupts.run(seed=1, minutes=20.0)
    assert not report.faults, str(report)


def test_a_context_is_left_whatever_comes_out() -> None:
    def leaves_it_open() -> None:
        TRACE.set(fg)  # type: ignore[arg-type]
        np.seterr(all="raise")
        raise KeyboardInterrupt

    before = np.geterr()
    with pytest.raises(KeyboardInterrupt):
        sheltered(leaves_it_open)
    assert TRACE.get() is None and np.geterr() == before


def test_what_is_not_interrupted_runs_elsewhere() -> None:
    assert uninterrupted(threading.get_ident) != threading.get_ident()
    with pytest.raises(LookupError, match="mine"):
        uninterrupted(_raise, LookupError("mine"))
    results: list[Any] = []
    thread = threading.Thread(
        target=lambda: results.append(uninterrupted(threading.get_ident) == threading.get_ident())
    )
    thread.start()
    thread.join()
    assert results == [True]


def _raise(error: Exception) -> None:
    raise error


def test_locks_are_known_as_long_as_they_live() -> None:
    kept = [lock() for _ in range(300)]
    assert set(map(id, kept)) <= set(map(id, all_locks()))
    with kept[0], kept[0]:
        pass


def test_a_handler_that_does_not_raise_changes_nothing() -> None:
    """Nor does Ctrl-C reach the loops of other threads."""
    heard: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    try:
        LOOP(3, 0.5), LOOP(3, 0.5)
        expected = LOOP(200_000, 0.5)
        results: list[Any] = []
        threads = [threading.Thread(target=lambda: results.append(LOOP(200_000, 0.5))) for _ in range(3)]
        for t in threads:
            t.start()
        for _ in range(20):
            timer = threading.Timer(0.001, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            assert LOOP(200_000, 0.5) == expected
            timer.join()
        for t in threads:
            t.join()
        assert results == [expected] * 3 and heard
    finally:
        signal.signal(signal.SIGINT, previous)


def test_a_handler_may_raise_what_it_likes() -> None:
    class Stop(Exception):
        """Of the user's."""

    def handler(number: int, frame: Any) -> None:
        raise Stop("enough")

    previous = signal.signal(signal.SIGINT, handler)
    try:
        fg.jit(lambda n, x: fg.lax.fori_loop(0, n, lambda i, y: np.cos(y), x))(3, 0.5)  # puts our handler in place
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        with pytest.raises(Stop, match="enough"):
            timer.start() or LOOP(10**12, 0.5)
        timer.join()
        assert LOOP(3, 0.5) == LOOP(3, 0.5)
    finally:
        signal.signal(signal.SIGINT, previous)


def test_too_little_memory_is_told() -> None:
    report = memory.run(minutes=0.03)
    assert not report.faults, str(report)


@pytest.mark.fuzz
def test_too_little_memory_for_minutes() -> None:
    report = memory.run(minutes=3.0)
    assert not report.faults, str(report)


def test_long_programs_and_deep_nests() -> None:
    report = depth.run(names=("10000 equations", "nests"))
    assert not report.faults, str(report)


@pytest.mark.slow
def test_very_long_programs() -> None:
    report = depth.run()
    assert not report.faults, str(report)


def test_the_recursion_limit_is_told() -> None:
    f: Any = lambda x: x * x
    for _ in range(300):
        f = fg.jit(lambda x, f=f: f(x) + 1.0)
    with pytest.raises(errors.NestingError, match="recursion limit"):
        f(2.0)
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        assert f(2.0) == f(2.0) == 304.0
    finally:
        sys.setrecursionlimit(limit)


def test_compiled_functions_and_odd_arrays() -> None:
    report = entries.run(seed=0, calls=200, minutes=0.2)
    assert not report.faults, str(report)


@pytest.mark.fuzz
def test_compiled_functions_and_many_odd_arrays() -> None:
    report = entries.run(seed=1, minutes=5.0)
    assert not report.faults, str(report)
