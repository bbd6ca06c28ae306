"""What an eager gradient costs, against HIPS autograd: ``python benchmarks/eager_grad.py``.

The loss is that of the demo's neural network on digits; the same text runs in both libraries. One thread; the two take
turns in every round, and medians are compared. Below: how long ``import funcgrad`` takes in a fresh interpreter.

autograd is optional (``pip install autograd``).
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import funcgrad as fg

try:
    import autograd
    import autograd.numpy as autograd_numpy
except ModuleNotFoundError:
    autograd = None

BAR = 3.0
BATCHES = (32, 128, 1437)


def make_loss(np: Any) -> Callable[..., Any]:
    """The loss of the demo's network, written out in the NumPy of a library."""

    def loss(p: Any, x: Any, one_hot: Any) -> Any:
        h = np.maximum(x @ p["w1"] + p["b1"], 0.0)
        z = h @ p["w2"] + p["b2"]
        z = z - np.max(z, axis=1, keepdims=True)
        log_p = z - np.log(np.sum(np.exp(z), axis=1, keepdims=True))
        return -np.mean(np.sum(one_hot * log_p, axis=1))

    return loss


def library_loss(p: Any, x: Any, one_hot: Any) -> Any:
    """The same with the functions of funcgrad.nn."""
    h = fg.nn.relu(x @ p["w1"] + p["b1"])
    return -np.mean(np.sum(one_hot * fg.nn.log_softmax(h @ p["w2"] + p["b2"]), axis=1))


def problem(batch: int) -> tuple[Any, ...]:
    """Random parameters and data of the demo's sizes."""
    rng = np.random.default_rng(0)
    p = {
        "w1": rng.normal(0, 0.2, (64, 256)),
        "b1": np.zeros(256),
        "w2": rng.normal(0, 0.1, (256, 10)),
        "b2": np.zeros(10),
    }
    return p, rng.random((batch, 64)), np.eye(10)[rng.integers(0, 10, batch)]


def medians(functions: dict[str, Callable[..., Any]], args: tuple[Any, ...], seconds: float) -> dict[str, float]:
    """The median time of each function in seconds; they take turns."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for f in functions.values():
        for _ in range(5):
            f(*args)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, f in functions.items():
            start = time.perf_counter()
            f(*args)
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(t) for name, t in times.items()}


def import_time(module: str, rounds: int = 7) -> float:
    """The median time of importing a module in a fresh interpreter, less that of the interpreter, in seconds."""

    def run(code: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - start

    pairs = [(run(f"import {module}"), run("pass")) for _ in range(rounds)]
    return statistics.median([loaded - bare for loaded, bare in pairs])


def main() -> int:
    """Print the table; the exit code says whether every ratio is within the bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="time for each batch size (%(default)s)")
    seconds = parser.parse_args().seconds

    functions = {"funcgrad": fg.grad(make_loss(np)), "with fg.nn": fg.grad(library_loss)}
    if autograd is not None:
        functions["autograd"] = autograd.grad(make_loss(autograd_numpy))
    print("gradient of the demo's loss, eager, one thread; medians in microseconds")
    print(f"{'batch':>6}", *[f"{name:>11}" for name in functions], f"{'ratio':>7}" if autograd is not None else "")
    worst = 0.0
    for batch in BATCHES:
        with threadpool_limits(1):
            found = medians(functions, problem(batch), seconds)
        ratio = max(found["funcgrad"], found["with fg.nn"]) / found.get("autograd", np.inf)
        worst = max(worst, ratio)
        shown = f"{ratio:7.2f}" if autograd is not None else ""
        print(f"{batch:6d}", *[f"{1e6 * t:11.0f}" for t in found.values()], shown)

    for module in ("numpy", "funcgrad"):
        print(f"import {module}: {1e3 * import_time(module):.0f} ms")
    if autograd is None:
        print("autograd is not installed: nothing to compare with")
        return 0
    print(f"slower one / autograd: at most {worst:.2f}; the bar is {BAR:.0f}")
    return 0 if worst <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
