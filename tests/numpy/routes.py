"""The three ways to call a function of `funcgrad.numpy`, and what each promises about its result."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.base.errors import FuncgradError
from funcgrad.core.array import Array
from funcgrad.core.check import check
from funcgrad.core.evaluate import run
from funcgrad.core.ir import make_aval
from funcgrad.core.trace import Trace, Tracer

RTOL = {np.dtype(np.float16): 2e-3, np.dtype(np.float32): 2e-6, np.dtype(np.float64): 1e-13}


def arrays_in(x: Any) -> list[np.ndarray]:
    """The arrays in an argument, inside lists and tuples too."""
    if type(x) is np.ndarray:
        return [x]
    if isinstance(x, list | tuple):
        return [a for item in x for a in arrays_in(item)]
    if isinstance(x, dict):
        return [a for item in x.values() for a in arrays_in(item)]
    return []


def replaced(x: Any, function: Callable[[np.ndarray], Any]) -> Any:
    """`x` with every array replaced."""
    if type(x) is np.ndarray:
        return function(x)
    if isinstance(x, list | tuple):
        items = [replaced(item, function) for item in x]
        return type(x)(items)
    return {k: replaced(v, function) for k, v in x.items()} if isinstance(x, dict) else x


def leaves(x: Any) -> list[Any]:
    """The results of a function that may return several."""
    return [leaf for item in x for leaf in leaves(item)] if isinstance(x, list | tuple) else [x]


def traced(function: Callable[..., Any], args: tuple, kwargs: dict, shows: bool = False) -> list[Any]:
    """Trace `function` with all arrays among the arguments as inputs, check the Program, and evaluate it."""
    values: list[np.ndarray] = []
    with Trace("f", shows=shows) as t:

        def make(a: np.ndarray) -> Tracer:
            values.append(a)
            return t.input(make_aval(a.shape, a.dtype), a if shows else None, name=f"x{len(values)}")

        results = leaves(function(*replaced(args, make), **replaced(kwargs, make)))
        static = [i for i, r in enumerate(results) if not isinstance(r, Tracer | np.ndarray | np.generic)]
        outs = [r for i, r in enumerate(results) if i not in static]
        program = check(t.program(outs))
    with np.errstate(all="ignore"):
        computed = run(program, [*t.constants(), *values])
    return [results[i] if i in static else computed.pop(0) for i in range(len(results))]


def assert_same(got: Any, want: Any, exact: bool, scale: float = 1.0) -> None:
    """Equal shape, dtype and values; NaN equals NaN, and signs of zero count if `exact`."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype, (got.dtype, want.dtype)
    assert got.shape == want.shape, (got.shape, want.shape)
    if exact or want.dtype.kind in "biu":
        np.testing.assert_array_equal(got, want)
        if want.dtype.kind == "f":
            here = ~np.isnan(want)
            np.testing.assert_array_equal(np.signbit(got)[here], np.signbit(want)[here])
    else:
        rtol = RTOL[np.dtype(f"f{want.dtype.itemsize // 2}") if want.dtype.kind == "c" else want.dtype]
        np.testing.assert_allclose(got, want, rtol=rtol * scale, atol=rtol * scale)


def assert_fresh(out: Any, inputs: list[np.ndarray]) -> None:
    """What every result of `funcgrad.numpy` promises (DESIGN §3.9)."""
    if isinstance(out, list | tuple):
        for item in out:
            assert_fresh(item, inputs)
        for i, a in enumerate(out):
            assert not any(np.shares_memory(a, b) for b in out[i + 1 :])
        return
    if isinstance(out, bool | int | str | np.dtype | type(None)):
        return
    assert type(out) is Array, type(out)
    assert out.flags.c_contiguous and out.flags.writeable
    assert not any(np.shares_memory(out, a) for a in inputs)


def numpy_function(name: str) -> Callable[..., Any]:
    """The NumPy function of a dotted name."""
    found: Any = np
    for part in name.split("."):
        found = getattr(found, part)
    return found


def our_function(name: str) -> Callable[..., Any]:
    """Ours."""
    found: Any = fnp
    for part in name.split("."):
        found = getattr(found, part)
    return found


def expected(name: str, args: tuple, kwargs: dict) -> Any:
    """What NumPy gives, or the exception it raises."""
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return numpy_function(name)(*args, **kwargs)
    except Exception as error:
        return error


def check_call(name: str, *args: Any, exact: bool = False, scale: float = 1.0, **kwargs: Any) -> None:
    """`name` with these arguments agrees with NumPy on every route; where NumPy raises, so do we."""
    try:
        numpy_function(name)
    except AttributeError:  # an older NumPy
        return
    want = expected(name, args, kwargs)
    inputs = [*arrays_in(args), *arrays_in(kwargs)]
    before = [a.copy() for a in inputs]
    routes: dict[str, Callable[[], Any]] = {
        "eager": lambda: our_function(name)(*args, **kwargs),
        "traced": lambda: traced(our_function(name), args, kwargs),
        "shown": lambda: traced(our_function(name), args, kwargs, shows=True),
    }
    if inputs:
        routes["dispatch"] = lambda: traced(numpy_function(name), args, kwargs)
    for route, compute in routes.items():
        if isinstance(want, Exception):
            with pytest.raises(FuncgradError):
                print(f"{route}: NumPy raises {want!r}, we give {compute()!r}")
            continue
        got = compute()
        if route == "eager":
            assert_fresh(got, inputs)
        for g, w in zip(leaves(got), leaves(want), strict=True):
            if isinstance(w, np.ndarray | np.generic | float):
                try:
                    assert_same(g, w, exact, scale)
                except AssertionError as error:
                    raise AssertionError(f"{route}: {error}") from None
            elif isinstance(w, bool | int) and isinstance(g, np.ndarray | np.generic):
                assert g == w
            else:
                assert g == w, route
    for a, b in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(a, b)
