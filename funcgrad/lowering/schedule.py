"""Second stage of lowering: which equations run together, in one pass over their data.

In: a simplified Program. Out: a `Schedule`, kernels in an order that respects their dependencies. A `Loop` is one
pass over an iteration space with any number of elementwise operations, reductions and results; a `Library` kernel
is one equation that is not a pass of that kind (a matrix product, an indexing operation).

An equation joins the last loop over the same space that does not depend on what the equation comes after: producers
meet their consumers, and independent work over the same space shares a pass. Movement is a view (`layout`), so it
joins nothing; where the elements must really move, a loop writes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from funcgrad.base.dtypes import Dtype
from funcgrad.core.ir import Atom, Equation, Literal, Program, Shape, Var, make_aval
from funcgrad.core.primitive import registry
from funcgrad.lowering.layout import View, contiguous, view_of

CANDIDATES = 12  # loops over a space that an equation may join: the last ones
MAX_EQUATIONS = 120  # of one loop: register allocation is superlinear in the length of a body


@dataclass(frozen=True, slots=True)
class Write:
    """Store `value` (at the same index of the iteration space) into a view of a buffer."""

    value: Atom
    target: View


@dataclass(slots=True)
class Loop:
    """One pass over an iteration space.

    Attributes
    ----------
    shape
        The iteration space.
    equations
        Elementwise, in order; their results are values of this loop.
    reductions
        Reductions of values of this loop (or of views) over `axes`.
    axes
        The axes that all its reductions sum over; empty if there are none.
    writes
        What is stored at every index.
    """

    shape: Shape
    equations: list[Equation] = field(default_factory=list)
    reductions: list[Equation] = field(default_factory=list)
    axes: tuple[int, ...] = ()
    writes: list[Write] = field(default_factory=list)


@dataclass(slots=True)
class Product:
    """A batch of matrix products, ``out[b, i, j] = sum over k of x[b, i, k] y[b, k, j]``, for BLAS.

    `x`, `y` and `out` are views of shape (B, M, K), (B, K, N), (B, M, N); one of the last two strides of each is 1.
    """

    dtype: Dtype
    x: View
    y: View
    out: View


@dataclass(slots=True)
class Library:
    """One equation that is lowered as a whole."""

    equation: Equation


Kernel = Loop | Product | Library


@dataclass(slots=True)
class Schedule:
    """Kernels in order, and where every value lies.

    Attributes
    ----------
    views
        For every Var that is read from memory, its view of a buffer; a buffer is named by its root Var.
    buffers
        Roots that the Program computes and stores, with their shapes; the inputs are not among them.
    outputs
        For every output the root whose buffer is the result.
    """

    kernels: list[Kernel]
    views: dict[Var, View]
    buffers: dict[Var, Shape]
    outputs: list[Var]


def schedule(program: Program) -> Schedule:
    """Fuse the equations of a simplified Program into kernels."""
    return program.remember("schedule", lambda: _Scheduler(program).run())


class _Scheduler:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.views: dict[Var, View] = {v: contiguous(v, v.aval.shape) for v in program.inputs}
        self.kernels: list[Kernel] = []
        self.loops: dict[Shape, list[int]] = {}
        self.after: list[int] = []  # for each kernel the set (as bits) of kernels that it comes after, itself included
        self.home: dict[Var, int] = {}  # the loop in which a value is computed elementwise
        self.writers: dict[Var, int] = {}  # for each root the kernels (as bits) that fill its buffer
        self.buffers: dict[Var, Shape] = {}

    def run(self) -> Schedule:
        for e in self.program.equations:
            self.place(e)
        outputs = self.outputs()
        order = sorted(range(len(self.kernels)), key=lambda k: (self.after[k].bit_count(), k))
        kernels = [self.kernels[k] for k in order]
        return Schedule(kernels, self.views, self.buffers, outputs)

    # -- equations

    def place(self, e: Equation) -> None:
        kind = e.primitive.traits.kind
        if kind == "index" and self._place_movement(e):
            return
        if kind == "gather":
            self._place_gather(e)
        elif kind in ("elementwise", "check") or e.primitive.name == "iota":
            (out,) = e.outputs
            k = self.join(out.aval.shape, e.inputs)
            self._loop(k).equations.append(e)
            self.home[out] = k
            self.views[out] = contiguous(out, out.aval.shape)
            self.writers[out] = 1 << k
        elif kind == "reduce" and len(e.inputs) == 1:
            (out,), (x,) = e.outputs, e.inputs
            axes = e.params["axes"]
            k = self.join(x.aval.shape, e.inputs, axes)
            loop = self._loop(k)
            loop.reductions.append(e)
            loop.axes = axes
            self._define(out, k)
        elif kind == "dot" and e.params["contract"] == ((), ()) == e.params["batch"]:
            self._place_outer(e)
        elif kind != "dot" or not self._place_product(e):
            for a in e.inputs:
                self.store(a)
            k = self._new(Library(e), self._dependencies(e.inputs))
            for out in e.outputs:
                self._define(out, k)

    def _place_gather(self, e: Equation) -> None:
        """Reads at computed places: an equation of a loop over the result, with an index per element."""
        (out,), (x, *indices) = e.outputs, e.inputs
        assert isinstance(x, Var)
        self.store(x)
        shape = out.aval.shape
        axes = tuple(range(indices[0].aval.ndim))
        spread = [self._spread(i, shape, axes) for i in indices]
        k = self.join(shape, spread, (), self.writers.get(self.views[x].root, 0))
        self._loop(k).equations.append(e.replace(inputs=(x, *spread)))
        self.home[out] = k
        self.views[out] = contiguous(out, shape)
        self.writers[out] = 1 << k

    def _spread(self, a: Atom, shape: Shape, axes: tuple[int, ...]) -> Atom:
        """An operand repeated over the other axes of `shape`."""
        if a.aval.shape == shape:
            return a
        aval = make_aval(shape, a.aval.dtype)
        if isinstance(a, Literal):
            return Literal(a.value, aval)
        self.store(a)
        out = Var(aval)
        self.views[out] = self.views[a].broadcast(shape, axes)
        return out

    def _place_outer(self, e: Equation) -> None:
        """A product without sums: an elementwise product of operands that are repeated along each other's axes."""
        (out,), (x, y) = e.outputs, e.inputs
        n = x.aval.ndim
        spread = (
            self._spread(x, out.aval.shape, tuple(range(n))),
            self._spread(y, out.aval.shape, tuple(range(n, out.aval.ndim))),
        )
        self.place(Equation(registry["mul"], spread, {}, e.outputs, e.source))

    def _place_product(self, e: Equation) -> bool:
        """A matrix product of floats, with transposes folded into its views; False for other dtypes."""
        (out,), (x, y) = e.outputs, e.inputs
        if out.aval.dtype.name not in ("float32", "float64"):
            return False
        contract, batch = e.params["contract"], e.params["batch"]
        free = [
            tuple([i for i in range(v.aval.ndim) if i not in c and i not in b])
            for v, c, b in zip((x, y), contract, batch, strict=True)
        ]
        shape = x.aval.shape
        size = prod([shape[i] for i in batch[0]])
        depth = prod([shape[i] for i in contract[0]])
        if depth == 0:  # BLAS would leave a vector as it was
            self._fill(
                Literal(out.aval.dtype.type(0), make_aval((), out.aval.dtype)), contiguous(out, out.aval.shape), out
            )
            return True
        rows, columns = (prod([v.aval.shape[i] for i in f]) for v, f in zip((x, y), free, strict=True))
        if 0 in (size, rows, columns, depth):  # BLAS would leave the result as it is, or write where nothing is
            zero = Literal(out.aval.dtype.type(0), make_aval((), out.aval.dtype))
            self._fill(zero, contiguous(out, out.aval.shape), out)
            return True
        left = self._matrix(x, (*batch[0], *free[0], *contract[0]), (size, rows, depth))
        right = self._matrix(y, (*batch[1], *contract[1], *free[1]), (size, depth, columns))
        whole = contiguous(out, (size, rows, columns))
        needed = self.writers.get(left.root, 0) | self.writers.get(right.root, 0)
        k = self._new(Product(out.aval.dtype, left, right, whole), needed)
        self._define(out, k)
        return True

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
            view = view_of(e, self.views[x])
            if view is not None:
                self.views[out] = view
            elif name == "reshape":  # the elements in another order: written in the order of the result
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
        for start, stop, value in e.params["boxes"]:
            box = whole.sliced(start, stop, (1,) * len(start))
            self.write(Write(Literal(value, make_aval(box.shape, out.aval.dtype)), box), out)
        filled = self.writers[out]
        for line, (offset, step) in zip(e.inputs, e.params["places"], strict=True):
            self.write(Write(line, View(out, line.aval.shape, offset, (step,))), out, filled)

    def write(self, write: Write, out: Var, after: int = 0) -> None:
        """Store a value into (a part of) the buffer of `out`, after kernels (as bits) that write to the same places."""
        k = self.join(write.target.shape, (write.value,), (), after)
        self._loop(k).writes.append(write)
        self.views.setdefault(out, contiguous(out, out.aval.shape))
        self.writers[out] = self.writers.get(out, 0) | 1 << k
        self.buffers[out] = out.aval.shape

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
        self.views[out] = contiguous(out, out.aval.shape)
        self.buffers[out] = out.aval.shape
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

    def _new(self, kernel: Kernel, dependencies: int) -> int:
        k = len(self.kernels)
        self.kernels.append(kernel)
        self.after.append(self._closed(dependencies) | 1 << k)
        return k

    def _closed(self, bits: int) -> int:
        out = bits
        while bits:
            lowest = bits & -bits
            out |= self.after[lowest.bit_length() - 1]
            bits ^= lowest
        return out

    def join(self, shape: Shape, atoms: Sequence[Atom], axes: tuple[int, ...] = (), after: int = 0) -> int:
        """The loop over `shape` in which something that reads `atoms` can run; a new one if there is none.

        Parameters
        ----------
        axes
            The axes of a reduction; all reductions of a loop are over the same axes.
        after
            Kernels (as bits) that must end before.
        """
        loops = self.loops.setdefault(shape, [])
        for k in reversed(loops[-CANDIDATES:]):
            loop = self._loop(k)
            if len(loop.equations) >= MAX_EQUATIONS:
                continue
            if axes and loop.axes and loop.axes != axes:
                continue
            outside = [a for a in atoms if not self._inside(a, k)]
            needed = self._closed(self._dependencies(outside) | after)
            if needed >> k & 1:
                continue
            for a in outside:
                self.store(a)
            self._depend(k, needed)
            return k
        for a in atoms:
            self.store(a)
        loops.append(self._new(Loop(shape), self._dependencies(atoms) | after))
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
        """For every output a root of its own, in C order, that is no input."""
        taken: set[Any] = set(self.program.inputs)
        out: list[Var] = []
        for a in self.program.outputs:
            if isinstance(a, Var):
                view = self.views[a]
                if view.root not in taken and view.is_contiguous and view.root.aval.size == a.aval.size:
                    self.store(a)
                    taken.add(view.root)
                    out.append(view.root)
                    continue
            root = Var(a.aval)
            self.write(Write(a, contiguous(root, a.aval.shape)), root)
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
