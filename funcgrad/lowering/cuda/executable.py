"""Running a Program on a GPU: its kernels compiled once for each device, then started on arrays that lie there.

All results and the memory that a call needs on the way are allocated before the plan runs, from the pool of the device:
so a program that does not run holds no memory. Arguments from ordinary memory (numbers, mostly) are sent together.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Hashable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from funcgrad.base.errors import ProgramError, UnsupportedError
from funcgrad.base.shelter import lock, working
from funcgrad.core.device_array import THERE, DeviceArray, placed
from funcgrad.core.ir import Aval, Equation, Program, Stack, make_aval, subprograms
from funcgrad.core.stacked import Stacked
from funcgrad.lowering.cache import cached
from funcgrad.lowering.cost import lines_of
from funcgrad.lowering.cuda.emit import ALIGNMENT, CudaKernels, Module, emit
from funcgrad.lowering.cuda.plan import Choose, Device, Repeat, Run, run_module
from funcgrad.lowering.cuda.ptx import LEVEL, compile_ptx, named_arch, resources
from funcgrad.lowering.cuda.rows import spread
from funcgrad.lowering.cuda.stacks import left, sent
from funcgrad.lowering.dump import dump_program, dump_ptx
from funcgrad.lowering.executable import failed
from funcgrad.lowering.forms import obstacles, require_computable
from funcgrad.lowering.nests import STATUS
from funcgrad.lowering.registers.stacks import bytes_of
from funcgrad.lowering.simplify import simplify

LARGE = 2**16  # bytes: arguments up to that are sent together


class CudaExecutable:
    """A Program as kernels of a GPU.

    Attributes
    ----------
    program : Program
        Flat.
    device : Device
    """

    def __init__(self, program: Program, device: Device) -> None:
        self.program, self.device = simplify(program), device
        dump_program(self.program, program)
        self._compiled: dict[tuple[int, ...], tuple[Module, Any, Any]] = {}
        self._lock = lock()
        self._inputs = [_strong(v.aval) for v in self.program.inputs]
        self._outputs = [_strong(a.aval) for a in self.program.outputs]

    @property
    def module(self) -> Module:
        """Its kernels and plan, where no argument is donated."""
        return self._made(())[0]

    def _made(self, donated: tuple[int, ...]) -> tuple[Module, Any, Any]:
        """The kernels for arguments that are donated, the device's handle, and constants; made at the first call."""
        with nullcontext() if working() else self._lock:
            found = self._compiled.get(donated)
            if found is None:
                module = cuda_module(self.program, donated, TO_RUN)
                ptx = ptx_of(module, self.device.arch)
                dump_ptx(self.program, ptx, donated)
                constants = self.device.allocate(len(module.constants)) if module.constants else None
                if constants is not None:
                    self.device.write(constants.address, module.constants)
                found = self._compiled[donated] = module, self.device.load(ptx), constants
            return found

    def __call__(self, args: Sequence[Any], donated: tuple[int, ...] = ()) -> list[Any]:
        """Fresh arrays and stacks; `args` are of the Program's input types, on the device or in ordinary memory.

        A result that may be written into a donated argument takes its memory over, if nothing else uses that.
        """
        device, (module, handle, constants) = self.device, self._made(donated)
        addresses, held = self._addresses(args)
        given = [args[i] if i >= 0 and self._free(args[i], args) else None for i in module.given]
        fresh = [
            None if x is not None else device.allocate(bytes_of(a)) for x, a in zip(given, self._outputs, strict=True)
        ]
        arena = device.allocate(module.size + 16)
        memory: list[Any] = [m if x is None else x.hand_over() for m, x in zip(fresh, given, strict=True)]
        at: dict[Any, int] = {root: arena.address + offset for root, offset in module.buffers.items()}
        at |= {root: constants.address + offset for root, offset in module.fixed.items()}
        at |= dict(zip(module.inputs, addresses, strict=True))
        at |= {root: m.address for root, m in zip(module.results, memory, strict=True)}
        status = at[STATUS] = arena.address + module.size
        code, stacks = run_module(device, handle, module, at, status)
        value = int.from_bytes(device.read(status + 8, 8), "little", signed=True) if code else 0
        if code:
            raise failed(module.checks, code, value)
        # What gets the other memory next touches it later: the device does things in order.
        kept = [arena, *stacks, *[x for x in held if type(x) is not DeviceArray]]
        return [
            left(device, m, a, kept) if isinstance(a, Stack) else DeviceArray(device, m, a)
            for m, a in zip(memory, self._outputs, strict=True)
        ]

    def _free(self, x: Any, args: Sequence[Any]) -> bool:
        """Whether a donated argument lies here, in memory that is its own."""
        here = type(x) is DeviceArray and x.place is self.device and x.owns_memory
        return here and sum([x.shares(y) for y in args]) == 1

    def _addresses(self, args: Sequence[Any]) -> tuple[list[int], list[Any]]:
        """The addresses of the arguments, and what has to live until they are read."""
        out, held, small, size = [0] * len(args), list(args), [], 0
        for i, (x, aval) in enumerate(zip(args, self._inputs, strict=True)):
            found = x.aval if isinstance(x, Stacked) else make_aval(x.shape, x.dtype)
            if found != aval:
                raise ProgramError(f"machine code for {aval} was given {found}")
            if bytes_of(aval) > LARGE:
                held[i] = x = placed(x, self.device)
            if type(x) in THERE and x.place is self.device:
                out[i] = x.address
            elif isinstance(x, Stacked):
                out[i], memory = sent(self.device, x)
                held += memory
            else:
                small.append((i, np.asarray(x), size))
                size += -(-max(bytes_of(aval), 1) // ALIGNMENT) * ALIGNMENT
        if small:
            memory, data = self.device.allocate(size), bytearray(size)
            for i, x, offset in small:
                data[offset : offset + x.nbytes] = x.tobytes()
                out[i] = memory.address + offset
            self.device.write(memory.address, bytes(data))
            held.append(memory)
        return out, held


def _strong(aval: Aval) -> Aval:
    return aval if isinstance(aval, Stack) else make_aval(aval.shape, aval.dtype)


# -- what has no form on a GPU


TO_RUN = "the CPU runs it: jit without device=, and fg.device_get(x) for arrays that lie on a GPU"
TO_SHOW = "the CPU runs it: stage='kernels' shows how"


def cuda_module(flat: Program, donated: tuple[int, ...] = (), hint: str = TO_SHOW) -> Module:
    """The kernels of a flat Program, or an error that names the first operation without a form."""
    require_computable(flat)
    for name, source in obstacles(flat, CudaKernels.form):
        raise UnsupportedError(f"{name} has no CUDA form yet", hint=hint, source=source)
    return emit(flat, donated)


# -- compiled code


def ptx_of(module: Module, arch: str) -> str:
    """The PTX of a module: from the disk cache, or compiled and then kept."""
    text = f"; PTX for {arch}\n{module.text}"
    return cached(text, LEVEL, lambda: compile_ptx(module.text, arch).encode()).decode()


def shown_arch(arch: str | None) -> str:
    """The architecture that is shown: as asked, else that of ``FUNCGRAD_CUDA_ARCH``, else sm_80."""
    if arch is not None:
        return named_arch("arch", arch)
    return named_arch("FUNCGRAD_CUDA_ARCH", os.environ.get("FUNCGRAD_CUDA_ARCH") or "sm_80")


def program_ptx(program: Program, arch: str | None = None) -> str:
    """The PTX of a Program."""
    return ptx_of(cuda_module(simplify(program)), shown_arch(arch))


def program_resources(program: Program, arch: str | None = None) -> str:
    """A table of what the kernels of a Program take of a GPU."""
    arch, flat = shown_arch(arch), simplify(program)
    module = cuda_module(flat)
    taken = resources(ptx_of(module, arch), arch)
    made_by, runs = _made_by(spread(flat)), list(_runs(module.plan))
    head = ["kernel", "blocks", "threads", "registers", "spills B", "stack B", "shared B", "lines"]
    rows = []
    for name, r in sorted(taken.items(), key=lambda item: (len(item[0]), item[0])):
        mine = [s for s in runs if s.name == name]
        grid = [max([s.blocks for s in mine], default=1), max([s.threads for s in mine], default=1)]
        lines = dict.fromkeys([line for s in mine for line in lines_of(s.kernel, made_by)])
        rows.append([name, *map(str, (*grid, r.registers, r.spills, r.stack, r.shared)), ", ".join(lines)])
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    sides = [str.ljust, *[str.rjust] * 6, str.ljust]
    return "\n".join(
        ["  ".join([f(x, w) for f, x, w in zip(sides, r, widths, strict=True)]).rstrip() for r in [head, *rows]]
    )


def _made_by(program: Program) -> dict[Any, Equation]:
    """The equation of every value, in bodies too."""
    found = {v: e for e in program.equations for v in e.outputs}
    for e in program.equations:
        for _, body in subprograms(e):
            found |= _made_by(body)
    return found


def _runs(steps: Sequence[Any]) -> Iterator[Run]:
    """The launches of a plan, also those in loops and branches."""
    for s in steps:
        if isinstance(s, Run):
            yield s
        for part in s.branches if isinstance(s, Choose) else (s.steps,) if isinstance(s, Repeat) else ():
            yield from _runs(part)


# -- by device

_executables: weakref.WeakValueDictionary[Hashable, CudaExecutable] = weakref.WeakValueDictionary()
_lock = threading.Lock()


def cuda_executable(program: Program, device: Device) -> CudaExecutable:
    """The executable of `program` on a device: the same one for equal Programs, as long as one of them lives."""

    def find() -> CudaExecutable:
        key = (id(device), program.fingerprint)
        with _lock:
            found = _executables.get(key)
            if found is None:
                found = _executables[key] = CudaExecutable(program, device)
            return found

    return program.remember(("cuda", id(device)), find)
