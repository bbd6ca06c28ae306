"""vmap: a function of one row becomes a function of many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from funcgrad.api.tracing import (
    boundary,
    function_name,
    leaf,
    leaf_names,
    like_function,
    require_callable,
    results,
    trace,
    value_and_aval,
)
from funcgrad.base import tree
from funcgrad.base.errors import ArgumentError, AxisError, ShapeError, TreeError, doing, printed
from funcgrad.core.evaluate import evaluate
from funcgrad.core.ir import Aval, make_aval
from funcgrad.core.trace import Trace, current, eagerly
from funcgrad.ops.broadcasting import align
from funcgrad.transforms.batch import batch
from funcgrad.transforms.prune import prune


def _is_axis(x: Any) -> bool:
    return x is None or (isinstance(x, int) and not isinstance(x, bool))


def vmap(
    f: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0, axis_size: int | None = None
) -> Callable[..., Any]:
    """A function that applies `f` to every row, without a loop: ``stack([f(row) for row in rows])``.

    Parameters
    ----------
    in_axes
        The axis of the rows: an int (may be negative), None for an argument that all rows share, or a pytree of
        these that is a prefix of the positional arguments. Keyword arguments have their rows along axis 0.
    out_axes
        The axis of the rows in the results; likewise a prefix. None only for results that do not depend on rows.
    axis_size
        The number of rows, where no argument has any.

    Raises
    ------
    ShapeError
        Arguments have different numbers of rows.
    TreeError
        `in_axes` or `out_axes` is no prefix.

    Examples
    --------
    >>> import numpy as np, funcgrad as fg
    >>> fg.vmap(np.dot, in_axes=(0, None))(np.eye(2), np.array([3.0, 4.0])).tolist()
    [3.0, 4.0]
    """
    require_callable(f, "vmap")
    if axis_size is not None and (not isinstance(axis_size, int) or isinstance(axis_size, bool) or axis_size < 0):
        raise ArgumentError(f"vmap: axis_size is a number of rows, got {printed(axis_size)}")
    if isinstance(in_axes, list):
        in_axes = tuple(in_axes)
    if not _is_axis(in_axes) and not isinstance(in_axes, tuple):
        raise ArgumentError(
            f"vmap: in_axes is an int, None or a tuple with one entry per argument, got {printed(in_axes)}",
            hint=f"in_axes=({printed(in_axes)},)",
        )

    @boundary
    def vectorized(*args: Any, **kwargs: Any) -> Any:
        return _vmap(f, in_axes, out_axes, axis_size, args, kwargs)

    return like_function(f, vectorized, "vmap", "{name}, applied to every row.")  # type: ignore[no-any-return]


def _axis(axis: int | None, ndim: int, what: str) -> int | None:
    if axis is None:
        return None
    if not -ndim <= axis < ndim:
        raise AxisError(f"vmap: axis {axis} is out of range for {what} with {ndim} axes")
    return axis % ndim


def _vmap(f: Any, in_axes: Any, out_axes: Any, axis_size: int | None, args: tuple[Any, ...], kwargs: Any) -> Any:
    name = function_name(f)
    leaves, treedef = tree.flatten((args, kwargs))
    args_tree = treedef.children()[0]
    if isinstance(in_axes, tuple) and len(in_axes) != len(args):
        raise ArgumentError(
            f"vmap: in_axes has {len(in_axes)} entries, but {name} was called with {len(args)} positional "
            f"argument{'s'[: len(args) != 1]}"
        )
    given = tree.broadcast_prefix(in_axes, args_tree, "in_axes", _is_axis)
    given += [0] * (len(leaves) - len(given))
    positions = list(range(len(args)))
    names = leaf_names(f, args_tree, positions)
    names += [n for k in sorted(kwargs) for n in tree.leaf_paths(tree.structure(kwargs[k]), k)]
    pairs = [value_and_aval(leaf(x, n)) for x, n in zip(leaves, names, strict=True)]
    dims = [_axis(d, aval.ndim, f"{n}: {aval}") for d, (_, aval), n in zip(given, pairs, names, strict=True)]
    size = _size(name, dims, pairs, names, axis_size)

    inputs = []
    for d, (value, aval) in zip(dims, pairs, strict=True):
        if d is None:
            inputs.append((value, aval))
        else:
            inputs.append((None, make_aval((*aval.shape[:d], *aval.shape[d + 1 :]), aval.dtype)))

    def function(tracers: list[Any]) -> Any:
        row_args, row_kwargs = tree.unflatten(treedef, tracers)
        return f(*row_args, **row_kwargs)

    traced = trace(function, inputs, names, name=name, purpose="vmap", shows=True)
    with doing(f"vectorizing {name}"):
        program = traced.program.remember("pruned", lambda: prune(traced.program))
        batched, out_dims = batch(program, size, (*[None] * len(traced.constants), *dims))
        point = [*traced.constants, *[value for value, _ in pairs]]
        values = evaluate(batched, point, traced.values)
        targets = _out_axes(name, out_axes, traced, out_dims)
        if isinstance(current(), Trace):
            moved = [_place(v, d, t, size) for v, d, t in zip(values, out_dims, targets, strict=True)]
        else:
            with eagerly():
                moved = [_place(v, d, t, size) for v, d, t in zip(values, out_dims, targets, strict=True)]
    return tree.unflatten(traced.out_tree, results(moved, point))


def _place(value: Any, dim: int | None, target: int | None, size: int) -> Any:
    return value if target is None else align(value, dim, target, size)


def _size(
    name: str, dims: list[int | None], pairs: list[tuple[Any, Aval]], names: list[str], axis_size: int | None
) -> int:
    found = [(aval.shape[d], n, aval) for d, (_, aval), n in zip(dims, pairs, names, strict=True) if d is not None]
    if axis_size is not None:
        found.insert(0, (axis_size, "axis_size", make_aval((), pairs[0][1].dtype) if pairs else None))  # type: ignore[arg-type]
    if not found:
        raise ArgumentError(
            f"vmap: no argument of {name} has rows (all of in_axes is None)", hint="vmap(f, axis_size=n)"
        )
    size, first, aval = found[0]
    for other, n, other_aval in found[1:]:
        if other != size:
            a = "axis_size" if first == "axis_size" else f"{first}: {aval}"
            raise ShapeError(f"vmap: numbers of rows differ: {size} in {a}, {other} in {n}: {other_aval}")
    return size


def _out_axes(name: str, out_axes: Any, traced: Any, out_dims: tuple[int | None, ...]) -> list[int | None]:
    targets = tree.broadcast_prefix(out_axes, traced.out_tree, "out_axes", _is_axis)
    out: list[int | None] = []
    for i, (target, dim, aval) in enumerate(zip(targets, out_dims, traced.program.out_avals, strict=True)):
        if target is None and dim is not None:
            path = tree.leaf_paths(traced.out_tree, "result")[i]
            raise TreeError(
                f"vmap: out_axes is None for {path} of {name}, but it differs from row to row", hint="out_axes=0"
            )
        out.append(_axis(target, aval.ndim + 1, f"a result {aval} with rows"))
    return out
