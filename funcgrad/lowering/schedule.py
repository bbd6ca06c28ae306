"""Second stage of lowering: which equations run together, in one pass over their data.

In: a simplified Program. Out: a `Schedule`, kernels in an order that respects their dependencies.

An equation joins the last loop over the same space that does not depend on what the equation comes after: producers
meet their consumers, and independent work over the same space shares a pass. Movement is a view (`layout`), so it
joins nothing; where the elements must really move, a loop writes them.
"""

from __future__ import annotations

from math import prod
from typing import Any

from funcgrad.core.ir import Atom, Equation, Literal, Program, Shape, Stack, Var, make_aval
from funcgrad.core.primitive import registry
from funcgrad.lowering.inplace import share
from funcgrad.lowering.joining import Joining
from funcgrad.lowering.kernels import (
    Control,
    Library,
    Loop,
    Product,
    Scatter,
    Schedule,
    Walk,
    Write,
    axes_of,
    starts_of,
)
from funcgrad.lowering.layout import View, contiguous
from funcgrad.lowering.registers.kinds import STACKS
from funcgrad.lowering.registers.stacks import in_memory
from funcgrad.ops.scalar import ELEMENTS

MAX_RECURRENCES = 8  # of one walk: their states are in registers

CONTROL = ("loop", "branch", *STACKS)
"""Kinds of kernels that may hold or read stacks."""
ORDERED = ("update", "scatter", "cumulative", "argreduce")
"""Kinds with kernels of their own in machine code, and whole equations in a plain schedule."""


def schedule(program: Program, plain: bool = False, again: bool = False, shaped: bool = False) -> Schedule:
    """Fuse the equations of a simplified Program into kernels.

    Parameters
    ----------
    plain
        Of loops, products and whole equations only.
    again
        A kernel may run several times over: what a loop starts with is still there at its end.
    shaped
        Results lie in buffers of their own shapes, and not of others with as many elements.
    """
    key = ("schedule", plain, again, shaped)
    return program.remember(key, lambda: _Scheduler(program, plain, again, shaped).run())


class _Scheduler(Joining):
    """What the kinds of equations become."""

    def __init__(self, program: Program, plain: bool, again: bool, shaped: bool) -> None:
        super().__init__(program)
        self.program = program
        self.again, self.shaped = again, shaped
        self.whole = ORDERED if plain else ()
        self.walks: dict[tuple[Shape, int, bool], int] = {}  # the last walk of each kind

    def run(self) -> Schedule:
        for e in self.program.equations:
            self.place(e)
        outputs = self.outputs()
        order = sorted(range(len(self.kernels)), key=lambda k: (self.after[k].bit_count(), k))
        found = Schedule([self.kernels[k] for k in order], self.views, self.buffers, outputs)
        return found if self.whole else share(found, loops=not self.again)

    # -- equations

    def place(self, e: Equation) -> None:
        """Put one equation into kernels."""
        kind = e.primitive.traits.kind
        if kind in ("view", "index") and self._place_movement(e):
            return
        if kind in self.whole:
            self._place_library(e)
        elif kind == "gather":
            self._place_gather(e)
        elif kind == "window":
            self._place_window(e)
        elif kind == "update":
            self._place_update(e)
        elif kind == "scatter":
            self._place_scatter(e)
        elif kind == "cumulative" and e.primitive.recurrence is not None:
            self._place_cumulative(e)
        elif kind in ("elementwise", "check", "iota"):
            k = self.join(e.outputs[0].aval.shape, e.inputs, after=self.before(e))
            self.compute(e, k)
            self.note(e, k)
        elif kind in ("reduce", "argreduce"):
            (out,), (x,) = e.outputs, e.inputs
            axes = axes_of(e)
            k = self.join(x.aval.shape, e.inputs, axes)
            loop = self.loop(k)
            loop.reductions.append(e)
            loop.axes = axes
            self.define(out, k)
        elif kind in ("loop", "branch") or (kind in (*STACKS, "foreign") and not self.whole):
            self._place_control(e)
        elif kind != "dot" or not self._place_product(e):
            self._place_library(e)

    def _place_control(self, e: Equation) -> None:
        """A loop or branch, another operation on stacks, or a foreign call: its operands in C order."""
        foreign = e.primitive.traits.kind == "foreign"
        inputs = tuple([self.in_order(a, constants=foreign) for a in e.inputs])
        k = self.new(Control(e.replace(inputs=inputs)), inputs, self.before(e))
        self.note(e, k)
        for out in e.outputs:
            self.define(out, k)

    def _place_library(self, e: Equation) -> None:
        """A kernel of one equation."""
        before = 0
        x = e.inputs[0] if e.inputs else None
        if e.primitive.traits.kind in ("update", "scatter") and isinstance(x, Var):  # the old values are read first
            before = self.readers.get(self.views[x].root, 0)
        k = self.new(Library(e), e.inputs, before)
        for out in e.outputs:
            self.define(out, k)

    def _place_gather(self, e: Equation) -> None:
        """Reads at computed places: an equation of a loop over the result, with an index per element."""
        (out,), (x, *indices) = e.outputs, e.inputs
        axes = tuple(range(indices[0].aval.ndim))
        spread = [self._spread(i, out.aval.shape, axes) for i in indices]
        self.compute(e.replace(inputs=(x, *spread)), self.join(out.aval.shape, spread, elsewhere=(x,)))

    def _place_window(self, e: Equation) -> None:
        """Reads from a computed place on: an equation of a loop over the result."""
        self.compute(e, self.join(e.outputs[0].aval.shape, (), elsewhere=e.inputs))

    def _place_update(self, e: Equation) -> None:
        """A copy of the operand, then a loop that writes from a computed place on."""
        (out,), (x, update, *positions) = e.outputs, e.inputs
        self._copy(x, out)
        whole = contiguous(out, out.aval.shape)
        window = View(out, update.aval.shape, 0, whole.strides)
        self.write(Write(update, window, starts_of(positions, whole, update.aval.shape)), out, self.writers[out])

    def _place_scatter(self, e: Equation) -> None:
        """A copy of the operand, then a kernel that changes it."""
        (out,), (x, updates, *indices) = e.outputs, e.inputs
        self._copy(x, out)
        if updates.aval.size and out.aval.size:
            axes = tuple(range(indices[0].aval.ndim))
            operands = (updates, *[self._spread(i, updates.aval.shape, axes) for i in indices])
            kernel = Scatter(e.replace(inputs=operands), contiguous(out, out.aval.shape))
            self.writers[out] |= 1 << self.new(kernel, operands, self.writers[out])

    def _copy(self, x: Atom, out: Var) -> None:
        """Fill the buffer of `out` with `x`.

        What is in memory of the program is copied late, after all that has read it: if nothing reads it later, the
        copy can go (see `inplace`). Anything else is written where it is computed.
        """
        root = self.views[x].root if isinstance(x, Var) else None
        if root is not x:
            self.store(x)
        if root in self.buffers:
            copy = Loop(out.aval.shape, writes=[Write(x, contiguous(out, out.aval.shape))])
            self.define(out, self.new(copy, (x,), self.readers.get(root, 0)))
        else:
            self.write(Write(x, contiguous(out, out.aval.shape)), out)

    def _place_cumulative(self, e: Equation) -> None:
        """A step of a walk; equal walks that do not depend on each other run together."""
        (out,) = e.outputs
        key = out.aval.shape, e.params["axis"], e.params["reverse"]
        for a in e.inputs:
            self.store(a)
        needed = self._closed(self.dependencies(e.inputs))
        k = self.walks.get(key)
        if k is None or needed >> k & 1 or len(self._walk(k).equations) >= MAX_RECURRENCES:
            k = self.walks[key] = self.new(Walk(*key), e.inputs)
        else:
            self._depend(k, needed)
            self.read(k, e.inputs)
        self._walk(k).equations.append(e)
        self.define(out, k)

    def _walk(self, k: int) -> Walk:
        walk = self.kernels[k]
        assert isinstance(walk, Walk)
        return walk

    def _spread(self, a: Atom, shape: Shape, axes: tuple[int, ...]) -> Atom:
        """An operand with its axes at `axes` of `shape`, repeated over the others."""
        if axes == tuple(range(len(shape))):
            return a
        aval = make_aval(shape, a.aval.dtype)
        if isinstance(a, Literal):
            return Literal(a.value, aval)
        self.store(a)
        out = Var(aval)
        self.views[out] = self.views[a].broadcast(shape, axes)
        return out

    def _place_product(self, e: Equation) -> bool:
        """A matrix product; one without sums, and those of integers and bools, are loops. False: not native."""
        (out,), (x, y) = e.outputs, e.inputs
        dtype, contract, batch = out.aval.dtype, e.params["contract"], e.params["batch"]
        if dtype not in ELEMENTS:
            return False
        free = [
            tuple([i for i in range(v.aval.ndim) if i not in c and i not in b])
            for v, c, b in zip((x, y), contract, batch, strict=True)
        ]
        if dtype.kind != "f" or not contract[0]:
            self._place_products(e, free)
            return True
        shape = x.aval.shape
        size = prod([shape[i] for i in batch[0]])
        depth = prod([shape[i] for i in contract[0]])
        rows, columns = (prod([v.aval.shape[i] for i in f]) for v, f in zip((x, y), free, strict=True))
        if 0 in (size, rows, columns, depth):  # BLAS would leave the result as it is, or write where nothing is
            zero = Literal(out.aval.dtype.type(0), make_aval((), out.aval.dtype))
            self._fill(zero, contiguous(out, out.aval.shape), out)
            return True
        left = self._matrix(x, (*batch[0], *free[0], *contract[0]), (size, rows, depth))
        right = self._matrix(y, (*batch[1], *contract[1], *free[1]), (size, depth, columns))
        whole = contiguous(out, (size, rows, columns))
        needed = self.writers.get(left.root, 0) | self.writers.get(right.root, 0)
        k = self.new(Product(dtype, left, right, whole), (), needed)
        for root in (left.root, right.root):
            self.readers[root] = self.readers.get(root, 0) | 1 << k
        self.define(out, k)
        return True

    def _place_products(self, e: Equation, free: list[tuple[int, ...]]) -> None:
        """All products of a matrix product, elementwise, of operands that are repeated along each other's axes; sums.

        The loops are over (b, i, k, j).
        """
        (out,), (x, y) = e.outputs, e.inputs
        batch, contract = e.params["batch"], e.params["contract"]
        b, i, k = len(batch[0]), len(free[0]), len(contract[0])
        left, right = (*batch[0], *free[0], *contract[0]), (*batch[1], *contract[1], *free[1])
        n = len(left) + len(free[1])
        shape = (*[x.aval.shape[a] for a in left], *[y.aval.shape[a] for a in free[1]])
        places = {a: p for p, a in enumerate(left)}, dict(zip(right, [*range(b), *range(b + i, n)], strict=True))
        factors = [
            self._spread(v, shape, tuple([place[a] for a in range(v.aval.ndim)]))
            for v, place in zip((x, y), places, strict=True)
        ]
        products = out if not k else Var(make_aval(shape, out.aval.dtype))
        self.place(Equation(registry["mul"], tuple(factors), {}, (products,), e.source))
        if k:
            total = registry["reduce_any" if out.aval.dtype.kind == "b" else "reduce_sum"]
            axes = tuple(range(b + i, b + i + k))
            self.place(Equation(total, (products,), {"axes": axes}, e.outputs, e.source))

    def _matrix(self, x: Atom, axes: tuple[int, ...], shape: tuple[int, int, int]) -> View:
        """`x` with its axes in this order, as a batch of matrices that BLAS can read; copied if it must be."""
        view = None
        if isinstance(x, Var):
            self.store(x)
            view = self.views[x].permuted(axes).reshaped(shape)
        if view is None or not _readable(view):
            copy = Var(make_aval(tuple([x.aval.shape[a] for a in axes]), x.aval.dtype))
            back = tuple(sorted(range(len(axes)), key=axes.__getitem__))
            self.write(Write(x, contiguous(copy, copy.aval.shape).permuted(back)), copy)
            view = contiguous(copy, shape)
        return view

    def _place_movement(self, e: Equation) -> bool:
        """A movement: a view of its operand, or loops that write; False if it is none of these."""
        (out,) = e.outputs
        name = e.primitive.name
        if name == "pad":
            self._pad(e, out)
        elif name == "concatenate":
            self._concatenate(e, out)
        elif name == "banded":
            self._banded(e, out)
        elif len(e.inputs) == 1 and isinstance(e.inputs[0], Var):
            x = e.inputs[0]
            view = None if e.primitive.view is None else e.primitive.view(self.views[x], **e.params)
            if view is not None:
                self.views[out] = view
            elif e.primitive.traits.kind == "view":  # a reshape of another order: written in the order of the result
                self.write(Write(x, contiguous(out, x.aval.shape)), out)
            else:
                return False
        else:
            return False
        return True

    def _pad(self, e: Equation, out: Var) -> None:
        x, fill = e.inputs
        before, between = e.params["before"], e.params["between"]
        whole = contiguous(out, out.aval.shape)
        step = tuple([i + 1 for i in between])
        stop = tuple([b + (n - 1) * s + 1 if n else b for b, n, s in zip(before, x.aval.shape, step, strict=True)])
        for box in [whole] if any(between) else _frame(whole, before, stop):
            self._fill(fill, box, out)
        self.write(Write(x, whole.sliced(before, stop, step)), out, self.writers.get(out, 0) if any(between) else 0)

    def _fill(self, value: Atom, target: View, out: Var) -> None:
        if isinstance(value, Literal):
            self.write(Write(value, target), out)
        else:
            spread = Var(value.aval)
            self.store(value)
            self.views[spread] = self.views[value].broadcast(target.shape, ())
            self.write(Write(spread, target), out)

    def _concatenate(self, e: Equation, out: Var) -> None:
        axis, at = e.params["axis"], 0
        whole = contiguous(out, out.aval.shape)
        for x in e.inputs:
            n = x.aval.shape[axis]
            start = tuple([at if i == axis else 0 for i in range(len(whole.shape))])
            stop = tuple([at + n if i == axis else m for i, m in enumerate(whole.shape)])
            self.write(Write(x, whole.sliced(start, stop, (1,) * len(whole.shape))), out)
            at += n

    def _banded(self, e: Equation, out: Var) -> None:
        whole = contiguous(out, out.aval.shape)
        if not out.aval.size:
            return self._fill(Literal(out.aval.dtype.type(0), make_aval((), out.aval.dtype)), whole, out)
        for start, stop, value in e.params["boxes"]:
            box = whole.sliced(start, stop, (1,) * len(start))
            self.write(Write(Literal(value, make_aval(box.shape, out.aval.dtype)), box), out)
        filled = self.writers[out]
        for line, (offset, step) in zip(e.inputs, e.params["places"], strict=True):
            self.write(Write(line, View(out, line.aval.shape, offset, (step,))), out, filled)
        return None

    # -- results

    def outputs(self) -> list[Var]:
        """For every output a root of its own, in C order, that is no input; stacks are what they are."""
        taken: set[Any] = set(self.program.inputs)
        out: list[Var] = []
        for a in self.program.outputs:
            held = in_memory(a.aval)
            if isinstance(a, Var):
                view = self.views[a]
                have = in_memory(view.root.aval)
                whole = have.shape == held.shape if self.shaped else have.size == held.size
                if view.root not in taken and view.is_contiguous and whole:
                    self.store(a)
                    taken.add(view.root)
                    out.append(view.root)
                    continue
            root, value = Var(a.aval), a
            if isinstance(a.aval, Stack):
                value = Var(held)
                self.views[value] = self.views[a]  # type: ignore[index]
            self.write(Write(value, contiguous(root, held.shape)), root)
            out.append(root)
        return out


def _frame(whole: View, start: Shape, stop: Shape) -> list[View]:
    """Boxes that cover what lies outside of a box, without overlap."""
    boxes, low, high = [], [0] * len(start), list(whole.shape)
    for axis, (b, e) in enumerate(zip(start, stop, strict=True)):
        for first, last in ((0, b), (e, whole.shape[axis])):
            ends = [*low[:axis], first, *low[axis + 1 :]], [*high[:axis], last, *high[axis + 1 :]]
            if all([i < j for i, j in zip(*ends, strict=True)]):
                boxes.append(whole.sliced(tuple(ends[0]), tuple(ends[1]), (1,) * len(start)))
        low[axis], high[axis] = b, e
    return boxes


def _readable(view: View) -> bool:
    """Whether BLAS can read each matrix of the batch: one stride is 1, the other at least the length it steps over."""
    _, rows, columns = view.shape
    _, down, right = view.strides
    by_rows = (right == 1 or columns == 1) and (down >= columns or rows == 1)
    by_columns = (down == 1 or rows == 1) and (right >= rows or columns == 1)
    return by_rows or by_columns
