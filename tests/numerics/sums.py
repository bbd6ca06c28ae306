"""Errors of sums against exact ones: of NumPy, and of funcgrad with and without jit.

The unit is eps times the sum of the absolute values of what is added (for a mean, divided by their number), so it does
not depend on how much of a sum cancels; times the condition number sum |x| / |sum x| it is the relative error in eps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any

import numpy as np

import funcgrad as fg
from funcgrad.core.evaluate import run
from funcgrad.core.trace import eagerly

Array = Any
LENGTHS = (100, 10_000, 1_000_000)
DRAWS = {100: 32, 10_000: 8, 1_000_000: 2}
KINDS = ("uniform", "normal", "cancelling")
WHO = ("numpy", "eager", "jit")
ROWS = 4

OPS: dict[str, Callable[..., Any]] = {
    "sum": np.sum,
    "sum axis=0": lambda x: np.sum(x, axis=0),
    "mean": np.mean,
    "mean axis=0": lambda x: np.mean(x, axis=0),
    "cumsum": np.cumsum,
    "cumsum axis=0": lambda x: np.cumsum(x, axis=0),
    "x @ y": lambda x, y: x @ y,
    "X @ y": lambda x, y: x @ y,
    "x @ Y": lambda x, y: x @ y,
}


def drawn(kind: str, shape: tuple[int, ...], dtype: str, rng: Any) -> Array:
    """Numbers in (0, 1); normal ones; or normal ones and their opposites, but for a millionth, in random order."""
    if kind == "uniform":
        return rng.random(shape).astype(dtype)
    x = rng.standard_normal(shape)
    if kind == "cancelling":
        flat = x.ravel()
        half = len(flat) // 2
        flat[half:] = -flat[: len(flat) - half] * (1 + 1e-6 * rng.random(len(flat) - half))
        x = rng.permutation(flat).reshape(shape)
    return x.astype(dtype)


def operands(op: str, kind: str, n: int, dtype: str, rng: Any) -> tuple[Array, ...]:
    """What the op is applied to: n numbers are added in each of its sums."""
    wide = "axis=0" in op or "Y" in op
    x = drawn(kind, (n, ROWS) if wide else (ROWS, n) if "X" in op else (n,), dtype, rng)
    if "@" not in op:
        return (x,)
    y = rng.uniform(0.5, 1.5, n).astype(dtype)
    return (y, x) if "Y" in op else (x, y)


def terms(args: tuple[Array, ...]) -> Iterator[tuple[Array, Array]]:
    """The numbers of each sum, as sums of two doubles each."""
    if len(args) == 1:
        x = np.asarray(args[0], float)
        for row in np.atleast_2d(x.T):
            yield row, np.zeros_like(row)
    else:
        x, y = (np.asarray(a, float) for a in args)
        for row in np.atleast_2d(y.T if y.ndim == 2 else x):
            yield product(row, x if y.ndim == 2 else y)


def product(x: Array, y: Array) -> tuple[Array, Array]:
    """x y, exactly, as the sum of two doubles (Dekker 1971, Veltkamp 1968)."""
    p, (a, b), (c, d) = x * y, halves(x), halves(y)
    return p, ((a * c - p) + a * d + b * c) + b * d


def halves(x: Array) -> tuple[Array, Array]:
    """x as the sum of two numbers of 26 bits."""
    t = x * (2.0**27 + 1)
    high = t - (t - x)
    return high, x - high


def error_of_total(y: float, high: Array, low: Array, mean: bool) -> float:
    """|y − the exact total or mean| in units of sum |terms|."""
    n = float(len(high)) if mean else 1.0
    p, rest = product(np.float64(y), np.float64(n))
    left = math.fsum([*high.tolist(), *low[low != 0].tolist(), -float(p), -float(rest)])
    return abs(left) / math.fsum(np.abs(high).tolist())


def prefixes(x: Array) -> tuple[Array, Array]:
    """The exact running totals, as sums of two doubles."""
    m, e = np.frexp(x)
    least = int(e.min()) - 53
    whole = [a << s for a, s in zip((m * 2.0**53).astype(int).tolist(), (e - 53 - least).tolist(), strict=True)]
    totals = list(accumulate(whole))
    high = [float(t) for t in totals]
    low = [float(t - int(h)) for t, h in zip(totals, high, strict=True)]
    return np.ldexp(np.array(high), least), np.ldexp(np.array(low), least)


def errors(op: str, results: dict[str, Array], args: tuple[Array, ...]) -> dict[str, float]:
    """The largest error of each result, in units of eps sum |terms|."""
    eps, largest = float(np.finfo(args[0].dtype).eps), dict.fromkeys(results, 0.0)
    for k, (high, low) in enumerate(terms(args)):
        if "cumsum" in op:
            total, rest = prefixes(high)
            size = np.cumsum(np.abs(high))
        for who, y in results.items():
            y = np.asarray(y, float)
            if "cumsum" in op:
                mine = y[:, k] if y.ndim == 2 else y
                error = float(np.max(np.abs((mine - total) - rest) / size))
            else:
                error = error_of_total(float(y[k] if y.ndim else y), high, low, "mean" in op)
            largest[who] = max(largest[who], error / eps)
    return largest


def measured(op: str, kind: str, n: int, dtype: str, draws: int) -> dict[str, float]:
    """The largest errors in some random sums."""
    rng, f, largest = np.random.default_rng([n, KINDS.index(kind)]), OPS[op], dict.fromkeys(WHO, 0.0)
    compiled = fg.jit(f)
    for _ in range(draws):
        args = operands(op, kind, n, dtype, rng)
        program = fg.make_program(f)(*args)
        with eagerly():
            (evaluated,) = run(program, list(args))
        found = errors(op, {"numpy": f(*args), "eager": evaluated, "jit": compiled(*args)}, args)
        largest = {who: max(largest[who], e) for who, e in found.items()}
    return {who: float(f"{e:.3g}") for who, e in largest.items()}


def measure(op: str) -> dict[str, dict[str, float]]:
    """All of one op; half a minute."""
    return {
        key(op, kind, n, dtype): measured(op, kind, n, dtype, DRAWS[n])
        for kind in KINDS for n in LENGTHS for dtype in ("float32", "float64")
    }  # fmt: skip


def key(op: str, kind: str, n: int, dtype: str) -> str:
    """Under which it is kept."""
    return f"{op} | {kind} | {n} | {dtype}"
