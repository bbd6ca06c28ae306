"""Which updates happen in place: copies of buffers that nobody reads again.

An update (a scatter, a window that is written) starts with a copy of its operand, and a loop with copies of what it
carries. Where the operand is a buffer of the program, and the copy is the last kernel that touches it, both are one
buffer, and there is no copy: a write at one place of a long array costs one write. Decided on the kernels in their
final order, so that the proof is a look at what they touch: the operand is neither an input nor a result, no kernel
after the copy reads or writes it, and none before the copy touches the buffer that it fills; a loop reads it as this
one carry only.
"""

from __future__ import annotations

from dataclasses import replace

from funcgrad.core.ir import Stack, Var
from funcgrad.lowering.kernels import Control, Kernel, Loop, Schedule, touched
from funcgrad.lowering.layout import View, contiguous


def share(s: Schedule, loops: bool = True) -> Schedule:
    """`s` without the copies that are not needed; those of carries stay if not `loops`."""
    copies = [
        (k, j, *pair)
        for k, kernel in enumerate(s.kernels)
        if loops or not isinstance(kernel, Control)
        for j, pair in _copied(kernel, s).items()
    ]
    if not copies:
        return s
    first: dict[Var, int] = {}
    last: dict[Var, int] = {}
    for k, kernel in enumerate(s.kernels):
        for root in touched(kernel, s.views):
            first.setdefault(root, k)
            last[root] = k
    results = set(s.outputs)
    shared: dict[Var, Var] = {}
    gone: dict[int, list[int]] = {}
    for k, j, x, out in reversed(copies):  # a chain of updates ends in one buffer: that of the last
        if x in s.buffers and x not in results and last[x] == k and first[out] == k:
            shared[x] = shared.get(out, out)
            gone.setdefault(k, []).append(j)
    kernels: list[Kernel] = []
    for k, kernel in enumerate(s.kernels):
        if isinstance(kernel, Control):
            kernels.append(replace(kernel, kept=frozenset(gone.get(k, ()))))
        elif k not in gone:
            kernels.append(kernel)
    return replace(s, kernels=kernels, shared=shared)


def _copied(kernel: Kernel, s: Schedule) -> dict[int, tuple[Var, Var]]:
    """The roots of operand and result of each whole buffer that a kernel copies, by number: the carries of a loop."""
    if isinstance(kernel, Control):
        return _carried(kernel, s)
    if not isinstance(kernel, Loop) or kernel.equations or kernel.reductions or len(kernel.writes) != 1:
        return {}
    (w,) = kernel.writes
    if not isinstance(w.value, Var) or w.starts or not _fills(s.views[w.value], w.target):
        return {}
    return {0: (s.views[w.value].root, w.target.root)}


def _carried(kernel: Control, s: Schedule) -> dict[int, tuple[Var, Var]]:
    """The carries of a loop that it reads as nothing else."""
    e = kernel.equation
    if e.primitive.traits.kind != "loop":
        return {}
    start = 1 + e.params["consts"]
    in_memory = lambda a: isinstance(a, Var) and not isinstance(a.aval, Stack)
    read = [s.views[a].root for a in e.inputs if in_memory(a)]
    found = {}
    for j, (a, out) in enumerate(zip(e.inputs[start : start + e.params["carry"]], e.outputs, strict=False)):
        if in_memory(a) and _fills(s.views[a], contiguous(out, out.aval.shape)) and read.count(s.views[a].root) == 1:
            found[j] = (s.views[a].root, out)
    return found


def _fills(source: View, target: View) -> bool:
    """Whether a whole buffer is copied into another of its type."""
    whole = source.is_contiguous and target.is_contiguous and source.root.aval.size == source.size == target.size
    return whole and target.root.aval.size == target.size and source.root.aval.dtype == target.root.aval.dtype
