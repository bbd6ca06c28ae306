"""jacfwd, jacrev, hessian, hvp: the function is traced once, and its linear Program is run on a whole basis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from funcgrad.api.forward import jvp
from funcgrad.api.linearization import (
    Linearization,
    arguments,
    linearization,
    positions_of,
    require_inexact,
    there,
    traced_for,
)
from funcgrad.api.reverse import grad
from funcgrad.api.tracing import boundary, function_name, like_function, require_callable, results
from funcgrad.base import tree
from funcgrad.base.dtypes import INT, Dtype, is_inexact
from funcgrad.base.errors import ArgumentError, DtypeError, doing
from funcgrad.core.evaluate import evaluate
from funcgrad.core.ir import Aval, make_aval
from funcgrad.core.trace import Trace, current, eagerly
from funcgrad.ops.arithmetic import add
from funcgrad.ops.broadcasting import align, reshape
from funcgrad.ops.comparison import eq
from funcgrad.ops.movement import convert, iota, slice_
from funcgrad.ops.op import constant
from funcgrad.transforms.batch import batch


def basis(avals: Sequence[Aval]) -> tuple[list[Any], list[int], int]:
    """The standard basis of the space of `avals`, one row per direction.

    Returns
    -------
    rows, offsets, size
        For each aval an array ``(size, *shape)``; the rows from its offset on hold its own directions.
    """
    sizes = [a.size for a in avals]
    size = sum(sizes)
    offsets = [sum(sizes[:i]) for i in range(len(sizes))]
    rows = [
        reshape(_shifted_identity(size, n, offset, a.dtype), (size, *a.shape))
        for a, n, offset in zip(avals, sizes, offsets, strict=True)
    ]
    return rows, offsets, size


def _shifted_identity(rows: int, columns: int, offset: int, dtype: Dtype) -> Any:
    trace = current()
    if not (isinstance(trace, Trace) and not trace.shows):
        return np.eye(rows, columns, -offset, dtype)
    shape = (rows, columns)
    column = add(iota(shape, INT, 1), constant(offset, make_aval(shape, INT)))
    return convert(eq(iota(shape, INT, 0), column), dtype)


def _block(value: Any, dim: int | None, out: Aval, leaf: Aval, offset: int, size: int, forward: bool) -> Any:
    """The derivative of one output by one leaf, of shape ``out.shape + leaf.shape``."""
    count = prod(leaf.shape if forward else out.shape)
    shape = leaf.shape if not forward else out.shape
    axis = len(shape) if forward else 0
    value = align(value, dim, axis, size)
    start = tuple(offset if i == axis else 0 for i in range(len(shape) + 1))
    stop = tuple(offset + count if i == axis else n for i, n in enumerate((*shape[:axis], size, *shape[axis:])))
    return reshape(slice_(value, start, stop, (1,) * (len(shape) + 1)), (*out.shape, *leaf.shape))


def _jacobian(f: Any, argnums: Any, has_aux: bool, forward: bool, transform: str) -> Callable[..., Any]:
    require_callable(f, transform)

    @boundary
    def jacobian_of(*args: Any, **kwargs: Any) -> Any:
        positions = positions_of(f, argnums, len(args), transform)
        a = arguments(f, args, kwargs, positions, transform)
        require_inexact(a, transform)
        traced, outputs, aux_tree = traced_for(a, transform, has_aux)
        outs = traced.program.out_avals[:outputs]
        for aval in outs:
            if not is_inexact(aval.dtype):
                raise DtypeError(
                    f"{transform} takes a function with float results, but {function_name(f)} returns {aval}"
                )
        leaves = [aval for _, aval in a.leaves]
        with doing(f"differentiating {function_name(f)}"):
            lin = linearization(a, traced, outputs)
            if isinstance(current(), Trace):
                blocks = _blocks(lin, outs, leaves, forward)
            else:
                with eagerly():
                    blocks = _blocks(lin, outs, leaves, forward)
        borrowed = [*lin.residuals, *a.values, *traced.constants]
        flat = results(there([b for row in blocks for b in row], lin.device), borrowed)
        rows = [flat[i * len(leaves) : (i + 1) * len(leaves)] for i in range(len(outs))]
        single = not isinstance(argnums, tuple | list)
        trees = [tree.unflatten(a.treedef, row) for row in rows]
        answer = tree.unflatten(traced.out_tree, [t[0] if single else t for t in trees])
        if has_aux:
            assert aux_tree is not None
            return answer, tree.unflatten(aux_tree, results(lin.outputs[outputs:], borrowed))
        return answer

    return jacobian_of


def _blocks(lin: Linearization, outs: Sequence[Aval], leaves: Sequence[Aval], forward: bool) -> list[list[Any]]:
    moves = lin.moves[: len(outs)]
    sources = leaves if forward else [o for o, m in zip(outs, moves, strict=True) if m]
    rows, offsets, size = basis(sources)
    structural = size > 1  # the basis of one scalar is 1: it has no zeros
    if forward:
        program, flags = lin.forward(structural), lin.moves
    else:
        program, flags = lin.backward((True,) * sum(moves), structural)
    batched, dims = batch(program, size, (None,) * len(lin.residuals) + (0,) * len(rows))
    values = iter(zip(evaluate(batched, [*lin.residuals, *rows], device=lin.device), dims, strict=True))
    found = [next(values) if flag else None for flag in flags]
    starts = iter(offsets)
    row_offsets = [next(starts) if m and not forward else 0 for m in moves]
    out: list[list[Any]] = []
    for i, o in enumerate(outs):
        row = []
        for j, leaf in enumerate(leaves):
            pair = found[i] if forward else found[j]
            if pair is None or not moves[i]:
                row.append(constant(0, make_aval((*o.shape, *leaf.shape), leaf.dtype if not forward else o.dtype)))
            else:
                offset = offsets[j] if forward else row_offsets[i]
                row.append(_block(pair[0], pair[1], o, leaf, offset, size, forward))
        out.append(row)
    return out


def jacfwd(f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """The Jacobian of `f`, one column at a time (forward mode, all columns in one batch): for few inputs.

    Parameters
    ----------
    f
        Returns a pytree of float arrays.
    argnums, has_aux
        As in `grad`.

    Returns
    -------
    function
        Its result has the tree of the output of `f`, with a tree like the argument in place of each leaf; shapes
        are ``output.shape + argument.shape``.

    Examples
    --------
    >>> import numpy as np, funcgrad as fg
    >>> fg.jacfwd(lambda x: x**2)(np.array([1.0, 2.0])).tolist()
    [[2.0, 0.0], [0.0, 4.0]]
    """
    return like_function(f, _jacobian(f, argnums, has_aux, True, "jacfwd"), "jacfwd", "The Jacobian of {name}.")  # type: ignore[no-any-return]


def jacrev(f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """The Jacobian of `f`, one row at a time (reverse mode, all rows in one batch): for few outputs.

    The result is that of `jacfwd`.
    """
    return like_function(f, _jacobian(f, argnums, has_aux, False, "jacrev"), "jacrev", "The Jacobian of {name}.")  # type: ignore[no-any-return]


jacobian = jacrev


def hessian(f: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Callable[..., Any]:
    """The matrix of second derivatives of `f`: forward over reverse mode.

    Returns
    -------
    function
        For one array argument of shape s and a scalar `f`, the result has shape ``s + s``; for pytrees it is a
        tree of trees.

    Examples
    --------
    >>> import numpy as np, funcgrad as fg
    >>> fg.hessian(lambda x: x[0] ** 2 * x[1])(np.array([1.0, 3.0])).tolist()
    [[6.0, 2.0], [2.0, 0.0]]
    """
    inner = _jacobian(f, argnums, has_aux, False, "hessian")
    outer = _jacobian(inner, argnums, has_aux, True, "hessian")
    return like_function(f, outer, "hessian", "The Hessian of {name}.")  # type: ignore[no-any-return]


def hvp(f: Callable[..., Any], primals: Any, tangents: Any) -> Any:
    """The Hessian of `f` times a vector, without the Hessian: costs a few evaluations of `f`.

    Parameters
    ----------
    f
        Returns a real scalar.
    primals, tangents
        Tuples with one entry per argument: the point and the vector.

    Returns
    -------
    pytree
        Like the argument; a tuple with one entry per argument if there are several.

    Examples
    --------
    >>> import numpy as np, funcgrad as fg
    >>> fg.hvp(lambda x: (x**3).sum(), (np.array([1.0, 2.0]),), (np.array([1.0, 1.0]),)).tolist()
    [6.0, 12.0]
    """
    if not isinstance(primals, tuple | list):
        raise ArgumentError(
            f"hvp: primals is a tuple with one entry per argument, got {type(primals).__name__}",
            hint="hvp(f, (x,), (v,))",
        )
    argnums = tuple(range(len(primals)))
    product = jvp(grad(f, argnums), primals, tangents)[1]
    return product[0] if len(argnums) == 1 else product
