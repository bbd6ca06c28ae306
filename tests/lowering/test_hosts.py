"""Whole Programs, compiled for lesser processors than this one: the same bits, or the same bound, on each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.core.evaluate import run
from funcgrad.core.primitive import registry
from funcgrad.core.trace import bind1, eagerly
from funcgrad.lowering.executable import Executable
from funcgrad.lowering.machine import Host, host, overridden
from funcgrad.lowering.stages import module_text, this_target
from tests.lowering import test_native_ops
from tests.lowering.random_programs import GROUP_E, SHAPES, draw_array, random_function
from tests.lowering.test_elementwise import ELEMENTWISE, operands
from tests.lowering.test_native_ops import DTYPES, OPS, edges, same_bits

NATIVE = host()
if not NATIVE.triple.startswith("x86_64"):
    pytest.skip("the processors are those of x86-64", allow_module_level=True)

HOSTS = {  # name: processor, features, width of vectors, fma, rounding
    "sse2": ("x86-64", "", 16, False, False),
    "sse4.1": ("x86-64-v2", "+sse4.1", 16, False, True),
    "avx2_without_fma": ("x86-64-v3", "+sse4.1,+avx2,-fma", 32, False, True),
    "avx2": ("x86-64-v3", "+sse4.1,+avx2,+fma", 32, True, True),
    "avx512": ("x86-64-v4", "+sse4.1,+avx2,+fma,+avx512f,+avx512bw,+avx512dq,+avx512vl", 64, True, True),
}


@pytest.fixture(params=HOSTS)
def lesser(request: pytest.FixtureRequest) -> Iterator[Host]:
    """Code is made for another processor, whose features this one has."""
    cpu, features, width, fma, rounding = HOSTS[request.param]
    wanted = [f[1:] for f in features.split(",") if f.startswith("+")]
    if not all([NATIVE.has(f) for f in wanted]):
        pytest.skip(f"this processor has not all of {wanted}")
    with overridden(cpu, features) as h:
        target = this_target()
        assert (target.vector_bytes, target.fma, target.rounding) == (width, fma, rounding)
        yield h


def found_and_expected(f: Callable[..., Any], args: list[Any], whole: bool = True) -> tuple[list[Any], list[Any]]:
    """The results of compiled code and those of evaluation; if `whole`, no part of it runs with NumPy."""
    program = fg.make_program(f)(*args)
    with eagerly():
        compiled = Executable(program)
        found = compiled(args)
        assert compiled.whole() is not None or not whole, "a part of the Program has no native form"
        return found, run(program, args)


# -- exact: the same bits


def mixed(x: Any, y: Any) -> Any:
    """Rounding, remainders, comparisons, selections, on floats."""
    z = np.where(x > y, np.floor(x / 3.0) * y, np.sqrt(abs(x)))
    return z, np.rint(z) % 7.0, np.trunc(y) // 2.5, np.fmod(x, 1.25), np.ceil(x), np.maximum(x, -y), np.signbit(z)


def integers(i: Any, j: Any) -> Any:
    """Division, shifts, bits, and what is a loop."""
    parts = (i // j, i % j, i << (j & 3), i >> 2, ~i ^ j, np.bitwise_count(i), np.maximum(i, j))
    return (*parts, fnp.gcd(i, j), fnp.lcm(i, j), fnp.power(i, j & 3))


def truths(p: Any, q: Any) -> Any:
    """Booleans, as values and as conditions."""
    return p & q, p | ~q, p ^ q, np.where(p, 1.5, 2.5), np.any(p, axis=0), np.all(q), p.astype("int32") + q


def taken(x: Any, i: Any) -> Any:
    """Reads at traced positions, counted from either end."""
    return x[i], x[i, 0] * 2.0, x[:, 1:][i - 1], x[::-1][i] + x[0]


def moved(x: Any) -> Any:
    """Addresses: transposes, slices, reversals, pads, joins."""
    return (
        x.T + 1.0,
        x[1:, ::2] * 3.0,
        np.pad(x, 1),
        np.concatenate([x, -x], 1),
        np.flip(x, 0) - x,
        fnp.arange(5) + x[0],
    )


def folded(x: Any) -> Any:
    """Reductions whose results do not depend on the order."""
    return np.max(x), np.min(x, axis=0), np.max(x, axis=1), np.any(x > 1.0, axis=0), np.sum(x > 0.0, axis=1)


def converted(x: Any) -> Any:
    """To every type and back."""
    return tuple(x.astype(t) for t in DTYPES)


def random_numbers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Any:
    return draw_array(np.random.default_rng(seed), shape, dtype)


LENGTHS = [1, 3, 17, 100]


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_arithmetic_of_floats(lesser: Host, dtype: str, n: int) -> None:
    found, expected = found_and_expected(mixed, [random_numbers((n,), dtype, s) for s in (1, 2)])
    assert all([same_bits(a, b) for a, b in zip(found, expected, strict=True)])


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "uint64", "int64"])
def test_arithmetic_of_integers(lesser: Host, dtype: str, n: int) -> None:
    found, expected = found_and_expected(integers, [random_numbers((n,), dtype, s) for s in (1, 2)])
    assert all([same_bits(a, b) for a, b in zip(found, expected, strict=True)])


@pytest.mark.parametrize(
    ("f", "args"),
    [
        (truths, [random_numbers((9, 5), "bool", 1), random_numbers((9, 5), "bool", 2)]),
        (taken, [random_numbers((6, 5), "float64"), np.array([0, -1, 5, 3, -5, 2, 2])]),
        (taken, [random_numbers((6, 5), "float32"), np.array([[1, 4], [-2, 0]])]),
        (moved, [random_numbers((7, 5), "float64")]),
        (moved, [random_numbers((7, 5), "float32")]),
        (folded, [np.abs(random_numbers((13, 11), "float64")) + 0.5]),
        (folded, [np.abs(random_numbers((13, 11), "float32")) + 0.5]),
        *[(converted, [edges(t)]) for t in DTYPES],
    ],
)
def test_exact_programs(lesser: Host, f: Callable[..., Any], args: list[Any]) -> None:
    found, expected = found_and_expected(f, args)
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert same_bits(a, b), f"result {i}"


@pytest.mark.parametrize("seed", range(5))
def test_random_programs(lesser: Host, seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = SHAPES[rng.integers(len(SHAPES))]
    xs = [draw_array(rng, shape, DTYPES[rng.integers(len(DTYPES))]) for _ in range(3)]
    found, expected = found_and_expected(random_function(GROUP_E, seed, 20), xs, whole=False)  # some convert to float16
    assert all([same_bits(a, b) for a, b in zip(found, expected, strict=True)])


def test_a_position_outside_is_found(lesser: Host) -> None:
    program = fg.make_program(lambda x, i: x[i])(np.ones(5), np.arange(9) % 5)
    with eagerly(), pytest.raises(IndexError, match="index 7 is out of bounds"):
        Executable(program)([np.ones(5), np.array([0, 1, 2, 3, 4, 0, 1, 7, 9])])


# -- within a bound


def elementary(x: Any) -> Any:
    """Functions with loops over lanes, tables of coefficients, and conversions in them."""
    y = np.exp(-x * x) + np.sin(50.0 * x) + np.cos(1e9 * x) + np.tanh(x) + np.log1p(np.abs(x))
    return y, fg.special.erf(x), fg.special.erfinv(x / 4.0), np.sinc(x), fg.special.xlogy(np.abs(x), 2.5), np.cbrt(x)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_elementary_functions(lesser: Host, dtype: str, n: int) -> None:
    x = np.linspace(-3, 3, n).astype(dtype)
    eps = np.finfo(dtype).eps
    for a, b in zip(*found_and_expected(elementary, [x]), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, 8 * eps, 8 * eps)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1,), (13,), (1000,), (37, 19), (4, 5, 6)])
def test_sums(lesser: Host, shape: tuple[int, ...], dtype: str) -> None:
    x = np.random.default_rng(3).standard_normal(shape).astype(dtype)
    axes: list[Any] = [None, *range(len(shape))]
    found, _ = found_and_expected(lambda v: tuple(np.sum(v, axis=a) for a in axes), [x])
    unit = np.finfo(dtype).eps / 2
    for a, axis in zip(found, axes, strict=True):
        exact, size = x.astype(np.longdouble).sum(axis=axis), np.abs(x).astype(np.longdouble).sum(axis=axis)
        assert np.all(np.abs(a - exact) <= unit * (16 * size + np.abs(exact)))  # at most 16 roundings: see test_sums


def test_value_and_gradient_of_a_layer(lesser: Host) -> None:
    rng = np.random.default_rng(4)
    w, x, y = rng.normal(size=(5, 3)), rng.normal(size=(20, 5)), rng.normal(size=(20, 3))
    loss = lambda w, x, y: np.mean((np.tanh(x @ w) - y) ** 2)
    for a, b in zip(*found_and_expected(lambda *args: fg.value_and_grad(loss)(*args), [w, x, y]), strict=True):
        np.testing.assert_allclose(a, b, 1e-13, 1e-15)


def test_the_text_asks_for_what_the_processor_has(lesser: Host) -> None:
    target = this_target()
    text = module_text(fg.make_program(lambda x: (*elementary(x), np.floor(x), np.rint(x)))(np.ones(100)))
    assert ("@llvm.fma" in text) == target.fma
    assert ("@llvm.floor" in text) == ("@llvm.rint" in text) == target.rounding
    assert f"<{target.lanes(8)} x double>" in text
    assert f"<{target.lanes(4)} x double>" not in text


# -- every op


@pytest.mark.slow
@pytest.mark.parametrize("name", OPS)
def test_every_exact_op(lesser: Host, name: str) -> None:
    test_native_ops.test_bits(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in ELEMENTWISE if n not in OPS])
def test_every_elementary_function(lesser: Host, name: str) -> None:
    for dtype in ("float32", "float64"):
        args = operands(name, dtype)
        found, expected = found_and_expected(lambda *a: bind1(registry[name], *a), args)
        tolerance = 8 * np.finfo(dtype).eps
        np.testing.assert_allclose(found[0], expected[0], tolerance, tolerance)
