"""What `jit` calls: a Program made ready to run, once, and remembered by what it computes.

A Program becomes one native module if all its equations have a native form. Otherwise it is cut into stages that
alternate between native modules, each as large as can be, and single equations evaluated with NumPy.

Native code reads C-contiguous arrays of exactly the avals of the Program, and writes fresh ones. It gets them
through a table of addresses; the arrays are held for the length of the call.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from funcgrad.base.errors import FuncgradError, ProgramError, UnsupportedError
from funcgrad.core.evaluate import set_execute
from funcgrad.core.ir import Equation, Literal, Program, Stack, Var, holds_raising, make_aval
from funcgrad.core.trace import eagerly
from funcgrad.lowering import blas
from funcgrad.lowering.builder import Target
from funcgrad.lowering.cache import cached
from funcgrad.lowering.emit import ALIGNMENT, emit, native_form, native_type
from funcgrad.lowering.interrupt import flag_address, watch
from funcgrad.lowering.machine import Library, compile_object, header, host, load
from funcgrad.lowering.pool import ArenaPool
from funcgrad.lowering.registers.control import INTERRUPTED, OUT_OF_MEMORY
from funcgrad.lowering.simplify import simplify


def this_target() -> Target:
    """What emitted text may rely on here."""
    h = host()
    return Target(h.vector_bytes, h.fma, h.has("sse4.1") or h.vector_bytes > 16, h.triple)


def module_text(program: Program) -> str:
    """The LLVM text of a whole Program, for this processor."""
    flat = simplify(program)
    for e in flat.equations:
        if not native_form(e):
            raise UnsupportedError(
                f"{e.primitive.name} has no native form yet: this Program runs in stages, some of them with NumPy",
                source=e.source,
            )
    return header() + emit(flat, this_target()).text


class Native:
    """A Program as machine code.

    Attributes
    ----------
    program : Program
        Flat; every equation has a native form.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        module = emit(program, this_target())
        text = header() + module.text
        code = cached(text, module.level, lambda: compile_object(text, module.level))
        self.library: Library = load([code], ["program"], {name: address_of(name) for name in module.imports})
        self.function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(self.library["program"])
        self.arena = module.arena
        self.checks = module.checks
        self.arenas = ArenaPool(module.arena) if module.arena else None
        self.free: list[Any] = []  # scratch memory of finished calls
        self.inputs = [(v.aval.shape, v.aval.dtype) for v in program.inputs]
        self.outputs = [(a.aval.shape, a.aval.dtype) for a in program.outputs]

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """Fresh results; `args` are arrays or scalars of the input types."""
        held = [_readable(x, shape, dtype) for x, (shape, dtype) in zip(args, self.inputs, strict=True)]
        results = [np.empty(shape, dtype) for shape, dtype in self.outputs]
        scratch = None
        table = np.empty(2 + len(held) + len(results), np.uint64)
        status = np.zeros(8, np.int64)
        table[0], table[1] = 0, status.ctypes.data
        if self.arena:
            try:
                scratch = self.free.pop()
            except IndexError:
                scratch = np.empty(self.arena + ALIGNMENT, np.uint8)
            table[0] = -(-scratch.ctypes.data // ALIGNMENT) * ALIGNMENT
        for i, x in enumerate((*held, *results)):
            table[i + 2] = x.ctypes.data
        code = self.function(table.ctypes.data)
        if scratch is not None:
            self.free.append(scratch)
        if code:
            self.fail(code, *status.tolist())
        return [x if x.ndim else x[()] for x in results]

    def fail(self, code: int, *status: int) -> NoReturn:
        """Raise the error of the check that failed."""
        if code == OUT_OF_MEMORY:
            raise MemoryError(f"{self.program.name}: no memory for the values that a loop keeps for its reverse mode")
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        e = self.checks[code - 1]
        assert e.primitive.fault is not None
        error = e.primitive.fault(status[1], **e.params)
        raise error.at(e.source) if isinstance(error, FuncgradError) else error


def address_of(name: str) -> int:
    """The address of a function that kernels call: one of the C library, or of BLAS."""
    if name == "interrupt":
        watch()
        return flag_address()
    if name in ("memcpy", "free", "realloc"):
        return int(ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value or 0)
    return blas.address(name)


def _readable(x: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """`x` as an array that native code may read: contiguous, aligned, of exactly this type."""
    out = np.asarray(x)
    if out.shape != shape or out.dtype != dtype:
        raise ProgramError(f"machine code for {make_aval(shape, dtype)} was given {make_aval(out.shape, out.dtype)}")
    return out if out.flags.c_contiguous and out.flags.aligned else np.array(out, order="C")


@dataclass(slots=True)
class Stage:
    """A part of a Program: native code, or one equation for NumPy."""

    inputs: tuple[Var, ...]
    outputs: tuple[Var, ...]
    native: Native | None
    equation: Equation | None

    def run(self, env: dict[Any, Any]) -> None:
        """Compute the outputs from `env` into `env`."""
        if self.native is not None:
            results: Any = self.native([env[v] for v in self.inputs])
        else:
            e = self.equation
            assert e is not None
            values = [a.array if isinstance(a, Literal) else env[a] for a in e.inputs]
            try:
                results = (e.primitive.interpret or e.primitive.evaluate)(*values, **e.params)
            except FuncgradError as error:
                raise error.at(e.source) from None
        env.update(zip(self.outputs, results, strict=True))


def stages(program: Program) -> list[Stage]:
    """Cut a flat Program into stages; native equations join the earliest native stage that they can.

    Effects stay in order, among themselves and with what can raise.
    """
    level: dict[Var, int] = dict.fromkeys(program.inputs, 0)  # even: native, odd: NumPy
    groups: dict[int, list[Equation]] = {}
    effects = raising = 0
    for e in program.equations:
        least = max([level[a] for a in e.inputs if isinstance(a, Var)], default=0)
        effect = bool(e.primitive.effects_of(e.params))
        raises = e.primitive.traits.may_raise or holds_raising(e)
        if effect or raises:
            least = max(least, effects, raising if effect else 0)
        native = native_form(e) and not any([isinstance(a.aval, Stack) for a in (*e.inputs, *e.outputs)])
        at = least if (least % 2 == 0) == native else least + 1
        effects, raising = max(effects, at) if effect else effects, max(raising, at) if raises else raising
        groups.setdefault(at, []).append(e)
        for v in e.outputs:
            level[v] = at
    needed: set[Any] = {a for a in program.outputs if isinstance(a, Var)}
    out: list[Stage] = []
    for at in sorted(groups, reverse=True):
        equations = groups[at]
        made = {v for e in equations for v in e.outputs}
        if at % 2:
            out += [Stage((), e.outputs, None, e) for e in reversed(equations)]
            needed.update([a for e in equations for a in e.inputs if isinstance(a, Var)])
            continue
        used = dict.fromkeys([a for e in equations for a in e.inputs if isinstance(a, Var) and a not in made])
        outputs = tuple([v for e in equations for v in e.outputs if v in needed])
        part = Program(tuple(used), tuple(equations), outputs, program.name)
        out.append(Stage(tuple(used), outputs, Native(part), None))
        needed.update(used)
    out.reverse()
    return out


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
        self._lock = threading.Lock()
        self._whole: Native | None = None
        self._stages: list[Stage] | None = None

    def _prepare(self) -> None:
        with self._lock:
            if self._whole is None and self._stages is None:
                p = self.program
                whole = all([native_form(e) for e in p.equations]) and all(
                    [native_type(a) for a in (*p.inputs, *p.outputs)]
                )
                if whole:
                    self._whole = Native(p)
                else:
                    self._stages = stages(p)

    @property
    def whole(self) -> Native | None:
        """The one native module, if the Program is one and has been prepared."""
        return self._whole

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """Results for arrays of the Program's input types, as raw values that may share memory with `args`."""
        if self._whole is None and self._stages is None:
            self._prepare()
        if self._whole is not None:
            return self._whole(args)
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
        key = program.fingerprint
        found = _executables.get(key)
        if found is None:
            found = _executables[key] = Executable(program)
        return found

    return program.remember("executable", find)


def execute(program: Program, args: Sequence[Any]) -> list[Any]:
    """Run `program` at a jit boundary."""
    return executable(program)(args)


set_execute(execute)
