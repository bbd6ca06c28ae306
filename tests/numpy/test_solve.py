"""Linear systems: NumPy's results, derivatives, rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp

RANDOM = np.random.default_rng(0)


def system(stack: tuple[int, ...], n: int, k: int | None, dtype: Any = float) -> Any:
    a = RANDOM.normal(size=(*stack, n, n)) + 4 * np.eye(n)
    b = RANDOM.normal(size=(n,) if k is None else (*stack, n, k))
    return a.astype(dtype), b.astype(dtype)


@pytest.mark.parametrize("dtype", ["f8", "f4", "c16", "i8"])
@pytest.mark.parametrize(("stack", "n", "k"), [((), 3, None), ((), 3, 2), ((2, 3), 2, 1), ((2,), 3, None), ((), 1, 1)])
def test_values(stack: Any, n: int, k: Any, dtype: str) -> None:
    a, b = system(stack, n, k, dtype)
    expected = np.linalg.solve(a, b)
    for f in (fnp.linalg.solve, fg.jit(np.linalg.solve), fg.jit(fnp.linalg.solve)):
        found = f(a, b)
        assert found.dtype == expected.dtype and found.shape == expected.shape
        np.testing.assert_array_equal(found, expected)


def test_broadcasting_and_promotion() -> None:
    a, b = system((2, 1), 2, None)[0], system((3,), 2, 4)[1]
    np.testing.assert_allclose(fnp.linalg.solve(a, b), np.linalg.solve(a, b), rtol=1e-14)
    assert (
        fnp.linalg.solve(a[0, 0].astype("f4"), np.arange(2)).dtype
        == np.linalg.solve(a[0, 0].astype("f4"), np.arange(2)).dtype
    )


def test_derivatives_are_those_of_the_inverse() -> None:
    a, b = system((), 3, None)
    inverse = np.linalg.inv(a)
    x = inverse @ b
    for f in (np.linalg.solve, fg.jit(fnp.linalg.solve)):
        for jacobian in (fg.jacfwd, fg.jacrev):
            np.testing.assert_allclose(jacobian(f, 1)(a, b), inverse, rtol=1e-12)
            np.testing.assert_allclose(jacobian(f, 0)(a, b), -np.einsum("ij,k->ijk", inverse, x), rtol=1e-12)
    # d²(cᵀ a⁻¹ b) along (e, e) is 2 cᵀ a⁻¹ e a⁻¹ e a⁻¹ b
    e, c = RANDOM.normal(size=(3, 3)), RANDOM.normal(size=3)
    g = lambda t: c @ np.linalg.solve(a + t * e, b)
    expected = 2 * c @ inverse @ e @ inverse @ e @ x
    np.testing.assert_allclose(fg.grad(fg.grad(g))(0.0), expected, rtol=1e-12)
    third = -6 * c @ inverse @ e @ inverse @ e @ inverse @ e @ x
    np.testing.assert_allclose(fg.jit(fg.grad(fg.grad(fg.grad(g))))(0.0), third, rtol=1e-11)


def test_rows() -> None:
    a, b = system((4,), 3, 2)
    for f in (np.linalg.solve, fg.jit(fnp.linalg.solve)):
        np.testing.assert_allclose(fg.vmap(f)(a, b), np.linalg.solve(a, b), rtol=1e-13)
        np.testing.assert_allclose(fg.vmap(f, (None, 0))(a[0], b), np.linalg.solve(a[0], b), rtol=1e-13)
        np.testing.assert_allclose(fg.vmap(f, (0, None))(a, b[0]), np.linalg.solve(a, b[:1]), rtol=1e-13)
        np.testing.assert_allclose(fg.vmap(f, (None, 1))(a[0], b[0]), np.linalg.solve(a[0], b[0]).T, rtol=1e-13)
    program = str(fg.make_program(fg.vmap(np.linalg.solve, (None, 0)))(a[0], b))
    assert "solve" in program and "f64[4,3,3]" not in program  # factorised once


def test_errors() -> None:
    for f in (fnp.linalg.solve, fg.jit(fnp.linalg.solve), fg.vmap(fnp.linalg.solve)):
        a = np.ones((2, 2)) if f is not fg.vmap else np.ones((1, 2, 2))
        with pytest.raises((fg.errors.SingularMatrixError, fg.errors.ShapeError)):
            f(a, np.ones(2))
    with pytest.raises(np.linalg.LinAlgError):
        fg.grad(lambda a: np.linalg.solve(a, np.ones(2)).sum())(np.ones((2, 2)))
    for a, b, text in [
        (np.ones((2, 3)), np.ones(2), "must be square"),
        (np.ones(2), np.ones(2), "must be square"),
        (np.eye(2), np.ones(3), "rows of a and b differ"),
        (np.eye(2), np.ones(()), "rows of a and b differ"),
        (np.ones((2, 2, 2)), np.ones((3, 2, 1)), "do not broadcast"),
    ]:
        with pytest.raises(fg.errors.ShapeError, match=text):
            fnp.linalg.solve(a, b)
    with pytest.raises(fg.errors.DtypeError):
        fnp.linalg.solve(np.eye(2, dtype="f2"), np.ones(2, "f2"))
