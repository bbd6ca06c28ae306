"""A loop or branch of a Program as one function: operands and results in memory, everything else in registers."""

from __future__ import annotations

from typing import Any

import numpy as np

from funcgrad.core.ir import Equation, Literal, Stack, Var, make_aval
from funcgrad.lowering import kernels
from funcgrad.lowering.builder import Builder
from funcgrad.lowering.layout import View
from funcgrad.lowering.nests import STATUS, KernelText
from funcgrad.lowering.registers.cells import I64, Memory, StackCell, is_small, memory_element, register_element
from funcgrad.lowering.registers.control import Control
from funcgrad.lowering.registers.kinds import kind_of, side_by_side
from funcgrad.lowering.registers.stacks import in_memory, load_stack, store_stack
from funcgrad.lowering.values import Shared, Target, Value, constant, make_type

BYTE = np.dtype(np.uint8)
SIDE_BY_SIDE = 4  # vectors of rows that loop together: each waits for its own divisions and products


def control_text(
    kernel: kernels.Control,
    views: dict[Var, View],
    target: Target,
    shared: Shared,
    checks: list[Equation],
) -> KernelText:
    """The function of a loop or branch, or of another operation on stacks."""
    return ControlKernel(kernel, views, target, shared, checks).run()


class ControlKernel:
    """The function of a loop or branch in the making."""

    def __init__(
        self,
        kernel: kernels.Control,
        views: dict[Var, View],
        target: Target,
        shared: Shared,
        checks: list[Equation],
    ) -> None:
        self.e, self.kept, self.views = kernel.equation, kernel.kept, views
        self.lanes = self._lanes(target)
        self.b = Builder(target, self.lanes, shared)
        self.emitter = Control(self.b, checks)
        self.roots: dict[Any, str] = {}

    def run(self) -> KernelText:
        """The function."""
        if self.lanes > 1:
            self._side_by_side()
        else:
            self.one_by_one()
        return self._text()

    def one_by_one(self) -> None:
        """Operands, the equation, results: all of it as it stands."""
        e, b, emitter = self.e, self.b, self.emitter
        cells = [self.operand(a) for a in e.inputs]
        places = [self.whole(v) for v in e.outputs]
        if e.primitive.traits.kind == "loop":
            results = emitter.loop(e, self._own(cells, places), places)
        else:
            results = getattr(emitter, "_" + kind_of(e))(e, cells)
        for place, cell in zip(places, results, strict=True):
            if isinstance(cell, StackCell):
                store_stack(b, place.pointer, cell)
            elif not is_small(place.aval) and cell is not place:
                self._copy(cell, place)
            elif cell is not place:
                for k, value in enumerate(emitter.registers(cell)):
                    place.store(b, k, value)

    def _text(self) -> KernelText:
        emitter = self.emitter
        roots = dict(self.roots)
        if emitter.failed:
            roots[STATUS] = "%status"
        if emitter.scratch:
            roots[Var(make_aval((emitter.scratch,), BYTE))] = "%scratch"
        roots.update(emitter.growing)
        parameters = ", ".join([f"ptr {p}" for p in roots.values()])
        lines = "\n".join([*self.b.lines, "  br label %exit", "exit:", "  ret void"])
        text = f"define internal void @KERNEL({parameters}) #0 {{\nentry:\n{lines}\n}}\n"
        return KernelText(text, tuple(roots), True)

    def _pointer(self, root: Any) -> str:
        return self.roots.setdefault(root, f"%p{len(self.roots)}")

    def operand(self, a: Any) -> Any:
        """Where an operand is."""
        if isinstance(a, Literal):
            return self.emitter.constants(a) if is_small(a.aval) else a
        view = self.views[a]
        if isinstance(a.aval, Stack):
            return load_stack(self.b, self._pointer(view.root), a.aval)
        whole = Memory(self._pointer(view.root), a.aval)
        return Memory(whole.at(self.b, view.offset), a.aval)

    def whole(self, v: Var) -> Memory:
        """Where a result is to be."""
        return Memory(self._pointer(v), in_memory(v.aval))

    def _own(self, cells: list[Any], places: list[Memory]) -> list[Any]:
        """The operands, with large carries where their results are to be: copied there, or there already."""
        consts, carry = self.e.params["consts"], self.e.params["carry"]
        out = list(cells)
        for j in range(carry):
            k, place = 1 + consts + j, places[j]
            if is_small(place.aval):
                continue
            if j not in self.kept:
                self._copy(cells[k], place)
            out[k] = place
        return out

    def _copy(self, cell: Any, place: Memory) -> None:
        b, size = self.b, place.aval.size * place.aval.dtype.itemsize
        if isinstance(cell, Literal):
            value = constant(make_type(register_element(place.aval)), cell.value.item())

            def fill(i: Value, t: Value, carried: list[Any]) -> list[Any]:
                place.store(b, i, value)
                return []

            self.emitter._repeat(constant(I64, place.aval.size), [], fill, False, False)
            return
        b.shared.declares["declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)"] = None
        b.lines.append(
            f"  call void @llvm.memcpy.p0.p0.i64(ptr {place.pointer}, ptr {cell.pointer}, i64 {size}, i1 false)"
        )

    # -- rows of a vmap, side by side

    def _lanes(self, target: Target) -> int:
        """How many rows run at once."""
        e = self.e
        if e.primitive.traits.kind != "loop" or not side_by_side(e):
            return 1
        inner = any([q.primitive.traits.kind == "loop" for q in e.params["body"].equations])
        lanes = target.lanes(_widest(e)) * (SIDE_BY_SIDE if inner else 1)
        while lanes > e.params["length"]:
            lanes //= 2
        return max(lanes, 1)

    def _side_by_side(self) -> None:
        """Vectors of rows; the last one overlaps the one before it."""
        e, b, lanes, emitter = self.e, self.b, self.lanes, self.emitter
        p = e.params
        body, consts, length = p["body"], p["consts"], p["length"]
        cells = [self.operand(a) for a in e.inputs]
        fixed = [emitter._settled(c, v.aval) for c, v in zip(cells[1 : 1 + consts], body.inputs[1:], strict=False)]
        whole = [a if isinstance(a, Literal) else c for a, c in zip(e.inputs, cells, strict=True)]
        rows = list(zip(whole[1 + consts :], body.inputs[1 + consts :], strict=True))
        places = [self.whole(v) for v in e.outputs]
        ids = Value("<" + ", ".join([f"i64 {k}" for k in range(lanes)]) + ">", make_type("i64", lanes))

        def trip(_: Value, t: Value, carried: list[Any]) -> list[Any]:
            start = b.imul(t, lanes)
            if length % lanes:
                inside = b.emit(make_type("i1"), f"icmp ule i64 {start.text}, {length - lanes}")
                start = b.emit(I64, f"select i1 {inside.text}, i64 {start.text}, i64 {length - lanes}")
            index = b.iadd(emitter.splat(start), ids)
            loaded = [self._load_rows(c, v, start) for c, v in rows]
            outs = emitter.run(body, [[index], *fixed, *loaded])
            for out, place, elem in zip(outs, places, body.out_avals, strict=True):
                self._store_rows(emitter.registers(out), place, elem.size, start)
            return []

        count = Value(f"splat (i64 {-(-length // lanes)})", make_type("i64", lanes))
        emitter._repeat(count, [], trip, False, False)

    def _load_rows(self, cell: Memory | Literal, v: Var, start: Value) -> list[Value]:
        b, lanes = self.b, self.lanes
        if isinstance(cell, Literal):
            return self.emitter.constants(Literal(cell.value, v.aval))
        size, element, t = v.aval.size, memory_element(v.aval), make_type(memory_element(v.aval), lanes)
        out = []
        for k in range(size):
            if size == 1:
                p = cell.at(b, start)
                value = b.emit(t, f"load {t.text}, ptr {p}, align {v.aval.dtype.itemsize}")
            else:
                value = Value("poison", t)
                for lane in range(lanes):
                    place = b.iadd(b.imul(start, size), lane * size + k)
                    x = b.emit(
                        make_type(element), f"load {element}, ptr {cell.at(b, place)}, align {v.aval.dtype.itemsize}"
                    )
                    value = b.emit(t, f"insertelement {t.text} {value.text}, {element} {x.text}, i64 {lane}")
            out.append(b.ne(value, 0) if v.aval.dtype.kind == "b" else value)
        return out

    def _store_rows(self, values: list[Value], place: Memory, size: int, start: Value) -> None:
        b, align = self.b, place.aval.dtype.itemsize
        for k, value in enumerate(values):
            if place.aval.dtype.kind == "b":
                value = b.convert(value, value.type.with_element("i8"))
            if size == 1:
                b.lines.append(f"  store {value.type.text} {value.text}, ptr {place.at(b, start)}, align {align}")
                continue
            one = make_type(value.type.element)
            for lane in range(self.lanes):
                x = b.emit(one, f"extractelement {value.type.text} {value.text}, i64 {lane}")
                p = place.at(b, b.iadd(b.imul(start, size), lane * size + k))
                b.lines.append(f"  store {one.text} {x.text}, ptr {p}, align {align}")


def _widest(e: Equation) -> int:
    """Bytes of the widest type in a body; counters and indices count if anything computes with them."""
    widths = [4]

    def visit(program: Any) -> None:
        for inner in program.equations:
            widths.extend([v.aval.dtype.itemsize for v in (*inner.inputs, *inner.outputs)])
            for key in ("body", "branches"):
                held = inner.params.get(key, ())
                for q in held if isinstance(held, tuple) else (held,):
                    visit(q)

    visit(e.params["body"])
    return max(widths)
