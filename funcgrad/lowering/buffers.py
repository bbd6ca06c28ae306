"""The stage between kernels and code: where in the arena each buffer lies that is neither an input nor a result.

In: a schedule, and which buffers each kernel touches. Out: a `Layout`. A place is used again after the last kernel
that touches the buffer there, so an arena is as large as what is alive at the same time.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from funcgrad.lowering.kernels import Schedule
from funcgrad.lowering.nests import STATUS
from funcgrad.lowering.registers.stacks import in_memory

ALIGNMENT = 64  # bytes: a line of the cache, and the widest vector


@dataclass(frozen=True, slots=True)
class Place:
    """Where a buffer lies, and from which kernel to which it is needed.

    Attributes
    ----------
    offset
        From the start of the arena; a multiple of `ALIGNMENT`.
    bytes
        Of its elements; the place is that, rounded up to `ALIGNMENT`.
    """

    offset: int
    bytes: int
    first: int
    last: int

    @property
    def end(self) -> int:
        """The first offset behind it."""
        return self.offset + _rounded(self.bytes)

    def shares(self, other: Place) -> bool:
        """Whether the two have memory in common (at different times)."""
        return self.offset < other.end and other.offset < self.end


@dataclass(frozen=True, slots=True)
class Layout:
    """The arena of a Program: the place of every buffer in it, and its size in bytes."""

    places: dict[Any, Place]
    size: int


def layout(s: Schedule, touched: Sequence[Iterable[Any]], elsewhere: Iterable[Any], start: int = 0) -> Layout:
    """Places, from `start` on, for the buffers that `touched` names, kernel by kernel.

    Inputs, results and others with memory of their own are `elsewhere`. Outputs that are not stay to the end.
    """
    apart = {*elsewhere, STATUS}
    first: dict[Any, int] = {}
    last: dict[Any, int] = {}
    for k, roots in enumerate(touched):
        for r in roots:
            if r not in apart:
                first.setdefault(r, k)
                last[r] = k
    last |= {r: len(touched) for r in s.outputs if r in last}
    start = _rounded(start) if start else 0
    places: dict[Any, Place] = {}
    alive: list[Place] = []  # by their offsets
    for r in sorted(first, key=first.__getitem__):
        size = buffer_bytes(s, r)
        room = _rounded(size)
        alive = [p for p in alive if p.last >= first[r]]
        at = start
        for p in alive:
            if at + room <= p.offset:
                break
            at = max(at, p.end)
        places[r] = Place(at, size, first[r], last[r])
        insort(alive, places[r], key=lambda p: p.offset)
    return Layout(places, max([p.end for p in places.values()], default=start))


def buffer_bytes(s: Schedule, root: Any) -> int:
    """The size of the buffer of `root`, which may be an input."""
    held = in_memory(root.aval)
    return prod(s.buffers.get(root, held.shape)) * int(held.dtype.itemsize)


def _rounded(size: int) -> int:
    return -(-max(size, 1) // ALIGNMENT) * ALIGNMENT
