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


class RowLoop:
    """What a row does in a loop over `k` rows: carries that are arrays have them first.

    Attributes
    ----------
    axes
        For each result the axis of the rows; None: all rows have the same.
    operands
        What the loop of a row is given beside the numbers of trips and of the row, and the axis of the rows in that.
    """

    def __init__(self, e: Equation, k: int) -> None:
        self.e = e
        body, self.consts, carry = e.params["body"], e.params["consts"], e.params["carry"]
        kept = {1 + self.consts + j: 0 if v.aval.shape else None for j, v in enumerate(e.outputs[:carry])}
        self.part = Part(body, k, kept | {0: None})
        self.elems = [*kept.values(), *[self.part.axis_of(a) for a in body.outputs[carry:]]]
        carries = [(body.inputs[j], axis) for j, axis in kept.items()]
        self.asked = self.part.asked([*zip(body.outputs, self.elems, strict=True), *carries])
        self.keys = [(j, axis) for j, v in enumerate(body.inputs) for axis in self.asked.get(v, ()) if j]
        after = self.consts + carry  # the elements of what lies behind have an axis of trips before them
        self.operands = [(e.inputs[j], axis if axis is None else axis + (j > after)) for j, axis in self.keys]
        self.axes = [axis if axis is None else axis + (j >= carry) for j, axis in enumerate(self.elems)]

    def equation(self, n: Atom, number: Atom, operands: Sequence[Atom]) -> Equation:
        """The loop of a row."""
        body = self.part.made(self.asked, self.keys, self.elems)
        params = {"body": body, "consts": 1 + len([j for j, _ in self.keys if j <= self.consts])}
        return _apply(self.e.primitive, (n, number, *operands), self.e.params | params, self.e)


def _over_rows(e: Equation) -> list[Equation] | None:
    """A loop as a loop over its rows, with what is moved before and behind; None if a row is too much for a thread."""
    p = e.params
    stacks = any([isinstance(a.aval, Stack) for a in (*e.inputs, *e.outputs)])
    sizes = set() if stacks else {v.aval.shape[0] for v in e.outputs[: p["carry"]] if v.aval.shape}
    if len(sizes) != 1 or min(sizes) < 2:
        return None
    (k,) = sizes
    r = RowLoop(e, k)
    number, n = Var(INDEX), e.inputs[0]
    count = Var(n.aval) if isinstance(n, Var) else n
    items = [(Var(_row_of(a.aval, axis)), a, axis) for a, axis in r.operands]
    loop = r.equation(count, number, [v for v, *_ in items])
    fixed = [*([(count, n)] if isinstance(n, Var) else []), *[(v, a) for v, a, axis in items if axis is None]]
    own = [(v, a, axis) for v, a, axis in items if axis is not None]
    around = Program((number, *[v for v, _ in fixed], *[v for v, *_ in own]), (loop,), loop.outputs, p["body"].name)
    out: list[Equation] = []
    operands = [*[a for _, a in fixed], *[_rows_first(out, a, axis, e) for _, a, axis in own]]
    params = {"body": around, "consts": len(fixed), "carry": 0, "length": k, "test": False, "reverse": False}
    rows = _apply(e.primitive, (Literal(np.int64(k), INDEX), *operands), p | params | {"snapshots": 0}, e)
    if not is_threads(rows):
        return None
    out.append(rows)
    for v, found, axis in zip(e.outputs, rows.outputs, r.axes, strict=True):
        out += _rows_back(v, found, axis, e)
    return out


def _rows_first(out: list[Equation], a: Atom, axis: int, e: Equation) -> Atom:
    """An operand with its rows first."""
    if isinstance(a, Literal):
        return Literal(a.value, make_aval((a.aval.shape[axis], *_less(a.aval.shape, axis)), a.aval.dtype))
    if axis == 0:
        return a
    out.append(_apply(registry["transpose"], (a,), {"axes": (axis, *_less(range(a.aval.ndim), axis))}, e))
    return out[-1].outputs[0]


def _rows_back(v: Var, found: Var, axis: int | None, e: Equation) -> list[Equation]:
    """Result `v` from its rows."""
    if axis is None:  # all rows have the same
        shape = found.aval.shape
        box = {"start": (0,) * len(shape), "stop": (1, *shape[1:]), "step": (1,) * len(shape)}
        one = _apply(registry["slice"], (found,), box, e)
        return [one, Equation(registry["reshape"], one.outputs, {"shape": shape[1:]}, (v,), e.source)]
    order = (*range(1, axis + 1), 0, *range(axis + 1, found.aval.ndim))
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
        self.loops: dict[int, RowLoop] = {}
        values = [a for e in body.equations for a in (*e.inputs, *e.outputs)]
        stacks = any([isinstance(a.aval, Stack) for a in (*values, *body.inputs, *body.outputs)])
        if stacks or any([e.primitive.effects_of(e.params) or can_raise(e) for e in body.equations]):
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
            for a, axis in self._needed(e, {v: asked[v] for v in e.outputs if v in asked}):
                ask(a, axis)
        return asked

    def _needed(self, e: Equation, asked: Asked) -> list[tuple[Atom, int | None]]:
        """The operands of an equation, as its results are asked for."""
        if _has_rows(e, asked):
            row = self.loops.get(id(e)) or self.loops.setdefault(id(e), RowLoop(e, self.k))
            if any([{*asked.get(v, ())} - {axis} for v, axis in zip(e.outputs, row.axes, strict=True)]):
                raise Dependent
            return [(e.inputs[0], None), *row.operands]
        axes = dict.fromkeys([axis for some in asked.values() for axis in some])
        return [pair for axis in axes for pair in zip(e.inputs, _operands(e, axis)[0], strict=True)]

    def made(self, asked: Asked, keys: Sequence[tuple[int, int | None]], axes: Sequence[int | None]) -> Program:
        """The body of a row: of the trip, the number of the row, and the inputs with these numbers and axes."""
        index, number = Var(INDEX), Var(INDEX)
        env: dict[tuple[Any, int | None], Atom] = {(self.body.inputs[0], None): index}
        env |= {(self.body.inputs[j], axis): Var(_row_of(self.body.inputs[j].aval, axis)) for j, axis in keys}
        equations: list[Equation] = []

        def atom(a: Atom, axis: int | None) -> Atom:
            return Literal(a.value, _row_of(a.aval, axis)) if isinstance(a, Literal) else env[a, axis]

        for e in self.body.equations:
            wanted = {v: asked[v] for v in e.outputs if v in asked}
            if _has_rows(e, wanted):
                row = self.loops[id(e)]
                made = row.equation(atom(e.inputs[0], None), number, [atom(a, d) for a, d in row.operands])
                equations.append(made)
                env |= {(v, d): new for v, d, new in zip(e.outputs, row.axes, made.outputs, strict=True)}
                continue
            for axis in dict.fromkeys([axis for some in wanted.values() for axis in some]):
                if _counts_rows(e, axis):
                    equations += _numbered(e, number)
                else:
                    places, changed = _operands(e, axis)
                    inputs = [atom(a, d) for a, d in zip(e.inputs, places, strict=True)]
                    equations.append(_apply(e.primitive, inputs, e.params | changed, e))
                env |= {(v, axis): new for v, new in zip(e.outputs, equations[-1].outputs, strict=True)}
        outputs = tuple([atom(a, axis) for a, axis in zip(self.body.outputs, axes, strict=True)])
        inputs = (index, number, *[env[self.body.inputs[j], axis] for j, axis in keys])
        return Program(inputs, tuple(equations), outputs, self.body.name)


def _has_rows(e: Equation, asked: Asked) -> bool:
    """Whether an equation is a loop, of which rows are asked for."""
    return e.primitive.traits.kind == "loop" and any([axis is not None for axes in asked.values() for axis in axes])


def _counts_rows(e: Equation, axis: int | None) -> bool:
    return e.primitive.traits.kind == "iota" and e.params["axis"] == axis


def _numbered(e: Equation, number: Var) -> list[Equation]:
    """What an equation that counts along the rows is for one: its number."""
    cast = _apply(registry["convert"], (number,), {"dtype": e.params["dtype"], "weak": False}, e)
    shape = _less(e.params["shape"], e.params["axis"])
    return [cast, _apply(registry["broadcast"], cast.outputs, {"shape": shape, "axes": ()}, e)]


def _operands(e: Equation, axis: int | None) -> Without:
    """The axes without which the operands are needed for a result without that axis, and parameters that change."""
    rule = RULES.get(e.primitive.name) or RULES.get(e.primitive.traits.kind)
    shared = axis is None and e.primitive.traits.kind == "loop"
    if rule is None and not shared:
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
