"""The record of accesses against a list of all of them, compared pair by pair, on random programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.ptx.ordering import Order
from tests.ptx.races import ATOMIC, ATOMIC_READ, READ, WRITE, Accesses, Clock

BLOCKS, WARPS, LANES, NBYTES = 3, 2, 3, 48
SIZE = WARPS * LANES
THREADS = np.arange(BLOCKS * SIZE)
KINDS = [READ, WRITE, ATOMIC, ATOMIC_READ]
TOGETHER = {
    READ: {READ, ATOMIC_READ},
    ATOMIC_READ: {READ, ATOMIC_READ, ATOMIC},
    ATOMIC: {ATOMIC, ATOMIC_READ},
    WRITE: set(),
}


@dataclass(frozen=True)
class Access:
    thread: int
    epoch: int
    warp_epoch: int
    kind: str
    start: int
    nbytes: int

    def races_with(self, other: Access) -> bool:
        """Whether two accesses conflict, and nothing orders them."""
        if self.thread == other.thread or other.kind in TOGETHER[self.kind]:
            return False
        if self.start >= other.start + other.nbytes or other.start >= self.start + self.nbytes:
            return False
        if self.thread // SIZE != other.thread // SIZE:
            return True
        if self.epoch != other.epoch:
            return False
        return self.thread // LANES != other.thread // LANES or self.warp_epoch == other.warp_epoch


def clock(epoch: Any, warp_epoch: Any) -> Clock:
    as32 = lambda a: np.asarray(a, np.int32)
    return Clock(
        as32(THREADS), as32(THREADS // LANES), as32(THREADS // SIZE), as32(epoch), as32(warp_epoch), 0, Order(SIZE)
    )


@pytest.mark.parametrize("seed", range(60))
def test_the_first_race_is_found_and_no_other(seed: int) -> None:
    """Steps of a random program, until the first that races; threads keep to places of their own most of the time."""
    random = np.random.default_rng(seed)
    record, seen = Accesses(NBYTES), []
    epoch, warp_epoch = np.zeros(len(THREADS), int), np.zeros(len(THREADS), int)
    for _ in range(60):
        if random.random() < 0.4:
            block = random.integers(BLOCKS)
            epoch[block == THREADS // SIZE] += 1
            continue
        if random.random() < 0.3:
            warp_epoch[random.integers(BLOCKS * WARPS) == THREADS // LANES] += 1
            continue
        kind, nbytes = random.choice(KINDS, p=[0.5, 0.2, 0.15, 0.15]), int(random.choice([1, 2, 4, 8]))
        who = np.sort(random.choice(THREADS, random.integers(1, 4), replace=False))
        place = who // SIZE * 16 if random.random() < 0.9 else random.integers(0, 40, len(who)) // 8 * 8
        offset = place + random.integers(0, 16 // nbytes, len(who)) * nbytes
        new = [
            Access(int(t), int(epoch[t]), int(warp_epoch[t]), kind, int(o), nbytes)
            for t, o in zip(who, offset, strict=True)
        ]
        bad = [any(a.races_with(b) for b in seen) for a in new]
        clash = [a.races_with(b) for a in new for b in new]
        found = record.check(kind, offset, nbytes, clock(epoch, warp_epoch).of(who))
        assert (found is not None) == (any(bad) or any(clash))
        if found is not None:
            other, thread, which = found
            assert other not in TOGETHER[kind] and thread in THREADS
            if any(bad):
                assert [b for b, racing in zip(bad, which, strict=True) if racing] and not any(which & ~np.array(bad))
            return
        seen += new
