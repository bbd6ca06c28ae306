"""Loops and branches of straight-line code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from funcgrad.base.dtypes import INT
from funcgrad.core.ir import Aval, Equation, Literal, Program, Stack, Var, make_aval
from funcgrad.lowering.builder import Value, make_type
from funcgrad.lowering.registers.cells import (
    I64,
    Layout,
    Memory,
    StackCell,
    is_small,
)
from funcgrad.lowering.registers.emitter import Straight

BIT = make_type("i1")
BUFFER_WORDS = 3  # of a growing buffer: address, bytes, rows
BUFFER = Aval((BUFFER_WORDS,), INT)  # of growing buffers, and of nothing else: an object of its own

GROW = """define internal i1 @grow(ptr %buffer, i64 %bytes) #0 {
entry:
  %data = load ptr, ptr %buffer
  %cp = getelementptr i64, ptr %buffer, i64 1
  %old = load i64, ptr %cp
  %double = shl i64 %old, 1
  %more = icmp ugt i64 %double, %bytes
  %least = select i1 %more, i64 %double, i64 %bytes
  %tiny = icmp ult i64 %least, 4096
  %size = select i1 %tiny, i64 4096, i64 %least
  %new = call ptr @realloc(ptr %data, i64 %size)
  %null = icmp eq ptr %new, null
  br i1 %null, label %none, label %done
none:
  ret i1 false
done:
  store ptr %new, ptr %buffer
  store i64 %size, ptr %cp
  ret i1 true
}
"""
OUT_OF_MEMORY = -3
INTERRUPTED = -2
UNWATCHED = 1000  # trips of a loop that does not look for Ctrl-C


class Control(Straight):
    """`Straight` with loops and branches."""

    # -- loops

    def _loop(self, e: Equation, cells: list[Any]) -> list[Any]:
        return self.loop(e, cells, [None] * len(e.outputs))

    def loop(self, e: Equation, cells: list[Any], places: Sequence[Memory | None]) -> list[Any]:
        """The results of a loop; arrays among ys are written to `places`, where there is one."""
        p = e.params
        body, consts, carry = p["body"], p["consts"], p["carry"]
        cs, ks = cells[1 : 1 + consts], cells[1 + consts : 1 + consts + carry]
        xs = [
            self._rows(x, a) for x, a in zip(cells[1 + consts + carry :], e.inputs[1 + consts + carry :], strict=True)
        ]
        n = self.registers(cells[0])[0]
        fixed = [self._settled(c, v.aval) for c, v in zip(cs, body.inputs[1:], strict=False)]
        start = [self._settled(k, v.aval) for k, v in zip(ks, body.inputs[1 + consts :], strict=False)]
        handed = e.outputs[carry:]
        elems = body.out_avals[carry:]
        stack = self._stack(e) if any([isinstance(v.aval, Stack) for v in handed]) else None
        targets: list[Any] = []
        for v, place in zip(handed, places[carry:], strict=True):
            targets.append(None if isinstance(v.aval, Stack) else place or self.allocate(v.aval))

        if stack is not None and not p["test"]:
            stack.reserve(n)

        def trip(i: Value, t: Value, carried: list[Any]) -> list[Any]:
            rows = [self._row(x, i, v.aval) for x, v in zip(xs, body.inputs[1 + consts + carry :], strict=True)]
            marks = dict(self.marks)
            outs = self.run(body, [[i], *fixed, *carried, *rows])
            self._release(body, marks)
            if stack is not None:
                if p["test"]:
                    stack.reserve(self.b.iadd(t, 1))
                stack.begin(i)
            for j, (out, target, elem) in enumerate(zip(outs[carry:], targets, elems, strict=True)):
                if target is None:
                    stack.push(j, out)
                else:
                    self._store_row(target.row(self.b, i, elem), out)
            return [self._settled(c, a) for c, a in zip(outs[:carry], body.out_avals, strict=False)]

        count, final = self._repeat(n, start, trip, bool(p["test"]), bool(p["reverse"]))
        results: list[Any] = []
        for j, target in enumerate(targets):
            results.append(target if target is not None else stack.cell(j, count, handed[j].aval))
        if stack is not None:
            stack.close(count)
        return [*final, *results]

    def _settled(self, cell: Any, aval: Aval) -> Any:
        """A value as the body sees it: small ones in registers, loaded once."""
        return self.registers(cell) if not isinstance(aval, Stack) and is_small(aval) else cell

    def _rows(self, cell: Any, atom: Any) -> Any:
        if isinstance(cell, list) and not isinstance(atom.aval, Stack):
            return self.memory(cell, atom.aval) if not isinstance(atom, Literal) else atom
        return cell

    def _row(self, x: Any, i: Value, aval: Aval) -> Any:
        """Element `i` of xs."""
        if isinstance(x, Literal):
            return self.constants(Literal(x.value, aval)) if is_small(aval) else Literal(x.value, aval)
        row = self._stack_row(x, i, aval) if isinstance(x, StackCell) else x.row(self.b, i, aval)
        return self._settled(row, aval)

    def _store_row(self, target: Memory, cell: Any) -> None:
        for k, v in enumerate(self.registers(cell)):
            target.store(self.b, k, v)

    def _repeat(
        self,
        n: Value,
        start: list[Any],
        trip: Callable[[Value, Value, list[Any]], list[Any]],
        test: bool,
        reverse: bool,
    ) -> tuple[Value, list[Any]]:
        """The number of trips made, and the carry after the last.

        With several lanes, a lane that is done keeps its carry while others go on.
        """
        b = self.b
        b.count = k = b.count + 1
        before, head, inside, done = b.block, f"head{k}", f"trip{k}", f"end{k}"
        b.lines += [f"  br label %{head}", f"{head}:"]
        b.block = head
        t = Value(f"%t{k}", I64)
        flat, rebuild = _flatten(start)
        phis = [Value(f"%k{k}.{j}", v.type) for j, v in enumerate(flat)]
        at = len(b.lines)
        carried = rebuild(phis)
        uniform = b.lanes == 1 or (not test and n.text.startswith("splat"))
        outer = self.mask
        if uniform:
            limit = n if b.lanes == 1 else Value(n.text.split()[-1].rstrip(")"), I64)
            go = b.lt(t, limit)
            if test:
                go = b.and_(go, carried[0][0])
        else:
            self.mask = b.lt(self.splat(t), n)
            if test:
                self.mask = b.and_(self.mask, carried[0][0])
            if outer is not None:
                self.mask = b.and_(self.mask, outer)
            go = b.any(self.mask)
        b.lines += [f"  br i1 {go.text}, label %{inside}, label %{done}", f"{inside}:"]
        b.block = inside
        if test or not n.text.isdigit() or int(n.text) > UNWATCHED:
            self._watch(k)
        running = self.mask
        ts = self.splat(t)
        i = b.isub(b.isub(n, 1), ts) if reverse else ts
        memo = dict(b.memo)
        after, _ = _flatten(trip(i, t, carried))
        b.memo = memo
        if not uniform:
            assert running is not None
            after = [b.select(running, new, old) for new, old in zip(after, phis, strict=True)]
        self.mask = outer
        step = b.iadd(t, 1)
        b.lines += [f"  br label %{head}", f"{done}:"]
        text = [f"  {t.text} = phi i64 [ 0, %{before} ], [ {step.text}, %{b.block} ]"]
        for phi, first, last in zip(phis, flat, after, strict=True):
            assert first.type is last.type, "a carry changed its type"
            text.append(f"  {phi.text} = phi {phi.type.text} [ {first.text}, %{before} ], [ {last.text}, %{b.block} ]")
        b.lines[at:at] = text
        b.block = done
        return t, carried

    def _watch(self, k: int) -> None:
        """Leave the function if Ctrl-C was pressed."""
        b = self.b
        b.shared.declares["@interrupt = external global i64"] = None
        self.failed = True
        pressed = b.ne(b.emit(I64, "load volatile i64, ptr @interrupt"), 0)
        b.lines += [f"  br i1 {pressed.text}, label %stop{k}, label %go{k}", f"stop{k}:"]
        b.lines += [f"  store i64 {INTERRUPTED}, ptr %status", "  br label %exit", f"go{k}:"]
        b.block = f"go{k}"

    def _foreign(self, e: Equation, cells: list[Any]) -> list[Any]:
        results = super()._foreign(e, cells)
        self.b.count += 1
        self._watch(self.b.count)  # it may take long, and even a loop of few trips is then long
        return results

    # -- growing buffers

    def parameter_of(self, root: Any) -> str:
        """The parameter of this function for a growing buffer."""
        return self.growing.setdefault(root, f"%g{len(self.growing)}")

    def _stack(self, e: Equation) -> _Rows:
        rows = _Rows(self, e)
        self.marks[e] = rows
        return rows

    def _release(self, body: Program, before: dict[Any, Any]) -> None:
        """Give back the rows of stacks that this trip made and does not hand out."""
        handed = set(body.outputs)
        for e, rows in list(self.marks.items()):
            if e not in before:
                if handed.isdisjoint(e.outputs):
                    self.b.lines.append(f"  store i64 {rows.first.text}, ptr {rows.rows.text}")
                del self.marks[e]

    def _stack_row(self, x: StackCell, i: Value, aval: Aval) -> Any:
        b = self.b
        layout = x.layout
        data = b.emit(I64, f"load ptr, ptr {self.parameter_of(layout.buffer)}")
        row = b.iadd(x.first, i) if x.first.text != "0" else i
        place = b.iadd(b.imul(row, layout.stride), layout.offset)
        p = b.emit(I64, f"getelementptr i8, ptr {data.text}, i64 {place.text}")
        if not isinstance(aval, Stack):
            return Memory(p.text, aval)
        pair = Memory(p.text, make_aval((2,), INT))
        assert layout.inner is not None
        return StackCell(pair.load(b, 0), pair.load(b, 1), layout.inner, aval)

    # -- branches

    def _branch(self, e: Equation, cells: list[Any]) -> list[Any]:
        b = self.b
        branches = e.params["branches"]
        index = self.registers(cells[0])[0]
        settled = [self._settled(c, v.aval) for c, v in zip(cells, branches[0].inputs, strict=True)]
        chosen = self._inside(index, len(branches) - 1)
        if b.lanes > 1:
            return self._branches_side_by_side(branches, chosen, settled)
        b.count = k = b.count + 1
        cases = " ".join([f"i64 {j}, label %case{k}.{j}" for j in range(1, len(branches))])
        b.lines.append(f"  switch i64 {chosen.text}, label %case{k}.0 [ {cases} ]")
        ends: list[tuple[str, list[Any]]] = []
        for j, body in enumerate(branches):
            b.lines.append(f"case{k}.{j}:")
            b.block = f"case{k}.{j}"
            marks = dict(self.marks)
            memo = dict(b.memo)
            outs = [self._settled(c, a) for c, a in zip(self.run(body, settled), body.out_avals, strict=True)]
            b.memo = memo
            self._release(body, marks)
            b.lines.append(f"  br label %join{k}")
            ends.append((b.block, outs))
        b.lines.append(f"join{k}:")
        b.block = f"join{k}"
        columns = [_flatten(outs)[0] for _, outs in ends]
        merged = []
        for values in zip(*columns, strict=True):
            pairs = ", ".join([f"[ {v.text}, %{block} ]" for v, (block, _) in zip(values, ends, strict=True)])
            merged.append(b.emit(values[0].type, f"phi {values[0].type.text} {pairs}"))
        return _flatten(ends[0][1])[1](merged)

    def _branches_side_by_side(self, branches: Any, chosen: Value, cells: list[Any]) -> list[Any]:
        """All branches for all lanes, and from each the lanes that chose it."""
        b, outer = self.b, self.mask
        results: list[Any] | None = None
        for j, body in enumerate(branches):
            mine = b.eq(chosen, j)
            self.mask = mine if outer is None else b.and_(mine, outer)
            outs = [self.registers(c) for c in self.run(body, cells)]
            self.mask = outer
            if results is not None:
                outs = [[b.select(mine, new, old) for new, old in zip(n, o, strict=True)]
                        for n, o in zip(outs, results, strict=True)]  # fmt: skip
            results = outs
        assert results is not None
        return results


def _flatten(cells: list[Any]) -> tuple[list[Value], Callable[[Sequence[Value]], list[Any]]]:
    """All registers of some cells, and the way back; what is in memory stays as it is."""
    flat = [v for c in cells if isinstance(c, list) for v in c]

    def rebuild(values: Sequence[Value]) -> list[Any]:
        rest = iter(values)
        return [[next(rest) for _ in c] if isinstance(c, list) else c for c in cells]

    return flat, rebuild


class _Rows:
    """The rows that a loop of unknown length hands out, in one growing buffer."""

    def __init__(self, emitter: Control, e: Equation) -> None:
        self.emitter = emitter
        self.elems = e.params["body"].out_avals[e.params["carry"] :]
        root = Var(BUFFER)
        self.buffer = emitter.parameter_of(root)
        offsets, self.stride = _offsets([a for a, v in zip(self.elems, e.outputs[e.params["carry"] :], strict=True)
                                         if isinstance(v.aval, Stack)])  # fmt: skip
        rest = iter(offsets)
        self.layouts = [Layout(root, self.stride, next(rest)) if isinstance(v.aval, Stack) else None
                        for v in e.outputs[e.params["carry"] :]]  # fmt: skip
        b = emitter.b
        self.rows = b.emit(I64, f"getelementptr i64, ptr {self.buffer}, i64 2")
        self.first = b.emit(I64, f"load i64, ptr {self.rows.text}")
        emitter.failed = True

    def reserve(self, count: Value) -> None:
        """Room for `count` rows."""
        b = self.emitter.b
        b.shared.declares["declare ptr @realloc(ptr, i64)"] = None
        b.need_function("grow", [I64, I64], [BIT], lambda: GROW)
        need = b.imul(b.iadd(self.first, count), self.stride)
        cp = b.emit(I64, f"getelementptr i64, ptr {self.buffer}, i64 1")
        capacity = b.emit(I64, f"load i64, ptr {cp.text}")
        full = b.gt(need, capacity)
        b.count = n = b.count + 1
        b.lines += [f"  br i1 {full.text}, label %grow{n}, label %room{n}", f"grow{n}:"]
        b.lines.append(f"  %ok{n} = call i1 @grow(ptr {self.buffer}, i64 {need.text}) cold")
        b.lines += [f"  br i1 %ok{n}, label %room{n}, label %full{n}", f"full{n}:"]
        b.lines += [f"  store i64 {OUT_OF_MEMORY}, ptr %status", "  br label %exit", f"room{n}:"]
        b.block = f"room{n}"

    def begin(self, i: Value) -> None:
        """The row of trip `i` is stored from now on."""
        b = self.emitter.b
        self.data = b.emit(I64, f"load ptr, ptr {self.buffer}")
        self.base = b.imul(b.iadd(self.first, i), self.stride)

    def push(self, j: int, cell: Any) -> None:
        """Store the value of result `j` in the row."""
        b, layout = self.emitter.b, self.layouts[j]
        assert layout is not None
        p = b.emit(I64, f"getelementptr i8, ptr {self.data.text}, i64 {b.iadd(self.base, layout.offset).text}")
        if isinstance(cell, StackCell):
            pair = Memory(p.text, make_aval((2,), INT))
            pair.store(b, 0, cell.first)
            pair.store(b, 1, cell.count)
            self.layouts[j] = replace(layout, inner=cell.layout)
        else:
            self.emitter._store_row(Memory(p.text, self.elems[j]), cell)

    def cell(self, j: int, count: Value, aval: Any) -> StackCell:
        """Result `j` as a stack."""
        layout = self.layouts[j]
        assert layout is not None
        return StackCell(self.first, count, layout, aval)

    def close(self, count: Value) -> None:
        """Note how many rows there are now."""
        b = self.emitter.b
        b.lines.append(f"  store i64 {b.iadd(self.first, count).text}, ptr {self.rows.text}")


def _offsets(elems: Sequence[Aval]) -> tuple[list[int], int]:
    """Where the values of a row begin, and the bytes of a row; the value of a stack is a pair of integers."""
    offsets, at = [], 0
    for a in elems:
        offsets.append(at)
        at += 16 if isinstance(a, Stack) else -(-a.size * a.dtype.itemsize // 8) * 8
    return offsets, at
