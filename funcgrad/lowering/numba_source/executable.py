"""Running a Program through its Numba source: compiled at the first call, once for equal Programs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from funcgrad.base.shelter import lock
from funcgrad.core.ir import Aval, Program, Var
from funcgrad.lowering.executable import failed
from funcgrad.lowering.numba_source.module import Module, numba_module, numba_text


def compiled(text: str, name: str, constants: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """The function of that name of a module, in which `constants` are known; Numba compiles it when it is called."""
    namespace: dict[str, Any] = {"__name__": "funcgrad_numba", **(constants or {})}
    exec(compile(text, f"<numba source of {name}>", "exec"), namespace)
    return namespace[name]  # type: ignore[no-any-return]


def compiled_handle(program: Program, module: Module, captured: Sequence[Any]) -> Any:
    """A program as a Numba function compiled for its types, whose first inputs are the arrays `captured`.

    Its arrays are read-only and in C order, and no result shares memory with an argument.
    """
    import numba

    inputs = program.inputs
    own = inputs[len(captured) :]
    names = [f"x{i}" for i in range(len(own))]
    given = [f"captured_{i}" for i in range(len(captured))]
    results = [f"y{i}" for i in range(len(program.outputs))]
    copies = [f"{y}.copy()" if flag else y for y, flag in zip(results, module.borrowed, strict=True)]
    assigned = f"{', '.join(results)} = " if results else ""
    text = (
        f"{module.text}\n\ndef handle({', '.join(names)}):\n"
        f"    {assigned}{module.name}({', '.join([*given, *names])})\n"
        f"    return {', '.join(copies)}"
    )
    constants = {n: _argument(x, v.aval) for n, x, v in zip(given, captured, inputs, strict=False)}
    function = compiled(text, "handle", constants)
    function.__name__ = function.__qualname__ = module.name
    function.__doc__ = _described(program, own)
    signature = tuple([_type(numba, v.aval) for v in own])
    return numba.njit(signature, error_model="numpy")(function)


def _described(program: Program, own: Sequence[Var]) -> str:
    """What a handle takes, in order."""
    given = program.input_names[len(program.inputs) - len(own) :]
    lines = [f"    x{i}: {f'{n}, ' if n else ''}{v.aval}" for i, (n, v) in enumerate(zip(given, own, strict=False))]
    return "\n".join([f"{program.name}, compiled by funcgrad for Numba. Arguments:", "", *lines])


def _type(numba: Any, aval: Aval) -> Any:
    dtype = numba.from_dtype(aval.dtype)
    return numba.types.Array(dtype, len(aval.shape), "C", readonly=True) if aval.shape else dtype


class NumbaExecutable:
    """A Program as Numba code.

    Attributes
    ----------
    program : Program
    """

    __slots__ = ("__weakref__", "_checks", "_function", "_lock", "_text", "program")

    def __init__(self, program: Program) -> None:
        module = numba_module(program, coded=True)
        self.program = program
        self._checks = module.checks
        self._text = module.text, module.name
        self._function: Callable[..., Any] | None = None
        self._lock = lock()

    def __call__(self, args: Sequence[Any], donated: tuple[int, ...] = ()) -> list[Any]:
        """Results for arrays of the Program's input types, in memory of their own."""
        if self._function is None:
            with self._lock:
                if self._function is None:
                    self._function = compiled(*self._text)
        status = np.zeros(2, np.int64)
        values = [_argument(x, v.aval) for x, v in zip(args, self.program.inputs, strict=True)]
        found = self._function(*values, status)
        if status[0]:
            raise failed(self._checks, int(status[0]), int(status[1]))
        outs = self.program.outputs
        results = [] if not outs else [found] if len(outs) == 1 else list(found)
        return [x if a.aval.shape else a.aval.dtype.type(x) for x, a in zip(results, outs, strict=True)]


def _argument(x: Any, aval: Any) -> Any:
    """An argument as the code takes it: a scalar, or an array in C order that is aligned and writeable."""
    return np.require(x, aval.dtype, "CAW") if aval.shape else aval.dtype.type(np.asarray(x)[()])


_executables: weakref.WeakValueDictionary[Hashable, NumbaExecutable] = weakref.WeakValueDictionary()


def numba_executable(program: Program) -> NumbaExecutable:
    """The executable of `program`: the same one for equal Programs, as long as one of them lives."""

    def find() -> NumbaExecutable:
        key = program.fingerprint
        found = _executables.get(key)
        if found is None:
            found = _executables[key] = NumbaExecutable(program)
        return found

    return program.remember("numba executable", find)


class Numba:
    """The `target.Backend` whose kernels are Python loops that Numba compiles."""

    stages: tuple[str, ...] = ("numba",)
    for_arch = False
    serves_calls = False

    def ready(self, program: Program, place: str) -> NumbaExecutable:
        """A Program that Numba compiles at its first call."""
        return numba_executable(program)

    def text(self, program: Program, stage: str, arch: str | None) -> str:
        """The Numba source."""
        return numba_text(program)
