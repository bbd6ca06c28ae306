"""Python functions called from traced and compiled code: pure_callback, io_callback, and those of `funcgrad.debug`."""

from __future__ import annotations

import string
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from funcgrad.api.tracing import boundary, leaf, require_callable, results
from funcgrad.base import tree
from funcgrad.base.errors import ArgumentError, ParameterError, printed
from funcgrad.base.source import user_source
from funcgrad.control.callback import METHODS, Callee, Held, callback as bind_callback
from funcgrad.core.ir import Aval, make_aval
from funcgrad.core.trace import Tracer, current, eagerly
from funcgrad.numpy.operands import array, given_dtype, given_shape


@boundary
def pure_callback(
    callback: Callable[..., Any],
    result_shape_dtypes: Any,
    *args: Any,
    vmap_method: str = "sequential",
    **kwargs: Any,
) -> Any:
    """Call a Python function that computes a result from its arguments and does nothing else.

    Works in `jit`, in loops and under `vmap`; SciPy, code without tracing, or a table in a file are used this way.

    Parameters
    ----------
    callback
        Gets `args` and `kwargs` with fresh `numpy.ndarray` for arrays and numbers. It may be called more than once, or
        not at all if its result is not used.
    result_shape_dtypes
        What it returns: a pytree of `ShapeDtypeStruct`, or of arrays of that shape and dtype.
    vmap_method
        ``"sequential"``: one call per row. ``"expand_dims"``: one call for all rows, which are axis 0 of every argument
        and result; an argument that all rows share has length 1 there. ``"broadcast_all"``: it is repeated instead.

    Returns
    -------
    pytree
        As `result_shape_dtypes`; copies.

    Raises
    ------
    CallbackError
        The callback returns something else. What it raises itself reaches the caller as it is.
    RuleError
        An argument is differentiated and a result is a float.

    Examples
    --------
    >>> import math, numpy as np, funcgrad as fg
    >>> f = fg.jit(lambda x: 2 * fg.pure_callback(lambda v: math.gamma(v), fg.ShapeDtypeStruct((), float), x))
    >>> float(f(5.0))
    48.0
    """
    require_callable(callback, "pure_callback")
    if vmap_method not in METHODS:
        raise ParameterError(
            f"pure_callback: vmap_method is one of {', '.join(METHODS)}, got {printed(vmap_method, 40)}"
        )
    return _bound("pure_callback", callback, result_shape_dtypes, args, kwargs, "", vmap_method)


@boundary
def io_callback(
    callback: Callable[..., Any], result_shape_dtypes: Any, *args: Any, ordered: bool = True, **kwargs: Any
) -> Any:
    """Call a Python function that has an effect: it reads, writes, counts, draws random numbers.

    As `pure_callback`, but called exactly once wherever the function around it is evaluated once: in a loop once a
    trip, under `vmap` once a row, and in a gradient not again for the reverse mode.

    Parameters
    ----------
    callback, result_shape_dtypes
        As in `pure_callback`; ``None`` for no result.
    ordered
        Callbacks run in the order of the code in any case.

    Examples
    --------
    >>> import funcgrad as fg
    >>> seen = []
    >>> fg.jit(lambda x: fg.io_callback(seen.append, None, x * x))(3.0)
    >>> seen
    [array(9.)]
    """
    require_callable(callback, "io_callback")
    return _bound("io_callback", callback, result_shape_dtypes, args, kwargs, _effect(ordered), "sequential")


@boundary
def debug_callback(callback: Callable[..., Any], *args: Any, ordered: bool = True, **kwargs: Any) -> None:
    """Call a Python function with values, to look at them; its result is ignored.

    It does not stand in the way of a derivative: it sees the values of the function, not those of its tangents. Under
    `vmap` it is called for every row. Arguments that are no arrays are handed over as they are.

    Examples
    --------
    >>> import funcgrad as fg
    >>> seen = []
    >>> def f(x):
    ...     fg.debug.callback(seen.append, 2 * x)
    ...     return x**2
    >>> float(fg.jit(fg.grad(f))(3.0)), seen
    (6.0, [array(6.)])
    """
    require_callable(callback, "debug.callback")
    _bound("debug.callback", callback, None, args, kwargs, _effect(ordered), "sequential")


@boundary
def debug_print(fmt: str, *args: Any, ordered: bool = True, **kwargs: Any) -> None:
    """Print values when they are computed, ``debug.print("x = {x}", x=x)``, from jit and from loops too.

    Parameters
    ----------
    fmt
        A format string, as for `str.format`: ``{}``, ``{0}``, ``{name}``. The format after a colon, ``{x:.3f}``, is
        applied to each number of an array.

    Raises
    ------
    ArgumentError
        The fields and the arguments do not belong to each other.

    Examples
    --------
    >>> import numpy as np, funcgrad as fg
    >>> @fg.jit
    ... def f(x):
    ...     fg.debug.print("{} and {y:.2f}", x, y=np.sqrt(x))
    >>> f(np.array([1.0, 2.0]))
    [1. 2.] and [1.00 1.41]
    """
    if not isinstance(fmt, str):
        raise ArgumentError(
            f"debug.print: the first argument is a format string, got {type(fmt).__name__}",
            hint='debug.print("x = {}", x)',
        )
    _check_fields(fmt, len(args), kwargs)
    _bound("debug.print", _Print(fmt), None, args, kwargs, _effect(ordered), "sequential")


def _effect(ordered: bool) -> str:
    return "ordered" if ordered else "unordered"


def _bound(
    name: str, function: Any, declared: Any, args: tuple[Any, ...], kwargs: dict[str, Any], effect: str, method: str
) -> Any:
    leaves, in_tree = tree.flatten((args, kwargs))
    anything = name.startswith("debug")
    values, fixed = [], []
    paths = tree.leaf_paths(in_tree, "argument ")
    for i, (x, path) in enumerate(zip(leaves, paths, strict=True)):
        if anything and not _is_data(x):
            fixed.append((i, Held(x)))
        else:
            values.append(array(leaf(x, f"{name}: {path}")))
    given, out_tree = tree.flatten(declared)
    avals = tuple([declared_type(name, x, p) for x, p in zip(given, tree.leaf_paths(out_tree, "result"), strict=True)])
    callee = Callee.of(function, in_tree, fixed, out_tree if avals else None)
    if current() is None:
        with eagerly():
            out = bind_callback(callee, avals, values, effect, method)
    else:
        out = bind_callback(callee, avals, values, effect, method)
    return tree.unflatten(out_tree, results(out, [v for v in values if type(v) is not Tracer]))


def _is_data(x: Any) -> bool:
    if type(x) is Tracer or isinstance(x, bool | int | float | complex):
        return True
    return isinstance(x, np.ndarray | np.generic) and x.dtype.kind in "biufc"


def declared_type(name: str, x: Any, path: str) -> Aval:
    """A declared type: a `ShapeDtypeStruct`, or anything with a shape and a dtype."""
    if isinstance(x, Aval):
        return make_aval(x.shape, x.dtype)
    if not (hasattr(x, "shape") and hasattr(x, "dtype")):
        raise ArgumentError(
            f"{name}: {path} is declared by something with a shape and a dtype, "
            f"got {type(x).__name__} {printed(x, 40)}",
            hint="ShapeDtypeStruct((3,), float)",
        )
    return make_aval(given_shape(name, x.shape), given_dtype(name, x.dtype))


# -- formats


class _Formatter(string.Formatter):
    """`str.format`, with a format applied to each number of an array."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        if isinstance(value, np.ndarray):
            if not value.ndim:
                return format(value[()], format_spec)
            if format_spec:
                return np.array2string(value, formatter={"all": lambda v: format(v, format_spec)})
        return format(value, format_spec)


class _Print:
    """Prints a line; equal for equal formats."""

    by_value = True
    __name__ = "print"

    def __init__(self, fmt: str) -> None:
        self.fmt = fmt
        self.source = user_source()

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        try:
            line = _Formatter().vformat(self.fmt, args, kwargs)
        except (ValueError, TypeError, IndexError, AttributeError) as error:
            raise ArgumentError(f"debug.print: {printed(self.fmt)}: {error}", source=self.source) from None
        sys.stdout.write(line + "\n")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Print) and self.fmt == other.fmt

    def __hash__(self) -> int:
        return hash(self.fmt)


def _check_fields(fmt: str, count: int, kwargs: dict[str, Any]) -> None:
    """Raise unless every field has an argument and every argument a field."""
    try:
        fields = list(_fields(fmt))
    except ValueError as error:
        raise ArgumentError(f"debug.print: {printed(fmt)} is no format string: {error}") from None
    automatic = iter(range(len(fields)))
    wanted = {next(automatic) if f == "" else f for f in fields}
    there = {*range(count), *kwargs}
    missing, unused = [w for w in wanted if w not in there], [k for k in there if k not in wanted]
    if missing:
        raise ArgumentError(f"debug.print: there is no argument for field {missing[0]} of {printed(fmt)}")
    if unused:
        raise ArgumentError(
            f"debug.print: {printed(fmt)} has no field for argument {unused[0]}",
            hint='debug.print("x = {}, y = {y}", x, y=y)',
        )


def _fields(fmt: str) -> Iterator[int | str]:
    """The arguments that a format names: numbers, names, "" for the next one."""
    for _, field, spec, _ in string.Formatter().parse(fmt):
        if field is not None:
            root = field.replace("[", ".").partition(".")[0]
            yield int(root) if root.isdigit() else root
            yield from _fields(spec or "")


__all__ = ["debug_callback", "debug_print", "declared_type", "io_callback", "pure_callback"]
