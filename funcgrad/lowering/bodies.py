"""Loops and branches whose bodies are kernels: what `registers` cannot hold.

The body is scheduled as any Program. Its kernels are called in every trip, with pointers that move along the rows of
xs and ys; a carry is copied back after the trip. What the body keeps for itself lies in a frame of the arena.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from funcgrad.core.ir import Aval, Equation, Literal, Program, Stack, Var, make_aval
from funcgrad.lowering import sanitize
from funcgrad.lowering.buffers import layout
from funcgrad.lowering.builder import Builder
from funcgrad.lowering.kernels import Control, Schedule
from funcgrad.lowering.layout import View
from funcgrad.lowering.nests import STATUS, KernelText
from funcgrad.lowering.registers.cells import I64
from funcgrad.lowering.registers.control import INTERRUPTED, WATCHING
from funcgrad.lowering.registers.kernel import BYTE
from funcgrad.lowering.registers.stacks import (
    OUT_OF_MEMORY,
    Carried,
    Growing,
    Handed,
    Owned,
    Reader,
    bytes_of,
    load_stack,
    store_stack,
)
from funcgrad.lowering.schedule import schedule
from funcgrad.lowering.values import Shared, Target, Value

Call = tuple[str, tuple[Any, ...]]
T = TypeVar("T", bound=Owned)


def fits_in_kernels(e: Equation, native: Callable[[Equation], bool]) -> bool:
    """Whether a loop or branch of a flat Program can be made of kernels."""
    p = e.params
    bodies = p["branches"] if e.primitive.traits.kind == "branch" else (p["body"],)
    backwards = p.get("test") and p["reverse"]  # the number of its rows is not known before
    return not backwards and all([native(q) for b in bodies for q in b.equations])


class Lines:
    """The text of a function that grows, and its parameters by root."""

    def __init__(self, target: Target, shared: Shared) -> None:
        self.b = Builder(target, 1, shared)
        self.lines = self.b.lines
        self.roots: dict[Any, str] = {}

    def parameter(self, root: Any) -> str:
        """The parameter for a root."""
        name = "%status" if root is STATUS else f"%p{len(self.roots)}"
        return self.roots.setdefault(root, name)

    def emit(self, text: str) -> str:
        """One instruction; the name of its result."""
        return self.b.emit(I64, text).text

    def label(self, stem: str) -> str:
        """A fresh label."""
        self.b.count += 1
        return f"{stem}{self.b.count}"

    def text(self) -> KernelText:
        """The function."""
        parameters = ", ".join([f"ptr {p}" for p in self.roots.values()])
        body = "\n".join([*self.lines, "  br label %exit", "exit:", "  ret void"])
        return KernelText(
            f"define internal void @KERNEL({parameters}) #0 {{\nentry:\n{body}\n}}\n", tuple(self.roots), True
        )


class BodyKernels:
    """The function of a loop or branch made of kernels.

    Parameters
    ----------
    kernels
        Gives the calls of a schedule, in order: emits what is new.
    """

    def __init__(
        self,
        kernel: Control,
        views: dict[Var, View],
        target: Target,
        shared: Shared,
        kernels: Callable[[Schedule], list[Call]],
    ) -> None:
        self.e, self.kept = kernel.equation, kernel.kept
        self.views, self.shared = views, shared
        self.kernels = kernels
        self.f = Lines(target, shared)

    def run(self) -> KernelText:
        """The text of the function."""
        if self.e.primitive.traits.kind == "branch":
            self._branch()
        else:
            self._loop()
        return self.f.text()

    def _operand(self, a: Any) -> str:
        """The address of an operand."""
        if isinstance(a, Literal):
            place = self._alloca(a.aval)
            self._fill(place, a)
            return place
        view = self.views[a]
        p = self.f.parameter(view.root)
        return (
            p
            if view.offset == 0
            else self.f.emit(f"getelementptr i8, ptr {p}, i64 {view.offset * a.aval.dtype.itemsize}")
        )

    def _alloca(self, aval: Aval) -> str:
        """Memory of this call for a value."""
        root = Var(make_aval((max(bytes_of(aval), 1),), BYTE))
        return self.f.parameter(root)

    def _fill(self, place: str, a: Literal) -> None:
        """Set all elements to a constant."""
        bits = a.value.tobytes()
        n, word = a.aval.size, f"i{8 * len(bits)}"
        value = int.from_bytes(bits, "little")
        f = self.f
        if n == 1:
            f.lines.append(f"  store {word} {value}, ptr {place}")
        elif n:
            k, on = f.label("fill"), f.label("filled")
            before = f.label("before")
            f.lines += [f"  br label %{before}", f"{before}:", f"  br label %{k}", f"{k}:"]
            f.lines += [f"  %{k}i = phi i64 [ 0, %{before} ], [ %{k}n, %{k} ]"]
            f.lines += [f"  %{k}p = getelementptr {word}, ptr {place}, i64 %{k}i", f"  store {word} {value}, ptr %{k}p"]
            f.lines += [f"  %{k}n = add i64 %{k}i, 1", f"  %{k}m = icmp ult i64 %{k}n, {n}"]
            f.lines += [f"  br i1 %{k}m, label %{k}, label %{on}", f"{on}:"]

    def _copy(self, source: str, target: str, aval: Aval) -> None:
        if bytes_of(aval):
            self.shared.declares["declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)"] = None
            self.f.lines.append(
                f"  call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {source}, i64 {bytes_of(aval)}, i1 false)"
            )

    # -- the calls of one body

    def _calls(self, body: Program, places: dict[Any, str], targets: Sequence[str | None]) -> list[str]:
        """Call the kernels of a body, whose inputs are at `places`; the addresses of its outputs.

        An output with a target is written there.
        """
        s = schedule(body)
        calls = self.kernels(s)
        at = dict(places)
        at |= {v: t for v, t in zip(s.outputs, targets, strict=True) if t is not None}
        f = self.f
        growing = {r for _, roots in calls for r in roots if r is not STATUS and isinstance(r.aval, Growing)}
        arena = layout(s, [roots for _, roots in calls], {*at, *growing})
        frame = Var(make_aval((max(arena.size, 1),), BYTE))
        if arena.places:
            p = f.parameter(frame)
            for r, place in arena.places.items():
                what = sanitize.buffer(place.bytes, f"frame + {place.offset}")
                at[r] = f.emit(f"getelementptr i8, ptr {p}, i64 {place.offset}{what}")
                f.lines += sanitize.fresh(at[r], place.bytes)
        for name, roots in calls:
            pointers = [at[r] if r in at else f.parameter(r) for r in roots]
            f.lines.append(f"  call void @{name}({', '.join([f'ptr {p}' for p in pointers])})")
            if STATUS in roots:
                bad = f.emit(f"icmp ne i64 {f.emit(f'load i64, ptr {f.parameter(STATUS)}')}, 0")
                on = f.label("on")
                f.lines += [f"  br i1 {bad}, label %exit, label %{on}", f"{on}:"]
        return [at[v] for v in s.outputs]

    # -- loops

    def _loop(self) -> None:
        e, f = self.e, self.f
        p = e.params
        body, consts, carry = p["body"], p["consts"], p["carry"]
        operands = [self._operand(a) for a in e.inputs]
        current = [f.parameter(v) for v in e.outputs[:carry]]
        for j, target in enumerate(current):
            if j not in self.kept:
                self._copy(operands[1 + consts + j], target, e.inputs[1 + consts + j].aval)
        ys = e.outputs[carry:]
        rows = [None if isinstance(v.aval, Stack) else f.parameter(v) for v in ys]
        numbers = {j: k for k, j in enumerate([j for j, r in enumerate(rows) if r is None])}
        handed = self._owned(Handed, [ys[j].aval for j in numbers])
        held = [j for j, v in enumerate(e.outputs[:carry]) if isinstance(v.aval, Stack)]
        carried = self._owned(Carried, [e.outputs[j].aval for j in held], 2)
        index = self._alloca(body.inputs[0].aval)
        n = f.emit(f"load i64, ptr {operands[0]}")
        if handed is not None:
            handed.begin()
            if not p["test"]:
                handed.reserve(Value(n, I64))
        xs = [
            Reader(f.b, load_stack(f.b, q, a.aval)) if isinstance(a.aval, Stack) else q
            for a, q in zip(e.inputs[1 + consts + carry :], operands[1 + consts + carry :], strict=True)
        ]
        head, trip, done, start = f.label("head"), f.label("trip"), f.label("done"), f.label("start")
        latch = f.label("latch")
        f.lines += [f"  br label %{start}", f"{start}:", f"  br label %{head}", f"{head}:"]
        f.lines.append(f"  %t = phi i64 [ 0, %{start} ], [ %next, %{latch} ]")
        go = f.emit(f"icmp slt i64 %t, {n}")
        if p["test"]:
            flag = f.emit(f"icmp ne i8 {f.emit(f'load i8, ptr {current[0]}')}, 0")
            go = f.emit(f"and i1 {go}, {flag}")
        f.lines += [f"  br i1 {go}, label %{trip}, label %{done}", f"{trip}:"]
        self._watch()
        i = "%t"
        if p["reverse"]:
            i = f.emit(f"sub i64 {f.emit(f'sub i64 {n}, 1')}, %t")
        f.lines.append(f"  store i64 {i}, ptr {index}")
        at = Value(i, I64)
        elements = [self._row(x, v.aval, at) for x, v in zip(xs, body.inputs[1 + consts + carry :], strict=True)]
        places = dict(zip(body.inputs, [index, *operands[1 : 1 + consts], *current, *elements], strict=True))
        if handed is not None and p["test"]:
            handed.reserve(f.b.iadd(at, 1))
        places_of_ys: list[str] = []
        for j, (r, elem) in enumerate(zip(rows, body.out_avals[carry:], strict=True)):
            if r is None:
                assert handed is not None
                places_of_ys.append(handed.row(numbers[j], at))
            else:
                places_of_ys.append(self._row(r, elem, at))
        stacked = [isinstance(a, Stack) for a in body.out_avals[carry:]]
        targets = [None if s else q for q, s in zip(places_of_ys, stacked, strict=True)]
        outs = self._calls(body, places, [*[None] * carry, *targets])
        for j, s in enumerate(stacked):
            if s and handed is not None:
                handed.copy(numbers[j], outs[carry + j], places_of_ys[j], 1)
        if carried is not None:
            carried.next([outs[j] for j in held], [current[j] for j in held])
        for j, (source, target, a) in enumerate(zip(outs, current, body.out_avals, strict=False)):
            if j not in held:
                self._copy(source, target, a)
        f.lines += [f"  br label %{latch}", f"{latch}:", "  %next = add i64 %t, 1", f"  br label %{head}", f"{done}:"]
        if handed is not None:
            for j, cell in zip(numbers, handed.end(Value("%t", I64)), strict=True):
                store_stack(f.b, f.parameter(ys[j]), cell)

    def _owned(self, kind: type[T], avals: Sequence[Stack], sets: int = 1) -> T | None:
        """Growing buffers of this loop for stacks of these types, if there are any."""
        if not avals:
            return None
        pointer = self.f.parameter(Var(Owned.type_for(avals, sets)))
        return kind(self.f.b, pointer, avals, self._out_of_memory, sets)

    def _out_of_memory(self) -> None:
        self._leave(OUT_OF_MEMORY)

    def _leave(self, code: int) -> None:
        """Leave the function."""
        self.f.lines += [f"  store i64 {code}, ptr {self.f.parameter(STATUS)}", "  br label %exit"]

    def _watch(self) -> None:
        """Leave the function if Ctrl-C was pressed."""
        f = self.f
        self.shared.declares |= dict.fromkeys(WATCHING)
        pressed = f.emit(f"icmp ne i64 {f.emit('load volatile i64, ptr @interrupt')}, 0")
        stop, leave, on = f.label("stop"), f.label("leave"), f.label("on")
        f.lines += [f"  br i1 {pressed}, label %{stop}, label %{on}", f"{stop}:"]
        f.lines += sanitize.touches([(f.parameter(STATUS), 16)])
        ends = f.emit(f"call i64 @interrupted(ptr {f.parameter(STATUS)})")
        f.lines += [f"  br i1 {f.emit(f'icmp ne i64 {ends}, 0')}, label %{leave}, label %{on}", f"{leave}:"]
        self._leave(INTERRUPTED)
        f.lines.append(f"{on}:")

    def _row(self, x: str | Reader, elem: Aval, i: Value) -> str:
        """The address of element `i` of an array or stack."""
        if isinstance(x, Reader):
            return x.row(self.f.b, i)
        what = sanitize.buffer(bytes_of(elem), "a row")
        return self.f.emit(f"getelementptr i8, ptr {x}, i64 {self.f.b.imul(i, bytes_of(elem)).text}{what}")

    # -- branches

    def _branch(self) -> None:
        e, f = self.e, self.f
        branches = e.params["branches"]
        operands = [self._operand(a) for a in e.inputs]
        results: list[str | None] = [f.parameter(v) for v in e.outputs]
        index = f.emit(f"load i64, ptr {operands[0]}")
        low = f.emit(f"icmp slt i64 {index}, 0")
        clamped = f.emit(f"select i1 {low}, i64 0, i64 {index}")
        join = f.label("join")
        cases = [f.label("case") for _ in branches]
        table = " ".join([f"i64 {j}, label %{c}" for j, c in enumerate(cases[:-1])])
        f.lines.append(f"  switch i64 {clamped}, label %{cases[-1]} [ {table} ]")
        for case, body in zip(cases, branches, strict=True):
            f.lines.append(f"{case}:")
            self._calls(body, dict(zip(body.inputs, operands, strict=True)), results)
            f.lines.append(f"  br label %{join}")
        f.lines.append(f"{join}:")


__all__ = ["BodyKernels", "fits_in_kernels"]
