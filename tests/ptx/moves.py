"""Instructions that move registers and addresses: `mov`, `cvta`, fences."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.ptx.arithmetic import dtype
from tests.ptx.parse import Vec
from tests.ptx.registers import Scope, reader, writer

Run = Callable[[Any, Any], None]
FENCE = re.compile(r"membar\.(?:cta|gl|sys)|fence(?:\.(?:sc|acq_rel|acquire|release))?\.(?:cta|gpu|sys|cluster)")


def mov(scope: Scope, place: int) -> Run:
    """``mov``, and the packing of two or four registers into a wider one, or the reverse."""
    i = scope.instruction
    assert i is not None
    found = re.fullmatch(r"mov\.(pred|[bsuf](?:16|32|64))", i.opcode)
    if not found or len(i.operands) != 2:
        raise scope.unknown("unknown instruction")
    to, source = i.operands
    if isinstance(to, Vec) or isinstance(source, Vec):
        return _unpack(scope, to, source, found[1]) if isinstance(to, Vec) else _pack(scope, to, source, found[1])
    get, put = reader(scope, source, found[1]), writer(scope, to, found[1])
    return lambda m, threads: put(m, threads, get(m, threads).copy())


def _part(scope: Scope, whole: str, count: int) -> str:
    bits = int(whole[1:]) // count
    if whole[0] != "b" or bits not in (8, 16, 32):
        raise scope.unknown(f"{count} parts")
    return f"b{bits}"


def _pack(scope: Scope, to: Any, source: Vec, whole: str) -> Run:
    part = _part(scope, whole, len(source.items))
    gets = [reader(scope, o, part) for o in source.items]
    put, wide, bits = writer(scope, to, whole), dtype(whole).type, int(part[1:])

    def run(m: Any, threads: Any) -> None:
        out = gets[0](m, threads).astype(wide)
        for k, get in enumerate(gets[1:], 1):
            out = out | get(m, threads).astype(wide) << wide(k * bits)
        put(m, threads, out)

    return run


def _unpack(scope: Scope, to: Vec, source: Any, whole: str) -> Run:
    part = _part(scope, whole, len(to.items))
    get, wide, bits = reader(scope, source, whole), dtype(whole).type, int(part[1:])
    puts = [writer(scope, o, part) for o in to.items]

    def run(m: Any, threads: Any) -> None:
        value = get(m, threads)
        for k, put in enumerate(puts):
            put(m, threads, (value >> wide(k * bits)).astype(dtype(part)))

    return run


def cvta(scope: Scope, place: int) -> Run:
    """Between generic addresses and those of a space, which are the same numbers here."""
    i = scope.instruction
    assert i is not None
    if not re.fullmatch(r"cvta(?:\.to)?\.(?:global|shared|local|const)\.u64", i.opcode) or len(i.operands) != 2:
        raise scope.unknown("unknown instruction")
    get, put = reader(scope, i.operands[1], "u64"), writer(scope, i.operands[0], "u64")
    return lambda m, threads: put(m, threads, np.array(get(m, threads)))


def fence(scope: Scope, place: int) -> Run:
    """Nothing: accesses take effect at once, and races are told by barriers alone."""
    i = scope.instruction
    assert i is not None
    if not FENCE.fullmatch(i.opcode) or i.operands:
        raise scope.unknown("unknown instruction")
    return lambda m, threads: None


BUILDERS = {"mov": mov, "cvta": cvta, "membar": fence, "fence": fence}
