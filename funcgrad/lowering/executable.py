"""What `jit` calls: a Program made ready to run, once, and remembered by what it computes.

A Program becomes one native module if all its equations have a native form. Otherwise it is cut into stages that
alternate between native modules, each as large as can be, and single equations evaluated with NumPy.

Native code reads C-contiguous arrays of exactly the avals of the Program, and writes fresh ones. It gets them
through a table of addresses; the arrays are held for the length of the call.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Hashable, Sequence
from contextlib import nullcontext
from typing import Any, NoReturn

import numpy as np

from funcgrad.base.errors import FuncgradError, ProgramError
from funcgrad.base.shelter import lock, working
from funcgrad.core.ir import Aval, Equation, Literal, Program, Stack, make_aval
from funcgrad.core.stacked import Stacked
from funcgrad.core.trace import eagerly
from funcgrad.lowering import blas, sanitize, stack_values
from funcgrad.lowering.cache import cached
from funcgrad.lowering.dump import dump_module, dump_program
from funcgrad.lowering.emit import emit
from funcgrad.lowering.entry_layout import DAMAGED
from funcgrad.lowering.foreign import FAILED
from funcgrad.lowering.interrupt import flag_address, interrupted_address, raised, watch
from funcgrad.lowering.machine import Library, compile_object, header, load
from funcgrad.lowering.pool import ArenaPool
from funcgrad.lowering.readable import format_kernels
from funcgrad.lowering.registers.control import INTERRUPTED
from funcgrad.lowering.registers.stacks import OUT_OF_MEMORY
from funcgrad.lowering.sanitizer import Checked
from funcgrad.lowering.simplify import simplify
from funcgrad.lowering.stages import Stage, is_native, stages, this_target
from funcgrad.lowering.thunks import Target


class Native:
    """A Program as machine code.

    Attributes
    ----------
    program : Program
        Flat; every equation has a native form.
    donated : tuple of int
        For each output the input whose memory it may be given, or -1; empty for none.
    """

    def __init__(self, program: Program, donated: tuple[int, ...] = ()) -> None:
        self.program = program
        module = emit(program, this_target(), donated)
        text = module.text
        self.checked: Checked | None = None
        if sanitize.ON:
            text, sites = sanitize.instrumented(text)
            self.checked = Checked(sites)
        text = header() + text
        dump_module(program, text, module.level, donated)
        code = cached(text, module.level, lambda: compile_object(text, module.level))
        self.foreign = [Target(e) for e in module.foreign]
        imports = {name: address_of(name) for name in module.imports} | foreign_addresses(self.foreign)
        if self.checked is not None:
            imports |= self.checked.imports()
        self.library: Library = load([code], ["program"], imports)
        self.function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(self.library["program"])
        self.arena = module.arena.size
        self.checks = module.checks
        self.arenas = ArenaPool(self.arena) if self.arena else None
        self.inputs = [v.aval for v in program.inputs]
        self.outputs = [a.aval for a in program.outputs]

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """Fresh results; `args` are arrays, scalars or stacks of the input types."""
        held = [_readable(x, aval) for x, aval in zip(args, self.inputs, strict=True)]
        results = [stack_values.blank(a) if isinstance(a, Stack) else np.empty(a.shape, a.dtype) for a in self.outputs]
        table = np.empty(2 + len(held) + len(results), np.uint64)
        status = np.zeros(8, np.int64)
        for i, x in enumerate((*[x for x, _ in held], *results)):
            table[i + 2] = x.ctypes.data
        arena = self.arenas.take() if self.arenas is not None else 0
        table[0], table[1] = arena, status.ctypes.data
        intact = True
        try:
            try:
                code = self.function(table.ctypes.data)
            finally:
                if self.arenas is not None:
                    intact = self.arenas.give(arena)
            if not intact:
                code = DAMAGED
            if code:
                self.fail(code, *status.tolist())
            return [_result(x, a) for x, a in zip(results, self.outputs, strict=True)]
        finally:
            for x, a in zip(results, self.outputs, strict=True):
                if isinstance(a, Stack):
                    stack_values.release(x)

    def fail(self, code: int, *status: int) -> NoReturn:
        """Raise the error of the check or foreign function that failed, or say that the code wrote behind its arena."""
        if code <= FAILED:
            error = self.foreign[FAILED - code].error(status[1])
            try:
                raise error
            finally:
                del error  # which holds this frame
        if code == sanitize.FAULT:
            assert self.checked is not None
            raise self.checked.error(self.program, format_kernels(self.program))
        if code == DAMAGED:
            raise ProgramError(
                f"the machine code of program {self.program.name} wrote behind its arena of {self.arena} bytes",
                hint="a fault of funcgrad: FUNCGRAD_DUMP=directory writes the stages of each Program there",
            )
        if code == OUT_OF_MEMORY:
            raise MemoryError(f"{self.program.name}: no memory for the values that a loop keeps for its reverse mode")
        if code == INTERRUPTED:
            raise raised(status[1])
        raise failed(self.checks, code, status[1])


def failed(checks: Sequence[Equation], code: int, value: int) -> Exception:
    """The error of a check: the status of a call holds 1 + its position, and the value at fault."""
    e = checks[code - 1]
    assert e.primitive.fault is not None
    fault = e.primitive.fault(value, **e.params)
    return fault.at(e.source) if isinstance(fault, FuncgradError) else fault


def address_of(name: str) -> int:
    """The address of a function or flag that kernels use: of the C library, of BLAS, or ours."""
    if name == "interrupt":
        watch()
        return flag_address()
    if name == "interrupted":
        return interrupted_address()
    if name in ("memcpy", "free", "realloc"):
        return int(ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value or 0)
    return blas.address(name)


def foreign_addresses(targets: Sequence[Target]) -> dict[str, int]:
    """What the names of foreign functions stand for."""
    return {f"foreign{i}": t.address for i, t in enumerate(targets)}


def _readable(x: Any, aval: Aval) -> tuple[Any, Any]:
    """`x` as an array that native code may read, contiguous, aligned, of exactly this type; and what it points to."""
    if isinstance(x, Stacked):
        if x.aval != aval:
            raise ProgramError(f"machine code for {aval} was given {x.aval}")
        return stack_values.lent(x)
    out = np.asarray(x)
    if out.shape != aval.shape or out.dtype != aval.dtype:
        raise ProgramError(f"machine code for {aval} was given {make_aval(out.shape, out.dtype)}")
    return out if out.flags.c_contiguous and out.flags.aligned else np.array(out, order="C"), None


def _result(x: Any, aval: Aval) -> Any:
    if isinstance(aval, Stack):
        return stack_values.taken(x, aval)
    return x if x.ndim else x[()]


class Executable:
    """A Program that is ready to run; it is compiled at the first call.

    Attributes
    ----------
    program : Program
        What it computes, flat.
    """

    __slots__ = ("__weakref__", "_lock", "_stages", "_whole", "program")

    def __init__(self, program: Program) -> None:
        self.program = simplify(program)
        dump_program(self.program, program)
        self._lock = lock()
        self._whole: dict[tuple[int, ...], Native] = {}
        self._stages: list[Stage] | None = None

    def whole(self, donated: tuple[int, ...] = ()) -> Native | None:
        """The one native module, if the Program is one; made at the first call.

        Parameters
        ----------
        donated
            For each output the input whose memory it may be given, or -1; empty for none.
        """
        found = self._whole.get(donated)
        if found is not None or self._stages is not None:
            return found
        with nullcontext() if working() else self._lock:
            if donated not in self._whole and self._stages is None:
                if is_native(self.program):
                    self._whole[donated] = Native(self.program, donated)
                else:
                    cut = stages(self.program)
                    for stage in cut:
                        if stage.program is not None:
                            stage.native = Native(stage.program)
                    self._stages = cut
            return self._whole.get(donated)

    def __call__(self, args: Sequence[Any], donated: tuple[int, ...] = ()) -> list[Any]:
        """Results for arrays of the Program's input types, as raw values that may share memory with `args`.

        `donated` chooses the machine code (see `whole`); nothing is overwritten here.
        """
        whole = self.whole(donated)
        if whole is not None:
            return whole(args)
        assert self._stages is not None
        env: dict[Any, Any] = dict(zip(self.program.inputs, args, strict=True))
        with eagerly():
            for stage in self._stages:
                stage.run(env)
        return [a.array if isinstance(a, Literal) else env[a] for a in self.program.outputs]


_executables: weakref.WeakValueDictionary[Hashable, Executable] = weakref.WeakValueDictionary()


def executable(program: Program) -> Executable:
    """The executable of `program`: the same one for equal Programs, as long as one of them lives."""

    def find() -> Executable:
        key = program.fingerprint, sanitize.ON
        found = _executables.get(key)
        if found is None:
            found = _executables[key] = Executable(program)
        return found

    return program.remember(f"executable{' with checks' if sanitize.ON else ''}", find)
