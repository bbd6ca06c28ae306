"""What the host does to run a Program on a GPU: launches and copies in order, and loops and branches around them.

Addresses are known when a call begins, but for rows: those move with the trips of the loops around. Running a plan
needs a `Device`, of which there are two: a GPU, and an interpreter of PTX in the tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import gcd
from struct import pack, unpack
from typing import Any, Protocol

from funcgrad.lowering.nests import STATUS
from funcgrad.lowering.registers.stacks import DESCRIPTION, OUT_OF_MEMORY


class Device(Protocol):
    """What a plan needs of a GPU. Addresses are integers; all of it happens in the order of the calls.

    Attributes
    ----------
    name, index
        ``"cuda:0"``, and its number.
    arch
        Such as ``"sm_80"``.
    title, memory
        What its maker calls it, and its bytes of memory.
    """

    name: str
    index: int
    arch: str
    title: str
    memory: int

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

    def to_dlpack(self, array: Any, **kwargs: Any) -> Any:
        """A DeviceArray as a DLPack capsule."""

    def imported(self, x: Any) -> Any:
        """Another library's array on a GPU as something that has ``__cuda_array_interface__``, and is on this one."""


ALIGNED = 16  # bytes: the most that is loaded or stored at once


@dataclass(frozen=True, slots=True)
class Place:
    """An address: a buffer, an offset in bytes, and for loops around the bytes from row to row.

    The buffer begins at a multiple of `begins` bytes.
    """

    root: Any
    offset: int = 0
    rows: tuple[tuple[Any, int], ...] = ()
    begins: int = ALIGNED

    @property
    def alignment(self) -> int:
        """Bytes that every address of it is a multiple of, `ALIGNED` at most."""
        return gcd(self.begins, self.offset, *[size for _, size in self.rows])

    def row(self, loop: Any, size: int) -> Place:
        """The row of `size` bytes at the index of a loop."""
        return replace(self, rows=(*self.rows, (loop, size)))

    def after(self, offset: int) -> Place:
        """So many bytes further on."""
        return replace(self, offset=self.offset + offset)


@dataclass(frozen=True, slots=True)
class Run:
    """Launch a kernel of a module, which was made of a scheduled one."""

    name: str
    places: tuple[Place, ...]
    blocks: int
    threads: int
    kernel: Any


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy bytes."""

    source: Place
    target: Place
    size: int


@dataclass(frozen=True, slots=True)
class Fill:
    """Set a buffer to what a large constant consists of."""

    target: Place
    data: bytes
    count: int


@dataclass(frozen=True, slots=True)
class Fresh:
    """Let a buffer be somewhere else from now on: in memory that is zero, and stays until the trip around ends."""

    root: Any
    size: int


@dataclass(frozen=True, slots=True)
class Reads:
    """A stack that a loop reads: its words are at `stack`; its row of the trip is `root`, or `zeros` beyond its end."""

    root: Any
    stack: Place
    zeros: Place


@dataclass(frozen=True, slots=True)
class Hands:
    """The stacks that a loop hands out, side by side in one buffer that grows.

    Attributes
    ----------
    roots
        What they are in a trip.
    offsets, stride
        Of their values in a row, and of the rows, in bytes.
    stacks
        Where their words are: these say where the description of the rows is (see `registers.stacks`).
    """

    roots: tuple[Any, ...]
    offsets: tuple[int, ...]
    stride: int
    stacks: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A loop: `steps` for each index below `count` or the int64 there, as long as the bool at `test`, if any, is true.

    The index moves the rows of loop `number`; kernels find it at `index` if it is no row. A trip that `keeps`
    stacks hands them out or on: their memory stays as long as that of the loop, else it is given back.
    """

    number: Any
    count: Place | int
    index: Place | None
    reverse: bool
    test: Place | None
    steps: tuple[Any, ...]
    reads: tuple[Reads, ...] = ()
    hands: Hands | None = None
    keeps: bool = False


@dataclass(frozen=True, slots=True)
class Choose:
    """A branch: the steps with the number that is at `index`, moved inside."""

    index: Place
    branches: tuple[tuple[Any, ...], ...]


Step = Run | Copy | Fill | Fresh | Repeat | Choose


HEAP = 1 << 20  # bytes at first of what kernels take while they run


def run_module(
    device: Device, handle: Any, module: Any, addresses: Mapping[Any, int], status: int
) -> tuple[int, list[Any]]:
    """Run a `Module` whose buffers are at `addresses`; the code that its status holds then, and memory of stacks.

    If kernels need more memory than there is, all of it runs again with more: nothing that it reads has changed.

    Raises
    ------
    MemoryError
        The device has no more memory.
    """
    if not module.heap and not module.checks:
        running = Running(device, handle, addresses, 0, False)
        running.run(module.plan)
        return 0, running.held
    size = HEAP
    while True:
        device.write(status, bytes(16))
        heap = None
        if module.heap:
            heap = device.allocate(size)
            device.launch(handle, "set_heap", 1, 1, [heap.address, heap.address + size])
        running = Running(device, handle, addresses, status, module.heap)
        with suppress(_Left):
            running.run(module.plan)
        code = int.from_bytes(device.read(status, 8), "little", signed=True)
        if heap is None or code != OUT_OF_MEMORY:
            return code, [heap, *running.held]
        size *= 4


class _Left(Exception):
    """A kernel left with a code, and what follows cannot run."""


class Running:
    """One run of a plan.

    Parameters
    ----------
    addresses
        Of every buffer.
    status
        The address of two int64, or 0; what is there ends the run when it is not 0 after a loop's trip.
    heap
        Kernels hand pointers on: after one that can leave without having written them, the status is looked at.
    """

    def __init__(self, device: Device, module: Any, addresses: Mapping[Any, int], status: int, heap: bool) -> None:
        self.device, self.module, self.addresses, self.status = device, module, dict(addresses), status
        self.heap = heap
        self.at: dict[Any, int] = {}
        self.held: list[Any] = []  # memory of stacks, until the trip around ends, or the run

    def address(self, p: Place) -> int:
        """Where a place is now."""
        return self.addresses[p.root] + p.offset + sum([self.at[loop] * size for loop, size in p.rows])

    def run(self, steps: Sequence[Step]) -> None:
        """All steps, in order."""
        d = self.device
        for s in steps:
            if isinstance(s, Run):
                d.launch(self.module, s.name, s.blocks, s.threads, [self.address(p) for p in s.places])
                if self.heap and any([p.root is STATUS for p in s.places]) and d.read(self.status, 8) != bytes(8):
                    raise _Left
            elif isinstance(s, Copy):
                d.copy(self.address(s.target), self.address(s.source), s.size)
            elif isinstance(s, Fill):
                d.write(self.address(s.target), s.data * s.count)
            elif isinstance(s, Fresh):
                self.addresses[s.root] = self.allocate(s.size)
                d.write(self.addresses[s.root], bytes(s.size))
            elif isinstance(s, Repeat):
                self._repeat(s)
            else:
                k = min(max(self._integer(s.index), 0), len(s.branches) - 1)
                self.run(s.branches[k])

    def allocate(self, size: int) -> int:
        """The address of memory of stacks."""
        memory = self.device.allocate(max(size, 1))
        self.held.append(memory)
        return int(memory.address)

    def _integer(self, p: Place) -> int:
        return int.from_bytes(self.device.read(self.address(p), 8), "little", signed=True)

    def _words(self, address: int, count: int) -> tuple[int, ...]:
        return unpack(f"<{count}q", self.device.read(address, 8 * count))

    def _repeat(self, s: Repeat) -> None:
        n = s.count if isinstance(s.count, int) else self._integer(s.count)
        rows = [self._rows(r) for r in s.reads]
        growing = None if s.hands is None else _Growing(self, s.hands)
        trips = 0
        for t in range(n):
            if s.test is not None and self.device.read(self.address(s.test), 1) == b"\0":
                break
            i = self.at[s.number] = n - 1 - t if s.reverse else t
            if s.index is not None:
                self.device.write(self.address(s.index), i.to_bytes(8, "little"))
            for r, (base, stride, count) in zip(s.reads, rows, strict=True):
                self.addresses[r.root] = base + i * stride if i < count else self.address(r.zeros)
            if growing is not None:
                growing.row(i, n if s.test is None else i + 1)
            held = len(self.held)
            self.run(s.steps)
            if not s.keeps:
                del self.held[held:]
            trips += 1
            if self.status and self.device.read(self.status, 8) != bytes(8):
                break
        if growing is not None:
            growing.end(trips)

    def _rows(self, r: Reads) -> tuple[int, int, int]:
        """Where the rows of a stack begin, how far they are apart, and how many there are."""
        slot, first, count = self._words(self.address(r.stack), 3)
        if not count:
            return 0, 0, 0
        start, stride = self._words(slot, 2)
        return start + first * stride, stride, count


class _Growing:
    """The rows of what a loop hands out, while it runs."""

    def __init__(self, running: Running, hands: Hands) -> None:
        self.running, self.hands = running, hands
        self.memory = self.room = 0

    def row(self, i: int, count: int) -> None:
        """Point the values of the trip to row `i`, when there is room for `count` rows."""
        running, h = self.running, self.hands
        if count > self.room:
            more = max(count, 2 * self.room, 16)
            memory = running.allocate(more * h.stride)
            if self.room:
                running.device.copy(memory, self.memory, self.room * h.stride)
            self.memory, self.room = memory, more
        for root, offset in zip(h.roots, h.offsets, strict=True):
            running.addresses[root] = self.memory + i * h.stride + offset

    def end(self, trips: int) -> None:
        """Write the descriptions of the rows, and the stacks. What is written here, nothing changes."""
        running, h = self.running, self.hands
        for offset, stack in zip(h.offsets, h.stacks, strict=True):
            here = running.allocate(8 * DESCRIPTION)
            running.device.write(here, pack("<5q", self.memory + offset, h.stride, trips, self.room, 0))
            running.device.write(running.address(stack), pack("<3q", here, 0, trips))
