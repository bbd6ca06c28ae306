"""Donated arguments: which result goes into which, and whether it may be written there from the start.

`pair` looks at types alone: each result, in order, gets the first donated argument of its type that is not taken.
`in_place` looks at kernels: a kernel can touch only the buffers that it is given, so a result may lie in a donated
argument if no kernel is given the argument at or after the one that begins to write the result. There is one
exception: a loop that stores every index once, reads the argument at that very index, and reads it before it stores.

    a = mul w 0.5; b = sub w a       one loop: b may lie in w
    a = reverse w; b = add w a       index i is read when index n - 1 - i has been written: b is computed elsewhere
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from funcgrad.core.array import Array
from funcgrad.core.ir import Aval, Var
from funcgrad.lowering.entry_layout import exported
from funcgrad.lowering.kernels import Kernel, Loop, Schedule, Write
from funcgrad.lowering.layout import contiguous
from funcgrad.lowering.nests import KernelText
from funcgrad.lowering.pool import Block


def pair(inputs: Sequence[Aval], donated: Sequence[bool], outputs: Sequence[Aval]) -> tuple[int, ...]:
    """For each output the input whose memory it takes, or -1; empty if nothing is donated."""
    free = [i for i, (a, flag) in enumerate(zip(inputs, donated, strict=True)) if flag and not a.weak]
    out: list[int] = []
    for a in outputs:
        found = next((i for i in free if inputs[i].shape == a.shape and inputs[i].dtype == a.dtype), -1)
        if found >= 0:
            free.remove(found)
        out.append(found)
    return tuple(out) if any([i >= 0 for i in out]) else ()


class Touches(NamedTuple):
    """The buffers of a kernel, and whether it stores each index `once` (see `KernelText`)."""

    roots: tuple[Any, ...]
    once: bool


def in_place(s: Schedule, texts: Sequence[KernelText | Touches], result: Var, argument: Var) -> bool:
    """Whether the buffer of `result` may be that of `argument`; `texts` are those of the kernels."""
    touched = [k for k, t in enumerate(texts) if result in t.roots]
    if not touched:
        return False
    first = touched[0]
    if any([argument in t.roots for t in texts[first + 1 :]]):
        return False
    if argument not in texts[first].roots:
        return True
    kernel = s.kernels[first]
    return isinstance(kernel, Loop) and texts[first].once and _reads_first(s, kernel, result, argument)


def updates(kernel: Kernel, results: set[Var]) -> bool:
    """Whether a kernel should store each index once, so that donated `results` may lie in what it reads.

    Not if it has checks: where vectors overlap they would look at values that are overwritten already.
    """
    if not isinstance(kernel, Loop) or any([e.primitive.traits.kind == "check" for e in kernel.equations]):
        return False
    return any([w.target.root in results for w in kernel.writes])


def _reads_first(s: Schedule, loop: Loop, result: Var, argument: Var) -> bool:
    """Whether the loop reads `argument` only at the index that it writes to, and before it does."""
    stores = [k for k, w in enumerate(loop.writes) if w.target.root is result]
    if (
        len(stores) != 1
        or any([w.starts for w in loop.writes])
        or loop.writes[stores[0]].target != contiguous(result, loop.shape)
    ):
        return False
    before: list[Any] = []
    elsewhere: list[Any] = []  # read at computed places
    after: list[Any] = [w.value for w in loop.writes[stores[0] + 1 :]]
    for e in loop.equations:
        if e.primitive.traits.kind in ("gather", "window"):
            elsewhere.append(e.inputs[0])
            before += e.inputs[1:]
        else:
            before += e.inputs
    before += [w.value for w in loop.writes[: stores[0] + 1]]
    after += [a for e in loop.reductions for a in e.inputs]
    computed = {v for e in loop.equations for v in e.outputs}
    reads = lambda atoms: {a for a in atoms if isinstance(a, Var) and a not in computed and s.views[a].root is argument}
    here = contiguous(argument, loop.shape)
    early, late = reads(before), reads(after)
    return not reads(elsewhere) and late <= early and all([s.views[a] == here for a in early])


def copied(result: Var) -> tuple[Loop, Var]:
    """A loop that copies a finished result, and the buffer that it fills."""
    target = Var(result.aval)
    shape = result.aval.shape
    return Loop(shape, writes=[Write(result, contiguous(target, shape))]), target


def may_overwrite(x: Any, leaves: Sequence[Any]) -> bool:
    """Whether a donated argument may hold a result: it owns its memory, and shares it with no other leaf.

    Native entries decide the same way.
    """
    if type(x) not in (np.ndarray, Array) or exported(x):
        return False
    owns = x.flags.owndata or type(x.base) is Block
    good = owns and x.flags.writeable and x.flags.aligned and x.flags.c_contiguous and x.dtype.isnative
    return bool(good) and sum(x is y or (isinstance(y, np.ndarray) and np.may_share_memory(x, y)) for y in leaves) == 1
