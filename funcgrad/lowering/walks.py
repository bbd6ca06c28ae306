"""Kernels whose order matters, as LLVM text: `Walk`, a recurrence along one axis, and `Scatter`, updates one by one.

A walk carries the state of its recurrences along the axis; if another axis is contiguous, its elements are the lanes
of vectors, each with a state of its own. A scatter visits the updates in C order, so that of equal places the last
one wins, and sums have the order of the updates; what a place holds beyond the indexed axes is changed in vectors.
"""

from __future__ import annotations

from collections.abc import Callable

from funcgrad.core.ir import Atom, Literal, Var
from funcgrad.lowering.kernels import Scatter, Walk
from funcgrad.lowering.layout import View, contiguous
from funcgrad.lowering.nests import I64, Access, Carries, KernelText, NestEmitter, nest, repeat
from funcgrad.lowering.values import Shared, Target, Value, constant, make_type
from funcgrad.ops.scalar import element_of


def walk_text(walk: Walk, views: dict[Var, View], target: Target, shared: Shared) -> KernelText:
    """The function that runs `walk`."""
    return WalkEmitter(views, target, shared).run(walk)


def scatter_text(scatter: Scatter, views: dict[Var, View], target: Target, shared: Shared) -> KernelText:
    """The function that runs `scatter`."""
    return ScatterEmitter(views, target, shared).run(scatter)


class WalkEmitter(NestEmitter):
    """The function of a `Walk` in the making."""

    def run(self, walk: Walk) -> KernelText:
        """The function."""
        self.start(walk)
        if 0 not in walk.shape:
            self._level(0, self.nest.accesses)
        return self.finish()

    def start(self, walk: Walk) -> None:
        """Plan the loops and accesses."""
        self.walk = walk
        reads = list(dict.fromkeys([a for e in walk.equations for a in e.inputs if isinstance(a, Var)]))
        self.where: dict[Var, int] = {}
        accesses = []
        for v, view in [(v, self.views[v]) for v in reads] + [
            (v, contiguous(v, walk.shape)) for e in walk.equations for v in e.outputs
        ]:
            seen = view.reversed((walk.axis,)) if walk.reverse else view
            self.where[v] = len(accesses)
            accesses.append(Access(seen.root, v.aval.dtype, seen.offset, seen.strides))
        self.starts = []
        for e in walk.equations:
            assert e.primitive.recurrence is not None
            self.starts.append(e.primitive.recurrence.start(e.outputs[0].aval.dtype))
        n = nest(walk.shape, (walk.axis,), accesses)
        if n.vector is not None and n.vector >= n.outer:
            n.vector = None  # the axis of the walk itself
        self.begin(n, [a.dtype for a in accesses] + [d for start in self.starts for d, _ in start])

    def _level(self, depth: int, pointers: list[Access]) -> Carries:
        n = self.nest
        if depth == n.outer:
            return self.along(pointers)
        if depth == n.vector:
            return self.vectors(depth, pointers, [], lambda p, start, fresh, c: self.along(p))
        step = lambda i, c: self._level(depth + 1, self.advance(pointers, depth, i))
        return repeat(self.b, n.sizes[depth], [], step)

    def states(self) -> Carries:
        """The states before the first step."""
        return [constant(make_type(element_of(d), self.lanes), x) for start in self.starts for d, x in start]

    def along(self, pointers: list[Access]) -> Carries:
        """All steps of the walk."""
        n = self.nest
        if n.outer == len(n.sizes):
            self.step(pointers, self.states())
        else:
            step = lambda i, c: self.step(self.advance(pointers, n.outer, i), c)
            repeat(self.b, n.sizes[n.outer], self.states(), step)
        return []

    def step(self, pointers: list[Access], states: Carries, keep: bool = True) -> Carries:
        """One step: the states after it. Its results are stored if they are to be kept."""
        vector, env = self.nest.vector, {}

        def access(v: Var) -> tuple[Access, int]:
            a = pointers[self.where[v]]
            return a, 0 if vector is None else a.strides[vector]

        def read(atom: Atom) -> Value:
            if isinstance(atom, Literal):
                return self.literal(atom)
            if atom not in env:
                env[atom] = self.load(*access(atom))
            return env[atom]

        after: Carries = []
        for e, start in zip(self.walk.equations, self.starts, strict=True):
            (out,) = e.outputs
            recurrence, state = e.primitive.recurrence, states[len(after) : len(after) + len(start)]
            assert recurrence is not None
            state, result = recurrence.step(self.b, out.aval.dtype, state, *[read(a) for a in e.inputs])
            if keep:
                self.store(result, *access(out))
            after += state
        return after


class ScatterEmitter(NestEmitter):
    """The function of a `Scatter` in the making."""

    def run(self, scatter: Scatter) -> KernelText:
        """The function."""
        self.start(scatter)
        self._place(0, self.nest.accesses)
        return self.finish()

    def start(self, scatter: Scatter) -> None:
        """Plan the loops and accesses."""
        e, out = scatter.equation, scatter.target
        self.scatter = scatter
        update, *indices = e.inputs
        shape, taken = update.aval.shape, len(indices)
        rest = tuple(range(len(shape) - (len(out.shape) - taken), len(shape)))
        strides = (*[0] * (len(shape) - len(rest)), *out.strides[taken:])
        dtype = update.aval.dtype
        accesses = [Access(out.root, dtype, out.offset, strides)]
        self.where: dict[Var, int] = {}
        for a in e.inputs:
            if isinstance(a, Var) and a not in self.where:
                view = self.views[a]
                self.where[a] = len(accesses)
                accesses.append(Access(view.root, a.aval.dtype, view.offset, view.strides))
        n = nest(shape, rest, accesses)
        if n.vector is not None and n.vector < n.outer:
            n.vector = None  # lanes would be places, which may be equal
        self.begin(n, [dtype])

    def _place(self, depth: int, pointers: list[Access]) -> Carries:
        """The loops over the places; then the one that is changed there."""
        n, b = self.nest, self.b
        if depth < n.outer:
            step = lambda i, c: self._place(depth + 1, self.advance(pointers, depth, i))
            return repeat(b, n.sizes[depth], [], step)
        out, (_, *indices) = self.scatter.target, self.scatter.equation.inputs
        positions = [self.position(a, pointers) for a in indices]
        target, *others = pointers
        change = lambda: self._change(depth, [self.moved(target, place), *others])
        place = self.place(positions, out.shape, out.strides)
        if self.scatter.equation.params["mode"] == "drop":
            self.unless([b.ne(p, self.inside(p, n - 1)) for p, n in zip(positions, out.shape, strict=False)], change)
        else:
            change()
        return []

    def position(self, a: Atom, pointers: list[Access]) -> Value:
        """An index."""
        if isinstance(a, Literal):
            return constant(I64, int(a.value))
        return self.load_one(pointers[self.where[a]])

    def unless(self, conditions: list[Value], body: Callable[[], object]) -> None:
        """Run `body` if none of the conditions holds."""
        b, any_of = self.b, conditions[0]
        for c in conditions[1:]:
            any_of = b.or_(any_of, c)
        b.count = n = b.count + 1
        b.lines += [f"  br i1 {any_of.text}, label %skip{n}, label %take{n}", f"take{n}:"]
        b.block = f"take{n}"
        body()
        b.lines += [f"  br label %skip{n}", f"skip{n}:"]
        b.block = f"skip{n}"

    def _change(self, depth: int, pointers: list[Access]) -> Carries:
        """The loops over what a place holds."""
        n = self.nest
        if depth == len(n.sizes):
            return self._combine(pointers, None)
        if depth == n.vector:
            return self.vectors(depth, pointers, [], lambda p, start, fresh, c: self._combine(p, fresh))
        step = lambda i, c: self._change(depth + 1, self.advance(pointers, depth, i))
        return repeat(self.b, n.sizes[depth], [], step)

    def _combine(self, pointers: list[Access], fresh: Value | None) -> Carries:
        """One vector: the update, combined with what is there; lanes that were changed before keep that."""
        b, vector, e = self.b, self.nest.vector, self.scatter.equation
        stride = lambda a: 0 if vector is None else a.strides[vector]
        target, update = pointers[0], e.inputs[0]
        if isinstance(update, Literal):
            value = self.literal(update)
        else:
            a = pointers[self.where[update]]
            value = self.load(a, stride(a))
        if e.primitive.combine is not None:
            assert e.primitive.combine.emit is not None
            old = self.load(target, stride(target))
            value = e.primitive.combine.emit(b, update.aval.dtype, old, value)
            value = value if fresh is None else b.select(fresh, value, old)
        self.store(value, target, stride(target))
        return []
