"""What happens at one index of a loop, or at a vector of them: values are loaded and computed as they are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from funcgrad.base.dtypes import INT
from funcgrad.core.ir import Atom, Equation, Literal
from funcgrad.lowering.nests import I64, STATUS, Access, Carries, Pointers, memory_element
from funcgrad.lowering.values import Value, constant, make_type
from funcgrad.ops.scalar import convert

if TYPE_CHECKING:
    from funcgrad.lowering.loops import LoopEmitter


class Point:
    """An index of a loop, whose accesses are at `pointers`; of vectors that overlap, the lanes that are `fresh`."""

    def __init__(self, emitter: LoopEmitter, pointers: Pointers, fresh: Value | None) -> None:
        self.emitter, self.pointers, self.fresh = emitter, pointers, fresh
        self.b, self.loop, self.index = emitter.b, emitter.loop, emitter.index
        self.env: dict[Atom, Value] = {}

    def stride(self, a: Access) -> int:
        """From lane to lane."""
        vector = self.emitter.nest.vector
        return 0 if vector is None else a.strides[vector]

    def read(self, atom: Atom) -> Value:
        """An operand: computed before, or in memory."""
        if isinstance(atom, Literal):
            return self.emitter.literal(atom)
        if atom not in self.env:
            self.env[atom] = self.load(self.index["read", id(atom)])
        return self.env[atom]

    def load(self, place: int) -> Value:
        """What lies where an access of that number is."""
        a = self.pointers[place]
        return self.emitter.load(a, self.stride(a))

    def compute(self, k: int) -> None:
        """Equation `k`."""
        e = self.loop.equations[k]
        (out,), kind = e.outputs, e.primitive.traits.kind
        if kind == "iota":
            number = self.counter(self.pointers[self.index["iota", k]])
            self.env[out] = convert(self.b, INT, number, dtype=e.params["dtype"], weak=False)
        elif kind == "gather":
            self.env[out] = self.gather(e, k)
        elif kind == "window":
            self.env[out] = self.load(self.index["window", k])
        elif kind == "check":
            self.env[out] = self.check(e, self.read(e.inputs[0]))
        else:
            self.env[out] = self.emitter.emitted(e, [self.read(a) for a in e.inputs])

    def write(self, k: int) -> None:
        """Write `k`."""
        place = self.index["write", k]
        a, value = self.pointers[place], self.read(self.loop.writes[k].value)
        if self.fresh is not None and self.emitter.once:
            value = self.b.select(self.fresh, value, self.load(place))
        self.emitter.store(value, a, self.stride(a))

    def take(self, k: int, old: Carries) -> Carries:
        """The carries of reduction `k` with the value here."""
        dtype, kind = self.emitter.kinds[k]
        taken = [self.read(self.loop.reductions[k].inputs[0])]
        if ("place", k) in self.index:
            taken.append(self.counter(self.pointers[self.index["place", k]]))
        new = kind.take(self.b, dtype, old, *taken)
        if self.fresh is None:
            return new
        return [o if n is o else self.b.select(self.fresh, n, o) for n, o in zip(new, old, strict=True)]

    def counter(self, a: Access) -> Value:
        """The index along an axis, in every lane."""
        b, lanes = self.b, self.emitter.lanes
        base = Value(a.pointer or "0", I64)
        value = self.emitter.splat(base) if base.text != "0" else constant(make_type("i64", lanes), 0)
        step = self.stride(a)
        if step and lanes > 1:
            ids = self.emitter.lane_ids()
            value = b.iadd(value, ids if step == 1 else b.imul(ids, step))
        return value

    def check(self, e: Equation, index: Value) -> Value:
        """The checked positions; the first one outside, of the first check that finds any, goes to the status."""
        b = self.b
        assert e.primitive.check is not None
        counted, outside = e.primitive.check(b, INT, index, **e.params)
        self.emitter.checks.append(e)
        found = b.any(outside)
        b.count = n = b.count + 1
        status = self.emitter.roots[STATUS]
        b.lines += [f"  br i1 {found.text}, label %wrong{n}, label %right{n}", f"wrong{n}:"]
        b.block = f"wrong{n}"
        position = index
        if self.emitter.lanes > 1:
            one, flag = make_type("i64"), make_type("i1")
            position = constant(one, 0)
            for lane in reversed(range(self.emitter.lanes)):
                x = b.emit(one, f"extractelement {index.type.text} {index.text}, i64 {lane}")
                bad = b.emit(flag, f"extractelement {outside.type.text} {outside.text}, i64 {lane}")
                position = b.select(bad, x, position)
        self.emitter.report(Value(status, I64), position)
        b.lines += [f"  br label %right{n}", f"right{n}:"]
        b.block = f"right{n}"
        return counted

    def gather(self, e: Equation, k: int) -> Value:
        """Elements at computed places; places outside are moved inside, so that nothing else is ever read."""
        emitter, b, a = self.emitter, self.b, self.pointers[self.index["gather", k]]
        step, lanes = self.stride(a), emitter.lanes
        uniform = [self.uniform(i) for i in e.inputs[1:]]
        scalars = [i for i in uniform if i is not None]
        shape, strides = e.inputs[0].aval.shape, emitter.views[e.inputs[0]].strides  # type: ignore[index]
        if len(scalars) == len(uniform):
            return emitter.load(emitter.moved(a, emitter.place(scalars, shape, strides)), step)
        place = emitter.place([self.read(i) for i in e.inputs[1:]], shape, strides)
        if lanes == 1:
            return emitter.load_one(emitter.moved(a, place))
        if step:
            place = b.iadd(place, b.imul(emitter.lane_ids(), step))
        element, p = memory_element(a.dtype), emitter.pointer(a)
        one, t = make_type(element), make_type(element, lanes)
        value = Value("poison", t)
        for lane in range(lanes):
            at = b.emit(I64, f"extractelement {place.type.text} {place.text}, i64 {lane}")
            q = b.emit(I64, f"getelementptr {element}, ptr {p}, i64 {at.text}")
            y = b.emit(one, f"load {element}, ptr {q.text}, align {a.dtype.itemsize}")
            value = b.emit(t, f"insertelement {t.text} {value.text}, {element} {y.text}, i64 {lane}")
        return b.ne(value, 0) if a.dtype.kind == "b" else value

    def uniform(self, atom: Atom) -> Value | None:
        """The scalar that all lanes share, if they do."""
        if isinstance(atom, Literal):
            return constant(I64, int(atom.value))
        if atom in self.emitter.computed or self.emitter.nest.vector is None:
            return None
        a = self.pointers[self.index["read", id(atom)]]
        return None if self.stride(a) else self.emitter.load_one(a)
