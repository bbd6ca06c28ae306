"""Banded arrays kept as their diagonals: the same bits as without, for derivatives and for random programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.base.errors import ShapeError
from funcgrad.core.evaluate import run
from funcgrad.core.ir import Program
from funcgrad.core.primitive import registry
from funcgrad.core.trace import eagerly
from funcgrad.lowering.executable import Executable
from funcgrad.lowering.kernels import Loop
from funcgrad.lowering.schedule import schedule
from funcgrad.lowering.simplify import simplify
from funcgrad.ops.arithmetic import mask_div, mask_mul
from tests.lowering.test_native_ops import same_bits


def rosenbrock(x: Any) -> Any:
    return np.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def visits(program: Program) -> int:
    """How many places of iteration spaces the loops of a Program visit."""
    return sum(int(np.prod(k.shape)) for k in schedule(simplify(program)).kernels if isinstance(k, Loop))


def check(f: Callable[..., Any], *xs: Any) -> Program:
    """Both the Program with diagonals and its machine code give the bits of evaluation; returns the one as traced."""
    program = fg.make_program(f)(*xs)
    with eagerly():
        expected = run(program, xs)
        for found in (run(simplify(program), xs), Executable(program)(xs)):
            for i, (a, b) in enumerate(zip(found, expected, strict=True)):
                assert same_bits(a, b), f"result {i}"
    return program


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8, 33, 100])
def test_the_hessian_of_rosenbrock_visits_its_elements_once(n: int) -> None:
    x = np.random.default_rng(n).normal(size=n)
    x[0], x[-1] = 0.0, -0.0
    program = check(fg.hessian(rosenbrock), x)
    assert visits(program) <= n * n + 12 * n + 12
    found, i = fg.jit(fg.hessian(rosenbrock))(x), np.arange(n - 1)
    expected = np.zeros((n, n))
    expected[i, i] = 1200 * x[:-1] ** 2 - 400 * x[1:] + 2
    expected[i + 1, i + 1] += 200
    expected[i, i + 1] = expected[i + 1, i] = -400 * x[:-1]
    np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("transform", [fg.jacfwd, fg.jacrev, lambda f: fg.hessian(lambda x: np.sum(f(x)))])
@pytest.mark.parametrize(
    "f",
    [
        lambda x: np.sqrt(abs(x)) * x,
        lambda x: x / (1.0 + x * x),
        lambda x: np.where(x > 0, x * x * x, -x),
        lambda x: x[2:] * x[:-2] - x[1:-1] ** 2,
        lambda x: x[::-1] * x,
        lambda x: x * np.sum(x),
        lambda x: fnp.concatenate([x * x, x]),
        lambda x: np.maximum(x, 0.0) ** 2 - np.minimum(x, 1.0),
        lambda x: (x.reshape(2, -1) ** 2).T.ravel() * x,
        lambda x: x[::2] ** 2,
    ],
)
def test_derivatives(f: Any, transform: Any) -> None:
    for n in (4, 12):
        x = np.random.default_rng(n).normal(size=n)
        x[1], x[-1] = -0.0, np.inf
        check(transform(f), x)


def test_jacobians_of_elementwise_functions_are_linear_work() -> None:
    x = np.linspace(-2.0, 2.0, 40)
    for transform in (fg.jacfwd, fg.jacrev):
        assert visits(check(transform(lambda x: np.where(x > 0, x * x, x / 3.0)), x)) <= 40 * 40 + 10 * 40
    assert visits(check(fg.jacfwd(lambda x, y: (x * y, y - x), (0, 1)), x, x)) <= 4 * 40 * 40 + 20 * 40


def test_a_constant_band_stays_in_the_loop_that_reads_it() -> None:
    x = np.arange(36.0).reshape(6, 6)
    program = check(lambda x: x * 2.0 + 3.0 * fnp.eye(6), x)
    assert visits(program) == 36
    check(lambda x: (fnp.eye(6, k=2) - x, fnp.eye(6, k=2) * 2.0 - 1.0, fnp.sum(fnp.eye(6)), x @ fnp.eye(6, k=-1)), x)


def test_a_band_that_is_needed_whole() -> None:
    x = np.linspace(0.5, 3.0, 9)

    def f(x: Any, i: Any) -> Any:
        j = fg.jacfwd(lambda x: x * x * x)(x)
        return j @ j, j, j.sum(axis=0), np.sqrt(j), j[::-1], j[:, ::2], j + x, j.reshape(3, 27), j[i]

    check(f, x, np.array([2, 0]))


def test_bands_inside_a_loop_of_registers() -> None:
    def trip(c: Any, s: Any) -> Any:
        return c * s, fg.jacfwd(np.sin)(c)

    x, steps = np.array([0.5, -1.0, 2.0]), np.array([0.75, -0.5])
    found = fg.jit(lambda x: fg.lax.scan(trip, x, steps)[1])(x)
    np.testing.assert_allclose(found, [np.diag(np.cos(x)), np.diag(np.cos(0.75 * x))], rtol=1e-15)


def test_banded_refuses_what_lies_outside() -> None:
    line = fg.make_program(lambda x: x)(np.zeros(3)).inputs[0].aval
    for shape, boxes, place in [
        ((3, 3), (), (1, 4)),
        ((3, 3), (), (-1, 4)),
        ((3, 3), (), (0, 0)),
        ((2, 2), (((0, 0), (2, 3), np.float64(0)),), (0, 1)),
    ]:
        with pytest.raises(ShapeError, match="banded"):
            registry["banded"].abstract(line, shape=shape, dtype=line.dtype, boxes=boxes, places=(place,))


def step(r: Any, pool: list[Any], x: Any) -> Any:
    """One random operation on values of the pool."""
    a, b = pool[r.integers(len(pool))], pool[r.integers(len(pool))]
    kind = r.integers(16)
    if kind < 4:
        return (fnp.add, fnp.subtract, fnp.multiply, fnp.maximum)[kind](a, b)
    if kind < 6:
        dense = fnp.broadcast_to(x[: a.shape[1]] if r.random() < 0.5 else x[: a.shape[0], None], a.shape)
        dense = dense * dense if r.random() < 0.5 else dense
        return (mask_mul, mask_div)[kind - 4](a, dense)
    if kind == 6:
        return -a
    if kind == 7:
        return a * float(r.choice([2.0, -1.0, 0.0, np.inf]))
    if kind == 8:
        return a.T
    if kind == 9:
        return a[int(r.integers(2)) :, int(r.integers(2)) :]
    if kind == 10:
        return a[: max(a.shape[0] - 1, 1), : a.shape[1]]
    if kind == 11:
        widths = [(int(r.integers(2)), int(r.integers(2))) for _ in range(2)]
        return fnp.pad(a, widths, constant_values=float(r.choice([0.0, -0.0, 1.0])))
    if kind == 12:
        return fnp.expand_dims(a, int(r.integers(3))).reshape(a.shape)
    if kind == 13:
        return np.where(fnp.broadcast_to(x[: a.shape[1]] > 0, a.shape), a, 0.0)
    if kind == 14:
        return np.where(a != 0, a + b, b)
    return fnp.eye(*a.shape, k=int(r.integers(-2, 3)))


@settings(max_examples=60)
@given(st.integers(0, 2**31))
def test_random_programs_of_bands(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, m, count = (int(k) for k in rng.integers((2, 2, 4), (14, 14, 24)))
    x = rng.normal(size=40)
    x[rng.random(40) < 0.2] = rng.choice([0.0, -0.0, np.inf, 1e-310])

    def f(x: Any) -> Any:
        r = np.random.default_rng(seed)
        pool = [fnp.eye(n, m, k=int(r.integers(-1, 2))) for _ in range(2)]
        while len(pool) < count:
            try:
                found = step(r, pool, x)
            except ShapeError:
                continue
            if max(found.shape) < 30:
                pool.append(found)
        return tuple(pool[-4:])

    check(f, x)


@pytest.mark.slow
def test_many_random_programs_of_bands() -> None:
    for seed in range(5000):
        test_random_programs_of_bands.hypothesis.inner_test(seed)  # type: ignore[attr-defined]


SELECTED = {
    "a row of an outer product": lambda x: np.outer(x, x)[0],
    "its last row": lambda x: np.sin(np.outer(x, x))[-1],
    "rows of it": lambda x: np.outer(x, x)[1:2],
    "a column": lambda x: (x[:, None] * np.arange(3.0))[:, 1],
    "a row that is repeated": lambda x: (np.ones((3, 1)) * x)[1],
    "a row of the transpose": lambda x: np.outer(x, x).T[1],
    "a row of a sum": lambda x: (x[:, None] + x[None, :])[0] * x,
}


@pytest.mark.parametrize("n", [2, 3, 4, 7])
@pytest.mark.parametrize("name", SELECTED)
def test_a_part_of_what_is_constant_along_the_diagonal(name: str, n: int) -> None:
    f = SELECTED[name]
    x = np.linspace(0.5, 1.5, n)
    for derivative in (fg.jacrev(f), fg.jacfwd(f), fg.hessian(lambda x: np.sum(f(x) ** 2))):
        np.testing.assert_allclose(fg.jit(derivative)(x), derivative(x), rtol=1e-14, atol=1e-14)
