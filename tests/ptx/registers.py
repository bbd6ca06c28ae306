"""Operands of instructions as functions of a running machine: registers, constants and addresses.

A register is an array with an element for each thread, of bits without sign; what an instruction makes of them is a
view. Which threads are meant is a slice or an array of their numbers, rising.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.ptx.arithmetic import dtype
from tests.ptx.errors import UnknownPtx
from tests.ptx.parse import Function, Imm, Instruction, Operand, Reg, Sink, Sym

if TYPE_CHECKING:
    from tests.ptx.machine import Machine

Array = Any
Threads = Any
Get = Callable[["Machine", Threads], Array]
Put = Callable[["Machine", Threads, Array], None]

SPECIAL = {
    **{f"%{name}.{axis}": (name, k) for name in ("tid", "ctaid", "ntid", "nctaid") for k, axis in enumerate("xyz")},
    **{f"%{name}": (name, 0) for name in ("laneid", "warpid", "nwarpid", "dynamic_smem_size", "total_smem_size")},
    **{f"%lanemask_{name}": (f"lanemask_{name}", 0) for name in ("eq", "le", "lt", "ge", "gt")},
}
"""Special registers: the name of what the machine knows, and the axis."""


@dataclass(slots=True)
class Scope:
    """Where the names of one function lead: registers to their numbers, variables to addresses.

    `at` is the place of the first instruction in the code of the module, `symbols` holds addresses.
    """

    function: Function
    at: int
    slots: dict[str, tuple[int, str]]
    symbols: dict[str, int]
    specials: dict[str, int]
    scopes: dict[str, Scope]
    calls: dict[int, tuple[str, tuple[str, ...]]] = field(default_factory=dict)  # by return place: callee, results
    instruction: Instruction | None = None

    def unknown(self, what: str) -> UnknownPtx:
        """The error for something in the instruction that is being read."""
        i = self.instruction
        assert i is not None
        name = self.function.name
        return UnknownPtx(f"{i.opcode}: {what} (line {i.line} of {name})", name, i.line)

    def register(self, name: str) -> tuple[int, str]:
        """Number and type of a register."""
        if name in SPECIAL:
            return self.specials.setdefault(name, -1 - len(self.specials)), "u32"
        if name not in self.slots:
            raise self.unknown(f"no register {name}")
        return self.slots[name]

    def label(self, operand: Operand) -> int:
        """The place of a label."""
        if not isinstance(operand, Sym) or operand.name not in self.function.labels:
            raise self.unknown(f"{operand} is no label")
        return self.at + self.function.labels[operand.name]


def constant(scope: Scope, operand: Imm | Sym, type: str) -> Any:
    """A scalar of the type."""
    d = dtype(type)
    if isinstance(operand, Sym):
        if operand.name == "WARP_SZ":
            return d.type(32)
        if operand.name not in scope.symbols or d.itemsize < 8:
            raise scope.unknown(f"no variable {operand.name} whose address fits")
        return np.array(scope.symbols[operand.name] + operand.offset, np.uint64).view(d)[()]
    if operand.float_bytes:
        if operand.float_bytes != d.itemsize:
            raise scope.unknown(f"a float constant of {operand.float_bytes} bytes as {type}")
        return np.array(operand.value, f"u{d.itemsize}").view(d)[()]
    if d.kind == "f":
        raise scope.unknown(f"the integer {operand.value} as {type}")
    if d.kind == "b":
        return np.bool_(operand.value != 0)
    bits = 8 * d.itemsize
    if not -(1 << bits) < operand.value < 1 << bits:
        raise scope.unknown(f"{operand.value} does not fit {type}")
    return np.array(operand.value & (1 << bits) - 1, f"u{d.itemsize}").view(d)[()]


def reader(scope: Scope, operand: Operand, type: str, loose: bool = False, undefined: bool = False) -> Get:
    """The value of an operand; `loose` takes the low bits of a wider register, `undefined` one that nothing writes."""
    if isinstance(operand, Imm | Sym):
        value = constant(scope, operand, type)
        return lambda m, threads: value
    if not isinstance(operand, Reg):
        raise scope.unknown(f"operand {operand}")
    slot, have = scope.register(operand.name)
    d, store = dtype(type), dtype(have)
    narrow = None
    if (d.kind == "b") != (store.kind == "b") or d.itemsize > store.itemsize:
        raise scope.unknown(f"{operand.name} is .{have}, not .{type}")
    if d.itemsize < store.itemsize:
        if not loose:
            raise scope.unknown(f"{operand.name} is .{have}, not .{type}")
        narrow = np.dtype(f"u{d.itemsize}")
    negated = operand.negated
    if negated and d.kind != "b":
        raise scope.unknown(f"!{operand.name}")

    def get(m: Machine, threads: Threads) -> Array:
        a = m.registers[slot]
        if a is None and undefined:
            return np.full(m.n, -1).astype(store)[threads].view(d)
        if a is None or slot in m.partial:
            m.check_defined(slot, threads)
        a = a[threads]
        if narrow is not None:
            a = a.astype(narrow)
        return ~a if negated else a.view(d)

    return get


def writer(scope: Scope, operand: Operand, type: str, loose: bool = False) -> Put:
    """What stores a result; `loose` extends it to a wider register, by its sign if the type has one."""
    if isinstance(operand, Sink):
        return lambda m, threads, value: None
    if not isinstance(operand, Reg) or operand.name in SPECIAL:
        raise scope.unknown(f"result {operand}")
    slot, have = scope.register(operand.name)
    d = dtype(type)
    store = np.dtype(bool) if have == "pred" else np.dtype(f"u{dtype(have).itemsize}")
    if (d.kind == "b") != (store.kind == "b") or d.itemsize > store.itemsize:
        raise scope.unknown(f"{operand.name} is .{have}, not .{type}")
    wide = None
    if d.itemsize < store.itemsize:
        if not loose or d.kind == "f":
            raise scope.unknown(f"{operand.name} is .{have}, not .{type}")
        wide = np.dtype(f"{d.kind}{store.itemsize}")

    def put(m: Machine, threads: Threads, value: Array) -> None:
        if wide is not None:
            value = value.astype(wide)
        value = value.view(store)
        if threads is m.all:
            m.registers[slot] = value if value.shape == (m.n,) else np.full(m.n, value)
            m.partial.pop(slot, None)
            return
        a = m.registers[slot]
        if a is None:
            a = m.registers[slot] = np.zeros(m.n, store)
            m.partial[slot] = np.zeros(m.n, bool)
        if slot in m.partial:
            m.partial[slot][threads] = True
        a[threads] = value

    return put
