"""Random Programs over every primitive: operations drawn by name, on operands and parameters that fit them.

A program is the names that it draws from, a seed and a number of equations; which values its operations meet depends
on these and on the types of the inputs alone, so that a function that is traced and one that runs take the same steps.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad.core.ir import make_aval
from funcgrad.core.primitive import registry
from funcgrad.core.trace import Tracer, bind1
from funcgrad.ops.op import Op, aval_of, constant
from tests.rule_checker import all_primitives

DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64"]
SHAPES = [(), (1,), (3,), (8,), (17,), (0,), (2, 3), (3, 1), (4, 9), (0, 2), (2, 3, 4), (1, 5), (33, 2)]
SPECIAL = [
    0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, 3.0, np.inf, -np.inf, np.nan, 5e-324, -1e-310, 1e-40, 2.0**63, -1e300, 1e-300,
]  # fmt: skip
LARGEST = 1500  # elements of a value
EXTREMES = {"reduce_max", "reduce_min", "cummax", "cummin", "scatter_max", "scatter_min"}
"""Of equal zeros they may take any, so their zeros have no sign."""

ALL = {name: p for name, p in all_primitives().items() if isinstance(p, Op) and name != "solve"}
GROUP_E = sorted([name for name, p in ALL.items() if p.traits.exact])
NATIVE = [name for name in GROUP_E if name != "stable_order"]
"""Exact primitives that have machine code for all dtypes."""


def draw_array(rng: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """An array with many values that are special to floating-point numbers or to an integer dtype."""
    dtype = np.dtype(dtype)
    special = rng.random(shape) < 0.3
    if dtype.kind == "f":
        x = rng.normal(size=shape) * rng.choice([1, 10, 1e-3])
        with np.errstate(all="ignore"):
            return np.asarray(np.where(special, rng.choice(SPECIAL, shape), x).astype(dtype))
    if dtype.kind == "b":
        return np.asarray(rng.random(shape) < 0.5)
    info = np.iinfo(dtype)
    x = rng.integers(-5 if dtype.kind == "i" else 0, 9, shape).astype(dtype)
    return np.asarray(np.where(special, rng.choice(np.array([info.min, info.max, 0, 1], dtype), shape), x))


class Values:
    """The values that a program has made so far, and the choices of its operations."""

    def __init__(self, seed: int, inputs: Sequence[Any]) -> None:
        self.r = np.random.default_rng(seed)
        self.pool = list(inputs)
        self.count = 0

    def bind(self, name: str, *args: Any, **params: Any) -> Any:
        """An equation."""
        self.count += 1
        return bind1(registry[name], *args, **params)

    def integer(self, low: int, high: int) -> int:
        """From `low` to `high` - 1."""
        return int(self.r.integers(low, high))

    def keep(self, x: Any) -> None:
        """Let later operations use a value, and forget an old one now and then."""
        if x.size <= LARGEST and x.ndim < 6:
            self.pool.append(x)

    # -- operands

    def any(self, kinds: str = "biuf", least: int = 0) -> Any:
        """A value with one of these kinds of dtype and at least so many axes, converted and extended if need be."""
        fit = [x for x in self.pool if x.dtype.kind in kinds and x.ndim >= least]
        if fit and self.r.random() < 0.95:
            return fit[self.integer(0, len(fit))]
        x = self.pool[self.integer(0, len(self.pool))]
        if x.dtype.kind not in kinds:
            x = self.to(x, self.r.choice([d for d in DTYPES if np.dtype(d).kind in kinds]))
        if x.ndim < least:
            x = self.bind("reshape", x, shape=(1,) * (least - x.ndim) + x.shape)
        return x

    def to(self, x: Any, dtype: Any) -> Any:
        """`x` in a dtype."""
        dtype = np.dtype(dtype)
        return x if x.dtype == dtype else self.bind("convert", x, dtype=dtype, weak=False)

    def like(self, x: Any) -> Any:
        """Another operand for `x`: a value or a constant of its type."""
        if self.r.random() < 0.15:
            value = draw_array(self.r, (), x.dtype)[()]
            return constant(value, make_aval(x.shape, x.dtype))
        fit = [y for y in self.pool if y.shape == x.shape]
        return self.to(fit[self.integer(0, len(fit))], x.dtype) if fit else x

    def stretched(self, x: Any, shape: tuple[int, ...]) -> Any:
        """The elements of `x`, repeated or left out to fill a shape."""
        if x.size == 0:
            return constant(np.zeros((), x.dtype)[()], make_aval(shape, x.dtype))
        flat = self.bind("reshape", x, shape=(x.size,))
        return self.bind("gather", flat, self.positions(shape, x.size))

    def positions(self, shape: tuple[int, ...], n: int, inside: bool = True) -> Any:
        """int64 places along an axis of length n; not all of them inside, if that is not asked for."""
        if shape and self.r.random() < 0.3:
            x = self.bind("iota", shape=shape, dtype=np.dtype("int64"), axis=self.integer(0, len(shape)))
        else:
            fit = [y for y in self.pool if y.shape == shape]
            x = self.to(fit[self.integer(0, len(fit))], "int64") if fit else None
            if x is None:
                return constant(np.int64(self.integer(0, n)), make_aval(shape, np.dtype("int64")))
        if not inside and self.r.random() < 0.5:
            return x
        return self.bind("remainder", x, constant(np.int64(n), aval_of(x)))

    def numbers(self, x: Any) -> Any:
        """`x` without NaN, whose sign is open."""
        return self.bind("select", self.bind("isnan", x), constant(x.dtype.type(1), aval_of(x)), x)

    def axis(self, x: Any) -> int:
        """One of its axes."""
        return self.integer(0, x.ndim)

    def axes(self, x: Any) -> tuple[int, ...]:
        """Some of its axes, at least one."""
        chosen = self.r.choice(x.ndim, self.integer(1, x.ndim + 1), replace=False)
        return tuple(sorted([int(a) for a in chosen]))


# -- operations that are not elementwise


def _broadcast(v: Values) -> Any:
    x = v.any()
    shape = list(x.shape)
    axes = list(range(x.ndim))
    for _ in range(v.integer(1, 3)):
        at = v.integer(0, len(shape) + 1)
        shape.insert(at, v.integer(0 if v.r.random() < 0.1 else 1, 4))
        axes = [a + (a >= at) for a in axes]
    return v.bind("broadcast", x, shape=tuple(shape), axes=tuple(axes))


def _reshape(v: Values) -> Any:
    x = v.any()
    shapes = [(x.size,), (1, *x.shape), (*x.shape, 1), x.shape[::-1]]
    shapes += [(n, x.size // n) for n in (2, 3, 5, 7) if x.size % n == 0]
    return v.bind("reshape", x, shape=shapes[v.integer(0, len(shapes))])


def _transpose(v: Values) -> Any:
    x = v.any(least=1)
    return v.bind("transpose", x, axes=tuple([int(a) for a in v.r.permutation(x.ndim)]))


def _convert(v: Values) -> Any:
    return v.bind("convert", v.any(), dtype=np.dtype(v.r.choice(DTYPES)), weak=False)


def _reverse(v: Values) -> Any:
    x = v.any(least=1)
    return v.bind("reverse", x, axes=v.axes(x))


def _slice(v: Values) -> Any:
    x = v.any(least=1)
    start = tuple([v.integer(0, min(n, 2) + 1) for n in x.shape])
    stop = tuple([v.integer(b, n + 1) if v.r.random() < 0.3 else n for b, n in zip(start, x.shape, strict=True)])
    return v.bind("slice", x, start=start, stop=stop, step=tuple([v.integer(1, 4) for _ in start]))


def _pad(v: Values) -> Any:
    x = v.any(least=1)
    fill = v.stretched(v.like(x), ()) if v.r.random() < 0.5 else draw_array(v.r, (), x.dtype)[()]
    if not isinstance(fill, Tracer):
        fill = constant(fill, make_aval((), x.dtype))
    before, after, between = (tuple([v.integer(0, 3) for _ in x.shape]) for _ in range(3))
    return v.bind("pad", x, fill, before=before, after=after, between=between)


def _concatenate(v: Values) -> Any:
    x = v.any(least=1)
    return v.bind("concatenate", *[x, *[v.like(x) for _ in range(v.integer(1, 3))]], axis=v.axis(x))


def _banded(v: Values) -> Any:
    """A matrix with one value on its diagonal and zeros elsewhere."""
    x = v.any(least=1)
    n = min(x.size, 30)
    line = v.bind("slice", v.bind("reshape", x, shape=(x.size,)), start=(0,), stop=(n,), step=(1,))
    boxes = (((0, 0), (n, n), x.dtype.type(0)),) if n else ()
    lines, places = ([line], ((0, n + 1),)) if n else ([], ())
    return v.bind("banded", *lines, shape=(n, n), dtype=x.dtype, boxes=boxes, places=places)


def _iota(v: Values) -> Any:
    shape = v.any(least=1).shape
    return v.bind("iota", shape=shape, dtype=np.dtype(v.r.choice(DTYPES[1:])), axis=v.integer(0, len(shape)))


def _check_fits(v: Values) -> Any:
    x = v.to(v.any(), "int64")
    x = v.bind("remainder", x, constant(np.int64(100), aval_of(x)))
    return v.bind("check_fits", x, low=-128, high=127, target="i8")


def _check_index(v: Values) -> Any:
    n = v.integer(1, 9)
    x = v.to(v.any(), "int64")
    x = v.bind("remainder", x, constant(np.int64(2 * n), aval_of(x)))
    x = v.bind("sub", x, constant(np.int64(n), aval_of(x)))  # from -n to n - 1
    return v.bind("check_index", x, axis=0, length=n, window=1, of="x")


def _indexed(v: Values) -> tuple[Any, list[Any], tuple[int, ...]]:
    """An operand, index arrays for its first axes, and the shape of what lies there."""
    x = v.any(least=1)
    k = v.integer(1, min(x.ndim, 2) + 1)
    shape = ((), (3,), (2, 2), (7,), (0,), v.any().shape)[v.integer(0, 6)]
    if 0 in x.shape[:k]:
        shape = (0,)
    if np.prod(shape, dtype=int) * np.prod(x.shape[k:], dtype=int) > LARGEST:
        shape = (3,)
    indices = [v.positions(shape, max(n, 1), inside=False) for n in x.shape[:k]]
    return x, indices, (*shape, *x.shape[k:])


def _gather(v: Values) -> Any:
    x, indices, _ = _indexed(v)
    return v.bind("gather", x, *indices)


def _scatter(name: str) -> Callable[[Values], Any]:
    def apply(v: Values) -> Any:
        x, indices, shape = _indexed(v)
        updates = v.stretched(v.like(x), shape)
        return v.bind(name, x, updates, *indices, mode="clip" if v.r.random() < 0.5 else "drop")

    return apply


def _stable_order(v: Values) -> Any:
    return v.bind("stable_order", v.any(least=1))


def _over_axes(name: str, kinds: str = "biuf", nonempty: bool = False) -> Callable[[Values], Any]:
    def apply(v: Values) -> Any:
        x = v.any(kinds, least=1)
        axes = v.axes(x)
        if nonempty and any([x.shape[a] == 0 for a in axes]):
            x = v.stretched(v.any(x.dtype.kind), (2, 3))
            axes = (0,)
        return v.bind(name, x, axes=axes)

    return apply


def _position(name: str) -> Callable[[Values], Any]:
    def apply(v: Values) -> Any:
        x = v.any(least=1)
        axis = v.axis(x)
        if x.shape[axis] == 0:
            x, axis = v.bind("reshape", constant(x.dtype.type(1), make_aval((1,), x.dtype)), shape=(1, 1)), 0
        return v.bind(name, x, axis=axis)

    return apply


def _running(name: str, kinds: str = "biuf") -> Callable[[Values], Any]:
    def apply(v: Values) -> Any:
        x = v.any(kinds, least=1)
        return v.bind(name, x, axis=v.axis(x), reverse=bool(v.r.random() < 0.5))

    return apply


def _linear_recurrence(v: Values) -> Any:
    a = v.any("f", least=1)
    keep = v.bind("ne", v.like(a), constant(a.dtype.type(0), aval_of(a)))
    return v.bind("linear_recurrence", a, v.like(a), keep, axis=v.axis(a), reverse=bool(v.r.random() < 0.5))


def _window(v: Values) -> tuple[Any, list[Any], tuple[int, ...]]:
    x = v.any(least=1)
    sizes = tuple([v.integer(0 if v.r.random() < 0.1 else min(n, 1), n + 1) for n in x.shape])
    return x, [v.positions((), max(n, 1), inside=False) for n in x.shape], sizes


def _dynamic_slice(v: Values) -> Any:
    x, starts, sizes = _window(v)
    return v.bind("dynamic_slice", x, *starts, sizes=sizes)


def _dynamic_update_slice(v: Values) -> Any:
    x, starts, sizes = _window(v)
    return v.bind("dynamic_update_slice", x, v.stretched(v.like(x), sizes), *starts)


def _dot(v: Values) -> Any:
    x, y = v.any("iuf", least=1), v.any("iuf", least=1)
    y = v.to(y, x.dtype)
    if v.r.random() < 0.2:
        x, y = v.stretched(x, (3,)), v.stretched(y, (4,))
        return v.bind("dot", x, y, contract=((), ()), batch=((), ()))
    n = x.shape[-1]
    y = v.stretched(y, (n, v.integer(1, 6)))
    return v.bind("dot", x, y, contract=((x.ndim - 1,), (0,)), batch=((), ()))


MOVES: dict[str, Callable[[Values], Any]] = {
    "broadcast": _broadcast, "reshape": _reshape, "transpose": _transpose, "convert": _convert, "reverse": _reverse,
    "slice": _slice, "banded": _banded,
    "pad": _pad, "concatenate": _concatenate, "iota": _iota, "check_fits": _check_fits,
    "check_index": _check_index, "gather": _gather, "stable_order": _stable_order, "dot": _dot,
    "dynamic_slice": _dynamic_slice, "dynamic_update_slice": _dynamic_update_slice,
    "linear_recurrence": _linear_recurrence,
    **{name: _scatter(name) for name in ("scatter", "scatter_add", "scatter_mul", "scatter_min", "scatter_max")},
    **{name: _over_axes(name, nonempty=True) for name in ("reduce_max", "reduce_min")},
    **{name: _over_axes(name, "b") for name in ("reduce_any", "reduce_all")},
    **{name: _over_axes(name, "iuf") for name in ("reduce_sum", "reduce_prod")},
    **{name: _position(name) for name in ("argmax", "argmin")},
    **{name: _running(name) for name in ("cummax", "cummin")},
    **{name: _running(name, "iuf") for name in ("cumsum", "cumprod")},
}  # fmt: skip


def _elementwise(v: Values, name: str) -> Any:
    op: Any = registry[name]
    assert op.traits.kind == "elementwise", f"say in MOVES on what {name} can be applied"
    x = v.any(op.dtypes.replace("c", ""))
    if name == "select":
        return v.bind(name, v.bind("ne", x, v.like(x)), x, v.like(x))
    if name == "signbit":
        x = v.numbers(x)
    required = [p for p in inspect.signature(op.function).parameters.values() if p.default is p.empty]
    others = [v.like(x) for _ in required[1:]]
    if name == "copysign":
        others = [v.numbers(others[0])]
    return v.bind(name, x, *others)


def apply(v: Values, name: str) -> None:
    """One operation; what it makes is a value of the program."""
    found = MOVES[name](v) if name in MOVES else _elementwise(v, name)
    if name in EXTREMES and found.dtype.kind == "f":
        found = v.bind("add", found, constant(found.dtype.type(0), aval_of(found)))  # a zero is now 0.0
    v.keep(found)


def random_function(names: Sequence[str], seed: int, equations: int, results: int | None = None) -> Callable[..., Any]:
    """A function that does these operations in random order, over and over until there are so many equations.

    Parameters
    ----------
    results
        How many values it returns, the last ones; None: all.
    """

    def f(*inputs: Any) -> Any:
        v = Values(seed, inputs)
        waiting: list[str] = []
        while v.count < equations:
            waiting = waiting or v.r.permutation(names).tolist()
            apply(v, waiting.pop())
        made = v.pool[len(inputs) :]
        return tuple(made if results is None else made[-results:])

    return f
