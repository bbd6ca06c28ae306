"""What a call of foreign code calls: a function compiled by Numba, or a way back into Python; and its exceptions.

In: the equation of a foreign operation. Out: a `Target` with the address of a function as `foreign` says. The way back
takes the GIL, hands copies of the operands to the operation's own evaluation, and copies the results. Whatever is
raised is kept: the status holds a reference to it until `raised` takes it back in the thread of the call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from funcgrad.base.errors import FuncgradError, ProgramError
from funcgrad.base.shelter import sheltered
from funcgrad.core.ir import Aval, Equation
from funcgrad.core.trace import eagerly
from funcgrad.lowering.foreign import DONE
from funcgrad.lowering.interrupt import raised
from funcgrad.lowering.numba_calls import ResultShape, numba_entry

_PROTOTYPE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)


class Target:
    """A foreign function that machine code can call as long as this object lives.

    Attributes
    ----------
    address : int
    equation : Equation
    compiled : bool
        Whether Numba compiled it, so that no Python runs in it.
    """

    def __init__(self, equation: Equation) -> None:
        self.equation = equation
        entry = numba_entry(equation)
        self.compiled = entry is not None
        self._held: Any = entry
        if entry is None:
            self._held = _PROTOTYPE(_thunk(equation))
            # not by ctypes.cast, which ties the function into a circle that is never freed
            self.address = int(ctypes.c_void_p.from_address(ctypes.addressof(self._held)).value or 0)
        else:
            self.address = entry.address

    def error(self, reference: int) -> BaseException:
        """What a failed call raised; `reference` is given up."""
        error = raised(reference)  # none: before or after the function could keep it, where only a signal comes
        if isinstance(error, ResultShape):
            error = error.explained()
        return error.at(self.equation.source) if isinstance(error, FuncgradError) else error


def _thunk(e: Equation) -> Callable[[int, int], int]:
    """A Python function of (table, status) that evaluates an equation."""
    count = len(e.inputs)
    evaluate, params = e.primitive.evaluate, e.params
    readers = [_reader(a.aval) for a in e.inputs]
    sizes = [v.aval.size * v.aval.dtype.itemsize for v in e.outputs]
    words = ctypes.c_int64 * (count + len(sizes))

    def evaluated(operands: list[Any]) -> Any:
        with eagerly():
            return evaluate(*operands, **params)

    def thunk(table: int, status: int) -> int:
        try:
            places = words.from_address(table)[:]
            results = sheltered(evaluated, [read(p) for read, p in zip(readers, places, strict=False)])
            for x, place, size in zip(results, places[count:], sizes, strict=True):
                data = x.tobytes()
                if len(data) != size:
                    raise ProgramError(f"{e.primitive.name}: a result has {len(data)} bytes in place of {size}")
                ctypes.memmove(place, data, size)
            return DONE
        except BaseException as error:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(error))
            ctypes.c_int64.from_address(status + 8).value = id(error)
            return 0

    return thunk


def _reader(aval: Aval) -> Callable[[int], Any]:
    """Makes an array of its own of what lies at an address."""
    shape, dtype, size = aval.shape, aval.dtype, aval.size * aval.dtype.itemsize
    array, bytes_at = np.ndarray, ctypes.string_at
    if not size:
        return lambda place: np.empty(shape, dtype)
    return lambda place: array(shape, dtype, bytes_at(place, size))


__all__ = ["Target"]
