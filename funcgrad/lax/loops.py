"""Loops: scan, map, fori_loop, while_loop. All of them are the primitive `loop`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from funcgrad.api.tracing import boundary, called_with, function_name, role_of
from funcgrad.api.vectorize import vmap
from funcgrad.base import tree
from funcgrad.base.dtypes import BOOL
from funcgrad.base.errors import (
    ArgumentError,
    CarryTypeError,
    ParameterError,
    ShapeError,
    TracerIntegerConversionError,
    printed,
)
from funcgrad.control.assemble import apply, assemble
from funcgrad.control.loop import INDEX, UNLIMITED, loop
from funcgrad.core.evaluate import evaluate
from funcgrad.core.ir import Program, Var, make_aval
from funcgrad.core.trace import Tracer, describe, value_of
from funcgrad.lax.blocks import SHORTEST, scan_blocks
from funcgrad.lax.bodies import Body, Carry, finish, leaves_of, require_function, run_bound, trace_body
from funcgrad.lax.plain import plain_fori, plain_scan, plain_while, plainly
from funcgrad.numpy import concatenate, reshape
from funcgrad.numpy.operands import array, as_dtype
from funcgrad.numpy.parameters import flag
from funcgrad.ops.arithmetic import add, sub
from funcgrad.ops.extrema import maximum
from funcgrad.ops.op import aval_of


@boundary
def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    *,
    checkpoint: int = 0,
) -> tuple[Any, Any]:
    """Carry a state through a sequence: ``carry, y = f(carry, x)`` for every x, as one loop.

        def scan(f, init, xs):
            carry, ys = init, []
            for x in xs:
                carry, y = f(carry, x)
                ys.append(y)
            return carry, np.stack(ys)

    Parameters
    ----------
    f
        ``f(carry, x) -> (carry, y)``; pytrees. The carry comes back with the structure, shapes and dtypes it came with.
    init
        The first carry. Python scalars take the dtype that `f` returns.
    xs
        Arrays with the same number of rows; None for none.
    length
        The number of trips, if there are no `xs`.
    reverse
        Run from the last row to the first; ys keep the order of xs.
    unroll
        Accepted for compatibility; the compiler decides.
    checkpoint
        Levels k of computing again in reverse mode. It then keeps about ``(k + 1) * n ** (1 / (k + 1))`` carries in
        place of what each of n trips computes, and runs each trip up to k + 1 times more. 1 is enough for most; with
        k = log2(n) there are about log2(n) carries.

    Returns
    -------
    carry, ys
        The last carry, and the stacked y, with as many rows as `xs`.

    Raises
    ------
    CarryTypeError, TreeError
        The carry comes back as something else.
    ShapeError
        The numbers of rows differ.
    ArgumentError
        `length` or `checkpoint` is not a whole number of trips or levels.

    Examples
    --------
    >>> import numpy as np, funcgrad as fg
    >>> total, sums = fg.lax.scan(lambda c, x: (c + x, c + x), 0.0, np.array([1.0, 2.0, 3.0]))
    >>> float(total), sums.tolist()
    (6.0, [1.0, 3.0, 6.0])
    """
    require_function(f, "scan", "f")
    return _scan(f, init, xs, length, flag("scan", "reverse", reverse), levels=_levels(checkpoint))


def _scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any,
    length: Any,
    reverse: bool,
    snapshots: int = 0,
    *,
    levels: int = 0,
    name: str = "scan",
) -> tuple[Any, Any]:
    """`scan` in blocks, if there are levels; else as one loop."""
    rows, x_tree, x_paths = leaves_of(xs, "xs")
    rows = [array(x) for x in rows]
    trips = _trips(rows, x_paths, length, name)
    if plainly() and trips:
        return plain_scan(f, init, rows, x_tree, trips, reverse)
    carry = Carry.of(init, "carry")
    both = tree.structure((tree.unflatten(carry.tree, carry.values), tree.unflatten(x_tree, rows)))
    elems = [make_aval(aval_of(x).shape[1:], aval_of(x).dtype) for x in rows]
    while True:
        avals = [*carry.avals, *elems]
        body = trace_body(f, both, avals, [*carry.paths, *[f"{p}[i]" for p in x_paths]], name, "f")
        carry_tree, y_tree = _pair(body.out_tree, role_of(f, "f"))
        n = carry_tree.num_leaves
        if carry.meets("scan", carry_tree, body.program.out_avals[:n]):
            break
    if levels and trips >= SHORTEST:
        start, sequence = tree.unflatten(carry.tree, carry.values), tree.unflatten(x_tree, rows)
        return scan_blocks(_scan, f, start, sequence, trips, reverse, levels)
    program = _with_index(body)
    form = {"length": trips, "reverse": reverse, "snapshots": snapshots}
    run = lambda: loop(program, np.int64(trips), body.constants, carry.values, rows, **form)
    out = finish(run_bound(run), [*body.constants, *carry.values, *rows])
    return tree.unflatten(carry.tree, out[:n]), tree.unflatten(y_tree, out[n:])


def _levels(checkpoint: Any) -> int:
    """How often a scan is divided into blocks."""
    if not isinstance(checkpoint, int | np.integer) or checkpoint < 0:
        raise ArgumentError(f"scan: checkpoint is a number of levels, got {printed(checkpoint)}")
    return int(checkpoint)


def _trips(rows: list[Any], paths: list[str], length: Any, name: str) -> int:
    """The number of rows that all agree on."""
    found: tuple[int, str] | None = None
    if length is not None:
        try:
            found = length.__index__(), "length"
        except TracerIntegerConversionError as error:
            error.hint = "a static length: static_argnums=...; or fori_loop(0, n, body, init), whose n may be traced"
            raise
        except (AttributeError, TypeError):
            raise ArgumentError(f"scan: length is a number of trips, got {printed(length)}") from None
        if found[0] < 0:
            raise ArgumentError(f"scan: length is a number of trips, got {printed(length)}")
    for x, path in zip(rows, paths, strict=True):
        a = aval_of(x)
        if not a.shape:
            raise ShapeError(f"{name}: {path} has no rows: {describe(x)}")
        if found is None:
            found = a.shape[0], f"{path}: {a}"
        elif a.shape[0] != found[0]:
            raise ShapeError(f"{name}: numbers of rows differ: {found[0]} in {found[1]}, {a.shape[0]} in {path}: {a}")
    if found is None:
        raise ArgumentError(
            f"{name}: neither xs nor length says how many trips there are", hint="scan(f, init, length=n)"
        )
    return found[0]


def _pair(out_tree: tree.Treedef, who: str) -> tuple[tree.Treedef, tree.Treedef]:
    children = out_tree.children()
    if out_tree.type is not tuple or len(children) != 2:
        found = "one array" if out_tree.is_leaf() else tree.described(out_tree)
        raise ArgumentError(f"scan: {who} returns {found}, not a pair (carry, y)", hint="return carry, None")
    return children[0], children[1]


def _with_index(body: Body, first: int = 0) -> Program:
    """The Program of a body with the number of the trip as its first input; it ignores that, or has it at `first`."""
    p = body.program
    return p.remember("with index", lambda: Program((Var(INDEX), *p.inputs), p.equations, p.outputs, p.name))


@boundary
def fori_loop(lower: Any, upper: Any, body_fun: Callable[[Any, Any], Any], init_val: Any, *, unroll: Any = None) -> Any:
    """``for i in range(lower, upper): val = body_fun(i, val)``, as one loop.

    Parameters
    ----------
    lower, upper
        Integers, static or traced. Both directions of differentiation work for either.
    body_fun
        ``body_fun(i, val) -> val``; i is int64.
    init_val
        The first val, a pytree. Python scalars take the dtype that `body_fun` returns.
    unroll
        Accepted for compatibility; the compiler decides.

    Raises
    ------
    CarryTypeError, TreeError
        val comes back as something else.

    Examples
    --------
    >>> import funcgrad as fg
    >>> float(fg.grad(lambda x: fg.lax.fori_loop(0, 3, lambda i, y: x * y, 1.0))(2.0))
    12.0
    """
    require_function(body_fun, "fori_loop", "body_fun")
    low, high = _bound(lower, "lower"), _bound(upper, "upper")
    if plainly(low, high):
        return plain_fori(int(value_of(low)), int(value_of(high)), body_fun, init_val)
    static = isinstance(low, int) and isinstance(high, int)
    if static and high - low >= 2**63:
        raise ParameterError(f"fori_loop: {low} ... {high} has more trips than int64 counts")
    carry = Carry.of(init_val, "val")
    both = tree.structure((0, tree.unflatten(carry.tree, carry.values)))
    while True:
        body = trace_body(body_fun, both, [INDEX, *carry.avals], ["i", *carry.paths], "fori_loop", "body_fun")
        if carry.meets("fori_loop", body.out_tree, body.program.out_avals):
            break
    program, start = _counted(body, low)
    trips: Any = max(high - low, 0) if static else None

    def run() -> Any:
        n = np.int64(trips) if static else maximum(sub(_int(high), _int(low)), np.int64(0))
        return loop(program, n, [*start, *body.constants], carry.values, [], length=trips)

    out = finish(run_bound(run), [*body.constants, *carry.values])
    return tree.unflatten(carry.tree, out)


def _bound(x: Any, what: str) -> Any:
    """A bound of a loop: a Python int if it is static."""
    if type(x) is not Tracer:
        try:
            bound = x.__index__()
        except (AttributeError, TypeError):
            raise ArgumentError(f"fori_loop: {what} is an integer, got {printed(x)}") from None
        if not -(2**63) <= bound < 2**63:
            raise ParameterError(f"fori_loop: {what} is an int64, got {bound}")
        return bound
    if x.shape or x.dtype.kind not in "iu":
        raise TracerIntegerConversionError(f"fori_loop: {what} is an integer scalar, got {describe(x)}")
    return as_dtype(x, INDEX.dtype)


def _int(x: Any) -> Any:
    return np.int64(x) if isinstance(x, int) else x


def _counted(body: Body, low: Any) -> tuple[Program, list[Any]]:
    """The Program of a body of fori_loop, whose index begins at `low`."""
    p = body.program
    k = len(body.constants)
    if isinstance(low, int) and low == 0:
        order = (p.inputs[k], *p.inputs[:k], *p.inputs[k + 1 :])
        return p.remember("counted", lambda: Program(order, p.equations, p.outputs, p.name)), []

    def shift() -> Program:
        avals = [INDEX, INDEX, *p.in_avals[:k], *p.in_avals[k + 1 :]]
        return assemble(p.name, avals, lambda i, low, *rest: apply(p, *rest[:k], add(i, low), *rest[k:]))

    return p.remember("counted from", shift), [_int(low)]


@boundary
def while_loop(cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any], init_val: Any) -> Any:
    """``while cond_fun(val): val = body_fun(val)``, as one loop.

    Differentiates in both directions, to any order; under `vmap` every row makes its own number of trips.

    Parameters
    ----------
    cond_fun
        ``cond_fun(val) -> bool``, a scalar.
    body_fun
        ``body_fun(val) -> val``; a pytree with the structure, shapes and dtypes it came with.
    init_val
        The first val. Python scalars take the dtype that `body_fun` returns.

    Raises
    ------
    CarryTypeError, TreeError
        val comes back as something else, or the condition is not a bool.

    Notes
    -----
    The reverse mode keeps what it needs of every trip: memory grows with the number of trips.

    Examples
    --------
    >>> import funcgrad as fg
    >>> root = lambda a: fg.lax.while_loop(lambda x: abs(x * x - a) > 1e-12, lambda x: 0.5 * (x + a / x), a)
    >>> round(float(fg.grad(root)(4.0)), 6)
    0.25
    """
    require_function(cond_fun, "while_loop", "cond_fun")
    require_function(body_fun, "while_loop", "body_fun")
    if plainly():
        ran, out = plain_while(cond_fun, body_fun, init_val)
        if ran:
            return out
    carry = Carry.of(init_val, "val")

    def step(val: Any) -> Any:
        val = called_with(ArgumentError, f"while_loop: {role_of(body_fun, 'body_fun')}", body_fun, (val,))
        return called_with(ArgumentError, f"while_loop: {role_of(cond_fun, 'cond_fun')}", cond_fun, (val,)), val

    step.__name__ = function_name(body_fun)
    one = tree.structure((tree.unflatten(carry.tree, carry.values),))
    while True:
        body = trace_body(step, one, carry.avals, carry.paths, "while_loop", "body_fun")
        _, out_tree = body.out_tree.children()
        _require_condition(body.program.out_avals[: len(body.program.outputs) - out_tree.num_leaves], cond_fun)
        if carry.meets("while_loop", out_tree, body.program.out_avals[1:]):
            break
    first = trace_body(cond_fun, one, carry.avals, carry.paths, "while_loop", "cond_fun")
    program = _tested(body)

    def run() -> Any:
        (test,) = _call(first, carry.values)
        return loop(program, UNLIMITED, body.constants, [test, *carry.values], [], test=True)[1:]

    out = finish(run_bound(run), [*body.constants, *carry.values])
    return tree.unflatten(carry.tree, out)


def _require_condition(avals: Any, cond_fun: Any) -> None:
    if list(avals) != [make_aval((), BOOL)]:
        found = ", ".join([str(a) for a in avals]) or "nothing"
        who = role_of(cond_fun, "cond_fun")
        raise CarryTypeError(f"while_loop: {who} returns {found}, not bool[]", hint="np.any(...)")


def _call(body: Body, args: list[Any]) -> Any:
    return evaluate(body.program, [*body.constants, *args])


def _tested(body: Body) -> Program:
    """The Program of a step with the index and the test before its other inputs."""
    p, k = body.program, len(body.constants)
    index, test = Var(INDEX), Var(make_aval((), BOOL))
    inputs = (index, *p.inputs[:k], test, *p.inputs[k:])
    return p.remember("tested", lambda: Program(inputs, p.equations, p.outputs, p.name))


@boundary
def map(f: Callable[[Any], Any], xs: Any, *, batch_size: int | None = None) -> Any:
    """`f` of every row of `xs`, one after the other, stacked; ``vmap`` does all rows at once.

    Parameters
    ----------
    f
        Function of one row; pytrees.
    xs
        Arrays with the same number of rows.
    batch_size
        Rows that are done at once, by `vmap`; the rest follows in one smaller batch.

    Examples
    --------
    >>> import numpy as np, funcgrad as fg
    >>> fg.lax.map(lambda x: x**2, np.arange(3.0)).tolist()
    [0.0, 1.0, 4.0]
    """
    require_function(f, "map", "f")
    if batch_size is None:
        row = lambda c, x: (c, called_with(ArgumentError, f"map: {role_of(f, 'f')}", f, (x,)))
        return _scan(row, None, xs, None, False, name="map")[1]
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        raise ArgumentError(f"map: batch_size is a number of rows, got {printed(batch_size)}")
    leaves, treedef, paths = leaves_of(xs, "xs")
    leaves = [array(x) for x in leaves]
    n = _trips(leaves, paths, None, "map")
    whole = n - n % batch_size
    parts = []
    if whole or not n:
        blocks = [reshape(x[:whole], (whole // batch_size, batch_size, *x.shape[1:])) for x in leaves]
        done = scan(lambda c, x: (c, vmap(f)(x)), None, tree.unflatten(treedef, blocks))[1]
        parts.append([reshape(y, (whole, *y.shape[2:])) for y in tree.flatten(done)[0]])
    if n > whole:
        rest = vmap(f)(tree.unflatten(treedef, [x[whole:] for x in leaves]))
        parts.append(tree.flatten(rest)[0])
        out_tree = tree.structure(rest)
    else:
        out_tree = tree.structure(done)
    return tree.unflatten(out_tree, [concatenate(p) if len(p) > 1 else p[0] for p in zip(*parts, strict=True)])


__all__ = ["fori_loop", "map", "scan", "while_loop"]
