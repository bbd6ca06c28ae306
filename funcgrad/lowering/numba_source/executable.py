"""Running a Program through its Numba source: compiled at the first call, once for equal Programs."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from funcgrad.base.errors import FuncgradError
from funcgrad.core.ir import Program
from funcgrad.lowering.executable import RUNNERS
from funcgrad.lowering.numba_source.module import numba_module


def compiled(text: str, name: str) -> Callable[..., Any]:
    """The function of that name of a module; Numba compiles it when it is called."""
    namespace: dict[str, Any] = {"__name__": "funcgrad_numba"}
    exec(compile(text, f"<numba source of {name}>", "exec"), namespace)
    return namespace[name]  # type: ignore[no-any-return]


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
        self._lock = threading.Lock()

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """Results for arrays of the Program's input types."""
        if self._function is None:
            with self._lock:
                if self._function is None:
                    self._function = compiled(*self._text)
        status = np.zeros(2, np.int64)
        values = [_argument(x, v.aval) for x, v in zip(args, self.program.inputs, strict=True)]
        found = self._function(*values, status)
        if status[0]:
            e = self._checks[status[0] - 1]
            assert e.primitive.fault is not None
            error = e.primitive.fault(int(status[1]), **e.params)
            raise error.at(e.source) if isinstance(error, FuncgradError) else error
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


RUNNERS["numba"] = numba_executable
