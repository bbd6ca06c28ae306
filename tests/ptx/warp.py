"""Instructions of a warp: shuffles, votes, matches, reductions, and which lanes are active."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.ptx.arithmetic import dtype
from tests.ptx.errors import InactiveLane
from tests.ptx.parse import Reg, Sink, Vec
from tests.ptx.registers import Get, Scope, reader, writer

Array = Any
Run = Callable[[Any, Any], None]


def shuffle(scope: Scope, place: int) -> Run:
    """``shfl.sync``: the value of another lane."""
    i = scope.instruction
    assert i is not None
    found = re.fullmatch(r"shfl\.sync\.(up|down|bfly|idx)\.b32", i.opcode)
    if not found or len(i.operands) != 5:
        raise scope.unknown("unknown instruction")
    first = i.operands[0]
    results = list(first.items) if isinstance(first, Vec) else [first, Sink()]
    put, put_inside = writer(scope, results[0], "b32"), writer(scope, results[1], "pred")
    value, b, c, mask = (reader(scope, o, "b32") for o in i.operands[1:])
    mode = found[1]

    def exchange(m: Any, threads: Any) -> None:
        lane = m.lane[threads]
        by, clamp = (np.asarray(get(m, threads)).astype(np.int64) for get in (b, c))
        by, segment, bound = by & 31, clamp >> 8 & 31, clamp & 31
        low = lane & segment
        high = low | bound & ~segment
        j = {"up": lane - by, "down": lane + by, "bfly": lane ^ by, "idx": low | by & ~segment}[mode]
        inside = j >= high if mode == "up" else j <= high
        j = np.where(inside, j, lane)
        absent = (m.masks[threads] >> j.astype(np.uint32) & np.uint32(1)) == 0
        if absent.any():
            bad = m.some(threads, absent)
            m.fail(InactiveLane, f"reads from lane {int(j[np.flatnonzero(absent)[0]])}, which takes no part", bad)
        source = m.numbers(threads) - lane + j
        got = np.asarray(value(m, source))
        put(m, threads, np.broadcast_to(got, j.shape).copy())
        put_inside(m, threads, inside)

    return lambda m, threads: m.meet(threads, mask(m, threads), exchange)


def together(m: Any, threads: Any, value: Array, join: Any, start: Any) -> Array:
    """For each thread the values of those lanes of its warp that have its mask, joined."""
    value = np.broadcast_to(value, (m.size(threads),))
    group = m.clock.warp[threads].astype(np.int64) << 32 | m.masks[threads]
    _, inverse = np.unique(group, return_inverse=True)
    out = np.full(inverse.max() + 1, start, np.asarray(value).dtype)
    join.at(out, inverse, value)
    return out[inverse]


def lanes_where(m: Any, threads: Any, condition: Array) -> Array:
    """The lanes for which a condition holds, as bits."""
    condition = np.broadcast_to(condition, (m.size(threads),))
    bits = np.where(condition, np.uint32(1) << m.lane[threads].astype(np.uint32), np.uint32(0))
    return together(m, threads, bits, np.bitwise_or, 0)


def vote(scope: Scope, place: int) -> Run:
    """``vote.sync``: a truth value of all lanes."""
    i = scope.instruction
    assert i is not None
    found = re.fullmatch(r"vote\.sync\.(?:(all|any|uni)\.pred|(ballot)\.b32)", i.opcode)
    if not found or len(i.operands) != 3:
        raise scope.unknown("unknown instruction")
    mode = found[1] or found[2]
    put = writer(scope, i.operands[0], "b32" if mode == "ballot" else "pred")
    condition, mask = reader(scope, i.operands[1], "pred"), reader(scope, i.operands[2], "b32")

    def count(m: Any, threads: Any) -> None:
        bits = lanes_where(m, threads, condition(m, threads))
        every = m.masks[threads]
        values = {"any": bits != 0, "all": bits == every, "uni": (bits == 0) | (bits == every), "ballot": bits}
        put(m, threads, values[mode])

    return lambda m, threads: m.meet(threads, mask(m, threads), count)


def match(scope: Scope, place: int) -> Run:
    """``match.sync``: the lanes that have the same value."""
    i = scope.instruction
    assert i is not None
    found = re.fullmatch(r"match\.(any|all)\.sync\.(b32|b64)", i.opcode)
    if not found or len(i.operands) != 3:
        raise scope.unknown("unknown instruction")
    first = i.operands[0]
    results = list(first.items) if isinstance(first, Vec) else [first, Sink()]
    put, put_same = writer(scope, results[0], "b32"), writer(scope, results[1], "pred")
    value, mask = reader(scope, i.operands[1], found[2]), reader(scope, i.operands[2], "b32")

    def compare(m: Any, threads: Any) -> None:
        x = np.broadcast_to(value(m, threads), (m.size(threads),))
        group = m.clock.warp[threads].astype(np.int64) << 32 | m.masks[threads]
        _, kinds = np.unique(np.stack([group.astype(np.uint64), x.astype(np.uint64)]), axis=1, return_inverse=True)
        bits = np.zeros(kinds.max() + 1, np.uint32)
        np.bitwise_or.at(bits, kinds.ravel(), np.uint32(1) << m.lane[threads].astype(np.uint32))
        equal = bits[kinds.ravel()]
        same = equal == m.masks[threads]
        put(m, threads, equal if found[1] == "any" else np.where(same, equal, np.uint32(0)))
        put_same(m, threads, same)

    return lambda m, threads: m.meet(threads, mask(m, threads), compare)


JOIN = {
    "add": (np.add, 0, 0), "and": (np.bitwise_and, -1, -1), "or": (np.bitwise_or, 0, 0), "xor": (np.bitwise_xor, 0, 0),
    "min": (np.minimum, 2**32 - 1, 2**31 - 1), "max": (np.maximum, 0, -(2**31)),
}  # fmt: skip


def redux(scope: Scope, place: int) -> Run:
    """``redux.sync``: a reduction of integers over the lanes."""
    i = scope.instruction
    assert i is not None
    found = re.fullmatch(r"redux\.sync\.(?:(add|min|max)\.([us]32)|(and|or|xor)\.(b32))", i.opcode)
    if not found or len(i.operands) != 3:
        raise scope.unknown("unknown instruction")
    name, type = found[1] or found[3], found[2] or found[4]
    join, unsigned, signed = JOIN[name]
    start = np.array(signed if type == "s32" else unsigned & 0xFFFFFFFF, dtype(type))
    put, value, mask = (
        writer(scope, i.operands[0], type), reader(scope, i.operands[1], type), reader(scope, i.operands[2], "b32")
    )  # fmt: skip
    reduce = lambda m, threads: put(m, threads, together(m, threads, value(m, threads), join, start))
    return lambda m, threads: m.meet(threads, mask(m, threads), reduce)


def active(scope: Scope, place: int) -> Run:
    """``activemask``: the lanes that execute it together."""
    i = scope.instruction
    assert i is not None
    if i.opcode != "activemask.b32" or len(i.operands) != 1 or not isinstance(i.operands[0], Reg):
        raise scope.unknown("unknown instruction")
    put = writer(scope, i.operands[0], "b32")

    def run(m: Any, threads: Any) -> None:
        m.masks[threads] = 0
        put(m, threads, lanes_where(m, threads, np.True_))

    return run


Meet = Callable[[Any, Any], None]
Mask = Get
BUILDERS = {"shfl": shuffle, "vote": vote, "match": match, "redux": redux, "activemask": active}
