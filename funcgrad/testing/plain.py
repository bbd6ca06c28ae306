"""What `fg` and `lax` are to a random program that runs with Python's own loops: its oracle.

Loops and branches are Python's, rows are a loop, `jit`, `checkpoint` and rules of one's own do nothing, and operations
are NumPy's. Derivatives alone are those of funcgrad, of a function that has nothing but operations in it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from funcgrad import lax, special
from funcgrad.api import checkpoint_policies, grad, hessian, jacfwd, jacrev, jvp, linearize, stop_gradient, vjp
from funcgrad.core.primitive import registry
from funcgrad.core.trace import Tracer, bind1, value_of
from funcgrad.nn import sigmoid
from funcgrad.numpy import asarray


def _traced(xs: Sequence[Any]) -> bool:
    return any([isinstance(x, Tracer) for x in xs])


# -- loops and branches


def _stacked(rows: Sequence[Any]) -> Any:
    """Results of trips or rows, pytrees of tuples, one after the other."""
    if isinstance(rows[0], tuple):
        return tuple([_stacked(column) for column in zip(*rows, strict=True)])
    return np.stack(rows)


def scan(f: Callable[..., Any], carry: Any, xs: Any, reverse: bool = False, checkpoint: int = 0) -> Any:
    """`lax.scan` over an array."""
    ys = []
    for x in xs[::-1] if reverse else xs:
        carry, y = f(carry, x)
        ys.append(y)
    return carry, _stacked(ys[::-1] if reverse else ys)


def fori_loop(low: Any, high: Any, body: Callable[..., Any], value: Any) -> Any:
    """`lax.fori_loop`."""
    for i in range(int(value_of(low)), int(value_of(high))):
        value = body(np.int64(i), value)
    return value


def while_loop(test: Callable[..., Any], body: Callable[..., Any], value: Any) -> Any:
    """`lax.while_loop`."""
    while bool(test(value)):
        value = body(value)
    return value


def cond(pred: Any, yes: Callable[..., Any], no: Callable[..., Any], *args: Any) -> Any:
    """`lax.cond`."""
    return yes(*args) if bool(pred) else no(*args)


def switch(index: Any, branches: Sequence[Callable[..., Any]], *args: Any) -> Any:
    """`lax.switch`."""
    return branches[min(max(int(value_of(index)), 0), len(branches) - 1)](*args)


# -- transforms


def vmap(f: Callable[..., Any], in_axes: Sequence[int | None]) -> Callable[..., Any]:
    """`vmap`, row by row."""

    def rows(*args: Any) -> Any:
        size = next(x.shape[a] for x, a in zip(args, in_axes, strict=True) if a is not None)
        split = [
            [x if a is None else np.moveaxis(x, a, 0)[i] for i in range(size)]
            for x, a in zip(args, in_axes, strict=True)
        ]
        return _stacked([f(*row) for row in zip(*split, strict=True)])

    return rows


def undecorated(f: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`jit`, `checkpoint`: the function itself."""
    return f


class WithoutRule:
    """`custom_jvp` and `custom_vjp`: the function itself."""

    def __init__(self, f: Callable[..., Any]) -> None:
        self.f = f

    def __call__(self, *args: Any) -> Any:
        return self.f(*args)

    def defjvp(self, rule: Any) -> None:
        """Leave the rule out."""

    def defvjp(self, fwd: Any, bwd: Any) -> None:
        """Leave the rules out."""


# -- operations that NumPy does not have under this name


def either(ours: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    """NumPy's function where nothing is traced."""
    return lambda *args, **params: (ours if _traced(args) else plain)(*args, **params)


def _scipy(name: str) -> Callable[..., Any]:
    return lambda *args: getattr(importlib.import_module("scipy.special"), name)(*args)


class At:
    """An array with `.at`, whose updates are NumPy's."""

    def __init__(self, x: Any, index: Any = None) -> None:
        self.x = x
        self.index = index

    @property
    def at(self) -> At:
        """What is indexed."""
        return self

    def __getitem__(self, index: Any) -> At:
        return At(self.x, index)

    def __getattr__(self, method: str) -> Callable[[Any], Any]:
        return lambda value: self._update(method, value)

    def _update(self, method: str, value: Any) -> Any:
        if _traced([self.x, self.index, value]):
            return getattr(asarray(self.x).at[self.index], method)(value)
        y = np.array(self.x)
        UPDATES[method](y, self.index, value)
        return y


UPDATES: dict[str, Callable[..., None]] = {
    "set": lambda y, i, value: y.__setitem__(i, value), "add": np.add.at, "multiply": np.multiply.at,
    "max": np.maximum.at, "min": np.minimum.at,
}  # fmt: skip
"""Updates of elements of an array, one index after the other."""


def _recurrence(a: Any, b: Any, keep: Any, *, axis: int, reverse: bool) -> Any:
    """h[i] = a[i] h[i-1] + b[i], where it is kept."""
    a, b, keep = (np.moveaxis(x, axis, 0)[:: -1 if reverse else 1] for x in (a, b, keep))
    h, found = np.zeros(b.shape[1:], b.dtype), []
    for x, y, k in zip(a, b, keep, strict=True):
        h = np.where(k, x * h, 0) + y
        found.append(h)
    return np.moveaxis(np.stack(found)[:: -1 if reverse else 1], 0, axis)


def _window(x: Any, *starts: Any, sizes: Sequence[int]) -> tuple[slice, ...]:
    return tuple(
        [slice(s := min(max(int(i), 0), n - k), s + k) for i, n, k in zip(starts, x.shape, sizes, strict=True)]
    )


def _updated(x: Any, y: Any, *starts: Any) -> Any:
    found = np.array(x)
    found[_window(x, *starts, sizes=y.shape)] = y
    return found


BOUND: dict[str, Callable[..., Any]] = {
    "mask_mul": lambda t, c: np.where(t == 0, t, t * c),
    "mask_div": lambda t, c: np.where(t == 0, t, t / c),
    "mask_both": lambda t, c: np.where(t == 0, t, np.where(c == 0, c, t * c)),
    "one_minus_square": lambda x: 1 - x * x,
    "linear_recurrence": _recurrence,
    "stable_order": lambda x: np.argsort(x, axis=-1, kind="stable"),
    "check_fits": lambda x, low, high, target: x,
    "barrier": lambda *xs: xs[0],
    "iota": lambda shape, dtype, axis: np.indices(shape)[axis].astype(dtype),
    "dynamic_slice": lambda x, *starts, sizes: x[_window(x, *starts, sizes=sizes)],
    "dynamic_update_slice": _updated,
}  # fmt: skip
"""Primitives without a public name, with NumPy."""


def _bind(name: str, *args: Any, **params: Any) -> Any:
    return bind1(registry[name], *args, **params) if _traced(args) else BOUND[name](*args, **params)


class _Names:
    """A registry of names only."""

    def __getitem__(self, name: str) -> str:
        return name


PLAIN: dict[str, Any] = {
    "bind1": _bind,
    "registry": _Names(),
    "lax": SimpleNamespace(
        scan=scan, fori_loop=fori_loop, while_loop=while_loop, cond=cond, switch=switch,
        cummax=either(lax.cummax, lambda x, axis: np.maximum.accumulate(x, axis)),
        cummin=either(lax.cummin, lambda x, axis: np.minimum.accumulate(x, axis)),
    ),
    "fg": SimpleNamespace(
        jit=undecorated, checkpoint=undecorated, checkpoint_policies=checkpoint_policies, vmap=vmap,
        custom_jvp=WithoutRule, custom_vjp=WithoutRule,
        grad=grad, vjp=vjp, jvp=jvp, linearize=linearize, jacfwd=jacfwd, jacrev=jacrev, hessian=hessian,
        stop_gradient=either(stop_gradient, lambda x: x), checkpoint_name=lambda x, name: x,
        pure_callback=lambda f, result, *args: f(*args), ShapeDtypeStruct=lambda shape, dtype: None,
        custom_linear_solve=lambda matvec, b, solve, transpose_solve: solve(matvec, b),
        implicit=SimpleNamespace(root=lambda f, solver, tangent_solve: solver),
        debug=SimpleNamespace(callback=lambda f, x: None),
        eval_shape=lambda f, *args: f(*args),
        special=SimpleNamespace(**{name: either(getattr(special, name), _scipy(name)) for name in special.__all__}),
        nn=SimpleNamespace(sigmoid=either(sigmoid, _scipy("expit"))),
        numpy=SimpleNamespace(asarray=At),
    ),
}  # fmt: skip
"""The meaning of names for `Recipe.function`."""
