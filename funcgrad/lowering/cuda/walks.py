"""Kernels whose order matters, on the GPU: a `Walk`, one thread per line, and a `Scatter`, one thread per update.

Updates of one place meet in atomic operations: sums, and the largest of integers, as one instruction, everything else
as compare and swap around the operation itself. Which of equal places is set last is decided first: the largest number
of an update is kept for each place, and only that one writes.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from funcgrad.core.ir import Literal, Var, make_aval
from funcgrad.lowering.cuda.threads import (
    BLOCK,
    I1,
    I32,
    Launch,
    Threads,
    before_me,
    below,
    flat_thread,
    from_to,
    only_if,
    register,
    widened,
)
from funcgrad.lowering.kernels import Scatter, Walk
from funcgrad.lowering.layout import View
from funcgrad.lowering.nests import I64, Access, Carries, nest
from funcgrad.lowering.values import Shared, Target, Value, constant, make_type
from funcgrad.lowering.walks import ScatterEmitter, WalkEmitter
from funcgrad.ops.scalar import element_of

LONG, FEW = 1024, 4096  # steps of lines that a block walks along, and how many of those there are at most
INT32 = np.dtype(np.int32)
ATOMIC = {
    ("add", "f"): "fadd", ("add", "i"): "add", ("add", "u"): "add", ("maximum", "i"): "max", ("maximum", "u"): "umax",
    ("minimum", "i"): "min", ("minimum", "u"): "umin",
}  # fmt: skip
"""One instruction each, of 32 or 64 bits. LLVM makes a loop of the others, which begins with a plain load: a race."""


def walk_launches(walk: Walk, views: dict[Var, View], target: Target, shared: Shared) -> list[Launch]:
    """The kernel that runs `walk`."""
    return [] if 0 in walk.shape else [_CudaWalk(views, target, shared).launch(walk)]


def scatter_launches(scatter: Scatter, views: dict[Var, View], target: Target, shared: Shared) -> list[Launch]:
    """The kernels that run `scatter`."""
    update, *indices = scatter.equation.inputs
    shape = update.aval.shape
    if 0 in shape:
        return []
    make = lambda: _CudaScatter(views, target, shared)
    places = len(shape) - (len(scatter.target.shape) - len(indices))
    if scatter.equation.primitive.combine is not None or prod(shape[:places]) == 1:
        return [make().change(scatter, None)]
    owners = Var(make_aval((prod(scatter.target.shape[: len(indices)]),), INT32))
    return [make().clear(scatter, owners), make().claim(scatter, owners), make().change(scatter, owners)]


class _CudaWalk(Threads, WalkEmitter):
    def launch(self, walk: Walk) -> Launch:
        """The kernel: a thread walks along a line, or, where there are few of them and they are long, a block."""
        self.start(walk)
        n = self.nest
        lines, length = prod(self.sizes(0, n.outer)), prod(n.sizes[n.outer :])
        parts = all([e.primitive.recurrence.combine is not None for e in walk.equations])  # type: ignore[union-attr]
        if parts and length >= LONG and lines <= FEW and self.lanes == 1:
            self._in_parts(length)
            blocks = lines
        else:
            blocks = self.each(0, n.outer, lambda pointers, start: self.along([*pointers]))
        text = self.finish()
        return Launch(text.text, text.roots, frozenset([v for e in walk.equations for v in e.outputs]), blocks)

    def fitting(self, n: Any, widest: int) -> int:
        few = prod(n.sizes[: n.outer]) <= FEW and prod(n.sizes[n.outer :]) >= LONG
        return 1 if few else super().fitting(n, widest)

    def _in_parts(self, length: int) -> None:
        """A thread walks along its part twice: for what it adds up to, and again from what is before it."""
        b, n = self.b, self.nest
        pointers, _ = self.at(n.accesses, 0, self.sizes(0, n.outer), register(b, "ctaid.x"))
        part = -(-length // BLOCK)
        first = b.imul(widened(b, register(b, "tid.x")), part)
        end = b.iadd(first, part)
        end = b.select(b.lt(end, length), end, constant(I64, length))

        def walk(states: Carries, keep: bool) -> Carries:
            step = lambda i, c: self.step(self.advance(pointers, n.outer, i), c, keep)
            return from_to(b, first, end, 1, states, step)

        def combine(x: Carries, y: Carries) -> Carries:
            pairs = zip(self.walk.equations, x, y, strict=True)
            return [e.primitive.recurrence.combine(b, e.outputs[0].aval.dtype, p, q) for e, p, q in pairs]  # type: ignore[union-attr,misc]

        walk(before_me(b, walk(self.states(), False), self.states(), combine), True)


class _CudaScatter(Threads, ScatterEmitter):
    def fitting(self, n: Any, widest: int) -> int:
        return 1

    def _done(self, written: Any, blocks: int) -> Launch:
        text = self.finish()
        return Launch(text.text, text.roots, frozenset([written]), blocks)

    # -- which update of a place is the last

    def clear(self, scatter: Scatter, owners: Var) -> Launch:
        """No place has an owner."""
        n = owners.aval.size
        self.begin(nest((n,), (), []), [INT32])
        b, p = self.b, self.parameter(owners)
        flat = flat_thread(b, n)
        only_if(
            b,
            below(b, flat, n),
            lambda: b.lines.append(f"  store i32 -1, ptr {_element(self, p, INT32, widened(b, flat)).text}, align 4"),
        )
        return self._done(owners, -(-n // BLOCK))

    def claim(self, scatter: Scatter, owners: Var) -> Launch:
        """The owner of a place is the last update that has it."""
        self.start(scatter)
        b, n, p = self.b, self.nest, self.parameter(owners)
        sizes = self.sizes(0, n.outer)
        flat = flat_thread(b, prod(sizes))

        def run() -> None:
            pointers, _ = self.at(n.accesses, 0, sizes, flat)
            address = self._owner(p, pointers)
            claim = f"atomicrmw max ptr {address.text}, i32 {_low(b, flat).text} monotonic"
            self._kept(pointers, lambda: b.emit(I32, claim))

        only_if(b, below(b, flat, prod(sizes)), run)
        return self._done(owners, -(-prod(sizes) // BLOCK))

    def _owner(self, owners: str, pointers: list[Access]) -> Value:
        """Where the owner of a place is kept."""
        _, *indices = self.scatter.equation.inputs
        shape = self.scatter.target.shape[: len(indices)]
        strides = [prod(shape[i + 1 :]) for i in range(len(shape))]
        place = self.place([self.position(a, pointers) for a in indices], shape, strides)
        return _element(self, owners, INT32, place)

    def _kept(self, pointers: list[Access], body: Callable[[], object]) -> None:
        """Run `body` unless the update is left out."""
        e, shape = self.scatter.equation, self.scatter.target.shape
        if e.params["mode"] != "drop":
            body()
            return
        positions = [self.position(a, pointers) for a in e.inputs[1:]]
        self.unless([self.b.ne(p, self.inside(p, n - 1)) for p, n in zip(positions, shape, strict=False)], body)

    # -- the updates

    def change(self, scatter: Scatter, owners: Var | None) -> Launch:
        """One element of an update a thread."""
        self.start(scatter)
        b, n = self.b, self.nest
        held = None if owners is None else self.parameter(owners)
        outer, sizes = self.sizes(0, n.outer), self.sizes(0, len(n.sizes))
        total = prod(sizes)
        flat = flat_thread(b, total)

        def run() -> None:
            pointers, _ = self.at(n.accesses, 0, sizes, flat)
            update = self._kept
            if held is not None:
                rest = prod(sizes) // prod(outer)
                number = flat if rest == 1 else b.emit(flat.type, f"udiv {flat.type} {flat.text}, {rest}")
                owner = b.emit(I32, f"load i32, ptr {self._owner(held, pointers).text}, align 4")
                mine = b.emit(I1, f"icmp eq i32 {owner.text}, {_low(b, number).text}")
                only_if(b, mine, lambda: update(pointers, lambda: self._put(pointers)))
            else:
                update(pointers, lambda: self._put(pointers))

        only_if(b, below(b, flat, total), run)
        return self._done(scatter.target.root, -(-total // BLOCK))

    def _put(self, pointers: list[Access]) -> None:
        """Set or change the element."""
        b, e, out = self.b, self.scatter.equation, self.scatter.target
        update, *indices = e.inputs
        target, *_ = pointers
        target = self.moved(target, self.place([self.position(a, pointers) for a in indices], out.shape, out.strides))
        value = self.literal(update) if isinstance(update, Literal) else self.load_one(pointers[self.where[update]])
        if e.primitive.combine is None:
            self.store_one(value, target)
            return
        address, t = self.pointer(target), value.type
        op = ATOMIC.get((e.primitive.combine.name, update.aval.dtype.kind))
        if op is not None and t.bits >= 32:
            b.emit(t, f"atomicrmw {op} ptr {address}, {t} {value.text} monotonic")
            return
        self._swap(address, value, lambda old: e.primitive.combine.emit(b, update.aval.dtype, old, value))  # type: ignore[union-attr]

    def _swap(self, address: str, value: Value, change: Callable[[Value], Value]) -> None:
        """Put in place of an element what `change` makes of it, again until no other thread came between.

        Elements of less than 32 bits are a part of a word, which is swapped as a whole.
        """
        b, t = self.b, value.type
        bits, part = max(t.bits, 8), max(t.bits, 8) < 32
        word = make_type(f"i{max(bits, 32)}")
        if part:
            number = b.emit(I64, f"ptrtoint ptr {address} to i64")
            shift = b.shl(b.emit(I32, f"trunc i64 {b.and_(number, 3).text} to i32"), constant(I32, 3))
            rest = b.not_(b.shl(constant(I32, (1 << bits) - 1), shift))
            address = b.emit(I64, f"inttoptr i64 {b.and_(number, -4).text} to ptr").text
        first = b.emit(word, f"load atomic {word}, ptr {address} monotonic, align {word.bits // 8}")
        b.count = n = b.count + 1
        before = b.block
        b.lines += [f"  br label %swap{n}", f"swap{n}:"]
        at = len(b.lines)
        b.block = f"swap{n}"
        held = Value(f"%held{n}", word)
        old = held
        if part:
            old = b.emit(make_type(f"i{bits}"), f"trunc i32 {b.lshr(held, shift).text} to i{bits}")
        old = b.from_bits(old) if t.is_float else b.ne(old, 0) if t.bits == 1 else old
        new = change(old)
        new = b.bits(new) if t.is_float else new
        if part:
            new = b.emit(I32, f"zext {new.type} {new.text} to i32")
            new = b.or_(b.and_(held, rest), b.shl(new, shift))
        pair = b.emit(word, f"cmpxchg ptr {address}, {word} {held.text}, {word} {new.text} monotonic monotonic")
        found = b.emit(word, f"extractvalue {{ {word}, i1 }} {pair.text}, 0")
        done = b.emit(I1, f"extractvalue {{ {word}, i1 }} {pair.text}, 1")
        b.lines.insert(at, f"  {held.text} = phi {word} [ {first.text}, %{before} ], [ {found.text}, %{b.block} ]")
        b.lines += [f"  br i1 {done.text}, label %swapped{n}, label %swap{n}", f"swapped{n}:"]
        b.block = f"swapped{n}"


def _element(emitter: Threads, pointer: str, dtype: Any, place: Value) -> Value:
    return emitter.b.emit(I64, f"getelementptr {element_of(dtype)}, ptr {pointer}, i64 {place.text}")


def _low(b: Any, x: Value) -> Value:
    return x if x.type is I32 else b.emit(I32, f"trunc i64 {x.text} to i32")
