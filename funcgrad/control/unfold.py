"""Calls, branches and loops with effects, spelled out where values are known.

Under an eager derivative an effect happens where it stands, once. What holds effects is therefore not recorded as one
operation, which its derivative would run again, but as what it does: a loop as its trips, a branch as the one chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from funcgrad.control.assemble import apply
from funcgrad.control.branch import branch_p
from funcgrad.control.call import call_p
from funcgrad.control.loop import loop_p
from funcgrad.core.ir import Aval, Program, Stack, make_aval
from funcgrad.core.trace import value_of
from funcgrad.ops.broadcasting import reshape
from funcgrad.ops.movement import concatenate, slice_
from funcgrad.ops.op import constant


def _call(*args: Any, program: Program) -> Sequence[Any]:
    return apply(program, *args)


def _branch(index: Any, *args: Any, branches: tuple[Program, ...]) -> Sequence[Any]:
    return apply(branches[min(max(int(value_of(index)), 0), len(branches) - 1)], index, *args)


def _loop(
    n: Any, *args: Any, body: Program, consts: int, carry: int, length: int | None, test: bool, reverse: bool
) -> Sequence[Any] | None:
    cs, ks, xs = args[:consts], list(args[consts : consts + carry]), args[consts + carry :]
    elems = body.out_avals[carry:]
    if (length is None and elems) or any([isinstance(a, Stack) for a in (*elems, *[x.aval for x in xs])]):
        return None
    trips = int(value_of(n))
    ys: list[list[Any]] = [[] for _ in elems]
    i = trips - 1 if reverse else 0
    while 0 <= i < trips and (not test or value_of(ks[0])):
        out = apply(body, np.int64(i), *cs, *ks, *[_row(x, i) for x in xs])
        ks = out[:carry]
        for y, value in zip(ys, out[carry:], strict=True):
            y.append(value)
        i += -1 if reverse else 1
    return [*ks, *[_rows(y[::-1] if reverse else y, elem) for y, elem in zip(ys, elems, strict=True)]]


def _row(x: Any, i: int) -> Any:
    shape = x.aval.shape[1:]
    return reshape(slice_(x, (i, *[0] * len(shape)), (i + 1, *shape), (1,) * (len(shape) + 1)), shape)


def _rows(values: list[Any], elem: Aval) -> Any:
    if not values:
        return constant(0, make_aval((0, *elem.shape), elem.dtype))
    return concatenate([reshape(v, (1, *elem.shape)) for v in values], 0)


call_p.unfold = _call
branch_p.unfold = _branch
loop_p.unfold = _loop
