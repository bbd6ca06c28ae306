"""Native entries: builtin functions that take Python objects, run a compiled program and return Python objects.

In: specialisations (`entry_table`). Out: a builtin function. A call that fits no specialisation goes to a Python
function with the same arguments.

    spec = Spec(args=(Leaf(F64, (3,)),), results=Leaf(F64, (3,)))
    native = prepare(spec, library["program"], owner=library)
    call = make_entry([native], fallback=python_function)

Invariants: the machine code is one function for all entries (`entry_text`); what a specialisation expects stands in a
table of words. Nothing in a table changes once it is made. A builtin owns everything its table points to through its
``__self__``, a tuple.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import cache, partial
from typing import Any

import numpy as np

from funcgrad.core.array import Array
from funcgrad.lowering.cache import cached
from funcgrad.lowering.entry_layout import NUMBERS, SUPPORTED, VECTORCALL, WORD, NativeCallable, address, numpy_api
from funcgrad.lowering.entry_table import Native, pack
from funcgrad.lowering.entry_text import FUNCTIONS, cold, hot
from funcgrad.lowering.machine import compile_object, header, load
from funcgrad.lowering.pool import Block, arena_functions

MAX_TABLES = 8

# -- the machine code


_FASTCALL_KEYWORDS = 0x0082
_NEW_FROM_DESCR = 94  # a slot of NumPy's C API


@cache
def entry_machinery() -> Any:
    """The native functions ``enter`` and ``call``; they stay loaded for the life of the process."""
    api = numpy_api()
    objects = {"ndarray": np.ndarray, "Array": Array, "Block": Block, "int": int, "list": list, "str": str}
    objects |= {"True": True, "False": False, "None": None, "builtin": type(len)}
    objects |= {"SystemError": SystemError, "TypeError": TypeError}
    imports = {name: id(value) for name, value in objects.items()}
    imports |= {name: address(name) for name in FUNCTIONS}
    imports |= arena_functions()
    imports["PyArray_NewFromDescr"] = api[_NEW_FROM_DESCR]
    texts = {header() + hot(NUMBERS): 1, header() + cold(NUMBERS): 0}
    codes = [cached(text, level, partial(compile_object, text, level)) for text, level in texts.items()]
    library = load(codes, ["enter", "call"], imports)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(library))  # builtins may outlive this module
    return library


# -- entries


def make_entry(
    natives: Sequence[Native],
    fallback: Callable[..., Any],
    *,
    name: str = "entry",
    context: ContextVar[Any] | None = None,
    switch: bytearray | None = None,
    hits: bytearray | None = None,
) -> Callable[..., Any]:
    """A builtin function that serves calls of `natives`, tried in order, and gives all others to `fallback`.

    Parameters
    ----------
    natives
        At most 8; those most often called first. A further specialisation means a further builtin: nothing that
        a running call uses changes.
    fallback
        Called with the very arguments of the call.
    context
        A variable that must be unset or None (a trace is open otherwise).
    switch
        Its first byte must be 0.
    hits
        Eight bytes, an integer in the machine's order: native code counts the calls that it serves.
    """
    assert len(natives) <= MAX_TABLES
    if not natives:
        return fallback
    pinned = [(ctypes.c_char * n).from_buffer(b) if b is not None else None for b, n in ((switch, 1), (hits, WORD))]
    needs = [max(column) for column in zip(*[n.needs for n in natives], strict=True)]
    head = [
        len(natives),
        id(fallback),
        id(context) if context is not None else 0,
        *[ctypes.addressof(b) if b is not None else 0 for b in pinned],
        *needs,
        *[id(n.table) + NUMBERS["BYTES_DATA"] for n in natives],
    ]
    called = name.encode()
    # A PyMethodDef as bytes: of a ctypes structure the garbage collector frees the memory before the builtin goes.
    method = pack([id(called) + NUMBERS["BYTES_DATA"], entry_machinery()["enter"], _FASTCALL_KEYWORDS, 0])
    owned = (pack(head), called, method, fallback, context, *pinned, *[(n.table, n.owned) for n in natives])
    new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    made: Callable[..., Any] = new(address("PyCFunction_NewEx"))(id(method) + NUMBERS["BYTES_DATA"], owned, None)
    return made


# -- objects that are called natively

_TP_FLAGS = 168


def arm(x: NativeCallable, target: Callable[..., Any]) -> None:
    """Calls of `x` go to `target`, a builtin from `make_entry`; calls that run meanwhile finish with the old one."""
    x._target = target
    ctypes.c_void_p.from_address(id(x) + NUMBERS["OBJECT_CALL"]).value = entry_machinery()["call"]


def vectorcalled(cls: type) -> type:
    """A class decorator for subclasses of `NativeCallable` that do not define ``__call__``.

    Python 3.12 and later inherit the flag that says so; for 3.11, whose layout is final, it is set here. Without it
    calls work too, through a tuple.
    """
    if SUPPORTED and sys.version_info < (3, 12):
        flags = ctypes.c_ulong.from_address(id(cls) + _TP_FLAGS)
        if flags.value == cls.__flags__:
            flags.value |= VECTORCALL
            ctypes.pythonapi.PyType_Modified(ctypes.py_object(cls))
    return cls
