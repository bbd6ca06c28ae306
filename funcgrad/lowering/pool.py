"""Memory that calls use again: arenas for what they compute on the way, buffers for large results.

Fresh memory costs more than most kernels that fill it: 8 to 48 ms for 80 MB, against 2.4 ms used again. The C library
keeps one freed array of up to some 16 MB, but gives the end of its heap back to the system, so that several results of
0.8 MB each touch fresh pages at every call. So the buffers of large results come back when the last view of them has
gone. `clear` gives everything kept to the system.

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
import threading
from collections import OrderedDict
from typing import Any

import numpy as np

from funcgrad.core.array import Array

LARGE = 2**18
KEPT = 512 * 2**20

_raw_free = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("PyMem_RawFree", ctypes.pythonapi))


class ArenaPool:
    """Working memory for the calls of one program: a list of free blocks, used and changed by native code only."""

    __slots__ = ("_words", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._words = (ctypes.c_void_p * 2)(None, size)

    @property
    def address(self) -> int:
        """Where native code finds it."""
        return ctypes.addressof(self._words)

    @property
    def free_blocks(self) -> int:
        """How many blocks are waiting to be used again."""
        count, block = 0, self._words[0]
        while block:
            count, block = count + 1, ctypes.c_void_p.from_address(block - 16).value
        return count

    def clear(self) -> None:
        """Give the free blocks back to the system."""
        block, self._words[0] = self._words[0], None
        while block:
            raw, block = (ctypes.c_void_p.from_address(block - k).value for k in (8, 16))
            _raw_free(raw)

    def __del__(self) -> None:
        self.clear()


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
        self._lock = threading.RLock()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """An Array without values, in memory that was used before where there is any of that size."""
        size = dtype.itemsize
        for n in shape:
            size *= n
        with self._lock:
            waiting = self._free.get(size)
            buffer = waiting.pop() if waiting else None
            self.kept -= 0 if buffer is None else size
        if buffer is None:
            buffer = np.empty(size, np.uint8)
        return np.ndarray.__new__(Array, shape, dtype, buffer.view(Block))

    def give(self, buffer: np.ndarray[Any, Any]) -> None:
        """Keep a buffer that nobody uses any more; those kept longest go."""
        with self._lock:
            self._free.setdefault(buffer.nbytes, []).append(buffer)
            self._free.move_to_end(buffer.nbytes)
            self.kept += buffer.nbytes
            while self.kept > KEPT:
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
