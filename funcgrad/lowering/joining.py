"""Kernels in the making: where each value lies, which kernel comes after which, and what can run together.

`schedule` puts the equations of a Program into them one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from funcgrad.core.ir import Atom, Equation, Literal, Program, Shape, Stack, Var, can_raise
from funcgrad.lowering.kernels import Kernel, Loop, Write
from funcgrad.lowering.layout import View, contiguous
from funcgrad.lowering.registers.stacks import in_memory

CANDIDATES = 12  # loops over a space that an equation may join: the last ones
MAX_EQUATIONS = 120  # of one loop: register allocation is superlinear in the length of a body


class Joining:
    """The kernels of a Program so far.

    Attributes
    ----------
    views
        Where each value lies.
    buffers
        The shape of each buffer, by the root of the views of it.
    home
        The loop in which a value is computed elementwise.
    after
        For each kernel the set (as bits) of kernels that it comes after, itself included.
    writers, readers
        For each root the kernels (as bits) that fill its buffer, and that read it.
    effects, raising
        The kernels (as bits) with effects, and those that can raise.
    """

    def __init__(self, program: Program) -> None:
        self.views: dict[Var, View] = {v: contiguous(v, in_memory(v.aval).shape) for v in program.inputs}
        self.kernels: list[Kernel] = []
        self.loops: dict[Shape, list[int]] = {}
        self.after: list[int] = []
        self.home: dict[Var, int] = {}
        self.writers: dict[Var, int] = {}
        self.readers: dict[Var, int] = {}
        self.buffers: dict[Var, Shape] = {}
        self.effects = self.raising = 0

    # -- effects

    def before(self, e: Equation) -> int:
        """The kernels (as bits) before an equation with effects, or that can raise: effects stay in order."""
        if e.primitive.effects_of(e.params):
            return self.effects | self.raising
        return self.effects if can_raise(e) else 0

    def note(self, e: Equation, k: int) -> None:
        """Remember that equation `e` is in kernel `k`, if it has effects or can raise."""
        if e.primitive.effects_of(e.params):
            self.effects |= 1 << k
        if can_raise(e):
            self.raising |= 1 << k

    # -- values

    def compute(self, e: Equation, k: int) -> None:
        """An equation of loop `k`, with its result in registers until something else needs it."""
        (out,) = e.outputs
        self.loop(k).equations.append(e)
        self.home[out] = k
        self.views[out] = contiguous(out, out.aval.shape)
        self.writers[out] = 1 << k

    def write(self, write: Write, out: Var, after: int = 0) -> None:
        """Store a value into (a part of) the buffer of `out`, after kernels (as bits) that write to the same places."""
        positions = [s.position for s in write.starts]
        k = self.join(write.target.shape, (write.value,), (), after, positions)
        self.loop(k).writes.append(write)
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
                self.loop(k).writes.append(Write(root, self.views[root]))
                self.buffers[root] = root.aval.shape

    def define(self, out: Var, k: int) -> None:
        """`out` is stored by kernel `k` as a whole."""
        shape = in_memory(out.aval).shape
        self.views[out] = contiguous(out, shape)
        self.buffers[out] = shape
        self.writers[out] = 1 << k

    def in_order(self, a: Atom, constants: bool = False) -> Atom:
        """A value that lies in memory in C order: itself, or a copy; `constants` lie nowhere unless it says so."""
        if not isinstance(a, Literal):
            self.store(a)
            view = self.views[a]
            if isinstance(a.aval, Stack) or replace(view, offset=0) == contiguous(view.root, a.aval.shape):
                return a
        elif not constants:
            return a
        copy = Var(a.aval)
        self.write(Write(a, contiguous(copy, a.aval.shape)), copy)
        return copy

    # -- joining

    def loop(self, k: int) -> Loop:
        """Kernel `k`, which is a loop."""
        loop = self.kernels[k]
        assert isinstance(loop, Loop)
        return loop

    def dependencies(self, atoms: Sequence[Atom]) -> int:
        """The kernels (as bits) that must end before one that reads `atoms` from memory."""
        bits = 0
        for a in atoms:
            if isinstance(a, Var):
                bits |= self.writers.get(self.views[a].root, 0)
        return bits

    def new(self, kernel: Kernel, atoms: Sequence[Atom], after: int = 0) -> int:
        """A kernel that reads `atoms` from memory, after the kernels `after` (as bits)."""
        for a in atoms:
            self.store(a)
        k = len(self.kernels)
        self.kernels.append(kernel)
        self.after.append(self._closed(self.dependencies(atoms) | after) | 1 << k)
        self.read(k, atoms)
        return k

    def read(self, k: int, atoms: Sequence[Atom]) -> None:
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
            loop = self.loop(k)
            if len(loop.equations) >= MAX_EQUATIONS:
                continue
            if axes and loop.axes and loop.axes != axes:
                continue
            outside = [*[a for a in atoms if not self._inside(a, k)], *elsewhere]
            needed = self._closed(self.dependencies(outside) | after)
            if needed >> k & 1:
                continue
            for a in outside:
                self.store(a)
            self._depend(k, needed)
            self.read(k, outside)
            return k
        loops.append(self.new(Loop(shape), (*atoms, *elsewhere), after))
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
