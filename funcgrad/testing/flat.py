"""Functions of pytrees as functions of a list of floating-point leaves, each of which knows how the user calls it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from funcgrad.api import jvp, vjp
from funcgrad.api.tracing import function_name, positional_names, require_callable
from funcgrad.base import tree
from funcgrad.base.errors import ArgumentError, printed
from funcgrad.core.trace import Tracer
from funcgrad.testing.differences import ravel


def is_float(x: Any) -> bool:
    """Whether a leaf has a derivative."""
    return type(x) in (float, complex) or getattr(getattr(x, "dtype", None), "kind", "") in ("f", "c")


def paths(value: Any, root: str) -> list[str]:
    """Where each leaf of a tree stands, as Python code."""
    return [accessor.codify(root) for accessor in tree.structure(value).accessors()]


def element(path: str, shape: Sequence[int], flat: int) -> str:
    """One element of an array, as Python code."""
    if not shape:
        return path
    return f"{path}[{', '.join([str(int(i)) for i in np.unravel_index(flat, tuple(shape))])}]"


def not_finite(flat: Flat) -> str:
    """Which element of the arguments is nan or infinite; empty if none is."""
    for name, a in zip(flat.names, flat.x, strict=True):
        for i in np.flatnonzero(~np.isfinite(np.asarray(a))):
            return f"{element(name, np.shape(a), int(i))} is {np.asarray(a).flat[i]}"
    return ""


def argument_tuple(args: Any, who: str) -> tuple[Any, ...]:
    """The arguments of a call, given as a tuple."""
    if not isinstance(args, tuple | list):
        raise ArgumentError(
            f"{who}: args is a tuple with one entry per argument, got {type(args).__name__}", hint=f"{who}(f, (x,))"
        )
    return tuple(args)


@dataclass(frozen=True)
class Flat:
    """A function from floating-point arrays to a tuple of such.

    Attributes
    ----------
    call : callable
        Takes the arrays one by one.
    x : list
        The point.
    names, outputs : list of str
        What each argument and each result is called.
    name : str
        The name of the user's function.
    modes : tuple of str
        Which derivative of it this is, the innermost first.
    """

    call: Callable[..., tuple[Any, ...]]
    x: list[Any]
    names: list[str]
    outputs: list[str]
    name: str
    modes: tuple[str, ...] = ()

    @np.errstate(all="ignore")
    def values(self, x: Sequence[Any]) -> list[Any]:
        """The results as arrays."""
        return [np.asarray(y) for y in self.call(*x)]

    @np.errstate(all="ignore")
    def value_with_derivative(self) -> list[Any]:
        """The results as reverse mode returns them."""
        return [np.asarray(y) for y in vjp(self.call, *self.x)[0]]

    @np.errstate(all="ignore")
    def forward(self, v: Sequence[Any]) -> list[Any]:
        """The derivative along `v`, by forward mode."""
        return [np.asarray(y) for y in jvp(self.call, tuple(self.x), tuple(v))[1]]

    @np.errstate(all="ignore")
    def reverse(self, w: Sequence[Any]) -> list[Any]:
        """The derivative of what `w` weighs, by reverse mode."""
        return [np.asarray(b) for b in vjp(self.call, *self.x)[1](tuple(w))]

    def derived(self, mode: str, direction: Sequence[Any]) -> Flat:
        """The derivative, along or weighed by `direction`, as a function of the point."""
        call = self.call
        if mode == "fwd":
            outputs = [f"the tangent of {o}" for o in self.outputs]
            return replace(
                self,
                call=lambda *x: tuple(jvp(call, x, _like_all(direction, x))[1]),
                outputs=outputs,
                modes=(*self.modes, mode),
            )

        def pulled(*x: Any) -> tuple[Any, ...]:
            y, back = vjp(call, *x)
            return tuple(back(_like_all(direction, y)))

        outputs = [f"the cotangent of {n}" for n in self.names]
        return replace(self, call=pulled, outputs=outputs, modes=(*self.modes, mode))

    def wide(self) -> Flat:
        """The same in double precision."""
        return replace(self, x=[_widened(a) for a in self.x])


def _like_all(direction: Sequence[Any], x: Sequence[Any]) -> tuple[Any, ...]:
    """A direction in the dtypes of what it belongs to."""
    return tuple(
        [np.asarray(v).astype(a.dtype) if hasattr(a, "dtype") else v for v, a in zip(direction, x, strict=True)]
    )


def _widened(a: Any) -> Any:
    if type(a) in (float, complex) or a.dtype.itemsize >= 8 * (1 + (a.dtype.kind == "c")):
        return a
    return np.asarray(a).astype(np.result_type(a, np.float64))[()]


def require_inputs(f: Callable[..., Any], args: Sequence[Any], who: str) -> None:
    """Raise if a ufunc gets more arguments than it has: further ones are what it writes to."""
    if isinstance(f, np.ufunc) and len(args) != f.nin:
        raise ArgumentError(f"{who}: {function_name(f)} has {f.nin} argument{'s'[: f.nin > 1]}, got {len(args)}")


def require_no_text(f: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], who: str) -> None:
    """Raise if an argument is a string."""
    roots = [*positional_names(f, len(args)), *kwargs]
    for root, given in zip(roots, [*args, *kwargs.values()], strict=True):
        for name, x in zip(paths(given, root), tree.flatten(given)[0], strict=True):
            if isinstance(x, str | bytes):
                raise ArgumentError(
                    f"{who}: {name} is a string, {printed(x)}, and no array of numbers",
                    hint=f"close over it: {who}(lambda x: f(x, {printed(x)}), (x,))",
                )


def evaluated(f: Callable[..., Any], given: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
    """``f(*args, **kwargs)``; where Python's floats raise or leave the real numbers, what NumPy's give instead.

    Arrays are copies: what the function writes into them is not seen by the next evaluation.
    """
    leaves, treedef = tree.flatten(given)
    leaves = [x.copy() if isinstance(x, np.ndarray) else x for x in leaves]
    args, kwargs = tree.unflatten(treedef, leaves)
    if not any([type(x) is float for x in leaves]) or any([type(x) is Tracer or _is_complex(x) for x in leaves]):
        return f(*args, **kwargs)
    try:
        out = f(*args, **kwargs)
        if not any([_is_complex(y) for y in tree.flatten(out)[0]]):
            return out
    except (ZeroDivisionError, OverflowError):
        pass
    args, kwargs = tree.unflatten(treedef, [np.float64(x) if type(x) is float else x for x in leaves])
    with np.errstate(all="ignore"):
        return f(*args, **kwargs)


def _is_complex(x: Any) -> bool:
    return type(x) is complex or getattr(getattr(x, "dtype", None), "kind", "") == "c"


def flat_function(f: Callable[..., Any], args: Any, kwargs: dict[str, Any] | None, who: str) -> Flat:
    """`f` at a point, as a function of its floating-point leaves; the others stay as they are."""
    require_callable(f, who)
    args, kwargs = argument_tuple(args, who), kwargs or {}
    require_inputs(f, args, who)
    leaves, treedef = tree.flatten((args, kwargs))
    roots = positional_names(f, len(args))
    names = [n for root, a in zip(roots, args, strict=True) for n in paths(a, root)]
    names += [n for key in sorted(kwargs) for n in paths(kwargs[key], key)]
    where = [i for i, x in enumerate(leaves) if is_float(x)]
    x = [leaves[i] if type(leaves[i]) in (float, complex) else np.array(leaves[i])[()] for i in where]

    def result(*x: Any) -> Any:
        new = list(leaves)
        for i, value in zip(where, x, strict=True):
            new[i] = float(value) if type(leaves[i]) is float and type(value) is not Tracer else value
        return evaluated(f, tree.unflatten(treedef, new))

    with np.errstate(all="ignore"):
        out = result(*x)
    if out is None:
        raise ArgumentError(f"{who}: {function_name(f)} returns None", hint="return the result")
    kept = [i for i, y in enumerate(tree.flatten(out)[0]) if is_float(y)]
    outputs = paths(out, "result")

    def call(*x: Any) -> tuple[Any, ...]:
        found = tree.flatten(result(*x))[0]
        return tuple([found[i] for i in kept])

    call.__name__ = function_name(f)
    return Flat(call, x, [names[i] for i in where], [outputs[i] for i in kept], function_name(f))


@np.errstate(all="ignore")
def random_like(arrays: Sequence[Any], rng: np.random.Generator, scaled: bool = False) -> list[Any]:
    """Random numbers between 1/2 and 3/2 of either sign, in the shapes and dtypes of `arrays`; `scaled` by these.

    They have few digits, so that adding a fraction of them to an argument does not round.
    """
    out = []
    for a in map(np.asarray, arrays):
        draw = _sixteenths(rng, a.shape)
        if a.dtype.kind == "c":
            draw = draw + 1j * _sixteenths(rng, a.shape)
        if scaled:
            size = np.where(np.isfinite(a) & (a != 0), abs(a), 1.0)
            draw = draw * 2.0 ** np.floor(np.log2(size))
        out.append(np.asarray(draw).astype(a.dtype)[()])
    return out


def _sixteenths(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    return rng.integers(8, 25, shape) / 16 * rng.choice([-1.0, 1.0], shape)


@np.errstate(all="ignore")
def pairing(w: Sequence[Any], v: Sequence[Any]) -> tuple[float, float]:
    """The real part of the sum of all products, and the sum of their sizes."""
    products = ravel(w) * ravel(v)
    return float(products.real.sum()), float(abs(products).sum())
