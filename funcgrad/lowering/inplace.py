"""Which updates happen in place: copies of buffers that nobody reads again.

An update (a scatter, a window that is written) starts with a copy of its operand. Where the operand is a buffer of
the program, and the copy is the last kernel that touches it, both are one buffer, and there is no copy: a write at one
place of a long array costs one write. Decided on the kernels in their final order, so that the proof is a look at
what they touch: the operand is neither an input nor a result, no kernel after the copy reads or writes it, and none
before the copy touches the buffer that it fills.
"""

from __future__ import annotations

from dataclasses import replace

from funcgrad.core.ir import Var
from funcgrad.lowering.kernels import Kernel, Loop, Schedule, touched


def share(s: Schedule) -> Schedule:
    """`s` without the copies that are not needed."""
    copies = {k: pair for k, kernel in enumerate(s.kernels) if (pair := _copied(kernel, s)) is not None}
    if not copies:
        return s
    first: dict[Var, int] = {}
    last: dict[Var, int] = {}
    for k, kernel in enumerate(s.kernels):
        for root in touched(kernel, s.views):
            first.setdefault(root, k)
            last[root] = k
    results = set(s.outputs)
    gone = {
        k: (x, out)
        for k, (x, out) in copies.items()
        if x in s.buffers and x not in results and last[x] == k and first[out] == k
    }
    shared: dict[Var, Var] = {}
    for _, (x, out) in sorted(gone.items(), reverse=True):  # a chain of updates ends in one buffer: that of the last
        shared[x] = shared.get(out, out)
    kernels = [kernel for k, kernel in enumerate(s.kernels) if k not in gone]
    return replace(s, kernels=kernels, shared=shared)


def _copied(kernel: Kernel, s: Schedule) -> tuple[Var, Var] | None:
    """The roots of operand and result, if all that a kernel does is to copy a whole buffer."""
    if not isinstance(kernel, Loop) or kernel.equations or kernel.reductions or len(kernel.writes) != 1:
        return None
    (w,) = kernel.writes
    if not isinstance(w.value, Var) or w.starts:
        return None
    source, target = s.views[w.value], w.target
    whole = source.is_contiguous and target.is_contiguous and source.root.aval.size == source.size == target.size
    if not whole or target.root.aval.size != target.size or source.root.aval.dtype != target.root.aval.dtype:
        return None
    return source.root, target.root
