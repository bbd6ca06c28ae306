"""A scheduled `Loop` on the GPU: the body is the CPU's; what is new is which thread does what.

A GPU has no vectors but those of memory: what a thread loads at once it computes number by number, with scalar code.

Without reductions a thread does one index, or 16 bytes of indices where the vectorised axis divides by that. With
reductions over the last axis a block does one result, its threads the elements in turn, and their partial results are
joined; over other axes a thread does a result (or 16 bytes of them), and neighbours read neighbours. Where there are
too few results to fill the GPU, each is made in parts, whose accumulators are stored and joined by a second kernel.

Sums are compensated, as on the CPU; their parts are others, so that the last bit may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2s
from math import prod
from typing import Any

import numpy as np

from funcgrad.base.dtypes import Dtype
from funcgrad.core.ir import Equation, Var, make_aval
from funcgrad.lowering.builder import Builder
from funcgrad.lowering.cuda.parts import most_alive, parts, uses
from funcgrad.lowering.cuda.threads import (
    BLOCK,
    I32,
    Launch,
    Moved,
    Threads,
    below,
    flat_thread,
    from_lanes,
    from_to,
    join_block,
    lane_of,
    note_first,
    only_if,
    register,
    widened,
)
from funcgrad.lowering.kernels import Loop
from funcgrad.lowering.layout import View
from funcgrad.lowering.loops import LoopEmitter
from funcgrad.lowering.nests import I64, STATUS, Access, Carries, Nest, Pointers, nest
from funcgrad.lowering.points import Point
from funcgrad.lowering.values import Shared, Target, Type, Value, constant
from funcgrad.ops.reductions import block

MANY = 8  # functions that are not exact operations: with more of them in a kernel, long ones are called
LINES = 25  # of a long one
MOST = 128  # words of 32 bits that values of a body take at once, in all lanes
ENOUGH = 1024  # blocks that fill any GPU
LONG = 64  # elements of a result from which on a block makes it
PART = 64  # elements at least of a part that a thread does; a block does BLOCK times as many


def loop_launches(
    loop: Loop,
    views: dict[Var, View],
    target: Target,
    shared: Shared,
    checks: list[Equation],
    alignment: Callable[[Any], int],
    donated: Mapping[Var, Var],
) -> list[Launch]:
    """The kernels that run `loop`, one or two; more, if it has more reductions than a thread has registers for.

    Helpers and declarations go to `shared`, checks to `checks`. `alignment` says of a buffer at multiples of how many
    bytes it begins, and `donated` in which argument a result may lie.
    """
    launches: list[Launch] = []
    for part in parts(loop):
        emitter = CudaLoop(part, views, target, shared, checks)
        first = emitter.launch(alignment, donated)
        launches += [] if first is None else [first, *emitter.second()]
    return launches


@dataclass(frozen=True, slots=True)
class _Shape:
    """How the results of a loop are shared out: by a block or a thread each, in so many parts."""

    by_block: bool
    results: int
    parts: int
    part: int  # elements


@dataclass(slots=True)
class _Lane(Access):
    """One number of what is loaded or stored at once."""

    lane: int = 0


class _OfLane(Moved):
    """The accesses of a lane, as they are asked for."""

    def __init__(self, emitter: CudaLoop, pointers: Pointers, lane: int) -> None:
        assert emitter.nest.vector is not None
        super().__init__(emitter, pointers, [(emitter.nest.vector, constant(I64, lane))])
        self.lane = lane
        self.apart = {i for (kind, _), i in emitter.index.items() if kind in ("gather", "iota", "place")}

    def __getitem__(self, k: Any) -> Any:
        if k in self.apart:
            return super().__getitem__(k)
        a = self.accesses[k]
        return _Lane(a.root, a.dtype, a.offset, a.strides, a.pointer, a.align, self.lane)


class CudaLoop(Threads, LoopEmitter):
    """The kernels of one `Loop`. The carries of its reductions are scalars, those of each lane one after the other."""

    def launch(self, alignment: Callable[[Any], int], donated: Mapping[Var, Var]) -> Launch | None:
        """The kernel, or None if there is nothing to do."""
        loop, self.donated, self.uses = self.loop, donated, uses(self.loop)
        self.begin(nest(loop.shape, loop.axes, self.plan()), self.dtypes())
        n = self.nest
        results, elements = prod(n.sizes[: n.outer]), prod(n.sizes[n.outer :])
        self.elements = 0 if 0 in loop.shape else elements
        if not results or not (self.elements or loop.reductions):
            return None
        self._align(alignment)
        self.width = sum([kind.width for _, kind in self.kinds])
        self.apart = self._many()
        self.loaded: dict[Any, Value] = {}
        self.waiting: dict[Any, list[Value]] = {}
        if 0 not in loop.shape:
            self.move_windows()
        self.scratch: list[Var] = []
        if not loop.reductions:
            return self._elementwise()
        self.form = self._shape()
        return self._by_block() if self.form.by_block else self._by_thread()

    def report(self, status: Value, position: Value) -> None:
        note_first(self.b, status.text, len(self.checks), position)

    def _align(self, alignment: Callable[[Any], int]) -> None:
        """Vectors of 16 bytes begin at multiples of that where buffers, offsets and strides allow it."""
        n, lanes = self.nest, self.lanes
        fixed = {self.index[key] for key in self.index if key[0] in ("gather", "window")}
        fixed |= {self.index["write", k] for k, w in enumerate(self.loop.writes) if w.starts}
        for k, a in enumerate(n.accesses):
            if lanes == 1 or a.root is None or k in fixed or n.vector is None or a.strides[n.vector] != 1:
                continue
            if a.offset % lanes == 0 and all([s % lanes == 0 for i, s in enumerate(a.strides) if i != n.vector]):
                a.align = min(lanes * a.dtype.itemsize, alignment(a.root))

    def _launch(self, blocks: int) -> Launch:
        text = self.finish()
        loop = self.loop
        written = {w.target.root for w in loop.writes} | {v for e in loop.reductions for v in e.outputs}
        written |= {*self.scratch, *([STATUS] if STATUS in self.roots else [])}
        return Launch(text.text, text.roots, frozenset(written), blocks, few=not loop.reductions)

    # -- scalar code between loads and stores of several numbers

    def fitting(self, n: Nest, widest: int) -> int:
        """16 bytes a thread, less if values of the body would not fit."""
        lanes = super().fitting(n, widest)
        while lanes > 1 and lanes * most_alive(self.loop) > MOST:
            lanes //= 2
        return lanes

    def begin(self, n: Nest, dtypes: Iterable[Dtype]) -> None:
        super().begin(n, dtypes)
        self.b = Builder(self.target, 1, self.shared)
        self.together = self.lanes

    @contextmanager
    def _lanes(self, lanes: int) -> Iterator[None]:
        """Inside, loads and stores are of so many numbers."""
        before, self.lanes = self.lanes, lanes
        yield
        self.lanes = before

    def start(self) -> Carries:
        """The carries before the first element."""
        with self._lanes(1):
            return super().start() * self.together

    def body(self, pointers: Pointers, start: Value | None, fresh: Value | None, carries: Carries | None) -> Carries:
        """The body for each lane; what is done with a value comes as early as it can, so that few wait for that."""
        self.loaded.clear()
        lanes = [Point(self, self._of_lane(pointers, k), fresh) for k in range(self.together)]
        before = [] if carries is None else [carries[k * self.width :][: self.width] for k in range(self.together)]
        olds = [[old for _, _, old in self.accumulators(mine)] for mine in before]
        after: list[list[Carries]] = [[] for _ in before]
        with self._lanes(1):
            for role, k, equations in self.uses:
                if role == "write":
                    self._save(k, lanes)
                for number, point in enumerate(lanes):
                    for j in equations:
                        point.compute(j)
                    if role == "write":
                        point.write(k)
                    elif role == "reduction" and olds:
                        after[number].append(point.take(k, olds[number][k]))
        return [c for mine in after for new in mine for c in new]

    def _save(self, k: int, lanes: Sequence[Point]) -> None:
        """Load what write `k` may overwrite: the argument in which a result lies."""
        argument = self.donated.get(self.loop.writes[k].target.root)
        for a in self._reads() if argument is not None else ():
            if self.views[a].root is argument:
                for point in lanes:
                    point.read(a)

    def _many(self) -> bool:
        """Whether long functions are called, and not written into the kernel each time: ptxas mixes their steps."""
        return self.together * sum([not e.primitive.traits.exact for e in self.loop.equations]) > MANY

    def emitted(self, e: Equation, inputs: list[Value]) -> Value:
        """The result of an elementwise equation: where there are many, by a call."""
        if not self.apart or e.primitive.traits.exact:
            return super().emitted(e, inputs)
        b, inner = self.b, self.b.inner()
        types = [x.type for x in inputs]
        self.b = inner
        found = super().emitted(e, [Value(f"%a{k}", t) for k, t in enumerate(types)])
        self.b = b
        if len(inner.lines) < LINES:
            return super().emitted(e, inputs)
        text = "\n".join([*inner.lines, f"  ret {found.type} {found.text}"])
        name = f"{e.primitive.name}.{blake2s(f'{types} {text}'.encode(), digest_size=8).hexdigest()}"
        head = f"define internal {found.type} @{name}({', '.join([f'{t} %a{k}' for k, t in enumerate(types)])})"
        b.need_function(name, types, [found.type], lambda: f"{head} noinline nounwind {{\nentry:\n{text}\n}}")
        return b.call(name, *inputs)[0]

    def _of_lane(self, pointers: Pointers, k: int) -> Pointers:
        """The accesses of a lane: parts of a whole where all lanes are loaded or stored, else moved there."""
        if self.together == 1 or self.nest.vector is None:
            return pointers
        return _OfLane(self, pointers, k)

    def load(self, a: Access, stride: int) -> Value:
        """A number, which is loaded with those of the other lanes."""
        if not isinstance(a, _Lane) or stride == 0:
            return super().load(a, stride)
        key = a.pointer, a.offset, a.dtype, stride
        if key not in self.loaded:
            with self._lanes(self.together):
                self.loaded[key] = super().load(a, stride)
        return lane_of(self.b, self.loaded[key], a.lane)

    def store(self, value: Value, a: Access, stride: int) -> None:
        """Keep a number until those of the other lanes are there, too."""
        if not isinstance(a, _Lane):
            return super().store(value, a, stride)
        key = a.pointer, a.offset, a.dtype, stride
        values = [*self.waiting.pop(key, ()), value]
        if len(values) < self.together:
            self.waiting[key] = values
        else:
            with self._lanes(self.together):
                super().store(from_lanes(self.b, values), a, stride)
        return None

    def _store_lanes(self, values: list[Value], a: Access, stride: int) -> None:
        with self._lanes(len(values)):
            super().store(from_lanes(self.b, values), a, stride)

    # -- one index a thread

    def _elementwise(self) -> Launch:
        return self._launch(
            self.each(0, self.nest.outer, lambda pointers, start: self.body(pointers, start, None, None))
        )

    # -- reductions

    def _shape(self) -> _Shape:
        n = self.nest
        results, elements = prod(self.sizes(0, n.outer)), prod(self.sizes(n.outer, len(n.sizes)))
        elements = elements if self.elements else 0
        inside = n.vector is not None and n.vector >= n.outer
        if (inside and elements >= LONG) or (elements >= LONG and results < 32):
            parts = max(min(-(-elements // (BLOCK * 16)), -(-ENOUGH // results)), 1)
            part = -(-elements // parts)
            return _Shape(True, results, -(-elements // part), part)
        wanted = -(-ENOUGH * BLOCK // results)
        parts = max(min(-(-elements // PART), wanted, 512), 1)
        part = max(-(-elements // parts), 1)
        return _Shape(False, results, max(-(-elements // part), 1), part)

    def _accumulate(self, pointers: Pointers, lane_start: Value | None, first: Value, end: Value, step: int) -> Carries:
        """What the accumulators hold after the elements ``first, first + step, ...`` below `end`, settled."""
        n, b = self.nest, self.b
        sizes = self.sizes(n.outer, len(n.sizes))

        def trip(i: Value, carries: Carries) -> Carries:
            at, start = self.at(pointers, n.outer, sizes, i)
            return self.body(at, start if lane_start is None else lane_start, None, carries)

        carries = self.start()
        if not self.elements:
            return self.settle(carries)
        count, sums = -(-self.form.part // step), step * self.form.parts * (self.together if lane_start is None else 1)
        values = block(count, sums)
        if not self.blocks or count <= values:
            return self.settle(from_to(b, first, end, step, carries, trip))

        def some(i: Value, carries: Carries) -> Carries:  # a short block of values, then its rounding error
            stop = b.iadd(i, step * values)
            stop = b.emit(i.type, f"call {i.type} {_umin(self, i.type)}({i.type} {stop.text}, {i.type} {end.text})")
            return self.settle(from_to(b, i, stop, step, carries, trip))

        return from_to(b, first, end, step * values, carries, some)

    def _by_thread(self) -> Launch:
        b, n, form = self.b, self.nest, self.form
        total = form.results * form.parts
        flat = flat_thread(b, total)
        outside = n.vector is not None and n.vector < n.outer

        def run() -> None:
            result, part = flat, constant(flat.type, 0)
            if form.parts > 1:
                part = b.emit(flat.type, f"udiv {flat.type} {flat.text}, {form.results}")
                result = b.isub(flat, b.imul(part, form.results))
            pointers, start = self.at(n.accesses, 0, self.sizes(0, n.outer), result)
            first, end = self._range(part)
            carries = self._accumulate(pointers, start if outside else None, first, end, 1)
            if not outside:
                carries = self._folded_lanes(carries)
            self._keep(carries, pointers, result, part, outside)

        only_if(b, below(b, flat, total), run)
        return self._launch(-(-total // BLOCK))

    def _by_block(self) -> Launch:
        b, n, form = self.b, self.nest, self.form
        block, thread = register(b, "ctaid.x"), register(b, "tid.x")
        part, result = constant(I32, 0), block
        if form.parts > 1:
            result = b.emit(I32, f"udiv i32 {block.text}, {form.parts}")
            part = b.isub(block, b.imul(result, form.parts))
        outside = n.vector is not None and n.vector < n.outer
        pointers, start = self.at(n.accesses, 0, self.sizes(0, n.outer), result)
        first, end = self._range(part)
        mine = b.iadd(first, thread if first.type is I32 else widened(b, thread))
        carries = self._accumulate(pointers, start if outside else None, mine, end, BLOCK)
        if not outside:
            carries = self._folded_lanes(carries)
        carries = join_block(b, carries, self.joined)
        only_if(b, b.eq(thread, 0), lambda: self._keep(carries, pointers, result, part, outside))
        return self._launch(form.results * form.parts)

    def _range(self, part: Value) -> tuple[Value, Value]:
        """The elements of a part of a result."""
        b, form = self.b, self.form
        elements = prod(self.sizes(self.nest.outer, len(self.nest.sizes))) if self.elements else 0
        t = I64 if elements * 2 >= 2**31 else I32
        part = part if part.type is t else widened(b, part) if t is I64 else part
        if form.parts == 1:
            return constant(t, 0), constant(t, elements)
        first = b.imul(part, form.part)
        end = b.iadd(first, form.part)
        if elements % form.part:
            end = b.emit(t, f"call {t} {_umin(self, t)}({t} {end.text}, {t} {elements})")
        return first, end

    def _folded_lanes(self, carries: Carries) -> Carries:
        """The carries of all lanes as those of one, by halves."""
        while len(carries) > self.width:
            half = len(carries) // 2
            carries = self.joined(carries[:half], carries[half:])
        return carries

    def _keep(self, carries: Carries, pointers: Pointers, result: Value, part: Value, vector: bool) -> None:
        """Store the results, or the accumulators of a part; of each lane, if they are in a vector of results."""
        b, n, width = self.b, self.nest, self.width
        lanes = len(carries) // width
        if self.form.parts == 1:
            found = [kind.finish(b, dtype, acc) for dtype, kind, acc in self.accumulators(carries)]
            for k in range(len(self.kinds)):
                a = pointers[self.index["reduce", k]]
                stride = a.strides[n.vector] if vector and n.vector is not None else 1
                self._store_lanes(found[k :: len(self.kinds)], a, stride)
            return
        count = self.form.results * lanes
        flat = b.iadd(b.imul(widened(b, part), count), b.imul(widened(b, result), lanes))
        for k in range(width):
            values = carries[k::width]
            dtype = _dtype(values[0].type)
            root = Var(make_aval((self.form.parts, count), dtype))
            self.scratch.append(root)
            a = Access(root, dtype, 0, (), self.parameter(root), dtype.itemsize * lanes)
            self._store_lanes(values, self.moved(a, flat), 1)

    def second(self) -> list[Launch]:
        """The kernel that joins the parts of each result, if there are any."""
        if not self.scratch:
            return []
        return [_Joined(self).launch()]


class _Joined(LoopEmitter):
    """The second kernel: a block joins the parts of one result, or a thread if there are many results."""

    def __init__(self, first: CudaLoop) -> None:
        super().__init__(Loop((), reductions=first.loop.reductions), first.views, first.target, first.shared, [])
        self.first = first

    def launch(self) -> Launch:
        first = self.first
        parts = first.form.parts
        self.begin(nest((), (), []), first.dtypes())
        b = self.b
        count = first.scratch[0].aval.shape[1]
        roots = first.scratch
        by_block = count < 4096 and parts >= 32
        thread = register(b, "tid.x")
        result = register(b, "ctaid.x") if by_block else flat_thread(b, count)

        def load(i: Value) -> Carries:
            flat = b.iadd(b.imul(widened(b, i), count), widened(b, result))
            return [self.load_one(self.moved(Access(r, r.aval.dtype, 0, (), self.parameter(r)), flat)) for r in roots]

        def trip(i: Value, carries: Carries) -> Carries:
            return self.joined(carries, load(i))

        def finish(carries: Carries) -> None:
            for e, (dtype, kind, acc) in zip(self.loop.reductions, self.accumulators(carries), strict=True):
                (out,) = e.outputs
                a = Access(out, out.aval.dtype, 0, (), self.parameter(out))
                self.store_one(kind.finish(b, dtype, acc), self.moved(a, widened(b, result)))

        if by_block:
            carries = from_to(b, thread, parts, BLOCK, self.start(), trip)
            carries = join_block(b, carries, self.joined)
            only_if(b, b.eq(thread, 0), lambda: finish(carries))
            blocks = count
        else:
            only_if(
                b,
                below(b, result, count),
                lambda: finish(from_to(b, constant(I32, 0), parts, 1, self.start(), trip)),
            )
            blocks = -(-count // BLOCK)
        text = self.finish()
        written = frozenset([v for e in self.loop.reductions for v in e.outputs])
        return Launch(text.text, text.roots, written, blocks)


def _umin(emitter: LoopEmitter, t: Type) -> str:
    name = f"@llvm.umin.{t}"
    emitter.shared.declares[f"declare {t} {name}({t}, {t})"] = None
    return name


def _dtype(t: Type) -> Dtype:
    """The dtype of a stored carry."""
    if t.is_float:
        return np.dtype(f"f{t.bits // 8}")
    return np.dtype(bool) if t.bits == 1 else np.dtype(f"i{t.bits // 8}")
