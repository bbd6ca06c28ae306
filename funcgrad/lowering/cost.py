"""What each kernel does: floating-point operations, and the bytes it reads and writes, counted from the schedule.

In: a scheduled kernel. Out: its distinct `Access`es of memory, its number of operations, and with a time measured
elsewhere one row of a `Cost`. Nothing is compiled or run here.

    >>> row = KernelCost("k", "loop (4,)", ("f.py:1",), flops=8, bytes_read=64, bytes_written=32)
    >>> round(row.intensity, 3)
    0.083
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from funcgrad.base.dtypes import Dtype
from funcgrad.core.ir import Atom, Equation, Shape, Var
from funcgrad.lowering.kernels import Kernel, Loop, Product, Scatter, Schedule, Walk, reads_of, writes_of
from funcgrad.lowering.layout import View, contiguous
from funcgrad.lowering.registers.stacks import in_memory

ELEMENTARY = 30
"""Nominal operations of an elementary function such as exp: about what its polynomial takes."""


@dataclass(frozen=True, slots=True)
class Access:
    """One way in which a kernel reads or writes a buffer.

    Attributes
    ----------
    root
        The buffer.
    bytes : int
        Of the elements that are touched, each counted once: an operand that is repeated counts as often as it is
        stored. Reads at traced positions count one element per position, whichever these are.
    """

    root: Any
    bytes: int
    written: bool


def accesses(kernel: Kernel, s: Schedule) -> tuple[Access, ...]:
    """The distinct accesses of a kernel, reads first. Two views of a buffer are two accesses."""
    found: dict[Any, Access] = {}

    def note(view: View, dtype: Dtype, written: bool = False) -> None:
        place = tuple([(n, step) for n, step in zip(view.shape, view.strides, strict=True) if n != 1 and step])
        key = (view.root, view.offset, place, written)
        found.setdefault(key, Access(view.root, _touched(view) * dtype.itemsize, written))

    if isinstance(kernel, Loop):
        computed = {v for e in kernel.equations for v in e.outputs}
        for e in (*kernel.equations, *kernel.reductions):
            operands: Sequence[Atom] = e.inputs
            if e.primitive.traits.kind in ("gather", "window"):
                x, *operands = e.inputs
                if isinstance(x, Var):
                    size = prod(e.outputs[0].aval.shape) * x.aval.dtype.itemsize
                    found[e] = Access(s.views[x].root, size, False)
            for a in operands:
                if isinstance(a, Var) and a not in computed:
                    note(s.views[a], a.aval.dtype)
        for w in kernel.writes:
            for a in (w.value, *[start.position for start in w.starts]):
                if isinstance(a, Var) and a not in computed:
                    note(s.views[a], a.aval.dtype)
        for w in kernel.writes:
            note(w.target, w.value.aval.dtype, True)
        for e in kernel.reductions:
            note(contiguous(e.outputs[0], e.outputs[0].aval.shape), e.outputs[0].aval.dtype, True)
    elif isinstance(kernel, Product):
        note(kernel.x, kernel.dtype)
        note(kernel.y, kernel.dtype)
        note(kernel.out, kernel.dtype, True)
    elif isinstance(kernel, Scatter):
        updates = kernel.equation.inputs[0].aval
        changed = updates.size * updates.dtype.itemsize
        for a in kernel.equation.inputs:
            if isinstance(a, Var):
                note(s.views[a], a.aval.dtype)
        if kernel.equation.primitive.combine is not None:
            found["old"] = Access(kernel.target.root, changed, False)
        found["new"] = Access(kernel.target.root, changed, True)
    else:
        for a in reads_of(kernel):
            if isinstance(a, Var):
                held = in_memory(a.aval)
                note(s.views.get(a) or contiguous(a, held.shape), held.dtype)
        for v in writes_of(kernel):
            held = in_memory(v.aval)
            note(contiguous(v, held.shape), held.dtype, True)
    return tuple(found.values())


def _touched(view: View) -> int:
    """Elements of the buffer that a view shows."""
    if 0 in view.shape:
        return 0
    return prod([n for n, step in zip(view.shape, view.strides, strict=True) if step])


def operations(e: Equation, shape: Shape) -> int:
    """Floating-point operations of one equation; those of integers, and choosing and moving, count nothing.

    Parameters
    ----------
    shape
        The space that it runs over, if it is elementwise or a reduction.
    """
    if not any([a.aval.dtype.kind in "fc" for a in (*e.inputs, *e.outputs)]):
        return 0
    p = e.primitive
    kind = p.traits.kind
    if kind == "elementwise":
        each = p.flops if p.flops is not None else 1 if p.traits.exact else ELEMENTARY
        return prod(shape) * each
    if kind in ("reduce", "argreduce", "cumulative", "scatter"):
        return e.inputs[0].aval.size
    if kind == "dot":
        depth = prod([e.inputs[0].aval.shape[i] for i in e.params["contract"][0]])
        return (2 if e.params["contract"][0] else 1) * depth * e.outputs[0].aval.size
    return 0


def flops(kernel: Kernel) -> int:
    """Floating-point operations of a kernel; a compensated sum counts as one addition per element."""
    if isinstance(kernel, Loop):
        return sum([operations(e, kernel.shape) for e in (*kernel.equations, *kernel.reductions)])
    if isinstance(kernel, Product):
        return 2 * prod(kernel.x.shape) * kernel.y.shape[2]
    if isinstance(kernel, Walk):
        return sum([operations(e, kernel.shape) for e in kernel.equations])
    return operations(kernel.equation, kernel.equation.outputs[0].aval.shape)


def kind_of(kernel: Kernel) -> str:
    """What a kernel is, and over which space."""
    if isinstance(kernel, Loop):
        return f"loop {kernel.shape}"
    if isinstance(kernel, Walk):
        return f"walk {kernel.shape} along axis {kernel.axis}"
    if isinstance(kernel, Scatter):
        return f"scatter {kernel.equation.inputs[0].aval.shape}"
    if isinstance(kernel, Product):
        batch, rows, depth = kernel.x.shape
        return f"product {f'{batch} x ' if batch > 1 else ''}({rows},{depth}) @ ({depth},{kernel.y.shape[2]})"
    return kernel.equation.primitive.name


def lines_of(kernel: Kernel, made_by: dict[Any, Equation]) -> tuple[str, ...]:
    """The user's lines that a kernel comes from; `made_by` has the equation of every value of the Program."""
    if isinstance(kernel, Loop):
        equations = [*kernel.equations, *kernel.reductions]
        for w in kernel.writes:  # movement has no equation in the loop that does it
            equations += [made_by[v] for v in (w.target.root, w.value) if v in made_by]
    elif isinstance(kernel, Walk):
        equations = kernel.equations
    elif isinstance(kernel, Product):
        equations = [made_by[v] for v in (kernel.out.root,) if v in made_by]
    else:
        equations = [kernel.equation]
    return tuple(dict.fromkeys([str(e.source) for e in equations if e.source is not None]))


@dataclass(frozen=True, slots=True)
class KernelCost:
    """One kernel of a `Cost`, or all of them together.

    Attributes
    ----------
    name
        ``"kernel 0"`` as in stage ``"kernels"`` of `show`; ``"numpy 1"`` where NumPy does the work.
    kind
        ``"loop (8, 3)"``, ``"product (8,4) @ (4,3)"``, or the operation that NumPy does.
    lines
        The user's lines, ``"train.py:7"``.
    flops
        Floating-point operations, nominal: 1 for arithmetic, comparisons and rounding, 2 for a step of a matrix
        product, 30 for an elementary function such as exp, 1 per element of a reduction (compensation is not
        counted), 0 for choosing, converting and moving, and for integers.
    bytes_read, bytes_written
        Each element that an access touches counts once, however often it is repeated; two views of one buffer
        (``x[1:]`` and ``x[:-1]``) are two accesses. Values that stay in registers are no accesses.
    microseconds
        One run of the kernel by itself, with its operands in whatever cache they fit into; None if not measured.
    """

    name: str
    kind: str
    lines: tuple[str, ...]
    flops: int
    bytes_read: int
    bytes_written: int
    microseconds: float | None = None

    @property
    def intensity(self) -> float:
        """Operations per byte that is read or written; 0 where nothing is."""
        return self.flops / (self.bytes_read + self.bytes_written) if self.bytes_read + self.bytes_written else 0.0

    @property
    def gigabytes_per_second(self) -> float | None:
        """Bytes read and written, by time; None if not measured."""
        return self._per_nanosecond(self.bytes_read + self.bytes_written)

    @property
    def gigaflops(self) -> float | None:
        """Operations by time, in 10⁹ per second; None if not measured."""
        return self._per_nanosecond(self.flops)

    def _per_nanosecond(self, amount: int) -> float | None:
        return amount / (1e3 * self.microseconds) if self.microseconds else None


@dataclass(frozen=True, repr=False)
class Cost:
    """What `funcgrad.cost` returns; prints as a table, and iterates over its kernels.

    Attributes
    ----------
    kernels
        In the order in which they run.
    """

    kernels: tuple[KernelCost, ...]

    @property
    def total(self) -> KernelCost:
        """The sums over all kernels."""
        times = [k.microseconds for k in self.kernels]
        return KernelCost(
            "total",
            "",
            (),
            sum([k.flops for k in self.kernels]),
            sum([k.bytes_read for k in self.kernels]),
            sum([k.bytes_written for k in self.kernels]),
            None if None in times else sum(times, 0.0),
        )

    def __iter__(self) -> Iterator[KernelCost]:
        return iter(self.kernels)

    def __len__(self) -> int:
        return len(self.kernels)

    def __getitem__(self, i: int) -> KernelCost:
        return self.kernels[i]

    def __repr__(self) -> str:
        measured = self.total.microseconds is not None
        head = ["kernel", "", "flops", "read B", "written B", "flops/B", "µs", "GB/s", "GFLOP/s", "lines"]
        rows = [head, *[_cells(k) for k in (*self.kernels, self.total)]]
        shown = [i for i in range(len(head)) if measured or i not in (6, 7, 8)]
        widths = [max([len(r[i]) for r in rows]) for i in range(len(head))]
        left = (0, 1, 9)
        return "\n".join(
            ["  ".join([f"{r[i]:{'<' if i in left else '>'}{widths[i]}}" for i in shown]).rstrip() for r in rows]
        )


def _cells(k: KernelCost) -> list[str]:
    time, bandwidth, rate = (k.microseconds, k.gigabytes_per_second, k.gigaflops)
    numbers = [f"{k.flops:,}", f"{k.bytes_read:,}", f"{k.bytes_written:,}", f"{k.intensity:.3g}"]
    measured = ["" if x is None else f"{x:.3g}" if x < 1000 else f"{x:,.0f}" for x in (time, bandwidth, rate)]
    return [k.name, k.kind, *numbers, *measured, ", ".join(_joined(k.lines))]


def _joined(lines: Iterable[str]) -> Iterator[str]:
    """Lines of one file together: ``train.py:7,9``."""
    files: dict[str, list[int]] = {}
    for line in lines:
        file, _, number = line.rpartition(":")
        files.setdefault(file, []).append(int(number))
    for file, numbers in files.items():
        yield f"{file}:{','.join([str(n) for n in sorted(numbers)])}"
