"""Loops and branches as Python's own: `for`, `while` and `if`, around the statements of their bodies.

A body is scheduled as any Program, and written by a writer of its own that knows where the operands lie. What it fills
in every trip is made once, before all loops. A carry that is an array has two of them, which change places; they are
made anew for each run of the loop, since one of them is its result:

    v = v0.copy()
    w = np.empty(3)
    for t in range(100):
        for i in range(3):
            w[i] = v[i] * x[t]
        v, w = w, v

Values of type `Stack` are lists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from funcgrad.base.dtypes import BOOL
from funcgrad.control.loop import UNLIMITED, parts
from funcgrad.core.ir import Atom, Equation, Literal, Program, Stack, Var
from funcgrad.lowering.kernels import Control, Library, Loop, Schedule, touched
from funcgrad.lowering.layout import row_major
from funcgrad.lowering.numba_source.spelling import formless
from funcgrad.lowering.numba_source.writer import Block, Line, Writer
from funcgrad.lowering.schedule import schedule

Statements = Callable[[Writer], list[Line]]
UPDATES = ("update", "scatter")
TOGETHER = 4  # carries that are set in one line


def control(w: Writer, e: Equation, statements: Statements) -> Block:
    """A loop or branch.

    Parameters
    ----------
    statements
        Gives the statements of all kernels of a writer.
    """
    if e.primitive.traits.kind == "branch":
        return _branch(w, e, statements)
    return _LoopWriter(w, e, statements).block


def filled(s: Schedule) -> set[Any]:
    """Roots of arrays that kernels write into; others are made by the kernel that computes them."""
    found: set[Any] = set()
    for k in s.kernels:
        if isinstance(k, Loop):
            found.update([*[x.target.root for x in k.writes], *[v for e in k.reductions for v in e.outputs]])
        elif isinstance(k, Control) and k.equation.primitive.traits.kind == "loop":
            outputs = k.equation.outputs[k.equation.params["carry"] :]
            found.update([v for v in outputs if not isinstance(v.aval, Stack)])
    return {root for root in found if root.aval.shape}


def _result(w: Writer, v: Var) -> str:
    """The variable for a result: the one that was chosen for it, or a new one."""
    name = w.names.of(v)
    return name if name.isidentifier() else w.names.letter()


def _hand_on(w: Writer, v: Var, name: str) -> None:
    """Put a result where it was to be put, if that is no variable."""
    if w.names.of(v) != name:
        w.say(0, f"{w.names.of(v)} = {name}")


def _bind(w: Writer, inner: Writer, v: Var, a: Atom) -> None:
    """Let an input of a body be a value of the Program around it."""
    assert isinstance(a, Var)
    if isinstance(a.aval, Stack):
        inner.names.known[v] = w.names.of(a)
    else:
        inner.bind(v, w.views[a])


def _indented(lines: Sequence[Line], depth: int) -> list[Line]:
    return [Line(line.indent + depth, line.text, line.source) for line in lines]


def _is_next(body: Program, a: Atom) -> bool:
    """Whether a value is the number of the next trip."""
    for e in body.equations:
        if a in e.outputs and e.primitive.name == "add" and body.inputs[0] in e.inputs:
            return any([isinstance(x, Literal) and x.value == 1 for x in e.inputs])
    return False


def _updates_in_place(s: Schedule, carried: Var, root: Var) -> list[Equation]:
    """The updates that make the result `root` of a carry, if its old values are not read after them; none if not."""
    made: dict[Any, tuple[int, Equation]] = {
        k.equation.outputs[0]: (n, k.equation)
        for n, k in enumerate(s.kernels)
        if isinstance(k, Library) and k.equation.primitive.traits.kind in UPDATES
    }
    chain = []
    while root is not carried:
        if root not in made or not root.aval.shape:
            return []
        n, e = made[root]
        x, *others = e.inputs
        if isinstance(x, Literal):
            return []
        view = s.views[x]
        old = view.root
        whole = view.is_contiguous and view.shape == old.aval.shape
        read = any([isinstance(a, Var) and s.views[a].root is old for a in others])
        later = any([old in touched(k, s.views) for k in s.kernels[n + 1 :]])
        if not whole or read or later or old in s.outputs:
            return []
        chain.append(e)
        root = old
    return chain


# -- branches


def _branch(w: Writer, e: Equation, statements: Statements) -> Block:
    block = w.block = Block(function=True)
    names = [_result(w, v) for v in e.outputs]
    for head, body in _cases(e.params["branches"], e.inputs[0], w.number(e.inputs[0])):
        w.say(0, head, e if head.startswith("if") else None)
        block.lines += _indented(_case(w, body, e.inputs, names, statements), 1)
    for v, name in zip(e.outputs, names, strict=True):
        _hand_on(w, v, name)
    block.results += names
    return block


def _cases(branches: Sequence[Program], index: Atom, text: str) -> list[tuple[str, Program]]:
    """Each branch under its condition."""
    if index.aval.dtype == BOOL:
        return [(f"if {text}:", branches[1]), ("else:", branches[0])]
    last = len(branches) - 1
    heads = [f"if {text} <= 0:" if last else "if True:", *[f"elif {text} == {k}:" for k in range(1, last)], "else:"]
    return list(zip(heads, branches, strict=False))


def _case(
    w: Writer, body: Program, operands: Sequence[Atom], names: Sequence[str], statements: Statements
) -> list[Line]:
    s = schedule(body, plain=True, shaped=True)
    inner = w.inside(body, s, loop=False)
    for v, a in zip(body.inputs, operands, strict=True):
        if isinstance(a, Var):
            _bind(w, inner, v, a)
    inputs = set(body.inputs)
    for root, name in zip(s.outputs, names, strict=True):
        inner.fresh.add(root)
        if root not in inputs:
            inner.names.known[root] = name
    lines = statements(inner)
    for root, name in zip(s.outputs, names, strict=True):
        if inner.names.of(root) != name:
            lines.append(Line(0, f"{name} = {inner.names.of(root)}"))
    return lines or [Line(0, "pass")]


# -- loops


class _LoopWriter:
    """One loop; `block` is what it is written as."""

    def __init__(self, w: Writer, e: Equation, statements: Statements) -> None:
        p = e.params
        if p["test"] and p["reverse"]:
            raise formless(e, "a loop with a test that runs backward")
        self.w, self.e = w, e
        self.body: Program = p["body"]
        self.schedule = schedule(self.body, plain=True, shaped=True)
        self.inner = w.inside(self.body, self.schedule, loop=True)
        self.trip = w.names.trip(w.trips)
        self.filled = filled(self.schedule)
        self.passed: dict[Var, Any] = {}  # results that are numbers which the body is given → these
        self.block = w.block = Block(function=True)
        consts, carry = p["consts"], p["carry"]
        operands, inputs = parts(e.inputs, consts, carry), parts(self.body.inputs, consts, carry)
        for v, a in zip(inputs[0], operands[0], strict=True):
            _bind(w, self.inner, v, a)
        self.inner.names.known[self.body.inputs[0]] = self.trip
        self.carries = [self._start(*vs) for vs in zip(e.outputs[:carry], inputs[1], operands[1], strict=True)]
        self._keep(inputs[1])
        self.ys = list(zip(e.outputs[carry:], self.schedule.outputs[carry:], strict=True))
        for v, _ in self.ys:
            self._make(v)
        head = self._head()
        before = len(w.checks)
        lines = self._body(list(zip(inputs[2], operands[2], strict=True)), statements)
        if head.startswith("while") and w.coded and len(w.checks) > before:
            head = f"{head[:-1]} and status[0] == 0:"
        w.say(0, head, e)
        self.block.lines += _indented(lines or [Line(0, "pass")], 1)
        self._finish()

    def _body(self, xs: Sequence[tuple[Var, Atom]], statements: Statements) -> list[Line]:
        """One trip."""
        lines = [Line(0, self._row(v, a)) for v, a in xs]
        lines += [Line(0, text) for v, root in self.ys for text in self._target(v, root)]
        for root, a in self.passed.items():
            if root not in self.inner.names.known:
                self.inner.names.known[root] = self.inner.number(a)
        lines += statements(self.inner)
        lines += [line for v, root in self.ys for line in self._hand_out(v, root)]
        lines += self._next()
        if self.e.params["test"] and self._counts():
            lines.append(Line(0, f"{self.trip} += 1"))
        return lines

    # -- before the loop

    def _start(self, out: Var, v: Var, a: Atom) -> str:
        """A carry before the first trip; its name."""
        name = self.inner.names.known[v] = _result(self.w, out)
        if isinstance(a.aval, Stack):
            text = self.w.names.of(a)
        elif not a.aval.shape:
            text = self.w.number(a)
        else:
            text = self.w.array(a, a.aval.shape) + (".copy()" if isinstance(a, Var) else "")
        self.w.say(0, f"{name} = {text}")
        return name

    def _keep(self, carried: Sequence[Var]) -> None:
        """Carries that go on as they are, or are changed in place, need no other variable."""
        inner, s = self.inner, self.schedule
        inner.carried.update(s.outputs[: len(carried)])
        for root, a in zip(s.outputs, self.body.outputs, strict=True):
            if a in self.body.inputs and not a.aval.shape:
                self.passed[root] = a
        for v, name, root in zip(carried, self.carries, s.outputs, strict=False):
            for e in _updates_in_place(s, v, root):
                inner.in_place.add(e.outputs[0])
                inner.names.known[e.outputs[0]] = name

    def _make(self, v: Var) -> None:
        """The array or list for one of ys."""
        if isinstance(v.aval, Stack):
            self.w.say(0, f"{_result(self.w, v)} = []")
        else:
            self.w.allocate(v)

    def _head(self) -> str:
        n, t = self.w.number(self.e.inputs[0]), self.trip
        if not self.e.params["test"]:
            return f"for {t} in range({self._backward(n) if self.e.params['reverse'] else n}):"
        if self._counts():
            self.w.say(0, f"{t} = 0")
        go = self.carries[0]
        return f"while {go}:" if self._unlimited() else f"while {go} and {t} < {n}:"

    def _backward(self, n: str) -> str:
        return f"{int(n) - 1 if n.isdigit() else f'{n} - 1'}, -1, -1"

    def _unlimited(self) -> bool:
        n = self.e.inputs[0]
        return isinstance(n, Literal) and n.value == UNLIMITED

    def _counts(self) -> bool:
        """Whether a loop with a test needs the number of the trip."""
        p, index = self.e.params, self.body.inputs[0]
        read = index in self.body.outputs or any([index in e.inputs for e in self.body.equations])
        return read or not self._unlimited() or len(self.e.inputs) > 1 + p["consts"] + p["carry"]

    # -- in the loop

    def _row(self, v: Var, a: Atom) -> str:
        """The statement that takes one element of xs."""
        w = self.w
        assert isinstance(a, Var)
        name = self.inner.names.known[v] = self.inner.names.letter()
        if isinstance(a.aval, Stack):
            stack = w.names.of(a)
            beyond = "" if self._covered(a) else f" if {self.trip} < len({stack}) else {w.zero(a.aval.elem)}"
            return f"{name} = {stack}[{self.trip}]{beyond}"
        if self.e.params["length"] is None:
            raise formless(self.e, "a loop over arrays without a static length")
        view, shape = w.views[a], a.aval.shape
        if len(shape) == 1:
            return f"{name} = {w.element(view, [self.trip])}"
        root = view.root
        size = int(np.prod(shape[1:]))
        if root.aval.shape[1:] == shape[1:] and view.strides == row_major(shape) and size and not view.offset % size:
            start = view.offset // size
            rows = w.names.of(root)
            at = f"{start} + {self.trip}" if start else self.trip
        else:
            root = w.whole(view)
            rows, at = w.alias(root, shape, f"{w.names.of(root)}_rows"), self.trip
        if root in w.loose:
            self.inner.loose.add(v)
        return f"{name} = {rows}[{at}]"

    def _covered(self, stack: Var) -> bool:
        """Whether a stack certainly has a value for every trip: those of the loop that made it are counted."""
        maker, n = self.w.equation_of(stack), self.e.inputs[0]
        if maker is None or maker.primitive.traits.kind != "loop":
            return False
        p, trips = maker.params, maker.inputs[0]
        if not p["test"]:
            return n is trips or (isinstance(n, Literal) and isinstance(trips, Literal) and n.key == trips.key)
        if n not in maker.outputs[: p["carry"]]:
            return False
        j = maker.outputs.index(n)  # type: ignore[arg-type]
        first = maker.inputs[1 + p["consts"] + j]
        return isinstance(first, Literal) and first.is_zero() and _is_next(p["body"], p["body"].outputs[j])

    def _target(self, v: Var, root: Var) -> list[str]:
        """The statement that takes the row into which one of ys is written, if it needs one."""
        if isinstance(v.aval, Stack):
            return []
        rows = f"{self.w.names.of(v)}[{self.trip}]"
        if not root.aval.shape:
            self.inner.names.known[root] = rows
            return []
        if root not in self.filled:
            return []
        self.inner.made.add(root)
        return [f"{self.inner.names.of(root)} = {rows}"]

    def _hand_out(self, v: Var, root: Var) -> list[Line]:
        """What is left to do for one of ys at the end of a trip."""
        value = self.inner.names.of(root)
        if isinstance(v.aval, Stack):
            copy = ".copy()" if root.aval.shape and not isinstance(root.aval, Stack) else ""
            return [Line(0, f"{self.w.names.of(v)}.append({value}{copy})")]
        if not root.aval.shape or root in self.filled:
            return []
        return [Line(0, f"{self.w.names.of(v)}[{self.trip}] = {value}")]

    def _next(self) -> list[Line]:
        """The carry of the next trip. Arrays that were filled change places with those of the carry."""
        carried = set(self.carries)
        swaps, first, rest = [], [], []
        for name, root in zip(self.carries, self.schedule.outputs, strict=False):
            value = self.inner.names.of(root)
            if value == name:
                continue
            if root in self.inner.allocated:
                swaps.append(Line(0, f"{name}, {value} = {value}, {name}"))
            else:
                (first if value in carried else rest).append((name, value))
        groups = [first, *[rest[k : k + TOGETHER] for k in range(0, len(rest), TOGETHER)]]
        sides = [[", ".join(side) for side in zip(*pairs, strict=True)] for pairs in groups if pairs]
        return [*[Line(0, " = ".join(pair)) for pair in sides], *swaps]

    # -- after the loop

    def _finish(self) -> None:
        w, e = self.w, self.e
        stacks = [v for v, _ in self.ys if isinstance(v.aval, Stack)]
        if e.params["reverse"]:
            for v in stacks:
                w.say(0, f"{w.names.of(v)}.reverse()")
        for v, name in zip(e.outputs, self.carries, strict=False):
            _hand_on(w, v, name)
        self.block.results += [*self.carries, *[w.names.of(v) for v in stacks]]
