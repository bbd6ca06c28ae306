"""What transforms do to a Program that an equation holds: derive it, and apply the derived one.

`apply(program, *args)` says how: as one equation (`call`), or in place (`inlined`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from funcgrad.core.evaluate import evaluate, run
from funcgrad.core.ir import Program
from funcgrad.core.primitive import Linear
from funcgrad.transforms.batch import batch
from funcgrad.transforms.jvp import jvp
from funcgrad.transforms.transpose import transpose

Apply = Callable[..., Sequence[Any]]


def inlined(program: Program, *args: Any) -> list[Any]:
    """The results of `program`, its equations recorded one by one while something is traced."""
    return evaluate(program, args)


def computed(program: Program, *values: Any) -> tuple[Any, ...]:
    """The results of `program` on plain arrays, with NumPy."""
    return tuple(run(program, values))


def push(apply: Apply, program: Program, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Outputs and their tangents."""
    derived, nonzero = jvp(program, tuple([t is not None for t in tangents]))
    results = apply(derived, *primals, *[t for t in tangents if t is not None])
    dots = iter(results[len(nonzero) :])
    return results[: len(nonzero)], [next(dots) if flag else None for flag in nonzero]


def pull(apply: Apply, program: Program, cts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """One cotangent, or None, for each operand; `args` are values, or `Linear`."""
    linear = tuple([isinstance(a, Linear) for a in args])
    backward, nonzero = transpose(program, linear, tuple([c is not None for c in cts]))
    values = [a for a in args if not isinstance(a, Linear)]
    results = iter(apply(backward, *values, *[c for c in cts if c is not None]) if any(nonzero) else ())
    flags = iter(nonzero)
    return [next(results) if flag and next(flags) else None for flag in linear]


def rows(apply: Apply, program: Program, size: int, args: Sequence[Any], dims: Sequence[int | None]) -> Any:
    """Outputs for `size` rows, and their axes."""
    batched, out_dims = batch(program, size, tuple(dims))
    return apply(batched, *args), out_dims
