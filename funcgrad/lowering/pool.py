"""Memory that calls use again: arenas for what they compute on the way, buffers for large results.

Fresh memory costs more than most kernels that fill it: 8 to 48 ms for 80 MB, against 2.4 ms used again. The C library
keeps one freed array of up to some 16 MB, but gives the end of its heap back to the system, so that several results of
128 KB each may touch fresh pages at every call. So the buffers of large results come back when the last view of them
has gone. `clear` gives everything kept to the system.

    >>> from funcgrad.lowering.pool import POOL
    >>> x = POOL.empty((2048, 2048), np.dtype(float))
    >>> address = x.ctypes.data
    >>> del x
    >>> POOL.empty((2048, 2048), np.dtype(float)).ctypes.data == address
    True
    >>> POOL.clear()
"""

from __future__ import annotations

import ctypes
import sys
from collections import OrderedDict
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from funcgrad.base.shelter import lock
from funcgrad.core.array import Array
from funcgrad.core.check import checking
from funcgrad.lowering import sanitize
from funcgrad.lowering.cache import cached
from funcgrad.lowering.machine import Library, compile_object, header, load

LARGE = 2**17
KEPT = 512 * 2**20

_raw_free = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("PyMem_RawFree", ctypes.pythonapi))
_lock = lock()  # the GIL is enough where there is one


@cache
def _machinery() -> tuple[Library, Any, Any]:
    """The native functions of arenas; each is one step under the GIL, for Python as for native code."""
    text = header() + Path(__file__).with_name("pool.ll").read_text("utf-8")
    code = cached(text, 0, partial(compile_object, text, 0))
    allocate = ctypes.cast(ctypes.pythonapi.PyMem_RawMalloc, ctypes.c_void_p).value
    assert allocate is not None
    library = load([code], ["take_arena", "give_arena"], {"PyMem_RawMalloc": allocate})
    take = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(library["take_arena"])
    give = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)(library["give_arena"])
    return library, take, give


def arena_functions() -> dict[str, int]:
    """Addresses of ``ptr @take_arena(ptr pool)`` and ``i64 @give_arena(ptr pool, ptr arena)``, good for ever."""
    library = _machinery()[0]
    return {name: library[name] for name in ("take_arena", "give_arena")}


class ArenaPool:
    """Working memory for the calls of one program: a list of free arenas of `size` bytes, aligned to 64.

    With FUNCGRAD_CHECK=1 (or FUNCGRAD_SANITIZE=1) guard words stand behind each arena; they are looked at when it
    comes back.
    """

    __slots__ = ("_words", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._words = (ctypes.c_void_p * 3)(None, size, int(checking() or sanitize.ON))

    @property
    def address(self) -> int:
        """Where native code finds it."""
        return ctypes.addressof(self._words)

    def take(self) -> int:
        """The address of an arena for one call."""
        take = _machinery()[1]
        with _lock:
            arena: int | None = take(self.address)
        if arena is None:
            raise MemoryError
        return arena

    def give(self, arena: int) -> bool:
        """The call has ended; False if it wrote behind its arena."""
        give = _machinery()[2]
        with _lock:
            return bool(give(self.address, arena))

    @property
    def free_blocks(self) -> int:
        """How many arenas are waiting to be used again."""
        count, block = 0, self._words[0]
        while block:
            count, block = count + 1, ctypes.c_void_p.from_address(block - 16).value
        return count

    def clear(self) -> None:
        """Give the free arenas back to the system."""
        block, self._words[0] = self._words[0], None
        while block:
            raw, block = (ctypes.c_void_p.from_address(block - k).value for k in (8, 16))
            _raw_free(raw)

    def __del__(self, clear: Callable[[ArenaPool], None] = clear) -> None:
        # At the end of the interpreter modules go first, and the memory goes anyway.
        if ctypes is not None and ctypes.c_void_p is not None:
            clear(self)


class Block(np.ndarray):
    """What keeps the memory of a large result: its base. When it goes, the memory returns to the pool."""

    __slots__ = ()

    def __del__(self) -> None:
        buffer = self.base
        # Held by this object, the local name and the call only: nobody took the buffer out.
        if type(buffer) is np.ndarray and sys.getrefcount(buffer) <= 3:
            POOL.give(buffer)


class BufferPool:
    """Buffers of large results that are not in use, at most `KEPT` bytes of them."""

    def __init__(self) -> None:
        self._free: OrderedDict[int, list[np.ndarray[Any, Any]]] = OrderedDict()  # by size, those given last at the end
        self.kept = 0
        """Bytes waiting to be used again."""
        # A block may go while the lock is held, in a garbage collection.
        self._lock = lock()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An Array without values, in memory that was used before where there is any of that size."""
        size = dtype.itemsize
        for n in shape:
            size *= n
        with self._lock:
            waiting = self._free.get(size)
            buffer = None
            if waiting:
                self.kept -= size
                buffer = waiting.pop()
        if buffer is None:
            buffer = np.empty(size, np.uint8)
        return np.ndarray.__new__(Array, shape, dtype, buffer.view(Block))

    def give(self, buffer: np.ndarray[Any, Any]) -> None:
        """Keep a buffer that nobody uses any more; those kept longest go."""
        with self._lock:
            self._free.setdefault(buffer.nbytes, []).append(buffer)
            self._free.move_to_end(buffer.nbytes)
            self.kept += buffer.nbytes
            while self.kept > KEPT and self._free:
                size, oldest = next(iter(self._free.items()))
                if oldest:
                    del oldest[0]
                    self.kept -= size
                if not oldest:
                    del self._free[size]

    def clear(self) -> None:
        """Give all kept memory back to the system."""
        with self._lock:
            self._free.clear()
            self.kept = 0


POOL = BufferPool()
