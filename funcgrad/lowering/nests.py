"""Loops over an iteration space as LLVM text: order of the axes, addresses, vectors, loads and stores.

What the kernels that walk over their data share. The vectorised axis runs in vectors of as many lanes as fill a
register with the widest dtype of the body. The last vector overlaps the one before it, so the body is written once
and nothing is read or written outside. Axes that are contiguous for every operand together run as one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from funcgrad.base.dtypes import Dtype
from funcgrad.core.ir import Literal, Shape, Var
from funcgrad.lowering.builder import Builder
from funcgrad.lowering.kernels import Start
from funcgrad.lowering.layout import View
from funcgrad.lowering.ordering import ordered
from funcgrad.lowering.values import Shared, Target, Value, constant, make_type
from funcgrad.ops.scalar import element_of

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
    align: int = 0  # bytes that vectors begin at multiples of; 0: those of an element

    @property
    def alignment(self) -> int:
        """Bytes that what is loaded or stored begins at multiples of."""
        return self.align or self.dtype.itemsize


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
    """Order and merge the axes of an iteration space; those in `axes` are the inner ones."""
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
Carries = list[Value]
Pointers = Sequence[Access]


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
    memo = dict(b.memo)
    after = body(index, inside)
    b.memo = memo
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


Repeat = Callable[[Builder, int, Carries, Callable[[Value, Carries], Carries]], Carries]


def when(b: Builder, condition: Value, carries: Carries, body: Callable[[Carries], Carries]) -> Carries:
    """``if condition: carries = body(carries)``; the carries after it."""
    b.count = n = b.count + 1
    before, then, after = b.block, f"then{n}", f"after{n}"
    b.lines += [f"  br i1 {condition.text}, label %{then}, label %{after}", f"{then}:"]
    b.block = then
    memo = dict(b.memo)
    changed = body(carries)
    b.memo = memo
    b.lines += [f"  br label %{after}", f"{after}:"]
    inside, b.block = b.block, after
    return [
        x if y is x else b.emit(x.type, f"phi {x.type.text} [ {y.text}, %{inside} ], [ {x.text}, %{before} ]")
        for x, y in zip(carries, changed, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class KernelText:
    """A kernel function without its name (``@KERNEL``), and the buffers for its parameters.

    `once` means: each index is stored once, after all that its equations read there was loaded.
    """

    text: str
    roots: tuple[Any, ...]
    loops: bool
    once: bool = False


class NestEmitter:
    """One kernel function in the making: its parameters, its loops, and reads and writes at an index."""

    nest: Nest
    lanes: int
    b: Builder
    once = False  # whether, where vectors overlap, what is stored already stays
    overlaps = False  # whether some indices are stored twice

    def __init__(self, views: dict[Var, View], target: Target, shared: Shared) -> None:
        self.views = views
        self.target = target
        self.shared = shared
        self.roots: dict[Any, str] = {}

    def parameter(self, root: Any) -> str:
        """The parameter that points to the buffer `root`."""
        return self.roots.setdefault(root, f"%p{len(self.roots)}")

    def begin(self, n: Nest, dtypes: Iterable[Dtype]) -> None:
        """Choose the lanes for a nest whose body computes with `dtypes`, and point its accesses to their buffers."""
        self.nest = n
        self.lanes = 1 if n.vector is None else self.fitting(n, max([d.itemsize for d in dtypes], default=8))
        self.b = Builder(self.target, self.lanes, self.shared)
        for a in n.accesses:
            if a.root is not None:
                a.pointer = self.parameter(a.root)

    def fitting(self, n: Nest, widest: int) -> int:
        """Lanes for elements of at most `widest` bytes, no more than the vectorised loop is long."""
        assert n.vector is not None
        lanes = max(self.target.lanes(widest), 1)
        while lanes > n.sizes[n.vector]:
            lanes //= 2
        return max(lanes, 1)

    def finish(self) -> KernelText:
        """The function."""
        parameters = ", ".join([f"ptr {p}" for p in self.roots.values()])
        lines = "\n".join(ordered(self.b.lines, 32 if self.target.vector_bytes == 64 else 16))
        text = f"define internal void @KERNEL({parameters}) #0 {{\nentry:\n{lines}\n  ret void\n}}\n"
        return KernelText(text, tuple(self.roots), any([s > 1 for s in self.nest.sizes]))

    # -- loops

    def advance(self, pointers: Pointers, depth: int, index: Value) -> list[Access]:
        """The accesses at `index` of the loop at `depth`."""
        out = []
        for a in pointers:
            stride = a.strides[depth]
            if stride == 0 or index.text == "0":
                out.append(a)
                continue
            moved = index if stride == 1 else self.b.imul(index, stride)
            if a.root is None:
                moved = moved if not a.pointer else self.b.iadd(Value(a.pointer, I64), moved)
                out.append(Access(a.root, a.dtype, a.offset, a.strides, moved.text))
            else:
                out.append(self.moved(a, moved))
        return out

    def moved(self, a: Access, by: Value) -> Access:
        """An access that begins a number of elements later."""
        p = self.b.emit(I64, f"getelementptr {memory_element(a.dtype)}, ptr {a.pointer}, i64 {by.text}")
        return Access(a.root, a.dtype, a.offset, a.strides, p.text, a.align)

    def vectors(
        self,
        depth: int,
        pointers: list[Access],
        carries: Carries,
        body: Callable[[list[Access], Value, Value | None, Carries], Carries],
        first: int = 0,
        run: Repeat = repeat,
    ) -> Carries:
        """The vector loop: calls `body` with the first index and, if vectors overlap, the lanes that are new.

        It begins at the index `first`; `run` repeats.
        """
        size, lanes, b = self.nest.sizes[depth], self.lanes, self.b
        count, overlap = -(-(size - first) // lanes), (size - first) % lanes != 0
        self.overlaps |= overlap and not self.once

        def step(i: Value, c: Carries) -> Carries:
            nominal = b.imul(i, lanes) if i.text != "0" else i
            if first:
                nominal = b.iadd(nominal, first)
            if not overlap:
                return body(self.advance(pointers, depth, nominal), nominal, None, c)
            last = size - lanes
            inside = b.emit(make_type("i1"), f"icmp ule i64 {nominal.text}, {last}")
            start = b.emit(I64, f"select i1 {inside.text}, i64 {nominal.text}, i64 {last}")
            shift = self.splat(b.isub(nominal, start))
            ids = self.lane_ids()
            fresh = b.emit(make_type("i1", lanes), f"icmp sge {ids.type.text} {ids.text}, {shift.text}")
            return body(self.advance(pointers, depth, start), start, fresh, c)

        return run(b, count, carries, step)

    def lane_ids(self) -> Value:
        """0, 1, 2, ... in the lanes."""
        t = make_type("i64", self.lanes)
        text = "0" if self.lanes == 1 else "<" + ", ".join([f"i64 {k}" for k in range(self.lanes)]) + ">"
        return Value(text, t)

    def splat(self, x: Value) -> Value:
        """A scalar in every lane."""
        t = make_type(x.type.element, self.lanes)
        if self.lanes == 1:
            return x
        one = self.b.emit(t, f"insertelement {t.text} poison, {x.type.text} {x.text}, i64 0")
        zeros = f"<{self.lanes} x i32> zeroinitializer"
        return self.b.emit(t, f"shufflevector {t.text} {one.text}, {t.text} poison, {zeros}")

    def literal(self, atom: Literal) -> Value:
        """A constant in every lane."""
        return constant(make_type(element_of(atom.aval.dtype), self.lanes), atom.value.item())

    # -- places known at run time

    def inside(self, position: Value, last: int) -> Value:
        """A position, moved into ``0 ... last``: whatever it is, nothing outside is read or written."""
        b = self.b
        above = b.select(b.lt(position, 0), constant(position.type, 0), position)
        return b.select(b.gt(above, last), constant(position.type, last), above)

    def place(self, positions: Sequence[Value], shape: Shape, strides: Sequence[int]) -> Value:
        """Where the element (or subarray) at `positions` along the first axes begins; see `inside`."""
        b, total = self.b, constant(positions[0].type, 0)
        for position, n, stride in zip(positions, shape, strides, strict=False):
            total = b.iadd(total, b.imul(self.inside(position, n - 1), stride))
        return total

    def started(self, a: Access, starts: Sequence[Start]) -> Access:
        """An access moved to where a window starts. To be written before the loops."""
        b = self.b
        for s in starts:
            if isinstance(s.position, Literal):
                position = constant(I64, int(s.position.value))
            else:
                v = self.views[s.position]
                position = self.load_one(Access(v.root, s.position.aval.dtype, v.offset, (), self.parameter(v.root)))
            a = self.moved(a, b.imul(self.inside(position, s.last), s.stride))
        return a

    # -- memory

    def pointer(self, a: Access) -> str:
        """The address of the first element."""
        if a.offset == 0:
            return a.pointer
        p = self.b.emit(I64, f"getelementptr {memory_element(a.dtype)}, ptr {a.pointer}, i64 {a.offset}")
        return p.text

    def load(self, a: Access, stride: int) -> Value:
        """A vector of elements `stride` apart."""
        b, element, lanes = self.b, memory_element(a.dtype), self.lanes
        if lanes == 1:
            return self.load_one(a)
        p = self.pointer(a)
        t, one = make_type(element, lanes), make_type(element)
        if stride == 1:
            value = b.emit(t, f"load {t.text}, ptr {p}, align {a.alignment}")
        elif stride == 0:
            value = self.splat(b.emit(one, f"load {element}, ptr {p}, align {a.dtype.itemsize}"))
        else:
            value = Value("poison", t)
            for k in range(lanes):
                q = b.emit(I64, f"getelementptr {element}, ptr {p}, i64 {k * stride}")
                x = b.emit(one, f"load {element}, ptr {q.text}, align {a.dtype.itemsize}")
                value = b.emit(t, f"insertelement {t.text} {value.text}, {element} {x.text}, i64 {k}")
        return b.ne(value, 0) if a.dtype.kind == "b" else value

    def load_one(self, a: Access) -> Value:
        """A scalar."""
        element = memory_element(a.dtype)
        value = self.b.emit(make_type(element), f"load {element}, ptr {self.pointer(a)}, align {a.dtype.itemsize}")
        return self.b.ne(value, 0) if a.dtype.kind == "b" else value

    def store(self, value: Value, a: Access, stride: int) -> None:
        """Store a vector into elements `stride` apart."""
        b, element, lanes = self.b, memory_element(a.dtype), self.lanes
        if lanes == 1:
            return self.store_one(value, a)
        p = self.pointer(a)
        if a.dtype.kind == "b":
            value = b.convert(value, value.type.with_element("i8"))
        if stride == 1:
            b.lines.append(f"  store {value.type.text} {value.text}, ptr {p}, align {a.alignment}")
            return None
        one = make_type(element)
        for k in range(lanes):
            q = b.emit(I64, f"getelementptr {element}, ptr {p}, i64 {k * stride}")
            x = b.emit(one, f"extractelement {value.type.text} {value.text}, i64 {k}")
            b.lines.append(f"  store {element} {x.text}, ptr {q.text}, align {a.dtype.itemsize}")
        return None

    def store_one(self, value: Value, a: Access) -> None:
        """Store a scalar."""
        if a.dtype.kind == "b":
            value = self.b.convert(value, make_type("i8"))
        self.b.lines.append(f"  store {value.type.text} {value.text}, ptr {self.pointer(a)}, align {a.dtype.itemsize}")
