"""Single instructions against integers of Python and fractions, bit for bit, as the PTX manual defines them."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.lowering.test_native_ops import FLOATS, same_bits
from tests.ptx.arithmetic import dtype
from tests.ptx.device import PtxDevice

N = 192
RANDOM = np.random.default_rng(7)
CLASS = {"pred": "pred", 1: "b16", 2: "b16", 4: "b32", 8: "b64"}


def kernel(code: str, result: str, types: list[str]) -> str:
    """PTX that loads operands into %a0, %a1, …, runs `code`, and stores %d."""
    declares, loads = [], []
    for k, t in enumerate([*types, result]):
        name = f"%a{k}" if k < len(types) else "%d"
        declares.append(f".reg .{CLASS[dtype(t).itemsize]} {name};")
        declares.append(f".reg .b64 %p{k};")
        loads.append(f"ld.param.b64 %p{k}, [k_param_{k}]; mad.wide.u32 %p{k}, %t, {dtype(t).itemsize}, %p{k};")
        if k < len(types):
            loads.append(f"ld.global.{t} {name}, [%p{k}];")
    params = ", ".join([f".param .u64 k_param_{k}" for k in range(len(types) + 1)])
    extra = ".reg .pred %q<4>; .reg .b32 %t; .reg .b32 %x<4>; .reg .b64 %y<4>;"
    body = "\n".join([*declares, extra, "mov.u32 %t, %tid.x;", *loads, code])
    return (
        f".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k({params})\n{{\n{body}\n"
        f"st.global.{result} [%p{len(types)}], %d;\nret;\n}}\n"
    )


def run(code: str, result: str, types: list[str], args: list[np.ndarray]) -> np.ndarray:
    device, n = PtxDevice(), len(args[0])
    pointers = []
    for a, t in zip(args, types, strict=True):
        assert a.dtype == dtype(t)
        pointers.append(device.alloc(a.nbytes))
        device.write(pointers[-1], a)
    out = device.alloc(n * dtype(result).itemsize)
    device.launch(device.load(kernel(code, result, types)), "k", (1,), (n,), [*pointers, out])
    return np.frombuffer(device.read(out, n * dtype(result).itemsize), dtype(result))


def numbers(t: str) -> np.ndarray:
    """Values of a type: of every size, and the extreme ones."""
    d = dtype(t)
    bits = 8 * d.itemsize
    word = f"u{d.itemsize}"
    values = RANDOM.integers(0, 2**bits - 1, N, np.uint64, endpoint=True) >> RANDOM.integers(0, bits, N).astype(
        np.uint64
    )
    values = values.astype(word)
    values[:5] = [0, 1, 2 ** (bits - 1), 2 ** (bits - 1) - 1, 2**bits - 1]
    values[N // 2 :] ^= values[N // 2 :] & np.array(1, word) * np.array(2**bits - 1, word)  # negative ones
    return RANDOM.permutation(values).view(d)


def floats(t: str) -> np.ndarray:
    with np.errstate(all="ignore"):
        special = np.array(FLOATS, dtype(t))
    word = f"u{dtype(t).itemsize}"
    bits = RANDOM.integers(0, np.iinfo(word).max, N - 2 * len(special), word, endpoint=True)
    return RANDOM.permutation(np.concatenate([special, special, bits.view(dtype(t))]))


def wrap(x: int, t: str) -> int:
    bits = int(t[1:])
    x &= (1 << bits) - 1
    return x - (1 << bits) if t[0] == "s" and x >> (bits - 1) else x


def check_integers(
    opcode: str, result: str, types: list[str], oracle: Callable[..., int], *, args: Any = None, suffix: str = ""
) -> None:
    args = args or [numbers(t) for t in types]
    code = f"{opcode} %d, {', '.join(f'%a{k}' for k in range(len(types)))}{suffix};"
    found = run(code, result, types, args)
    expected = [wrap(oracle(*values), result) for values in zip(*[a.tolist() for a in args], strict=True)]
    assert found.tolist() == expected, opcode


def toward_zero(x: int, y: int) -> int:
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def test_arithmetic_of_integers() -> None:
    for t in ("s16", "u16", "s32", "u32", "s64", "u64"):
        bits = int(t[1:])
        check_integers(f"add.{t}", t, [t, t], lambda x, y: x + y)
        check_integers(f"sub.{t}", t, [t, t], lambda x, y: x - y)
        check_integers(f"mul.lo.{t}", t, [t, t], lambda x, y: x * y)
        check_integers(f"mul.hi.{t}", t, [t, t], lambda x, y, n=bits: x * y >> n)
        check_integers(f"mad.lo.{t}", t, [t, t, t], lambda x, y, z: x * y + z)
        check_integers(f"min.{t}", t, [t, t], min)
        check_integers(f"max.{t}", t, [t, t], max)
        if t == "s32":
            check_integers("min.relu.s32", t, [t, t], lambda x, y: max(min(x, y), 0))
            check_integers("max.relu.s32", t, [t, t], lambda x, y: max(x, y, 0))
        divisor = numbers(t)
        divisor[divisor == 0] = 3
        args = [numbers(t), divisor]
        args[0][:8], args[1][:8] = np.iinfo(dtype(t)).min, np.array(-1).astype(dtype(t))
        check_integers(f"div.{t}", t, [t, t], toward_zero, args=args)
        check_integers(f"rem.{t}", t, [t, t], lambda x, y: x - toward_zero(x, y) * y, args=args)
        if bits < 64:
            wide = f"{t[0]}{2 * bits}"
            check_integers(f"mul.wide.{t}", wide, [t, t], lambda x, y: x * y)
            check_integers(f"mad.wide.{t}", wide, [t, t, wide], lambda x, y, z: x * y + z)
        if t[0] == "s":
            check_integers(f"neg.{t}", t, [t], lambda x: -x)
            check_integers(f"abs.{t}", t, [t], abs)


def test_shifts_and_bits() -> None:
    amounts = RANDOM.integers(0, 80, N).astype(np.uint32)
    for n in (16, 32, 64):
        check_integers(f"shl.b{n}", f"u{n}", [f"b{n}", "b32"], lambda x, s: x << s, args=[numbers(f"b{n}"), amounts])
        for t in (f"s{n}", f"u{n}"):
            check_integers(f"shr.{t}", t, [t, "b32"], lambda x, s: x >> s, args=[numbers(t), amounts])
        for name, f in (("and", int.__and__), ("or", int.__or__), ("xor", int.__xor__)):
            check_integers(f"{name}.b{n}", f"u{n}", [f"b{n}", f"b{n}"], f)
        check_integers(f"not.b{n}", f"u{n}", [f"b{n}"], lambda x: ~x)
    for side, mode in (("l", "wrap"), ("l", "clamp"), ("r", "wrap"), ("r", "clamp")):

        def funnel(low: int, high: int, s: int, side: str = side, mode: str = mode) -> int:
            s = s & 31 if mode == "wrap" else min(s, 32)
            both = high << 32 | low
            return both << s >> 32 if side == "l" else both >> s

        args = [numbers("b32"), numbers("b32"), amounts]
        check_integers(f"shf.{side}.{mode}.b32", "u32", ["b32"] * 3, funnel, args=args)


def test_counting_and_fields_of_bits() -> None:
    position, length = (RANDOM.integers(0, 80, N).astype(np.uint32) for _ in range(2))
    for n in (32, 64):
        check_integers(f"popc.b{n}", "u32", [f"b{n}"], int.bit_count)
        check_integers(f"clz.b{n}", "u32", [f"b{n}"], lambda x, n=n: n - x.bit_length())
        check_integers(f"brev.b{n}", f"u{n}", [f"b{n}"], lambda x, n=n: int(f"{x:0{n}b}"[::-1], 2))
        for t in (f"s{n}", f"u{n}"):
            highest = lambda x: (x if x >= 0 else ~x).bit_length() - 1
            check_integers(f"bfind.{t}", "u32", [t], highest)

            def extract(x: int, p: int, count: int, n: int = n, t: str = t) -> int:
                bits = [x >> k & 1 for k in range(n)]
                sign = 0 if t[0] == "u" or count == 0 else bits[min(p + count - 1, n - 1)]
                return sum((bits[p + k] if k < count and p + k < n else sign) << k for k in range(n))

            check_integers(f"bfe.{t}", t, [t, "u32", "u32"], extract, args=[numbers(t), position, length])

        def insert(x: int, into: int, p: int, count: int, n: int = n) -> int:
            for k in range(min(count, max(n - p, 0))):
                into = into & ~(1 << p + k) | (x >> k & 1) << p + k
            return into

        args = [numbers(f"b{n}"), numbers(f"b{n}"), position, length]
        check_integers(f"bfi.b{n}", f"u{n}", [f"b{n}", f"b{n}", "u32", "u32"], insert, args=args)


def test_bytes_and_logic_of_three() -> None:
    def permute(x: int, y: int, selector: int) -> int:
        both, out = (y << 32 | x).to_bytes(8, "little"), 0
        for k in range(4):
            s = selector >> 4 * k & 15
            byte = both[s & 7]
            out |= (byte if s < 8 else 255 * (byte >> 7)) << 8 * k
        return out

    check_integers("prmt.b32", "u32", ["b32"] * 3, permute)
    for table in (0xE8, 0x96, 0x1D, 0xFE):

        def logic(x: int, y: int, z: int, table: int = table) -> int:
            return sum((table >> (4 * (x >> k & 1) + 2 * (y >> k & 1) + (z >> k & 1)) & 1) << k for k in range(32))

        check_integers("lop3.b32", "u32", ["b32"] * 3, logic, suffix=f", {table}")


def test_carries() -> None:
    """Numbers of 128 bits, added, subtracted and multiplied."""
    for name, f in (("add", lambda x, y: x + y), ("sub", lambda x, y: x - y)):
        args = [numbers("u64") for _ in range(4)]
        code = f"{name}.cc.u64 %y0, %a0, %a2; {name}c.cc.u64 %y1, %a1, %a3; {name}c.u64 %y2, 0, 0; "
        whole = [f(x | h << 64, y | k << 64) for x, h, y, k in zip(*[a.tolist() for a in args], strict=True)]
        for k in range(3):
            found = run(code + f"mov.b64 %d, %y{k};", "u64", ["u64"] * 4, args)
            assert found.tolist() == [x >> 64 * k & 2**64 - 1 for x in whole]
    args = [numbers("u32") for _ in range(3)]
    code = "mad.lo.cc.u32 %x0, %a0, %a1, %a2; madc.hi.u32 %x1, %a0, %a1, 0; mov.b64 %d, {%x0, %x1};"
    found = run(code, "u64", ["u32"] * 3, args)
    assert found.tolist() == [x * y + z for x, y, z in zip(*[a.tolist() for a in args], strict=True)]


def exact(x: Fraction, t: str, rounding: Callable[[Fraction], int] = round) -> Any:
    """The float for a fraction: its quotient by the unit of its last digit, rounded; ties to even."""
    digits, least = (24, -149) if t == "f32" else (53, -1074)
    if x == 0:
        return dtype(t).type(0)
    unit = max(math.floor(math.log2(abs(x.numerator)) - math.log2(x.denominator)) - digits - 2, least)
    while abs(n := rounding(x / Fraction(2) ** unit)) > 2**digits:
        unit += 1
    value = abs(n) * Fraction(2) ** unit
    over = value > Fraction(np.finfo(dtype(t)).max.item())
    return dtype(t).type((math.inf if over else float(value)) * (-1.0 if x < 0 else 1.0))


@pytest.mark.parametrize("t", ["f32", "f64"])
def test_fma_has_one_rounding(t: str) -> None:
    d = dtype(t)
    x, y, z = (floats(t) for _ in range(3))
    near = RANDOM.normal(size=(3, N)).astype(d)
    with np.errstate(all="ignore"):
        near[2] = -near[0] * near[1] * RANDOM.choice(np.array([1, 1 + 2.0**-20, 2.0**60, 0.5], d), N)
        tiny = near * d.type(2.0 ** (-70 if t == "f32" else -530))
        tiny[2] = tiny[0] * tiny[1]
        args = [np.concatenate([v, n, s]) for v, n, s in zip((x, y, z), near, tiny, strict=True)]
        plain = args[0] * args[1] + args[2]
    found = run(f"fma.rn.{t} %d, %a0, %a1, %a2;", t, [t] * 3, args)
    finite = np.isfinite(args[0]) & np.isfinite(args[1]) & np.isfinite(args[2])
    differs = 0
    for i in np.flatnonzero(finite):
        product = Fraction(float(args[0][i])) * Fraction(float(args[1][i]))
        total = product + Fraction(float(args[2][i]))
        if total:
            assert same_bits(found[i], exact(total, t)), [float(a[i]).hex() for a in args]
            differs += not same_bits(found[i], plain[i])
        else:
            assert found[i] == 0
    assert differs > 50
    limits = np.isnan(args[0]) | np.isnan(args[1]) | np.isnan(args[2]) | np.isinf(args[0]) | np.isinf(args[1])
    assert same_bits(found[limits], plain[limits])
    assert same_bits(found[~finite & ~limits], args[2][~finite & ~limits])


@pytest.mark.parametrize("source", ["f32", "f64"])
def test_floats_to_integers(source: str) -> None:
    x = np.concatenate([floats(source), RANDOM.normal(0, 1e4, N).astype(dtype(source))])
    rounds = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}
    for name, f in rounds.items():
        for t in ("s16", "u16", "s32", "u32", "s64", "u64"):
            info = np.iinfo(dtype(t))

            def oracle(v: float, f: Any = f, t: str = t, info: Any = info) -> int:
                if math.isnan(v):
                    return 0 if source == "f32" and info.bits < 64 else 1 << info.bits - 1
                return max(min(f(v), info.max), info.min) if math.isfinite(v) else info.max if v > 0 else info.min

            found = run(f"cvt.{name}.{t}.{source} %d, %a0;", t, [source], [x])
            assert found.tolist() == [wrap(oracle(float(v)), t) for v in x], (name, t)
        found = run(f"cvt.{name}.{source}.{source} %d, %a0;", source, [source], [x])
        whole = [v if not math.isfinite(v) else math.copysign(float(f(v)), v) for v in x.tolist()]
        assert same_bits(found, np.array(whole, dtype(source)))


def test_other_conversions() -> None:
    for t in ("s16", "u16", "s32", "u32", "s64", "u64"):
        x = numbers(t)
        for to in ("f32", "f64"):
            found = run(f"cvt.rn.{to}.{t} %d, %a0;", to, [t], [x])
            assert same_bits(found, np.array([exact(Fraction(int(v)), to) for v in x]))
        for to in ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"):
            size = max(int(to[1:]), 16)
            check = f"{to[0]}{size}"
            found = run(f"cvt.{to}.{t} %d, %a0;", check, [t], [x])
            assert found.tolist() == [wrap(wrap(int(v), to), check) for v in x], (to, t)
            info = np.iinfo(dtype(to))
            found = run(f"cvt.sat.{to}.{t} %d, %a0;", check, [t], [x])
            assert found.tolist() == [wrap(max(min(int(v), info.max), info.min), check) for v in x], (to, t)
    x = np.concatenate([floats("f64"), RANDOM.normal(size=N)])
    with np.errstate(all="ignore"):
        assert same_bits(run("cvt.rn.f32.f64 %d, %a0;", "f32", ["f64"], [x]), x.astype(np.float32))
        usual = x[np.isfinite(x) & (np.abs(x) < 1e38)]
        for name, rounding in (("rz", math.trunc), ("rm", math.floor), ("rp", math.ceil)):
            found = run(f"cvt.{name}.f32.f64 %d, %a0;", "f32", ["f64"], [usual])
            expected = np.array([exact(Fraction(v), "f32", rounding) for v in usual.tolist()])
            assert np.array_equal(found, expected), name


def test_comparisons() -> None:
    for t in ("f32", "f64"):
        x, y = floats(t), floats(t)
        y[:40] = x[:40]
        nan = np.isnan(x) | np.isnan(y)
        plain = {"eq": x == y, "ne": (x != y) & ~nan, "lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y}
        for name, c in {**plain, **{k + "u": c | nan for k, c in plain.items()}, "num": ~nan, "nan": nan}.items():
            code = f"setp.{name}.{t} %q0|%q1, %a0, %a1; selp.b32 %x0, 1, 0, %q0; selp.b32 %d, 2, %x0, %q1;"
            assert np.array_equal(run(code, "b32", [t, t], [x, y]), np.where(c, 1, 2)), (name, t)
    for t in ("s32", "u32", "s16", "u64"):
        x, y = numbers(t), numbers(t)
        for name, c in {"eq": x == y, "ne": x != y, "lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y}.items():
            code = f"setp.lt.u32 %q2, %t, 100; setp.{name}.and.{t} %q0, %a0, %a1, !%q2; selp.b32 %d, 1, 0, %q0;"
            assert np.array_equal(run(code, "b32", [t, t], [x, y]), c & (np.arange(N) >= 100)), (name, t)


def test_minimum_and_maximum_of_floats() -> None:
    for t in ("f32", "f64"):
        x, y = floats(t), floats(t)
        x[:2], y[:2] = [0.0, -0.0], [-0.0, 0.0]
        one_nan = np.isnan(x) ^ np.isnan(y)
        for name, f in (("min", np.fmin), ("max", np.fmax)):
            with np.errstate(all="ignore"):
                expected = f(x, y)
            expected[(x == 0) & (y == 0)] = [f(a, b) if a.tobytes() == b.tobytes() else (-0.0 if name == "min" else 0.0)
                                             for a, b in zip(x, y, strict=True) if a == 0 and b == 0]  # fmt: skip
            assert same_bits(run(f"{name}.{t} %d, %a0, %a1;", t, [t, t], [x, y]), expected)
            found = run(f"{name}.NaN.{t} %d, %a0, %a1;", t, [t, t], [x, y])
            assert np.isnan(found[one_nan]).all() and same_bits(found[~one_nan], expected[~one_nan])
