"""The loop equation of some equal steps: what they read as constants, carries and xs, what they make as carries and ys.

A slice that moves from step to step is a row of xs where it has length 1, and otherwise a window at a computed place;
so is an update of a place that moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from funcgrad.base.source import Source
from funcgrad.control.loop import INDEX, loop
from funcgrad.control.steps import Column, Made, Own, Place, Same, Steps
from funcgrad.core.check import checked
from funcgrad.core.ir import Atom, Aval, Equation, Literal, Program, Stack, Var, make_aval
from funcgrad.core.trace import Trace, Tracer, bind1
from funcgrad.ops.arithmetic import add, mul
from funcgrad.ops.broadcasting import broadcast, move_axis, reshape
from funcgrad.ops.movement import reverse, slice_
from funcgrad.ops.windows import dynamic_slice_p

T = TypeVar("T")
Row = tuple[Var, int]
"""An array, and which of its rows."""


class Rolling:
    """Makes the loop equation of some steps."""

    def __init__(
        self, trace: Trace, steps: Steps, needed: set[Any], roll: Callable[[Trace, Sequence[Atom]], None]
    ) -> None:
        self.trace = trace
        self.index = Var(INDEX)
        self.steps = steps
        self.needed = needed
        self.roll = roll  # what is done to the body as well
        self.consts: dict[Var, Var] = {}  # outside → in the body
        self.carries: dict[Made, Var] = {}
        self.xs: list[tuple[Any, Var]] = []
        self.env: dict[Place, Atom] = {}

    def equations(self) -> tuple[list[Equation], dict[Var, Row]] | None:
        """The loop and what it needs before it; and for values of single steps, which are read after it, their rows."""
        steps = self.steps
        if any([isinstance(v.aval, Stack) and v in self.needed for e in steps.equations for v in e.outputs]):
            return None
        if not all([self._is_given(c) for columns in steps.columns for c in columns]) or not self._slices_fit():
            return None
        inits = dict(steps.inits)
        last, escaped = self._escaped(inits)
        for place in last:  # a carry that no step reads
            aval = steps.made(0, place).aval
            inits[Made(place, 1)] = Literal(aval.dtype.type(0), aval)
        source = steps.first[0].source
        return recorded(self.trace, source, lambda: self._loop(inits, escaped))

    # -- what comes out

    def _escaped(self, inits: dict[Made, Atom]) -> tuple[list[Place], list[Place]]:
        """What is read after the loop and no carry: what only the last step made, and what others did."""
        steps = self.steps
        last: dict[Place, None] = {}
        rows: dict[Place, None] = {}
        for i, e in enumerate(steps.equations):
            for k, v in enumerate(e.outputs):
                if v in self.needed:
                    step, j = divmod(i, steps.period)
                    if Made((j, k), steps.count - step) not in inits:
                        (last if step == steps.count - 1 else rows)[j, k] = None
        return [p for p in last if p not in rows], list(rows)

    def _loop(self, inits: dict[Made, Atom], escaped: list[Place]) -> dict[Var, Row]:
        """Bind the loop, so that its final carries are the Vars of the last steps."""
        steps, trace = self.steps, self.trace
        body, captured = self._body(inits, escaped)
        operand = lambda atom: Tracer(trace, atom)
        consts = [*[operand(v) for v in self.consts], *captured]
        results = loop(
            body,
            np.int64(steps.count),
            consts,
            [operand(a) for a in inits.values()],
            [x() if callable(x) else x for x, _ in self.xs],
            length=steps.count,
        )
        finals = [steps.made(steps.count - m.delay, m.place) for m in inits]
        bound = trace.equations[-1]
        ys = bound.outputs[len(inits) :]
        trace.equations[-1] = bound.replace(outputs=(*finals, *ys))
        assert len(results) == len(bound.outputs)
        own = set(finals)
        made = [(steps.made(t, p), (y, t)) for p, y in zip(escaped, ys, strict=True) for t in range(steps.count)]
        return {v: row for v, row in made if v in self.needed and v not in own}

    # -- the body

    def _body(self, inits: dict[Made, Atom], escaped: list[Place]) -> tuple[Program, list[Any]]:
        steps = self.steps
        with Trace("step") as inner:
            for slot in inits:
                self.carries[slot] = Var(steps.made(0, slot.place).aval)
            for j, (e, columns) in enumerate(zip(steps.first, steps.columns, strict=True)):
                inner.source = e.source
                self.env.update({(j, k): a for k, a in enumerate(self._step(inner, j, e, columns))})
            nexts = [self.env[m.place] if m.delay == 1 else self.carries[Made(m.place, m.delay - 1)] for m in inits]
            outputs = (*nexts, *[self.env[p] for p in escaped])
            self.roll(inner, outputs)
            captured = inner.constants()
            inputs = (
                self.index,
                *self.consts.values(),
                *[var for _, var, _ in inner.captured.values()],
                *self.carries.values(),
                *[var for _, var in self.xs],
            )
            return checked(Program(inputs, tuple(inner.equations), outputs, "step")), captured

    def _step(self, inner: Trace, j: int, e: Equation, columns: Sequence[Column]) -> Sequence[Atom]:
        """One equation of the body; what stands for its outputs."""
        starts = self._starts(j)
        if starts is not None:
            return (self._window(inner, e, columns[0], starts),)
        inputs = tuple([self._operand(inner, c) for c in columns])
        return inner.emit(e.replace(inputs=inputs, outputs=tuple([Var(v.aval) for v in e.outputs])))

    def _operand(self, inner: Trace, column: Column) -> Atom:
        if isinstance(column, Same):
            atom = column.atom
            return atom if isinstance(atom, Literal) else self.consts.setdefault(atom, Var(atom.aval))
        if isinstance(column, Own):
            return self._own(inner, column.atoms)
        return self.carries[column] if column.delay else self.env[column.place]

    def _own(self, inner: Trace, atoms: Sequence[Atom]) -> Atom:
        """The constant of each step, as a row of xs."""
        aval = atoms[0].aval
        if not isinstance(atoms[0], Literal):
            return self._x(np.stack([self.trace.values[a] for a in atoms if isinstance(a, Var)]), aval)
        values = np.array([a.value for a in atoms if isinstance(a, Literal)], aval.dtype)
        if aval == INDEX:
            return self._number(inner, values).atom
        var = self._x(values, make_aval((), aval.dtype, aval.weak))
        return broadcast(Tracer(inner, var), aval.shape, ()).atom  # type: ignore[no-any-return]

    def _number(self, inner: Trace, values: Any) -> Tracer:
        """An integer of each step: computed from the number of the trip, or read."""
        by = np.diff(values)
        if (by == by[0]).all():
            return add(mul(Tracer(inner, self.index), by[0]), values[0])  # type: ignore[no-any-return]
        return Tracer(inner, self._x(values, INDEX))

    def _x(self, operand: Any, aval: Aval) -> Var:
        self.xs.append((operand, Var(aval)))
        return self.xs[-1][1]

    def _is_given(self, column: Column) -> bool:
        """Whether what each step has for its own are constants."""
        return not isinstance(column, Own) or all(
            [
                isinstance(a, Literal) or isinstance(self.trace.values.get(a), np.ndarray | np.generic)
                for a in column.atoms
            ]
        )

    # -- slices that differ from step to step

    def _starts(self, j: int) -> Any:
        """Where the slices of equation j begin, one line for each step; None if it is no slice, or always the same."""
        if "start" not in self.steps.first[j].params:
            return None
        found = np.array([e.params["start"] for e in self.steps.equations[j :: self.steps.period]], np.int64)
        return None if (found == found[0]).all() else found

    def _slices_fit(self) -> bool:
        """Whether slices that differ are windows: without gaps between their elements."""
        moving = [e for j, e in enumerate(self.steps.first) if self._starts(j) is not None]
        return all([set(e.params["step"]) == {1} for e in moving])

    def _window(self, inner: Trace, e: Equation, source: Column, starts: Any) -> Atom:
        """A slice that begins elsewhere in each step: a row of xs if it can be, or a window of the array."""
        shape = e.outputs[0].aval.shape
        moving = np.flatnonzero((starts != starts[0]).any(axis=0))
        by = np.diff(starts[:, moving[0]])
        if isinstance(source, Same) and len(moving) == 1 and shape[moving[0]] == 1 and (by == by[0]).all() and by[0]:
            return self._row(inner, e, source, int(moving[0]), int(by[0]))
        x = Tracer(inner, self._operand(inner, source))
        at = [self._number(inner, starts[:, i]) if i in moving else starts[0, i] for i in range(len(shape))]
        return bind1(dynamic_slice_p, x, *at, sizes=shape).atom  # type: ignore[no-any-return]

    def _row(self, inner: Trace, e: Equation, source: Same, axis: int, by: int) -> Atom:
        """A slice of length 1 that moves along an axis, as a row of xs."""
        start, stop, step = (list(e.params[name]) for name in ("start", "stop", "step"))
        start[axis] += min(by, 0) * (self.steps.count - 1)
        stop[axis] = start[axis] + abs(by) * (self.steps.count - 1) + 1
        step[axis] = abs(by)

        def rows() -> Any:
            taken = slice_(Tracer(self.trace, source.atom), tuple(start), tuple(stop), tuple(step))
            return move_axis(reverse(taken, (axis,)) if by < 0 else taken, axis, 0)

        out = e.outputs[0].aval
        row = self._x(rows, make_aval((*out.shape[:axis], *out.shape[axis + 1 :]), out.dtype))
        return reshape(Tracer(inner, row), out.shape).atom  # type: ignore[no-any-return]


def recorded(trace: Trace, source: Source | None, function: Callable[[], T]) -> tuple[list[Equation], T]:
    """The equations that `function` binds in `trace`, and its result."""
    kept = trace.equations, trace.source
    trace.equations, trace.source = [], source
    try:
        result = function()
        return trace.equations, result
    finally:
        trace.equations, trace.source = kept
