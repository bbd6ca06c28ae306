"""What checked code calls: see `sanitize`. The first fault of a call, and the bounds of pointers that are in memory.

In: the checks of a module. Out: addresses of functions for the code to call, and the error of the fault that they saw.
"""

from __future__ import annotations

import ctypes
from collections import defaultdict
from typing import Any

from funcgrad.base.errors import ProgramError
from funcgrad.core.ir import Program
from funcgrad.lowering.sanitize import Sites


class Bounds:
    """The buffers of pointers that are in memory or in integers, by address; of one unknown the bounds are 0 and 0.

    Code calls methods of dictionaries, which no signal interrupts.
    """

    def __init__(self) -> None:
        self.low: defaultdict[int, int] = defaultdict(int)
        self.high: defaultdict[int, int] = defaultdict(int)

    def add(self, pointer: int, low: int, high: int) -> None:
        """A pointer was stored."""
        self.low[pointer], self.high[pointer] = low, high

    def add_array(self, x: Any) -> None:
        """An array whose address is stored."""
        self.add(x.ctypes.data, x.ctypes.data, x.ctypes.data + x.nbytes)


BOUNDS = Bounds()

_word = ctypes.c_uint64
_KINDS = {
    "check_report": ctypes.CFUNCTYPE(None, *[_word] * 6),
    "check_low_is": ctypes.CFUNCTYPE(None, _word, _word),
    "check_high_is": ctypes.CFUNCTYPE(None, _word, _word),
    "check_low": ctypes.CFUNCTYPE(_word, _word),
    "check_high": ctypes.CFUNCTYPE(_word, _word),
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
        functions = {
            "check_report": self._report,
            "check_low_is": BOUNDS.low.__setitem__,
            "check_high_is": BOUNDS.high.__setitem__,
            "check_low": BOUNDS.low.__getitem__,
            "check_high": BOUNDS.high.__getitem__,
        }
        self._held = {name: _KINDS[name](f) for name, f in functions.items()}

    def _report(self, *words: int) -> None:
        if self.fault is None:
            self.fault = words

    def imports(self) -> dict[str, int]:
        """Addresses of the functions, for the names that the code uses."""
        at = lambda f: int(ctypes.c_void_p.from_address(ctypes.addressof(f)).value or 0)
        fill = int(ctypes.cast(ctypes.CDLL(None).memset, ctypes.c_void_p).value or 0)
        return {"memset": fill} | {name: at(f) for name, f in self._held.items()}

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
