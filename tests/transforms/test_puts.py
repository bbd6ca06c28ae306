"""Cotangents that are a few values put into zeros: added in place, whichever comes first, and read by others too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax

X, Z = np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0])


@pytest.mark.parametrize("wrap", [lambda f: f, fg.jit])
@pytest.mark.parametrize("last", [True, False])
def test_an_element_of_a_sum_whose_term_is_read_elsewhere(last: bool, wrap: Any) -> None:
    def f(x: Any, z: Any, i: Any) -> Any:
        before = None if last else np.sum(x * x)
        element = (x + z)[i]
        return element * (np.sum(x * x) if last else before)

    gx, gz = fg.grad(wrap(f), (0, 1))(X, Z, 1)  # (x₁ + z₁) Σ x²
    np.testing.assert_allclose(gx, 7 * 2 * X + np.array([0.0, 14.0, 0.0]))
    np.testing.assert_allclose(gz, [0.0, 14.0, 0.0])
    hessian = fg.hessian(lambda x: wrap(f)(x, Z, 1))(X)
    along = np.outer([0.0, 1.0, 0.0], 2 * X)
    np.testing.assert_allclose(hessian, along + along.T + 14 * np.eye(3))


@pytest.mark.parametrize("index", [1, np.array([1, 1]), slice(1, 2)])
def test_two_elements_of_one_sum(index: Any) -> None:
    count = np.size(np.arange(3)[index])
    f = lambda x, z: np.sum((x + z)[index]) * np.sum(x[index] * z[index])  # a put on both sides
    gx, gz = fg.jit(fg.grad(f, (0, 1)))(X, Z)
    np.testing.assert_allclose(gx, [0.0, count**2 * (10.0 + 7.0 * 5.0), 0.0])
    np.testing.assert_allclose(gz, [0.0, count**2 * (10.0 + 7.0 * 2.0), 0.0])


@pytest.mark.parametrize("order", [1, 2, 3])
def test_no_derivative_of_a_recurrence_makes_an_array_in_each_trip(order: int) -> None:
    n = 1000

    def f(r: Any) -> Any:
        x = fnp.zeros(n).at[0].set(0.5)
        x = lax.fori_loop(1, n, lambda i, x: x.at[i].set(r * x[i - 1] * (1 - x[i - 1])), x)
        return np.sum(x)

    for _ in range(order):
        f = fg.grad(f)
    loops = [e for e in fg.make_program(f)(2.5).equations if e.primitive.name == "loop"]
    assert loops
    for e in loops:
        for q in e.params["body"].equations:
            for v in q.outputs:  # an update of one array is in place; a new one is not
                assert v.aval.size < n or q.primitive.traits.kind in ("update", "scatter"), q
                assert v.aval.size < n or not hasattr(q.inputs[0], "array"), q
