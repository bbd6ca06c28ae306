"""A scheduled `Loop` as LLVM text: loops over its iteration space around one vectorised body.

The innermost axis runs in vectors of as many lanes as fill a register with the widest dtype of the body. The last
vector overlaps the one before it, so the body is written once and nothing is read or written outside; elements that
it meets twice are kept out of reductions. Axes that are contiguous for every operand together run as one.

With reductions, the axes that are kept are the outer loops and the reduced ones the inner; if the last axis is kept,
its vectors hold one partial result per lane. Sums are taken in short blocks (`lowering.reductions`), each settled by a
branch out of the innermost loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from funcgrad.base.dtypes import INT, Dtype
from funcgrad.core.ir import Atom, Equation, Literal, Shape, Var
from funcgrad.lowering.builder import Builder, Shared, Target, Value, constant, make_type
from funcgrad.lowering.layout import View, row_major
from funcgrad.lowering.ordering import ordered
from funcgrad.lowering.reductions import REDUCTIONS, Carries, Reduction, block, fold
from funcgrad.lowering.schedule import Loop
from funcgrad.ops.scalar import convert, element_of

I64 = make_type("i64")


def memory_element(dtype: Dtype) -> str:
    """The element type in memory: bools take a byte."""
    return "i8" if dtype.kind == "b" else element_of(dtype)


@dataclass(slots=True)
class Access:
    """How one operand or result is addressed: element ``offset + sum(index * stride)`` of a buffer."""

    root: Any
    dtype: Dtype
    offset: int
    strides: tuple[int, ...]
    pointer: str = ""


@dataclass(slots=True)
class Nest:
    """The loops of a kernel, outermost first.

    Attributes
    ----------
    sizes
        Their lengths.
    outer
        How many of them are outside the reductions.
    accesses
        With strides along these loops.
    vector
        Which of them runs in vectors (the last one, or the last outer one), or None.
    """

    sizes: list[int]
    outer: int
    accesses: list[Access]
    vector: int | None


def nest(shape: Shape, axes: tuple[int, ...], accesses: list[Access]) -> Nest:
    """Order and merge the axes of an iteration space."""
    live = [i for i in range(len(shape)) if shape[i] != 1]
    kept = [i for i in live if i not in axes]
    reduced = [i for i in live if i in axes]
    sizes: list[int] = []
    columns: list[list[int]] = []  # for each loop the stride of every access
    outer = 0
    for group in (kept, reduced):
        first = len(sizes)
        for axis in group:
            strides = [a.strides[axis] for a in accesses]
            n = shape[axis]
            if len(sizes) > first and all([s == t * n for s, t in zip(columns[-1], strides, strict=True)]):
                sizes[-1] *= n
                columns[-1] = strides
            else:
                sizes.append(n)
                columns.append(strides)
        if group is kept:
            outer = len(sizes)
    merged = [
        Access(a.root, a.dtype, a.offset, tuple([c[k] for c in columns]), a.pointer) for k, a in enumerate(accesses)
    ]
    if not sizes:
        vector = None
    elif outer == len(sizes) or (live and live[-1] in axes):
        vector = len(sizes) - 1
    else:
        vector = outer - 1
    return Nest(sizes, outer, merged, vector)


STATUS = "status"
"""Stands among the roots for the status block of a call: the number of the check that failed, and the value."""

Repeat = Callable[[Builder, int, Carries, Callable[[Value, Carries], Carries]], Carries]


def repeat(b: Builder, count: int, carries: Carries, body: Callable[[Value, Carries], Carries]) -> Carries:
    """``for index in range(count): carries = body(index, carries)``; the final carries."""
    if count == 0:
        return carries
    if count == 1:
        return body(constant(I64, 0), carries)
    b.count = n = b.count + 1
    before, head, done = b.block, f"loop{n}", f"done{n}"
    b.lines += [f"  br label %{head}", f"{head}:"]
    b.block = head
    index = Value(f"%i{n}", I64)
    inside = [Value(f"%c{n}.{k}", c.type) for k, c in enumerate(carries)]
    at = len(b.lines)
    after = body(index, inside)
    step = b.iadd(index, 1)
    more = b.emit(make_type("i1"), f"icmp ult i64 {step.text}, {count}")
    b.lines += [f"  br i1 {more.text}, label %{head}, label %{done}", f"{done}:"]
    phis = [f"  {index.text} = phi i64 [ 0, %{before} ], [ {step.text}, %{b.block} ]"]
    for c, start, end in zip(inside, carries, after, strict=True):
        assert start.type is end.type, "a carry changed its type"
        phis.append(f"  {c.text} = phi {c.type.text} [ {start.text}, %{before} ], [ {end.text}, %{b.block} ]")
    b.lines[at:at] = phis
    b.block = done
    return after


def when(b: Builder, condition: Value, carries: Carries, body: Callable[[Carries], Carries]) -> Carries:
    """``if condition: carries = body(carries)``; the carries after it."""
    b.count = n = b.count + 1
    before, then, after = b.block, f"then{n}", f"after{n}"
    b.lines += [f"  br i1 {condition.text}, label %{then}, label %{after}", f"{then}:"]
    b.block = then
    changed = body(carries)
    b.lines += [f"  br label %{after}", f"{after}:"]
    inside, b.block = b.block, after
    return [
        x if y is x else b.emit(x.type, f"phi {x.type.text} [ {y.text}, %{inside} ], [ {x.text}, %{before} ]")
        for x, y in zip(carries, changed, strict=True)
    ]


# -- the kernel


@dataclass(frozen=True, slots=True)
class KernelText:
    """A kernel function without its name (``@KERNEL``), and the buffers for its parameters."""

    text: str
    roots: tuple[Any, ...]
    loops: bool


def loop_text(loop: Loop, views: dict[Var, View], target: Target, shared: Shared, checks: list[Equation]) -> KernelText:
    """The function that runs `loop`; helpers and declarations go to `shared`, its checks to `checks`."""
    return _LoopEmitter(loop, views, target, shared, checks).run()


class _LoopEmitter:
    def __init__(
        self, loop: Loop, views: dict[Var, View], target: Target, shared: Shared, checks: list[Equation]
    ) -> None:
        self.loop = loop
        self.checks = checks
        self.views = views
        self.target = target
        self.shared = shared
        self.computed = {v for e in loop.equations for v in e.outputs}
        self.roots: dict[Any, str] = {}
        self.written: set[Any] = set()
        dtypes = [e.inputs[0].aval.dtype for e in loop.reductions]
        self.kinds = [(d, REDUCTIONS[e.primitive.name](d)) for d, e in zip(dtypes, loop.reductions, strict=True)]
        self.blocks = any([kind.settle is not None for _, kind in self.kinds])
        self.index: dict[tuple[str, int], int] = {}  # what an access is for → its place in the nest

    # -- planning

    def run(self) -> KernelText:
        loop = self.loop
        accesses: list[Access] = []

        def access(kind: str, key: Any, root: Any, dtype: Dtype, offset: int, strides: Sequence[int]) -> None:
            self.index[kind, key] = len(accesses)
            accesses.append(Access(root, dtype, offset, tuple(strides)))

        for a in self._reads():
            v = self.views[a]
            access("read", id(a), v.root, a.aval.dtype, v.offset, v.strides)
        for k, w in enumerate(loop.writes):
            access("write", k, w.target.root, w.value.aval.dtype, w.target.offset, w.target.strides)
        for k, e in enumerate(loop.reductions):
            out = e.outputs[0]
            kept = iter(row_major(out.aval.shape))
            strides = [0 if i in loop.axes else next(kept) for i in range(len(loop.shape))]
            access("reduce", k, out, out.aval.dtype, 0, strides)
        for k, e in enumerate(loop.equations):
            if e.primitive.name == "iota":
                strides = [int(i == e.params["axis"]) for i in range(len(loop.shape))]
                access("iota", k, None, INT, 0, strides)
            elif e.primitive.traits.kind == "gather":
                x = e.inputs[0]
                v = self.views[x]  # type: ignore[index]
                taken = len(e.inputs) - 1
                rest = v.strides[taken:]
                strides = [0] * (len(loop.shape) - len(rest)) + list(rest)
                access("gather", k, v.root, x.aval.dtype, v.offset, strides)
            elif e.primitive.traits.kind == "check":
                self.roots.setdefault(STATUS, f"%p{len(self.roots)}")
        self.nest = n = nest(loop.shape, loop.axes, accesses)
        self.lanes = self._lane_count()
        b = self.b = Builder(self.target, self.lanes, self.shared)
        for a in n.accesses:
            if a.root is not None:
                a.pointer = self.roots.setdefault(a.root, f"%p{len(self.roots)}")
        if 0 not in loop.shape or loop.reductions:
            self._level(0, n.accesses, [])
        parameters = ", ".join([f"ptr {p}" for p in self.roots.values()])
        lines = "\n".join(ordered(b.lines, 32 if self.target.vector_bytes == 64 else 16))
        text = f"define internal void @KERNEL({parameters}) #0 {{\nentry:\n{lines}\n  ret void\n}}\n"
        return KernelText(text, tuple(self.roots), any([s > 1 for s in n.sizes]))

    def _reads(self) -> list[Var]:
        atoms: list[Atom] = []
        for e in (*self.loop.equations, *self.loop.reductions):
            atoms += e.inputs[1:] if e.primitive.traits.kind == "gather" else e.inputs
        atoms += [w.value for w in self.loop.writes]
        return list(dict.fromkeys([a for a in atoms if isinstance(a, Var) and a not in self.computed]))

    def _lane_count(self) -> int:
        n = self.nest
        if n.vector is None:
            return 1
        dtypes = [a.dtype for a in n.accesses if a.root is not None]
        dtypes += [v.aval.dtype for e in self.loop.equations for v in e.outputs]
        dtypes += [e.params["dtype"] for e in self.loop.equations if "dtype" in e.params]
        widest = max([d.itemsize for d in dtypes], default=8)
        if any([e.primitive.name == "iota" for e in self.loop.equations]):
            widest = 8
        lanes = max(self.target.lanes(widest), 1)
        size = n.sizes[n.vector]
        while lanes > size:
            lanes //= 2
        return max(lanes, 1)

    # -- loops

    def _level(self, depth: int, pointers: list[Access], carries: Carries) -> Carries:
        """Emit the loops from `depth` inwards; `pointers` are advanced to the indices of the outer ones."""
        n = self.nest
        if depth == n.outer and self.loop.reductions:
            return self._reduce(depth, pointers)
        if depth == len(n.sizes):
            self._body(pointers, None, None, None)
            return []
        if depth == n.vector:
            return self._vectors(depth, pointers, [], self._at_vector)
        step = lambda i, c: self._level(depth + 1, self._advance(pointers, depth, i), c)
        return repeat(self.b, n.sizes[depth], [], step)

    def _at_vector(self, pointers: list[Access], start: Value, fresh: Value | None, carries: Carries) -> Carries:
        n = self.nest
        if self.loop.reductions and n.vector is not None and n.vector < n.outer:
            self._reduce(n.outer, pointers, start)
            return []
        self._body(pointers, start, fresh, None)
        return []

    def _advance(self, pointers: list[Access], depth: int, index: Value) -> list[Access]:
        out = []
        for a in pointers:
            stride = a.strides[depth]
            if stride == 0 or index.text == "0":
                out.append(a)
            elif a.root is None:
                moved = index if stride == 1 else self.b.imul(index, stride)
                total = moved if not a.pointer else self.b.iadd(Value(a.pointer, I64), moved)
                out.append(Access(a.root, a.dtype, a.offset, a.strides, total.text))
            else:
                moved = index if stride == 1 else self.b.imul(index, stride)
                element = memory_element(a.dtype)
                p = self.b.emit(make_type("i64"), f"getelementptr {element}, ptr {a.pointer}, i64 {moved.text}")
                out.append(Access(a.root, a.dtype, a.offset, a.strides, p.text))
        return out

    def _vectors(
        self,
        depth: int,
        pointers: list[Access],
        carries: Carries,
        body: Callable[[list[Access], Value, Value | None, Carries], Carries],
        run: Repeat = repeat,
    ) -> Carries:
        """The vector loop: calls `body` with the first index and, if vectors overlap, the lanes that are new."""
        size, lanes, b = self.nest.sizes[depth], self.lanes, self.b
        count, overlap = -(-size // lanes), size % lanes != 0

        def step(i: Value, c: Carries) -> Carries:
            nominal = b.imul(i, lanes) if i.text != "0" else i
            if not overlap:
                return body(self._advance(pointers, depth, nominal), nominal, None, c)
            last = size - lanes
            inside = b.emit(make_type("i1"), f"icmp ule i64 {nominal.text}, {last}")
            start = b.emit(I64, f"select i1 {inside.text}, i64 {nominal.text}, i64 {last}")
            shift = self._splat(b.isub(nominal, start))
            ids = self._lane_ids()
            fresh = b.emit(make_type("i1", lanes), f"icmp sge {ids.type.text} {ids.text}, {shift.text}")
            return body(self._advance(pointers, depth, start), start, fresh, c)

        return run(b, count, carries, step)

    def _lane_ids(self) -> Value:
        t = make_type("i64", self.lanes)
        text = "0" if self.lanes == 1 else "<" + ", ".join([f"i64 {k}" for k in range(self.lanes)]) + ">"
        return Value(text, t)

    def _splat(self, x: Value) -> Value:
        t = make_type(x.type.element, self.lanes)
        if self.lanes == 1:
            return x
        one = self.b.emit(t, f"insertelement {t.text} poison, {x.type.text} {x.text}, i64 0")
        zeros = f"<{self.lanes} x i32> zeroinitializer"
        return self.b.emit(t, f"shufflevector {t.text} {one.text}, {t.text} poison, {zeros}")

    # -- reductions

    def _reduce(self, depth: int, pointers: list[Access], lane_start: Value | None = None) -> Carries:
        """All loops of the reductions, and the stores of their results."""
        n, b = self.nest, self.b
        types = [make_type(element_of(dtype), self.lanes) for dtype, _ in self.kinds]
        carries = [constant(t, x) for t, (_, kind) in zip(types, self.kinds, strict=True) for x in kind.start]
        level, every = self._blocks(depth, self.lanes if lane_start is None else 1)

        def inner(depth: int, pointers: list[Access], carries: Carries) -> Carries:
            if depth == len(n.sizes):
                return self._body(pointers, lane_start, None, carries)
            run = self._settling(every) if depth == level else repeat
            if depth == n.vector:
                return self._vectors(depth, pointers, carries, self._body, run)
            step = lambda i, c: inner(depth + 1, self._advance(pointers, depth, i), c)
            return run(b, n.sizes[depth], carries, step)

        if 0 not in self.loop.shape:
            carries = inner(depth, pointers, carries)
        if level is None:
            carries = self._settle(carries)
        for k, (dtype, kind, acc) in enumerate(self._accumulators(carries)):
            target = pointers[self.index["reduce", k]]
            if lane_start is None:
                self._store_one(self._folded(kind, dtype, acc), target)
            else:
                assert n.vector is not None
                self._store(kind.finish(b, acc), target, target.strides[n.vector])
        return []

    def _blocks(self, depth: int, lanes: int) -> tuple[int | None, int]:
        """The loop in which sums are settled, and after how many of its runs; None: once, after all loops."""
        n, runs = self.nest, 1
        counts = [-(-size // self.lanes) if k == n.vector else size for k, size in enumerate(n.sizes)]
        values = block(prod(counts[depth:]), lanes)
        for level in reversed(range(depth, len(counts))):
            if runs * counts[level] > values:
                return level, 1 << (values // runs).bit_length() - 1
            runs *= counts[level]
        return None, 1

    def _settling(self, every: int) -> Repeat:
        """`repeat`, with the sums settled after `every` runs and at the end."""

        def run(b: Builder, count: int, carries: Carries, body: Callable[[Value, Carries], Carries]) -> Carries:
            def step(i: Value, c: Carries) -> Carries:
                c = body(i, c)
                full = b.eq(b.and_(i, every - 1), every - 1)
                return when(b, full if count % every == 0 else b.or_(full, b.eq(i, count - 1)), c, self._settle)

            return repeat(b, count, carries, step if self.blocks else body)

        return run

    def _settle(self, carries: Carries) -> Carries:
        return [
            c
            for _, kind, acc in self._accumulators(carries)
            for c in (acc if kind.settle is None else kind.settle(self.b, acc))
        ]

    def _accumulators(self, carries: Carries) -> list[tuple[Dtype, Reduction, Carries]]:
        """Each reduction with its part of the carries."""
        rest = iter(carries)
        return [(dtype, kind, [next(rest) for _ in kind.start]) for dtype, kind in self.kinds]

    def _folded(self, kind: Reduction, dtype: Dtype, acc: Carries) -> Value:
        """The result of the lanes together. Several sums of everything share a function, which is compiled once."""
        if len(self.kinds) == 1 or kind.settle is None or self.nest.outer:
            return kind.finish(self.b, fold(self.b, kind, dtype, acc))
        t = acc[0].type
        name = f"fold.sum.{t.suffix}"

        def text() -> str:
            inner = self.b.inner()
            total = kind.finish(inner, fold(inner, kind, dtype, [Value(f"%x{i}", t) for i in range(len(acc))]))
            parameters = ", ".join([f"{t} %x{i}" for i in range(len(acc))])
            head = f"define internal {total.type} @{name}({parameters}) noinline nounwind {{"
            return "\n".join([head, *inner.lines, f"  ret {total.type} {total.text}", "}"])

        self.b.need_function(name, [t] * len(acc), [make_type(t.element)], text)
        return self.b.call(name, *acc)[0]

    # -- the body

    def _body(
        self, pointers: list[Access], start: Value | None, fresh: Value | None, carries: Carries | None
    ) -> Carries:
        """One vector of the iteration space: loads, equations, stores, and what reductions take in."""
        b, env = self.b, {}
        vector = self.nest.vector

        def stride(a: Access) -> int:
            return 0 if vector is None else a.strides[vector]

        def read(atom: Atom) -> Value:
            if isinstance(atom, Literal):
                t = make_type(element_of(atom.aval.dtype), self.lanes)
                return constant(t, atom.value.item())
            if atom not in env:
                a = pointers[self.index["read", id(atom)]]
                env[atom] = self._load(a, stride(a))
            return env[atom]

        for k, e in enumerate(self.loop.equations):
            if e.primitive.name == "iota":
                env[e.outputs[0]] = self._iota(e, pointers[self.index["iota", k]])
                continue
            if e.primitive.traits.kind == "gather":
                env[e.outputs[0]] = self._gather(e, pointers[self.index["gather", k]], [read(a) for a in e.inputs[1:]])
                continue
            if e.primitive.traits.kind == "check":
                env[e.outputs[0]] = self._check(e, read(e.inputs[0]))
                continue
            assert e.primitive.emit is not None
            inputs = [read(a) for a in e.inputs]
            dtype = e.inputs[-1].aval.dtype
            env[e.outputs[0]] = e.primitive.emit(b, dtype, *inputs, **e.params)
        for k, w in enumerate(self.loop.writes):
            a = pointers[self.index["write", k]]
            self._store(read(w.value), a, stride(a))
        out: Carries = []
        if carries is not None:
            for e, (dtype, kind, (old, *rest)) in zip(self.loop.reductions, self._accumulators(carries), strict=True):
                new = kind.take(b, dtype, old, read(e.inputs[0]))
                out += [new if fresh is None else b.select(fresh, new, old), *rest]
        return out

    def _iota(self, e: Equation, a: Access) -> Value:
        vector, b = self.nest.vector, self.b
        base = Value(a.pointer or "0", I64)
        value = self._splat(base) if base.text != "0" else constant(make_type("i64", self.lanes), 0)
        step = 0 if vector is None else a.strides[vector]
        if step and self.lanes > 1:
            ids = self._lane_ids()
            value = b.iadd(value, ids if step == 1 else b.imul(ids, step))
        return convert(b, INT, value, dtype=e.params["dtype"], weak=False)

    def _check(self, e: Equation, index: Value) -> Value:
        """The checked positions; the first one outside, of the first check that finds any, goes to the status."""
        b = self.b
        assert e.primitive.check is not None
        counted, outside = e.primitive.check(b, INT, index, **e.params)
        self.checks.append(e)
        found = b.any(outside)
        b.count = n = b.count + 1
        status = self.roots[STATUS]
        b.lines += [f"  br i1 {found.text}, label %wrong{n}, label %right{n}", f"wrong{n}:"]
        position = index
        if self.lanes > 1:
            one, flag = make_type("i64"), make_type("i1")
            position = constant(one, 0)
            for lane in reversed(range(self.lanes)):
                x = b.emit(one, f"extractelement {index.type.text} {index.text}, i64 {lane}")
                bad = b.emit(flag, f"extractelement {outside.type.text} {outside.text}, i64 {lane}")
                position = b.select(bad, x, position)
        old = b.emit(I64, f"load i64, ptr {status}")
        first = b.eq(old, 0)
        b.lines += [f"  br i1 {first.text}, label %note{n}, label %right{n}", f"note{n}:"]
        b.lines += [f"  store i64 {len(self.checks)}, ptr {status}"]
        slot = b.emit(I64, f"getelementptr i64, ptr {status}, i64 1")
        b.lines += [f"  store i64 {position.text}, ptr {slot.text}", f"  br label %right{n}", f"right{n}:"]
        b.block = f"right{n}"
        return counted

    def _gather(self, e: Equation, a: Access, indices: list[Value]) -> Value:
        """Elements at computed places; places outside are moved inside, so that nothing else is ever read."""
        b, lanes = self.b, self.lanes
        x = e.inputs[0]
        strides = self.views[x].strides  # type: ignore[index]
        place = constant(make_type("i64", lanes), 0)
        for index, n, stride in zip(indices, x.aval.shape, strides, strict=False):
            inside = b.select(b.lt(index, 0), constant(index.type, 0), index)
            inside = b.select(b.gt(inside, n - 1), constant(index.type, n - 1), inside)
            place = b.iadd(place, b.imul(inside, stride))
        vector = self.nest.vector
        step = 0 if vector is None else a.strides[vector]
        if step and lanes > 1:
            place = b.iadd(place, b.imul(self._lane_ids(), step))
        element, p = memory_element(a.dtype), self._pointer(a)
        one = make_type(element)
        if lanes == 1:
            q = b.emit(I64, f"getelementptr {element}, ptr {p}, i64 {place.text}")
            value = b.emit(one, f"load {element}, ptr {q.text}, align {a.dtype.itemsize}")
        else:
            t = make_type(element, lanes)
            value = Value("poison", t)
            for lane in range(lanes):
                at = b.emit(I64, f"extractelement {place.type.text} {place.text}, i64 {lane}")
                q = b.emit(I64, f"getelementptr {element}, ptr {p}, i64 {at.text}")
                y = b.emit(one, f"load {element}, ptr {q.text}, align {a.dtype.itemsize}")
                value = b.emit(t, f"insertelement {t.text} {value.text}, {element} {y.text}, i64 {lane}")
        return b.ne(value, 0) if a.dtype.kind == "b" else value

    # -- memory

    def _pointer(self, a: Access) -> str:
        if a.offset == 0:
            return a.pointer
        p = self.b.emit(I64, f"getelementptr {memory_element(a.dtype)}, ptr {a.pointer}, i64 {a.offset}")
        return p.text

    def _load(self, a: Access, stride: int) -> Value:
        b, element, lanes = self.b, memory_element(a.dtype), self.lanes
        p = self._pointer(a)
        if stride == 1 or lanes == 1:
            t = make_type(element, lanes)
            value = b.emit(t, f"load {t.text}, ptr {p}, align {a.dtype.itemsize}")
        elif stride == 0:
            one = make_type(element)
            value = self._splat(b.emit(one, f"load {element}, ptr {p}, align {a.dtype.itemsize}"))
        else:
            t, one = make_type(element, lanes), make_type(element)
            value = Value("poison", t)
            for k in range(lanes):
                q = b.emit(I64, f"getelementptr {element}, ptr {p}, i64 {k * stride}")
                x = b.emit(one, f"load {element}, ptr {q.text}, align {a.dtype.itemsize}")
                value = b.emit(t, f"insertelement {t.text} {value.text}, {element} {x.text}, i64 {k}")
        return b.ne(value, 0) if a.dtype.kind == "b" else value

    def _store(self, value: Value, a: Access, stride: int) -> None:
        b, element, lanes = self.b, memory_element(a.dtype), self.lanes
        p = self._pointer(a)
        if a.dtype.kind == "b":
            value = b.convert(value, value.type.with_element("i8"))
        if stride == 1 or lanes == 1:
            b.lines.append(f"  store {value.type.text} {value.text}, ptr {p}, align {a.dtype.itemsize}")
            return
        one = make_type(element)
        for k in range(lanes):
            q = b.emit(I64, f"getelementptr {element}, ptr {p}, i64 {k * stride}")
            x = b.emit(one, f"extractelement {value.type.text} {value.text}, i64 {k}")
            b.lines.append(f"  store {element} {x.text}, ptr {q.text}, align {a.dtype.itemsize}")

    def _store_one(self, value: Value, a: Access) -> None:
        """Store a scalar."""
        if a.dtype.kind == "b":
            value = self.b.convert(value, make_type("i8"))
        self.b.lines.append(f"  store {value.type.text} {value.text}, ptr {self._pointer(a)}, align {a.dtype.itemsize}")
