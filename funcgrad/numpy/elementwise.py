"""The elementwise functions, generated from the registry of ops.

An op with a NumPy function of the same meaning becomes the public function of that name: NumPy decides the dtype
of the loop, the docstring is the op's. `ufuncs` holds them all, for the rest of the front end.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from funcgrad.base.dtypes import BOOL, Dtype, default_float, promote, scalar_dtype, short
from funcgrad.base.errors import ArgumentError, DtypeError, ParameterError, UnsupportedError
from funcgrad.core.ir import Literal, make_aval
from funcgrad.core.primitive import registry
from funcgrad.core.trace import Trace, Tracer, bind1, current, describe
from funcgrad.numpy.operands import (
    DtypeKey,
    as_dtype,
    broadcast_operands,
    broadcast_shape,
    dtype_key,
    is_weak,
    known_value,
    operand,
    public,
    typed_scalar,
)
from funcgrad.ops import (
    arithmetic,
    comparison,
    exponential,
    extrema,
    powers,
    rounding,
    sinc,
    special,
    trigonometric,
)
from funcgrad.ops.movement import convert
from funcgrad.ops.op import Op, constant

MODULES = (arithmetic, comparison, exponential, extrema, powers, rounding, sinc, special, trigonometric)
"""The modules of elementwise ops: importing them fills the registry."""

_UFUNC_DEFAULTS = {"out": None, "where": True, "casting": "same_kind", "order": "K", "dtype": None, "subok": True}
_MIXED = {np.dtype(np.int64), np.dtype(np.uint64)}
_COMPARISONS = {np.less: -1, np.less_equal: -1, np.greater: 1, np.greater_equal: 1, np.equal: 0, np.not_equal: 0}


@lru_cache(maxsize=4096)
def loop_dtype(op: Op, keys: tuple[DtypeKey, ...]) -> Dtype:
    """The dtype that NumPy's loop for these operands computes in."""
    if op.dtypes == "b":
        return BOOL
    if not any(isinstance(k, np.dtype) for k in keys):
        keys = tuple(scalar_dtype(k) if not isinstance(k, np.dtype) else k for k in keys)
    if isinstance(op.numpy, np.ufunc):
        try:
            found = op.numpy.resolve_dtypes((*keys, *[None] * op.numpy.nout))
        except TypeError:
            raise no_loop(public_name(op), keys) from None
        dtype = found[0] if found[0] == found[len(keys) - 1] else promote(*keys)
    else:
        dtype = promote(*keys)
        if not any(k in op.dtypes for k in "iub"):
            dtype = default_float(dtype)
    if dtype.kind not in op.dtypes or (op.numpy is None and dtype.itemsize > (16 if dtype.kind == "c" else 8)):
        raise no_loop(public_name(op), keys)
    return dtype


def no_loop(name: str, keys: tuple[DtypeKey, ...]) -> DtypeError:
    """The error of a function that is not defined for these dtypes."""
    types = " and ".join(short(k) if isinstance(k, np.dtype) else k.__name__ for k in keys)
    return DtypeError(f"{name}: not defined for {types}")


def public_name(op: Op) -> str:
    """The name of an op in `funcgrad.numpy`."""
    return op.numpy.__name__ if op.numpy is not None else op.function.__name__


@lru_cache(maxsize=4096)
def has_loop(op: Op, dtype: Dtype) -> bool:
    """Whether the op computes in `dtype` on operands of that dtype."""
    try:
        return loop_dtype(op, (dtype,) * len(inspect.signature(op.function).parameters)) == dtype
    except DtypeError:
        return False


def call(op: Op, *args: Any, keep_weak: bool = False) -> Any:
    """Promote, broadcast, bind. `keep_weak`: an operator on weak scalars only stays weak, as in Python."""
    # the usual cases first: nothing to convert, nothing to broadcast
    x = args[0]
    if len(args) == 1:
        if type(x) is Tracer and not x.aval.weak and has_loop(op, x.aval.dtype):
            return bind1(op, x)
    elif len(args) == 2:
        y = args[1]
        aval = x.aval if type(x) is Tracer else y.aval if type(y) is Tracer else None
        if aval is not None and not aval.weak and has_loop(op, aval.dtype):
            if type(x) is Tracer and type(y) is Tracer:
                if y.aval is aval and (aval.dtype.kind != "i" or op.numpy is not np.power):
                    return bind1(op, x, y)
            elif aval.dtype.kind == "f":
                trace = current()
                if type(trace) is Trace:
                    if type(y) is float or type(y) is int:
                        return bind1(op, x, Tracer(trace, Literal(typed_scalar(y, aval.dtype), aval)))
                    if type(x) is float or type(x) is int:
                        return bind1(op, Tracer(trace, Literal(typed_scalar(x, aval.dtype), aval)), y)
    return general_call(op, args, keep_weak)


def general_call(op: Op, args: tuple[Any, ...], keep_weak: bool) -> Any:
    """`call` for any operands."""
    name = public_name(op)
    xs = [operand(a, name) for a in args]
    trace = current()
    if type(trace) is Trace and trace.shows:
        xs = [trace.capture_scalar(x) for x in xs]
    keys = tuple([dtype_key(x) for x in xs])
    if op.numpy in _COMPARISONS and {*keys} == _MIXED:
        return _compare_mixed(op, *xs)
    dtype = loop_dtype(op, keys)
    weak = keep_weak and all([is_weak(x) for x in xs])
    if dtype.kind in "iu":
        if op.numpy in _COMPARISONS:
            answer = _decided(op, xs, dtype)
            if answer is not None:
                return answer
        elif op.numpy is np.power:
            exponent = known_value(xs[1])
            if exponent is not None and (exponent < 0).any():
                power = f"the negative power {xs[1]}" if type(xs[1]) is int else f"negative powers ({describe(xs[1])})"
                raise ParameterError(f"power: {describe(xs[0])} to {power}", hint="x ** -1.0")
    xs = [as_dtype(x, dtype, weak) for x in xs]
    if len(xs) > 1:
        xs = broadcast_operands(name, xs)
    return bind1(op, *xs)


def _decided(op: Op, xs: list[Any], dtype: Dtype) -> Any:
    """A comparison with a Python integer outside the range of `dtype` has one answer for all elements, as in NumPy."""
    for i, x in enumerate(xs):
        if type(x) is int:
            info = np.iinfo(dtype)
            if not info.min <= x <= info.max:
                y = x > 0  # with y standing on the right the sign says what the others are compared with it
                side = _COMPARISONS[op.numpy] * (1 if i else -1)
                answer = op.numpy is np.not_equal if side == 0 else (side < 0) == y
                return constant(answer, make_aval(broadcast_shape(public_name(op), xs), BOOL))
    return None


def _compare_mixed(op: Op, x: Any, y: Any) -> Any:
    """int64 against uint64, exactly, as in NumPy; no common dtype holds both."""
    unsigned = np.dtype(np.uint64)
    first = x.dtype != unsigned
    negative = call(ops[np.less], x if first else y, 0)
    side = _COMPARISONS[op.numpy] * (1 if first else -1)
    answer = op.numpy is np.not_equal if side == 0 else side < 0
    same = call(op, convert(x, unsigned), convert(y, unsigned))
    if answer:
        return call(ops[np.logical_or], negative, same)
    return call(ops[np.logical_and], call(ops[np.logical_not], negative), same)


def refuse_keywords(name: str, given: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Raise for keywords of NumPy that funcgrad does not take, unless they have their default value."""
    for key, value in given.items():
        if key not in defaults:
            raise ArgumentError(f"{name}: unexpected keyword argument {key!r}")
        if value is not defaults[key] and not (isinstance(value, str) and value == defaults[key]):
            hint = "results are always new arrays; use x.at[...].set(...) for updates" if key == "out" else None
            raise UnsupportedError(f"{name}: the keyword {key}= is not supported", hint=hint)


def refuse_out(name: str, out: Any) -> None:
    """Raise unless `out` is None."""
    if out is not None:
        refuse_keywords(name, {"out": out}, _UFUNC_DEFAULTS)


def make_function(op: Op, name: str) -> Callable[..., Any]:
    """The public function of an elementwise op."""
    parameters = list(inspect.signature(op.function).parameters.values())
    arity = len(parameters)

    def function(*args: Any, **kwargs: Any) -> Any:
        if len(args) != arity:
            raise ArgumentError(f"{name}: takes {arity} positional argument{'s'[: arity > 1]}, got {len(args)}")
        if kwargs:
            refuse_keywords(name, kwargs, _UFUNC_DEFAULTS)
        return call(op, *args)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = op.function.__doc__
    function.__module__ = "funcgrad.numpy"
    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(kind=p.POSITIONAL_ONLY, annotation=p.empty) for p in parameters]
    )
    return public(*([op.numpy] if op.numpy is not None else []))(function)


ops = {op.numpy: op for op in registry.values() if isinstance(op, Op) and isinstance(op.numpy, np.ufunc)}
"""ufunc → op."""


def _names() -> dict[str, Op]:
    """The public names of the elementwise functions."""
    found: dict[str, Op] = {}
    for op in registry.values():
        if isinstance(op, Op) and op.traits.kind == "elementwise" and op.numpy is not None:
            found[op.numpy.__name__] = op
    return found


functions = {name: make_function(op, name) for name, op in _names().items()}
"""Public name → function."""

ufuncs = SimpleNamespace(**functions)
