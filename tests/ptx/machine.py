"""All threads of some blocks, executed as vectors.

Threads that stand at one place of the code run together. Of several places the first in the code is taken, so that
threads which left each other meet again; functions stand before those that call them. A place that is taken over and
over while threads wait at others lets them pass now and then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.ptx import errors
from tests.ptx.memory import Fault, Region, Spaces
from tests.ptx.parse import Function
from tests.ptx.races import Accesses, Clock
from tests.ptx.warp import lanes_where

if TYPE_CHECKING:
    from tests.ptx.program import Program

Array = Any
Threads = Any
PATIENCE = 512  # how often the same place is taken before those who wait longest are let pass


@dataclass(frozen=True, slots=True)
class Launch:
    """What all batches of a launch share."""

    program: Program
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: dict[str, Array]  # parameters of the kernel: their bytes
    dynamic_shared: int
    budget: int
    races: bool
    tracked: list[Region] = field(default_factory=list)  # regions whose accesses are recorded

    @property
    def block_size(self) -> int:
        """Threads in a block."""
        return self.block[0] * self.block[1] * self.block[2]


class Parameter:
    """A variable that passes values between functions: bytes for each thread."""

    def __init__(self, n: int, nbytes: int) -> None:
        self.data = np.zeros((n, nbytes), np.uint8)
        self.written = np.zeros((n, nbytes), bool)


class Machine:
    """The state of the threads of the blocks first … first + blocks − 1.

    Parameters
    ----------
    launch
        What is launched.
    first, blocks
        Which blocks run.
    spaces
        Memory as these blocks see it.
    """

    def __init__(self, launch: Launch, first: int, blocks: int, spaces: Spaces) -> None:
        self.launch, self.spaces, program = launch, spaces, launch.program
        size = launch.block_size
        self.n, self.blocks = size * blocks, blocks
        self.all = slice(0, self.n)
        self.registers: list[Array] = [None] * (program.slots + len(program.specials))
        self.partial: dict[int, Array] = {}
        self.local_thread = np.arange(self.n)
        self.local_block = self.local_thread // size
        tid = self.local_thread % size
        self.lane = (tid % 32).astype(np.int64)
        warps = -(-size // 32)
        block = self.local_block + first
        as32 = lambda a: a.astype(np.int32)
        zeros = lambda: np.zeros(self.n, np.int32)
        self.clock = Clock(
            as32(self.local_thread + first * size), as32(block * warps + tid // 32), as32(block), zeros(), zeros()
        )
        self._specials(tid, block)
        self.parameters: dict[tuple[str, str], Parameter] = {}
        self.returns: dict[str, Array] = {}
        self.exited = np.zeros(self.n, bool)
        self.ready: dict[int, list[Threads]] = {program.entries[launch.kernel]: [self.all]}
        self.barriers: dict[int, list[Threads]] = {}  # who waits where for the block
        self.meetings: dict[int, list[Threads]] = {}  # who waits where for lanes of the warp
        self.masks = np.zeros(self.n, np.uint32)
        self.counts = np.zeros(len(program.code), np.int64)
        self.steps = self.pc = 0

    def _specials(self, tid: Array, block: Array) -> None:
        (gx, gy, gz), (bx, by, bz) = self.launch.grid, self.launch.block
        one = np.uint32(1)
        lane = self.lane.astype(np.uint32)
        bit = one << lane
        values = {
            "tid": (tid % bx, tid // bx % by, tid // (bx * by)),
            "ctaid": (block % gx, block // gx % gy, block // (gx * gy)),
            "ntid": (bx, by, bz), "nctaid": (gx, gy, gz), "laneid": (self.lane,), "warpid": (tid // 32,),
            "nwarpid": (-(-bx * by * bz // 32),), "dynamic_smem_size": (self.launch.dynamic_shared,),
            "total_smem_size": (self.spaces.shared.stride,), "lanemask_eq": (bit,), "lanemask_lt": (bit - one,),
            "lanemask_le": (bit | (bit - one),), "lanemask_gt": (~(bit | (bit - one)),), "lanemask_ge": (~(bit - one),),
        }  # fmt: skip
        for name, slot in self.launch.program.specials.items():
            what, axis = self.launch.program.special(name)
            self.registers[slot] = np.broadcast_to(np.asarray(values[what][axis]).astype(np.uint32), (self.n,))

    # -- sets of threads

    def numbers(self, threads: Threads) -> Array:
        """The threads as an array."""
        return self.local_thread[threads]

    def size(self, threads: Threads) -> int:
        """How many there are."""
        return threads.stop - threads.start if isinstance(threads, slice) else len(threads)

    def compact(self, numbers: Array) -> Threads:
        """A slice if the numbers have no gap."""
        if len(numbers) == self.n:
            return self.all
        if numbers[-1] - numbers[0] + 1 == len(numbers):
            return slice(int(numbers[0]), int(numbers[-1]) + 1)
        return numbers

    def some(self, threads: Threads, condition: Array) -> Threads | None:
        """Those for which a condition holds; None if there is none."""
        condition = np.broadcast_to(condition, (self.size(threads),))
        if condition.all():
            return threads
        where = np.flatnonzero(condition)
        if not len(where):
            return None
        return self.compact(where + threads.start if isinstance(threads, slice) else threads[where])

    def merged(self, groups: list[Threads]) -> Threads:
        """All of them, in order."""
        if len(groups) == 1:
            return groups[0]
        return self.compact(np.sort(np.concatenate([self.numbers(g) for g in groups])))

    # -- running

    def arrive(self, place: int, threads: Threads | None) -> None:
        """Let threads go on at a place of the code."""
        if threads is not None:
            self.ready.setdefault(place, []).append(threads)

    def run(self) -> None:
        """Until all threads have come to their end."""
        code = self.launch.program.code
        taken: dict[int, int] = {}
        while self.ready:
            pc = min(self.ready)
            if len(self.ready) > 1:
                taken[pc] = taken.get(pc, 0) + 1
                if taken[pc] % PATIENCE == 0:
                    pc = next(p for p in self.ready if p != pc)
            else:
                taken.clear()
            threads = self.merged(self.ready.pop(pc))
            size = self.size(threads)
            while True:
                step = code[pc]
                self.pc = pc
                self.counts[pc] += size
                self.steps += 1
                if self.steps > self.launch.budget:
                    self.fail(errors.NoEnd, f"no end after {self.launch.budget} instructions", threads)
                if step.jumps:
                    step.run(self, threads)
                    break
                try:
                    step.run(self, threads)
                except Fault as fault:
                    self._fault(fault, threads)
                except ZeroDivisionError as error:
                    self.fail(errors.Trap, str(error), threads)
                pc += 1
                if self.ready and code[pc].leads:
                    self.arrive(pc, threads)
                    break
            if not self.ready:
                self._stuck()

    def _stuck(self) -> None:
        """Say who waits for whom, if any thread waits."""
        code = self.launch.program.code
        for waiting, kind, what in (
            (self.meetings, errors.InactiveLane, "waits for lanes of its warp that do not come"),
            (self.barriers, errors.DivergentBarrier, "waits for threads of its block that do not come"),
        ):
            if waiting:
                elsewhere = {**self.meetings, **self.barriers}
                places = ", ".join(
                    f"{sum(self.size(g) for g in groups)} threads wait at line {code[pc].line}"
                    for pc, groups in sorted(elsewhere.items())
                )
                self.pc = min(waiting)
                self.fail(kind, f"{what}: {places}", self.merged(waiting[self.pc]))

    # -- barriers of a block

    def wait(self, threads: Threads) -> None:
        """Let threads wait for their block at the current place."""
        self.barriers.setdefault(self.pc, []).append(threads)
        self.release(self.pc)

    def release(self, pc: int) -> None:
        """Let those blocks go on all of whose threads wait at one place, or have come to their end."""
        threads = self.merged(self.barriers[pc])
        waiting = np.bincount(self.local_block[threads], minlength=self.blocks)
        alive = np.bincount(self.local_block[~self.exited], minlength=self.blocks)
        full = (waiting == alive)[self.local_block[threads]]
        on, rest = self.some(threads, full), self.some(threads, ~full)
        if rest is None:
            del self.barriers[pc]
        else:
            self.barriers[pc] = [rest]
        if on is not None:
            self.clock.epoch[on] += 1
            self.arrive(pc + 1, on)

    def exit(self, threads: Threads) -> None:
        """Threads come to their end; barriers no longer wait for them."""
        self.exited[threads] = True
        for pc in list(self.barriers):
            self.release(pc)

    # -- lanes of a warp

    def meet(self, threads: Threads, mask: Array, act: Callable[[Any, Threads], None]) -> None:
        """Let threads wait at the current place until all lanes of their masks are there, who then `act`."""
        self.masks[threads] = mask
        lane = self.lane[threads].astype(np.uint32)
        outside = self.some(threads, (self.masks[threads] >> lane & np.uint32(1)) == 0)
        if outside is not None:
            self.fail(errors.InactiveLane, "the mask does not name the lane itself", outside)
        pc = self.pc
        threads = self.merged([threads, *self.meetings.pop(pc, [])])
        present = lanes_where(self, threads, np.True_)
        here = present == self.masks[threads]
        on, rest = self.some(threads, here), self.some(threads, ~here)
        if rest is not None:
            self._absent(rest)
            self.meetings[pc] = [rest]
        if on is not None:
            act(self, on)
            self.arrive(pc + 1, on)

    def _absent(self, threads: Threads) -> None:
        """Refuse masks with lanes that have come to their end, or that there are not."""
        alive = np.zeros(int(self.clock.warp[-1] - self.clock.warp[0]) + 1, np.uint32)
        warp = self.clock.warp - self.clock.warp[0]
        np.bitwise_or.at(alive, warp[~self.exited], np.uint32(1) << self.lane[~self.exited].astype(np.uint32))
        bad = self.some(threads, (self.masks[threads] & ~alive[warp[threads]]) != 0)
        if bad is not None:
            self.fail(errors.InactiveLane, "the mask names lanes that are no more, or were never there", bad)

    def end_warp_epoch(self, _: Any, threads: Threads) -> None:
        """Order what these threads do from what they did, if they are all of their warps."""
        waiting = np.bincount(self.clock.warp[threads] - self.clock.warp[0], minlength=1)
        alive = np.bincount(self.clock.warp[~self.exited] - self.clock.warp[0], minlength=len(waiting))
        whole = (waiting == alive[: len(waiting)])[self.clock.warp[threads] - self.clock.warp[0]]
        self.clock.warp_epoch[threads] += whole

    # -- functions

    def parameter(self, function: Function, name: str) -> Parameter:
        """A variable of a function that passes values."""
        found = self.parameters.get((function.name, name))
        if found is None:
            found = Parameter(self.n, function.variables[name].nbytes)
            self.parameters[function.name, name] = found
        return found

    def enter(self, function: Function, threads: Threads, back: int) -> None:
        """Threads begin a function: its registers and local variables are undefined."""
        self.returns.setdefault(function.name, np.zeros(self.n, np.int64))[threads] = back
        for slot in self.launch.program.slots_of[function.name]:
            if self.registers[slot] is not None:
                self.partial.setdefault(slot, np.ones(self.n, bool))[threads] = False
        local = self.spaces.local
        rows = local.written[: self.n * local.stride].reshape(self.n, -1)
        for v in self.launch.program.locals_of[function.name]:
            rows[threads, v.base - local.origin : v.base - local.origin + v.nbytes] = 0

    def tracked(self, region: Region) -> Accesses:
        """A record of the accesses to a region, until the launch ends."""
        self.launch.tracked.append(region)
        return Accesses(len(region.data))

    # -- faults

    def check_defined(self, slot: int, threads: Threads) -> None:
        """A register must have been written by these threads."""
        if self.registers[slot] is None:
            bad = self.numbers(threads)
        else:
            bad = self.numbers(threads)[~self.partial[slot][threads]]
        if len(bad):
            name = self.launch.program.register_name(slot)
            self.fail(errors.Uninitialised, f"register {name} is read, but was never written", bad)

    def _fault(self, fault: Fault, threads: Threads) -> None:
        sel = np.flatnonzero(fault.bad) if fault.bad.dtype.kind == "b" else fault.bad
        bad = self.numbers(threads)[sel]
        address = None if fault.addresses is None else int(np.atleast_1d(fault.addresses[sel])[0])
        self.fail(getattr(errors, fault.kind), fault.message, bad, address, fault.buffer)

    def place(self, thread: int) -> tuple[int, int]:
        """Block and thread of a thread of the launch."""
        return divmod(thread, self.launch.block_size)

    def fail(
        self, kind: type[errors.PtxError], message: str, threads: Threads, address: int | None = None, buffer: str = ""
    ) -> None:
        """Raise an error about the current instruction."""
        step = self.launch.program.code[self.pc]
        numbers = np.atleast_1d(self.clock.thread[threads])
        places = tuple([self.place(int(t)) for t in numbers[:4]])
        who = ", ".join([f"block {b} thread {t}" for b, t in places]) + (", …" if len(numbers) > 4 else "")
        where = "" if address is None else f" at {address:#x}"
        near = f": {buffer}" if buffer else ""
        text = f"{self.launch.kernel}: {message}{where}{near}\n  line {step.line}: {step.text}\n  {who}"
        raise kind(text, self.launch.kernel, step.line, places, address, buffer)
