"""A scheduled `Loop` as LLVM text: loops over its iteration space around one vectorised body.

The innermost axis runs in vectors (`nests`); elements that the last vector meets a second time are kept out of
reductions.

With reductions, the axes that are kept are the outer loops and the reduced ones the inner; if the last axis is kept,
its vectors hold one partial result per lane. Sums are taken in short blocks (`ops.reductions`), each settled by a
branch out of the innermost loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from funcgrad.base.dtypes import INT, Dtype
from funcgrad.core.ir import Atom, Equation, Var
from funcgrad.lowering.builder import Builder
from funcgrad.lowering.kernels import Loop, window_of
from funcgrad.lowering.layout import View, row_major
from funcgrad.lowering.nests import (
    I64,
    STATUS,
    Access,
    Carries,
    KernelText,
    NestEmitter,
    Pointers,
    Repeat,
    nest,
    repeat,
    when,
)
from funcgrad.lowering.points import Point
from funcgrad.lowering.values import Shared, Target, Value, constant, make_type
from funcgrad.ops.reductions import Reduction, block, few
from funcgrad.ops.scalar import element_of

CHAINS = 4  # of a long reduction: an accumulator waits for itself
SHORT = 2  # operations and stores of a body that is repeated for the chains
IN_MEMORY = {"gather", "window"}
"""Kinds whose first operand is read at places of their own, not at the index of the loop."""


def loop_text(
    loop: Loop, views: dict[Var, View], target: Target, shared: Shared, checks: list[Equation], once: bool = False
) -> KernelText:
    """The function that runs `loop`; helpers and declarations go to `shared`, its checks to `checks`.

    With `once`, where vectors overlap, what is stored already stays: results may then lie in what the loop reads.
    """
    return LoopEmitter(loop, views, target, shared, checks, once).run()


class LoopEmitter(NestEmitter):
    """The function of a `Loop` in the making."""

    def __init__(
        self,
        loop: Loop,
        views: dict[Var, View],
        target: Target,
        shared: Shared,
        checks: list[Equation],
        once: bool = False,
    ) -> None:
        super().__init__(views, target, shared)
        self.loop = loop
        self.checks = checks
        self.computed = {v for e in loop.equations for v in e.outputs}
        self.once = once
        self.kinds = [(e.inputs[0].aval.dtype, reduction_of(e)) for e in loop.reductions]
        self.blocks = any([kind.settle is not None for _, kind in self.kinds])
        self.index: dict[tuple[str, int], int] = {}  # what an access is for → its place in the nest

    # -- planning

    def run(self) -> KernelText:
        """The function."""
        self.begin(nest(self.loop.shape, self.loop.axes, self.plan()), self.dtypes())
        if 0 not in self.loop.shape:
            self.move_windows()
        if 0 not in self.loop.shape or self.loop.reductions:
            self._level(0, self.nest.accesses, [])
        return replace(self.finish(), once=not self.overlaps)

    def plan(self) -> list[Access]:
        """How each operand and result is addressed."""
        loop = self.loop
        accesses: list[Access] = []

        def access(kind: str, key: Any, root: Any, dtype: Dtype, offset: int, strides: Sequence[int]) -> None:
            self.index[kind, key] = len(accesses)
            accesses.append(Access(root, dtype, offset, tuple(strides)))

        def counter(kind: str, key: int, axis: int) -> None:
            access(kind, key, None, INT, 0, [int(i == axis) for i in range(len(loop.shape))])

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
            if e.primitive.traits.kind == "argreduce":
                counter("place", k, loop.axes[0])
        for k, e in enumerate(loop.equations):
            kind = e.primitive.traits.kind
            if kind == "iota":
                counter("iota", k, e.params["axis"])
            elif kind in IN_MEMORY:
                v = self.views[e.inputs[0]]  # type: ignore[index]
                strides = list(v.strides[len(e.inputs) - 1 :] if kind == "gather" else v.strides)
                strides = [0] * (len(loop.shape) - len(strides)) + strides
                access(kind, k, v.root, e.inputs[0].aval.dtype, v.offset, strides)
            elif kind == "check":
                self.parameter(STATUS)
        self.accesses = accesses
        return accesses

    def _reads(self) -> list[Var]:
        atoms: list[Atom] = []
        for e in (*self.loop.equations, *self.loop.reductions):
            kind = e.primitive.traits.kind
            atoms += () if kind == "window" else e.inputs[1:] if kind == "gather" else e.inputs
        atoms += [w.value for w in self.loop.writes]
        return list(dict.fromkeys([a for a in atoms if isinstance(a, Var) and a not in self.computed]))

    def dtypes(self) -> list[Dtype]:
        """What the body computes with."""
        dtypes = [a.dtype for a in self.accesses]
        dtypes += [v.aval.dtype for e in self.loop.equations for v in e.outputs]
        return dtypes + [e.params["dtype"] for e in self.loop.equations if "dtype" in e.params]

    def move_windows(self) -> None:
        """Point the accesses of windows to where these start."""
        accesses = self.nest.accesses
        for k, e in enumerate(self.loop.equations):
            if e.primitive.traits.kind == "window":
                at = self.index["window", k]
                accesses[at] = self.started(accesses[at], window_of(e, self.views[e.inputs[0]]))  # type: ignore[index]
        for k, w in enumerate(self.loop.writes):
            at = self.index["write", k]
            accesses[at] = self.started(accesses[at], w.starts)

    # -- loops

    def _level(self, depth: int, pointers: Pointers, carries: Carries) -> Carries:
        """Emit the loops from `depth` inwards; `pointers` are advanced to the indices of the outer ones."""
        n = self.nest
        if depth == n.outer and self.loop.reductions:
            return self._reduce(depth, pointers)
        if depth == len(n.sizes):
            self.body(pointers, None, None, None)
            return []
        if depth == n.vector:
            return self.vectors(depth, pointers, [], self._at_vector)
        step = lambda i, c: self._level(depth + 1, self.advance(pointers, depth, i), c)
        return repeat(self.b, n.sizes[depth], [], step)

    def _at_vector(self, pointers: Pointers, start: Value, fresh: Value | None, carries: Carries) -> Carries:
        n = self.nest
        if self.loop.reductions and n.vector is not None and n.vector < n.outer:
            self.overlaps |= fresh is not None
            self._reduce(n.outer, pointers, start)
            return []
        self.body(pointers, start, fresh, None)
        return []

    # -- reductions

    def _reduce(self, depth: int, pointers: Pointers, lane_start: Value | None = None) -> Carries:
        """All loops of the reductions, and the stores of their results."""
        n, b = self.nest, self.b
        level, every = self._blocks(depth, self.lanes if lane_start is None else 1)

        def inner(depth: int, pointers: Pointers, carries: Carries) -> Carries:
            if depth == len(n.sizes):
                return self.body(pointers, lane_start, None, carries)
            run = self._settling(every) if depth == level else repeat
            if depth == n.vector:
                return self._chains(depth, pointers, carries, run)
            step = lambda i, c: inner(depth + 1, self.advance(pointers, depth, i), c)
            return run(b, n.sizes[depth], carries, step)

        carries = self.start()
        if 0 not in self.loop.shape:
            carries = inner(depth, pointers, carries)
        plain = level is None and lane_start is None and few(self._count(depth), self.lanes)
        if level is None and not plain:
            carries = self.settle(carries)
        for k, (dtype, kind, acc) in enumerate(self.accumulators(carries)):
            target = pointers[self.index["reduce", k]]
            if plain and kind.settle is not None:
                self.store_one(fold(b, _plain(kind), dtype, acc[:1])[0], target)
            elif lane_start is None:
                self.store_one(self._folded(kind, dtype, acc), target)
            else:
                assert n.vector is not None
                self.store(kind.finish(b, dtype, acc), target, target.strides[n.vector])
        return []

    def _chains(self, depth: int, pointers: Pointers, carries: Carries, run: Repeat) -> Carries:
        """The vector loop of the reductions; a long one with a short body in several chains, which run side by side."""
        b, span, width = self.b, CHAINS * self.lanes, len(carries)
        count = self.nest.sizes[depth] // span
        if count < CHAINS or len(self.loop.equations) + len(self.loop.writes) > SHORT:
            return self.vectors(depth, pointers, carries, self.body, run=run)

        def step(i: Value, c: Carries) -> Carries:
            after: Carries = []
            for k in range(CHAINS):
                at = b.iadd(b.imul(i, span), k * self.lanes)
                after += self.body(self.advance(pointers, depth, at), at, None, c[k * width : (k + 1) * width])
            return after

        chains = self.settle(run(b, count, carries + self.start() * (CHAINS - 1), step))
        carries = chains[:width]
        for k in range(1, CHAINS):
            carries = self.joined(carries, chains[k * width : (k + 1) * width])
        return self.vectors(depth, pointers, carries, self.body, first=count * span, run=run)

    def joined(self, carries: Carries, others: Carries) -> Carries:
        """Partial results of all reductions, settled, put together."""
        pairs = zip(self.accumulators(carries), self.accumulators(others), strict=True)
        return [c for (dtype, kind, acc), (_, _, other) in pairs for c in kind.join(self.b, dtype, acc, other)]

    def start(self) -> Carries:
        """The carries before the first element."""
        return [
            constant(make_type(element_of(d or dtype), self.lanes), value)
            for dtype, kind in self.kinds
            for d, value in kind.start
        ]

    def accumulators(self, carries: Carries) -> list[tuple[Dtype, Reduction, Carries]]:
        """Each reduction with its part of the carries; of several chains, one after the other."""
        rest = iter(carries)
        out = []
        for _ in range(len(carries) // max(sum([kind.width for _, kind in self.kinds]), 1)):
            out += [(dtype, kind, [next(rest) for _ in kind.start]) for dtype, kind in self.kinds]
        return out

    def _blocks(self, depth: int, lanes: int) -> tuple[int | None, int]:
        """The loop in which sums are settled, and after how many of its runs; None: once, after all loops."""
        counts, runs = self._counts(), 1
        values = block(self._count(depth), lanes)
        for level in reversed(range(depth, len(counts))):
            if runs * counts[level] > values:
                return level, 1 << (values // runs).bit_length() - 1
            runs *= counts[level]
        return None, 1

    def _counts(self) -> list[int]:
        """How often each loop runs."""
        n = self.nest
        return [-(-size // self.lanes) if k == n.vector else size for k, size in enumerate(n.sizes)]

    def _count(self, depth: int) -> int:
        """How many values each lane takes in."""
        return prod(self._counts()[depth:])

    def _settling(self, every: int) -> Repeat:
        """`repeat`, with the sums settled after `every` runs and at the end."""

        def run(b: Builder, count: int, carries: Carries, body: Callable[[Value, Carries], Carries]) -> Carries:
            def step(i: Value, c: Carries) -> Carries:
                c = body(i, c)
                if count == 1:
                    return self.settle(c)
                full = b.eq(b.and_(i, every - 1), every - 1)
                return when(b, full if count % every == 0 else b.or_(full, b.eq(i, count - 1)), c, self.settle)

            return repeat(b, count, carries, step if self.blocks else body)

        return run

    def settle(self, carries: Carries) -> Carries:
        """The carries after a block of values."""
        return [
            c
            for _, kind, acc in self.accumulators(carries)
            for c in (acc if kind.settle is None else kind.settle(self.b, acc))
        ]

    def _folded(self, kind: Reduction, dtype: Dtype, acc: Carries) -> Value:
        """The result of the lanes together. Several sums of everything share a function, which is compiled once."""
        if len(self.kinds) == 1 or kind.settle is None or self.nest.outer:
            return kind.finish(self.b, dtype, fold(self.b, kind, dtype, acc))
        t = acc[0].type
        name = f"fold.sum.{t.suffix}"

        def text() -> str:
            inner = self.b.inner()
            lanes = fold(inner, kind, dtype, [Value(f"%x{i}", t) for i in range(len(acc))])
            found = kind.finish(inner, dtype, lanes)
            parameters = ", ".join([f"{t} %x{i}" for i in range(len(acc))])
            head = f"define internal {found.type} @{name}({parameters}) noinline nounwind {{"
            return "\n".join([head, *inner.lines, f"  ret {found.type} {found.text}", "}"])

        self.b.need_function(name, [t] * len(acc), [make_type(t.element)], text)
        return self.b.call(name, *acc)[0]

    # -- the body

    def body(self, pointers: Pointers, start: Value | None, fresh: Value | None, carries: Carries | None) -> Carries:
        """One vector of the iteration space: loads, equations, stores, and what reductions take in."""
        point = Point(self, pointers, fresh)
        for k in range(len(self.loop.equations)):
            point.compute(k)
        for k in range(len(self.loop.writes)):
            point.write(k)
        if carries is None:
            return []
        return [c for k, (_, _, old) in enumerate(self.accumulators(carries)) for c in point.take(k, old)]

    def emitted(self, e: Equation, inputs: list[Value]) -> Value:
        """The result of an elementwise equation."""
        assert e.primitive.emit is not None
        return e.primitive.emit(self.b, e.inputs[-1].aval.dtype, *inputs, **e.params)  # type: ignore[no-any-return]

    def report(self, status: Value, position: Value) -> None:
        """Note in the status that the last of `checks` failed, and where, unless another one did before."""
        b = self.b

        def note(_: Carries) -> Carries:
            b.lines.append(f"  store i64 {len(self.checks)}, ptr {status.text}")
            slot = b.emit(I64, f"getelementptr i64, ptr {status.text}, i64 1")
            b.lines.append(f"  store i64 {position.text}, ptr {slot.text}")
            return []

        when(b, b.eq(b.emit(I64, f"load i64, ptr {status.text}"), 0), [], note)


def reduction_of(e: Equation) -> Reduction:
    """How a reduction is computed."""
    assert e.primitive.reduction is not None
    found: Reduction = e.primitive.reduction(e.inputs[0].aval.dtype)
    return found


def _plain(kind: Reduction) -> Reduction:
    """A sum without blocks: of one carry."""
    join = lambda b, dtype, acc, other: kind.take(b, dtype, acc, other[0])[:1]
    return replace(kind, join=join)


def fold(b: Builder, kind: Reduction, dtype: Dtype, acc: Carries) -> Carries:
    """Join the lanes by halves."""
    lanes = acc[0].type.lanes
    while lanes > 1:
        half = lanes // 2
        low, high = [], []
        for v in acc:
            t, h = v.type, make_type(v.type.element, half)
            for offset, part in ((0, low), (half, high)):
                if half == 1:
                    part.append(b.emit(h, f"extractelement {t.text} {v.text}, i64 {offset}"))
                else:
                    ids = f"<{half} x i32> <" + ", ".join([f"i32 {k + offset}" for k in range(half)]) + ">"
                    part.append(b.emit(h, f"shufflevector {t.text} {v.text}, {t.text} poison, {ids}"))
        acc = kind.join(b, dtype, low, high)
        lanes = half
    return acc
