"""Calls, checkpoints, branches and loops with effects, spelled out where values are known.

Under an eager derivative an effect happens where it stands, once. What holds effects is therefore not recorded as one
operation, which its derivative would run again, but as what it does: a loop as its trips, a branch as the one chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from funcgrad.control.assemble import apply, zero
from funcgrad.control.branch import branch_p
from funcgrad.control.call import call_p
from funcgrad.control.checkpoint import checkpoint_p
from funcgrad.control.loop import loop_p
from funcgrad.control.rows import element_p, lanes
from funcgrad.core.ir import Aval, Program, Stack, make_aval, stack_of, tangent_aval
from funcgrad.core.primitive import Linear, Primitive, Traits
from funcgrad.core.stacked import stacked
from funcgrad.core.trace import bind, bind1, value_of
from funcgrad.ops.broadcasting import align, reshape
from funcgrad.ops.movement import concatenate, slice_
from funcgrad.ops.op import constant


def _call(*args: Any, program: Program, lowering: str = "llvm") -> Sequence[Any]:
    return apply(program, *args)


def _branch(index: Any, *args: Any, branches: tuple[Program, ...]) -> Sequence[Any]:
    return apply(branches[min(max(int(value_of(index)), 0), len(branches) - 1)], index, *args)


def _loop(
    n: Any,
    *args: Any,
    body: Program,
    consts: int,
    carry: int,
    length: int | None,
    test: bool,
    reverse: bool,
    snapshots: int,
) -> Sequence[Any]:
    cs, ks, xs = args[:consts], list(args[consts : consts + carry]), args[consts + carry :]
    elems = body.out_avals[carry:]
    trips = int(value_of(n))
    ys: list[list[Any]] = [[] for _ in elems]
    i = trips - 1 if reverse else 0
    while 0 <= i < trips and (not test or value_of(ks[0])):
        out = apply(body, np.int64(i), *cs, *ks, *[_row(x, i) for x in xs])
        ks = out[:carry]
        for y, value in zip(ys, out[carry:], strict=True):
            y.append(value)
        i += -1 if reverse else 1
    return [*ks, *[_rows(y[::-1] if reverse else y, elem, length) for y, elem in zip(ys, elems, strict=True)]]


def _row(x: Any, i: int) -> Any:
    if isinstance(x.aval, Stack):
        return bind1(element_p, x, np.int64(i))
    shape = x.aval.shape[1:]
    return reshape(slice_(x, (i, *[0] * len(shape)), (i + 1, *shape), (1,) * (len(shape) + 1)), shape)


def _rows(values: list[Any], elem: Aval, length: int | None) -> Any:
    if length is None or isinstance(elem, Stack):
        return bind1(collect_p, *values, elem=elem)
    if not values:
        return constant(0, make_aval((0, *elem.shape), elem.dtype))
    return concatenate([reshape(v, (1, *elem.shape)) for v in values], 0)


# -- stacks, one value at a time


collect_p = Primitive("stack_collect", Traits(kind="stack"), "The stack of some values of one type.")


def _collect_jvp(primal: Any, primals: Any, tangents: Any, *, elem: Aval) -> Any:
    dots = [zero(elem) if d is None else d for d in tangents]
    return primal(), (bind1(collect_p, *dots, elem=tangent_aval(elem)),)


def _collect_transpose(cts: Any, *args: Any, elem: Aval) -> Any:
    return [bind1(element_p, cts[0], np.int64(i)) if isinstance(a, Linear) else None for i, a in enumerate(args)]


def _collect_batch(size: int, args: Any, dims: Any, *, elem: Aval) -> Any:
    if not isinstance(elem, Stack):
        rows = [align(x, d, 0, size) for x, d in zip(args, dims, strict=True)]
        return bind(collect_p, *rows, elem=make_aval((size, *elem.shape), elem.dtype)), (0,)
    d, *others = dims
    if any([other != d for other in others]):
        return lanes(size, collect_p, args, dims, {"elem": elem})
    return bind(collect_p, *args, elem=args[0].aval), (d if d >= 0 else d - 1,)


collect_p.abstract = lambda *avals, elem: (stack_of(elem),)
collect_p.evaluate = lambda *values, elem: (stacked(values, elem),)
collect_p.jvp = _collect_jvp
collect_p.transpose = _collect_transpose
collect_p.batch = _collect_batch

call_p.unfold = _call
checkpoint_p.unfold = lambda *args, program, policy: apply(program, *args)
branch_p.unfold = _branch
loop_p.unfold = _loop
