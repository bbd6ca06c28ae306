"""The emitters of funcgrad.ops.vecmath, compiled and measured: errors in ulps against better references.

f32 is measured against NumPy's float64, f64 against long double (80 bits), and that against mpmath. The default part
takes a sample of every exponent, the `slow` part all 2^32 floats and 10^7 doubles. A table of the worst errors:

    python tests/ops/test_vecmath.py
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy import special

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from funcgrad.lowering.builder import Builder
from funcgrad.lowering.stages import this_target
from funcgrad.lowering.values import Target, Value
from funcgrad.ops import vecmath
from funcgrad.ops.sinc import sinc_p

llvm = pytest.importorskip("llvmlite.binding")
llvm.initialize_native_target()
llvm.initialize_native_asmprinter()
FEATURES = llvm.get_host_cpu_features()
if np.finfo(np.longdouble).nmant != 63:
    pytest.skip("the references need an 80-bit long double", allow_module_level=True)

Array = Any
f64, f32, long = np.float64, np.float32, np.longdouble
DTYPES = (f64, f32)

# -- the harness

CPUS = {64: llvm.get_host_cpu_name(), 32: "x86-64-v3", 16: "x86-64"}
FLAGS = {64: FEATURES.flatten(), 32: "", 16: ""}


def needs(vector_bytes: int) -> None:
    """Skip the test on a CPU without these vectors."""
    if vector_bytes > this_target().vector_bytes:
        pytest.skip(f"this CPU has no vectors of {vector_bytes} bytes")


def link(text: str, vector_bytes: int, imports: dict[str, int]) -> tuple[Any, ...]:
    """Compile a module that defines @main and load it: (what keeps it alive, its address)."""
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=CPUS[vector_bytes], features=FLAGS[vector_bytes], opt=1, reloc="pic", codemodel="default", jit=True
    )
    head = f'target triple = "{llvm.get_default_triple()}"\ntarget datalayout = "{machine.target_data}"\n'
    module = llvm.parse_assembly(head + text, llvm.create_context())
    module.verify()
    jit = llvm.create_lljit_compiler(llvm.Target.from_default_triple().create_target_machine(jit=True))
    library = llvm.JITLibraryBuilder().add_object_img(machine.emit_object(module)).export_symbol("main")
    for name, address in imports.items():
        library.import_symbol(name, address)
    tracker = library.link(jit, "vecmath")
    return (jit, tracker), tracker["main"]


def loop(element: str, arity: int, lanes: int, body: Sequence[str], result: str, block: str, rest: str) -> str:
    """@main(out, *args, n): a loop over arrays whose body computes `result` from %a0, %a1."""
    vector = element if lanes == 1 else f"<{lanes} x {element}>"
    size = {"double": 8, "float": 4}.get(element, 16)
    loads = []
    for i in range(arity):
        loads += [f"  %p{i} = getelementptr {element}, ptr %x{i}, i64 %i"]
        loads += [f"  %a{i} = load {vector}, ptr %p{i}, align {size}"]
    params = ", ".join(["ptr %out", *[f"ptr %x{i}" for i in range(arity)], "i64 %n"])
    return "\n".join([
        f"define void @main({params}) nounwind {{", "entry:", "  br label %loop", "loop:",
        f"  %i = phi i64 [ 0, %entry ], [ %next, %{block} ]", *loads, *body,
        f"  %p = getelementptr {element}, ptr %out, i64 %i", f"  store {vector} {result}, ptr %p, align {size}",
        f"  %next = add i64 %i, {lanes}", "  %more = icmp ult i64 %next, %n",
        "  br i1 %more, label %loop, label %done", "done:", "  ret void", "}", rest,
    ])  # fmt: skip


class Compiled:
    """An emitter, compiled for one dtype and target, as a function of arrays."""

    def __init__(
        self, emit: Callable[..., Value], dtype: Any, vector_bytes: int, fma: bool, arity: int = 1, lanes: int = 0
    ) -> None:
        self.dtype = np.dtype(dtype)
        target = Target(vector_bytes, fma, rounding=vector_bytes > 16)
        self.lanes = lanes or target.lanes(self.dtype.itemsize)
        b = Builder(target, self.lanes, block="loop")
        type = b.f64 if dtype is f64 else b.f32
        y = emit(b, *[b.value(f"%a{i}", type) for i in range(arity)])
        self.text = loop(type.element, arity, self.lanes, b.lines, y.text, b.block, b.shared.text())
        self.alive, address = link(self.text, vector_bytes, {})
        self.main = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * (1 + arity), ctypes.c_int64)(address)

    def __call__(self, *args: Array) -> Array:
        n = len(args[0])
        padded = -(-n // self.lanes) * self.lanes
        if padded != n:
            args = tuple(np.append(a, np.ones(padded - n, self.dtype)) for a in args)
        args = tuple(np.ascontiguousarray(a, self.dtype) for a in args)
        out = np.empty(padded, self.dtype)
        self.main(out.ctypes.data, *[a.ctypes.data for a in args], padded)
        return out[:n]


def libm(name: str) -> Callable[[Array], Array]:
    """A long double function of the C library that NumPy does not offer."""

    def call(x: Array) -> Array:
        _, main = _libm(name)
        x = np.ascontiguousarray(x, long)
        out = np.empty_like(x)
        if len(x):
            main(out.ctypes.data, x.ctypes.data, len(x))
        return out

    return call


@cache
def _libm(name: str) -> tuple[Any, Any]:
    body = [f"  %y = call x86_fp80 @{name}(x86_fp80 %a0)"]
    text = loop("x86_fp80", 1, 1, body, "%y", "loop", f"declare x86_fp80 @{name}(x86_fp80)")
    c_function = ctypes.cast(getattr(ctypes.CDLL("libm.so.6"), name), ctypes.c_void_p).value
    alive, address = link(text, 16, {name: c_function})
    return alive, ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(address)


# -- references and bounds


def logistic(x: Array) -> Array:
    z = np.exp(-np.abs(x))
    return np.where(x < 0, z, 1) / (1 + z)


def inverse_erf(x: Array) -> Array:
    """One step of Newton's method from SciPy's value."""
    with np.errstate(all="ignore"):
        y = special.erfinv(x.astype(f64)).astype(long)
        a, b = np.abs(x.astype(long)), np.abs(y)
        inside = a < 1
        a, b = np.where(inside, a, 0), np.where(inside, b, 0)
        rest = np.where(a < 0.5, libm("erfl")(b) - a, (1 - a) - libm("erfcl")(b))
        b = b - rest * np.exp(b * b) * np.sqrt(np.arctan(long(1)))  # √π / 2
        return np.where(inside, np.copysign(b, x), y)


def times(logarithm: Callable[[Array], Array]) -> Callable[[Array, Array], Array]:
    """x logarithm(y), 0 where x is."""
    return lambda x, y: np.where((x == 0) & ~np.isnan(y), 0, x * logarithm(y))


def sinc(x: Array) -> Array:
    n, pi = np.rint(x), 4 * np.arctan(x.dtype.type(1))
    sign = 1 - 2 * np.fmod(np.abs(n), 2)
    return np.where(np.abs(x) < 1e-30, 1, sign * np.sin(pi * (x - n)) / np.where(x == 0, 1, pi * x)) + 0


REFERENCES: dict[str, Callable[..., Array]] = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2, "log10": np.log10,
    "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan, "tanh": np.tanh, "sinh": np.sinh,
    "cosh": np.cosh, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sigmoid": logistic, "cbrt": np.cbrt,
    "erf": libm("erfl"), "erfc": libm("erfcl"), "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "atan2": np.arctan2, "pow": np.power, "hypot": np.hypot, "logaddexp": np.logaddexp, "logaddexp2": np.logaddexp2,
    "xlogy": times(np.log), "xlog1py": times(np.log1p), "erfinv": inverse_erf, "sinc": sinc,
}  # fmt: skip
OF_DOUBLES: dict[str, Callable[[Array], Array]] = {  # right to an ulp or two of f64
    "erf": special.erf, "erfc": special.erfc, "erfinv": lambda x: np.copysign(special.erfinv(x), x),
}  # fmt: skip
EXACT: dict[str, Callable[..., Any]] = {
    "exp2": lambda x: mpmath.mpf(2) ** x, "log2": lambda x: mpmath.log(x, 2), "log10": mpmath.log10,
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)), "pow": mpmath.power,
    "cbrt": lambda x: mpmath.sign(x) * mpmath.cbrt(abs(x)),
    "logaddexp": lambda x, y: mpmath.log(mpmath.exp(x) + mpmath.exp(y)),
    "logaddexp2": lambda x, y: mpmath.log(mpmath.mpf(2) ** x + mpmath.mpf(2) ** y, 2),
    "xlogy": lambda x, y: x * mpmath.log(y), "xlog1py": lambda x, y: x * mpmath.log1p(y), "sinc": mpmath.sincpi,
}  # fmt: skip
EMITTERS: dict[str, Callable[..., Value]] = {"sinc": lambda b, x: sinc_p.emit(b, f64, x)}  # made of several of them
BINARY = ("atan2", "pow", "hypot", "logaddexp", "logaddexp2", "xlogy", "xlog1py")
CANCELLING = {"logaddexp": np.log(2.0), "logaddexp2": 1.0}  # errors are relative to the terms, at least to this
UNARY = tuple(name for name in REFERENCES if name not in BINARY)
BOUNDS = dict.fromkeys(REFERENCES, 2.0) | dict.fromkeys(("exp", "log", "sin", "cos", "tanh"), 1.0) | {"erfc": 3.0}


def reference(name: str, dtype: Any, args: Sequence[Array]) -> Array:
    """The function in more digits than `dtype` has."""
    wider = long if dtype is f64 else f64
    with np.errstate(all="ignore"):
        if dtype is f32 and name in OF_DOUBLES:
            return OF_DOUBLES[name](args[0].astype(f64))
        return REFERENCES[name](*[a.astype(wider) for a in args])


def worst(name: str, y: Array, expected: Array, args: Sequence[Array]) -> tuple[float, int]:
    """The largest |y − expected| in units in the last place of `expected`, and where.

    0.5 where all are the rounded reference; inf where one is NaN, or where a zero has the wrong sign.
    """
    dtype, wide = y.dtype, expected.dtype.type
    with np.errstate(all="ignore"):
        odd = np.flatnonzero((expected.astype(dtype) != y) | (y == 0))
        at, got = expected[odd], y[odd].astype(wide)
        equal = (np.isnan(at) & np.isnan(got)) | ((at == got) & (np.signbit(at) == np.signbit(got)))
        odd, at, got = odd[~equal], at[~equal], got[~equal]
        if len(odd) == 0:
            return 0.5, 0
        info = np.finfo(dtype)
        top = np.ldexp(wide(1), info.maxexp)  # an overflow counts as this
        got = np.where(np.isinf(got), np.copysign(top, got), got)
        at = np.where(np.abs(at) >= top, np.copysign(top, at), at)
        size = np.abs(at)
        if name in CANCELLING:
            term = np.abs(np.maximum(*[a[odd].astype(wide) for a in args]))
            size = np.maximum(size, np.maximum(term, CANCELLING[name]))
        exponent = np.clip(np.frexp(size)[1], info.minexp + 1, info.maxexp)
        error = np.abs(got - at) / np.ldexp(wide(1), exponent - info.nmant - 1)
        wrong_zero = (got == 0) & (np.signbit(got) != np.signbit(at)) & (name not in CANCELLING)
        error[np.isnan(error) | wrong_zero] = np.inf
    i = int(np.argmax(error))
    return max(float(error[i]), 0.5), int(odd[i])


# -- where they are measured

HARD = [6381956970095103 * 2.0**797, 5319372648326541 * 2.0**-54]  # closest to a multiple of π/2
ENDS = [
    0.0, np.inf, np.nan, 5e-324, 2.0**-1022, 1.7976931348623157e308, 2.0**-149, 2.0**-126, 3.4028234663852886e38,
    709.782712893384, 710.4758600739439, 745.1332191019411, 88.72283905206835, 89.41598629223294, 103.97208,
    1024.0, 1074.0, 1075.0, 126.0, 128.0, 149.0, 150.0, 0.25, 0.5, 1.0, 1.25, 1.5, 2.0, 3.0, 10.0, 100.0,
    np.sqrt(0.5), np.sqrt(2.0), np.log(2.0) / 2, np.tan(np.pi / 8), np.tan(3 * np.pi / 8), 6.0, 4.0, 20.0, 22.0, 27.3,
    26.543, 10.05, 2.0**20, 2.0**30, 2.0**15, 6000.0, 2.0**28, 2.0**53, 2.0**24, 2.0**12, 1e22,
]  # fmt: skip


def around(points: Array, dtype: Any, steps: int) -> Array:
    """The points, their neighbours up to `steps` away, and the negatives of all."""
    x = np.abs(np.asarray(points, f64)).astype(dtype)
    found = [x]
    low = high = x
    for _ in range(steps):
        low, high = np.nextafter(low, dtype(-np.inf)), np.nextafter(high, dtype(np.inf))
        found += [low, high]
    x = np.concatenate(found)
    return np.concatenate([x, -x])


@cache
def points(dtype: Any, size: int = 0) -> Array:
    """Every exponent and both signs; neighbours of branch points, of multiples of π/2 and of powers of two."""
    rng = np.random.default_rng(7)
    with np.errstate(all="ignore"):
        if dtype is f32:
            spread = np.arange(0, 1 << 32, 4295, dtype=np.uint64).astype(np.uint32).view(f32)
        else:
            bits = rng.integers(0, 1 << 52, (2047, size or 40), dtype=np.uint64)
            spread = (bits | (np.arange(2047, dtype=np.uint64)[:, None] << np.uint64(52))).ravel().view(f64)
            spread = np.concatenate([spread, -spread])
        quarter_turns = np.concatenate([np.arange(1, 2000), 2.0 ** np.arange(11, 1023)]) * (np.pi / 2)
        n = (size or 40) * 500
        usual = np.concatenate([rng.uniform(-a, a, n) for a in (1, 2, 40, 750)] + [1 + rng.uniform(-0.01, 0.01, n)])
        usual = np.concatenate(
            [usual, 1 - 10 ** rng.uniform(-16, 0, n // 4), np.sqrt(-np.expm1(rng.uniform(-8, -1, n)))]
        )
        return np.concatenate([
            spread, around(ENDS + HARD, dtype, 3), around(quarter_turns, dtype, 1),
            around(2.0 ** np.arange(-1074, 1024), dtype, 1), usual.astype(dtype),
        ])  # fmt: skip


SPECIAL = [
    0.0, 1.0, 2.0, 3.0, 0.5, 1.5, np.inf, np.nan, 5e-324, 2.0**-149, 1e308, 3e38, 1e-300, 2.0**53, 2.0**53 - 1,
    2.0**52 + 1, 2.0**24, 2.0**24 - 1, 1e16, 1 - 2.0**-53, 1 + 2.0**-52, 1 - 2.0**-24, 1 + 2.0**-23,
]  # fmt: skip


@cache
def pairs(dtype: Any, size: int = 0) -> tuple[Array, Array]:
    """Special values with each other; random bits; and places where the functions are neither 0 nor inf."""
    rng = np.random.default_rng(8)
    n = size or 30_000
    word = np.uint64 if dtype is f64 else np.uint32
    with np.errstate(all="ignore"):
        special = np.concatenate([np.array(SPECIAL), -np.array(SPECIAL)]).astype(dtype)
        bits = [rng.integers(0, np.iinfo(word).max, n, dtype=word).view(dtype) for _ in range(3)]
        base = np.concatenate([np.exp(rng.normal(0, 1, n)), 1 + rng.uniform(-1e-3, 1e-3, n)])
        reach = 745 if dtype is f64 else 104
        parts = [
            np.meshgrid(special, special),
            bits[:2],
            (bits[2], bits[2] * np.exp(rng.normal(0, 1, n)).astype(dtype)),
            (base, rng.uniform(-reach, reach, 2 * n) / np.log(base)),
            (-np.floor(rng.uniform(1, 50, n)), np.floor(rng.uniform(-180, 180, n))),
            (rng.uniform(-5, 5, n), rng.uniform(-5, 5, n)),
        ]
        x, y = (np.concatenate([np.ravel(p[i]).astype(dtype) for p in parts]) for i in range(2))
    return x, y


@cache
def measured_at(name: str, dtype: Any) -> tuple[tuple[Array, ...], Array]:
    """Arguments and reference of the default part."""
    args = pairs(dtype) if name in BINARY else (points(dtype),)
    return args, reference(name, dtype, args)


@cache
def compiled(name: str, dtype: Any, vector_bytes: int, fma: bool, lanes: int = 0) -> Compiled:
    return Compiled(
        EMITTERS.get(name) or getattr(vecmath, name), dtype, vector_bytes, fma, 2 if name in BINARY else 1, lanes
    )


def measure(name: str, f: Compiled, args: Sequence[Array], expected: Array) -> float:
    """The largest error; prints where."""
    error, i = worst(name, f(*args), expected, args)
    print(f"{name} {f.dtype} lanes={f.lanes}: {error:.3f} ulp at {', '.join(repr(a[i]) for a in args)}")
    return error


# -- accuracy


@pytest.mark.parametrize("fma", [True, False], ids=["fma", "no_fma"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", REFERENCES)
def test_error_is_within_the_bound(name: str, dtype: Any, fma: bool) -> None:
    needs(32)
    args, expected = measured_at(name, dtype)
    assert measure(name, compiled(name, dtype, 32, fma), args, expected) <= BOUNDS[name]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", REFERENCES)
def test_every_vector_width_computes_the_same_bits(name: str, dtype: Any) -> None:
    needs(32)
    args = tuple(a[::7] for a in measured_at(name, dtype)[0])
    for vector_bytes, fma, lanes in ((64, True, 0), (64, False, 0), (16, False, 0), (32, True, 1), (16, False, 1)):
        if vector_bytes <= this_target().vector_bytes:
            one = compiled(name, dtype, 32, fma)(*args)
            other = compiled(name, dtype, vector_bytes, fma, lanes)(*args)
            np.testing.assert_array_equal(other, one)
            zero = one == 0
            assert (np.signbit(other[zero]) == np.signbit(one[zero])).all()


def to_mpmath(x: Any) -> Any:
    """A long double as mpmath has it."""
    m, exponent = np.frexp(x)
    high = f64(m)
    return mpmath.ldexp(mpmath.mpf(float(high)) + mpmath.mpf(float(m - long(high))), int(exponent))


def exact(name: str, *args: float) -> Any:
    """The function to 60 digits and more (sin of a huge angle needs many)."""
    with mpmath.workdps(400 if name in ("sin", "cos", "tan") else 60):
        return EXACT.get(name, getattr(mpmath, name, None))(*[mpmath.mpf(float(a)) for a in args])


def sample(name: str, dtype: Any, size: int) -> tuple[tuple[Array, ...], Array]:
    """Some points of the default part at which the function is finite, real and not 0."""
    args, expected = measured_at(name, dtype)
    size = min(size, len(expected))
    with np.errstate(all="ignore"):
        fine = np.isfinite(expected) & (np.abs(expected.astype(dtype)) > 0)
        fine &= np.abs(expected.astype(dtype)) < np.finfo(dtype).max
        if name in CANCELLING:
            fine &= np.abs(np.maximum(*args)) < 1e3
            fine &= np.abs(expected) > 0.1
    where = np.random.default_rng(9).choice(np.flatnonzero(fine), size)
    return tuple(a[where] for a in args), expected[where]


@pytest.mark.parametrize("name", REFERENCES)
def test_long_double_agrees_with_mpmath(name: str) -> None:
    args, expected = sample(name, f64, 60)
    with mpmath.workdps(60):
        for *x, y in zip(*args, expected, strict=True):
            true = exact(name, *x)
            smallest = mpmath.mpf(2) ** -1074
            assert abs(to_mpmath(y) - true) <= max(abs(true) * mpmath.mpf(2) ** -60, smallest / 100), (x, y)


def test_pow_has_the_special_cases_of_c99() -> None:
    needs(32)
    x, y = (np.ravel(v).astype(f64) for v in np.meshgrid(*[np.array(SPECIAL + [-v for v in SPECIAL])] * 2))
    with np.errstate(all="ignore"):
        expected = np.power(x, y)
    got = compiled("pow", f64, 32, True)(x, y)
    special = ~np.isfinite(expected) | (expected == 0) | (y == 0) | (np.abs(x) == 1)
    np.testing.assert_array_equal(got[special], expected[special])
    numbers = special & ~np.isnan(expected)
    assert (np.signbit(got[numbers]) == np.signbit(expected[numbers])).all()


def test_exact_results() -> None:
    needs(32)
    k = np.arange(-1074.0, 1024.0)
    for fma in (True, False):
        np.testing.assert_array_equal(compiled("exp2", f64, 32, fma)(k), 2.0**k)
        np.testing.assert_array_equal(compiled("log2", f64, 32, fma)(2.0**k), k)
        n = np.arange(-300.0, 300.0)
        np.testing.assert_array_equal(compiled("cbrt", f64, 32, fma)(n**3), n)
        np.testing.assert_array_equal(compiled("pow", f64, 32, fma)(n, np.full(600, 2.0)), n * n)


# -- everything, once in a while


@pytest.mark.slow
@pytest.mark.parametrize("fma", [True, False], ids=["fma", "no_fma"])
@pytest.mark.parametrize("name", UNARY)
def test_all_floats(name: str, fma: bool) -> None:
    needs(32)
    f = compiled(name, f32, this_target().vector_bytes, fma)
    largest = 0.0
    for start in range(0, 1 << 32, 1 << 22):
        x = np.arange(start, start + (1 << 22), dtype=np.uint64).astype(np.uint32).view(f32)
        largest = max(largest, worst(name, f(x), reference(name, f32, (x,)), (x,))[0])
    print(f"{name} f32, all inputs: {largest:.3f} ulp")
    assert largest <= BOUNDS[name]


@pytest.mark.slow
@pytest.mark.parametrize("fma", [True, False], ids=["fma", "no_fma"])
@pytest.mark.parametrize("name", REFERENCES)
def test_ten_million_doubles(name: str, fma: bool) -> None:
    needs(32)
    args = pairs(f64, 1_300_000) if name in BINARY else (points(f64, 1500),)
    largest = 0.0
    for start in range(0, len(args[0]), 1 << 20):
        part = tuple(a[start : start + (1 << 20)] for a in args)
        largest = max(largest, measure(name, compiled(name, f64, 32, fma), part, reference(name, f64, part)))
    print(f"{name} f64, {len(args[0])} inputs: {largest:.3f} ulp")
    assert largest <= BOUNDS[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", REFERENCES)
def test_ten_thousand_points_against_mpmath(name: str) -> None:
    needs(32)
    args, _ = sample(name, f64, 10_000)
    with_fma, without = (compiled(name, f64, 32, fma)(*args) for fma in (True, False))
    largest = 0.0
    with mpmath.workdps(60):
        for *x, y, z in zip(*args, with_fma, without, strict=True):
            true = exact(name, *x)
            size = max([abs(float(true)), *([abs(max(x)), CANCELLING[name]] if name in CANCELLING else [])])
            error = max(abs(mpmath.mpf(float(v)) - true) for v in (y, z)) / mpmath.mpf(float(np.spacing(size)))
            assert error <= BOUNDS[name], (x, y, z)
            largest = max(largest, float(error))
    print(f"{name} f64, {len(with_fma)} inputs against mpmath: {largest:.3f} ulp")


# -- the builder


def test_a_wrong_type_is_a_python_error() -> None:
    b = Builder(Target(32, fma=True, rounding=True), 4)
    x, y, i = b.value("%x", b.f64), b.value("%y", b.f32), b.value("%i", b.i64)
    wrong: list[Callable[[], Any]] = [
        lambda: b.add(x, y), lambda: b.add(i, i), lambda: b.iadd(x, x), lambda: b.fma(x, x, y), lambda: b.neg(i),
        lambda: b.sqrt(i), lambda: b.select(x, x, x), lambda: b.select(b.lt(y, y), 1.0, 2.0), lambda: b.mul(1.0, 2.0),
        lambda: b.bits(i), lambda: b.from_bits(x), lambda: b.any(x), lambda: b.convert(x, b.inner(1).f64),
        lambda: b.copysign(i, i), lambda: b.shl(x, 1),
    ]  # fmt: skip
    for call in wrong:
        with pytest.raises(TypeError):
            call()
    with pytest.raises(ValueError, match="not a constant of type"):
        b.iadd(i, 1 << 64)
    with pytest.raises(ValueError, match="not a constant of type"):
        b.iadd(i, 0.5)


def test_constants_are_hexadecimal_and_rounded() -> None:
    b = Builder(Target(), 2)
    assert b.constant(b.f64, 1.0).text == "splat (double 0x3FF0000000000000)"
    assert b.constant(b.f64, -0.0).text == "splat (double 0x8000000000000000)"
    assert b.constant(b.f32, 0.1).text == "splat (float 0x3FB99999A0000000)"
    assert b.constant(b.f32, 1e300).text == "splat (float 0x7FF0000000000000)"
    assert b.constant(b.inner(1).i64, -1).text == "-1"


def test_without_the_feature_fma_is_a_product_and_a_sum() -> None:
    for fma, lines in ((True, 1), (False, 2)):
        b = Builder(Target(fma=fma), 2)
        b.fma(b.value("%x", b.f64), 2.0, 3.0)
        assert len(b.lines) == lines
        assert bool(b.shared.declares) is fma


@pytest.mark.parametrize("lanes", [1, 4])
def test_scalar_code_jumps_over_what_is_known(lanes: int) -> None:
    b = Builder(Target(32, fma=True), lanes)
    x = b.value("%x", b.f64)
    small = b.lt(x, 1.0)
    b.unless(small, [x], lambda: [b.once("twice", x, lambda: b.add(x, x))])
    jumps = ["  br i1 %v1, label %known2, label %else2", "  br label %known2"]
    assert [line for line in b.lines if " br " in line] == (jumps if lanes == 1 else [])
    assert (("twice", x) in b.memo) is (lanes > 1)  # a jump may leave it out
    if lanes == 1:
        with pytest.raises(TypeError, match="in place of"):
            b.unless(small, [x], lambda: [b.bits(x)])


@pytest.mark.parametrize("fma", [True, False], ids=["fma", "no_fma"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_angles_that_need_no_turn(name: str, dtype: Any, fma: bool) -> None:
    needs(32)
    edge = np.array([0.7853, np.pi / 4, 0.0, np.finfo(dtype).tiny], dtype)
    bits = edge.view(np.int64 if dtype is f64 else np.int32)[:, None] + np.arange(-200, 200)
    x = bits[bits >= 0].astype(bits.dtype).view(dtype)
    x = np.concatenate([x, -x, np.random.default_rng(3).uniform(-0.8, 0.8, 20_000).astype(dtype)])
    one = compiled(name, dtype, 32, fma, 1)
    scalar, vector = one(x), compiled(name, dtype, 32, fma)(x)
    np.testing.assert_array_equal(scalar, vector)
    assert (np.signbit(scalar) == np.signbit(vector)).all()
    assert measure(name, one, (x,), reference(name, dtype, (x,))) <= BOUNDS[name]


def test_a_helper_is_written_once() -> None:
    b = Builder(Target(), 2)
    x = b.value("%x", b.f64)
    vecmath.sin(b, x)
    vecmath.cos(b, x)
    text = b.shared.text()
    assert text.count("define internal") == 2
    with pytest.raises(TypeError, match="takes"):
        b.call(next(iter(b.shared.functions)), x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_and_its_substitute(dtype: Any) -> None:
    x = points(dtype)[::11]
    x = np.concatenate([x, np.arange(-8, 8, 0.25, dtype=dtype)])
    for name in ("floor", "rint"):
        with np.errstate(all="ignore"):
            expected = getattr(np, name)(x)
        for vector_bytes in (16, 32):
            if vector_bytes <= this_target().vector_bytes:
                got = Compiled(lambda b, x, name=name: getattr(b, name)(x), dtype, vector_bytes, fma=False)(x)
                np.testing.assert_array_equal(got, expected)
                assert (np.signbit(got) == np.signbit(expected))[~np.isnan(x)].all()


if __name__ == "__main__":
    print(f"{'':10} " + " ".join(f"{d.__name__ + fma:>16}" for d in DTYPES for fma in (" fma", " no fma")))
    for function in REFERENCES:
        row = []
        for d in DTYPES:
            arguments, truth = measured_at(function, d)
            for with_fma in (True, False):
                f = compiled(function, d, 32, with_fma)
                row.append(worst(function, f(*arguments), truth, arguments)[0])
        print(f"{function:10} " + " ".join(f"{e:16.3f}" for e in row))
