"""Random programs: whatever ops are put together, the transforms agree with each other and with a loop.

A program is drawn step by step and computed while it is drawn, so that every operand can be brought into the domain
of the op that takes it. Its inputs are small arrays; its results are the values that no later step used.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import numpy as np
from hypothesis import given, note, settings

import funcgrad as fg
from funcgrad.core.check import check
from funcgrad.core.primitive import registry
from funcgrad.core.trace import bind1, eagerly
from funcgrad.transforms.batch import batch
from funcgrad.transforms.jvp import jvp
from funcgrad.transforms.mask import mask
from funcgrad.transforms.split import split
from funcgrad.transforms.transpose import transpose
from tests.ops.samples import SAMPLES
from tests.rule_checker import all_primitives, is_exact, same_bits

OPS = {n: op for n, op in all_primitives().items() if op.traits.kind == "elementwise" and n not in SAMPLES}
UNARY = [n for n, op in OPS.items() if "f" in op.dtypes and len(inspect.signature(op.function).parameters) == 1]
BINARY = [n for n, op in OPS.items() if "f" in op.dtypes and n not in UNARY]
COMPARISONS = [n for n in BINARY if n in ("lt", "le", "gt", "ge", "eq", "ne")]
UNARY = [n for n in UNARY if n not in ("isnan", "isinf", "isfinite", "signbit")]  # these give truth values
BINARY = [n for n in BINARY if n not in COMPARISONS and n != "floor_divide"]  # 0 // 0 is NaN
AWAY_FROM_ORIGIN = {"hypot": (0.5, 2.0), "arctan2": (0.5, 2.0)}
SHAPES = [(), (1,), (2,), (3,), (2, 3), (3, 2), (1, 3)]
ROWS = 3
EXAMPLES = settings(max_examples=40)


def op(name: str, *args: Any, **params: Any) -> Any:
    """One application."""
    return bind1(registry[name], *args, **params)


def number(x: Any, value: float) -> Any:
    """A constant of the shape and dtype of `x`."""
    return np.full(x.shape, value)


def bent(x: Any) -> Any:
    """x / (1 + x²), which is within ±1/2."""
    return op("div", x, op("add", op("square", x), number(x, 1.0)))


def moved_into(x: Any, low: float, high: float) -> Any:
    """`x` bent into an interval."""
    return op("add", op("mul", bent(x), number(x, high - low)), number(x, (high + low) / 2))


@dataclass
class Step:
    """One value of a program, from earlier ones."""

    text: str
    operands: tuple[int, ...]
    function: Callable[..., Any]


@dataclass
class Drawn:
    """A drawn program and the arguments for which it was drawn."""

    args: list[np.ndarray]
    steps: list[Step]
    results: list[int]

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        values = list(args)
        for s in self.steps:
            values.append(s.function(*[values[i] for i in s.operands]))
        return tuple([values[i] for i in self.results])

    def scalar(self, *args: Any) -> Any:
        """The sum of all elements of all results, bent."""
        total = np.float64(0.0)
        for y in self(*args):
            total = op("add", total, op("reduce_sum", op("sin", y), axes=tuple(range(y.ndim))) if y.ndim else y)
        return total

    def __repr__(self) -> str:
        lines = [f"v{i}: {a.shape}" for i, a in enumerate(self.args)]
        lines += [f"v{i} = {s.text} of {s.operands}" for i, s in enumerate(self.steps, len(self.args))]
        return "\n".join([*lines, f"return {self.results}"])


class Builder:
    """Draws steps and computes them."""

    def __init__(self, draw: Any, exact: bool) -> None:
        self.draw = draw
        self.exact = exact
        self.unary_names = [n for n in UNARY if not exact or OPS[n].traits.exact]
        self.binary_names = [n for n in BINARY if not exact or OPS[n].traits.exact]
        seed = draw(st.integers(0, 1000))
        self.random = np.random.default_rng(seed)
        shapes = draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3))
        self.args = [np.asarray(self.random.uniform(-1.5, 1.5, s)) for s in shapes]
        self.values = list(self.args)
        self.steps: list[Step] = []

    def pick(self, usable: Callable[[np.ndarray], bool] = lambda v: True) -> int | None:
        """An earlier value, late ones first; None if there is no usable one."""
        found = [i for i, v in reversed(list(enumerate(self.values))) if usable(v)]
        return self.draw(st.sampled_from(found)) if found else None

    def add(self, text: str, operands: tuple[int, ...], function: Callable[..., Any]) -> None:
        """A step; a result that would grow is bent back."""
        with eagerly():
            value = np.asarray(function(*[self.values[i] for i in operands]))
            if value.size and np.max(np.abs(value)) > 2.5:
                text, function = f"bent {text}", lambda *args, f=function: bent(f(*args))
                value = np.asarray(function(*[self.values[i] for i in operands]))
        assert value.dtype == float and np.isfinite(value).all(), (text, value)
        self.values.append(value)
        self.steps.append(Step(text, operands, function))

    def fitted(self, name: str, operands: tuple[int, ...]) -> Callable[..., Any]:
        """The op after what brings its operands into its domain, unless that is where all values are."""
        bounds = [AWAY_FROM_ORIGIN.get(name) or OPS[name].domain.interval(i) for i in range(len(operands))]
        inside = [
            bool(np.all(np.abs(self.values[i]) <= -low)) and (low, high) == (-2.0, 2.0)
            for i, (low, high) in zip(operands, bounds, strict=True)
        ]

        def function(*args: Any) -> Any:
            moved = [a if ok else moved_into(a, *b) for a, ok, b in zip(args, inside, bounds, strict=True)]
            return op(name, *moved)

        return function

    # -- kinds of steps

    def unary(self) -> None:
        """An elementwise op of one operand."""
        name, i = self.draw(st.sampled_from(self.unary_names)), self.pick()
        self.add(name, (i,), self.fitted(name, (i,)))

    def binary(self) -> None:
        """An elementwise op of two operands."""
        name, i = self.draw(st.sampled_from(self.binary_names)), self.pick()
        j = self.pick(lambda v: v.shape == self.values[i].shape)
        self.add(name, (i, j), self.fitted(name, (i, j)))

    def selection(self) -> None:
        """A comparison, and a choice by it."""
        name, i = self.draw(st.sampled_from(COMPARISONS)), self.pick()
        j = self.pick(lambda v: v.shape == self.values[i].shape)
        self.add(f"select {name}", (i, j), lambda x, y: op("select", op(name, x, y), bent(x), op("mul", x, y)))

    def reduction(self) -> None:
        """A reduction over one axis or all."""
        i = self.pick(lambda v: v.ndim > 0)
        if i is None:
            return
        name = self.draw(st.sampled_from(["reduce_sum", "reduce_prod", "reduce_max", "reduce_min"]))
        axes = self.draw(st.sampled_from([(0,), tuple(range(self.values[i].ndim))]))
        self.add(f"{name} {axes}", (i,), lambda x: op(name, x, axes=axes))

    def running(self) -> None:
        """A running total along an axis."""
        i = self.pick(lambda v: v.ndim > 0)
        if i is None:
            return
        name = self.draw(st.sampled_from(["cumsum", "cumprod", "cummax", "cummin"]))
        axis, reverse = self.values[i].ndim - 1, self.draw(st.booleans())
        self.add(f"{name} {axis} {reverse}", (i,), lambda x: op(name, x, axis=axis, reverse=reverse))

    def movement(self) -> None:
        """An op that moves data."""
        i = self.pick(lambda v: v.ndim > 0)
        if i is None:
            return
        n, ndim = self.values[i].shape[0], self.values[i].ndim
        whole = (0,) * (ndim - 1)
        rest = self.values[i].shape[1:]
        choices: dict[str, Callable[..., Any]] = {
            "reverse": lambda x: op("reverse", x, axes=(0,)),
            "transpose": lambda x: op("transpose", x, axes=tuple(reversed(range(ndim)))),
            "reshape": lambda x: op("reshape", x, shape=(1, x.size)),
            "broadcast": lambda x: op("broadcast", x, shape=(*x.shape, 2), axes=tuple(range(ndim))),
            "slice": lambda x: op("slice", x, start=(0, *whole), stop=x.shape, step=(2, *[1 for _ in rest])),
            "pad": lambda x: op("pad", x, np.float64(0.0), before=(1, *whole), after=(0, *whole), between=(1, *whole)),
            "concatenate": lambda x: op("concatenate", x, bent(x), axis=0),
            "gather": lambda x: op("gather", x, np.array([n - 1, 0, n - 1])),
            "argmax": lambda x: op("gather", x, op("argmax", x, axis=0) if ndim == 1 else np.array([0])),
            "scatter": lambda x: op("scatter", x, op("gather", x, np.array([0, 0])), np.array([n - 1, 0]), mode="clip"),
            "scatter_add": lambda x: op("scatter_add", x, op("sin", x), np.arange(n) % 2 % n, mode="clip"),
            "scatter_mul": lambda x: op("scatter_mul", x, op("cos", x), np.arange(n) % 2 % n, mode="clip"),
            "scatter_max": lambda x: op("scatter_max", x, bent(x), np.arange(n) % 2 % n, mode="clip"),
            "dynamic_slice": lambda x: op("dynamic_slice", x, np.int64(n - 1), *[np.int64(0) for _ in rest],
                                          sizes=(1, *rest)),
            "convert": lambda x: op("mul", x, op("convert", op("gt", x, bent(x)), dtype=np.dtype(float),
                                                 weak=False)),
        }  # fmt: skip
        allowed = [n for n in sorted(choices) if not self.exact or n not in ("scatter_add", "scatter_mul")]
        name = self.draw(st.sampled_from(allowed))
        if self.values[i].size < 12:
            self.add(name, (i,), choices[name])

    def product(self) -> None:
        """A dot product over the last axis of one and the first of another."""
        i = self.pick(lambda v: v.ndim > 0)
        j = None if i is None else self.pick(lambda v: v.ndim > 0 and v.shape[0] == self.values[i].shape[-1])
        if i is None or j is None or self.values[i].ndim + self.values[j].ndim > 4:
            return
        axis = self.values[i].ndim - 1
        self.add("dot", (i, j), lambda x, y: op("dot", x, y, contract=((axis,), (0,)), batch=((), ())))

    def inner_jit(self) -> None:
        """A jitted function with two results."""
        i = self.pick()
        j = self.pick(lambda v: v.shape == self.values[i].shape)
        body = fg.jit(lambda x, y: (op("mul", op("sin", x), y), op("exp", op("sin", y))))
        self.add("jit", (i, j), lambda x, y: op("add", *body(x, y)))

    def inner_derivative(self) -> None:
        """A derivative inside the program."""
        i = self.pick()
        j = self.pick(lambda v: v.shape == self.values[i].shape)
        inner = lambda x, y: op("mul", op("sin", x), op("tanh", y))
        if self.draw(st.booleans()):
            self.add("jvp", (i, j), lambda x, y: fg.jvp(lambda t: inner(t, y), (x,), (y,))[1])
        else:
            self.add("vjp", (i, j), lambda x, y: fg.vjp(lambda t: inner(t, y), x)[1](y)[0])

    def inner_rows(self) -> None:
        """A vmap inside the program, over a closed-over value."""
        i = self.pick(lambda v: v.ndim > 0)
        j = self.pick(lambda v: v.ndim == 0)
        if i is None or j is None or self.values[i].ndim != 1:
            return
        self.add("vmap", (i, j), lambda x, y: fg.vmap(lambda r: op("mul", op("cos", r), y))(x))


KINDS = [Builder.unary] * 6 + [Builder.binary] * 5 + [
    Builder.selection, Builder.reduction, Builder.running, Builder.movement, Builder.movement, Builder.movement,
    Builder.product, Builder.inner_jit, Builder.inner_derivative, Builder.inner_rows,
]  # fmt: skip


EXACT_KINDS = [Builder.unary] * 6 + [Builder.binary] * 6 + [Builder.selection, Builder.movement, Builder.movement]


@st.composite
def programs(draw: Any, exact: bool = False) -> Drawn:
    """A random program; `exact`: of ops that promise the same bits under jit."""
    b = Builder(draw, exact)
    for _ in range(draw(st.integers(6, 18))):
        draw(st.sampled_from(EXACT_KINDS if exact else KINDS))(b)
    used = {i for s in b.steps for i in s.operands}
    results = [i for i in range(len(b.values)) if i not in used][-4:] or [len(b.values) - 1]
    return Drawn(b.args, b.steps, results)


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
@given(programs())
def test_reverse_is_the_adjoint_of_forward(f: Drawn) -> None:
    note(repr(f))
    x, v = f.args, like(f.args, 1)
    y, dots = fg.jvp(f, tuple(x), tuple(v))
    assert all(same_bits(a, b) for a, b in zip(y, f(*x), strict=True))
    value, back = fg.vjp(f, *x)
    assert all(same_bits(a, b) for a, b in zip(value, y, strict=True))
    w = like(y, 2)
    (left, size), (right, other) = inner(w, dots), inner(back(tuple(w)), v)
    assert abs(left - right) <= 1e-12 * max(1.0, size, other)
    near(fg.linearize(f, *x)[1](*v), dots, 1e-12)


@EXAMPLES
@given(programs())
def test_second_derivatives_agree(f: Drawn) -> None:
    note(repr(f))
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
@given(programs(), st.integers(0, 2))
def test_vmap_is_a_loop(f: Drawn, kept: int) -> None:
    note(repr(f))
    rows = [[a + 0.05 * r for a in f.args] for r in range(ROWS)]
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
@given(programs(exact=True))
def test_jit_gives_the_same_bits(f: Drawn) -> None:
    note(repr(f))
    v = tuple(like(f.args, 1))
    for g in (f, lambda *x: fg.jvp(f, x, v)[1]):
        eager, compiled = g(*f.args), fg.jit(g)(*f.args)
        exact = is_exact(fg.make_program(g)(*f.args))
        assert exact or g is not f
        for a, b in zip(compiled, eager, strict=True):
            assert same_bits(a, b) if exact else np.allclose(a, b, rtol=1e-12, atol=1e-12)


@settings(max_examples=15)  # each compiles four long Programs
@given(programs())
def test_jit_is_evaluation(f: Drawn) -> None:
    note(repr(f))
    every = tuple(range(len(f.args)))
    gradient = fg.grad(f.scalar, every)
    for g in (f, gradient, fg.jacfwd(f.scalar, every)):
        near(fg.jit(g)(*f.args), g(*f.args), 1e-11)
    near(fg.grad(fg.jit(f.scalar), every)(*f.args), gradient(*f.args), 1e-11)


@EXAMPLES
@given(programs())
def test_derived_programs_are_well_formed(f: Drawn) -> None:
    note(repr(f))
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
