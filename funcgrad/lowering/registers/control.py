"""Loops and branches of straight-line code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from funcgrad.core.ir import Aval, Equation, Literal, Program, Stack, Var
from funcgrad.lowering import sanitize
from funcgrad.lowering.registers.cells import I64, Memory, StackCell, is_small
from funcgrad.lowering.registers.emitter import Straight
from funcgrad.lowering.registers.kinds import kind_of
from funcgrad.lowering.registers.stacks import (
    OUT_OF_MEMORY,
    Carried,
    Handed,
    Owned,
    Reader,
    in_memory,
    load_stack,
    store_stack,
)
from funcgrad.lowering.values import Value

T = TypeVar("T", bound=Owned)
INTERRUPTED = -2  # a signal handler raised; the status then holds a reference to what
WATCHING = ("@interrupt = external global i64", "declare i64 @interrupted(ptr)")
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
        ys = e.outputs[carry:]
        elems = body.out_avals[carry:]
        numbers = {j: k for k, j in enumerate([j for j, v in enumerate(ys) if isinstance(v.aval, Stack)])}
        handed = self._owned(Handed, [ys[j].aval for j in numbers], root=self.kept.get(e))
        held = [j for j, v in enumerate(e.outputs[:carry]) if isinstance(v.aval, Stack)]
        carried = self._owned(Carried, [e.outputs[j].aval for j in held], 2)
        targets = [
            place or self.allocate(v.aval) if j not in numbers else None
            for j, (v, place) in enumerate(zip(ys, places[carry:], strict=True))
        ]
        if handed is not None:
            handed.begin(e in self.kept)
            if not p["test"]:
                handed.reserve(n)
        as_they_are = self._keep(body, carry)

        def trip(i: Value, t: Value, now: list[Any]) -> list[Any]:
            rows = [self._row(x, i, v.aval) for x, v in zip(xs, body.inputs[1 + consts + carry :], strict=True)]
            outs = self.run(body, [[i], *fixed, *now, *rows])
            if handed is not None and p["test"]:
                handed.reserve(self.b.iadd(t, 1))
            for j, (out, target, elem) in enumerate(zip(outs[carry:], targets, elems, strict=True)):
                if target is not None:
                    self._store_row(target.row(self.b, i, elem), out)
                elif handed is not None and body.outputs[carry + j] in as_they_are:
                    store_stack(self.b, handed.row(numbers[j], i), out)
                elif handed is not None:
                    self._hand_out(handed, numbers[j], i, out)
            outs = [self._settled(c, a) for c, a in zip(outs[:carry], body.out_avals, strict=False)]
            return outs if carried is None else self._take_over(carried, held, outs)

        count, final = self._repeat(n, start, trip, bool(p["test"]), bool(p["reverse"]))
        cells = dict(zip(numbers, handed.end(count), strict=True)) if handed is not None else {}
        return [*final, *[cells.get(j, target) for j, target in enumerate(targets)]]

    def _settled(self, cell: Any, aval: Aval) -> Any:
        """A value as the body sees it: small ones in registers, loaded once."""
        return self.registers(cell) if not isinstance(aval, Stack) and is_small(aval) else cell

    def _rows(self, cell: Any, atom: Any) -> Any:
        if isinstance(cell, StackCell):
            return Reader(self.b, cell)
        if isinstance(cell, list) and not isinstance(atom.aval, Stack):
            return self.memory(cell, atom.aval) if not isinstance(atom, Literal) else atom
        return cell

    def _row(self, x: Any, i: Value, aval: Aval) -> Any:
        """Element `i` of xs."""
        if isinstance(x, Literal):
            return self.constants(Literal(x.value, aval)) if is_small(aval) else Literal(x.value, aval)
        return self._settled(self.element(x, i, aval) if isinstance(x, Reader) else x.row(self.b, i, aval), aval)

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
        b.shared.declares |= dict.fromkeys(WATCHING)
        self.failed = True
        pressed = b.ne(b.emit(I64, "load volatile i64, ptr @interrupt"), 0)
        b.lines += [f"  br i1 {pressed.text}, label %stop{k}, label %go{k}", f"stop{k}:"]
        b.lines += sanitize.touches([("%status", 16)])
        leave = b.ne(b.emit(I64, "call i64 @interrupted(ptr %status)"), 0)
        b.lines += [f"  br i1 {leave.text}, label %leave{k}, label %go{k}", f"leave{k}:"]
        self.leave(INTERRUPTED)
        b.lines.append(f"go{k}:")
        b.block = f"go{k}"

    def _foreign(self, e: Equation, cells: list[Any]) -> list[Any]:
        results = super()._foreign(e, cells)
        self.b.count += 1
        self._watch(self.b.count)  # it may take long, and even a loop of few trips is then long
        return results

    # -- stacks

    def _owned(self, kind: type[T], avals: Sequence[Stack], sets: int = 1, root: Var | None = None) -> T | None:
        """Growing buffers of a loop for stacks of these types, if there are any."""
        if not avals:
            return None
        self.failed = True
        root = root or Var(Owned.type_for(avals, sets))
        pointer = self.growing.setdefault(root, f"%g{len(self.growing)}")
        return kind(self.b, pointer, avals, self._out_of_memory, sets)

    def _keep(self, body: Program, carry: int) -> set[Any]:
        """Stacks that a loop with this body hands out as they are: made by a loop in it, which keeps its rows."""
        found: set[Any] = set()
        for e in body.equations:
            self.kept.pop(e, None)
            ys = e.outputs[e.params["carry"] :] if kind_of(e) == "loop" else ()
            avals = [v.aval for v in ys if isinstance(v.aval, Stack)]
            if not avals or any([isinstance(a.elem, Stack) for a in avals]):
                continue
            if not set(ys).isdisjoint(body.outputs[carry:]):
                self.kept[e] = root = Var(Owned.type_for(avals))
                kept = self._owned(Handed, avals, root=root)
                assert kept is not None
                kept.empty(0, 0)
                found.update(ys)
        return found

    def _out_of_memory(self) -> None:
        self.leave(OUT_OF_MEMORY)

    def _spilled(self, cell: StackCell) -> str:
        """The address of a stack, in scratch memory."""
        place = self.allocate(in_memory(cell.aval)).pointer
        store_stack(self.b, place, cell)
        return place

    def _hand_out(self, handed: Handed, j: int, i: Value, cell: Any) -> None:
        """Store a value in row `i` of a stack."""
        place = handed.row(j, i)
        if isinstance(cell, StackCell):
            handed.copy(j, self._spilled(cell), place, 1)
        else:
            self._store_row(Memory(place, handed.avals[j].elem), cell)

    def _take_over(self, carried: Carried, held: Sequence[int], outs: list[Any]) -> list[Any]:
        """The carry of the next trip, its stacks (those in `held`) in the buffers of the loop."""
        places = [self.allocate(in_memory(a)).pointer for a in carried.avals]
        carried.next([self._spilled(outs[j]) for j in held], places)
        after = dict(zip(held, zip(places, carried.avals, strict=True), strict=True))
        return [load_stack(self.b, *after[j]) if j in after else c for j, c in enumerate(outs)]

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
            memo = dict(b.memo)
            outs = [self._settled(c, a) for c, a in zip(self.run(body, settled), body.out_avals, strict=True)]
            b.memo = memo
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
    words = lambda c: c.words if isinstance(c, StackCell) else c if isinstance(c, list) else ()
    flat = [v for c in cells for v in words(c)]

    def again(c: Any, values: list[Value]) -> Any:
        return StackCell(*values, c.aval) if isinstance(c, StackCell) else values if isinstance(c, list) else c

    def rebuild(values: Sequence[Value]) -> list[Any]:
        rest = iter(values)
        return [again(c, [next(rest) for _ in words(c)]) for c in cells]

    return flat, rebuild
