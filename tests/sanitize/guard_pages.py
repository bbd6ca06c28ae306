"""Compiled code on buffers that lie against pages which may not be touched: ``python -m tests.sanitize.guard_pages``.

Each buffer ends exactly where such a page begins; in a second run it begins where one ends. Whatever reaches outside
ends the process by a signal, and the last line names the program. With ``plant``, a load reaches one element too far.
"""

from __future__ import annotations

import ctypes
import faulthandler
import sys
from functools import partial

from tests.sanitize.direct import check, plant
from tests.sanitize.programs import SAMPLE, random_sample

PAGE = 4096
NONE, READ_WRITE = 0, 3
PRIVATE, ANONYMOUS = 0x02, 0x20

_c = ctypes.CDLL(None)
_c.mmap.restype = ctypes.c_void_p
_c.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_c.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_c.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Fenced:
    """Memory with a forbidden page right behind it, or right before it."""

    def __init__(self, size: int, behind: bool) -> None:
        inner = -(-size // PAGE) * PAGE
        self._whole = inner + 2 * PAGE
        self._start = _c.mmap(None, self._whole, NONE, PRIVATE | ANONYMOUS, -1, 0)
        assert self._start not in (None, ctypes.c_void_p(-1).value)
        if inner:
            assert not _c.mprotect(self._start + PAGE, inner, READ_WRITE)
        self.size = size
        self.address = self._start + PAGE + (inner - size if behind else 0)
        ctypes.memset(self.address, 0xFF, size)

    def close(self) -> None:
        """Give it back."""
        _c.munmap(self._start, self._whole)


def main(arguments: list[str]) -> None:
    """All programs."""
    faulthandler.enable()
    if "plant" in arguments:
        plant()
    programs = [*SAMPLE.items(), *random_sample(6)]
    for name, (f, args) in programs:
        check(name, f, args, [partial(Fenced, behind=behind) for behind in (True, False)])
    print(f"{len(programs)} programs")


if __name__ == "__main__":
    main(sys.argv[1:])
