"""What checked code calls: see `sanitize`. The first fault of a call, and the bounds of pointers that are in memory.

In: the checks of a module. Out: addresses of functions for the code to call, and the error of the fault that they saw.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping
from typing import Any

from funcgrad.base.errors import ProgramError
from funcgrad.core.ir import Program
from funcgrad.lowering.sanitize import Sites


class Bounds:
    """The buffers of pointers that are in memory or in integers, by address, and blocks that grow."""

    def __init__(self) -> None:
        self._ends: dict[int, tuple[int, int]] = {}
        self._blocks: dict[int, list[int]] = {}  # by address: pointers into it
        self._lock = threading.RLock()

    def add(self, pointer: int, low: int, high: int) -> None:
        """A pointer was stored."""
        with self._lock:
            self._ends[pointer] = low, high
            if low in self._blocks:
                self._blocks[low].append(pointer)

    def add_array(self, x: Any) -> None:
        """An array whose address is stored."""
        self.add(x.ctypes.data, x.ctypes.data, x.ctypes.data + x.nbytes)

    def of(self, pointer: int) -> tuple[int, int]:
        """The first address of its buffer and the first behind it; nothing may be reached through one unknown."""
        return self._ends.get(pointer, (0, 0))

    def allocated(self, block: int, size: int) -> None:
        """A block is there."""
        with self._lock:
            self._blocks[block] = []
            self.add(block, block, block + size)

    def freed(self, block: int) -> None:
        """A block goes: pointers to it are worth nothing. To be called before another one can take its place."""
        with self._lock:
            for pointer in self._blocks.pop(block, ()):
                self._ends.pop(pointer, None)


BOUNDS = Bounds()

WORD, PLACE = ctypes.c_int64, ctypes.c_void_p
_KINDS = {
    "check_report": ctypes.CFUNCTYPE(None, *[ctypes.c_uint64] * 6),
    "check_escape": ctypes.CFUNCTYPE(None, PLACE, ctypes.c_uint64, ctypes.c_uint64),
    "check_low": ctypes.CFUNCTYPE(ctypes.c_uint64, PLACE),
    "check_high": ctypes.CFUNCTYPE(ctypes.c_uint64, PLACE),
    "realloc": ctypes.CFUNCTYPE(PLACE, PLACE, ctypes.c_size_t),
    "free": ctypes.CFUNCTYPE(None, PLACE),
}


class Checked:
    """The checks of one module while it runs.

    Parameters
    ----------
    sites
        From `instrumented`.
    """

    def __init__(self, sites: Sites) -> None:
        self.sites = sites
        self.fault: tuple[int, ...] | None = None
        """The first: its check, the address, how many bytes, the bounds, and the call."""
        self._last: tuple[int, ...] = (0,) * 6
        library = ctypes.CDLL(None)
        allocate, free = (_KINDS[name]((name, library)) for name in ("realloc", "free"))

        def realloc(old: int | None, size: int) -> int | None:
            BOUNDS.freed(old or 0)
            new = allocate(old, size)
            if new:
                BOUNDS.allocated(new, size)
            return new  # type: ignore[no-any-return]

        def release(old: int | None) -> None:
            BOUNDS.freed(old or 0)
            free(old)

        functions = {
            "check_report": self._report,
            "check_escape": lambda p, low, high: BOUNDS.add(p or 0, low, high),
            "check_low": lambda p: BOUNDS.of(p or 0)[0],
            "check_high": lambda p: BOUNDS.of(p or 0)[1],
            "realloc": realloc,
            "free": release,
        }
        self._held = {name: _KINDS[name](f) for name, f in functions.items()}

    def _report(self, *words: int) -> None:
        if self.fault is None:
            self.fault = words

    def imports(self, others: Mapping[str, int]) -> dict[str, int]:
        """Addresses of the functions, for the names that the code uses."""
        needed = {"memset": int(ctypes.cast(ctypes.CDLL(None).memset, ctypes.c_void_p).value or 0)}
        names = [name for name in _KINDS if name.startswith("check_") or name in others]
        at = lambda f: int(ctypes.c_void_p.from_address(ctypes.addressof(f)).value or 0)
        return needed | {name: at(self._held[name]) for name in names}

    def error(self, program: Program, kernels: str) -> ProgramError:
        """Where the first fault was."""
        self._last, self.fault = self.fault or self._last, None  # another thread may have taken it
        number, address, size, low, high, call = self._last
        site = self.sites[number]
        kernel, names = self.sites.calls[call] if call < len(self.sites.calls) else ("the driver", [])
        where = site.origin
        if site.function == kernel and where.startswith("%p") and int(where[2:]) < len(names):
            where = names[int(where[2:])]
        return ProgramError(
            f"the machine code of program {program.name} reached outside of a buffer: {size} bytes at offset "
            f"{address - low} of {where}, which has {high - low} bytes\n"
            f"  kernel {call}, @{site.function}: {site.text}\n{_kernel(kernels, call)}",
            hint="a fault of funcgrad: FUNCGRAD_DUMP=directory writes the stages of each Program there",
        )


def _kernel(text: str, call: int) -> str:
    """One kernel of those that are printed."""
    start = text.find(f"kernel {call}:")
    lines = text[max(start, 0) :].split("\n")
    end = next((i for i, line in enumerate(lines[1:], 1) if not line.startswith("  ")), len(lines))
    return "\n".join([f"  {line}" for line in lines[:end]]) if start >= 0 else ""


__all__ = ["BOUNDS", "Bounds", "Checked"]
