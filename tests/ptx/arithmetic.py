"""What the instructions without side effects compute: opcode to result types, operand types and a NumPy function.

An opcode is matched as a whole, so that a modifier which is not known here makes it unknown. Carry flags are operands
of the name `%carry`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.ptx import exact

Array = Any
CARRY = "%carry"
SHORT = {"b": "u", "u": "u", "s": "i", "f": "f"}


def dtype(name: str) -> np.dtype:
    """The NumPy type of a PTX type; b-types are unsigned."""
    return np.dtype(bool) if name == "pred" else np.dtype(f"{SHORT[name[0]]}{int(name[1:]) // 8}")


@dataclass(frozen=True, slots=True)
class Op:
    """Results and operands by their PTX types, and what computes the results from the operands.

    `implicit` operands and results are registers that stand in no text, such as the carry; they come last.
    `optional` of the results may be absent (``p|q``). The operand number `undefined` may be a register that nothing
    writes, which is NaN then.
    """

    results: tuple[str, ...]
    operands: tuple[str, ...]
    compute: Callable[..., Any]
    reads_carry: bool = False
    writes_carry: bool = False
    undefined: int | None = None


TABLE: list[tuple[re.Pattern[str], Callable[..., Op]]] = []


def opcode(pattern: str) -> Callable[[Callable[..., Op]], Callable[..., Op]]:
    """Enter a maker of `Op`s, called with the groups of the pattern, for the opcodes that match."""
    text = pattern.replace("INT", "[su](?:16|32|64)").replace("BITS", "b(?:16|32|64)").replace("FLT", "f(?:32|64)")

    def enter(make: Callable[..., Op]) -> Callable[..., Op]:
        TABLE.append((re.compile(text), make))
        return make

    return enter


def find(name: str, immediate: int | None = None) -> Op | None:
    """The operation of an opcode; of ``lop3`` with its table. None if there is none."""
    for pattern, make in TABLE:
        found = pattern.fullmatch(name)
        if found:
            return make(*found.groups()) if immediate is None else make(*found.groups(), immediate)
    return None


def same(t: str, arity: int, compute: Callable[..., Any]) -> Op:
    return Op((t,), (t,) * arity, compute)


# -- floats

FLOAT = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


@opcode(r"(add|sub|mul)(?:\.rn)?\.(FLT)")
def _float(name: str, t: str) -> Op:
    return same(t, 2, FLOAT[name])


@opcode(r"div\.rn\.(FLT)")
def _divide(t: str) -> Op:
    return same(t, 2, np.divide)


@opcode(r"sqrt\.rn\.(FLT)")
def _sqrt(t: str) -> Op:
    return same(t, 1, np.sqrt)


@opcode(r"rcp\.rn\.(FLT)")
def _reciprocal(t: str) -> Op:
    return same(t, 1, lambda x: dtype(t).type(1) / x)


@opcode(r"(?:fma|mad)\.rn\.(FLT)")
def _fma(t: str) -> Op:
    return same(t, 3, exact.fma32 if t == "f32" else exact.fma64)


@opcode(r"(neg|abs)\.(FLT)")
def _sign(name: str, t: str) -> Op:
    return same(t, 1, np.negative if name == "neg" else np.abs)


@opcode(r"copysign\.(FLT)")
def _copysign(t: str) -> Op:
    # LLVM leaves a magnitude undefined of which only the sign matters.
    return Op((t,), (t, t), lambda sign, x: np.copysign(x, sign), undefined=1)


@opcode(r"(min|max)(\.NaN)?\.(FLT)")
def _float_extremum(name: str, nan: str | None, t: str) -> Op:
    functions = (np.fmin, np.bitwise_or) if name == "min" else (np.fmax, np.bitwise_and)
    return same(t, 2, exact.extremum(*functions, keep_nan=nan is not None))


CLASSES = {
    "finite": np.isfinite, "infinite": np.isinf, "number": lambda x: ~np.isnan(x), "notanumber": np.isnan,
    "normal": lambda x: np.isfinite(x) & (np.abs(x) >= np.finfo(x.dtype).tiny),
    "subnormal": lambda x: (np.abs(x) < np.finfo(x.dtype).tiny) & (x != 0),
}  # fmt: skip


@opcode(rf"testp\.({'|'.join(CLASSES)})\.(FLT)")
def _class(name: str, t: str) -> Op:
    return Op(("pred",), (t,), CLASSES[name])


# -- integers


def quotient(x: Array, y: Array) -> Array:
    """x / y toward zero."""
    return (x - np.fmod(x, y)) // y


INTEGER = {"add": np.add, "sub": np.subtract, "min": np.minimum, "max": np.maximum, "div": quotient, "rem": np.fmod}


@opcode(r"(add|sub|min|max|div|rem|mul\.lo)\.(INT)")
def _integer(name: str, t: str) -> Op:
    if name not in ("div", "rem"):
        return same(t, 2, INTEGER.get(name, np.multiply))

    def compute(x: Array, y: Array) -> Array:
        if np.any(y == 0):
            raise ZeroDivisionError(f"{name} by zero has no defined result")
        return INTEGER[name](x, y)

    return same(t, 2, compute)


@opcode(r"(min|max)\.relu\.(s32)")
def _at_least_zero(name: str, t: str) -> Op:
    return same(t, 2, lambda x, y: np.maximum(INTEGER[name](x, y), dtype(t).type(0)))


@opcode(r"mul\.hi\.(INT)")
def _high(t: str) -> Op:
    return same(t, 2, exact.multiply_high)


@opcode(r"mul\.wide\.([su])(16|32)")
def _wide(sign: str, bits: str) -> Op:
    t, wide = f"{sign}{bits}", f"{sign}{2 * int(bits)}"
    return Op((wide,), (t, t), lambda x, y: np.multiply(x, y, dtype=dtype(wide)))


@opcode(r"mad\.lo\.(INT)")
def _mad(t: str) -> Op:
    return same(t, 3, lambda x, y, z: x * y + z)


@opcode(r"mad\.hi\.(INT)")
def _mad_high(t: str) -> Op:
    return same(t, 3, lambda x, y, z: exact.multiply_high(x, y) + z)


@opcode(r"mad\.wide\.([su])(16|32)")
def _mad_wide(sign: str, bits: str) -> Op:
    t, wide = f"{sign}{bits}", f"{sign}{2 * int(bits)}"
    return Op((wide,), (t, t, wide), lambda x, y, z: np.multiply(x, y, dtype=dtype(wide)) + z)


@opcode(r"(neg|abs)\.(s(?:16|32|64))")
def _negate(name: str, t: str) -> Op:
    return same(t, 1, np.negative if name == "neg" else np.abs)


@opcode(r"(add|sub)(c?)(\.cc)?\.([su](?:32|64))")
def _carry(name: str, reads: str, writes: str | None, t: str) -> Op:
    u = f"u{t[1:]}"

    def compute(x: Array, y: Array, carry: Array | None = None) -> Any:
        c = dtype(u).type(0) if carry is None else carry.astype(dtype(u))
        if name == "add":
            first = x + y
            out = first + c
            flag = (first < x) | (out < first)
        else:
            first = x - y
            out = first - c
            flag = (x < y) | (first < c)
        return (out, flag) if writes else out

    return Op((u,), (u, u), compute, reads_carry=bool(reads), writes_carry=bool(writes))


@opcode(r"mad(c?)\.(lo|hi)(\.cc)?\.([su](?:32|64))")
def _mad_carry(reads: str, half: str, writes: str | None, t: str) -> Op:
    add = _carry("add", reads, writes, t)
    u, product = f"u{t[1:]}", np.multiply if half == "lo" else exact.multiply_high

    def compute(x: Array, y: Array, z: Array, *carry: Array) -> Any:
        return add.compute(product(x, y).view(dtype(u)), z, *carry)

    return Op((u,), (t, t, u), compute, reads_carry=bool(reads), writes_carry=bool(writes))


# -- bits

BITWISE = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


@opcode(r"(and|or|xor)\.(BITS|pred)")
def _bitwise(name: str, t: str) -> Op:
    return same(t, 2, BITWISE[name])


@opcode(r"not\.(BITS|pred)")
def _not(t: str) -> Op:
    return same(t, 1, np.invert)


@opcode(r"(shl|shr)\.([bsu](?:16|32|64))")
def _shift(name: str, t: str) -> Op:
    bits = int(t[1:])

    def compute(x: Array, amount: Array) -> Array:
        n = np.minimum(amount, np.uint32(bits - 1)).astype(x.dtype)
        if name == "shl":
            return np.where(amount < bits, x << n, x.dtype.type(0))
        out = x >> n
        return out if x.dtype.kind == "i" else np.where(amount < bits, out, x.dtype.type(0))

    return Op((t,), (t, "b32"), compute)


@opcode(r"shf\.([lr])\.(wrap|clamp)\.b32")
def _funnel(side: str, mode: str) -> Op:
    return same("b32", 3, exact.funnel(side == "l", mode == "clamp"))


@opcode(r"popc\.(b(?:32|64))")
def _popc(t: str) -> Op:
    return Op(("b32",), (t,), lambda x: np.bitwise_count(x).astype(np.uint32))


@opcode(r"clz\.(b(?:32|64))")
def _clz(t: str) -> Op:
    return Op(("b32",), (t,), exact.leading_zeros)


@opcode(r"brev\.(b(?:32|64))")
def _brev(t: str) -> Op:
    return same(t, 1, exact.reverse_bits)


@opcode(r"bfind(\.shiftamt)?\.([su](?:32|64))")
def _bfind(shift: str | None, t: str) -> Op:
    bits = int(t[1:])

    def compute(x: Array) -> Array:
        word = np.where(x < 0, ~x, x).astype(dtype(f"u{bits}"))
        zeros = exact.leading_zeros(word)
        found = zeros if shift else np.uint32(bits - 1) - zeros
        return np.where(word == 0, np.uint32(0xFFFFFFFF), found)

    return Op(("u32",), (t,), compute)


@opcode(r"bfe\.([su](?:32|64))")
def _bfe(t: str) -> Op:
    return Op((t,), (t, "u32", "u32"), exact.extract_bits)


@opcode(r"bfi\.(b(?:32|64))")
def _bfi(t: str) -> Op:
    return Op((t,), (t, t, "u32", "u32"), exact.insert_bits)


@opcode(r"prmt\.b32")
def _prmt() -> Op:
    return same("b32", 3, exact.permute_bytes)


@opcode(r"lop3\.b32")
def _lop3(table: int) -> Op:
    return same("b32", 3, exact.logic3(table))


# -- comparisons and selection

COMPARE = {
    "eq": np.equal, "ne": lambda x, y: np.less(x, y) | np.greater(x, y), "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal, "hi": np.greater,
    "hs": np.greater_equal, "num": lambda x, y: ~(np.isnan(x) | np.isnan(y)),
    "nan": lambda x, y: np.isnan(x) | np.isnan(y),
}  # fmt: skip
UNORDERED = {"equ": "ne", "neu": "eq", "ltu": "ge", "leu": "gt", "gtu": "le", "geu": "lt"}


def comparison(name: str) -> Callable[[Array, Array], Array]:
    """A comparison; those that end in u are true where an operand is NaN."""
    if name in UNORDERED:
        opposite = COMPARE[UNORDERED[name]]
        return lambda x, y: ~opposite(x, y)
    return COMPARE[name]


def compares(name: str, t: str) -> bool:
    """Whether a type has a comparison of that name."""
    if t[0] == "f":
        return name not in ("lo", "ls", "hi", "hs")
    if name in UNORDERED or name in ("num", "nan"):
        return False
    return {"b": name in ("eq", "ne"), "s": name[:2] not in ("lo", "ls", "hi", "hs")}.get(t[0], True)


@opcode(r"setp\.(\w\w\w?)(?:\.(and|or|xor))?\.([bsuf](?:16|32|64))")
def _setp(name: str, join: str | None, t: str) -> Op:
    if not compares(name, t):
        raise LookupError(name)
    compare = comparison(name)
    if join is None:
        return Op(("pred", "pred"), (t, t), lambda x, y: (c := compare(x, y), ~c))

    def compute(x: Array, y: Array, other: Array) -> tuple[Array, Array]:
        c = compare(x, y)
        return BITWISE[join](c, other), BITWISE[join](~c, other)

    return Op(("pred", "pred"), (t, t, "pred"), compute)


@opcode(r"set\.(\w\w\w?)\.([us]32|f32)\.([bsuf](?:16|32|64))")
def _set(name: str, to: str, t: str) -> Op:
    if not compares(name, t):
        raise LookupError(name)
    true = dtype(to).type(1.0 if to == "f32" else -1 if to == "s32" else 0xFFFFFFFF)
    compare = comparison(name)
    return Op((to,), (t, t), lambda x, y: np.where(compare(x, y), true, dtype(to).type(0)))


@opcode(r"selp\.([bsuf](?:16|32|64))")
def _selp(t: str) -> Op:
    return Op((t,), (t, t, "pred"), lambda x, y, p: np.where(p, x, y))


# -- conversions

ROUND = {"n": np.rint, "z": np.trunc, "m": np.floor, "p": np.ceil}


@opcode(r"cvt(?:\.(r[nzmp]i?))?(\.sat)?\.([su](?:8|16|32|64)|FLT)\.([su](?:8|16|32|64)|FLT)")
def _convert(rounding: str | None, sat: str | None, to: str, source: str) -> Op:
    d, s, r = dtype(to), dtype(source), rounding or ""
    if to[0] != "f" and source[0] != "f":
        if rounding:
            raise LookupError(rounding)
        return Op((to,), (source,), _saturate(d) if sat else lambda x: x.astype(d))
    if sat and to[0] == "f":
        raise LookupError("sat")
    if to[0] != "f":  # floats to integers
        if len(r) != 3:
            raise LookupError(r)
        return Op((to,), (source,), exact.to_integer(ROUND[r[1]], d))
    if source[0] != "f":
        if r != "rn":
            raise LookupError(r)
        return Op((to,), (source,), lambda x: x.astype(d))
    if to == source and len(r) == 3:
        return same(to, 1, ROUND[r[1]])
    if d.itemsize < s.itemsize and len(r) == 2:
        narrow = (lambda x: x.astype(d)) if r == "rn" else lambda x: exact.round_down32(x, r[1])
        return Op((to,), (source,), narrow)
    if d.itemsize > s.itemsize and not r:
        return Op((to,), (source,), lambda x: x.astype(d))
    raise LookupError(r)


def _saturate(to: np.dtype) -> Callable[[Array], Array]:
    info = np.iinfo(to)

    def convert(x: Array) -> Array:
        source = np.iinfo(x.dtype)
        return np.clip(x, max(info.min, source.min), min(info.max, source.max)).astype(to)

    return convert
