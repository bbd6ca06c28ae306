"""Equal steps become a loop: a Python loop of many rounds, unrolled while it was traced, is rolled up again.

    for _ in range(800):                  a = sin x
        x = np.sin(x) * c       traced    b = mul a c         becomes     z = loop[800 trips] c x
                                          d = sin b ...

All that follows (derivatives, batches, machine code) then costs the same for 800 steps as for 80. Steps are equal if
they do the same operations for the same lines of the user. What a step reads may be the same in all steps (a constant
of the loop), what an earlier step made (a carry), or something else in each: another constant, or the next row of an
array (xs). What is read after the loop is a final carry, or a row of ys. No operation changes: the results are those of
the unrolled steps, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from funcgrad.base.source import Source
from funcgrad.control.loop import INDEX, loop
from funcgrad.control.periods import numbered, periods
from funcgrad.control.steps import Column, Made, Own, Place, Same, Steps, find_steps
from funcgrad.core.check import checked
from funcgrad.core.ir import Atom, Aval, Equation, Literal, Program, Stack, Var, make_aval
from funcgrad.core.trace import Trace, Tracer
from funcgrad.ops.broadcasting import broadcast, move_axis, reshape, reshape_p
from funcgrad.ops.movement import concatenate_p, convert, reverse, slice_

T = TypeVar("T")
STEPS = 8  # the least number of steps that become a loop
MOVES = ("view", "index")
EQUATIONS = 512  # and the least number of equations in all of them


def roll(trace: Trace, results: Sequence[Atom]) -> None:
    """Roll up equal steps among the equations of `trace`, which is open and innermost, and returns `results`."""
    if len(trace.equations) < EQUATIONS:
        return
    trace.equations = _rolled(trace, trace.equations, set(results))
    used = set(results).union(*[e.inputs for e in trace.equations])
    for key, (value, var, _) in list(trace.captured.items()):
        if var not in used and isinstance(value, np.ndarray | np.generic):  # it is a row of another constant now
            del trace.captured[key]


def _rolled(trace: Trace, equations: list[Equation], wanted: set[Any], numbers: Any = None) -> list[Equation]:
    done: list[Equation] = []
    while len(equations) >= EQUATIONS:
        numbers = numbered(equations) if numbers is None else numbers
        found = _one(trace, equations, wanted, numbers)
        if found is None:
            break
        steps, looped, after, later = found
        needed = wanted.union(*[e.inputs for e in looped], *[e.inputs for e in after])
        done += [*_rolled(trace, equations[: steps.start], needed, numbers[: steps.start]), *looped]
        equations, numbers = after, later
    return [*done, *equations]


def _one(
    trace: Trace, equations: list[Equation], wanted: set[Any], numbers: Any
) -> tuple[Steps, list[Equation], list[Equation], Any] | None:
    """Steps, the loop that they are, what comes after it, and the numbers of that if they are known."""
    for begin, period, length in periods(numbers, STEPS):
        steps = find_steps(equations, begin, period, length) if length >= EQUATIONS else None
        if steps is None or steps.count < STEPS or len(steps.equations) < EQUATIONS or not _computes(steps):
            continue
        after = equations[steps.stop :]
        new = _Rolling(trace, steps, wanted.union(*[e.inputs for e in after])).equations()
        if new is not None:
            looped, rows = new
            if not rows:
                return steps, looped, after, numbers[steps.stop :]
            return steps, looped, _placed(trace, looped[-1].source, after, rows, wanted), None
    return None


def _computes(steps: Steps) -> bool:
    """Whether a step does more than to move values: rows that are taken out of ys are no steps of a loop."""
    return any([e.primitive.traits.kind not in MOVES and e.primitive.flops != 0 for e in steps.first])


Row = tuple[Var, int]
"""An array, and which of its rows."""


class _Rolling:
    """Makes the loop equation of some steps."""

    def __init__(self, trace: Trace, steps: Steps, needed: set[Any]) -> None:
        self.trace = trace
        self.steps = steps
        self.needed = needed
        self.consts: dict[Var, Var] = {}  # outside → in the body
        self.carries: dict[Made, Var] = {}
        self.xs: list[tuple[Any, Var]] = []
        self.env: dict[Place, Atom] = {}

    def equations(self) -> tuple[list[Equation], dict[Var, Row]] | None:
        """The loop and what it needs before it; and for values of single steps, which are read after it, their rows."""
        steps = self.steps
        if any([isinstance(v.aval, Stack) and v in self.needed for e in steps.equations for v in e.outputs]):
            return None
        if not all(
            [
                self._has_rows(e, columns, j)
                for j, (e, columns) in enumerate(zip(steps.first, steps.columns, strict=True))
            ]
        ):
            return None
        inits = dict(steps.inits)
        last, escaped = self._escaped(inits)
        for place in last:  # a carry that no step reads
            aval = steps.made(0, place).aval
            inits[Made(place, 1)] = Literal(aval.dtype.type(0), aval)
        source = steps.first[0].source
        return _recorded(self.trace, source, lambda: self._loop(inits, escaped))

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
            roll(inner, outputs)
            captured = inner.constants()
            inputs = (
                Var(INDEX),
                *self.consts.values(),
                *[var for _, var, _ in inner.captured.values()],
                *self.carries.values(),
                *[var for _, var in self.xs],
            )
            return checked(Program(inputs, tuple(inner.equations), outputs, "step")), captured

    def _step(self, inner: Trace, j: int, e: Equation, columns: Sequence[Column]) -> Sequence[Atom]:
        """One equation of the body; what stands for its outputs."""
        moved = self._moved(j, e)
        if moved is not None:
            return (self._row(inner, e, columns[0], moved),)
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
        if isinstance(atoms[0], Literal):
            scalar = make_aval((), aval.dtype, aval.weak)
            var = self._x(np.array([a.value for a in atoms if isinstance(a, Literal)], aval.dtype), scalar)
            return broadcast(Tracer(inner, var), aval.shape, ()).atom  # type: ignore[no-any-return]
        return self._x(np.stack([self.trace.values[a] for a in atoms if isinstance(a, Var)]), aval)

    def _x(self, operand: Any, aval: Aval) -> Var:
        self.xs.append((operand, Var(aval)))
        return self.xs[-1][1]

    # -- rows of arrays

    def _starts(self, j: int, e: Equation) -> Any:
        """Where the slices of equation j begin, one line for each step; None if it is no slice."""
        if e.primitive.traits.kind != "view" or "start" not in e.params:
            return None
        return np.array([f.params["start"] for f in self.steps.equations[j :: self.steps.period]], np.int64)

    def _moved(self, j: int, e: Equation) -> tuple[int, int] | None:
        """The axis along which a slice moves from step to step, and how far; None if it does not."""
        starts = self._starts(j, e)
        if starts is None or (starts == starts[0]).all():
            return None
        axis = int(np.argmax(starts[0] != starts[1]))
        return axis, int(starts[1, axis] - starts[0, axis])

    def _has_rows(self, e: Equation, columns: Sequence[Column], j: int) -> bool:
        """Whether what each step has for its own can be rows of one array: constants, or neighbouring slices."""
        for c in columns:
            if isinstance(c, Own) and not all([self._is_constant(a) for a in c.atoms]):
                return False
        moved = self._moved(j, e)
        if moved is None:
            return True
        axis, by = moved
        starts = self._starts(j, e)
        line = np.zeros_like(starts)
        line[:, axis] = by * np.arange(len(line))
        return bool(by and (starts == starts[0] + line).all()) and e.outputs[0].aval.shape[axis] == 1 and isinstance(
            columns[0], Same
        )  # fmt: skip

    def _is_constant(self, atom: Atom) -> bool:
        return isinstance(atom, Literal) or isinstance(self.trace.values.get(atom), np.ndarray | np.generic)

    def _row(self, inner: Trace, e: Equation, source: Column, moved: tuple[int, int]) -> Atom:
        """A slice of length 1 that moves along an axis, as a row of xs."""
        assert isinstance(source, Same)
        axis, by = moved
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


def _recorded(trace: Trace, source: Source | None, function: Callable[[], T]) -> tuple[list[Equation], T]:
    """The equations that `function` binds in `trace`, and its result."""
    kept = trace.equations, trace.source
    trace.equations, trace.source = [], source
    try:
        result = function()
        return trace.equations, result
    finally:
        trace.equations, trace.source = kept


# -- what is read after the loop


def _placed(
    trace: Trace, source: Source | None, after: Sequence[Equation], rows: dict[Var, Row], wanted: set[Any]
) -> list[Equation]:
    """`after`, with each row taken from its array where it is first read; rows put together again are the array."""
    waiting: dict[Var, Equation | None] = dict.fromkeys(rows)  # not taken yet; reshaped rows wait as well
    out: list[Equation] = []

    def take(a: Any) -> None:
        if a not in waiting:
            return
        reshaped = waiting.pop(a)
        if reshaped is None:
            out.extend(_taken(trace, source, a, rows[a]))
        else:
            take(reshaped.inputs[0])
            out.append(reshaped)

    for e in after:
        if e.primitive is reshape_p and e.inputs[0] in rows:
            rows[e.outputs[0]], waiting[e.outputs[0]] = rows[e.inputs[0]], e  # type: ignore[index]
            continue
        if e.primitive is concatenate_p and e.params["axis"] == 0:
            made, e = _together(trace, e, rows)
            out += made
        for a in e.inputs:
            take(a)
        out.append(e)
    for a in wanted:
        take(a)
    return out


def _together(trace: Trace, e: Equation, rows: dict[Var, Row]) -> tuple[list[Equation], Equation]:
    """A concatenation along the first axis, with neighbouring rows of an array as one operand: they are, in C order."""
    made: list[Equation] = []
    inputs: list[Atom] = []
    at = 0
    while at < len(e.inputs):
        array, first = rows.get(e.inputs[at], (None, 0))  # type: ignore[arg-type]
        end = at + 1
        while array is not None and end < len(e.inputs) and rows.get(e.inputs[end]) == (array, first + end - at):  # type: ignore[arg-type]
            end += 1
        if array is not None and end > at + 1:
            equations, taken = _slab(trace, e, at, end, array, first)
            made += equations
            inputs.append(taken)
        else:
            inputs.append(e.inputs[at])
        at = end
    return made, e.replace(inputs=tuple(inputs))


def _slab(trace: Trace, e: Equation, at: int, end: int, array: Var, first: int) -> tuple[list[Equation], Atom]:
    """Operands `at` to `end` of a concatenation, which are rows of `array`, as one."""
    shape, inner = array.aval.shape, e.outputs[0].aval.shape[1:]
    length = sum([a.aval.shape[0] for a in e.inputs[at:end]])

    def function() -> Any:
        start, stop = (first, *[0] * len(shape[1:])), (first + end - at, *shape[1:])
        taken = slice_(Tracer(trace, array), start, stop, (1,) * len(shape))
        return reshape(taken, (length, *inner))

    equations, taken = _recorded(trace, e.source, function)
    return equations, taken.atom


def _taken(trace: Trace, source: Source | None, var: Var, row: Row) -> list[Equation]:
    """Equations that make `var` from its row."""
    array, at = row
    shape = array.aval.shape

    def function() -> Any:
        taken = slice_(Tracer(trace, array), (at, *[0] * len(shape[1:])), (at + 1, *shape[1:]), (1,) * len(shape))
        return convert(reshape(taken, var.aval.shape), var.aval.dtype, var.aval.weak)

    return _named(*_recorded(trace, source, function), var)


def _named(equations: list[Equation], result: Any, var: Var) -> list[Equation]:
    """The equations, with `var` for the result."""
    if not equations or equations[-1].outputs[0] is not result.atom:
        raise NotImplementedError
    equations[-1] = equations[-1].replace(outputs=(var,))
    return equations
