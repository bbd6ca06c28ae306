"""An independent checker of an op's rules: what it computes, how it is differentiated, batched and jitted.

    check_rules(lambda x: bind1(tanh_p, x), np.array([0.3, -1.2]))

raises `RuleFailure`, which names the step, unless

* ``abstract``: shape and dtype of the result are those of abstract evaluation, and no argument was written to;
* ``jvp``: the forward derivative, of all operands together and of each alone, is that of an oracle;
* ``vjp``: the reverse derivative is its adjoint, ⟨w, Jv⟩ = ⟨Jᵀw, v⟩;
* ``transpose``: so is the transpose of the op itself, in all operands or one in which it is linear;
* ``second``: forward and reverse over forward and reverse are the second derivative of the oracle;
* ``batch``: value, jvp and vjp under vmap are those of a loop, for every subset of operands that have rows, and
  for rows along the first, a middle and the last axis (by turns, for ops of more than two operands);
* ``jit``: all of it is the same under jit.

The oracles see only `evaluate`, in float64: the complex step where the op takes complex numbers, differences
extrapolated by Richardson elsewhere, and for linear ops the difference itself, which is then exact.
"""

from __future__ import annotations

import importlib
import itertools
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal as OneOf

import numpy as np

import funcgrad as fg
import funcgrad.control
import funcgrad.ops
from funcgrad.api.inspect import abstract_trace
from funcgrad.core.evaluate import run
from funcgrad.core.ir import subprograms
from funcgrad.core.primitive import Primitive, registry
from funcgrad.core.trace import eagerly
from funcgrad.transforms.transpose import transpose

Function = Callable[..., Any]
Oracle = OneOf["linear", "complex", "difference", "zero"]
ROWS = 3


@dataclass(frozen=True)
class Tolerance:
    """What may differ, relative to the largest number of the array that is compared (ulps: of each number).

    Parameters
    ----------
    ulps
        Of a value or first derivative of one op against its exact value; a second derivative may have four times.
    same
        The same sums and products in another order.
    first, second
        A derivative against an oracle that takes differences.
    """

    eps: float
    ulps: float
    same: float
    first: float
    second: float


TOLERANCES = {
    np.dtype(np.float64): Tolerance(2.0**-52, ulps=8, same=1e-13, first=1e-10, second=1e-6),
    np.dtype(np.float32): Tolerance(2.0**-23, ulps=8, same=1e-5, first=1e-5, second=1e-4),
}


class RuleFailure(AssertionError):
    """A rule is wrong; the message begins with the step that found it."""


@contextmanager
def step(name: str) -> Iterator[None]:
    """Whatever goes wrong inside is a `RuleFailure` of this step."""
    try:
        yield
    except RuleFailure:
        raise
    except Exception as error:
        raise RuleFailure(f"{name}: {type(error).__name__}: {error}") from error


def all_primitives() -> dict[str, Primitive]:
    """Every primitive that the package defines."""
    for package in (funcgrad.ops, funcgrad.control):
        for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            importlib.import_module(module.name)
    return dict(registry)


# -- comparing


def require(condition: Any, message: str) -> None:
    """Raise `RuleFailure` unless `condition`."""
    if not condition:
        raise RuleFailure(message)


def same_bits(found: Any, expected: Any) -> bool:
    """Equal dtype, shape and values; every NaN equals every other, 0.0 does not equal -0.0."""
    found, expected = np.asarray(found), np.asarray(expected)
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    if found.dtype.kind not in "fc":
        return bool((found == expected).all()) if found.dtype.names is None else True
    nan = np.isnan(expected)
    a, b = (np.where(nan, x.dtype.type(0), x) for x in (found, expected))
    return bool((np.isnan(found) == nan).all()) and a.tobytes() == b.tobytes()


def close(what: str, found: Any, expected: Any, tolerance: float) -> None:
    """`found` within `tolerance` of `expected`, relative to its largest element (or to 1)."""
    found, expected = np.asarray(found), np.asarray(expected)
    require(found.shape == expected.shape, f"{what}: shape {found.shape}, not {expected.shape}")
    if found.size == 0 or (found == expected).all():
        return
    require(found.dtype.kind in "fc", f"{what}: {found!r}, not {expected!r}")
    bound = tolerance * max(1.0, float(np.max(np.abs(expected), initial=0.0, where=np.isfinite(expected))))
    good = (np.abs(found - expected) <= bound) | (found == expected) | (np.isnan(found) & np.isnan(expected))
    require(good.all(), f"{what}:\n{found!r}\nis not\n{expected!r}\nwithin {bound:.1e}")


def ulps(found: Any, exact: Any, eps: float) -> Any:
    """The error of each element in units of the last place; 0 where both are the same infinity or NaN."""
    found, exact = np.asarray(found, np.float64), np.asarray(exact, np.float64)
    with np.errstate(all="ignore"):
        error = np.abs(found - exact) / np.maximum(eps * np.abs(exact), np.finfo(np.float64).tiny)
    return np.where((found == exact) | (np.isnan(found) & np.isnan(exact)), 0.0, error)


def inner(xs: Sequence[Any], ys: Sequence[Any]) -> float:
    """The inner product of two lists of arrays, in float64."""
    pairs = zip(xs, ys, strict=True)
    return sum([float(np.sum(np.asarray(x, np.float64) * np.asarray(y, np.float64))) for x, y in pairs], 0.0)


def size_of(xs: Sequence[Any], ys: Sequence[Any]) -> float:
    """The inner product of the absolute values: what errors of `inner` are relative to."""
    return inner([np.abs(x) for x in xs], [np.abs(y) for y in ys])


# -- the function


def outputs_of(f: Function) -> Function:
    """`f` with its results as a tuple."""

    def outputs(*args: Any) -> tuple[Any, ...]:
        y = f(*args)
        return tuple(y) if isinstance(y, tuple | list) else (y,)

    return outputs


def is_float(x: Any) -> bool:
    """Whether an array has a derivative."""
    return bool(np.asarray(x).dtype.kind in "fc")


class Point:
    """A function at a point, as a function of its floating-point operands only."""

    def __init__(self, f: Function, args: Sequence[Any]) -> None:
        self.f = outputs_of(f)
        self.args = [np.asarray(a) for a in args]
        self.positions = [i for i, a in enumerate(self.args) if is_float(a)]
        self.random = np.random.default_rng(0)
        self.x = [self.args[i] for i in self.positions]
        with eagerly():
            self.out = [np.asarray(y) for y in self.f(*self.args)]
        self.moving = [i for i, y in enumerate(self.out) if is_float(y)]
        used = [*self.x, *[self.out[i] for i in self.moving]]
        found = [TOLERANCES[a.real.dtype] for a in used]
        self.tolerance = max(found, key=lambda t: t.eps, default=TOLERANCES[np.dtype(float)])

    def like(self, arrays: Sequence[Any]) -> list[Any]:
        """Random arrays of the same shapes and dtypes."""
        draw = lambda shape: self.random.uniform(0.5, 1.5, shape) * self.random.choice([-1, 1], shape)
        return [np.asarray(draw(a.shape)).astype(a.dtype) for a in arrays]

    def of_floats(self, *x: Any) -> tuple[Any, ...]:
        """The floating-point results for other floating-point operands."""
        args: list[Any] = list(self.args)
        for i, value in zip(self.positions, x, strict=True):
            args[i] = value
        y = self.f(*args)
        return tuple(y[i] for i in self.moving)

    def values(self, x: Sequence[Any]) -> list[Any]:
        """`of_floats` through `evaluate` alone."""
        with eagerly():
            return [np.asarray(y) for y in self.of_floats(*x)]


# -- oracles


def richardson(g: Callable[[float], list[Any]], h: float = 2.0**-9, levels: int = 3) -> list[Any]:
    """The derivative of `g` at 0 by central differences, extrapolated."""
    table = []
    for level in range(levels):
        k = h / 2**level
        table.append([(a - b) / (2 * k) for a, b in zip(g(k), g(-k), strict=True)])
    for order in range(1, levels):
        pairs = itertools.pairwise(table)
        table = [[b + (b - a) / (4**order - 1) for a, b in zip(coarse, fine, strict=True)] for coarse, fine in pairs]
    return table[0]


def wide(arrays: Sequence[Any]) -> list[Any]:
    """In double precision."""
    return [np.asarray(a, np.float64) for a in arrays]


def along(x: Sequence[Any], v: Sequence[Any], t: Any) -> list[Any]:
    """x + t v."""
    return [np.asarray(a + t * b) for a, b in zip(x, v, strict=True)]


def first_derivative(p: Point, oracle: Oracle, x: Sequence[Any], v: Sequence[Any]) -> list[Any]:
    """The derivative at `x` along `v`, by the oracle."""
    if oracle == "zero":
        return [np.zeros(y.shape) for y in p.values(x)]
    if oracle == "linear":
        return [a.astype(np.float64) - b for a, b in zip(p.values(along(x, v, 1.0)), p.values(x), strict=True)]
    if oracle == "complex":
        h = 2.0**-330
        return [y.imag / h for y in p.values(along(x, v, 1j * h))]
    return richardson(lambda t: p.values(along(x, v, t)))


def second_derivative(p: Point, oracle: Oracle, v: Sequence[Any], w: Sequence[Any]) -> list[Any]:
    """The second derivative along `v` and `w`, by differences of the first one."""
    x = wide(p.x)
    if oracle in ("zero", "linear"):
        return [np.zeros(p.out[i].shape) for i in p.moving]
    return richardson(lambda t: first_derivative(p, oracle, along(x, w, t), v))


# -- the steps


def check_abstract(p: Point) -> None:
    """Abstract evaluation agrees with evaluation, and nothing was written to."""
    before = [a.copy() for a in p.args]
    program = fg.make_program(p.f)(*p.args)
    with eagerly():
        values = run(program, [np.asarray(a)[()] for a in p.args])
    for aval, value in zip(program.out_avals, values, strict=True):
        require(aval.shape == value.shape, f"abstract: shape {value.shape}, but {aval} was said")
        require(aval.dtype == value.dtype, f"abstract: dtype {value.dtype}, but {aval} was said")
    for value, expected in zip(values, p.out, strict=True):
        require(same_bits(value, expected), f"abstract: {value!r} for scalars, {expected!r} for arrays")
    unchanged(p.args, before, "abstract")


def unchanged(arrays: Sequence[Any], before: Sequence[Any], where: str) -> None:
    """No rule wrote to its arguments."""
    for i, (a, b) in enumerate(zip(arrays, before, strict=True)):
        require(same_bits(a, b), f"{where}: argument {i} was written to")


def of_one(p: Point, i: int) -> Function:
    """The function of floating-point operand `i` alone."""
    return lambda x: p.of_floats(*[x if k == i else a for k, a in enumerate(p.x)])


def check_jvp(p: Point, oracle: Oracle) -> list[Any]:
    """The forward derivative against the oracle; returns it for the next step."""
    v = p.like(p.x)
    x = wide(p.x)
    exact = first_derivative(p, oracle, x, wide(v))
    if oracle == "linear":
        for a, b in zip(first_derivative(p, oracle, x, [2 * t for t in wide(v)]), exact, strict=True):
            close("jvp: the op is not linear", a, 2 * b, p.tolerance.same)
    before = [a.copy() for a in (*p.x, *v)]
    y, dots = fg.jvp(p.of_floats, tuple(p.x), tuple(v))
    unchanged([*p.x, *v], before, "jvp")
    for found, expected, primal, i in zip(dots, exact, y, p.moving, strict=True):
        require(same_bits(primal, p.out[i]), f"jvp: the value is {primal!r}, not {p.out[i]!r}")
        require(found.dtype == p.out[i].dtype, f"jvp: the tangent has dtype {found.dtype}, not {p.out[i].dtype}")
        close("jvp", found, expected, p.tolerance.first)
    if len(p.x) > 1:
        for i in range(len(p.x)):
            alone = [t if k == i else np.zeros_like(t) for k, t in enumerate(wide(v))]
            found = fg.jvp(of_one(p, i), (p.x[i],), (v[i],))[1]
            for a, b in zip(found, first_derivative(p, oracle, x, alone), strict=True):
                close(f"jvp of operand {i} alone", a, b, p.tolerance.first)
    return [v, dots]


def check_vjp(p: Point, v: Sequence[Any], dots: Sequence[Any]) -> None:
    """The reverse derivative is the adjoint of the forward one."""
    w = p.like([p.out[i] for i in p.moving])
    before = [a.copy() for a in (*p.x, *w)]
    _, back = fg.vjp(p.of_floats, *p.x)
    bars = back(tuple(w))
    unchanged([*p.x, *w], before, "vjp")
    for i, (bar, x) in enumerate(zip(bars, p.x, strict=True)):
        require(bar.shape == x.shape and bar.dtype == x.dtype, f"vjp: cotangent {i} is {bar.dtype}{bar.shape}")
    bound = p.tolerance.same * max(1.0, size_of(w, dots), size_of(bars, v))
    adjoint("vjp", inner(w, dots), inner(bars, v), bound)
    if len(p.x) > 1:
        for i in range(len(p.x)):
            (bar,) = fg.vjp(of_one(p, i), p.x[i])[1](tuple(w))
            close(f"vjp of operand {i} alone", bar, bars[i], p.tolerance.same)


def adjoint(what: str, left: float, right: float, bound: float) -> None:
    """⟨w, Jv⟩ = ⟨Jᵀw, v⟩."""
    require(abs(left - right) <= bound, f"{what}: <w, J v> = {left!r}, but <J' w, v> = {right!r}")


def affine_along(p: Point, v: Sequence[Any], u: Sequence[Any]) -> list[Any] | None:
    """What `v` adds to the value, if the function is affine along `v` and `u`, and depends on them; else None."""
    x = wide(p.x)
    f = lambda *ways: [y.astype(np.float64) for y in p.values([sum(ws, a) for a, *ws in zip(x, *ways, strict=True)])]
    zero, once, twice, other, both = f(), f(v), f(v, v), f(u), f(v, u)
    for o, a, aa, b, ab in zip(zero, once, twice, other, both, strict=True):
        size = p.tolerance.same * np.max(np.abs([o, a, aa, b, ab]), initial=1.0)
        if (np.abs(aa - 2 * a + o) > 8 * size).any() or (np.abs(ab - a - b + o) > 8 * size).any():
            return None
    out = [a - o for a, o in zip(once, zero, strict=True)]
    return out if any(d.any() for d in out) else None


def check_transpose(p: Point, linear_in: Sequence[int] | None) -> None:
    """The transpose slot itself: an op may be transposed in operands that its own derivative never transposes."""
    traced = abstract_trace(p.of_floats, tuple(p.x), {}, "a test")
    if not all(e.primitive.has("transpose") for e in traced.program.equations):
        return
    known, everyone = len(traced.constants), tuple(range(len(p.x)))
    allowed = everyone if linear_in is None else tuple(linear_in)
    for moving in dict.fromkeys([allowed, *[(i,) for i in allowed]]):
        v, u = ([np.where(i in moving, t, 0) for i, t in enumerate(wide(p.like(p.x)))] for _ in range(2))
        dots = affine_along(p, v, u)
        if dots is None:
            continue
        flags = (False,) * known + tuple([i in moving for i in everyone])
        back, nonzero = transpose(traced.program, flags, (True,) * len(p.moving))
        w = p.like([p.out[i] for i in p.moving])
        with eagerly():
            found = run(back, [*traced.constants, *[a for i, a in enumerate(p.x) if i not in moving], *w])
        along_v = [v[i] for i, flag in zip(moving, nonzero, strict=True) if flag]
        bound = p.tolerance.first * max(1.0, size_of(w, dots), size_of(found, along_v))
        adjoint(f"transpose in operands {moving}", inner(w, dots), inner(found, along_v), bound)


def check_second(p: Point, oracle: Oracle) -> None:
    """Every mode over every mode."""
    f, x = p.of_floats, tuple(p.x)
    v, w, u = tuple(p.like(p.x)), tuple(p.like(p.x)), tuple(p.like([p.out[i] for i in p.moving]))
    exact = second_derivative(p, oracle, wide(v), wide(w))
    forward = lambda *x: fg.jvp(f, x, v)[1]
    reverse = lambda *x: fg.vjp(f, *x)[1](u)
    found = fg.jvp(forward, x, w)[1]
    for a, b in zip(found, exact, strict=True):
        close("second, forward over forward", a, b, p.tolerance.second)
    expected = inner(u, exact)
    bound = p.tolerance.second * max(1.0, size_of(u, exact))
    adjoint("second, forward over reverse", inner(fg.jvp(reverse, x, w)[1], v), expected, bound)
    adjoint("second, reverse over forward", inner(fg.vjp(forward, *x)[1](u), w), expected, bound)
    adjoint("second, reverse over reverse", inner(fg.vjp(reverse, *x)[1](v), w), expected, bound)


def everything(p: Point, differentiable: bool) -> tuple[Function, list[Any]]:
    """Value, jvp and vjp as one function, and its arguments: those of the op, then tangents, then cotangents."""
    if not differentiable:
        return p.f, list(p.args)
    n, m = len(p.args), len(p.x)

    def g(*args: Any) -> Any:
        q = [*args[:n]]
        x, v, w = [q[i] for i in p.positions], args[n : n + m], args[n + m :]

        def of_floats(*x: Any) -> tuple[Any, ...]:
            given = list(q)
            for i, value in zip(p.positions, x, strict=True):
                given[i] = value
            y = p.f(*given)
            return tuple([y[i] for i in p.moving])

        dots = fg.jvp(of_floats, tuple(x), tuple(v))[1]
        bars = fg.vjp(of_floats, *x)[1](tuple(w))
        return (*p.f(*q), *dots, *bars)

    return g, [*p.args, *p.like(p.x), *p.like([p.out[i] for i in p.moving])]


def other_row(a: Any, r: int) -> Any:
    """An argument for row `r`: near for floats, the same entries in another order for integers."""
    if is_float(a):
        return np.asarray(a + np.asarray(0.01 * r).astype(a.dtype))
    return np.asarray(max(int(a) - r, 0), a.dtype) if a.ndim == 0 else np.roll(a, r).reshape(a.shape)


def check_batch(p: Point, differentiable: bool) -> None:
    """vmap against a loop."""
    g, args = everything(p, differentiable)
    n = len(p.args)
    traced = abstract_trace(g, tuple(args), {}, "a test")

    def row_by_row(row: Sequence[Any]) -> list[Any]:
        with eagerly():
            return run(traced.program, [*traced.constants, *row])

    rows = [[other_row(a, r) if i < n else a * (1 + r) for i, a in enumerate(args)] for r in range(ROWS)]
    for subset in itertools.product((False, True), repeat=n):
        if not any(subset):
            continue
        batched = [subset[i] if i < n else True for i in range(len(args))]
        given = [[row[i] if flag else args[i] for i, flag in enumerate(batched)] for row in rows]
        expected = [np.stack(ys) for ys in zip(*map(row_by_row, given), strict=True)]
        for variant in range(3) if n <= 2 else [sum(subset) + subset.index(True)]:
            places = [(0, (a.ndim + 1) // 2, a.ndim)[(variant + i) % 3] for i, a in enumerate(args)]
            axes = tuple([d if flag else None for d, flag in zip(places, batched, strict=True)])
            columns = zip(args, axes, zip(*rows, strict=True), strict=True)
            stacked = [a if d is None else np.stack(column, d) for a, d, column in columns]
            found = fg.vmap(g, axes)(*stacked)
            for k, (a, b) in enumerate(zip(found, expected, strict=True)):
                require(a.dtype == b.dtype, f"batch: result {k} has dtype {a.dtype}, not {b.dtype}, for rows at {axes}")
                close(f"batch: result {k} for rows at {axes}", a, b, p.tolerance.same)
    for size in (0, 1):
        found = fg.vmap(g)(*[np.stack([a, a, a])[:size] for a in args])
        for k, (a, b) in enumerate(zip(found, row_by_row(args), strict=True)):
            close(f"batch: result {k} for {size} rows", a, np.stack([b, b])[:size], p.tolerance.same)


def is_exact(program: fg.Program) -> bool:
    """Whether a Program consists of ops whose compiled results are equal to the evaluated ones bit for bit."""
    return all(
        e.primitive.traits.exact or (any(subprograms(e)) and all(is_exact(body) for _, body in subprograms(e)))
        for e in program.equations
    )


def check_jit(p: Point, differentiable: bool) -> None:
    """jit changes nothing; or, where the ops do not promise that, nothing beyond rounding."""
    g, args = everything(p, differentiable)
    exact = is_exact(fg.make_program(g)(*args))
    for k, (found, expected) in enumerate(zip(fg.jit(g)(*args), g(*args), strict=True)):
        require(found.dtype == expected.dtype, f"jit: result {k} has dtype {found.dtype}, not {expected.dtype}")
        if exact:
            require(same_bits(found, expected), f"jit: result {k} is {found!r}, not {expected!r}")
        close(f"jit: result {k}", found, expected, p.tolerance.same)


def check_rules(
    f: Function,
    *args: Any,
    oracle: Oracle = "complex",
    orders: int = 2,
    batch: bool = True,
    linear_in: Sequence[int] | None = None,
) -> None:
    """Raise `RuleFailure` unless all rules behind `f` are right at `args`; see the module.

    Parameters
    ----------
    f
        A function of arrays that applies one primitive, or several; its integer operands are not differentiated.
    oracle
        Where the derivative is known from: ``linear`` (jointly, in all floating-point operands), ``complex``,
        ``difference``, or ``zero`` for an op without derivative.
    orders
        Derivatives up to this order are checked.
    batch
        Whether the rows of vmap are checked; False for an op that has no operands.
    linear_in
        Which floating-point operands an op can be transposed in; default: all in which it is found to be affine.
    """
    with step("abstract"):
        p = Point(f, args)
        check_abstract(p)
    differentiable = bool(p.x and p.moving and orders)
    if differentiable:
        with step("jvp"):
            v, dots = check_jvp(p, oracle)
        with step("vjp"):
            check_vjp(p, v, dots)
        with step("transpose"):
            check_transpose(p, linear_in)
    if differentiable and orders > 1:
        with step("second"):
            check_second(p, oracle)
    if batch:
        with step("batch"):
            check_batch(p, differentiable)
    with step("jit"):
        check_jit(p, differentiable)
