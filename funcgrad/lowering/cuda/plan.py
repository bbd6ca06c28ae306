"""What the host does to run a Program on a GPU: launches and copies in order, and loops and branches around them.

Addresses are known when a call begins, but for rows: those move with the trips of the loops around. Running a plan
needs a `Device`, of which there are two: a GPU, and an interpreter of PTX in the tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Device(Protocol):
    """What a plan needs of a GPU. Addresses are integers; all of it happens in the order of the calls.

    Attributes
    ----------
    arch
        Such as ``"sm_80"``.
    """

    arch: str

    def allocate(self, size: int) -> Any:
        """Memory of `size` bytes, rounded up to 16 and aligned to 256: an object with `address` that owns it."""

    def load(self, ptx: str) -> Any:
        """A module."""

    def launch(self, module: Any, name: str, blocks: int, threads: int, addresses: Sequence[int]) -> None:
        """Run a kernel."""

    def copy(self, target: int, source: int, size: int) -> None:
        """Copy bytes on the device."""

    def write(self, address: int, data: bytes | memoryview) -> None:
        """Copy bytes to the device."""

    def read(self, address: int, size: int) -> bytes:
        """Copy bytes from the device, when all before is done."""


@dataclass(frozen=True, slots=True)
class Place:
    """An address: a buffer, an offset in bytes, and for loops around (by number) the bytes from row to row."""

    root: Any
    offset: int = 0
    rows: tuple[tuple[int, int], ...] = ()

    def row(self, loop: int, size: int) -> Place:
        """The row of `size` bytes at the index of a loop."""
        return Place(self.root, self.offset, (*self.rows, (loop, size)))

    def after(self, offset: int) -> Place:
        """So many bytes further on."""
        return Place(self.root, self.offset + offset, self.rows)


@dataclass(frozen=True, slots=True)
class Run:
    """Launch a kernel."""

    name: str
    places: tuple[Place, ...]
    blocks: int
    threads: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy bytes."""

    source: Place
    target: Place
    size: int


@dataclass(frozen=True, slots=True)
class Fill:
    """Set a buffer to what a constant consists of."""

    target: Place
    data: bytes
    count: int


@dataclass(frozen=True, slots=True)
class Repeat:
    """A loop: `steps` for each index below the int64 at `count`, as long as the bool at `test`, if any, is true.

    The index is at `index` for the kernels, and moves the rows of loop `number`.
    """

    number: int
    count: Place
    index: Place
    reverse: bool
    test: Place | None
    steps: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Choose:
    """A branch: the steps with the number that is at `index`, moved inside."""

    index: Place
    branches: tuple[tuple[Any, ...], ...]


Step = Run | Copy | Fill | Repeat | Choose


class Running:
    """One run of a plan.

    Parameters
    ----------
    addresses
        Of every buffer.
    status
        The address of two int64, or 0; what is there ends the run when it is not 0 after a loop's trip.
    """

    def __init__(self, device: Device, module: Any, addresses: Mapping[Any, int], status: int) -> None:
        self.device, self.module, self.addresses, self.status = device, module, addresses, status
        self.at: dict[int, int] = {}

    def address(self, p: Place) -> int:
        """Where a place is now."""
        return self.addresses[p.root] + p.offset + sum([self.at[loop] * size for loop, size in p.rows])

    def run(self, steps: Sequence[Step]) -> None:
        """All steps, in order."""
        d = self.device
        for s in steps:
            if isinstance(s, Run):
                d.launch(self.module, s.name, s.blocks, s.threads, [self.address(p) for p in s.places])
            elif isinstance(s, Copy):
                d.copy(self.address(s.target), self.address(s.source), s.size)
            elif isinstance(s, Fill):
                d.write(self.address(s.target), s.data * s.count)
            elif isinstance(s, Repeat):
                self._repeat(s)
            else:
                k = min(max(self._integer(s.index), 0), len(s.branches) - 1)
                self.run(s.branches[k])

    def _integer(self, p: Place) -> int:
        return int.from_bytes(self.device.read(self.address(p), 8), "little", signed=True)

    def _repeat(self, s: Repeat) -> None:
        n = self._integer(s.count)
        for t in range(n):
            if s.test is not None and self.device.read(self.address(s.test), 1) == b"\0":
                break
            i = self.at[s.number] = n - 1 - t if s.reverse else t
            self.device.write(self.address(s.index), i.to_bytes(8, "little"))
            self.run(s.steps)
            if self.status and self.device.read(self.status, 8) != bytes(8):
                break
