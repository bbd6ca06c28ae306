"""from_numba: a function that Numba compiled, called from traced and compiled code."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np

from funcgrad.api.callbacks import pure_callback
from funcgrad.api.custom_jvp import custom_jvp
from funcgrad.api.custom_vjp import custom_vjp
from funcgrad.api.inspect import abstract_leaf
from funcgrad.api.tracing import function_name, written_at
from funcgrad.base import tree
from funcgrad.base.errors import ArgumentError
from funcgrad.core.ir import make_aval

NUMBERS = frozenset("bBhHiIlLqQfd?")  # the C types of numbers, as ctypes writes them

DERIVATIVE = "from_numba(f, types, jvp=...) says what it is, and vjp=(forward, backward) for reverse mode only"


def from_numba(
    function: Any,
    result_shape_dtypes: Any,
    *,
    jvp: Callable[..., Any] | None = None,
    vjp: tuple[Callable[..., Any], Callable[..., Any]] | None = None,
) -> Callable[..., Any]:
    """Make a function compiled by Numba one that can be called inside of traced functions.

    Parameters
    ----------
    function
        An ``@numba.njit`` function of arrays and numbers. It is called with copies, in C order, and what it returns is
        checked and copied. Also a ``@numba.cfunc``, a ``scipy.LowLevelCallable`` of one, or a `ctypes` function of
        numbers. It must be pure: it may be called more than once, or not at all.
    result_shape_dtypes
        What it returns: a pytree of `ShapeDtypeStruct`, or a function from those of the arguments to it.
    jvp
        The derivative, as the rule of `custom_jvp`: ``jvp(primals, tangents) -> (output, tangent)``.
    vjp
        The derivative for reverse mode only, as the pair of rules of `custom_vjp`: ``(forward, backward)``.

    Returns
    -------
    callable
        Takes arrays by position. Under `vmap` `function` is called for every row. Compiled code calls it directly,
        in loops and branches too, and without the GIL; what it raises reaches the caller as it is.

    Raises
    ------
    CallbackError
        When called: `function` returns another type than declared.
    RuleError
        It is differentiated, and has neither `jvp` nor `vjp`.

    Examples
    --------
    >>> import numba, numpy as np, funcgrad as fg
    >>> @numba.njit
    ... def cube(x):
    ...     return x * x * x
    >>> f = fg.from_numba(cube, lambda x: x, jvp=lambda p, t: (f(*p), 3 * p[0] ** 2 * t[0]))
    >>> f(np.array([1.0, 2.0])), float(fg.jit(fg.grad(f))(2.0))
    (Array([1., 8.]), 12.0)
    """
    called = _python_callable(function)
    if jvp is not None and vjp is not None:
        raise ArgumentError(f"from_numba: {called.__name__} has a jvp and a vjp; one of them says what the other is")

    def call(*args: Any) -> Any:
        types = result_shape_dtypes
        if callable(types):
            leaves, treedef = tree.flatten(args)
            names = tree.leaf_paths(treedef, f"{called.__name__}: argument ")
            avals = [abstract_leaf(x, n) for x, n in zip(leaves, names, strict=True)]
            types = types(*tree.unflatten(treedef, [make_aval(a.shape, a.dtype) for a in avals]))
        return pure_callback(called, types, *args)

    call.__name__ = call.__qualname__ = called.__name__
    call.__doc__ = getattr(function, "__doc__", None)
    if jvp is not None:
        ruled = custom_jvp(call)
        ruled.defjvp(jvp)
        return ruled
    if vjp is not None:
        if not isinstance(vjp, tuple | list) or len(vjp) != 2:
            raise ArgumentError(
                f"from_numba: the vjp of {called.__name__} is a pair of functions, got {type(vjp).__name__}",
                hint="vjp=(forward, backward), as for custom_vjp",
            )
        reverse = custom_vjp(call)
        reverse.made = "from_numba(vjp=...)"
        reverse.defvjp(*vjp)
        return reverse
    return call


def _python_callable(function: Any) -> Callable[..., Any]:
    """A function that is called with arrays; those without axes become NumPy scalars, or numbers for C code."""
    c = function.function if _is_low_level(function) else getattr(function, "ctypes", function)
    name = str(getattr(function, "__name__", "") or getattr(c, "__name__", type(function).__name__))
    if isinstance(c, ctypes._CFuncPtr):  # type: ignore[attr-defined]
        return _of_numbers(c, name, function)
    if not callable(function):
        raise ArgumentError(
            f"from_numba: the first argument is a function compiled by Numba, got {type(function).__name__}"
        )

    if isinstance(function, FunctionType) and not _compiles_nothing():
        raise ArgumentError(
            f"from_numba: {function_name(function)} is a Python function that Numba did not compile",
            hint="put @numba.njit above it; pure_callback calls Python functions",
            source=written_at(function),
        )

    def called(*args: Any) -> Any:
        leaves, treedef = tree.flatten(args)
        return function(*tree.unflatten(treedef, [x if x.ndim else x[()] for x in leaves]))

    called.__name__ = function_name(function)
    called.derivative = DERIVATIVE  # type: ignore[attr-defined]
    if compiled_by_numba(function):
        called.native = function, {}  # type: ignore[attr-defined]
    return called


def compiled_by_numba(function: Any) -> bool:
    """Whether Numba code can call it; there is none before Numba is imported."""
    numba = sys.modules.get("numba")
    return numba is not None and isinstance(function, numba.core.dispatcher.Dispatcher)


def _compiles_nothing() -> bool:
    """Whether Numba was told to leave functions as they are, for debugging."""
    numba = sys.modules.get("numba")
    return numba is not None and bool(numba.config.DISABLE_JIT)


def _is_low_level(function: Any) -> bool:
    return isinstance(function, tuple) and hasattr(function, "function") and hasattr(function, "signature")


def _of_numbers(c: Any, name: str, owner: Any) -> Callable[..., Any]:
    """A C function that is called with numbers, if its types say that it takes and returns nothing else."""
    if c.argtypes is None or not all([_is_number(t) for t in (*c.argtypes, c.restype)]):
        raise ArgumentError(
            f"from_numba: {name} is a C function, and not every argument and result is declared as a number",
            hint="an njit function takes arrays",
        )
    count = len(c.argtypes)

    def called(*args: Any) -> Any:
        if len(args) != count or not all([isinstance(x, np.ndarray) and not x.ndim for x in args]):
            raise ArgumentError(f"from_numba: {name} takes {count} numbers; arrays need vmap or an njit function")
        return c(*[x.item() for x in args])

    called.__name__ = name
    called.derivative = DERIVATIVE  # type: ignore[attr-defined]
    called.__wrapped__ = owner  # type: ignore[attr-defined]  # its machine code lives as long as it does
    if getattr(c, "errcheck", None) is None and not c._flags_ & ctypes._FUNCFLAG_PYTHONAPI:  # type: ignore[attr-defined]
        called.native = c, {}  # type: ignore[attr-defined]
    return called


def _is_number(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, ctypes._SimpleCData) and kind._type_ in NUMBERS


__all__ = ["compiled_by_numba", "from_numba"]
