"""What atomic operations order between threads, with fences around them.

A thread that passes a fence, and then writes a place atomically, releases what it did before: its own accesses up to
the fence, those of its block in the epochs before, and what it knew of others. A thread that reads that value
atomically, and then passes a fence, acquires this knowledge; a barrier hands it to its block. `.release` and
`.acquire` are the fence and the access in one. What nobody releases with a fence, or acquires without one, stays
unordered, though a processor may happen to deliver it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tests.ptx.checks import Kind
    from tests.ptx.races import Clock, Last

Array = Any
Known = dict[int, int]
"""Of thread t (key t) the accesses up to a step; of block b (key ~b) those in the epochs before one."""


def merge(into: Known, other: Known | None) -> None:
    """Add knowledge."""
    for key, value in (other or {}).items():
        if into.get(key, -1) < value:
            into[key] = value


class Order:
    """Who knows of which accesses, in one launch."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.fenced: dict[int, Known] = {}  # by thread: what its next atomic write releases
        self.released: dict[tuple[int, int], Known] = {}  # by place: what comes with its value
        self.pending: dict[int, Known] = {}  # by thread: read, and known after its next fence
        self.known: dict[int, Known] = {}  # by thread
        self.of_block: dict[int, Known] = {}  # by block: since its last barrier

    def _snapshot(self, thread: int, epoch: int, step: int) -> Known:
        block = thread // self.block_size
        found = {thread: step, ~block: epoch}
        merge(found, self.known.get(thread))
        merge(found, self.of_block.get(block))
        return found

    def fence(self, now: Clock) -> None:
        """Threads pass a fence."""
        for thread, epoch in zip(now.thread.tolist(), now.epoch.tolist(), strict=True):
            if thread in self.pending:
                merge(self.known.setdefault(thread, {}), self.pending.pop(thread))
            self.fenced[thread] = self._snapshot(thread, epoch, now.step)

    def access(self, places: tuple[int, Array], now: Clock, kind: Kind) -> None:
        """Atomic accesses, one after the other; places are numbers in what an owner has."""
        if not (kind.releases or self.fenced or self.released):
            return
        owner, numbers = places
        for number, thread, epoch in zip(numbers.tolist(), now.thread.tolist(), now.epoch.tolist(), strict=True):
            place = owner, number
            there = self.released.get(place)
            if kind.reads and there:
                merge((self.known if kind.acquires else self.pending).setdefault(thread, {}), there)
            if kind.writes:
                mine = self._snapshot(thread, epoch, now.step) if kind.releases else self.fenced.get(thread)
                after = dict(there or {}) if kind.reads else {}
                merge(after, mine)
                self.released[place] = after

    def barrier(self, blocks: set[int]) -> None:
        """Threads of these blocks have met: what one of them knows, all know."""
        for thread, known in self.known.items():
            block = thread // self.block_size
            if block in blocks:
                merge(self.of_block.setdefault(block, {}), known)

    def refine(self, last: Last, unit: Array, now: Clock, far: Array) -> Array:
        """How far accesses are which are not ordered, as in `Last.unordered`, without those that are known."""
        if not (self.known or self.of_block):
            return far
        out = far.copy()
        for k in np.flatnonzero(far):
            thread = int(now.thread[k])
            then, epoch, block, step = (int(last.arrays[n][unit[k]]) for n in ("thread", "epoch", "block", "step"))
            beside = int(last.beside[unit[k]])
            for known in (self.known.get(thread), self.of_block.get(thread // self.block_size)):
                if known is None:
                    continue
                whole = epoch < known.get(~block, -1) and beside < 3
                if whole or (beside == 0 and step <= known.get(then, -1)):
                    out[k] = 0
        return out
