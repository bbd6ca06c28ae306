"""Ctrl-C in native loops: a flag that they look at, and a handler of SIGINT that sets it.

Python's own handler only notes the signal for later, when Python code runs again. Ours, in native code, sets the flag
and then calls Python's: the loops end at once, and Python raises KeyboardInterrupt. It is put in place whenever code
with loops is loaded, so that it survives a new handler of the user.
"""

from __future__ import annotations

import ctypes
import signal
import threading
from typing import Any

from funcgrad.lowering.machine import compile_object, header, load

_flag = ctypes.c_int64(0)
_held: list[Any] = []  # the library of the handler, and its address
_lock = threading.Lock()

_TEXT = """
@interrupt = external global i64
define void @handler(i32 %signal) {
  store volatile i64 1, ptr @interrupt
  %next = load ptr, ptr @next
  call void %next(i32 %signal)
  ret void
}
@next = external global ptr
"""
_next = ctypes.c_void_p(0)


def flag_address() -> int:
    """Where native loops look."""
    return ctypes.addressof(_flag)


def watch() -> None:
    """Let Ctrl-C end native loops; only where Python handles SIGINT itself."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) in (
        None,
        signal.SIG_DFL,
        signal.SIG_IGN,
    ):
        return
    with _lock:
        if not _held:
            text = header() + _TEXT
            imports = {"interrupt": flag_address(), "next": ctypes.addressof(_next)}
            library = load([compile_object(text, 0)], ["handler"], imports)
            install = ctypes.CDLL(None).signal
            install.restype = ctypes.c_void_p
            install.argtypes = [ctypes.c_int, ctypes.c_void_p]
            _held.extend([library, library["handler"], install])
        _, handler, install = _held
        previous = install(signal.SIGINT, handler)
        if previous is not None and previous != handler:
            _next.value = previous


__all__ = ["flag_address", "watch"]
