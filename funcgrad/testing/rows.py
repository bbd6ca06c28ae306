"""check_vmap: vmap against a Python loop over the rows, for values and derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from funcgrad.api import jvp, vjp, vmap
from funcgrad.api.tracing import Traced, boundary, function_name, positional_names, require_callable, trace
from funcgrad.base import tree
from funcgrad.base.errors import ArgumentError, AxisError, CheckError, ForwardModeError, doing
from funcgrad.core.evaluate import run
from funcgrad.core.ir import Equation, Literal, Program, make_aval
from funcgrad.core.stacked import Stacked
from funcgrad.core.trace import eagerly
from funcgrad.numpy.operands import operand
from funcgrad.ops.broadcasting import align
from funcgrad.testing.check import checked_rng
from funcgrad.testing.compare import Mismatch, number, tolerance_for
from funcgrad.testing.culprits import called
from funcgrad.testing.flat import argument_tuple, element, is_float, paths, random_like, require_inputs, require_no_text
from funcgrad.testing.walking import alone, bodies, compute
from funcgrad.transforms.batch import batch

Dims = tuple[int | None, ...]


@dataclass(frozen=True)
class Rows:
    """A function of leaves, some of which have rows.

    Attributes
    ----------
    call : callable
        The function of one row: takes the leaves one by one, returns a tuple.
    leaves : list
    dims : tuple
        For each leaf the axis of its rows, or None.
    outputs : list of str
        What each result is called.
    """

    call: Callable[..., tuple[Any, ...]]
    leaves: list[Any]
    dims: Dims
    outputs: list[str]

    @property
    def size(self) -> int:
        """The number of rows."""
        return next(np.shape(x)[d] for x, d in zip(self.leaves, self.dims, strict=True) if d is not None)

    def row(self, i: int) -> list[Any]:
        """The leaves of one row."""
        pairs = zip(self.leaves, self.dims, strict=True)
        return [x if d is None else np.take(x, i, axis=d)[()] for x, d in pairs]

    def one_by_one(self) -> list[Any]:
        """The results of a loop."""
        found = [[np.asarray(y) for y in self.call(*self.row(i))] for i in range(self.size)]
        return [np.stack(column) for column in zip(*found, strict=True)]

    def at_once(self) -> list[Any]:
        """The results of vmap."""
        return [np.asarray(y) for y in vmap(self.call, in_axes=self.dims)(*self.leaves)]

    def traced(self, i: int) -> Traced:
        """What the function does for one row."""
        values = [operand(x, "x") for x in self.row(i)]
        pairs = [(None, make_aval(np.shape(x), np.asarray(x).dtype)) for x in values]
        return trace(lambda t: self.call(*t), pairs, [""] * len(pairs), name="f", purpose="check_vmap", shows=False)


@boundary
def check_vmap(
    f: Callable[..., Any],
    args: Sequence[Any],
    in_axes: Any = 0,
    *,
    derivatives: bool = True,
    seed: int = 0,
    rtol: float | None = None,
) -> None:
    """Raise `CheckError` unless ``vmap(f, in_axes)`` gives what a loop over the rows gives, derivatives included.

    Parameters
    ----------
    f
        The function of one row.
    args
        A tuple of arguments by position, with rows; at least one of these.
    in_axes
        As for `vmap`.
    derivatives
        Whether tangents and cotangents are compared, too.
    seed
        Of the random ones of these.
    rtol
        By how much elements may differ, relative to the largest of a result. Default: 4096 rounding errors of its
        dtype, but 3 % at most (float16). Integers and truth values are equal.

    Raises
    ------
    CheckError
        Says which element of which row differs, of the value, of a tangent (forward mode) or of a cotangent (reverse
        mode), and which operation does if it is alone.

    Examples
    --------
    >>> import numpy as np
    >>> from funcgrad.testing import check_vmap
    >>> check_vmap(np.dot, (np.eye(2), np.array([3.0, 4.0])), in_axes=(0, None))
    """
    require_callable(f, "check_vmap")
    args = argument_tuple(args, "check_vmap")
    name, rng = function_name(f), checked_rng(seed, "check_vmap")
    require_inputs(f, args, "check_vmap")
    require_no_text(f, args, {}, "check_vmap")
    with doing(f"checking vmap of {name}"), np.errstate(all="ignore"):
        values = rows_of(f, args, in_axes)
        require_same(values, name, rtol)
        for rows in derived(values, _names(f, args), rng) if derivatives else ():
            require_same(rows, name, rtol)


def _names(f: Any, args: tuple[Any, ...]) -> list[str]:
    return [n for root, a in zip(positional_names(f, len(args)), args, strict=True) for n in paths(a, root)]


def rows_of(f: Callable[..., Any], args: tuple[Any, ...], in_axes: Any) -> Rows:
    """A function of pytrees as a function of leaves."""
    leaves, treedef = tree.flatten(args)
    in_axes = tuple(in_axes) if isinstance(in_axes, list) else in_axes
    given = tree.broadcast_prefix(in_axes, treedef, "in_axes", lambda d: d is None or isinstance(d, int))
    for x, d in zip(leaves, given, strict=True):
        if d is not None and not -np.ndim(x) <= d < np.ndim(x):
            raise AxisError(f"check_vmap: axis {d} is out of range for an argument of shape {np.shape(x)}")
    dims = tuple([None if d is None else d % np.ndim(x) for x, d in zip(leaves, given, strict=True)])
    if all([d is None for d in dims]):
        raise ArgumentError("check_vmap: no argument has rows", hint="check_vmap(f, (x, 2.0), in_axes=(0, None))")
    if not Rows(f, leaves, dims, []).size:
        raise ArgumentError("check_vmap: there are no rows to compare, because the arguments have 0 of them")

    def call(*row: Any) -> tuple[Any, ...]:
        return tuple(tree.flatten(f(*tree.unflatten(treedef, row)))[0])

    first = f(*tree.unflatten(treedef, Rows(call, leaves, dims, []).row(0)))
    return Rows(call, leaves, dims, paths(first, "result"))


def derived(rows: Rows, names: Sequence[str], rng: np.random.Generator) -> list[Rows]:
    """The derivatives along random tangents, and weighed by random cotangents, of every row its own."""
    first = rows.row(0)
    moving = [i for i, x in enumerate(first) if is_float(x)]
    kept = [k for k, y in enumerate(rows.call(*first)) if is_float(y)]
    if not moving or not kept:
        return []
    n, m = len(first), len(moving)

    def of_floats(leaves: Sequence[Any]) -> Callable[..., tuple[Any, ...]]:
        def call(*x: Any) -> tuple[Any, ...]:
            given = list(leaves)
            for i, value in zip(moving, x, strict=True):
                given[i] = value
            found = rows.call(*given)
            return tuple([found[k] for k in kept])

        return call

    def forward(*given: Any) -> tuple[Any, ...]:
        return tuple(jvp(of_floats(given[:n]), tuple([given[i] for i in moving]), given[n:])[1])

    def reverse(*given: Any) -> tuple[Any, ...]:
        return tuple(vjp(of_floats(given[:n]), *[given[i] for i in moving])[1](given[n:]))

    values = [np.asarray(y) for y in rows.call(*first)]
    draw = lambda arrays: random_like([np.stack([np.asarray(a)] * rows.size) for a in arrays], rng)
    out = []
    weights = draw([values[k] for k in kept])
    tangents = Rows(
        forward,
        [*rows.leaves, *draw([first[i] for i in moving])],
        (*rows.dims, *[0] * m),
        [f"the tangent of {rows.outputs[k]}" for k in kept],
    )
    try:
        tangents.call(*tangents.row(0))
        out.append(tangents)
    except ForwardModeError:  # a function with a backward rule only
        pass
    cotangents = [f"the cotangent of {names[i]}" for i in moving]
    out.append(Rows(reverse, [*rows.leaves, *weights], (*rows.dims, *[0] * len(kept)), cotangents))
    return out


def require_same(rows: Rows, name: str, rtol: float | None) -> None:
    """Raise unless vmap and a loop agree."""
    found, expected = rows.at_once(), rows.one_by_one()
    for path, a, b in zip(rows.outputs, found, expected, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            raise CheckError(f"vmap of {name}: {path} is {a.dtype} {a.shape}, but row by row {b.dtype} {b.shape}")
    off = mismatch(found, expected, rtol)
    if off is None:
        return
    place = element(rows.outputs[off.output], found[off.output].shape, off.element)
    said = f"vmap of {name}: {place} is {number(off.found)}, but row by row it is {number(off.expected)}"
    said += f"; {slack_of(found[off.output].dtype, rtol):.1g} of the largest is allowed"
    culprit = batched_otherwise(rows, rtol)
    if culprit is None:
        raise CheckError(said, hint="the first index is the row")
    e, of_it = culprit
    raise CheckError(said, culprit=f"{called(e)}: {of_it}", source=e.source, hint="the first index is the row")


def slack_of(dtype: Any, rtol: float | None) -> float:
    """What floats of a dtype may differ by, relative to the largest number of an array; others are equal."""
    return 0.0 if dtype.kind not in "fc" else tolerance_for(dtype).slack if rtol is None else rtol


def mismatch(found: Sequence[Any], expected: Sequence[Any], rtol: float | None) -> Mismatch | None:
    """Where two lists of arrays differ most, if they do: floats by more than they may, or others at all."""
    most, off = 1.0, None
    for k, (a, b) in enumerate(zip(map(np.asarray, found), map(np.asarray, expected), strict=True)):
        excess = _excess(a, b, rtol)
        if excess.size and excess.max() > most:
            i = int(np.argmax(excess))
            most, off = float(excess.flat[i]), Mismatch(k, i, a.flat[i], b.flat[i], 0.0)
    return off


def _excess(a: Any, b: Any, rtol: float | None) -> Any:
    """How many times what is allowed each element is off."""
    with np.errstate(all="ignore"):
        equal = (a == b) | ((a != a) & (b != b))
        if a.dtype.kind not in "fc":
            return np.where(equal, 0.0, np.inf)
        finite = np.isfinite(b)
        largest = np.max(abs(b), initial=0.0, where=finite)
        allowed = slack_of(a.dtype, rtol) * (abs(b) + largest)
        off = abs(a - b) / np.maximum(allowed, np.finfo(a.dtype).tiny)
        return np.where(equal, 0.0, np.where(np.isfinite(a) & finite, off, np.inf))


# -- the operation


def batched_otherwise(rows: Rows, rtol: float | None) -> tuple[Equation, str] | None:
    """The first operation of one row whose batching rule gives something else than a loop."""
    traced = rows.traced(0)
    singles = [[*traced.constants, *rows.row(i)] for i in range(rows.size)]
    dims = (*[None] * len(traced.constants), *rows.dims)
    return _batched_otherwise(traced.program, singles, [*traced.constants, *rows.leaves], dims, rtol)


def _batched_otherwise(
    program: Program, singles: Sequence[Sequence[Any]], whole: Sequence[Any], dims: Dims, rtol: float | None
) -> tuple[Equation, str] | None:
    """Each equation, on the values of every row, and on all of them at once with rows along `dims`."""
    size = len(singles)
    plain = lambda x: x if isinstance(x, np.ndarray | np.generic | Stacked) else np.asarray(x)[()]
    envs = [dict(zip(program.inputs, map(plain, row), strict=True)) for row in singles]
    all_rows = {v: (plain(x), d) for v, x, d in zip(program.inputs, whole, dims, strict=True)}
    for e in program.equations:
        operands = [[a.array if isinstance(a, Literal) else env[a] for a in e.inputs] for env in envs]
        given = [(a.array, None) if isinstance(a, Literal) else all_rows[a] for a in e.inputs]
        with eagerly():
            results = [compute(e, row) for row in operands]
            batched, out_dims = batch(alone(e), size, tuple([d for _, d in given]))
            found = run(batched, [x for x, _ in given])
            if any([isinstance(y, Stacked) for y in found]):
                return None
            aligned = [np.asarray(align(y, d, 0, size)) for y, d in zip(found, out_dims, strict=True)]
        off = mismatch(aligned, [np.stack(column) for column in zip(*results, strict=True)], rtol)
        if off is not None:
            said = f"its own result with rows is {number(off.found)} where each row alone gives {number(off.expected)}"
            return _inside(e, operands, rtol) or (e, said)
        for env, row in zip(envs, results, strict=True):
            env.update(zip(e.outputs, row, strict=True))
        all_rows.update(zip(e.outputs, zip(found, out_dims, strict=True), strict=True))
    return None


def _inside(e: Equation, operands: Sequence[Sequence[Any]], rtol: float | None) -> tuple[Equation, str] | None:
    """The same inside of an operation that holds Programs, round by round, as long as every row has one."""
    for rounds in zip(*[bodies(e, row) for row in operands], strict=False):
        body = rounds[0][1]
        if any([other is not body for _, other, _ in rounds]):
            return None
        singles = [inputs for _, _, inputs in rounds]
        if any([isinstance(x, Stacked) for x in singles[0]]):
            return None
        whole = [np.stack([np.asarray(x) for x in column]) for column in zip(*singles, strict=True)]
        found = _batched_otherwise(body, singles, whole, (0,) * len(whole), rtol)
        if found is not None:
            return found
    return None
