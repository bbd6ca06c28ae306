"""Branches: cond and switch. Both are the primitive `branch`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad.api.tracing import boundary, role_of
from funcgrad.base import tree
from funcgrad.base.dtypes import promote
from funcgrad.base.errors import ArgumentError, BranchTypeError, printed
from funcgrad.control.assemble import apply, assemble
from funcgrad.control.branch import branch
from funcgrad.control.loop import INDEX
from funcgrad.core.ir import Aval, Program, make_aval
from funcgrad.core.trace import Tracer, describe, value_of
from funcgrad.lax.bodies import Body, finish, leaves_of, require_function, run_bound, trace_body
from funcgrad.lax.plain import plain_call, plainly
from funcgrad.numpy.operands import array, as_dtype
from funcgrad.ops.extrema import minimum
from funcgrad.ops.movement import convert
from funcgrad.ops.op import aval_of


@boundary
def cond(pred: Any, true_fun: Callable[..., Any], false_fun: Callable[..., Any], *operands: Any) -> Any:
    """``true_fun(*operands) if pred else false_fun(*operands)``; only the one that is chosen is computed.

    Parameters
    ----------
    pred
        A scalar; a number counts as true where it is not 0.
    true_fun, false_fun
        Return pytrees of the same structure and shapes; dtypes are promoted as `numpy.where` does.

    Raises
    ------
    BranchTypeError
        The results have different structures or shapes.

    Examples
    --------
    >>> import numpy as np, funcgrad as fg
    >>> f = lambda x: fg.lax.cond(x > 0, np.sqrt, lambda x: 0.0 * x, x)
    >>> float(fg.grad(f)(4.0)), float(fg.grad(f)(0.0))
    (0.25, 0.0)
    """
    roles = ("false_fun", "true_fun")
    for f, role in zip((true_fun, false_fun), reversed(roles), strict=True):
        require_function(f, "cond", role)
    flag = _scalar(pred, "cond: pred")
    if plainly(flag):
        return plain_call(true_fun if value_of(flag) else false_fun, operands)
    index = convert(flag, np.dtype(bool)) if flag.dtype.kind != "b" else flag
    return _choose("cond", lambda: convert(index, INDEX.dtype), [false_fun, true_fun], roles, operands)


@boundary
def switch(index: Any, branches: Sequence[Callable[..., Any]], *operands: Any) -> Any:
    """``branches[index](*operands)``; only the one that is chosen is computed.

    Parameters
    ----------
    index
        An integer scalar; clamped to the branches that there are.
    branches
        Functions that return pytrees of the same structure and shapes; dtypes are promoted.

    Raises
    ------
    BranchTypeError
        The results have different structures or shapes.

    Examples
    --------
    >>> import numpy as np, funcgrad as fg
    >>> float(fg.lax.switch(1, [np.sin, np.cos, np.tan], 0.0))
    1.0
    """
    if not isinstance(branches, Sequence) or not branches:
        raise ArgumentError(f"switch: branches is a list of functions, got {printed(branches)}")
    roles = tuple([f"branch {i}" for i in range(len(branches))])
    for f, role in zip(branches, roles, strict=True):
        require_function(f, "switch", role)
    number = _scalar(index, "switch: index")
    if number.dtype.kind not in "biu":
        raise ArgumentError(f"switch: index is an integer scalar, got {describe(number)}")
    if plainly(number):
        return plain_call(branches[min(max(int(value_of(number)), 0), len(branches) - 1)], operands)
    if number.dtype.kind == "u":
        number = _clamped(number, len(branches))
    return _choose("switch", lambda: convert(number, INDEX.dtype), list(branches), roles, operands)


def _clamped(number: Any, count: int) -> Any:
    return run_bound(lambda: [minimum(number, number.dtype.type(min(count, 255)))])[0]


def _scalar(x: Any, what: str) -> Any:
    value = array(x, what)
    if aval_of(value).shape:
        raise ArgumentError(f"{what} is a scalar, got {describe(value)}", hint="np.any(...), or vmap over the rows")
    return value


def _choose(
    name: str, index: Callable[[], Any], functions: list[Callable[..., Any]], roles: Sequence[str], operands: Any
) -> Any:
    leaves, treedef, paths = leaves_of(operands, "operands")
    values = [array(x) for x in leaves]
    avals = [make_aval(a.shape, a.dtype) for a in map(aval_of, values)]
    values = [as_dtype(v, a.dtype) for v, a in zip(values, avals, strict=True)]
    both = list(zip(functions, roles, strict=True))
    bodies = [trace_body(f, treedef, avals, paths, name, role) for f, role in both]
    outs = _common(name, bodies, [role_of(f, role) for f, role in both])
    constants, programs = _joined(bodies, avals, outs)
    out = finish(run_bound(lambda: branch(programs, index(), *constants, *values)), [*constants, *values])
    return tree.unflatten(bodies[0].out_tree, out)


def _common(name: str, bodies: list[Body], who: list[str]) -> list[Aval]:
    """The types of the results that all branches are brought to."""
    first = bodies[0]
    for body, f in zip(bodies[1:], who[1:], strict=True):
        if body.out_tree != first.out_tree:
            what = f"{name}: {f} against {who[0]}: the result"
            raise BranchTypeError(tree.describe_mismatch(what, first.out_tree, body.out_tree))
    paths = tree.leaf_paths(first.out_tree, "result")
    out = []
    for path, *column in zip(paths, *[b.program.out_avals for b in bodies], strict=True):
        for a, f in zip(column, who, strict=True):
            if a.shape != column[0].shape:
                raise BranchTypeError(
                    f"{name}: {path} is {column[0]} in {who[0]} and {a} in {f}",
                    hint="make the branches return the same shapes",
                )
        out.append(make_aval(column[0].shape, promote(*[a.dtype for a in column])))
    return out


def _joined(bodies: list[Body], avals: list[Aval], outs: list[Aval]) -> tuple[list[Any], tuple[Program, ...]]:
    """The captures of all branches together, and Programs that take the index, all of these and the operands."""
    constants: list[Any] = []
    places: list[list[int]] = []
    seen: dict[Any, int] = {}
    for body in bodies:
        places.append([])
        for c in body.constants:
            key = c.atom if type(c) is Tracer else id(c)
            if key not in seen:
                seen[key] = len(constants)
                constants.append(c)
            places[-1].append(seen[key])
    types = [INDEX, *[aval_of(c) for c in constants], *avals]

    def program(body: Body, own: list[int]) -> Program:
        def function(index: Any, *args: Any) -> list[Any]:
            results = apply(body.program, *[args[k] for k in own], *args[len(constants) :])
            return [convert(r, a.dtype) for r, a in zip(results, outs, strict=True)]

        key = ("branch", tuple(own), tuple(types), tuple(outs))
        return body.program.remember(key, lambda: assemble(body.program.name, types, function))

    return constants, tuple([program(b, own) for b, own in zip(bodies, places, strict=True)])


__all__ = ["cond", "switch"]
