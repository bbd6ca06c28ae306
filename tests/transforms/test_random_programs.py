"""Random programs: whatever ops are put together, the transforms agree with each other and with a loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import given, settings

import funcgrad as fg
from funcgrad.core.check import check
from funcgrad.core.primitive import registry
from funcgrad.testing import programs
from funcgrad.testing.recipes import Recipe
from funcgrad.testing.vocabulary import PUBLIC
from funcgrad.transforms.batch import batch
from funcgrad.transforms.jvp import jvp
from funcgrad.transforms.mask import mask
from funcgrad.transforms.split import split
from funcgrad.transforms.transpose import transpose
from tests.rule_checker import is_exact, same_bits

ROWS = 3
EXAMPLES = settings(max_examples=40)
FORWARD = ("in_jit", "in_vmap", "in_grad", "in_jvp", "in_scan", "in_cond", "in_checkpoint", "with_jvp_rule", "in_while")
MOVES = ("select", "reverse", "slice", "gather", "concatenate", "stack", "reshape", "broadcast", "transpose", "pad")
EXACT = [name for name in PUBLIC if name in MOVES or (name in registry and registry[name].traits.exact)]


@dataclass
class Floats:
    """A program as a function of its floating-point arguments, with the results that have derivatives."""

    program: Recipe

    def __post_init__(self) -> None:
        self.places = [i for i, a in enumerate(self.program.args) if a.dtype.kind == "f"]
        self.args = tuple([self.program.args[i] for i in self.places])

    def __call__(self, *xs: Any) -> tuple[Any, ...]:
        args = list(self.program.args)
        for i, x in zip(self.places, xs, strict=True):
            args[i] = x
        return tuple([y for y in self.program(*args) if y.dtype.kind == "f"])

    def scalar(self, *xs: Any) -> Any:
        """The sum of all elements of all results, bent."""
        return sum([np.sum(np.sin(y)) for y in self(*xs)])

    def __repr__(self) -> str:
        return repr(self.program)


def functions(steps: int = 10, depth: int = 1, wrappers: Any = FORWARD, **options: Any) -> Any:
    """Programs of floats through which there is forward mode."""
    return programs(steps, depth, wrappers=wrappers, **options).map(Floats)


def like(arrays: Any, seed: int) -> list[np.ndarray]:
    """Random arrays of the same shapes."""
    random = np.random.default_rng(seed)
    return [np.asarray(random.uniform(-1, 1, np.shape(a))) for a in arrays]


def inner(xs: Any, ys: Any) -> tuple[float, float]:
    """The inner product, and that of the absolute values."""
    terms = [np.asarray(x) * np.asarray(y) for x, y in zip(xs, ys, strict=True)]
    return sum(float(t.sum()) for t in terms), sum(float(np.abs(t).sum()) for t in terms)


def near(found: Any, expected: Any, rtol: float) -> None:
    """Equal relative to the largest element."""
    for a, b in zip(found, expected, strict=True):
        assert np.isfinite(b).all()
        np.testing.assert_allclose(a, b, rtol=0, atol=rtol * max(1.0, np.max(np.abs(b), initial=0.0)))


@EXAMPLES
@given(functions())
def test_reverse_is_the_adjoint_of_forward(f: Floats) -> None:
    x, v = f.args, like(f.args, 1)
    y, dots = fg.jvp(f, tuple(x), tuple(v))
    value, back = fg.vjp(f, *x)
    if f.program.height:  # loops and jit are compiled
        near(y, f(*x), 1e-13)
        near(value, f(*x), 1e-13)
    else:
        assert all(same_bits(a, b) for ys in (y, value) for a, b in zip(ys, f(*x), strict=True))
    w = like(y, 2)
    (left, size), (right, other) = inner(w, dots), inner(back(tuple(w)), v)
    assert abs(left - right) <= 1e-12 * max(1.0, size, other)
    near(fg.linearize(f, *x)[1](*v), dots, 1e-12)


@EXAMPLES
@given(functions(6))
def test_second_derivatives_agree(f: Floats) -> None:
    every = tuple(range(len(f.args)))
    forward = fg.jacfwd(fg.grad(f.scalar, every), every)(*f.args)
    reverse = fg.jacrev(fg.grad(f.scalar, every), every)(*f.args)
    twice_forward = fg.jacfwd(fg.jacfwd(f.scalar, every), every)(*f.args)
    for i in every:
        near(reverse[i], forward[i], 1e-11)
        near(twice_forward[i], forward[i], 1e-11)
        for j in every:  # the Hessian is symmetric
            a, b = np.asarray(forward[i][j]), np.asarray(forward[j][i])
            order = (*range(f.args[j].ndim, a.ndim), *range(f.args[j].ndim))
            near([a], [np.transpose(b, order)], 1e-11)


@EXAMPLES
@given(functions(6), st.integers(0, 2))
def test_vmap_is_a_loop(f: Floats, kept: int) -> None:
    rows = [[a * (1 - 0.05 * r) for a in f.args] for r in range(ROWS)]
    axes = [i % (a.ndim + 1) for i, a in enumerate(f.args)]
    shared = {kept} if kept < len(f.args) and len(f.args) > 1 else set()
    in_axes = tuple(None if i in shared else d for i, d in enumerate(axes))
    stacked = [f.args[i] if i in shared else np.stack([r[i] for r in rows], d) for i, d in enumerate(axes)]
    every = tuple(range(len(f.args)))
    for g in (f, fg.grad(f.scalar, every)):
        looped = [g(*[f.args[i] if i in shared else r[i] for i in every]) for r in rows]
        expected = [np.stack(ys) for ys in zip(*looped, strict=True)]
        near(fg.vmap(g, in_axes)(*stacked), expected, 1e-11)
        near(fg.jit(fg.vmap(g, in_axes))(*stacked), expected, 1e-11)


@EXAMPLES
@given(functions(12, 0, operations=EXACT))
def test_jit_gives_the_same_bits(f: Floats) -> None:
    v = tuple(like(f.args, 1))
    derivative: Callable[..., Any] = lambda *x: fg.jvp(f, x, v)[1]
    for g in (f, derivative):
        eager, compiled = g(*f.args), fg.jit(g)(*f.args)
        exact = is_exact(fg.make_program(g)(*f.args))
        assert exact or g is not f
        for a, b in zip(compiled, eager, strict=True):
            assert same_bits(a, b) if exact else np.allclose(a, b, rtol=1e-12, atol=1e-12)


@settings(max_examples=15)  # each compiles four long Programs
@given(functions(6))
def test_jit_is_evaluation(f: Floats) -> None:
    every = tuple(range(len(f.args)))
    gradient = fg.grad(f.scalar, every)
    for g in (f, gradient, fg.jacfwd(f.scalar, every)):
        near(fg.jit(g)(*f.args), g(*f.args), 1e-11)
    near(fg.grad(fg.jit(f.scalar), every)(*f.args), gradient(*f.args), 1e-11)


@EXAMPLES
@given(functions(wrappers=FORWARD[:-1]))  # residuals of a loop of unknown length are no arrays
def test_derived_programs_are_well_formed(f: Floats) -> None:
    program = check(fg.make_program(f)(*f.args))
    assert check(fg.make_program(f)(*f.args)).fingerprint == program.fingerprint
    n = len(program.inputs)
    moving = tuple([v.aval.dtype.kind == "f" for v in program.inputs])
    derived, _ = jvp(program, moving)
    halves = split(check(derived), (False,) * n + (True,) * (len(derived.inputs) - n))
    check(halves.known)
    linear = check(halves.unknown)
    flags = tuple([i >= len(linear.inputs) - sum(moving) for i in range(len(linear.inputs))])
    check(mask(linear, flags, flags)[0])
    backward, _ = transpose(linear, flags, (True,) * len(linear.outputs))
    check(backward)
    for p in (program, derived, linear, backward):
        check(batch(p, ROWS, tuple([v.aval.ndim for v in p.inputs]))[0])
        assert str(p).isascii()
