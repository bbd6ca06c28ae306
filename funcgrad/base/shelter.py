"""What an interrupt or a fork must not leave behind: an open trace, a lock that nobody gives back.

KeyboardInterrupt comes between any two instructions, in the ``__exit__`` of a ``with`` statement too, and then what
that restores stays as it was. A copied context is left in C, where nothing comes between: `sheltered`. A fork copies
locks that other threads hold, and not the threads: those made by `lock` are free in the child.
"""

from __future__ import annotations

import _thread
import os
import threading
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar
from weakref import ref

T = TypeVar("T")


def sheltered(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Call a function, and leave every context variable as it is, however the call ends.

    The open trace, NumPy's error state and what errors say was going on are context variables.
    """
    return copy_context().run(function, *args, **kwargs)


_working: ContextVar[bool] = ContextVar("funcgrad_working", default=False)


def working() -> bool:
    """Whether a function runs for another thread, which waits and keeps its locks: none of them is to be waited for.

    It is a finalizer that asks: the garbage collector may run anywhere.
    """
    return _working.get()


def uninterrupted(function: Callable[..., T], *args: Any) -> T:
    """Call a function that must not be broken off: in another thread, since only the main one is interrupted.

    If that happens, the function still runs to its end, and what it returns is dropped.
    """
    if threading.get_ident() != threading.main_thread().ident:
        return function(*args)
    done = _thread.allocate_lock()
    outcome: list[Any] = []
    done.acquire()

    def work() -> None:
        _working.set(True)
        try:
            outcome.append((function(*args), None))
        except BaseException as error:
            outcome.append((None, error))
        finally:
            done.release()

    try:
        _thread.start_new_thread(copy_context().run, (work,))
    except RuntimeError:  # no more threads: the process ends, or its memory does
        return function(*args)
    done.acquire()
    result, error = outcome.pop()
    if error is None:
        return result  # type: ignore[no-any-return]
    try:
        raise error
    finally:
        del error  # which holds this frame


_locks: list[ref[Any]] = []  # without Python code at their end, which an interrupt could meet
_room = [64]


def lock() -> Any:
    """A lock for ``with``. Its own thread may take it again, as finalizers and signal handlers do."""
    made = threading.RLock()
    _locks.append(ref(made))
    if len(_locks) > _room[0]:
        _locks[:] = [r for r in _locks if r() is not None]
        _room[0] = 2 * len(_locks) + 64
    return made


def all_locks() -> list[Any]:
    """The locks that there are."""
    return [made for made in [r() for r in _locks] if made is not None]


def _after_fork() -> None:
    for made in all_locks():
        made._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
