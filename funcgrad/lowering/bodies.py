"""Loops and branches whose bodies are kernels: what `registers` cannot hold.

The body is scheduled as any Program. Its kernels are called in every trip, with pointers that move along the rows of
xs and ys; a carry is copied back after the trip. What the body keeps for itself lies in a frame of the arena.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from funcgrad.core.ir import Aval, Equation, Literal, Program, Stack, Var, make_aval
from funcgrad.lowering.buffers import layout
from funcgrad.lowering.builder import Function, make_type
from funcgrad.lowering.kernels import Control, Schedule
from funcgrad.lowering.layout import View
from funcgrad.lowering.nests import STATUS, KernelText
from funcgrad.lowering.registers.cells import Layout
from funcgrad.lowering.registers.control import BUFFER, GROW, INTERRUPTED, OUT_OF_MEMORY
from funcgrad.lowering.registers.kernel import BYTE
from funcgrad.lowering.schedule import schedule

Call = tuple[str, tuple[Any, ...]]


def fits_in_kernels(e: Equation, native: Callable[[Equation], bool]) -> bool:
    """Whether a loop or branch of a flat Program can be made of kernels."""
    bodies = e.params["branches"] if e.primitive.traits.kind == "branch" else (e.params["body"],)
    plain = lambda atoms: all([not isinstance(a.aval, Stack) for a in atoms])
    if e.primitive.traits.kind == "branch" and not plain(e.outputs):
        return False
    return all([plain((*b.inputs, *b.outputs)) and all([native(q) for q in b.equations]) for b in bodies])


def size_of(aval: Aval) -> int:
    """Bytes of a value in memory."""
    return aval.size * aval.dtype.itemsize


@dataclass(slots=True)
class Lines:
    """The text of a function that grows, and its parameters by root."""

    roots: dict[Any, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    count: int = 0

    def parameter(self, root: Any) -> str:
        """The parameter for a root."""
        name = "%status" if root is STATUS else f"%p{len(self.roots)}"
        return self.roots.setdefault(root, name)

    def emit(self, text: str) -> str:
        """One instruction; the name of its result."""
        self.count += 1
        self.lines.append(f"  %v{self.count} = {text}")
        return f"%v{self.count}"

    def label(self, stem: str) -> str:
        """A fresh label."""
        self.count += 1
        return f"{stem}{self.count}"

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
        stacks: dict[Var, Layout],
        shared: Any,
        kernels: Callable[[Schedule], list[Call]],
    ) -> None:
        self.e, self.kept = kernel.equation, kernel.kept
        self.views, self.stacks, self.shared = views, stacks, shared
        self.kernels = kernels
        self.f = Lines()

    def run(self) -> KernelText:
        """The text of the function."""
        if self.e.primitive.traits.kind == "branch":
            self._branch()
        else:
            self._loop()
        return self.f.text()

    def _operand(self, a: Any) -> str:
        """The address of an operand; a stack has none."""
        if isinstance(a.aval, Stack):
            return ""
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
        root = Var(make_aval((max(size_of(aval), 1),), BYTE))
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
        if size_of(aval):
            self.shared.declares["declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)"] = None
            self.f.lines.append(
                f"  call void @llvm.memcpy.p0.p0.i64(ptr {target}, ptr {source}, i64 {size_of(aval)}, i1 false)"
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
        fresh = {r for _, roots in calls for r in roots if r is not STATUS and r.aval is BUFFER}
        arena = layout(s, [roots for _, roots in calls], {*at, *fresh})
        offsets = {r: place.offset for r, place in arena.places.items()}
        frame = Var(make_aval((max(arena.size, 1),), BYTE))
        if offsets:
            p = f.parameter(frame)
            at |= {r: f.emit(f"getelementptr i8, ptr {p}, i64 {o}") for r, o in offsets.items()}
        for r in fresh:
            rows = f.emit(f"getelementptr i64, ptr {f.parameter(r)}, i64 2")
            f.lines.append(f"  store i64 0, ptr {rows}")
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
        for j, (a, target) in enumerate(zip(e.inputs[1 + consts :], current, strict=False)):
            if j not in self.kept:
                self._copy(operands[1 + consts + j], target, a.aval)
        rows = [None if isinstance(v.aval, Stack) else f.parameter(v) for v in e.outputs[carry:]]
        growing = self._growing() if None in rows else None
        index = self._alloca(body.inputs[0].aval)
        n = f.emit(f"load i64, ptr {operands[0]}")
        if growing is not None and not p["test"]:
            growing.reserve(f, n)
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
        xs = [
            self._row(a, q, v.aval, i)
            for a, q, v in zip(
                e.inputs[1 + consts + carry :],
                operands[1 + consts + carry :],
                body.inputs[1 + consts + carry :],
                strict=True,
            )
        ]
        places = dict(zip(body.inputs, [index, *operands[1 : 1 + consts], *current, *xs], strict=True))
        base = ""
        if growing is not None:
            if p["test"]:
                growing.reserve(f, f.emit(f"add i64 {i}, 1"))
            base = growing.row(f, i)
        targets: list[str | None] = [None] * carry
        for j, (r, elem) in enumerate(zip(rows, body.out_avals[carry:], strict=True)):
            if r is None:
                assert growing is not None
                targets.append(f.emit(f"getelementptr i8, ptr {base}, i64 {growing.offsets[j]}"))
            else:
                targets.append(f.emit(f"getelementptr i8, ptr {r}, i64 {f.emit(f'mul i64 {i}, {size_of(elem)}')}"))
        outs = self._calls(body, places, targets)
        for source, target, a in zip(outs, current, body.out_avals, strict=False):
            self._copy(source, target, a)
        f.lines += [f"  br label %{latch}", f"{latch}:", "  %next = add i64 %t, 1", f"  br label %{head}", f"{done}:"]
        if growing is not None:
            slot = f.emit(f"getelementptr i64, ptr {f.parameter(growing.root)}, i64 2")
            f.lines.append(f"  store i64 %t, ptr {slot}")

    def _watch(self) -> None:
        """Leave the function if Ctrl-C was pressed."""
        f = self.f
        self.shared.declares["@interrupt = external global i64"] = None
        pressed = f.emit(f"icmp ne i64 {f.emit('load volatile i64, ptr @interrupt')}, 0")
        stop, on = f.label("stop"), f.label("on")
        f.lines += [f"  br i1 {pressed}, label %{stop}, label %{on}", f"{stop}:"]
        f.lines += [f"  store i64 {INTERRUPTED}, ptr {f.parameter(STATUS)}", "  br label %exit", f"{on}:"]

    def _row(self, a: Any, pointer: str, elem: Aval, i: str) -> str:
        f = self.f
        if isinstance(a.aval, Stack):
            layout = self.stacks[a]
            data = f.emit(f"load ptr, ptr {f.parameter(layout.buffer)}")
            at = f.emit(f"add i64 {f.emit(f'mul i64 {i}, {layout.stride}')}, {layout.offset}")
            return f.emit(f"getelementptr i8, ptr {data}, i64 {at}")
        return f.emit(f"getelementptr i8, ptr {pointer}, i64 {f.emit(f'mul i64 {i}, {size_of(elem)}')}")

    def _growing(self) -> _Growing:
        e, carry = self.e, self.e.params["carry"]
        g = _Growing(
            e.params["body"].out_avals[carry:], [isinstance(v.aval, Stack) for v in e.outputs[carry:]], self.shared
        )
        for j, v in enumerate(e.outputs[carry:]):
            if isinstance(v.aval, Stack):
                self.stacks[v] = Layout(g.root, g.stride, g.offsets[j])
        return g

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


class _Growing:
    """The growing buffer of a loop: where the values of a row lie."""

    def __init__(self, elems: Sequence[Aval], wanted: Sequence[bool], shared: Any) -> None:
        self.root = Var(BUFFER)
        self.offsets: dict[int, int] = {}
        self.stride = 0
        self.shared = shared
        for j, (a, w) in enumerate(zip(elems, wanted, strict=True)):
            if w:
                self.offsets[j] = self.stride
                self.stride += -(-size_of(a) // 8) * 8

    def reserve(self, f: Lines, count: str) -> None:
        """Room for `count` rows."""
        self.shared.declares["declare ptr @realloc(ptr, i64)"] = None
        if "grow" not in self.shared.functions:
            self.shared.functions["grow"] = Function((make_type("i64"),) * 2, (make_type("i1"),), GROW)
        buffer = f.parameter(self.root)
        need = f.emit(f"mul i64 {count}, {self.stride}")
        capacity = f.emit(f"load i64, ptr {f.emit(f'getelementptr i64, ptr {buffer}, i64 1')}")
        full = f.emit(f"icmp ugt i64 {need}, {capacity}")
        grow, room, none = f.label("grow"), f.label("room"), f.label("none")
        f.lines += [f"  br i1 {full}, label %{grow}, label %{room}", f"{grow}:"]
        ok = f.emit(f"call i1 @grow(ptr {buffer}, i64 {need})")
        f.lines += [f"  br i1 {ok}, label %{room}, label %{none}", f"{none}:"]
        f.lines += [f"  store i64 {OUT_OF_MEMORY}, ptr {f.parameter(STATUS)}", "  br label %exit", f"{room}:"]

    def row(self, f: Lines, i: str) -> str:
        """The address of row `i`."""
        data = f.emit(f"load ptr, ptr {f.parameter(self.root)}")
        return f.emit(f"getelementptr i8, ptr {data}, i64 {f.emit(f'mul i64 {i}, {self.stride}')}")


__all__ = ["BodyKernels", "fits_in_kernels"]
