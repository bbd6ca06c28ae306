"""What runs: the kernels of a Program, and where its values lie.

A `Loop` is one pass over an iteration space with any number of elementwise operations, reductions and results; a
`Walk` is a pass whose order matters, along one axis; a `Scatter` changes a buffer at computed places, one after the
other; a `Product` is a matrix product; a `Control` kernel is a loop or branch with bodies of its own, or a call of
foreign code; a `Library` kernel is one equation without a native form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from funcgrad.base.dtypes import Dtype
from funcgrad.core.ir import Atom, Equation, Shape, Var
from funcgrad.lowering.layout import View


@dataclass(frozen=True, slots=True)
class Start:
    """Where a window begins along one axis: at `position`, moved into ``0 ... last``; `stride` elements apart."""

    position: Atom
    last: int
    stride: int


def starts_of(positions: Sequence[Atom], view: View, sizes: Shape) -> tuple[Start, ...]:
    """The starts of a window of shape `sizes` along the axes of `view`; where it cannot move there is none."""
    axes = zip(positions, view.shape, sizes, view.strides, strict=True)
    return tuple([Start(p, n - k, s) for p, n, k, s in axes if k < n])


@dataclass(frozen=True, slots=True)
class Write:
    """Store `value` (at the same index of the iteration space) into a view of a buffer, moved by `starts`."""

    value: Atom
    target: View
    starts: tuple[Start, ...] = ()


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
class Walk:
    """Cumulative operations along one axis of an iteration space: each step needs the one before.

    Attributes
    ----------
    shape
        The iteration space.
    axis, reverse
        The axis, and whether it is walked from the last element to the first.
    equations
        Independent of each other; their operands and results are in memory.
    """

    shape: Shape
    axis: int
    reverse: bool
    equations: list[Equation] = field(default_factory=list)


@dataclass(slots=True)
class Scatter:
    """Change `target`, the whole of a buffer, at computed places, in C order of the updates.

    The operands of the equation are the updates, and the indices spread over their shape.
    """

    equation: Equation
    target: View


@dataclass(slots=True)
class Library:
    """One equation that is lowered as a whole."""

    equation: Equation


@dataclass(slots=True)
class Control:
    """A loop or branch, another operation on stacks, or a call of foreign code, with operands in C order in memory.

    `kept` are the carries of a loop that begin where their results are to be: they are not copied there.
    """

    equation: Equation
    kept: frozenset[int] = frozenset()


Kernel = Loop | Product | Walk | Scatter | Library | Control


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
    shared
        For some roots another one whose memory they are (see `inplace`).
    """

    kernels: list[Kernel]
    views: dict[Var, View]
    buffers: dict[Var, Shape]
    outputs: list[Var]
    shared: dict[Var, Var] = field(default_factory=dict)


def axes_of(e: Equation) -> tuple[int, ...]:
    """The axes of a reduction."""
    return e.params["axes"] if "axes" in e.params else (e.params["axis"],)


def window_of(e: Equation, view: View) -> tuple[Start, ...]:
    """Where a dynamic slice of `view` starts."""
    return starts_of(e.inputs[1:], view, e.params["sizes"])


def reads_of(kernel: Kernel) -> list[Atom]:
    """What a kernel other than a product reads from memory."""
    if isinstance(kernel, Scatter | Library | Control):
        return list(kernel.equation.inputs)
    if isinstance(kernel, Walk):
        return [a for e in kernel.equations for a in e.inputs]
    assert isinstance(kernel, Loop)
    computed = {v for e in kernel.equations for v in e.outputs}
    atoms = [a for e in (*kernel.equations, *kernel.reductions) for a in e.inputs]
    atoms += [a for w in kernel.writes for a in (w.value, *[s.position for s in w.starts])]
    return [a for a in atoms if a not in computed]


def writes_of(kernel: Kernel) -> list[Var]:
    """The roots of the buffers that a kernel writes into."""
    if isinstance(kernel, Product):
        return [kernel.out.root]
    if isinstance(kernel, Scatter):
        return [kernel.target.root]
    if isinstance(kernel, Library | Control):
        return list(kernel.equation.outputs)
    if isinstance(kernel, Walk):
        return [v for e in kernel.equations for v in e.outputs]
    return [*[w.target.root for w in kernel.writes], *[v for e in kernel.reductions for v in e.outputs]]


def touched(kernel: Kernel, views: dict[Var, View]) -> set[Var]:
    """The roots of all buffers that a kernel reads or writes."""
    if isinstance(kernel, Product):
        return {kernel.x.root, kernel.y.root, kernel.out.root}
    return {*[views[a].root for a in reads_of(kernel) if isinstance(a, Var)], *writes_of(kernel)}
