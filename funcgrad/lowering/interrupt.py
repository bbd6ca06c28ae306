"""Ctrl-C in native loops: a flag that they look at, and a handler of SIGINT that sets it.

Python's own handler only notes the signal for later, when Python code runs again. Ours, in native code, sets the flag
and then calls Python's. A loop that finds the flag set calls `interrupted`, which lets Python handle its signals there
and then: in the main thread only, and the loop ends only if a handler raises. The handler is put in place whenever
code with loops is loaded, so that it survives a new one of the user.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from functools import cache
from typing import Any

from funcgrad.base.shelter import lock
from funcgrad.lowering.machine import compile_object, header, load

_flag = ctypes.c_int64(0)
_main = ctypes.c_uint64(threading.main_thread().ident or 0)
_lock = lock()

_TEXT = """
@interrupt = external global i64
@main = external global i64
@next = external global ptr
declare i64 @PyThread_get_thread_ident()
declare i32 @PyGILState_Ensure()
declare void @PyGILState_Release(i32)
declare i32 @PyErr_CheckSignals()
declare void @PyErr_Fetch(ptr, ptr, ptr)
declare void @PyErr_NormalizeException(ptr, ptr, ptr)
declare void @Py_DecRef(ptr)

define void @handler(i32 %signal) {
  store volatile i64 1, ptr @interrupt
  %next = load ptr, ptr @next
  call void %next(i32 %signal)
  ret void
}

define i64 @interrupted(ptr %status) {
entry:
  %me = call i64 @PyThread_get_thread_ident()
  %main = load i64, ptr @main
  %mine = icmp eq i64 %me, %main
  br i1 %mine, label %look, label %on
look:
  store volatile i64 0, ptr @interrupt
  %error = alloca [3 x ptr]
  %kind = getelementptr ptr, ptr %error, i64 0
  %value = getelementptr ptr, ptr %error, i64 1
  %trace = getelementptr ptr, ptr %error, i64 2
  %gil = call i32 @PyGILState_Ensure()
  %code = call i32 @PyErr_CheckSignals()
  %raised = icmp ne i32 %code, 0
  br i1 %raised, label %keep, label %done
keep:
  call void @PyErr_Fetch(ptr %kind, ptr %value, ptr %trace)
  call void @PyErr_NormalizeException(ptr %kind, ptr %value, ptr %trace)
  %k = load ptr, ptr %kind
  %t = load ptr, ptr %trace
  call void @Py_DecRef(ptr %k)
  call void @Py_DecRef(ptr %t)
  %v = load ptr, ptr %value
  %place = getelementptr ptr, ptr %status, i64 1
  store ptr %v, ptr %place
  br label %done
done:
  call void @PyGILState_Release(i32 %gil)
  %result = zext i1 %raised to i64
  ret i64 %result
on:
  ret i64 0
}
"""
_FROM_PYTHON = [
    "PyThread_get_thread_ident",
    "PyGILState_Ensure",
    "PyGILState_Release",
    "PyErr_CheckSignals",
    "PyErr_Fetch",
    "PyErr_NormalizeException",
    "Py_DecRef",
]
_next = ctypes.c_void_p(0)


@cache
def _library() -> Any:
    imports = {name: int(ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0)
               for name in _FROM_PYTHON}  # fmt: skip
    imports |= {"interrupt": flag_address(), "main": ctypes.addressof(_main), "next": ctypes.addressof(_next)}
    library = load([compile_object(header() + _TEXT, 0)], ["handler", "interrupted"], imports)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(library))  # the handler stays for the life of the process
    return library


def flag_address() -> int:
    """Where native loops look."""
    return ctypes.addressof(_flag)


def interrupted_address() -> int:
    """``i64 @interrupted(ptr status)``: whether a loop that finds the flag set has to end."""
    return int(_library()["interrupted"])


def watch() -> None:
    """Let Ctrl-C end native loops; only where Python handles SIGINT itself."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) in (
        None,
        signal.SIG_DFL,
        signal.SIG_IGN,
    ):
        return
    with _lock:
        handler = _library()["handler"]
        install = ctypes.CDLL(None).signal
        install.restype = ctypes.c_void_p
        install.argtypes = [ctypes.c_int, ctypes.c_void_p]
        previous = install(signal.SIGINT, handler)
        if previous is not None and previous != handler:
            _next.value = previous


def raised(reference: int) -> BaseException:
    """What a signal handler raised; `reference` is given up."""
    if not reference:
        return KeyboardInterrupt()
    held = ctypes.cast(reference, ctypes.py_object)
    error: BaseException = held.value
    ctypes.pythonapi.Py_DecRef(held)
    return error


def _after_fork() -> None:
    _main.value = threading.get_ident()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

__all__ = ["flag_address", "interrupted_address", "raised", "watch"]
