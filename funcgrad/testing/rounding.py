"""How much rounding changes what a function computes: every operation is shaken by a rounding error.

The result of each operation that rounds is changed by a few units in the last place, up or down at random, and what
becomes of the results of the whole is watched. What is lost by cancellation, or in a sum of large terms, is seen so.
The errors are not whole units, and not of the same size in all runs: where they meet they do not cancel by chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from funcgrad.core.ir import Equation, Literal, Program
from funcgrad.core.stacked import Stacked
from funcgrad.core.trace import eagerly
from funcgrad.testing.differences import ravel
from funcgrad.testing.flat import Flat, is_float
from funcgrad.testing.walking import as_values, bodies, compute, traced_function

RUNS = 4
UNITS = 8  # of the last place, by which a result is changed at most
USUAL = 2  # as many are what rounding does at most
ROUND = ("elementwise", "reduce", "dot", "cumulative", "loop", "foreign")  # kinds of operations that round


class Shaker:
    """Random rounding errors; those of the first two runs are opposite, so that none alone goes unseen."""

    def __init__(self, run: int) -> None:
        self.random = np.random.default_rng(max(run, 1))
        self.sign = 1.0 if run else -1.0

    def errors(self, shape: tuple[int, ...]) -> Any:
        """For each element, how many units in the last place it changes."""
        errors = self.random.uniform(-UNITS / 2, UNITS / 2, shape)
        return self.sign * (errors + np.copysign(UNITS / 2, errors))


def rounding(flat: Flat) -> Any:
    """For each result of a function, as one vector, how much rounding may change it."""
    traced = traced_function(flat)
    inputs = [*traced.constants, *flat.x]
    if traced.program.effects:
        return np.zeros(ravel(flat.values(flat.x)).shape)
    with np.errstate(all="ignore"), eagerly():
        found = [ravel(shaken(traced.program, inputs, Shaker(k))) for k in range(RUNS)]
        spread = abs(np.max([f.real for f in found], 0) - np.min([f.real for f in found], 0))
        spread = spread + abs(np.max([f.imag for f in found], 0) - np.min([f.imag for f in found], 0))
    return np.where(np.isfinite(spread), spread * (USUAL / UNITS), 0.0)


def shaken(program: Program, inputs: Sequence[Any], shaker: Shaker) -> list[Any]:
    """The results of a Program whose operations make rounding errors."""
    env = as_values(program, inputs)
    for e in program.equations:
        operands = [a.array if isinstance(a, Literal) else env[a] for a in e.inputs]
        env.update(zip(e.outputs, _results(e, operands, shaker), strict=True))
    return [a.array if isinstance(a, Literal) else env[a] for a in program.outputs]


def _results(e: Equation, operands: Sequence[Any], shaker: Shaker) -> list[Any]:
    kind = e.primitive.traits.kind
    if kind in ("program", "branch"):
        for _, body, inputs in bodies(e, operands):
            return shaken(body, inputs, shaker)
    results = compute(e, operands)
    return [_shake(y, operands, shaker) for y in results] if kind in ROUND else list(results)


def _shake(y: Any, operands: Sequence[Any], shaker: Shaker) -> Any:
    """A result, changed by rounding errors where it is none of the operands, with either sign."""
    if isinstance(y, Stacked) or not is_float(y):
        return y
    taken = [abs(y) == abs(x) for x in operands if is_float(x) and np.shape(x) == np.shape(y)]
    info = np.finfo(y.dtype)
    unit = np.where(y == 0, 0.0, np.maximum(info.eps, info.smallest_subnormal / abs(y)))  # relative; numbers end
    error = np.where(np.any(taken, axis=0) if taken else False, 0.0, unit * shaker.errors(np.shape(y)))
    return (y * (1 + error)).astype(y.dtype)[()]
