"""Loops and branches whose bodies are kernels, on the GPU: the host goes round, and the kernels get other addresses.

A carry is copied back after each trip. What a loop of unknown length hands out lies in a buffer that the host makes
larger when it is full. A stack is three words that name a description; what is described stays where it is for as long
as the loop around needs it, so that a stack is handed out, and carried, as its words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import gcd
from typing import Any, Protocol

import numpy as np

from funcgrad.core.ir import Aval, Equation, Literal, Program, Stack, Var
from funcgrad.lowering.cuda.plan import Choose, Copy, Fill, Hands, Place, Reads, Repeat, Step
from funcgrad.lowering.cuda.rows import spread
from funcgrad.lowering.kernels import Control, Schedule
from funcgrad.lowering.registers.stacks import bytes_of
from funcgrad.lowering.schedule import schedule

LONG = 2**16  # bytes: constants up to that stay on the device
ROWS = 8
"""Bytes that rows of stacks begin at multiples of, if they are that long: what a kernel hands out lies side by side."""


class Planner(Protocol):
    """What makes the steps of a schedule."""

    def plan(self, s: Schedule, known: Mapping[Any, Place], kept: bool) -> list[Step]:
        """The steps of a schedule, some of whose buffers have a place already; its stacks may have to be `kept`."""

    def buffer(self, size: int) -> Place:
        """Memory of its own in that of the call."""

    def constant(self, data: bytes) -> Place:
        """Memory that holds these bytes, in every call."""


def host_steps(planner: Planner, kernel: Control, s: Schedule, at: Callable[[Any], Place], kept: bool) -> list[Step]:
    """The steps of a loop or branch, given the place of each root, and whether stacks outlive the trip around."""
    return _Host(planner, kernel, s, at, kept).steps()


class _Host:
    def __init__(self, planner: Planner, kernel: Control, s: Schedule, at: Callable[[Any], Place], kept: bool) -> None:
        self.planner, self.kernel, self.s, self.at, self.kept = planner, kernel, s, at, kept
        self.before: list[Step] = []

    def steps(self) -> list[Step]:
        """All of it."""
        e = self.kernel.equation
        operands = [self._operand(a) for a in e.inputs]
        results = [self.at(v) for v in e.outputs]
        if e.primitive.traits.kind == "loop":
            steps = self._loop(e, operands, results)
            return [*self.before, *steps]
        places = [dict(zip(b.inputs, operands, strict=True)) for b in e.params["branches"]]
        bodies = [self._body(b, p, results, self.kept) for b, p in zip(e.params["branches"], places, strict=True)]
        return [*self.before, Choose(operands[0], tuple([tuple(b) for b in bodies]))]

    def _operand(self, a: Any) -> Place:
        if isinstance(a, Literal):
            if bytes_of(a.aval) <= LONG:
                return self.planner.constant(a.value.tobytes() * a.aval.size)
            place = self.planner.buffer(bytes_of(a.aval))
            self.before.append(Fill(place, a.value.tobytes(), a.aval.size))
            return place
        view = self.s.views[a]
        return self.at(view.root).after(view.offset * a.aval.dtype.itemsize)

    def _body(self, body: Program, places: dict[Any, Place], targets: Sequence[Place], kept: bool) -> list[Step]:
        """The steps of a body, whose inputs are at `places`; its outputs go to `targets`."""
        s = schedule(spread(body))
        return self.planner.plan(s, places | dict(zip(s.outputs, targets, strict=True)), kept)

    def _loop(self, e: Equation, operands: list[Place], results: list[Place]) -> list[Step]:
        p = e.params
        body, consts, carry = p["body"], p["consts"], p["carry"]
        keeps = any([isinstance(a, Stack) for a in body.out_avals])
        number = Var(body.inputs[0].aval)
        count: Place | int = int(e.inputs[0].value) if isinstance(e.inputs[0], Literal) else operands[0]
        indices = None  # those of all trips are on the device, if they are not many
        if isinstance(count, int) and 8 * count <= LONG:
            indices = self.planner.constant(np.arange(max(count, 1), dtype=np.int64).tobytes())
        index = self.planner.buffer(8) if indices is None else indices.row(number, 8)
        told = index if indices is None else None
        current = results[:carry]
        starts = list(zip(operands[1 + consts :], current, e.outputs, strict=False))[:carry]
        steps: list[Step] = [
            Copy(x, target, bytes_of(v.aval)) for j, (x, target, v) in enumerate(starts) if j not in self.kernel.kept
        ]
        read = [
            self._read(number, x, a.aval, v.aval)
            for x, a, v in list(zip(operands[1:], e.inputs[1:], body.inputs[1:], strict=True))[consts + carry :]
        ]
        handed = [
            self._handed(number, y, v.aval, a)
            for y, v, a in zip(results[carry:], e.outputs[carry:], body.out_avals[carry:], strict=True)
        ]
        rows, ys = [place for place, _ in read], [place for place, _ in handed]
        places = dict(zip(body.inputs, [index, *operands[1 : 1 + consts], *current, *rows], strict=True))
        outs = [self.planner.buffer(bytes_of(a)) for a in body.out_avals[:carry]]
        inside = self._body(body, places, [*outs, *ys], keeps)
        inside += [Copy(x, y, bytes_of(a)) for x, y, a in zip(outs, current, body.out_avals, strict=False)]
        test = current[0] if p["test"] else None
        reads = tuple([r for _, r in read if r is not None])
        hands = self._hands([(place.root, *h) for place, h in handed if h is not None])
        reverse = bool(p["reverse"])
        return [*steps, Repeat(number, count, told, reverse, test, tuple(inside), reads, hands, keeps)]

    def _read(self, loop: Any, x: Place, aval: Aval, elem: Aval) -> tuple[Place, Reads | None]:
        """A row of xs."""
        size = bytes_of(elem)
        if not isinstance(aval, Stack):
            return x.row(loop, size), None
        zeros, root = self.planner.constant(bytes(size)), Var(elem)
        return Place(root, begins=gcd(ROWS, size)), Reads(root, x, zeros)

    def _handed(self, loop: Any, y: Place, aval: Aval, elem: Aval) -> tuple[Place, tuple[Place, int] | None]:
        """A row of ys; if they are a stack, where its words are, and the bytes of a row."""
        size = bytes_of(elem)
        if not isinstance(aval, Stack):
            return y.row(loop, size), None
        return Place(Var(elem)), (y, -(-size // 16) * 16)

    def _hands(self, handed: list[tuple[Any, Place, int]]) -> Hands | None:
        if not handed:
            return None
        widths = [width for _, _, width in handed]
        offsets = tuple([sum(widths[:j]) for j in range(len(widths))])
        return Hands(tuple([r for r, _, _ in handed]), offsets, sum(widths), tuple([y for _, y, _ in handed]))
