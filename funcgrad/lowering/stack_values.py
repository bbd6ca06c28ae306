"""Stacks between Python and machine code.

In: a `Stacked`. Out: a block of integers, the stack and the descriptions of its levels, as `registers.stacks` lays
them out; and back. Machine code leaves a result in memory that the block owns, with the rows of each level in order.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from funcgrad.core.ir import Stack
from funcgrad.core.stacked import Stacked
from funcgrad.lowering import sanitize
from funcgrad.lowering.registers.stacks import DESCRIPTION, OWNED, ROWS, START, WORDS, depth_of
from funcgrad.lowering.sanitizer import BOUNDS

_free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(("free", ctypes.CDLL(None)))


def blank(aval: Stack) -> Any:
    """A block for a result."""
    return np.zeros(WORDS + DESCRIPTION * depth_of(aval), np.int64)


def lent(x: Stacked) -> tuple[Any, list[Any]]:
    """The block of a stack, and the arrays that it points to, which must live as long."""
    block = blank(x.aval)
    depth = depth_of(x.aval)
    place = lambda level: block.ctypes.data + 8 * (WORDS + DESCRIPTION * level)
    rows = [np.require(x.data, requirements=["C", "A"])]
    for level in range(depth - 1, 0, -1):
        count = x.counts[level]
        stacks = np.empty((len(count), WORDS), np.int64)
        stacks[:, 0], stacks[:, 1], stacks[:, 2] = place(level), np.cumsum(count) - count, count
        rows.insert(0, stacks)
    block[:WORDS] = place(0), 0, len(x)
    for level, r in enumerate(rows):
        at, size = WORDS + DESCRIPTION * level, r.nbytes // len(r) if len(r) else 0
        block[at : at + DESCRIPTION] = r.ctypes.data, size, len(r), len(r), 0
    if sanitize.ON:
        for memory in (block, *rows):
            BOUNDS.add_array(memory)
        for level in range(depth):
            BOUNDS.add(place(level), block.ctypes.data, block.ctypes.data + block.nbytes)
    return block, rows


def taken(block: Any, aval: Stack) -> Stacked:
    """The stack that machine code left in a block; its memory is given back with `release`."""
    depth = depth_of(aval)
    counts = [np.array([block[WORDS - 1]])]
    inner = aval
    for level in range(depth - 1):
        stacks = _rows(block, level, (WORDS,), np.dtype(np.int64))
        counts.append(stacks[:, WORDS - 1].copy())
        assert isinstance(inner.elem, Stack)
        inner = inner.elem
    data = _rows(block, depth - 1, inner.elem.shape, inner.elem.dtype)
    return Stacked(aval, data, tuple(counts))


def _rows(block: Any, level: int, shape: tuple[int, ...], dtype: Any) -> Any:
    """A copy of the rows of one level."""
    at = WORDS + DESCRIPTION * level
    out = np.empty((int(block[at + ROWS]), *shape), dtype)
    if out.nbytes:
        ctypes.memmove(out.ctypes.data, int(block[at + START]), out.nbytes)
    return out


def release(block: Any) -> None:
    """Free the memory that a block owns."""
    for address in block[WORDS + OWNED :: DESCRIPTION].tolist():
        _free(address)


__all__ = ["blank", "lent", "release", "taken"]
