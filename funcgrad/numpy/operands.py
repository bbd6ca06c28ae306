"""What the front end does to operands before a primitive is bound, and to results before the user gets them.

`operand` accepts what NumPy accepts; `promoted` applies NumPy's dtype rules (Python scalars are weak) and
broadcasting, written out as `convert` and `broadcast` equations; `public` marks a function of the public face:
on plain arrays it computes at once and returns fresh Arrays, on tracers it records, and NumPy's function of the
same meaning dispatches to it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np

from funcgrad.base.dtypes import BOOL, INT, Dtype, Weak, is_supported, promote, scalar_dtype, short, weak_of
from funcgrad.base.errors import (
    ArgumentError,
    AxisError,
    ConcretizationTypeError,
    DtypeError,
    FuncgradError,
    IntegerOverflowError,
    ParameterError,
    ShapeError,
    printed,
)
from funcgrad.base.shelter import sheltered
from funcgrad.base.source import hide_internal_frames
from funcgrad.core.array import publish
from funcgrad.core.device_array import DeviceArray
from funcgrad.core.ir import Literal, Shape, make_aval
from funcgrad.core.trace import EAGER, Trace, Tracer, current, describe, eagerly, visible_value
from funcgrad.ops import broadcasting
from funcgrad.ops.checks import check_fits
from funcgrad.ops.movement import convert

F = TypeVar("F", bound=Callable[..., Any])
DtypeKey = Dtype | Weak

numpy_table: dict[Any, Callable[..., Any]] = {}
"""NumPy function (or the name of a SciPy ufunc) → ours: the one table behind plain `numpy` calls on tracers."""

MAX_AXES = 64
"""More axes than this NumPy's arrays do not have."""
_on_device: list[Callable[..., Any]] = []  # filled by api: (function, args, kwargs) -> its result, on the device
_SCALARS = (float, int, complex)
_FLAT = {float, int, complex, bool, str, type(None), slice, np.ndarray}  # types that hold no tracer


# -- what comes in


def operand(x: Any, name: str = "array") -> Any:
    """`x` as a Tracer, a plain ndarray of native dtype, a NumPy scalar, or a weak Python scalar.

    An array of a device is a Tracer in what is traced, and itself elsewhere.
    """
    kind = type(x)
    if kind is Tracer or kind is float or kind is int or kind is complex:
        return x
    if kind is bool:
        return np.bool_(x)
    if isinstance(x, np.ndarray):
        if isinstance(x, np.ma.MaskedArray):
            raise DtypeError(f"{name}: a masked array was given, whose mask would be lost", hint="x.filled(value)")
        if isinstance(x, np.matrix):
            raise DtypeError(f"{name}: a np.matrix was given, whose * means @", hint="np.asarray(x)")
        if kind is not np.ndarray:  # subclasses may say what they like of their shape and dtype
            x = np.ndarray.view(x, np.ndarray)
        dtype = x.dtype
        if not is_supported(dtype):
            raise _unsupported(name, dtype)
        if not dtype.isnative:
            x = x.astype(dtype.newbyteorder("="))
        elif dtype.metadata is not None:
            x = x.astype(np.dtype(dtype.str))
        return x
    if isinstance(x, np.generic):
        if not is_supported(x.dtype):
            raise _unsupported(name, x.dtype)
        return x
    if isinstance(x, list | tuple):
        return _sequence(x, name)
    if isinstance(x, int):  # subclasses such as enum members
        return int(x)
    if isinstance(x, float):
        return float(x)
    if kind is DeviceArray:
        trace = current()
        return trace.captured_array(x) if type(trace) is Trace else x
    if hasattr(x, "__array__") or hasattr(x, "__array_interface__"):
        return operand(_copied(x, name), name)
    if on_gpu(x):
        raise _elsewhere(x, name)
    raise ArgumentError(
        f"{name}: expected an array or a number, got a {kind.__name__}: {printed(x)}"
        if x is not None
        else f"{name}: expected an array or a number, got None",
    )


def _copied(x: Any, name: str) -> Any:
    """An array of another library as one of NumPy's."""
    try:
        return np.asarray(x).copy()
    except Exception as error:
        if not on_gpu(x):
            raise
        raise _elsewhere(x, name) from error


KDLCUDA = 2  # DLPack's name of a GPU's memory


def on_gpu(x: Any) -> bool:
    """Whether an array of another library says that it is in the memory of a GPU."""
    with suppress(Exception):  # one that is spread over devices has no place
        if hasattr(type(x), "__dlpack_device__") and x.__dlpack_device__()[0] == KDLCUDA:
            return True
    return hasattr(type(x), "__cuda_array_interface__") and hasattr(x, "__cuda_array_interface__")


def _elsewhere(x: Any, name: str) -> ArgumentError:
    kind = f"{type(x).__module__}.{type(x).__qualname__}"
    return ArgumentError(
        f"{name}: a {kind} in the memory of a GPU, which is no array of NumPy or funcgrad",
        hint="jit(f, device='cuda')(x) takes it, fg.device_put(x, 'cuda') too; fg.device_get(x) is a copy for the CPU",
    )


def _unsupported(name: str, dtype: Dtype) -> DtypeError:
    return DtypeError(f"{name}: funcgrad computes with bool, integers and floats, not with dtype {dtype}")


def _sequence(x: Sequence[Any], name: str) -> Any:
    if has_tracer(x):
        return numpy_table[np.stack](x)
    try:
        out = np.asarray(x)
    except ValueError:
        raise ShapeError(f"{name}: nested lists of different lengths are no array") from None
    return operand(out, name)


def has_tracer(x: Any) -> bool:
    """Whether a tracer is in `x`: itself, or inside lists, tuples and dicts."""
    if type(x) is Tracer:
        return True
    if not isinstance(x, list | tuple | dict):
        return False
    waiting, seen = [x], {id(x)}
    while waiting:
        x = waiting.pop()
        items = list(x.values()) if isinstance(x, dict) else x
        kinds = set(map(type, items))  # long lists of numbers are common
        if Tracer in kinds:
            return True
        if kinds - _FLAT:
            inner = [i for i in items if isinstance(i, list | tuple | dict) and id(i) not in seen]
            seen.update(map(id, inner))  # a list may contain itself
            waiting += inner
    return False


def has_device_array(args: Iterable[Any], kwargs: dict[str, Any]) -> bool:
    """Whether an array of a device is among arguments, or in lists and tuples of them."""
    waiting: list[Any] = [[*args, *kwargs.values()]]
    seen: set[int] = set()
    while waiting:
        for x in waiting.pop():
            kind = type(x)
            if kind is DeviceArray:
                return True
            if (kind is tuple or kind is list) and id(x) not in seen:  # a list may contain itself
                seen.add(id(x))
                waiting.append(x)
    return False


def array(x: Any, name: str = "array") -> Any:
    """`operand`, with Python scalars made strong: int64, float64, complex128."""
    x = operand(x, name)
    if type(x) in _SCALARS:
        return typed_scalar(x, scalar_dtype(type(x)))
    return strong(x)


def known_value(x: Any) -> Any:
    """The value of an operand as a plain array, or None while it is traced and has none."""
    if type(x) is not Tracer:
        return np.asarray(x)
    value = visible_value(x)
    return None if value is None else np.asarray(value)


def strong(x: Any) -> Any:
    """`x`, no longer weak."""
    return convert(x, x.aval.dtype) if type(x) is Tracer and x.aval.weak else x


def shape_of(x: Any) -> Shape:
    """The shape of an operand; ``()`` for Python scalars."""
    return () if type(x) in _SCALARS else x.shape


def dtype_key(x: Any) -> DtypeKey:
    """What decides promotion: the dtype, or the Python type of a weak scalar."""
    kind = type(x)
    if kind is Tracer:
        return weak_of(x.aval.dtype) if x.aval.weak else x.aval.dtype
    return kind if kind in _SCALARS else x.dtype


def is_weak(x: Any) -> bool:
    """Whether an operand is a weak scalar."""
    return x.aval.weak if type(x) is Tracer else type(x) in _SCALARS


def dtype_of(x: Any) -> Dtype:
    """The dtype that a lone operand has."""
    key = dtype_key(x)
    return key if isinstance(key, np.dtype) else scalar_dtype(key)


# -- promotion and broadcasting


def typed_scalar(x: Any, dtype: Dtype) -> Any:
    """A Python scalar as a NumPy scalar of `dtype`."""
    try:
        if dtype.itemsize < 8 and dtype.kind == "f":
            with np.errstate(all="ignore"):
                return dtype.type(x)
        return dtype.type(x)
    except OverflowError:
        raise IntegerOverflowError(f"the Python integer {x} does not fit {short(dtype)}") from None
    except TypeError:
        raise DtypeError(f"the Python {type(x).__name__} {printed(x)} does not convert to {short(dtype)}") from None


def as_dtype(x: Any, dtype: Dtype, weak: bool = False) -> Any:
    """An operand with the given dtype; Python scalars become NumPy scalars, or literals while tracing."""
    if type(x) not in _SCALARS:
        if type(x) is Tracer and x.aval.weak and dtype.kind in "iu" and dtype != INT and x.aval.dtype == INT:
            x = check_fits(x, dtype)  # NumPy refuses a Python integer that does not fit
        return convert(x, dtype, weak)
    scalar = typed_scalar(x, dtype)
    trace = current()
    if weak and type(trace) is Trace:
        return Tracer(trace, Literal(scalar, make_aval((), dtype, True)))
    return scalar


def broadcast_shape(name: str, xs: Sequence[Any]) -> Shape:
    """The common shape of operands, or a `ShapeError` that names them."""
    out: Shape = ()
    for x in xs:
        shape = shape_of(x)
        if shape != out and shape:
            common = common_shape(out, shape) if out else shape
            if common is None:
                types = " and ".join(describe(x) for x in xs if shape_of(x))
                raise ShapeError(
                    f"{name}: shapes do not broadcast: {types}",
                    hint="axes are matched from the last; x[:, None] adds one",
                )
            out = common
    return out


@functools.lru_cache(maxsize=4096)
def common_shape(a: Shape, b: Shape) -> Shape | None:
    """The shape that two shapes broadcast to; None where they do not fit."""
    if len(a) < len(b):
        a, b = b, a
    offset = len(a) - len(b)
    out = list(a)
    for i, n in enumerate(b):
        m = a[i + offset]
        if m == 1:
            out[i + offset] = n
        elif n not in (1, m):
            return None
    return tuple(out)


def broadcast_operands(name: str, xs: Sequence[Any]) -> list[Any]:
    """Operands of one dtype, repeated to their common shape (on plain arrays NumPy does that itself)."""
    shape = broadcast_shape(name, xs)
    trace = current()
    if trace is EAGER:
        return list(xs)
    return [x if x.shape == shape else broadcast_to(x, shape) for x in xs]


def broadcast_to(x: Any, shape: Shape) -> Any:
    """An operand repeated to `shape`; a plain scalar becomes a literal while tracing."""
    if type(x) is not Tracer and x.ndim == 0:
        trace = current()
        if type(trace) is Trace:
            return Tracer(trace, Literal(x[()], make_aval(shape, x.dtype)))
    return broadcasting.broadcast_to(x, shape)


def promoted(name: str, *args: Any) -> list[Any]:
    """Operands converted to their common dtype and broadcast to their common shape."""
    xs = [operand(a, name) for a in args]
    dtype = promote(*[dtype_key(x) for x in xs])
    return broadcast_operands(name, [as_dtype(x, dtype) for x in xs])


def promoted_dtype(name: str, *arrays: Any) -> list[Any]:
    """Strong operands converted to their common dtype."""
    dtype = promote(*[x.dtype for x in arrays])
    return [convert(x, dtype) for x in arrays]


# -- axes


def refuse_traced(name: str, what: str, x: Any) -> None:
    """Raise for a traced value where a static one is needed, unless its value is there."""
    if type(x) is Tracer and visible_value(x) is None:
        raise ConcretizationTypeError(
            f"{name}: {what} must be static while {x.owner.name} is traced, but depends on the value of {describe(x)}",
            hint="mark the argument static: jit(f, static_argnums=...)",
        )


def normalize_axis(name: str, axis: Any, ndim: int) -> int:
    """An axis in 0 ... ndim - 1."""
    refuse_traced(name, "an axis", axis)
    try:
        index = axis.__index__()
    except (AttributeError, TypeError):
        raise ArgumentError(f"{name}: axis must be an integer, got {printed(axis)}") from None
    if not -ndim <= index < ndim:
        raise AxisError(f"{name}: axis {index} is out of range for an array with {ndim} axes")
    return index % ndim


def normalize_axes(name: str, axis: Any, ndim: int) -> tuple[int, ...]:
    """Axes in increasing order; None is all of them."""
    if axis is None:
        return tuple(range(ndim))
    given = axis if isinstance(axis, tuple | list) else (axis,)
    axes = [normalize_axis(name, a, ndim) for a in given]
    if len(set(axes)) < len(axes):
        raise AxisError(f"{name}: an axis is given twice: {axis}")
    return tuple(sorted(axes))


def given_shape(name: str, shape: Any) -> Shape:
    """A shape argument as a tuple of ints."""
    arrays = np.ndarray | DeviceArray
    items = shape if isinstance(shape, tuple | list) else np.asarray(shape).tolist() if isinstance(
        shape, arrays) else (shape,)  # fmt: skip
    items = items if isinstance(items, tuple | list) else (items,)
    out = []
    for n in items:
        refuse_traced(name, "a shape", n)
        try:
            out.append(n.__index__())
        except (AttributeError, TypeError):
            raise ArgumentError(f"{name}: a shape is made of integers, got {printed(shape)}") from None
    if len(out) > MAX_AXES:
        raise ParameterError(f"{name}: an array has {MAX_AXES} axes at most, got a shape of {len(out)}")
    return tuple(out)


def given_dtype(name: str, dtype: Any) -> Dtype:
    """A dtype argument."""
    try:
        out = np.dtype(dtype if dtype is not None else object)
    except Exception:  # objects with a dtype attribute raise what they like
        raise DtypeError(f"{name}: {printed(dtype)} is not a dtype") from None
    if not is_supported(out):
        raise _unsupported(name, out)
    return out if out.isnative and out.metadata is None else np.dtype(out.newbyteorder("=").str)


# -- what goes out


def public(*numpy_functions: Any) -> Callable[[F], F]:
    """Mark a function of the public face; NumPy's functions given here dispatch to it when they meet a tracer."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            trace = current()
            if trace is EAGER or (type(trace) is Trace and args and type(args[0]) is Tracer):
                return function(*args, **kwargs)
            if trace is None or (trace.shows and not has_tracer(args) and not has_tracer(kwargs)):
                return compute(function, args, kwargs)
            return function(*args, **kwargs)

        for f in numpy_functions:
            if f is not None:  # absent from an older NumPy
                numpy_table[f] = wrapper
        return wrapper  # type: ignore[return-value]

    return decorate


def compute(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Call a public function on plain arrays: results are fresh Arrays. On arrays of a device it runs there."""
    if _on_device and has_device_array(args, kwargs):
        return _on_device[0](function, args, kwargs)
    try:
        out = sheltered(_eager, function, args, kwargs)
    except FuncgradError as error:
        raise hide_internal_frames(error) from None
    return _published(out, _arrays_in([*args, *kwargs.values()]))


def _eager(function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    with eagerly():
        return function(*args, **kwargs)


def _arrays_in(items: Iterable[Any]) -> list[Any]:
    """The arrays among arguments, in lists and tuples too."""
    out: list[Any] = []
    waiting, seen = list(items), set()
    for item in waiting:
        if isinstance(item, np.ndarray):
            out.append(item)
        elif isinstance(item, list | tuple) and id(item) not in seen:
            seen.add(id(item))  # a list may contain itself
            waiting += item
    return out


def _published(out: Any, borrowed: Iterable[Any]) -> Any:
    if isinstance(out, np.ndarray | np.generic):
        return publish([out], borrowed)[0]
    if isinstance(out, tuple | list):
        arrays = publish([x for x in out if isinstance(x, np.ndarray | np.generic)], borrowed)
        items = [arrays.pop(0) if isinstance(x, np.ndarray | np.generic) else x for x in out]
        return type(out)(*items) if hasattr(out, "_fields") else type(out)(items)
    return out


__all__ = ["BOOL", "numpy_table", "operand", "promoted", "public"]
