"""Every op of the registry, on a GPU that is not there: the results of the CPU, for every dtype, size and layout.

The ops are those of `tests.ops`, so that a new one is tested here from the day on that it is defined.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.core.trace import bind1
from funcgrad.errors import UnsupportedError
from funcgrad.ops.op import Op
from tests.cuda.against_cpu import ARCHS, compared, compiled, equations
from tests.lowering.test_native_ops import DTYPES, edges
from tests.ops.samples import SAMPLES, Sample, of_dtype
from tests.ops.test_registry import points
from tests.rule_checker import all_primitives

OPS = all_primitives()
ELEMENTWISE = [n for n, op in OPS.items() if op.traits.kind == "elementwise" and n not in SAMPLES]
SMOOTH = [n for n in ELEMENTWISE if not OPS[n].no_derivative and "f" in OPS[n].dtypes]
WITHOUT = {
    "callback": "it runs Python",
    "linear_solve": "its matrix is a function, which is asked for by the solver: a callback or a loop",
}
"""Ops that have no form on a GPU, and why: they raise UnsupportedError, which names them."""
ELSEWHERE = {"loop", "branch", "stack_empty", "stack_length", "stack_element", "stack_collect", "stack_add",
             "custom_vjp", "custom_linear"}  # fmt: skip
"""Ops that come from functions of users with a control flow or rules of their own: test_kernels.py, test_jit.py."""

N = 1032  # of f64 two blocks in pairs, of f32 two in fours
OTHERS = [pytest.param(a, marks=pytest.mark.cuda) for a in ARCHS if a != "sm_80"]
every_arch = pytest.mark.parametrize("arch", ["sm_80", *OTHERS])


def views(x: Any) -> list[Any]:
    """The sizes and layouts of a long array."""
    return [x, x[:0], x[:1], x[:7], x[: N - 1], x[::-2], x[1:], x[: N - 7].reshape(25, 41).T, x[0]]


def arity(name: str) -> int:
    """The number of operands."""
    return len(inspect.signature(OPS[name].function).parameters)


def filled(name: str, dtype: str) -> list[np.ndarray]:
    """Operands: all pairs of the edges of a dtype, over and over."""
    v = edges(dtype)
    return [np.resize(np.ascontiguousarray(x).ravel(), N) for x in np.meshgrid(*[v] * arity(name))]


def applied(name: str) -> Callable[..., Any]:
    """An op as a function."""
    return lambda *x: bind1(OPS[name], *x)


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_values_of_every_dtype(name: str) -> None:
    operands = [filled(name, d) for d in DTYPES if np.dtype(d).kind in OPS[name].dtypes]
    compared(lambda operands: [applied(name)(*x) for x in operands], [operands])


@pytest.mark.cuda
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_sizes_and_layouts(name: str, arch: str) -> None:
    for d in ("float32", "float64", "int32", "bool"):
        if np.dtype(d).kind in OPS[name].dtypes:
            everywhere = lambda *x: [applied(name)(*v) for v in zip(*map(views, x), strict=True)]
            compared(everywhere, filled(name, d), arch)


def derivatives(name: str) -> Callable[..., Any]:
    """An op with its derivatives in all operands, both modes."""

    def f(*x: Any) -> Any:
        y, pull = fg.vjp(applied(name), *x)
        return y, pull(np.ones_like(y)), fg.jvp(applied(name), x, x)[1]

    return f


@pytest.mark.cuda
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives(name: str, dtype: str, arch: str) -> None:
    compared(derivatives(name), points(name, (3, 7), np.dtype(dtype), 5), arch)


def kinds(s: Sample) -> list[tuple[Any, ...]]:
    """The arguments of a sample, its floats also as other dtypes."""
    out = [s.args]
    op = OPS[s.name]
    if isinstance(op, Op) and op.traits.kind not in ("program", "barrier", "identity") and s.name != "iota":
        for d in ("float32", "int32", "int8", "bool"):
            if np.dtype(d).kind in op.dtypes and any([x.dtype == np.float64 for x in s.args]):
                out.append(tuple([of_dtype(x, d) if x.dtype == np.float64 else x for x in s.args]))
    return out


def gradient(f: Callable[..., Any], args: Any) -> Callable[..., Any]:
    """The reverse derivative of the sums of all results of dtype float, in the operands of such a dtype."""
    smooth = [k for k, x in enumerate(args) if x.dtype.kind == "f"]

    def total(*x: Any) -> Any:
        outs = fg.tree.leaves(f(*x))
        return sum([np.sum(y * y) for y in outs if y.dtype.kind == "f"]) + 0.0

    return fg.value_and_grad(total, tuple(smooth))


SAMPLED = [n for n in SAMPLES if n not in WITHOUT]


@every_arch
@pytest.mark.parametrize("name", SAMPLED)
def test_values_of_samples(name: str, arch: str) -> None:
    some = SAMPLES[name] if arch != "sm_80" else SAMPLES[name][::5]
    for s in some:
        for args in kinds(s):
            compared(s.function, args, arch)


@pytest.mark.cuda
@pytest.mark.parametrize("name", SAMPLED)
def test_gradients_and_rows_of_samples(name: str) -> None:
    for s in SAMPLES[name]:
        if any([x.dtype.kind == "f" for x in s.args]):
            compared(gradient(s.function, s.args), s.args)
        if s.args:
            rows = [np.stack([x, x[::-1] if x.ndim else x, x]) for x in s.args]
            compared(fg.vmap(s.function), rows)
            compared(fg.vmap(s.function, in_axes=(0, *[None] * (len(rows) - 1))), [rows[0], *s.args[1:]])


def test_every_op_has_a_form_or_a_reason() -> None:
    """A new op without a lowering fails here, or in the tests above."""
    covered = {*ELEMENTWISE, *SAMPLED, *ELSEWHERE, *WITHOUT}
    assert covered == set(OPS)


def without(name: str) -> tuple[Callable[..., Any], list[Any]]:
    """A use of an op that has no form."""
    if name == "callback":
        return lambda x: fg.pure_callback(np.sin, x, x), [np.ones(3)]
    if name == "linear_solve":
        solve = lambda matvec, b: fg.pure_callback(lambda b: b / 2.0, b, b)
        return lambda b: fg.custom_linear_solve(lambda x: 2.0 * x, b, solve, symmetric=True), [np.ones(3)]
    s = SAMPLES[name][0]
    return s.function, list(s.args)


@pytest.mark.parametrize("name", WITHOUT)
def test_what_has_no_form_raises(name: str) -> None:
    f, args = without(name)
    assert name in {e.primitive.name for e in equations(fg.make_program(f)(*args))}
    with pytest.raises(UnsupportedError, match="has no CUDA form"):
        compiled(f, args)
