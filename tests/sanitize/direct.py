"""Compiled programs, called on memory that is watched by the processor or by valgrind.

Arguments, results, working memory, the status and the table of addresses are blocks of exactly their size.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

import funcgrad as fg
from funcgrad.lowering import nests
from funcgrad.lowering.executable import Executable, Native


class Block(Protocol):
    """Memory of a number of bytes."""

    address: int
    size: int

    def close(self) -> None:
        """Give it back."""


def run(native: Native, xs: list[Any], block: Callable[[int], Block]) -> list[bytes]:
    """The bytes of the results."""
    inputs = [np.ascontiguousarray(x) for x in xs]
    arguments = [block(x.nbytes) for x in inputs]
    results = [block(a.size * a.dtype.itemsize) for a in native.outputs]
    arena, status = block(native.arena), block(64)
    ctypes.memset(status.address, 0, 64)
    for place, x in zip(arguments, inputs, strict=True):
        ctypes.memmove(place.address, x.ctypes.data, x.nbytes)
    words = [arena.address, status.address, *[p.address for p in (*arguments, *results)]]
    table = block(8 * len(words))
    ctypes.memmove(table.address, (ctypes.c_uint64 * len(words))(*words), table.size)
    code = native.function(table.address)
    assert code == 0, f"the program ended with code {code}"
    found = [ctypes.string_at(p.address, p.size) for p in results]
    for place in (*arguments, *results, arena, status, table):
        place.close()
    return found


def check(name: str, f: Any, args: Iterable[Any], blocks: Iterable[Callable[[int], Block]]) -> None:
    """Run a program on blocks of each kind; it must give the bits of an ordinary call."""
    print(name, flush=True)
    xs = [np.asarray(a) for a in args]
    whole = Executable(fg.make_program(f)(*xs))
    native = whole.whole()
    assert native is not None, "a part of this program is not machine code"
    expected = [np.asarray(x).tobytes() for x in whole(xs)]
    for block in blocks:
        assert run(native, xs, block) == expected, "the results differ from those of an ordinary call"


def plant() -> None:
    """From here on, a vector is loaded one element too far."""
    load = nests.NestEmitter.load
    nests.NestEmitter.load = lambda self, a, stride: load(self, replace(a, offset=a.offset + 1), stride)
