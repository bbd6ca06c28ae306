"""Loops that do the same for every row, as loops over the rows: then each row is a thread, and not each trip a launch.

    carry: f64[1000, 3] = loop(300) ...        each trip computes row i from row i
    carry = rows(1000): loop(300) ...          row i makes its 300 trips alone, with f64[3] in registers

`vmap` of a loop whose rows make equally many trips gives such a loop, and so do many that nobody batched. Whether rows
are independent is read from the equations: each is asked for itself without one of its axes, from its results back to
what the loop is given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from funcgrad.base.dtypes import INT
from funcgrad.base.errors import FuncgradError
from funcgrad.core.ir import Atom, Aval, Equation, Literal, Program, Stack, Var, can_raise, make_aval
from funcgrad.core.primitive import registry
from funcgrad.lowering.registers.cells import is_small
from funcgrad.lowering.registers.kinds import fits
from funcgrad.lowering.simplify import simplify
from funcgrad.ops.dot import free

Axes = tuple[int, ...]
Without = tuple[list[int | None], dict[str, Any]]
INDEX = make_aval((), INT)


class Dependent(Exception):
    """A row needs others, or an operation is not known well enough."""


def spread(program: Program) -> Program:
    """`program`, flat, with the loops of independent rows as loops over rows that are threads."""
    return program.remember("spread", lambda: _spread(program))


def _spread(program: Program) -> Program:
    equations: list[Equation] = []
    for e in program.equations:
        rows = None
        if e.primitive.traits.kind == "loop" and not fits(e):
            try:
                rows = _over_rows(e)
            except (Dependent, FuncgradError):
                rows = None
        equations += rows or [e]
    if len(equations) == len(program.equations):
        return program
    return simplify(Program(program.inputs, tuple(equations), program.outputs, program.name, program.input_names))


def is_threads(e: Equation) -> bool:
    """Whether an equation is a loop over rows as `spread` makes it: straight-line code, and a loop at its end.

    Of that each row fits, apart from what its trips hand out.
    """
    p = e.params
    if e.primitive.traits.kind != "loop" or p["carry"] or p["test"] or not isinstance(e.inputs[0], Literal):
        return False
    body = p["body"]
    if not body.equations or body.equations[-1].primitive.traits.kind != "loop" or (p["length"] or 0) < 2:
        return False
    *before, inner = body.equations
    if any([isinstance(a.aval, Stack) for q in (e, *body.equations) for a in (*q.inputs, *q.outputs)]):
        return False
    kept = [*inner.outputs[: inner.params["carry"]], *[v for q in before for v in q.outputs]]
    kept += [a for a in body.outputs if a not in inner.outputs]
    once = all([is_small(v.aval) or body.outputs.count(v) == 1 for v in inner.outputs])
    return once and all([is_small(a.aval) for a in kept]) and all([fits(q) for q in body.equations])


# -- one loop


def _over_rows(e: Equation) -> list[Equation] | None:
    """A loop as a loop over its rows, with what is moved before and behind; None if a row is too much for a thread."""
    p = e.params
    body, consts, carry = p["body"], p["consts"], p["carry"]
    if any([isinstance(a.aval, Stack) for a in (*e.inputs, *e.outputs, *body.outputs)]):
        return None
    sizes = {v.aval.shape[0] for v in e.outputs[:carry] if v.aval.shape}
    if len(sizes) != 1 or min(sizes) < 2:
        return None
    (k,) = sizes
    kept = {1 + consts + j: 0 if v.aval.shape else None for j, v in enumerate(e.outputs[:carry])}
    part = Part(body, k, kept | {0: None})
    axes = [*kept.values(), *[part.axis_of(a) for a in body.outputs[carry:]]]
    needed = part.asked([*zip(body.outputs, axes, strict=True), *[(body.inputs[j], d) for j, d in kept.items()]])
    keys = [(j, axis) for j, v in enumerate(body.inputs) for axis in needed.get(v, ()) if j]
    row = part.made(needed, keys, axes)

    # The loop of a row, and the operands that all rows share, or that are rows of something.
    number, n = Var(INDEX), e.inputs[0]
    count = Var(n.aval) if isinstance(n, Var) else n
    items = [(e.inputs[j], axis if axis is None else axis + (j > consts + carry)) for j, axis in keys]
    inside = [Var(_row_of(a.aval, axis)) for a, axis in items]
    params = p | {"body": row, "consts": 1 + len([j for j, _ in keys if j <= consts])}
    loop = _apply(e.primitive, (count, number, *inside), params, e)
    fixed = [*([(count, n)] if isinstance(n, Var) else [])]
    fixed += [(v, a) for v, (a, axis) in zip(inside, items, strict=True) if axis is None]
    own = [(v, a, axis) for v, (a, axis) in zip(inside, items, strict=True) if axis is not None]
    around = Program((number, *[v for v, _ in fixed], *[v for v, *_ in own]), (loop,), loop.outputs, body.name)
    out: list[Equation] = []
    operands = [*[a for _, a in fixed], *[_rows_first(out, a, axis, e) for _, a, axis in own]]
    params = {"body": around, "consts": len(fixed), "carry": 0, "length": k, "test": False, "reverse": False}
    rows = _apply(e.primitive, (Literal(np.int64(k), INDEX), *operands), p | params | {"snapshots": 0}, e)
    if not is_threads(rows):
        return None
    out.append(rows)
    for j, (v, found, axis) in enumerate(zip(e.outputs, rows.outputs, axes, strict=True)):
        out += _rows_back(v, found, axis, j >= carry, e)
    return out


def _rows_first(out: list[Equation], a: Atom, axis: int, e: Equation) -> Atom:
    """An operand with its rows first."""
    if isinstance(a, Literal):
        return Literal(a.value, make_aval((a.aval.shape[axis], *_less(a.aval.shape, axis)), a.aval.dtype))
    if axis == 0:
        return a
    out.append(_apply(registry["transpose"], (a,), {"axes": (axis, *_less(range(a.aval.ndim), axis))}, e))
    return out[-1].outputs[0]


def _rows_back(v: Var, found: Var, axis: int | None, is_y: bool, e: Equation) -> list[Equation]:
    """Result `v` from its rows."""
    if axis is None:  # all rows have the same
        shape = found.aval.shape
        box = {"start": (0,) * len(shape), "stop": (1, *shape[1:]), "step": (1,) * len(shape)}
        one = _apply(registry["slice"], (found,), box, e)
        return [one, Equation(registry["reshape"], one.outputs, {"shape": shape[1:]}, (v,), e.source)]
    at = axis + is_y  # the trips come first
    order = (*range(1, at + 1), 0, *range(at + 1, found.aval.ndim))
    return [Equation(registry["transpose"], (found,), {"axes": order}, (v,), e.source)]


def _apply(primitive: Any, inputs: Sequence[Atom], params: dict[str, Any], like: Equation) -> Equation:
    """An equation whose results have the types that its primitive gives them."""
    avals = primitive.abstract(*[a.aval for a in inputs], **params)
    return Equation(primitive, tuple(inputs), params, tuple([Var(a) for a in avals]), like.source)


def _row_of(aval: Aval, axis: int | None) -> Aval:
    return aval if axis is None else make_aval(_less(aval.shape, axis), aval.dtype)


def _less(items: Sequence[Any], axis: int) -> tuple[Any, ...]:
    return (*items[:axis], *items[axis + 1 :])


# -- its body

Asked = dict[Any, dict[int | None, None]]
"""Values, and the axes without which they are asked for; None: as all rows share them."""


class Part:
    """A body for one of `k` rows. Inputs of the `fixed` numbers have their rows along these axes, others along any."""

    def __init__(self, body: Program, k: int, fixed: dict[int, int | None]) -> None:
        self.body, self.k, self.fixed = body, k, fixed
        self.place = {v: j for j, v in enumerate(body.inputs)}
        if any([e.primitive.effects_of(e.params) or can_raise(e) for e in body.equations]):
            raise Dependent

    def axis_of(self, a: Atom) -> int | None:
        """An axis of a value along which its rows are independent; None if all rows have the same."""
        for axis in [*[d for d, n in enumerate(a.aval.shape) if n == self.k], None]:
            with suppress(Dependent):
                self.asked([(a, axis)])
                return axis
        raise Dependent

    def asked(self, wanted: Sequence[tuple[Atom, int | None]]) -> Asked:
        """All that is needed for that, from the results back to the inputs."""
        asked: Asked = {}

        def ask(a: Atom, axis: int | None) -> None:
            j = self.place.get(a, -1) if isinstance(a, Var) else -1
            if (axis is not None and a.aval.shape[axis] != self.k) or self.fixed.get(j, axis) != axis:
                raise Dependent
            asked.setdefault(a, {})[axis] = None

        for a, axis in wanted:
            ask(a, axis)
        for e in reversed(self.body.equations):
            for axis in [d for v in e.outputs for d in asked.get(v, ())]:
                axes, _ = _operands(e, axis)
                for a, d in zip(e.inputs, axes, strict=True):
                    ask(a, d)
        return asked

    def made(self, asked: Asked, keys: Sequence[tuple[int, int | None]], axes: Sequence[int | None]) -> Program:
        """The body of a row: of the trip, the number of the row, and the inputs with these numbers and axes."""
        index, number = Var(INDEX), Var(INDEX)
        env: dict[tuple[Any, int | None], Atom] = {(self.body.inputs[0], None): index}
        env |= {(self.body.inputs[j], axis): Var(_row_of(self.body.inputs[j].aval, axis)) for j, axis in keys}
        equations: list[Equation] = []

        def atom(a: Atom, axis: int | None) -> Atom:
            return Literal(a.value, _row_of(a.aval, axis)) if isinstance(a, Literal) else env[a, axis]

        for e in self.body.equations:
            for axis in asked.get(e.outputs[0], ()):
                if _counts_rows(e, axis):
                    dtype, shape = e.params["dtype"], _less(e.params["shape"], e.params["axis"])
                    equations.append(_apply(registry["convert"], (number,), {"dtype": dtype, "weak": False}, e))
                    primitive, inputs, params = (
                        registry["broadcast"],
                        equations[-1].outputs,
                        {"shape": shape, "axes": ()},
                    )
                else:
                    places, changed = _operands(e, axis)
                    primitive, params = e.primitive, e.params | changed
                    inputs = tuple([atom(a, d) for a, d in zip(e.inputs, places, strict=True)])
                equations.append(_apply(primitive, inputs, params, e))
                env[e.outputs[0], axis] = equations[-1].outputs[0]
        outputs = tuple([atom(a, axis) for a, axis in zip(self.body.outputs, axes, strict=True)])
        inputs = (index, number, *[env[self.body.inputs[j], axis] for j, axis in keys])
        return Program(inputs, tuple(equations), outputs, self.body.name)


def _counts_rows(e: Equation, axis: int | None) -> bool:
    return e.primitive.traits.kind == "iota" and e.params["axis"] == axis


def _operands(e: Equation, axis: int | None) -> Without:
    """The axes without which the operands are needed for a result without that axis, and parameters that change."""
    rule = RULES.get(e.primitive.name) or RULES.get(e.primitive.traits.kind)
    if rule is None or len(e.outputs) != 1:
        raise Dependent
    return ([None] * len(e.inputs), {}) if axis is None else ([], {}) if _counts_rows(e, axis) else rule(e, axis)


# -- operations without one of the axes of their results: which axes of the operands that is, and parameters


def _lower(axes: Sequence[int], gone: int) -> Axes:
    """Axes, without one, as they are numbered then."""
    return tuple([a - (a > gone) for a in axes if a != gone])


def _elementwise(e: Equation, axis: int) -> Without:
    if any([x.aval.shape != e.outputs[0].aval.shape for x in e.inputs]):
        raise Dependent
    return [axis] * len(e.inputs), {}


def _broadcast(e: Equation, axis: int) -> Without:
    shape, axes = e.params["shape"], e.params["axes"]
    return [axes.index(axis) if axis in axes else None], {"shape": _less(shape, axis), "axes": _lower(axes, axis)}


def _reshape(e: Equation, axis: int) -> Without:
    have, want = e.inputs[0].aval.shape, e.outputs[0].aval.shape
    for d, n in enumerate(have):
        if n == want[axis] and np.prod(have[:d]) == np.prod(want[:axis]):
            return [d], {"shape": _less(want, axis)}
    raise Dependent


def _transpose(e: Equation, axis: int) -> Without:
    axes = e.params["axes"]
    return [axes[axis]], {"axes": _lower(axes, axes[axis])}


def _along(e: Equation, axis: int) -> Without:
    """What happens along other axes."""
    if e.params["axis"] == axis:
        raise Dependent
    return [axis] * len(e.inputs), {"axis": e.params["axis"] - (e.params["axis"] > axis)}


def _reverse(e: Equation, axis: int) -> Without:
    if axis in e.params["axes"]:
        raise Dependent
    return [axis], {"axes": _lower(e.params["axes"], axis)}


def _slice(e: Equation, axis: int) -> Without:
    box = [e.params[name][axis] for name in ("start", "stop", "step")]
    if box != [0, e.inputs[0].aval.shape[axis], 1]:
        raise Dependent
    return [axis], {name: _less(e.params[name], axis) for name in ("start", "stop", "step")}


def _pad(e: Equation, axis: int) -> Without:
    names = ("before", "after", "between")
    if any([e.params[name][axis] for name in names]):
        raise Dependent
    return [axis, *[None] * (len(e.inputs) - 1)], {name: _less(e.params[name], axis) for name in names}


def _reduce(e: Equation, axis: int) -> Without:
    axes = e.params["axes"]
    kept = free(e.inputs[0].aval.ndim, axes)[axis]
    return [kept], {"axes": _lower(axes, kept)}


def _argreduce(e: Equation, axis: int) -> Without:
    kept = free(e.inputs[0].aval.ndim, (e.params["axis"],))[axis]
    return [kept], {"axis": e.params["axis"] - (e.params["axis"] > kept)}


def _iota(e: Equation, axis: int) -> Without:
    return [], {"shape": _less(e.params["shape"], axis), "axis": e.params["axis"] - (e.params["axis"] > axis)}


def _dot(e: Equation, axis: int) -> Without:
    contract, batch = e.params["contract"], e.params["batch"]
    gone: list[int | None] = [None, None]
    if axis < len(batch[0]):
        gone = [side[axis] for side in batch]
        batch = tuple([_less(side, axis) for side in batch])
    else:
        at = axis - len(batch[0])
        lefts, rights = [free(x.aval.ndim, c, b) for x, c, b in zip(e.inputs, contract, batch, strict=True)]
        side, place = (0, lefts[at]) if at < len(lefts) else (1, rights[at - len(lefts)])
        gone[side] = place
    fixed = lambda pair: tuple([side if g is None else _lower(side, g) for side, g in zip(pair, gone, strict=True)])
    return gone, {"contract": fixed(contract), "batch": fixed(batch)}


RULES: dict[str, Callable[[Equation, int], Without]] = {
    "elementwise": _elementwise,
    "broadcast": _broadcast, "reshape": _reshape, "transpose": _transpose, "reverse": _reverse, "slice": _slice,
    "pad": _pad, "concatenate": _along, "cumulative": _along, "reduce": _reduce, "argreduce": _argreduce,
    "iota": _iota, "dot": _dot,
}  # fmt: skip
"""By name of a primitive, or kind."""
