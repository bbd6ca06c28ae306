"""The LLVM text behind native entries: ``@enter``, one ``METH_FASTCALL | METH_KEYWORDS`` function for all of them.

In: offsets of the fields of CPython's and NumPy's objects, and the layout of the tables. Out: text, the same in every
process. What a specialisation expects stands in its table (see `entry`), so that a new one needs no compilation.
``@call`` is the vectorcall function of objects that hold a builtin made of ``@enter``.

Invariants. *Matching* runs no Python code, takes no reference and raises nothing: under the GIL nothing moves until a
specialisation matches or all have failed. A field is read only after the exact type of its object was compared.
Dict lookups happen only in dicts whose keys are all exact strings, since other keys could run code. A specialisation
with registered nodes is the exception: their functions are called while it is matched, so every item is held from the
moment when it is read until the call ends, and arrays are looked at after the last function has run. From the moment
of the match every leaf inside a container is held, since the allocation of a result may run the garbage collector;
leaves given directly are held by the caller (vectorcall), and all leaves are held where the GIL is released. Every way
out gives back the arena and the references.

The text stands in ``entry_match.ll``, ``entry_run.ll`` and ``entry_cold.ll``. It is LLVM's, with four abbreviations
(offsets in bytes, ``$NAME`` is a number):

    %x = get T %p[$NAME]      load of a field          %x = at T %p[%i]      load of element %i
    put T %v, %p[%i]          store of element %i      %q = row %p[%i]       address of word %i

The functions of `hot` are those that every call goes through. They are worth LLVM's level 1 (26 ns a call less than
at level 0), which takes several times as long to compile; the others are `cold`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

FUNCTIONS = (
    "PyContextVar_Get",
    "PyDict_GetItemWithError",
    "PyDict_New",
    "PyDict_Next",
    "PyDict_SetItem",
    "PyDict_Size",
    "PyErr_NoMemory",
    "PyErr_Occurred",
    "PyErr_SetString",
    "PyEval_RestoreThread",
    "PyEval_SaveThread",
    "PyList_New",
    "PyList_SetItem",
    "PyLong_AsLongLongAndOverflow",
    "PyLong_FromLongLong",
    "PyObject_Call",
    "PyObject_CallNoArgs",
    "PyObject_CallOneArg",
    "PyObject_Vectorcall",
    "PyTuple_New",
    "PyTuple_SetItem",
    "PyUnicode_Compare",
    "Py_DecRef",
    "Py_IncRef",
)
"""What the text calls in CPython; beside it ``PyArray_NewFromDescr`` and the arenas of `pool`."""

DECLARATIONS = """
@ndarray = external global i8
@Array = external global i8
@Block = external global i8
@int = external global i8
@list = external global i8
@str = external global i8
@True = external global i8
@False = external global i8
@None = external global i8
@SystemError = external global i8
@TypeError = external global i8
@builtin = external global i8
@no_error = private constant [45 x i8] c"the handler of a program's status must raise\\00"
@no_target = private constant [32 x i8] c"this object has no native entry\\00"
declare i32 @PyContextVar_Get(ptr, ptr, ptr)
declare ptr @PyDict_GetItemWithError(ptr, ptr)
declare ptr @PyDict_New()
declare i32 @PyDict_Next(ptr, ptr, ptr, ptr)
declare i32 @PyDict_SetItem(ptr, ptr, ptr)
declare i64 @PyDict_Size(ptr)
declare ptr @PyErr_NoMemory()
declare ptr @PyErr_Occurred()
declare void @PyErr_SetString(ptr, ptr)
declare void @PyEval_RestoreThread(ptr)
declare ptr @PyEval_SaveThread()
declare ptr @PyList_New(i64)
declare i32 @PyList_SetItem(ptr, i64, ptr)
declare i64 @PyLong_AsLongLongAndOverflow(ptr, ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @PyObject_Call(ptr, ptr, ptr)
declare ptr @PyObject_CallNoArgs(ptr)
declare ptr @PyObject_CallOneArg(ptr, ptr)
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare ptr @PyTuple_New(i64)
declare i32 @PyTuple_SetItem(ptr, i64, ptr)
declare i32 @PyUnicode_Compare(ptr, ptr)
declare void @Py_DecRef(ptr)
declare void @Py_IncRef(ptr)
declare ptr @PyArray_NewFromDescr(ptr, ptr, i32, ptr, ptr, ptr, i32, ptr)
declare ptr @take_arena(ptr)
declare i64 @give_arena(ptr, ptr)
"""

_GET = re.compile(r"(%\w+) = get (\w+) (%\w+)\[(-?\w+)\]")
_AT = re.compile(r"(%\w+) = at (\w+) (%\w+)\[([%\w]+)\]")
_PUT = re.compile(r"put (\w+) ([%\w]+), (%\w+)\[([%\w]+)\]")
_ROW = re.compile(r"= row (%\w+)\[([%\w]+)\]")
_NUMBER = re.compile(r"\$(\w+)")
_DEFINED = re.compile(r"define (\w+ @\w+\([^)]*\))")


@cache
def _read(name: str) -> str:
    return Path(__file__).with_name(f"entry_{name}.ll").read_text("utf-8")


def hot(numbers: Mapping[str, int]) -> str:
    """The module of the functions that every call goes through, without header; `numbers` gives every ``$NAME``."""
    elsewhere = "".join([f"declare {function}\n" for function in _DEFINED.findall(_read("cold"))])
    return _expanded(DECLARATIONS + elsewhere + _read("match") + _read("run"), numbers)


def cold(numbers: Mapping[str, int]) -> str:
    """The module of the others."""
    return _expanded(DECLARATIONS + _read("cold"), numbers)


def _expanded(text: str, numbers: Mapping[str, int]) -> str:
    text = _NUMBER.sub(lambda m: str(numbers[m[1]]), text)
    text = _GET.sub(r"\1.at = getelementptr i8, ptr \3, i64 \4\n  \1 = load \2, ptr \1.at", text)
    text = _AT.sub(r"\1.at = getelementptr \2, ptr \3, i64 \4\n  \1 = load \2, ptr \1.at", text)
    text = _ROW.sub(r"= getelementptr i64, ptr \1, i64 \2", text)
    count = itertools.count()
    put = "%put.{0} = getelementptr {1}, ptr {3}, i64 {4}\n  store {1} {2}, ptr %put.{0}"
    return _PUT.sub(lambda m: put.format(next(count), *m.groups()), text)
