"""Running totals against NumPy's."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import lax

X = np.random.default_rng(3).normal(size=(7, 4))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lax.cumsum, np.cumsum),
        (lax.cumprod, np.cumprod),
        (lax.cummax, np.maximum.accumulate),
        (lax.cummin, np.minimum.accumulate),
        (lax.cumlogsumexp, np.logaddexp.accumulate),
    ],
)
def test_running_totals(ours: Any, theirs: Any, axis: int, reverse: bool) -> None:
    turned = np.flip(X, axis) if reverse else X
    want = theirs(turned, axis=axis)
    want = np.flip(want, axis) if reverse else want
    np.testing.assert_allclose(ours(X, axis, reverse), want, rtol=1e-13)
    np.testing.assert_allclose(fg.jit(lambda x: ours(x, axis, reverse))(X), want, rtol=1e-13)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 8, 13, 32, 33])
@pytest.mark.parametrize("reverse", [False, True])
def test_associative_scan_of_affine_maps(n: int, reverse: bool) -> None:
    rng = np.random.default_rng(n)
    a, b = rng.normal(size=(2, n, 3))

    def compose(f: Any, g: Any) -> Any:
        return f[0] * g[0], f[1] * g[0] + g[1]

    got = lax.associative_scan(compose, (a, b), reverse=reverse)
    want_a, want_b = np.empty_like(a), np.empty_like(b)
    for i, k in enumerate(reversed(range(n)) if reverse else range(n)):
        previous = k + 1 if reverse else k - 1
        start = (np.ones(3), np.zeros(3)) if i == 0 else (want_a[previous], want_b[previous])
        want_a[k], want_b[k] = compose(start, (a[k], b[k]))
    np.testing.assert_allclose(got[0], want_a, rtol=1e-12)
    np.testing.assert_allclose(got[1], want_b, rtol=1e-12, atol=1e-13)


def test_derivative_of_a_running_product() -> None:
    x = np.array([2.0, 3.0, 5.0])
    got = fg.jacobian(lambda x: lax.associative_scan(operator.mul, x))(x)
    np.testing.assert_allclose(got, [[1, 0, 0], [3, 2, 0], [15, 10, 6]])


def test_errors() -> None:
    with pytest.raises(fg.errors.ShapeError, match=r"numbers of rows differ: 3 in elems\.a, 2 in elems\.b"):
        lax.associative_scan(lambda f, g: f, {"a": np.ones(3), "b": np.ones(2)})
    with pytest.raises(fg.errors.TreeError, match="the result of the function"):
        lax.associative_scan(lambda f, g: (f, g), np.ones(3))
