"""Processes under load: fork while other threads trace and compile, pools that use jitted functions, pickling."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import funcgrad as fg

REPO = Path(__file__).resolve().parents[2]


@fg.jit
def step(x: Any) -> Any:
    """Known by its name, so that it can be pickled."""
    return np.sum(np.sin(x) * x) + fg.lax.fori_loop(0, 5, lambda i, y: y * 0.5 + i, x[0])


gradient = fg.jit(fg.grad(step))


def by_hand(x: Any) -> float:
    y = x[0]
    for i in range(5):
        y = y * 0.5 + i
    return float(np.sum(np.sin(x) * x) + y)


def slope(x: Any) -> Any:
    out = np.sin(x) + x * np.cos(x)
    out[0] += 0.5**5
    return out


def checked(n: int) -> bool:
    """In a child: known functions, and one that is compiled there."""
    x = np.linspace(0.5, 1.5, 2 + n % 5)
    fine = all([abs(float(step(x)) - by_hand(x)) < 1e-12 for _ in range(3)])
    fine = fine and bool((abs(gradient(x) - slope(x)) < 1e-12).all())
    f = fg.jit(lambda x: x * float(n) + 1.0)
    return fine and f(x).tolist() == (x * n + 1.0).tolist() == f(x).tolist()


def _load(stop: threading.Event, seed: int, errors: list[BaseException]) -> None:
    k = 0
    try:
        while not stop.is_set():
            k += 1
            assert checked(seed * 1000 + k)
    except BaseException as error:
        errors.append(error)


def forks(count: int, seed: int, seconds: float) -> int:
    """Fork while three threads compile and call; every child computes the right results and ends."""
    warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of forks with threads
    stop, errors, done = threading.Event(), [], 0  # type: ignore[var-annotated]
    threads = [threading.Thread(target=_load, args=(stop, i, errors)) for i in range(3)]
    r, end = random.Random(seed), time.monotonic() + seconds
    for t in threads:
        t.start()
    try:
        while done < count and time.monotonic() < end and not errors:
            time.sleep(r.random() * 0.02)
            child = os.fork()
            if child == 0:
                os._exit(0 if checked(done) else 1)
            assert _status(child, 60.0) == 0, f"the child of fork {done} ends with {_last[0]}"
            done += 1
    finally:
        stop.set()
        for t in threads:
            t.join()
    if errors:
        raise errors[0]
    return done


_last = [0]


def _status(child: int, seconds: float) -> int:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            _last[0] = status
            return status
        time.sleep(0.002)
    os.kill(child, signal.SIGABRT)
    os.waitpid(child, 0)
    raise AssertionError("a child waits for ever")


def pools(methods: tuple[str, ...] = ("spawn", "forkserver")) -> int:
    """Tasks done by pools of processes that are given jitted functions."""
    done = 0
    for method in methods:
        with multiprocessing.get_context(method).Pool(2) as pool:
            xs = [np.linspace(0.5, 1.5, n) for n in range(2, 8)]
            assert [abs(float(y) - by_hand(x)) < 1e-12 for x, y in zip(xs, pool.map(step, xs), strict=True)] == [
                True
            ] * 6
            assert all(pool.map(checked, range(6)))
            done += 12
    return done


def pickles() -> int:
    """Jitted functions pickle by their name; those without one say so."""
    assert pickle.loads(pickle.dumps(step)) is step
    local = fg.jit(lambda x: x)
    for f in (local, fg.grad(lambda x: x)):
        try:
            pickle.dumps(f)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            if any([word in str(error) for word in ("lambda", "local", "pickle")]):
                continue
            raise
        raise AssertionError("a lambda was pickled")
    x = step(np.ones(3))
    assert type(pickle.loads(pickle.dumps(x))) is np.ndarray
    return 4


class Report:
    """What a run did."""

    def __init__(self, line: str, text: str, code: int) -> None:
        self.line = line
        self.faults = [text] if code else []

    def __str__(self) -> str:
        return "\n".join([f"{self.line}, {len(self.faults)} faults", *self.faults])


def run(seed: int, calls: int = 10**9, minutes: float = 1.0, *unused: Any) -> Report:
    """In a process of its own."""
    command = [sys.executable, "-m", "tests.robustness.processes", str(seed), str(calls), str(60 * minutes)]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.run(command, cwd=REPO, env=environment, capture_output=True, text=True)
    return Report(process.stdout.strip(), process.stderr[-6000:], process.returncode)


def main() -> None:
    faulthandler.enable()
    seed, count, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    faulthandler.dump_traceback_later(seconds + 400, exit=True)
    assert checked(1)
    forked = forks(count, seed, seconds)
    print(f"{forked} forks under load, {pools()} tasks in pools, {pickles()} pickles")


if __name__ == "__main__":
    from tests.robustness import processes  # what is pickled is known under this name

    processes.main()
