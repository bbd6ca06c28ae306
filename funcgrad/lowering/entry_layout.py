"""What native entries assume of the objects of CPython and NumPy, and the test that it holds.

In: nothing. Out: `NUMBERS`, every number of the text of native entries (offsets of fields in bytes, the layout of the
tables in words), and `available`, which compares each offset with what Python reports before the first entry is made.
Where anything differs, and on free-threaded builds, there are no native entries and Python functions serve.
"""

from __future__ import annotations

import ctypes
import sys
import sysconfig
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from funcgrad.core.array import Array

WORD = 8

# -- tables: words under names

FIELDS = {
    "HEAD": "TABLE_COUNT FALLBACK CONTEXT SWITCH HITS MAX_ITEMS MAX_POINTERS MAX_LEAVES MAX_VALUES",
    "TABLE": "PROGRAM FLAGS POOL ON_STATUS ROOT ARGS KEYWORDS NAMES NODE_COUNT NODES LEAF_COUNT LEAVES "
    "LEAF_SLOT CONST_SLOT OUT_SLOT CONST_COUNT CONSTS OUT_COUNT OUTS BUILD_COUNT BUILDS",
    "NODE": "NODE_KIND NODE_ITEM NODE_TYPE NODE_CHILDREN NODE_FIRST NODE_KEYS",
    "LEAF": "LEAF_ITEM LEAF_KIND LEAF_DESCR LEAF_NUMBER LEAF_NDIM LEAF_SHAPE LEAF_SCALAR LEAF_SIZE",
    "OUT": "OUT_LEAF OUT_DESCR OUT_NDIM OUT_SHAPE OUT_ALLOCATE",
    "BUILD": "BUILD_KIND BUILD_CHILDREN BUILD_FIRST BUILD_VALUE BUILD_CALL",
}
TUPLE, LIST, DICT, IS, NONE, OPENED = range(6)
STRONG, BOOL, WEAK, WEAK_INT = range(4)
RELEASE, HOLD, OWNING = 1, 2, 4
DAMAGED = -1
"""The code of a call that wrote behind its arena, in place of what the program returned."""


def _numbers() -> dict[str, int]:
    """Every ``$NAME`` of the text: offsets in bytes, sizes in words."""
    table = {f"{name}_WORDS": len(fields.split()) for name, fields in FIELDS.items()}
    table |= {field: WORD * i for fields in FIELDS.values() for i, field in enumerate(fields.split())}
    table |= {"TUPLE": TUPLE, "LIST": LIST, "DICT": DICT, "IS": IS, "OPENED": OPENED}
    table |= {
        "BOOL": BOOL,
        "WEAK": WEAK,
        "WEAK_INT": WEAK_INT,
        "RELEASE": RELEASE,
        "HOLD": HOLD,
        "OWNING": OWNING,
        "DAMAGED": DAMAGED,
    }
    return table | {
        "TYPE": 8,
        "SIZE": 16,
        "VALUE": 16,
        "TUPLE_WORDS": tuple.__basicsize__ // WORD,
        "LIST_ITEMS": 24,
        "BYTES_DATA": bytes.__basicsize__ - 1,
        "BUILTIN_METHOD": 16,
        "BUILTIN_SELF": 24,
        "METHOD_FUNCTION": 8,
        "OBJECT_CALL": 16,
        "OBJECT_TARGET": 24,
        "ARRAY_DATA": 16,
        "ARRAY_NDIM": 24,
        "ARRAY_SHAPE": 32,
        "ARRAY_BASE": 48,
        "ARRAY_DESCR": 56,
        "ARRAY_FLAGS": 64,
        "ARRAY_BUFFER": 80,
        "ALIGNED_CONTIGUOUS": 0x101,
        "OWNED": 0x4,
        "WRITEABLE": 0x400,
        "DESCR_ORDER": 26,
        "DESCR_NUMBER": 28,
        "DESCR_METADATA": 56,
        "SWAPPED": ord(">") if sys.byteorder == "little" else ord("<"),
    }


NUMBERS = _numbers()


# -- the base of objects that are called natively


class _Slot(ctypes.Structure):
    _fields_ = (("slot", ctypes.c_int), ("value", ctypes.c_void_p))


class _Member(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_int),
        ("offset", ctypes.c_ssize_t),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


class _TypeSpec(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("basicsize", ctypes.c_int),
        ("itemsize", ctypes.c_int),
        ("flags", ctypes.c_uint),
        ("slots", ctypes.POINTER(_Slot)),
    )


def address(name: str) -> int:
    """Where a symbol of CPython lies."""
    value = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value
    assert value is not None
    return value


_BASETYPE, VECTORCALL = 1 << 10, 1 << 11
_TP_CALL, _TP_MEMBERS, _SSIZE, _READONLY = 50, 72, 19, 1


def _vectorcall_base() -> type:
    """A class with room for a vectorcall function after the head of its instances; made as C code makes it."""
    offset = _Member(b"__vectorcalloffset__", _SSIZE, NUMBERS["OBJECT_CALL"], _READONLY, None)
    members = (_Member * 2)(offset)
    slots = (_Slot * 3)(_Slot(_TP_CALL, address("PyVectorcall_Call")), _Slot(_TP_MEMBERS, ctypes.addressof(members)))
    size = NUMBERS["OBJECT_CALL"] + WORD
    spec = _TypeSpec(b"funcgrad.lowering.entry.VectorcallBase", size, 0, _BASETYPE | VECTORCALL, slots)
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p)(address("PyType_FromSpec"))
    base: type = make(ctypes.addressof(spec))
    return base


SUPPORTED = (
    sys.implementation.name == "cpython"
    and sys.maxsize == 2**63 - 1
    and not sysconfig.get_config_var("Py_GIL_DISABLED")
)
_Base: Any = _vectorcall_base() if SUPPORTED else object


class NativeCallable(_Base):  # type: ignore[misc]
    """An object with attributes whose calls go to a builtin without a detour through Python: see `arm`.

    Instances of a subclass that defines ``__call__`` are called through it; give such an instance a class without
    it (``x.__class__ = ...``) once it is armed.
    """

    __slots__ = ("_target",)
    _target: Callable[..., Any]


# -- the test


def _read(obj: Any, offset: int, kind: Any = ctypes.c_void_p) -> Any:
    return kind.from_address(id(obj) + offset).value


def exported(x: Any) -> bool:
    """Whether the ndarray `x` was ever asked for a buffer; False where that cannot be known."""
    return available() and bool(_read(x, NUMBERS["ARRAY_BUFFER"]))


def _check_offsets() -> str:
    """What differs from the assumed layout of objects, or ''."""
    n = NUMBERS
    if sys.maxsize != 2**63 - 1 or object.__basicsize__ != 16:
        return "the head of objects"
    x = np.arange(6.0).reshape(2, 3)[:, ::-1]
    whole, meta = np.zeros((2, 3), np.int32), np.dtype("f4", metadata={"a": 1})
    pair, items, text, exported = (x, 1), [x, 1, 2], b"offset", np.zeros(3)
    view = memoryview(exported)
    flags = _read(whole, n["ARRAY_FLAGS"], ctypes.c_int)
    frozen = np.frombuffer(text, np.uint8)
    held = NativeCallable()
    held._target = text
    facts = {
        "ob_type": all(_read(o, n["TYPE"]) == id(type(o)) for o in (x, pair, items, text, 1.0, 1, "a", {}, None)),
        "tuple": [_read(pair, n["SIZE"]), _read(pair, 8 * n["TUPLE_WORDS"])] == [2, id(x)],
        "list": [_read(items, n["SIZE"]), ctypes.c_void_p.from_address(_read(items, n["LIST_ITEMS"])).value]
        == [3, id(x)],
        "bytes": ctypes.string_at(id(text) + n["BYTES_DATA"]) == text,
        "float": _read(-2.5, n["VALUE"], ctypes.c_double) == -2.5,
        "complex": ctypes.string_at(id(c := complex(1, -2)) + n["VALUE"], 16) == np.complex128(c).tobytes(),
        "data": _read(x, n["ARRAY_DATA"]) == x.__array_interface__["data"][0],
        "shape": [ctypes.c_ssize_t.from_address(_read(x, n["ARRAY_SHAPE"]) + 8 * i).value for i in range(2)] == [2, 3],
        "ndim": [_read(a, n["ARRAY_NDIM"], ctypes.c_int) for a in (x, np.zeros(()))] == [2, 0],
        "base": [_read(exported, n["ARRAY_BASE"]), _read(exported[1:], n["ARRAY_BASE"])] == [None, id(exported)],
        "descr": _read(x, n["ARRAY_DESCR"]) == id(x.dtype) == id(np.dtype("f8")),
        "flags": flags == whole.flags.num and flags & 0x505 == 0x505 and not x.flags.num & 1,
        "flag bits": [frozen.flags.num & 0x404, exported.flags.num & 0x404] == [0, 0x404],
        "buffer": not _read(whole, n["ARRAY_BUFFER"]) and bool(_read(exported, n["ARRAY_BUFFER"])) and len(view) == 3,
        "subclass": _read(x.view(Array), n["ARRAY_DATA"]) == _read(x, n["ARRAY_DATA"]),
        "dtype": all(_read(d, n["DESCR_NUMBER"], ctypes.c_int) == d.num for d in (x.dtype, whole.dtype, meta)),
        "byteorder": [
            chr(_read(d, n["DESCR_ORDER"], ctypes.c_uint8)) for d in map(np.dtype, ("f8", "i1", "<f8", ">f8"))
        ]
        == ["=", "|", *("=>" if sys.byteorder == "little" else "<=")],
        "metadata": not _read(x.dtype, n["DESCR_METADATA"]) and bool(_read(meta, n["DESCR_METADATA"])),
        "builtins": [_read(len, n["BUILTIN_SELF"]), ctypes.c_char_p.from_address(_read(len, n["BUILTIN_METHOD"])).value]
        == [id(len.__self__), b"len"],
        "slots": _read(held, n["OBJECT_TARGET"]) == id(text) and not _read(held, n["OBJECT_CALL"]),
        "scalars": all(
            ctypes.string_at(id(v) + n["VALUE"], v.itemsize) == v.tobytes()
            for v in [np.dtype(k).type(1) for k in "?bBhHiIlLefdFD"]
        ),
    }
    return ", ".join([name for name, holds in facts.items() if not holds])


_TYPE = 2  # a slot of that table


def numpy_api() -> Any:
    """The table of functions of NumPy's C API."""
    import numpy._core._multiarray_umath as umath

    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(address("PyCapsule_GetPointer"))
    return ctypes.cast(get(umath._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p))


@cache
def available() -> bool:
    """Whether this Python and NumPy lay out their objects as native entries assume."""
    if not SUPPORTED:
        return False
    wrong = _check_offsets()
    if not wrong and numpy_api()[_TYPE] != id(np.ndarray):
        wrong = "the C API"
    if wrong:
        warnings.warn(
            f"native entries are off and calls go through Python: this Python or NumPy differs in {wrong}",
            RuntimeWarning,
            stacklevel=2,
        )
    return not wrong
