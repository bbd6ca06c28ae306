"""Every elementwise op has a native form for every dtype it takes; and those forms that are more than a few lines."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.core.evaluate import run
from funcgrad.core.primitive import registry
from funcgrad.core.trace import bind1, eagerly
from funcgrad.lowering.emit import native_form
from funcgrad.lowering.executable import Executable
from tests.lowering.test_native_ops import DTYPES, compiled_and_evaluated, same_bits

NOT_COMPILED = {
    "float16": "evaluated with NumPy: few processors have the instructions, and no user has asked",
    "complex64": "evaluated with NumPy: a register holds one number",
    "complex128": "evaluated with NumPy: a register holds one number",
}
ELEMENTWISE = [n for n, p in registry.items() if p.traits.kind == "elementwise"]


def operands(name: str, dtype: str) -> list[np.ndarray]:
    """Numbers of every sign that the op takes, without those that are special."""
    op, random = registry[name], np.random.default_rng(1)
    arity = 1 if name == "convert" else len(inspect.signature(op.function).parameters)
    if np.dtype(dtype).kind in "fc":
        args = [random.uniform(*op.domain.interval(i), 37).astype(dtype) for i in range(arity)]
    else:
        args = [random.integers(0, 2 if dtype == "bool" else 9, 37).astype(dtype) for _ in range(arity)]
    return [args[0] > 0, *args[1:]] if name == "select" else args


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_every_op_has_a_native_form_for_every_dtype_it_takes(name: str) -> None:
    op = registry[name]
    for dtype in [*DTYPES, *NOT_COMPILED]:
        if np.dtype(dtype).kind not in op.dtypes:
            continue
        args = operands(name, dtype)
        params = {"dtype": np.dtype("float64"), "weak": False} if name == "convert" else {}
        program = fg.make_program(lambda *a, p=params: bind1(op, *a, **p))(*args)
        assert all([native_form(e) for e in program.equations]) == (dtype not in NOT_COMPILED), dtype
        with eagerly(), np.errstate(all="ignore"):
            found, expected = Executable(program)(args)[0], run(program, args)[0]
        tolerance = 0.0 if op.traits.exact or found.dtype.kind not in "fc" else 8 * np.finfo(found.dtype).eps
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, tolerance, tolerance, err_msg=dtype)


@pytest.mark.parametrize("name", ["pow", "gcd", "lcm"])
@pytest.mark.parametrize("dtype", DTYPES[1:9])
def test_loops_of_integers(name: str, dtype: str) -> None:
    random, i = np.random.default_rng(2), np.iinfo(dtype)
    for low, high in ((i.min, i.max), (max(i.min, -20), 20)):
        x, y = (random.integers(low, high, 997, dtype, endpoint=True) for _ in range(2))
        x[:20], y[10:30], x[30:40], y[35:45] = 0, 0, i.min, i.max
        found, expected = compiled_and_evaluated(lambda x, y: bind1(registry[name], x, y), [x, y])
        assert same_bits(found[0], expected[0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_neighbours_of_any_float(dtype: str) -> None:
    random, word = np.random.default_rng(3), np.dtype(f"u{np.dtype(dtype).itemsize}")
    x, y = (random.integers(0, np.iinfo(word).max, 9973, word, endpoint=True).view(dtype) for _ in range(2))
    for f, args in ((fnp.nextafter, [x, y]), (fnp.nextafter, [x, x]), (fnp.spacing, [x])):
        with np.errstate(all="ignore"):
            found, expected = compiled_and_evaluated(f, args)
        assert same_bits(found[0], expected[0])


@pytest.mark.parametrize("order", range(7))
def test_derivatives_of_sinc(order: int) -> None:
    x = np.concatenate([np.linspace(-4, 4, 321), [1e-300, -1e-20, 1e10, 2.0**60, np.inf, np.nan]])
    for dtype, error in (("float64", 2e-15), ("float32", 2e-7)):
        found, expected = compiled_and_evaluated(lambda v: bind1(registry["sinc"], v, order=order), [x.astype(dtype)])
        np.testing.assert_allclose(found[0], expected[0], 0, error * np.pi**order)
