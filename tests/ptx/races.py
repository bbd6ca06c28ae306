"""Which accesses of different threads nothing orders.

Time in a block goes by epochs: a barrier ends one for all its threads, a barrier of a warp ends one for the warp. Two
accesses are ordered if they are by the same thread, by the same block in different epochs, or by the same warp in
different epochs of the warp. Threads of different blocks are never ordered within a launch. Nothing else orders
accesses; a shuffle does not.

For each unit of bytes, and for each kind of access, the last one is kept, and whether others stand beside it which
are not ordered before it. A unit is as large as the smallest access so far.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = Any
READ, WRITE, ATOMIC = "read", "write", "atomic operation"
AGAINST = {READ: (WRITE, ATOMIC), WRITE: (WRITE, ATOMIC, READ), ATOMIC: (WRITE, READ)}
THREAD, WARP, BLOCK = 1, 2, 3  # others: of the same warp, of the same block, of other blocks


@dataclass(frozen=True, slots=True)
class Clock:
    """Where and when threads are: numbers in the launch of thread, warp and block, and their epochs."""

    thread: Array
    warp: Array
    block: Array
    epoch: Array
    warp_epoch: Array

    def of(self, sel: Any) -> Clock:
        """That of some of the threads."""
        return Clock(self.thread[sel], self.warp[sel], self.block[sel], self.epoch[sel], self.warp_epoch[sel])


class Last:
    """The last access of one kind to each unit."""

    def __init__(self, units: int) -> None:
        self.arrays = {
            name: np.full(units, -1, np.int32) for name in ("thread", "warp", "block", "epoch", "warp_epoch")
        }
        self.beside = np.zeros(units, np.uint8)

    def split(self, times: int) -> None:
        """Units of a fraction of the size."""
        self.arrays = {name: np.repeat(a, times) for name, a in self.arrays.items()}
        self.beside = np.repeat(self.beside, times)

    def unordered(self, unit: Array, now: Clock) -> Array | None:
        """How far those accesses are which are not ordered before these: 0 (there are none), THREAD, WARP or BLOCK."""
        then = self.arrays["thread"][unit]
        if (then < 0).all():
            return None
        seen, beside = then >= 0, self.beside[unit]
        same_block = self.arrays["block"][unit] == now.block
        same_warp = self.arrays["warp"][unit] == now.warp
        same_epoch = self.arrays["epoch"][unit] == now.epoch
        same_warp_epoch = self.arrays["warp_epoch"][unit] == now.warp_epoch
        alone = (then == now.thread) & (beside == 0)
        in_warp = np.where(same_warp_epoch & ~alone, THREAD, 0)
        in_block = np.where(same_epoch, np.where(same_warp & (beside < WARP), in_warp, np.where(alone, 0, WARP)), 0)
        out = np.where(same_block & (beside < BLOCK), in_block, BLOCK)
        return np.where(seen, out, 0)

    def note(self, unit: Array, now: Clock) -> None:
        """Keep these accesses; of several to the same unit one, with word of the others."""
        beside = self.unordered(unit, now)
        self.arrays["thread"][unit] = now.thread
        for name in ("warp", "block", "epoch", "warp_epoch"):
            self.arrays[name][unit] = getattr(now, name)
        kept = self.arrays["thread"][unit]
        others = kept != now.thread
        if others.any():
            far = np.where(
                self.arrays["block"][unit] != now.block,
                BLOCK,
                np.where(self.arrays["warp"][unit] != now.warp, WARP, THREAD),
            )
            far = np.where(others, far, 0)
            beside = far if beside is None else np.maximum(far, beside)
        self.beside[unit] = 0
        if beside is not None and beside.any():
            np.maximum.at(self.beside, unit, beside.astype(np.uint8))


class Accesses:
    """The accesses of one launch to one region."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.size = 16
        self.last: dict[str, Last] = {}
        self.constant: Array | None = None  # units that were read as if nothing were ever written to them

    def check(self, kind: str, offset: Array, nbytes: int, now: Clock) -> tuple[str, int, Array] | None:
        """Note accesses. If some are not ordered: the kind of another, its thread, and which of these."""
        unit, now, times = self._units(offset, nbytes, now)
        for other in AGAINST[kind]:
            if other in self.last:
                far = self.last[other].unordered(unit, now)
                if far is not None and far.any():
                    return self._found(other, unit, far > 0, times)
        last = self.last.get(kind)
        if last is None:
            last = self.last[kind] = Last(-(-self.nbytes // self.size))
        last.note(unit, now)
        if kind == WRITE:
            twice = last.arrays["thread"][unit] != now.thread
            if twice.any():
                return self._found(WRITE, unit, twice, times)
        return None

    def _found(self, kind: str, unit: Array, bad: Array, times: int) -> tuple[str, int, Array]:
        first = np.flatnonzero(bad)[0]
        return kind, int(self.last[kind].arrays["thread"][unit[first]]), bad.reshape(-1, times).any(axis=1)

    def check_constant(self, kind: str, offset: Array, nbytes: int, now: Clock, constant: bool) -> Array | None:
        """Which reads through the read-only cache meet a write of this launch, or which writes meet such reads."""
        if not constant and (kind == READ or self.constant is None):
            return None
        unit, _, times = self._units(offset, nbytes, now)
        if constant:
            if self.constant is None:
                self.constant = np.zeros(-(-self.nbytes // self.size), bool)
            self.constant[unit] = True
            bad = np.zeros(len(unit), bool)
            for other in (WRITE, ATOMIC):
                if other in self.last:
                    bad |= self.last[other].arrays["thread"][unit] >= 0
        else:
            assert self.constant is not None
            bad = self.constant[unit]
        return bad.reshape(-1, times).any(axis=1) if bad.any() else None

    def _units(self, offset: Array, nbytes: int, now: Clock) -> tuple[Array, Clock, int]:
        if nbytes < self.size:
            for last in self.last.values():
                last.split(self.size // nbytes)
            if self.constant is not None:
                self.constant = np.repeat(self.constant, self.size // nbytes)
            self.size = nbytes
        times = nbytes // self.size
        unit = offset // self.size
        if times > 1:
            unit = (unit[:, None] + np.arange(times)).ravel()
            now = now.of(np.repeat(np.arange(len(offset)), times))
        return unit, now, times
