"""Arrays from nothing, from numbers, and from other arrays."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

import numpy as np

from funcgrad.base.dtypes import FLOAT, INT, Dtype, default_float, promote
from funcgrad.base.errors import ArgumentError, ConcretizationTypeError, ParameterError, UnsupportedError, printed
from funcgrad.core.array import Array
from funcgrad.core.ir import make_aval
from funcgrad.core.trace import Trace, Tracer, current, describe
from funcgrad.numpy import shaping
from funcgrad.numpy.elementwise import ufuncs
from funcgrad.numpy.operands import (
    array as as_operand,
    as_dtype,
    broadcast_operands,
    broadcast_shape,
    broadcast_to,
    given_dtype,
    given_shape,
    has_tracer,
    is_weak,
    known_value,
    normalize_axis,
    operand,
    public,
    shape_of,
)
from funcgrad.numpy.parameters import LARGEST, flag, integer, number, one_of, sized
from funcgrad.ops import movement
from funcgrad.ops.arithmetic import add, mul
from funcgrad.ops.broadcasting import broadcast, reshape
from funcgrad.ops.comparison import eq
from funcgrad.ops.movement import convert, iota
from funcgrad.ops.op import constant


def tracing() -> bool:
    """Whether operations without traced operands are recorded too."""
    return type(current()) is Trace


def _in_body() -> bool:
    """Whether this is the body of a jit or a loop."""
    return tracing() and not current().shows


def _recorded(x: Any) -> Any:
    """An array; in a body it becomes a constant of the Program, with all that traced arrays have."""
    return Tracer(current(), current().atom(x)) if _in_body() and type(x) is not Tracer else x


# -- from other arrays


@public(np.array)
def array(
    object: Any, dtype: Any = None, *, copy: bool | None = True, order: str = "K", subok: bool = False, ndmin: int = 0
) -> Any:
    """An array from an array, a number, or nested lists of both, tracers among them; always a copy.

    Parameters
    ----------
    dtype
        Default: NumPy's common dtype of the elements.
    ndmin
        At least this many axes; new ones come first.
    """
    shaping.require_order("array", order)
    x = as_operand(object, "array")
    if dtype is not None:
        x = convert(x, given_dtype("array", dtype))
    x = _recorded(x)
    missing = integer("array", "ndmin", ndmin) - len(x.shape)
    if ndmin > 64:
        raise ParameterError(f"array: {ndmin} axes are too many")
    return reshape(x, (1,) * missing + x.shape) if missing > 0 else x


def asarray(a: Any, dtype: Any = None, order: str | None = None, *, copy: bool | None = None) -> Any:
    """`a` as an array; an array of that dtype is not copied: the result shares its memory.

    Parameters
    ----------
    dtype
        Default: NumPy's common dtype of the elements.
    copy
        True always copies, False never does: it raises where a copy is needed.
    """
    shaping.require_order("asarray", order)
    wanted = None if dtype is None else given_dtype("asarray", dtype)
    shared = isinstance(a, np.ndarray) and operand(a).dtype == a.dtype and wanted in (None, a.dtype)
    if shared and not copy and not _in_body():
        return a.view(Array)
    if copy is False and type(a) is not Tracer:
        raise ParameterError("asarray: copy=False, but a copy is needed")
    return array(a, dtype)


def asanyarray(a: Any, dtype: Any = None, order: str | None = None, *, copy: bool | None = None) -> Any:
    """`asarray`."""
    return asarray(a, dtype, order, copy=copy)


def ascontiguousarray(a: Any, dtype: Any = None) -> Any:
    """`asarray`, with at least one axis; results are always in C order."""
    return shaping.atleast_1d(asarray(a, dtype))


@public(np.copy)
def copy(a: Any, order: str = "K", subok: bool = False) -> Any:
    """A copy of `a`."""
    return _recorded(as_operand(a, "copy"))


@public(getattr(np, "astype", None))
def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Any:
    """`x` as another dtype.

    Float to integer truncates toward zero and saturates at the ends of the range; NaN gives 0.
    Anything to bool is ``x != 0``. Complex to real keeps the real part.

    The derivative passes between inexact dtypes and is zero otherwise.
    """
    return _recorded(convert(as_operand(x, "astype"), given_dtype("astype", dtype)))


# -- filled with one number


def _filled(name: str, value: Any, shape: Any, dtype: Dtype) -> Any:
    return constant(dtype.type(value), make_aval(static_shape(name, shape), dtype))


def static_shape(name: str, shape: Any) -> tuple[int, ...]:
    """A shape argument, none of it negative."""
    out = given_shape(name, shape)
    if min(out, default=0) < 0:
        raise ParameterError(f"{name}: negative lengths are not allowed: {out}")
    return sized(name, out)


def length(name: str, what: str, value: Any) -> int:
    """A parameter that is the length of an axis; negative ones give none, as in NumPy."""
    return max(integer(name, what, value), 0)


@public()
def zeros(shape: Any, dtype: Any = float, order: str = "C") -> Any:
    """An array of zeros."""
    shaping.require_order("zeros", order)
    return _filled("zeros", 0, shape, given_dtype("zeros", float if dtype is None else dtype))


@public()
def ones(shape: Any, dtype: Any = float, order: str = "C") -> Any:
    """An array of ones."""
    shaping.require_order("ones", order)
    return _filled("ones", 1, shape, given_dtype("ones", float if dtype is None else dtype))


@public()
def empty(shape: Any, dtype: Any = float, order: str = "C") -> Any:
    """An array of zeros: contents are never left to chance."""
    shaping.require_order("empty", order)
    return _filled("empty", 0, shape, given_dtype("empty", float if dtype is None else dtype))


@public()
def full(shape: Any, fill_value: Any, dtype: Any = None, order: str = "C") -> Any:
    """An array filled with `fill_value`, which may be traced, and is broadcast to `shape`."""
    shaping.require_order("full", order)
    x = operand(fill_value, "full")
    if dtype is not None:
        x = as_dtype(x, given_dtype("full", dtype))
    return shaping.broadcast_to(as_operand(x, "full"), static_shape("full", shape))


def _like(name: str, a: Any, value: Any, dtype: Any, order: str, shape: Any) -> Any:
    shaping.require_order(name, order)
    x = as_operand(a, name)
    kind = x.dtype if dtype is None else given_dtype(name, dtype)
    wanted = x.shape if shape is None else static_shape(name, shape)
    v = as_dtype(operand(value, name), kind)
    return shaping.broadcast_to(v, wanted)


@public(np.zeros_like)
def zeros_like(a: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None) -> Any:
    """Zeros with the shape and dtype of `a`."""
    return _like("zeros_like", a, 0, dtype, order, shape)


@public(np.ones_like)
def ones_like(a: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None) -> Any:
    """Ones with the shape and dtype of `a`."""
    return _like("ones_like", a, 1, dtype, order, shape)


@public(np.empty_like)
def empty_like(a: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None) -> Any:
    """Zeros with the shape and dtype of `a`: contents are never left to chance."""
    return _like("empty_like", a, 0, dtype, order, shape)


@public(np.full_like)
def full_like(
    a: Any, fill_value: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None
) -> Any:
    """`fill_value`, which may be traced, with the shape and dtype of `a`."""
    return _like("full_like", a, fill_value, dtype, order, shape)


# -- ranges


def _static(name: str, *values: Any) -> None:
    for v in values:
        if type(v) is Tracer:
            raise ConcretizationTypeError(
                f"{name}: {describe(v)} is traced, and the length of the result would depend on it",
                hint="start + step * arange(n) has a static length" if name == "arange" else None,
            )


@public()
def arange(start: Any, /, stop: Any = None, step: Any = 1, dtype: Any = None) -> Any:
    """start, start + step, ... below stop; ``arange(n)`` counts from 0. The arguments are static."""
    _static("arange", start, stop, step)
    start, stop = (0, start) if stop is None else (start, stop)
    step = 1 if step is None else step
    start, stop, step = [number("arange", "a limit", v) for v in (start, stop, step)]
    if step == 0:
        raise ParameterError("arange: step must not be 0")
    count = (float(stop) - float(start)) / float(step)
    if not count < LARGEST:  # or NaN
        raise ParameterError(f"arange: {start}, {stop}, {step} give no length")
    if dtype is not None:
        kind = given_dtype("arange", dtype)
    else:  # NumPy's choice for numbers of these types
        kind = np.arange(start * 0, stop * 0, step * 0 + 1).dtype
    if not tracing() or kind.kind == "b":
        return np.arange(start, stop, step, kind)
    n = max(ceil((stop - start) / step), 0)
    # as NumPy: element i is start + i * delta with delta = (start + step) - start, in the dtype of the result
    first = kind.type(start)
    with np.errstate(all="ignore"):
        delta = kind.type(start + step) - first
    out = iota((n,), kind, 0)
    out = out if delta == 1 else mul(out, constant(delta, make_aval((n,), kind)))
    return out if first == 0 else add(out, constant(first, make_aval((n,), kind)))


@public(np.linspace)
def linspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, retstep: bool = False, dtype: Any = None, axis: int = 0
) -> Any:
    """`num` numbers from `start` to `stop` at equal distances; both may be traced arrays.

    Parameters
    ----------
    endpoint
        Whether `stop` is the last number.
    retstep
        Return the distance too.
    axis
        Where the new axis is, for arrays.
    """
    n = _number("linspace", num)
    endpoint, retstep = flag("linspace", "endpoint", endpoint), flag("linspace", "retstep", retstep)
    x, y = operand(start, "linspace"), operand(stop, "linspace")
    compute = promote(*[v.dtype if not is_weak(v) else float for v in (x, y)], float)
    compute = default_float(compute)
    kind = compute if dtype is None else given_dtype("linspace", dtype)
    x, y = broadcast_operands("linspace", [as_dtype(v, compute) for v in (x, y)])
    axis = normalize_axis("linspace", axis, len(broadcast_shape("linspace", (x, y))) + 1)
    if not has_tracer((x, y)) and not tracing():
        with np.errstate(all="ignore"):
            out, step = np.linspace(x, y, n, endpoint, True, kind, axis)
        return (out, compute.type(step) if isinstance(step, float) else step) if retstep else out
    shape = sized("linspace", (n, *shape_of(x)))[1:]
    pieces = n - 1 if endpoint else n
    delta = ufuncs.subtract(y, x)
    if pieces > 0:
        step = ufuncs.divide(delta, compute.type(pieces))
        count = broadcast(iota((n,), compute, 0), (n, *shape), (0,))
        out = ufuncs.add(ufuncs.multiply(count, step), x)
    else:
        step = ufuncs.multiply(delta, compute.type(np.nan))
        out = broadcast_to(ufuncs.add(ufuncs.multiply(delta, compute.type(0)), x), (n, *shape))
    if endpoint and n > 1:
        last = constant(n - 1, make_aval((n, *shape), INT))
        at_end = eq(broadcast(iota((n,), INT, 0), (n, *shape), (0,)), last)
        out = movement.select(at_end, broadcast_to(y, (n, *shape)), out)
    if kind.kind in "iu":
        out = ufuncs.floor(out)
    out = shaping.moveaxis(convert(out, kind), 0, axis) if axis != 0 else convert(out, kind)
    return (out, step) if retstep else out


def _number(name: str, num: Any) -> int:
    n = integer(name, "num", num)
    if n < 0:
        raise ParameterError(f"{name}: num must not be negative, got {n}")
    sized(name, (n,))
    return n


@public(np.logspace)
def logspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, base: Any = 10.0, dtype: Any = None, axis: int = 0
) -> Any:
    """`num` numbers from base**start to base**stop at equal ratios; all three broadcast."""
    x, y, b = [operand(v, "logspace") for v in (start, stop, base)]
    if shape_of(b):
        rank = len(broadcast_shape("logspace", (x, y, b)))
        x, y, b = [_padded(v, rank) for v in (x, y, b)]
        b = shaping.expand_dims(b, normalize_axis("logspace", axis, rank + 1))
    out = ufuncs.power(b, linspace(x, y, num, endpoint, axis=axis))
    return out if dtype is None else convert(out, given_dtype("logspace", dtype))


def _padded(x: Any, rank: int) -> Any:
    """`x` with axes of length 1 in front, up to `rank`."""
    x = as_operand(x)
    return reshape(x, (1,) * (rank - len(x.shape)) + x.shape)


@public(np.geomspace)
def geomspace(start: Any, stop: Any, num: int = 50, endpoint: bool = True, dtype: Any = None, axis: int = 0) -> Any:
    """`num` numbers from `start` to `stop` at equal ratios; both positive, or both negative.

    Raises
    ------
    ParameterError
        One of them is 0. Where values are not known, as in jit, numbers are NaN or inf instead.
    """
    n = _number("geomspace", num)
    endpoint = flag("geomspace", "endpoint", endpoint)
    x, y = as_operand(start, "geomspace"), as_operand(stop, "geomspace")
    for v in map(known_value, (x, y)):
        if v is not None and (v == 0).any():
            raise ParameterError("geomspace: a geometric sequence cannot contain 0")
    kind = promote(x.dtype, y.dtype, FLOAT) if dtype is None else given_dtype("geomspace", dtype)
    axis = normalize_axis("geomspace", axis, len(broadcast_shape("geomspace", (x, y))) + 1)
    if not has_tracer((x, y)) and not tracing():
        with np.errstate(all="ignore"):
            return np.geomspace(x, y, n, endpoint, kind, axis)
    compute = default_float(promote(x.dtype, y.dtype, kind))
    if compute.kind == "c":
        raise UnsupportedError(f"geomspace: not yet defined for {describe(x)} and {describe(y)}")
    x, y = broadcast_operands("geomspace", [convert(x, compute), convert(y, compute)])
    sign = ufuncs.sign(x)  # of both, as in NumPy: the result is NaN where they differ
    logs = linspace(ufuncs.log10(ufuncs.multiply(x, sign)), ufuncs.log10(ufuncs.multiply(y, sign)), n, endpoint)
    out = convert(ufuncs.multiply(ufuncs.power(10.0, logs), sign), kind)
    return shaping.moveaxis(out, 0, axis) if axis != 0 else out


# -- matrices and grids


@public()
def eye(N: int, M: int | None = None, k: int = 0, dtype: Any = float, order: str = "C") -> Any:
    """A matrix of shape (N, M) with ones where column - row == k."""
    shaping.require_order("eye", order)
    rows = length("eye", "N", N)
    columns = rows if M is None else length("eye", "M", M)
    kind = given_dtype("eye", float if dtype is None else dtype)
    sized("eye", (rows, columns))
    k = max(min(integer("eye", "k", k), columns), -rows)
    if not tracing():
        return np.eye(rows, columns, k, kind)
    shape = (rows, columns)
    return convert(eq(iota(shape, INT, 1), add(iota(shape, INT, 0), k)), kind)


@public()
def identity(n: int, dtype: Any = None) -> Any:
    """The identity matrix of shape (n, n)."""
    return eye(n, dtype=float if dtype is None else dtype)


@public()
def tri(N: int, M: int | None = None, k: int = 0, dtype: Any = float) -> Any:
    """A matrix of shape (N, M) with ones where column - row <= k."""
    rows = length("tri", "N", N)
    columns = rows if M is None else length("tri", "M", M)
    kind = given_dtype("tri", float if dtype is None else dtype)
    return convert(triangle(sized("tri", (rows, columns)), integer("tri", "k", k)), kind)


def triangle(shape: tuple[int, ...], k: int) -> Any:
    """Where column - row <= k, for the last two axes."""
    k = max(min(k, shape[-1]), -shape[-2] - 1)
    rows = iota(shape, INT, len(shape) - 2)
    return ufuncs.less_equal(iota(shape, INT, len(shape) - 1), rows if k == 0 else add(rows, k))


@public(np.meshgrid)
def meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> tuple[Any, ...]:
    """Coordinate arrays: each argument along its own axis, repeated along those of the others.

    Parameters
    ----------
    sparse
        Do not repeat: lengths along the other axes are 1.
    indexing
        "ij": argument i lies along axis i. "xy": the first two change places.
    """
    one_of("meshgrid", "indexing", indexing, ("xy", "ij"))
    sparse = flag("meshgrid", "sparse", sparse)
    xs = [as_operand(x, "meshgrid") for x in xi]
    rank = len(xs)
    places = list(range(rank))
    if indexing == "xy" and rank > 1:
        places[:2] = [1, 0]
    sizes = [int(np.prod(x.shape)) for x in xs]
    shape = [0] * rank
    for at, n in zip(places, sizes, strict=True):
        shape[at] = n
    out = []
    for x, at, n in zip(xs, places, sizes, strict=True):
        column = reshape(x, tuple([n if i == at else 1 for i in range(rank)]))
        out.append(column if sparse else broadcast_to(column, tuple(shape)))
    return tuple(out)


@public()
def indices(dimensions: Any, dtype: Any = int, sparse: bool = False) -> Any:
    """The indices of all elements of an array of that shape: shape (rank, *dimensions), or a tuple if `sparse`."""
    shape = static_shape("indices", dimensions)
    kind = given_dtype("indices", dtype)
    sparse = flag("indices", "sparse", sparse)
    rank = len(shape)
    grids = []
    for i in range(rank):
        own = tuple([n if j == i else 1 for j, n in enumerate(shape)]) if sparse else shape
        grids.append(iota(own, kind, i))
    if sparse:
        return tuple(grids)
    if not grids:
        return constant(0, make_aval((0,), kind))
    return movement.concatenate([reshape(g, (1, *shape)) for g in grids], 0)


@public()
def fromfunction(function: Callable[..., Any], shape: Any, *, dtype: Any = float, **kwargs: Any) -> Any:
    """``function(i, j, ...)`` of the index arrays of an array of that shape."""
    if not callable(function):
        raise ArgumentError(f"fromfunction: a function is needed, got {printed(function)}")
    lengths = static_shape("fromfunction", shape)
    kind = given_dtype("fromfunction", dtype)
    return function(*[iota(lengths, kind, i) for i in range(len(lengths))], **kwargs)
