"""Second stage of lowering: which equations run together, in one pass over their data.

In: a simplified Program. Out: a `Schedule`, kernels in an order that respects their dependencies.

An equation joins the last loop over the same space that does not depend on what the equation comes after: producers
meet their consumers, and independent work over the same space shares a pass. Movement is a view (`layout`), so it
joins nothing; where the elements must really move, a loop writes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from funcgrad.core.ir import Atom, Equation, Literal, Program, Shape, Stack, Var, can_raise, make_aval
from funcgrad.core.primitive import registry
from funcgrad.lowering.inplace import share
from funcgrad.lowering.kernels import (
    Control,
    Kernel,
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

CANDIDATES = 12  # loops over a space that an equation may join: the last ones
MAX_RECURRENCES = 8  # of one walk: their states are in registers
MAX_EQUATIONS = 120  # of one loop: register allocation is superlinear in the length of a body


CONTROL = ("loop", "branch", *STACKS)
"""Kinds of kernels that may hold or read stacks."""
ORDERED = ("update", "scatter", "cumulative", "argreduce")
"""Kinds with kernels of their own in machine code, and whole equations in a plain schedule."""


def schedule(program: Program, plain: bool = False, again: bool = False) -> Schedule:
    """Fuse the equations of a simplified Program into kernels.

    Parameters
    ----------
    plain
        Of loops, products and whole equations only.
    again
        A kernel may run several times over: what a loop starts with is still there at its end.
    """
    return program.remember(("schedule", plain, again), lambda: _Scheduler(program, plain, again).run())


class _Scheduler:
    def __init__(self, program: Program, plain: bool, again: bool) -> None:
        self.program = program
        self.again = again
        self.whole = ORDERED if plain else ()
        self.views: dict[Var, View] = {v: contiguous(v, in_memory(v.aval).shape) for v in program.inputs}
        self.kernels: list[Kernel] = []
        self.loops: dict[Shape, list[int]] = {}
        self.after: list[int] = []  # for each kernel the set (as bits) of kernels that it comes after, itself included
        self.home: dict[Var, int] = {}  # the loop in which a value is computed elementwise
        self.writers: dict[Var, int] = {}  # for each root the kernels (as bits) that fill its buffer
        self.readers: dict[Var, int] = {}  # for each root the kernels (as bits) that read its buffer
        self.walks: dict[tuple[Shape, int, bool], int] = {}  # the last walk of each kind
        self.buffers: dict[Var, Shape] = {}
        self.effects = 0  # the kernels (as bits) with effects
        self.raising = 0  # those that can raise

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
            k = self.join(e.outputs[0].aval.shape, e.inputs, after=self._before(e))
            self._compute(e, k)
            self._note(e, k)
        elif kind in ("reduce", "argreduce"):
            (out,), (x,) = e.outputs, e.inputs
            axes = axes_of(e)
            k = self.join(x.aval.shape, e.inputs, axes)
            loop = self._loop(k)
            loop.reductions.append(e)
            loop.axes = axes
            self._define(out, k)
        elif kind in ("loop", "branch") or (kind in (*STACKS, "foreign") and not self.whole):
            self._place_control(e)
        elif kind != "dot" or not self._place_product(e):
            self._place_library(e)

    def _place_control(self, e: Equation) -> None:
        """A loop or branch, another operation on stacks, or a foreign call: its operands in C order."""
        foreign = e.primitive.traits.kind == "foreign"
        inputs = tuple([self._in_memory(a) if foreign else self._in_order(a) for a in e.inputs])
        k = self._new(Control(e.replace(inputs=inputs)), inputs, self._before(e))
        self._note(e, k)
        for out in e.outputs:
            self._define(out, k)

    def _place_library(self, e: Equation) -> None:
        """A kernel of one equation."""
        before = 0
        x = e.inputs[0] if e.inputs else None
        if e.primitive.traits.kind in ("update", "scatter") and isinstance(x, Var):  # the old values are read first
            before = self.readers.get(self.views[x].root, 0)
        k = self._new(Library(e), e.inputs, before)
        for out in e.outputs:
            self._define(out, k)

    def _before(self, e: Equation) -> int:
        """The kernels (as bits) before an equation with effects, or that can raise: effects stay in order."""
        if e.primitive.effects_of(e.params):
            return self.effects | self.raising
        return self.effects if can_raise(e) else 0

    def _note(self, e: Equation, k: int) -> None:
        """Remember that equation `e` is in kernel `k`, if it has effects or can raise."""
        if e.primitive.effects_of(e.params):
            self.effects |= 1 << k
        if can_raise(e):
            self.raising |= 1 << k

    def _in_memory(self, a: Atom) -> Atom:
        """A value that lies in memory in C order; a constant too."""
        if not isinstance(a, Literal):
            return self._in_order(a)
        copy = Var(a.aval)
        self.write(Write(a, contiguous(copy, a.aval.shape)), copy)
        return copy

    def _in_order(self, a: Atom) -> Atom:
        """A value that lies in memory in C order: itself, or a copy."""
        if isinstance(a, Literal):
            return a
        self.store(a)
        view = self.views[a]
        if isinstance(a.aval, Stack) or replace(view, offset=0) == contiguous(view.root, a.aval.shape):
            return a
        copy = Var(a.aval)
        self.write(Write(a, contiguous(copy, a.aval.shape)), copy)
        return copy

    def _compute(self, e: Equation, k: int) -> None:
        """An equation of loop `k`, with its result in registers until something else needs it."""
        (out,) = e.outputs
        self._loop(k).equations.append(e)
        self.home[out] = k
        self.views[out] = contiguous(out, out.aval.shape)
        self.writers[out] = 1 << k

    def _place_gather(self, e: Equation) -> None:
        """Reads at computed places: an equation of a loop over the result, with an index per element."""
        (out,), (x, *indices) = e.outputs, e.inputs
        axes = tuple(range(indices[0].aval.ndim))
        spread = [self._spread(i, out.aval.shape, axes) for i in indices]
        self._compute(e.replace(inputs=(x, *spread)), self.join(out.aval.shape, spread, elsewhere=(x,)))

    def _place_window(self, e: Equation) -> None:
        """Reads from a computed place on: an equation of a loop over the result."""
        self._compute(e, self.join(e.outputs[0].aval.shape, (), elsewhere=e.inputs))

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
            self.writers[out] |= 1 << self._new(kernel, operands, self.writers[out])

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
            self._define(out, self._new(copy, (x,), self.readers.get(root, 0)))
        else:
            self.write(Write(x, contiguous(out, out.aval.shape)), out)

    def _place_cumulative(self, e: Equation) -> None:
        """A step of a walk; equal walks that do not depend on each other run together."""
        (out,) = e.outputs
        key = out.aval.shape, e.params["axis"], e.params["reverse"]
        for a in e.inputs:
            self.store(a)
        needed = self._closed(self._dependencies(e.inputs))
        k = self.walks.get(key)
        if k is None or needed >> k & 1 or len(self._walk(k).equations) >= MAX_RECURRENCES:
            k = self.walks[key] = self._new(Walk(*key), e.inputs)
        else:
            self._depend(k, needed)
            self._read(k, e.inputs)
        self._walk(k).equations.append(e)
        self._define(out, k)

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
        k = self._new(Product(dtype, left, right, whole), (), needed)
        for root in (left.root, right.root):
            self.readers[root] = self.readers.get(root, 0) | 1 << k
        self._define(out, k)
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

    def write(self, write: Write, out: Var, after: int = 0) -> None:
        """Store a value into (a part of) the buffer of `out`, after kernels (as bits) that write to the same places."""
        positions = [s.position for s in write.starts]
        k = self.join(write.target.shape, (write.value,), (), after, positions)
        self._loop(k).writes.append(write)
        shape = in_memory(out.aval).shape
        self.views.setdefault(out, contiguous(out, shape))
        self.writers[out] = self.writers.get(out, 0) | 1 << k
        self.buffers[out] = shape

    def store(self, atom: Atom) -> None:
        """Make sure that a value is in memory."""
        if isinstance(atom, Var):
            root = self.views[atom].root
            k = self.home.get(root)
            if k is not None and root not in self.buffers:
                self._loop(k).writes.append(Write(root, self.views[root]))
                self.buffers[root] = root.aval.shape

    def _define(self, out: Var, k: int) -> None:
        """`out` is stored by kernel `k` as a whole."""
        shape = in_memory(out.aval).shape
        self.views[out] = contiguous(out, shape)
        self.buffers[out] = shape
        self.writers[out] = 1 << k

    # -- joining

    def _loop(self, k: int) -> Loop:
        loop = self.kernels[k]
        assert isinstance(loop, Loop)
        return loop

    def _dependencies(self, atoms: Sequence[Atom]) -> int:
        """The kernels (as bits) that must end before one that reads `atoms` from memory."""
        bits = 0
        for a in atoms:
            if isinstance(a, Var):
                bits |= self.writers.get(self.views[a].root, 0)
        return bits

    def _new(self, kernel: Kernel, atoms: Sequence[Atom], after: int = 0) -> int:
        """A kernel that reads `atoms` from memory, after the kernels `after` (as bits)."""
        for a in atoms:
            self.store(a)
        k = len(self.kernels)
        self.kernels.append(kernel)
        self.after.append(self._closed(self._dependencies(atoms) | after) | 1 << k)
        self._read(k, atoms)
        return k

    def _read(self, k: int, atoms: Sequence[Atom]) -> None:
        """Remember that kernel `k` reads `atoms` from memory."""
        for a in atoms:
            if isinstance(a, Var):
                root = self.views[a].root
                self.readers[root] = self.readers.get(root, 0) | 1 << k

    def _closed(self, bits: int) -> int:
        out = bits
        while bits:
            lowest = bits & -bits
            out |= self.after[lowest.bit_length() - 1]
            bits ^= lowest
        return out

    def join(
        self,
        shape: Shape,
        atoms: Sequence[Atom],
        axes: tuple[int, ...] = (),
        after: int = 0,
        elsewhere: Sequence[Atom] = (),
    ) -> int:
        """The loop over `shape` in which something that reads `atoms` can run; a new one if there is none.

        Parameters
        ----------
        axes
            The axes of a reduction; all reductions of a loop are over the same axes.
        after
            Kernels (as bits) that must end before.
        elsewhere
            What is read from memory at other places than the index of the loop.
        """
        loops = self.loops.setdefault(shape, [])
        for k in reversed(loops[-CANDIDATES:]):
            loop = self._loop(k)
            if len(loop.equations) >= MAX_EQUATIONS:
                continue
            if axes and loop.axes and loop.axes != axes:
                continue
            outside = [*[a for a in atoms if not self._inside(a, k)], *elsewhere]
            needed = self._closed(self._dependencies(outside) | after)
            if needed >> k & 1:
                continue
            for a in outside:
                self.store(a)
            self._depend(k, needed)
            self._read(k, outside)
            return k
        loops.append(self._new(Loop(shape), (*atoms, *elsewhere), after))
        return loops[-1]

    def _inside(self, a: Atom, k: int) -> bool:
        """Whether `a` is a value of loop `k` at the same index."""
        return isinstance(a, Literal) or self.home.get(a) == k

    def _depend(self, k: int, needed: int) -> None:
        """Kernel `k`, and all that come after it, come after `needed`."""
        if needed & ~self.after[k]:
            for j, bits in enumerate(self.after):
                if bits >> k & 1:
                    self.after[j] |= needed

    # -- results

    def outputs(self) -> list[Var]:
        """For every output a root of its own, in C order, that is no input; stacks are what they are."""
        taken: set[Any] = set(self.program.inputs)
        out: list[Var] = []
        for a in self.program.outputs:
            held = in_memory(a.aval)
            if isinstance(a, Var):
                view = self.views[a]
                if view.root not in taken and view.is_contiguous and in_memory(view.root.aval).size == held.size:
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


__all__ = ["Kernel", "Library", "Loop", "Product", "Schedule", "Write", "schedule"]
