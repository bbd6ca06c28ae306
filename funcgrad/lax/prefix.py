"""Running totals along an axis: cumsum and its kin, and `associative_scan` for any associative function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from funcgrad.api.tracing import boundary
from funcgrad.base import tree
from funcgrad.base.errors import ArgumentError, ShapeError, TreeError
from funcgrad.core.trace import describe
from funcgrad.lax.bodies import leaves_of
from funcgrad.numpy import concatenate, flip, logaddexp, moveaxis
from funcgrad.numpy.operands import array, normalize_axis, public, shape_of
from funcgrad.numpy.parameters import flag
from funcgrad.ops import cumulative


@boundary
def associative_scan(fn: Callable[[Any, Any], Any], elems: Any, reverse: bool = False, axis: int = 0) -> Any:
    """All prefixes of a sequence under an associative function: ``y[k] = fn(... fn(x[0], x[1]) ..., x[k])``.

    Parameters
    ----------
    fn
        Associative function of two pytrees of arrays; it is given many rows at once, along `axis`.
    elems
        Arrays with the same number of rows along `axis`.
    reverse
        Suffixes from the end instead.

    Returns
    -------
    pytree
        As `elems`. It takes about 2 log2(n) calls of `fn`, each on whole arrays, where `scan` takes n on rows.

    Raises
    ------
    ShapeError, TreeError
        The numbers of rows differ, or `fn` returns another structure.

    Examples
    --------
    >>> import numpy as np, funcgrad as fg
    >>> fg.lax.associative_scan(np.multiply, np.array([1.0, 2.0, 3.0])).tolist()
    [1.0, 2.0, 6.0]
    """
    leaves, treedef, paths = leaves_of(elems, "elems")
    leaves = [array(x) for x in leaves]
    if not leaves:
        raise ArgumentError("associative_scan: elems has no arrays")
    axes = [normalize_axis("associative_scan", axis, x.ndim) for x in leaves]
    n = leaves[0].shape[axes[0]]
    for x, a, path in zip(leaves, axes, paths, strict=True):
        if x.shape[a] != n:
            raise ShapeError(
                f"associative_scan: numbers of rows differ: {n} in {paths[0]}, {x.shape[a]} in {path}: {describe(x)}"
            )
    take = lambda xs, part: [x[(slice(None),) * a + (part,)] for x, a in zip(xs, axes, strict=True)]
    join = lambda xs, ys: [concatenate([x, y], axis=a) for x, y, a in zip(xs, ys, axes, strict=True)]

    def combine(xs: list[Any], ys: list[Any]) -> list[Any]:
        out, out_tree = tree.flatten(fn(tree.unflatten(treedef, xs), tree.unflatten(treedef, ys)))
        if out_tree != treedef:
            raise TreeError(tree.describe_mismatch("associative_scan: the result of the function", treedef, out_tree))
        for x, y, path in zip(out, xs, paths, strict=True):
            if shape_of(x) != y.shape:
                raise ShapeError(f"associative_scan: {path} comes back as {describe(x)}, not with the shape {y.shape}")
        return out

    def prefixes(xs: list[Any], n: int) -> list[Any]:
        if n < 2:
            return xs
        halves = combine(take(xs, slice(0, n - 1, 2)), take(xs, slice(1, n, 2)))
        odd = prefixes(halves, n // 2)  # the prefixes that end at 1, 3, 5 ...
        even = take(xs, slice(0, 1))
        if n > 2:
            even = join(even, combine(take(odd, slice(0, (n - 1) // 2)), take(xs, slice(2, n, 2))))
        return [_interleave(e, o, a) for e, o, a in zip(even, odd, axes, strict=True)]

    if flag("associative_scan", "reverse", reverse):
        leaves = [flip(x, a) for x, a in zip(leaves, axes, strict=True)]
    out = prefixes(leaves, n)
    if reverse:
        out = [flip(x, a) for x, a in zip(out, axes, strict=True)]
    return tree.unflatten(treedef, out)


def _interleave(even: Any, odd: Any, axis: int) -> Any:
    """The rows of `even` and `odd` in turn; there are as many, or one more of the first."""
    k = odd.shape[axis]
    front = moveaxis(even, axis, 0)
    pairs = concatenate([front[:k][:, None], moveaxis(odd, axis, 0)[:, None]], axis=1)
    flat = pairs.reshape((2 * k, *pairs.shape[2:]))
    if front.shape[0] > k:
        flat = concatenate([flat, front[k:]], axis=0)
    return moveaxis(flat, 0, axis)


def _running(op: Callable[..., Any], what: str) -> Callable[..., Any]:
    def function(operand: Any, axis: int = 0, reverse: bool = False) -> Any:
        x = array(operand, op.__name__)
        return op(x, normalize_axis(op.__name__, axis, x.ndim), reverse=flag(op.__name__, "reverse", reverse))

    function.__name__ = function.__qualname__ = op.__name__
    function.__doc__ = f"""{what} along an axis; from the end with `reverse`. The shape and dtype stay.

    Parameters
    ----------
    operand
        Array.
    axis
        Along which it runs.
    """
    return public()(function)


cumsum = _running(cumulative.cumsum, "Running sum")
cumprod = _running(cumulative.cumprod, "Running product")
cummax = _running(cumulative.cummax, "Running maximum")
cummin = _running(cumulative.cummin, "Running minimum")


@boundary
def cumlogsumexp(operand: Any, axis: int = 0, reverse: bool = False) -> Any:
    """Running log of the sum of exponentials along an axis, without overflow; from the end with `reverse`."""
    return associative_scan(logaddexp, operand, reverse=reverse, axis=axis)


__all__ = ["associative_scan", "cumlogsumexp", "cummax", "cummin", "cumprod", "cumsum"]
