"""What every access to memory must satisfy: it is inside, initialised, allowed, and ordered.

Numbers of one or two bytes change as parts of a word, by compare and swap. So atomic loads and swaps may read words
that are written in part; the other bytes must then stay as they are, and are still not written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.ptx.errors import PtxError, Race, ReadOnly, Uninitialised
from tests.ptx.memory import Region
from tests.ptx.races import ATOMIC, ATOMIC_READ, WRITE

Array = Any


@dataclass(slots=True)
class Kind:
    """How an instruction accesses memory.

    Attributes
    ----------
    what
        READ, WRITE, ATOMIC_READ or ATOMIC.
    reads, writes
        An atomic operation does both, an atomic store only writes.
    parts
        It may read words that are written in part.
    constant
        Through the read-only cache.
    acquires, releases
        By itself, without a fence.
    """

    what: str
    opcode: str
    nbytes: int
    reads: bool = field(init=False)
    writes: bool = field(init=False)
    parts: bool = field(init=False)
    constant: bool = field(init=False)
    acquires: bool = field(init=False)
    releases: bool = field(init=False)

    def __post_init__(self) -> None:
        parts = self.opcode.split(".")
        self.reads = parts[0] != "st"
        self.writes = self.what in (WRITE, ATOMIC)
        self.parts = self.nbytes == 4 and (self.what == ATOMIC_READ or "cas" in parts)
        self.constant = "nc" in parts
        self.acquires = "acquire" in parts or "acq_rel" in parts
        self.releases = "release" in parts or "acq_rel" in parts


def resolve(m: Any, threads: Any, space: str, at: Array, nbytes: int) -> list[tuple[Region, Array, Any]]:
    """The places of accesses: (region, offsets, which of the accesses), inside and aligned."""
    found: list[tuple[Region, Array, Any]] = m.spaces.resolve(
        space, at, nbytes, m.local_block[threads], m.local_thread[threads]
    )
    return found


def check(
    m: Any, threads: Any, kind: Kind, at: Array, region: Region, offset: Array, sel: Any, changed: Array | None = None
) -> None:
    """Refuse accesses to a region at fault, and keep note of the others. A swap says which bits it is to change."""

    def fail(error: type[PtxError], message: str, bad: Array) -> None:
        first = np.flatnonzero(bad)
        address = int(at[sel][first[0]])
        slot = next(s for s in region.slots if s.base <= address < s.base + s.nbytes)
        m.fail(error, message, m.numbers(threads)[sel][first], address, f"byte {address - slot.base} of {slot.name}")

    if kind.reads and not region.complete:
        written = region.is_written(offset, kind.nbytes)
        if kind.parts and not written.all():
            written = region.is_written_in_part(offset, np.uint32(0) if changed is None else changed)
        if not written.all():
            fail(Uninitialised, "memory is read, but was never written", ~written)
    if kind.writes and region.readonly:
        fail(ReadOnly, "memory that may only be read is written", np.ones(len(offset), bool))
    if m.launch.races and region.space != "local" and not region.readonly:
        now = m.now(threads).of(sel)
        if region.accesses is None:
            region.accesses = m.tracked(region)
        bad = region.accesses.check_constant(kind.what, offset, kind.nbytes, now, kind.constant)
        if bad is not None:
            fail(Race, "memory is read through the read-only cache and written by the same launch", bad)
        found = region.accesses.check(kind.what, offset, kind.nbytes, now)
        if found is not None:
            other, thread, bad = found
            block, number = m.place(thread)
            fail(Race, f"{kind.what}, and {other} by block {block} thread {number} that nothing orders", bad)
        if kind.what in (ATOMIC, ATOMIC_READ):
            owner = -1 if region.space == "global" else int(m.clock.thread[0])  # shared memory is of a batch
            places = (owner, at[sel] if owner < 0 else offset)
            m.launch.order.access(places, now, kind)
    if kind.writes and not kind.parts and not region.complete:
        region.mark_written(offset, kind.nbytes)
