"""Memory of the interpreter: buffers with exact bounds and a note of every byte that was written.

A `Region` is one array of bytes with one or more variables in it. Global and constant buffers are a region each; all
shared variables of a launch are one region with a copy for each block, all local variables one with a copy for each
thread. All spaces lie in one 64-bit address space, so a generic address is the address, and a conversion of an address
is the identity; between any two variables there is a gap.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.ptx.races import Accesses

Array = Any
SHARED, LOCAL, CONST, GLOBAL = 0x0100_0000, 0x0200_0000, 0x0300_0000, 0x1_0000_0000
WINDOWS = {"shared": (SHARED, LOCAL), "local": (LOCAL, CONST), "const": (CONST, GLOBAL), "global": (GLOBAL, 1 << 62)}
GAP = 256  # bytes between shared or local variables; the alignment of buffers
POISON = 0xA5
WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def aligned(n: int, to: int) -> int:
    """The first multiple of `to` that is not below n."""
    return -(-n // to) * to


@dataclass(slots=True)
class Slot:
    """A variable in a region."""

    name: str
    base: int
    nbytes: int


@dataclass(slots=True)
class Region:
    """Bytes, the variables in them by rising address, and `count` copies, `stride` bytes apart."""

    space: str
    slots: list[Slot]
    stride: int
    count: int = 1
    readonly: bool = False
    data: Array = field(init=False)
    written: Array = field(init=False)
    complete: bool = False  # every byte was written
    accesses: Accesses | None = None  # of the launch that runs

    def __post_init__(self) -> None:
        n = aligned(self.stride * self.count, 16)
        self.data = np.full(n, POISON, np.uint8)
        self.written = np.zeros(n, np.uint8)
        self.bases = np.array([s.base for s in self.slots], np.int64)
        self.ends = np.array([s.base + s.nbytes for s in self.slots], np.int64)

    bases: Array = field(init=False)
    ends: Array = field(init=False)

    @property
    def origin(self) -> int:
        """The address of the first byte of a copy."""
        return WINDOWS[self.space][0] if self.space in ("shared", "local") else self.base

    @property
    def base(self) -> int:
        """The address of the first byte."""
        return self.slots[0].base

    def is_written(self, offsets: Array, nbytes: int) -> Array:
        """Whether all bytes of aligned accesses were written, for each."""
        full = int.from_bytes(b"\x01" * min(nbytes, 8), "little")
        if nbytes <= 8:
            return self.written.view(WORDS[nbytes])[offsets // nbytes] == full
        return (self.written.view(np.uint64).reshape(-1, 2)[offsets // 16] == full).all(axis=1)

    def is_written_in_part(self, offsets: Array, needed: Array) -> Array:
        """Whether words have a byte that was written, and those with one of the bits `needed` all are."""
        words = self.written.view(np.uint32)[offsets // 4]
        return (words != 0) & (needed & ~(words * np.uint32(255)) == 0)

    def mark_written(self, offsets: Array, nbytes: int) -> None:
        """Note that these aligned accesses wrote."""
        full = int.from_bytes(b"\x01" * min(nbytes, 8), "little")
        if nbytes <= 8:
            self.written.view(WORDS[nbytes])[offsets // nbytes] = full
        else:
            self.written.view(np.uint64).reshape(-1, 2)[offsets // 16] = full

    def elements(self, dtype: np.dtype, count: int) -> Array:
        """The bytes as vectors of `count` elements."""
        view = self.data.view(dtype)
        return view if count == 1 else view[: len(view) // count * count].reshape(-1, count)


class Fault(Exception):
    """An access that is refused: why, which of the accesses, the first address, and what lies there."""

    def __init__(self, kind: str, message: str, bad: Array, address: int, buffer: str) -> None:
        super().__init__(message)
        self.kind, self.message, self.bad, self.address, self.buffer = kind, message, bad, address, buffer


class Memory:
    """The global and constant buffers of a device, by address."""

    def __init__(self) -> None:
        self.regions: list[Region] = []
        self.bases: list[int] = []
        self.freed: dict[int, tuple[int, str]] = {}
        self.next = {"global": GLOBAL, "const": CONST}

    def allocate(self, space: str, nbytes: int, name: str, readonly: bool = False) -> Region:
        """A buffer; its address is used only once, and nothing lies near it."""
        base = self.next[space] + (aligned(nbytes, 4096) + 4096 if space == "global" else GAP)
        region = Region(space, [Slot(name, base, nbytes)], nbytes, readonly=readonly)
        self.next[space] = aligned(base + nbytes, GAP)
        at = bisect_right(self.bases, base)
        self.regions.insert(at, region)
        self.bases.insert(at, base)
        return region

    def free(self, base: int) -> None:
        """Forget a buffer."""
        region = self.region(base)
        k = self.regions.index(region)
        del self.regions[k], self.bases[k]
        self.freed[base] = (region.slots[0].nbytes, region.slots[0].name)

    def region(self, base: int) -> Region:
        """The buffer that begins at an address."""
        k = bisect_right(self.bases, base) - 1
        if k < 0 or self.bases[k] != base:
            raise ValueError(f"no buffer begins at {base:#x}")
        return self.regions[k]

    def inside(self, address: int, nbytes: int) -> tuple[Region, int]:
        """The buffer that holds a range of bytes, and the offset in it."""
        k = bisect_right(self.bases, address) - 1
        if k < 0 or address + nbytes > self.bases[k] + self.regions[k].slots[0].nbytes:
            raise ValueError(f"{nbytes} bytes at {address:#x} are not inside of a buffer: {self.near(address)}")
        return self.regions[k], address - self.bases[k]

    def near(self, address: int) -> str:
        """Words about where an address lies that is in no buffer."""
        for base, (nbytes, name) in self.freed.items():
            if base <= address < base + nbytes:
                return f"in {name}, which was freed"
        k = bisect_right(self.bases, address) - 1
        if k < 0:
            return "before every buffer"
        slot = self.regions[k].slots[0]
        return f"{address - slot.base} bytes from the start of {slot.name}, which has {slot.nbytes}"


@dataclass(slots=True)
class Spaces:
    """What a launch can address: the device's buffers, and the shared and local variables of its blocks and threads."""

    memory: Memory
    shared: Region
    local: Region

    def resolve(self, space: str, address: Array, nbytes: int, block: Array, thread: Array) -> list[tuple[Any, ...]]:
        """Where accesses go: (region, offsets in it, which of the accesses), checked for bounds and alignment.

        `block` and `thread` number the copies of shared and of local variables.
        """
        wrong = (address & (nbytes - 1)) != 0
        if wrong.any():
            raise self._fault("Misaligned", f"no multiple of {nbytes} bytes", address, wrong)
        low, high = int(address.min()), int(address.max())
        for name in [space] if space != "generic" else list(WINDOWS):
            start, end = WINDOWS[name]
            if start <= low and high < end:
                return self._within(name, address, nbytes, block, thread, slice(None))
        found: list[tuple[Any, ...]] = []
        rest = np.ones(len(address), bool)
        for name, (start, end) in WINDOWS.items():
            part = (address >= start) & (address < end)
            if part.any() and space == "generic":
                rest &= ~part
                sel = np.flatnonzero(part)
                found += self._within(name, address[sel], nbytes, block[sel], thread[sel], sel)
            elif name == space:
                rest &= ~part
        if rest.any():
            where = "in no memory" if space == "generic" else f"not in {space} memory"
            raise self._fault("OutOfBounds", where, address, rest)
        return found

    def _within(
        self, space: str, address: Array, nbytes: int, block: Array, thread: Array, sel: Any
    ) -> list[tuple[Any, ...]]:
        """The same for accesses to one space, which are those that `sel` selects."""
        if space in ("shared", "local"):
            region, copy = (self.shared, block) if space == "shared" else (self.local, thread)
            bases, ends = region.bases, region.ends
        else:
            m = self.memory
            k = bisect_right(m.bases, int(address.min())) - 1
            if k >= 0 and int(address.max()) + nbytes <= m.regions[k].base + m.regions[k].stride:
                return [(m.regions[k], address - m.bases[k], sel)]
            bases = np.array(m.bases, np.int64)
            ends = np.array([r.base + r.stride for r in m.regions], np.int64)
        which = np.searchsorted(bases, address, "right") - 1
        bad = (which < 0) | (address + nbytes > ends[which]) if len(bases) else np.ones(len(address), bool)
        if bad.any():
            numbers = np.flatnonzero(bad)
            raise self._fault(
                "OutOfBounds", "in no variable", address, bad, numbers if isinstance(sel, slice) else sel[bad]
            )
        if space in ("shared", "local"):
            return [(region, address - WINDOWS[space][0] + copy * region.stride, sel)]
        parts = []
        for k in np.unique(which):
            part = np.flatnonzero(which == k)
            parts.append((m.regions[k], address[part] - m.bases[k], part if isinstance(sel, slice) else sel[part]))
        return parts

    def _fault(self, kind: str, message: str, address: Array, bad: Array, numbers: Array | None = None) -> Fault:
        """A refusal of those accesses which are `bad`; `numbers` are theirs among all of the instruction."""
        where = np.flatnonzero(bad)
        first = int(address[where[0]])
        return Fault(kind, message, where if numbers is None else numbers, first, self._near(first))

    def _near(self, address: int) -> str:
        """Words about where an address lies."""
        for space, region in (("shared", self.shared), ("local", self.local)):
            start, end = WINDOWS[space]
            if start <= address < end:
                k = bisect_right(region.bases.tolist(), address) - 1
                if k < 0:
                    return f"before every {space} variable"
                s = region.slots[k]
                return f"{address - s.base} bytes from the start of {s.name}, which has {s.nbytes}"
        return self.memory.near(address)
