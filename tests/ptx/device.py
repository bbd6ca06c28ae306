"""A device that executes PTX, with memory of its own.

    device = PtxDevice()
    x = device.alloc(4096, "x")                      # an address; what lies there is not initialised
    device.write(x, np.zeros(1024, np.float32))
    module = device.load(ptx_text)
    device.launch(module, "kernel", grid=(8, 1, 1), block=(128, 1, 1), args=[x, np.int32(1024)])
    np.frombuffer(device.read(x, 4096), np.float32)

A fault of a kernel raises an error of `tests.ptx.errors`, which says where.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.ptx.arithmetic import dtype
from tests.ptx.errors import Uninitialised
from tests.ptx.machine import Launch, Machine
from tests.ptx.memory import GAP, LOCAL, POISON, SHARED, Memory, Region, Slot, Spaces, aligned
from tests.ptx.parse import Variable
from tests.ptx.program import Program

THREADS = 1 << 16  # executed together: more are several batches of blocks
LIMITS = {"threads": 1024, "shared": 232_448, "grid": (2**31 - 1, 65_535, 65_535)}


@dataclass(frozen=True, slots=True)
class Stats:
    """What a launch did.

    Attributes
    ----------
    opcodes
        How many threads executed each opcode.
    threads
        How many there were.
    steps
        Instructions that the interpreter executed, each for many threads.
    """

    opcodes: Counter[str] = field(default_factory=Counter)
    threads: int = 0
    steps: int = 0


class PtxDevice:
    """Memory, modules and launches.

    Parameters
    ----------
    budget
        How many instructions the interpreter may execute for a batch of blocks.
    races
        Look for races.
    """

    def __init__(self, budget: int = 2_000_000, races: bool = True) -> None:
        self.memory = Memory()
        self.budget, self.races = budget, races
        self.stats = Stats()

    # -- memory

    def alloc(self, nbytes: int, name: str = "buffer", readonly: bool = False) -> int:
        """The address of new memory, which is not initialised; kernels may not write to it if it is `readonly`."""
        return self.memory.allocate("global", nbytes, name, readonly).base

    def free(self, address: int) -> None:
        """Give memory back; the address of its first byte."""
        self.memory.free(address)

    def write(self, address: int, data: Any) -> None:
        """Copy bytes, or the bytes of an array, to an address."""
        raw = np.frombuffer(data, np.uint8) if isinstance(data, bytes | bytearray | memoryview) else None
        if raw is None:
            raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        region, at = self.memory.inside(address, len(raw))
        region.data[at : at + len(raw)] = raw
        region.written[at : at + len(raw)] = 1
        region.complete = region.complete or len(raw) == region.stride

    def read(self, address: int, nbytes: int, initialised: bool = True) -> bytes:
        """Bytes at an address. They must have been written, unless `initialised` is false."""
        region, at = self.memory.inside(address, nbytes)
        if initialised and not region.complete:
            missing = np.flatnonzero(region.written[at : at + nbytes] == 0)
            if len(missing):
                name = region.slots[0].name
                where = f"byte {at + missing[0]} of {name}"
                message = f"{len(missing)} of {nbytes} bytes were never written, the first is {where}"
                raise Uninitialised(message, address=address + int(missing[0]), buffer=where)
        return region.data[at : at + nbytes].tobytes()

    def fill(self, address: int, byte: int, nbytes: int) -> None:
        """Set bytes."""
        self.write(address, np.full(nbytes, byte, np.uint8))

    def poison(self, address: int, nbytes: int) -> None:
        """Make bytes uninitialised again."""
        region, at = self.memory.inside(address, nbytes)
        region.data[at : at + nbytes] = POISON
        region.written[at : at + nbytes] = 0
        region.complete = False

    # -- modules

    def load(self, text: str) -> Program:
        """A module, with its variables in this device's memory."""
        return Program(text, self.memory)

    def address_of(self, module: Program, name: str) -> int:
        """The address of a global variable of a module."""
        return next(region.base for region, v in module.globals if v.name == name)

    def launch(
        self,
        module: Program,
        kernel: str,
        grid: Sequence[int],
        block: Sequence[int],
        args: Sequence[Any] = (),
        dynamic_shared: int = 0,
    ) -> None:
        """Execute a kernel in all threads of a grid of blocks, until its end."""
        gx, gy, gz = (*grid, 1, 1)[:3]
        bx, by, bz = (*block, 1, 1)[:3]
        launch = Launch(
            module, kernel, (gx, gy, gz), (bx, by, bz), self._arguments(module, kernel, args), dynamic_shared,
            self.budget, self.races,
        )  # fmt: skip
        self._check(launch)
        blocks, size = gx * gy * gz, launch.block_size
        opcodes: Counter[str] = Counter()
        steps, batch = 0, max(THREADS // size, 1)
        try:
            with np.errstate(all="ignore"):
                for first in range(0, blocks, batch):
                    machine = Machine(launch, first, n := min(batch, blocks - first), self._spaces(launch, n))
                    machine.run()
                    opcodes += module.counts(machine.counts)
                    steps += machine.steps
        finally:
            for region in launch.tracked:
                region.accesses = None
        self.stats = Stats(opcodes, blocks * size, steps)

    def _spaces(self, launch: Launch, blocks: int) -> Spaces:
        program = launch.program
        slots = list(program.shared)
        if launch.dynamic_shared:
            slots.append(Slot(" and ".join(program.dynamic) or "shared", program.dynamic_base, launch.dynamic_shared))
        shared = Region("shared", slots, _stride(slots, SHARED), blocks)
        local = Region("local", program.local, _stride(program.local, LOCAL), blocks * launch.block_size)
        return Spaces(self.memory, shared, local)

    def _arguments(self, module: Program, kernel: str, args: Sequence[Any]) -> dict[str, Any]:
        f = module.functions.get(kernel)
        if f is None or not f.entry:
            raise ValueError(f"no kernel {kernel}: there are {[n for n, f in module.functions.items() if f.entry]}")
        if len(args) != len(f.params):
            raise ValueError(f"{kernel} takes {len(f.params)} arguments, not {len(args)}")
        return {p.name: _bytes(p, a) for p, a in zip(f.params, args, strict=True)}

    def _check(self, launch: Launch) -> None:
        """Refuse what a device would refuse."""
        limits = launch.program.functions[launch.kernel].limits
        if "reqntid" in limits and (*limits["reqntid"], 1, 1)[:3] != launch.block:
            raise ValueError(f"{launch.kernel} requires blocks of {limits['reqntid']}, not {launch.block}")
        if "maxntid" in limits and launch.block_size > int(np.prod(limits["maxntid"])):
            raise ValueError(f"{launch.kernel} takes blocks of at most {limits['maxntid']} threads")
        if not 0 < launch.block_size <= LIMITS["threads"] or min(launch.block) < 1:
            raise ValueError(f"no block of {launch.block} threads can run")
        if min(launch.grid) < 1 or any(g > most for g, most in zip(launch.grid, LIMITS["grid"], strict=True)):
            raise ValueError(f"no grid of {launch.grid} blocks can run")
        shared = sum(s.nbytes for s in launch.program.shared) + launch.dynamic_shared
        if shared > LIMITS["shared"]:
            raise ValueError(f"{shared} bytes of shared memory are too much")


def _stride(slots: list[Slot], origin: int) -> int:
    return aligned(slots[-1].base + slots[-1].nbytes - origin, GAP) if slots else 0


def _bytes(p: Variable, value: Any) -> Any:
    """The bytes of an argument."""
    if isinstance(value, bytes):
        raw = np.frombuffer(value, np.uint8)
    elif isinstance(value, np.generic | np.ndarray):
        raw = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    else:
        d = dtype(p.type)
        if isinstance(value, float):
            d = np.dtype(f"f{d.itemsize}")
        raw = np.array([value], d if value >= 0 or d.kind == "f" else np.dtype(f"i{d.itemsize}")).view(np.uint8)
    if len(raw) != p.nbytes:
        raise ValueError(f"argument {p.name} has {p.nbytes} bytes, not {len(raw)}")
    return raw.copy()
