"""The methods and attributes of ndarray, and NumPy's two protocols, on tracers.

Whatever NumPy function or ufunc meets a tracer is looked up in `operands.numpy_table`, where every public function
of this package has put itself; so plain `numpy` code is traced as it stands.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from funcgrad.base.errors import AssignmentError, UnsupportedError
from funcgrad.base.source import user_source
from funcgrad.core.array import _at
from funcgrad.core.device_array import DeviceArray
from funcgrad.core.trace import Tracer, describe
from funcgrad.numpy import (
    creation,
    indexing,
    operators,
    products,
    rearranging,
    reductions,
    selection,
    shaping,
    sorting,
    statistics,
    updates,
)
from funcgrad.numpy.operands import numpy_table
from funcgrad.ops import broadcasting

# -- ufuncs

_REDUCE: dict[Any, Callable[..., Any]] = {
    np.add: reductions.sum,
    np.multiply: reductions.prod,
    np.maximum: reductions.max,
    np.minimum: reductions.min,
    np.logical_and: reductions.all,
    np.logical_or: reductions.any,
}
_ACCUMULATE: dict[Any, Callable[..., Any]] = {np.add: reductions.cumsum, np.multiply: reductions.cumprod}


def array_ufunc(self: Any, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
    """NumPy calls this when a ufunc meets a tracer."""
    out = kwargs.pop("out", None)
    if out is not None and any([o is not None for o in (out if isinstance(out, tuple) else (out,))]):
        _refuse_out(self, ufunc, inputs)
    if method == "at":
        why = _new_there(self) if type(self) is DeviceArray else "a plain array cannot hold a traced value"
        raise AssignmentError(f"{ufunc.__name__}.at: {why}", hint="y = fnp.asarray(y).at[index].add(value)")
    if method == "__call__":
        function = numpy_table.get(ufunc) or numpy_table.get(ufunc.__name__)  # SciPy's are known by name
        if function is not None:
            return function(*inputs, **kwargs)
    elif method == "reduce" and ufunc in _REDUCE:
        kwargs.setdefault("axis", 0)
        return _REDUCE[ufunc](*inputs, **kwargs)
    elif method == "accumulate" and ufunc in _ACCUMULATE:
        kwargs.setdefault("axis", 0)
        return _ACCUMULATE[ufunc](*inputs, **kwargs)
    elif method == "outer" and ufunc in numpy_table and len(inputs) == 2:
        a, b = inputs
        column = shaping.reshape(a, (*shaping.shape(a), *(1,) * shaping.ndim(b)))
        return numpy_table[ufunc](column, b, **kwargs)
    name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
    raise _without(f"numpy.{name}", self, ufunc)


def _new_there(x: DeviceArray) -> str:
    return f"what is computed on {x.device} is a new array there"


def _refuse_out(self: Any, ufunc: Any, inputs: Any) -> NoReturn:
    traced = next((x for x in inputs if type(x) is Tracer), None)
    symbol = _SYMBOLS.get(ufunc)
    source = user_source()
    if symbol and source is not None and f"] {symbol}=" in source.text:
        hint = operators.update_hint("y", "fnp.asarray({})")
    else:
        hint = f"y = y {symbol} x instead of y {symbol}= x" if symbol else "leave out out="
    if traced is not None:
        why = f"a plain array cannot hold the traced result of {describe(traced)}"
    else:
        why = f"{_new_there(self)}, not out=" if type(self) is DeviceArray else "out= cannot be a traced array"
    raise AssignmentError(f"{ufunc.__name__}: {why}", hint=hint)


_SYMBOLS = {np.add: "+", np.subtract: "-", np.multiply: "*", np.divide: "/", np.power: "**", np.matmul: "@"}

# -- functions

_VALUES = "the shape of its result depends on values; where(condition, x, y) keeps the shape"
_FOUND = "np.sum(x[:, None] < values, axis=0) is searchsorted(x, values)"
_SORTS = (np.median, np.percentile, np.quantile, np.nanmedian, np.nanpercentile, np.nanquantile, np.partition)
_HINTS: dict[Any, str] = {
    **dict.fromkeys(_SORTS, "np.sort(x) is there: take elements of what it returns"),
    np.argpartition: "np.argsort(x)",
    np.lexsort: "np.argsort(x) orders by one key",
    np.searchsorted: _FOUND,
    np.nonzero: _VALUES,
    np.flatnonzero: _VALUES,
    np.argwhere: _VALUES,
    np.unique: _VALUES,
    np.extract: _VALUES,
    np.compress: "take(x, indices) with known indices",
    np.array_repr: "repr(x) shows a traced array",
    np.array_str: "repr(x) shows a traced array",
    np.save: "stop_gradient(x).value is the plain array",
    np.savetxt: "stop_gradient(x).value is the plain array",
}
_IN_PLACE = (np.copyto, np.put, np.place, np.putmask, np.fill_diagonal, np.put_along_axis)


def array_function(self: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """NumPy calls this when one of its functions meets a tracer."""
    for t in types:
        if t is not Tracer and t is not DeviceArray and not issubclass(t, np.ndarray):
            return NotImplemented
    function = numpy_table.get(func)
    if function is not None:
        return function(*args, **kwargs)
    name = f"{func.__module__}.{func.__name__}"
    if func in _IN_PLACE:
        there = type(self) is DeviceArray
        why = _new_there(self) if there else "arrays cannot be changed in place while tracing"
        hint = "x = x.at[index].set(value)" + ("; np.asarray(x) is a copy for NumPy's functions" if there else "")
        raise AssignmentError(f"{name}: {why}", hint=hint)
    raise _without(name, self, func)


def _without(name: str, x: Any, function: Any) -> UnsupportedError:
    """The error of a function of NumPy's that is not there."""
    if type(x) is DeviceArray:
        return UnsupportedError(f"{name} is not supported on {x.device}", hint="np.asarray(x) is NumPy's copy of it")
    return UnsupportedError(f"{name} is not supported on traced arrays", hint=_HINTS.get(function))


def array_namespace(self: Any, *, api_version: str | None = None) -> Any:
    """`funcgrad.numpy`, as the array API standard asks."""
    return sys.modules["funcgrad.numpy"]


# -- methods


def _reshape(x: Any, *shape: Any, order: str = "C", copy: bool | None = None) -> Any:
    """The same elements with another shape: ``x.reshape(2, 3)`` or ``x.reshape((2, 3))``."""
    wanted = shape[0] if len(shape) == 1 else shape
    return shaping.reshape(x, wanted, order)


def _transpose(x: Any, *axes: Any) -> Any:
    """The axes in another order: ``x.transpose()``, ``x.transpose(1, 0)`` or ``x.transpose((1, 0))``."""
    if not axes or axes[0] is None:
        return shaping.transpose(x)
    return shaping.transpose(x, axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes)


def _flatten(x: Any, order: str = "C") -> Any:
    """All elements along one axis."""
    return shaping.ravel(x, order)


def _astype(
    x: Any, dtype: Any, order: str = "K", casting: str = "unsafe", subok: bool = True, copy: bool = True
) -> Any:
    """`x` as another dtype. See `funcgrad.numpy.astype`."""
    return creation.astype(x, dtype)


def _copy(x: Any, order: str = "C") -> Any:
    """`x`: nothing can change it."""
    return x


def _clip(x: Any, min: Any = None, max: Any = None, out: None = None) -> Any:
    """`x`, but not below `min` and not above `max`."""
    return selection.clip(x, min, max, out)


def _round(x: Any, ndigits: int | None = None) -> Any:
    return selection.round(x, ndigits or 0)


def _to_device(x: Any, device: Any, /, *, stream: Any = None) -> Any:
    """`x`, which is on the CPU."""
    return x


def _same(x: Any, *args: Any) -> Any:
    return x


def _unsupported(name: str, why: str, hint: str | None = None) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise UnsupportedError(f"{name}: {describe(self)} is traced, {why}", hint=hint)

    method.__name__ = name
    _REFUSED.add(name)
    return method


_REFUSED: set[str] = set()


def _in_place(name: str, hint: str) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        where = f"on {self.device}" if type(self) is DeviceArray else "is traced, and"
        raise AssignmentError(f"{name}: {describe(self)} {where} cannot be changed in place", hint=hint)

    method.__name__ = name
    return method


_CHANGE = "x = x.at[index].set(value)"
_METHODS: dict[str, Any] = {
    "sum": reductions.sum,
    "prod": reductions.prod,
    "max": reductions.max,
    "min": reductions.min,
    "any": reductions.any,
    "all": reductions.all,
    "argmax": reductions.argmax,
    "argmin": reductions.argmin,
    "argsort": sorting.argsort,
    "cumsum": reductions.cumsum,
    "cumprod": reductions.cumprod,
    "mean": statistics.mean,
    "var": statistics.var,
    "std": statistics.std,
    "dot": products.dot,
    "reshape": _reshape,
    "transpose": _transpose,
    "ravel": shaping.ravel,
    "flatten": _flatten,
    "squeeze": shaping.squeeze,
    "swapaxes": shaping.swapaxes,
    "repeat": rearranging.repeat,
    "take": rearranging.take,
    "diagonal": rearranging.diagonal,
    "trace": rearranging.trace,
    "astype": _astype,
    "copy": _copy,
    "clip": _clip,
    "round": selection.round,
    "conj": selection.conjugate,
    "conjugate": selection.conjugate,
    "choose": selection.choose,
    "to_device": _to_device,
    "nonzero": _unsupported("nonzero", "and the shape of the result depends on values", "where(condition, x, y)"),
    "compress": _unsupported("compress", "and the shape of the result depends on values", "where(condition, x, y)"),
    "sort": _in_place("sort", "x = np.sort(x)"),
    "partition": _in_place("partition", "x = np.sort(x)"),
    "fill": _in_place("fill", "x = full_like(x, value)"),
    "put": _in_place("put", _CHANGE),
    "itemset": _in_place("itemset", _CHANGE),
    "resize": _in_place("resize", "x = x.reshape(...)"),
    "setfield": _in_place("setfield", _CHANGE),
    "argpartition": _unsupported("argpartition", "and partitions are not supported", "np.argsort(x)"),
    "searchsorted": _unsupported("searchsorted", "and searching it is not supported", _FOUND),
    "view": _unsupported("view", "and its bytes are not known", "x.astype(dtype) converts the values"),
    "getfield": _unsupported("getfield", "and its bytes are not known"),
    "byteswap": _unsupported("byteswap", "and its bytes are not known"),
    "tobytes": _unsupported("tobytes", "and its bytes are not known", "stop_gradient(x).value.tobytes()"),
    "tofile": _unsupported("tofile", "and its bytes are not known", "stop_gradient(x).value.tofile(...)"),
    "dump": _unsupported("dump", "and its bytes are not known"),
    "dumps": _unsupported("dumps", "and its bytes are not known"),
    "__getitem__": indexing.getitem,
    "__round__": _round,
    "__copy__": _same,
    "__deepcopy__": _same,
    "__array_ufunc__": array_ufunc,
    "__array_function__": array_function,
    "__array_namespace__": array_namespace,
}


def _matmul(x: Any, y: Any) -> Any:
    return products.matmul(x, y) if operators.accepted(y) else NotImplemented


def _rmatmul(y: Any, x: Any) -> Any:
    return products.matmul(x, y) if operators.accepted(x) else NotImplemented


def _all_axes_reversed(x: Any) -> Any:
    """The axes in reverse order."""
    return broadcasting.transpose(x, tuple(range(len(x.aval.shape)))[::-1])


_PROPERTIES: dict[str, Any] = {
    "T": property(_all_axes_reversed),
    "mT": property(shaping.matrix_transpose),
    "real": property(selection.real),
    "imag": property(selection.imag),
    "at": property(updates.At, doc="Functional updates: ``x.at[index].set(v)`` returns a changed copy."),
    "flat": property(_unsupported("flat", "and has no flat iterator", "x.ravel()")),
    "strides": property(_unsupported("strides", "and has no place in memory")),
    "data": property(_unsupported("data", "and has no place in memory")),
    "ctypes": property(_unsupported("ctypes", "and has no place in memory")),
    "device": property(lambda self: "cpu", doc="Where arrays are: ``'cpu'``."),
}


def matrix_products() -> dict[str, Any]:
    """``@``, by the name of its method."""
    return {"__matmul__": _matmul, "__rmatmul__": _rmatmul}


def supported() -> dict[str, Any]:
    """Methods and protocols that do something, or would change the array, by name."""
    return {name: f for name, f in _METHODS.items() if getattr(f, "__name__", "") not in _REFUSED}


def read_only() -> dict[str, Callable[[Any], Any]]:
    """Attributes that are arrays, by name."""
    return {name: _PROPERTIES[name].fget for name in ("T", "mT", "real", "imag")}


def install() -> None:
    """Put operators, methods and protocols on `Tracer`, and `.at` on `Array`."""
    here = {"block_until_ready": _same}  # not of `supported`: an array on a device waits
    operators.install({**operators.operators(), **_METHODS, **matrix_products(), **_PROPERTIES, **here})
    _at[:] = [updates.At]
