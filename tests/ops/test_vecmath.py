"""The emitters of elementary functions, compiled and measured: errors in ulps against better references.

f32 is measured against NumPy's float64, f64 against long double (80 bits), and that against mpmath. The default part
takes a sample of every exponent, the `slow` part 10^7 doubles; `python -m tests.numerics` measures more, and keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import mpmath
import numpy as np
import pytest

from funcgrad.lowering.builder import Builder
from funcgrad.lowering.values import Target
from funcgrad.ops import vecmath
from tests.numerics.arguments import SPECIAL, pairs, points
from tests.numerics.compiled import DTYPES, WIDEST, Array, Compiled, compiled, f64
from tests.numerics.oracles import BINARY, BOUNDS, CANCELLING, REFERENCES, exact, reference, to_mpmath, worst

if np.finfo(np.longdouble).nmant != 63:
    pytest.skip("the references need an 80-bit long double", allow_module_level=True)


def needs(vector_bytes: int) -> None:
    """Skip the test on a CPU without these vectors."""
    if vector_bytes > WIDEST:
        pytest.skip(f"this CPU has no vectors of {vector_bytes} bytes")


@cache
def measured_at(name: str, dtype: Any) -> tuple[tuple[Array, ...], Array]:
    """Arguments and reference of the default part."""
    args = pairs(dtype) if name in BINARY else (points(dtype),)
    return args, reference(name, dtype, args)


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
        if vector_bytes <= WIDEST:
            one = compiled(name, dtype, 32, fma)(*args)
            other = compiled(name, dtype, vector_bytes, fma, lanes)(*args)
            np.testing.assert_array_equal(other, one)
            zero = one == 0
            assert (np.signbit(other[zero]) == np.signbit(one[zero])).all()


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
            if vector_bytes <= WIDEST:
                got = Compiled(lambda b, x, name=name: getattr(b, name)(x), dtype, vector_bytes, fma=False)(x)
                np.testing.assert_array_equal(got, expected)
                assert (np.signbit(got) == np.signbit(expected))[~np.isnan(x)].all()
