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
from dataclasses import dataclass
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
                rows = _Loop(e).equations()
            except (Dependent, FuncgradError):
                rows = None
        equations += rows or [e]
    if len(equations) == len(program.equations):
        return program
    return simplify(Program(program.inputs, tuple(equations), program.outputs, program.name, program.input_names))


def is_threads(e: Equation) -> bool:
    """Whether an equation is a loop over rows as `spread` makes it: its body is one loop, of which each row fits."""
    p = e.params
    if e.primitive.traits.kind != "loop" or p["carry"] or p["test"] or not isinstance(e.inputs[0], Literal):
        return False
    body = p["body"]
    if len(body.equations) != 1 or body.equations[0].primitive.traits.kind != "loop" or (p["length"] or 0) < 2:
        return False
    (inner,) = body.equations
    stacks = any([isinstance(a.aval, Stack) for a in (*e.inputs, *inner.inputs, *inner.outputs)])
    small = all([is_small(v.aval) for v in inner.outputs[: inner.params["carry"]]])
    return not stacks and body.outputs == inner.outputs and small and fits(inner)


# -- one loop


class _Loop:
    """A loop in the making over `k` rows, which its carries have first."""

    def __init__(self, e: Equation) -> None:
        self.e, p = e, e.params
        self.body, self.consts, self.carry = p["body"], p["consts"], p["carry"]
        stacks = any([isinstance(a.aval, Stack) for a in (*e.inputs, *e.outputs, *self.body.outputs)])
        if stacks or any([q.primitive.effects_of(q.params) or can_raise(q) for q in self.body.equations]):
            raise Dependent
        shapes = [a.shape for a in self.body.out_avals[: self.carry] if a.shape]
        sizes = {s[0] for s in shapes}
        if len(sizes) != 1 or min(sizes) < 2:
            raise Dependent
        (self.k,) = sizes
        self.rows = Rows(self.body, self.k, self.consts, self.carry)

    def equations(self) -> list[Equation] | None:
        """What it is replaced by; None if a row is too much for a thread."""
        e, rows, carry, p = self.e, self.rows, self.carry, self.e.params
        axes = [0 if a.aval.shape else None for a in self.body.outputs[:carry]]
        outputs = [rows.of(a, axis) for a, axis in zip(self.body.outputs, axes, strict=False)]
        for a in self.body.outputs[carry:]:
            value, axis = self._row_of_y(a)
            outputs.append(value)
            axes.append(axis)
        every = [(self.consts + 1 + j, axis) for j, axis in enumerate(axes[:carry])]
        consts = [key for key in rows.inputs if key[0] <= self.consts]
        keys = [*consts, *every, *[key for key in rows.inputs if key[0] > self.consts + carry]]
        number = [] if rows.number is None else [rows.number]
        inputs = (rows.index, *number, *[rows.input(*key) for key in keys])
        body = Program(inputs, tuple(rows.equations), tuple(outputs), self.body.name)

        # The operands of a row: those that all share, and rows of the others.
        n = e.inputs[0]
        operands = [(e.inputs[place], axis, place > self.consts + carry) for place, axis in keys]
        row = Var(INDEX)
        inside = [Var(_without(a.aval, axis, x)) if axis is not None else Var(a.aval) for a, axis, x in operands]
        count = Var(n.aval) if isinstance(n, Var) else n
        loop = registry["loop"]
        params = p | {"body": body, "consts": len(number) + len(consts)}
        results = _apply(loop, (count, *[row] * len(number), *inside), params, e)
        shared = [(v, a) for v, (a, axis, _) in zip(inside, operands, strict=True) if axis is None]
        own = [(v, a, axis + x) for v, (a, axis, x) in zip(inside, operands, strict=True) if axis is not None]
        fixed = [*([(count, n)] if isinstance(n, Var) else []), *shared]
        around = Program((row, *[v for v, _ in fixed], *[v for v, *_ in own]), (results,), results.outputs, body.name)
        out: list[Equation] = []
        turned = [self._turned(out, a, axis) for _, a, axis in own]
        outer = _apply(
            loop,
            (Literal(np.int64(self.k), INDEX), *[a for _, a in fixed], *turned),
            p | {"body": around, "consts": len(fixed), "carry": 0, "length": self.k, "test": False, "reverse": False,
                 "snapshots": 0},
            e,
        )  # fmt: skip
        if not is_threads(outer):
            return None
        out.append(outer)
        for j, (v, found, axis) in enumerate(zip(e.outputs, outer.outputs, axes, strict=True)):
            out += self._back(v, found, axis, j >= carry)
        return out

    def _row_of_y(self, a: Atom) -> tuple[Atom, int | None]:
        """A row of what a trip hands out, and along which axis the rows are."""
        for axis in [*[d for d, n in enumerate(a.aval.shape) if n == self.k], None]:
            with suppress(Dependent):
                return self.rows.of(a, axis), axis
        raise Dependent

    def _turned(self, out: list[Equation], a: Atom, axis: int) -> Atom:
        """An operand with its rows first."""
        if isinstance(a, Literal) or axis == 0:
            return a if not isinstance(a, Literal) else Literal(a.value, _first(a.aval, axis))
        order = (axis, *[i for i in range(a.aval.ndim) if i != axis])
        out.append(_apply(registry["transpose"], (a,), {"axes": order}, self.e))
        return out[-1].outputs[0]

    def _back(self, v: Var, found: Var, axis: int | None, is_y: bool) -> list[Equation]:
        """Result `v` from its rows."""
        if axis is None:  # all rows have the same
            shape = found.aval.shape
            box = {"start": (0,) * len(shape), "stop": (1, *shape[1:]), "step": (1,) * len(shape)}
            one = _apply(registry["slice"], (found,), box, self.e)
            return [one, Equation(registry["reshape"], one.outputs, {"shape": shape[1:]}, (v,), self.e.source)]
        if not is_y:
            return [Equation(registry["reshape"], (found,), {"shape": v.aval.shape}, (v,), self.e.source)]
        rest = [*range(2, found.aval.ndim)]
        order = (1, *rest[:axis], 0, *rest[axis:])
        return [Equation(registry["transpose"], (found,), {"axes": order}, (v,), self.e.source)]


def _apply(primitive: Any, inputs: Sequence[Atom], params: dict[str, Any], like: Equation) -> Equation:
    """An equation whose results have the types that its primitive gives them."""
    avals = primitive.abstract(*[a.aval for a in inputs], **params)
    return Equation(primitive, tuple(inputs), params, tuple([Var(a) for a in avals]), like.source)


def _without(aval: Aval, axis: int, x: bool) -> Aval:
    """The type of a row; of x, whose first axis is that of the trips."""
    return make_aval(_less(aval.shape, axis + x), aval.dtype)


def _first(aval: Aval, axis: int) -> Aval:
    return make_aval((aval.shape[axis], *_less(aval.shape, axis)), aval.dtype)


def _less(items: Sequence[Any], axis: int) -> tuple[Any, ...]:
    return (*items[:axis], *items[axis + 1 :])


# -- its body


@dataclass
class Rows:
    """The body of a loop for one row, as it is asked for.

    Attributes
    ----------
    inputs
        By number and axis (None: what all rows share) of an input of the body: that of the body of a row.
    number
        The number of the row, if it is needed.
    """

    body: Program
    k: int
    consts: int
    carry: int

    def __post_init__(self) -> None:
        self.place = {v: j for j, v in enumerate(self.body.inputs)}
        self.maker = {v: e for e in self.body.equations for v in e.outputs}
        self.inputs: dict[tuple[int, int | None], Var] = {}
        self.index = Var(self.body.inputs[0].aval)
        self.number: Var | None = None
        self.equations: list[Equation] = []
        self.found: dict[tuple[Any, int | None], Atom] = {}

    def of(self, a: Atom, axis: int | None) -> Atom:
        """A value without that axis, of one row; or, if there is none, as all rows share it."""
        key = (a, axis)
        if key not in self.found:
            if axis is not None and a.aval.shape[axis] != self.k:
                raise Dependent
            self.found[key] = self._of(a, axis)
        return self.found[key]

    def _of(self, a: Atom, axis: int | None) -> Atom:
        if isinstance(a, Literal):
            return a if axis is None else Literal(a.value, make_aval(_less(a.aval.shape, axis), a.aval.dtype))
        if a in self.place:
            return self.input(self.place[a], axis)
        e = self.maker[a]
        if axis is None:
            if _rule(e) not in RULES:
                raise Dependent
            made = _apply(e.primitive, [self.of(x, None) for x in e.inputs], e.params, e)
        else:
            made = self._without(e, axis)
        self.equations.append(made)
        for v, new in zip(e.outputs, made.outputs, strict=True):
            self.found[v, axis] = new
        return self.found[a, axis]

    def input(self, number: int, axis: int | None) -> Var:
        """An input of the body: constants and x with rows along any axis or none, carries along the first, if any."""
        if number == 0:
            if axis is not None:
                raise Dependent
            return self.index
        aval = self.body.inputs[number].aval
        if self.consts < number <= self.consts + self.carry and (axis == 0) != bool(aval.shape):
            raise Dependent
        if (number, axis) not in self.inputs:
            row = aval if axis is None else make_aval(_less(aval.shape, axis), aval.dtype)
            self.inputs[number, axis] = Var(row)
        return self.inputs[number, axis]

    def _without(self, e: Equation, axis: int) -> Equation:
        rule = _rule(e)
        if rule == "iota" and e.params["axis"] == axis:
            return self._numbered(e)
        if rule not in RULES:
            raise Dependent
        axes, changed = RULES[rule](e, axis)
        inputs = [self.of(x, d) for x, d in zip(e.inputs, axes, strict=True)]
        return _apply(e.primitive, inputs, e.params | changed, e)

    def _numbered(self, e: Equation) -> Equation:
        """Counting along the rows: the number of the row."""
        if self.number is None:
            self.number = Var(INDEX)
        cast = _apply(registry["convert"], (self.number,), {"dtype": e.params["dtype"], "weak": False}, e)
        self.equations.append(cast)
        shape = _less(e.params["shape"], e.params["axis"])
        return _apply(registry["broadcast"], cast.outputs, {"shape": shape, "axes": ()}, e)


# -- operations without one of the axes of their results: which axes of the operands that is, and parameters

Without = tuple[list[int | None], dict[str, Any]]


def _rule(e: Equation) -> str:
    return e.primitive.name if e.primitive.name in RULES else e.primitive.traits.kind


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
