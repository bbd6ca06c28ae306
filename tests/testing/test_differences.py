"""Numerical derivatives against exact ones: the value, and that the estimated error covers the true one."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest

import funcgrad as fg
from funcgrad.testing import complex_step, finite_differences, numerical_jvp

# function, point, exact derivative, the largest relative error that is accepted
SMOOTH: dict[str, tuple[Any, float, float, float]] = {
    "sin": (np.sin, 1.0, np.cos(1.0), 1e-12),
    "cube": (lambda x: x**3, 2.0, 12.0, 1e-12),
    "linear": (lambda x: 5 * x, 1e-8, 5.0, 1e-14),
    "exp, large": (np.exp, 300.0, np.exp(300.0), 1e-12),
    "exp, tiny": (np.exp, -300.0, np.exp(-300.0), 1e-12),
    "log near 0": (np.log, 1e-8, 1e8, 1e-11),
    "log far away": (np.log, 1e8, 1e-8, 1e-11),
    "fast oscillation": (lambda x: np.sin(1e6 * x), 0.3, 1e6 * np.cos(3e5), 1e-9),
    "oscillation far away": (np.sin, 1e8, np.cos(1e8), 1e-7),
    "slow at a tiny scale": (lambda x: np.sin(1e8 * x), 1e-8, 1e8 * np.cos(1.0), 1e-11),
    "steep": (lambda x: np.tanh(1e3 * x), 1e-3, 1e3 / np.cosh(1.0) ** 2, 1e-11),
    "cancellation": (lambda x: (x + 1e8) - 1e8, 0.3, 1.0, 1e-6),
    "essential singularity": (lambda x: np.exp(-1 / x**2), 0.1, 2e3 * np.exp(-100.0), 1e-10),
    "near the end of the domain": (np.arcsin, 1 - 1e-6, 1 / np.sqrt(1 - (1 - 1e-6) ** 2), 1e-8),
    "a zero of a rounded argument": (np.sinc, 1.0, -1.0, 1e-11),
    "the same, by hand": (lambda x: np.sin(np.pi * x) / np.pi, 2.0, 1.0, 1e-11),
    "small next to large": (lambda x: 1e-3 * np.sin(1e6 * x) + x, 1.0, 1 + 1e3 * np.cos(1e6), 1e-9),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_the_derivative_and_its_error(name: str) -> None:
    f, x, exact, accepted = SMOOTH[name]
    value, error = finite_differences(f, x)
    assert abs(value - exact) <= accepted * abs(exact)
    assert abs(value - exact) <= 10 * error
    for side in ("left", "right"):
        value, error = finite_differences(f, x, side)
        assert abs(value - exact) <= 1e4 * accepted * abs(exact)
        assert abs(value - exact) <= 20 * error


def test_against_mpmath() -> None:
    for x in (0.1, 1.0, 3.7):
        exact = float(mpmath.diff(lambda t: mpmath.exp(mpmath.sin(t)) * mpmath.log(t), x))
        value, error = finite_differences(lambda t: np.exp(np.sin(t)) * np.log(t), x)
        assert abs(value - exact) <= min(10 * error, 1e-11 * abs(exact))


ROUNDED: dict[str, tuple[Any, Any, list[float]]] = {
    "1 - logistic": (lambda x: 1.0 - 1 / (1 + np.exp(-x)), lambda x: 1 - 1 / (1 + mpmath.exp(-x)), [10, 14, 18, 22]),
    "1 - tanh": (lambda x: 1 - np.tanh(x), lambda x: 1 - mpmath.tanh(x), [6, 8, 10, 12]),
    "1 - tanh²": (lambda x: 1 - np.tanh(x) ** 2, lambda x: 1 - mpmath.tanh(x) ** 2, [6, 8, 10, 12]),
    "1 - cos": (lambda x: 1 - np.cos(x), lambda x: 1 - mpmath.cos(x), [1e-5, 1e-4, 1e-3]),
    "(x + 1) - 1": (lambda x: (x + 1) - 1, lambda x: x, [1e-9, 1e-12]),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_what_rounding_hides_is_not_known(name: str) -> None:
    f, g, points = ROUNDED[name]
    for point in points:
        for x in np.float64(point) * (1 + np.random.default_rng(0).uniform(-0.1, 0.1, 20)):
            with mpmath.workdps(50):
                exact = float(mpmath.diff(g, mpmath.mpf(float(x))))
            value, error = finite_differences(f, x)
            assert abs(value - exact) <= 10 * error <= 1e-2 * abs(exact)


def test_steps_of_a_function_itself_are_no_rounding() -> None:
    for f in (np.floor, lambda x: np.floor(10 * x) / 10, lambda x: np.clip(x - 0.001, 0.0, 1.0) + 3, np.sign):
        for x in (2.001, 0.0005, -(2.0**-10)):
            value, error = finite_differences(lambda x, f=f: f(x) + 0.0, x)
            assert abs(value) <= max(10 * error, 1e-12) <= 1e-3


def test_the_usual_cost() -> None:
    for f, x in ((np.sin, 1.0), (lambda x: x**2, 2.0), (np.exp, 0.3), (lambda x: 5 * x, 3.0)):
        calls = []
        finite_differences(lambda x, f=f, calls=calls: calls.append(x) or f(x), x)
        assert len(calls) <= 35, len(calls)


def test_a_zero_derivative() -> None:
    for f in (np.cos, lambda x: 0 * x + 3, lambda x: x**2, lambda x: x**4 - x**2):
        value, error = finite_differences(f, 0.0)
        assert abs(value) <= 10 * error <= 1e-11


def test_steps_that_are_multiples_of_the_period() -> None:
    w = 64 * np.pi
    f = lambda t: np.sin(w * t) + t
    value, _ = finite_differences(f, 0.0)
    assert abs(value - (w + 1)) <= 1e-10 * w
    w = 4.0**10 * np.pi
    value, _ = finite_differences(f, 0.0)
    assert abs(value - (w + 1)) <= 1e-8 * w


def test_either_side_of_a_kink() -> None:
    for side, expected in (("left", -1.0), ("right", 1.0)):
        value, _ = finite_differences(lambda x: np.abs(x) + np.sin(x) - x, 0.0, side)
        assert abs(value - expected) <= 1e-9
    assert finite_differences(np.abs, 0.0)[0] == 0.0


def test_the_end_of_a_domain() -> None:
    value, error = finite_differences(lambda x: np.asarray(x) ** 2.5 + x, 0.0)
    assert abs(value - 1.0) <= max(1e-5, 10 * error)
    assert np.isinf(finite_differences(np.sqrt, 0.0)[1])


def test_a_value_that_overflows_nearby() -> None:
    value, error = finite_differences(lambda x: np.exp(1000 * x), 0.7)  # x + 1/16 is too large
    exact = 1000 * np.exp(700.0)
    assert abs(value - exact) <= min(10 * error, 1e-9 * exact)


def test_nothing_moves() -> None:
    for x, v in ((2.0, 0.0), (2, 1), (np.ones(0), np.ones(0))):
        value, error = numerical_jvp(lambda x: 1.5 * x, (x,), (v,))
        assert np.shape(value) == np.shape(x)
        assert not np.any(value)
        assert not np.any(error)


def test_trees_and_integers() -> None:
    def f(p: Any, n: Any) -> Any:
        return {"s": np.sum(p["w"] ** 2) * n, "n": n, "v": p["w"] * p["b"]}

    p = {"w": np.array([[1.0, 2.0], [3.0, 4.0]]), "b": 0.5}
    v = {"w": np.ones((2, 2)), "b": 2.0}
    found, error = numerical_jvp(f, (p, 3), (v, 0))
    assert abs(found["s"] - 60) <= 1e-10 and found["n"] == 0
    np.testing.assert_allclose(found["v"], 0.5 + 2 * p["w"], rtol=1e-12)
    assert error["v"].shape == (2, 2) and np.max(error["v"]) < 1e-10


def test_complex_functions() -> None:
    z, v = np.array([1 + 2j]), np.array([0.5 - 1j])
    found, _ = numerical_jvp(lambda z: z**2, (z,), (v,))
    np.testing.assert_allclose(found, 2 * z * v, rtol=1e-12)


def test_complex_step_is_exact() -> None:
    x = np.array([0.1, 1.0, 2.0])
    found = complex_step(lambda x: np.exp(x) * np.sin(x), (x,), (np.ones(3),))
    np.testing.assert_allclose(found, np.exp(x) * (np.sin(x) + np.cos(x)), rtol=4e-16)
    with pytest.raises(fg.errors.ArgumentError, match="returns real numbers"):
        complex_step(np.abs, (x,), (np.ones(3),))


def sort(x: np.ndarray) -> None:
    x.sort()  # and forgets to return it


def test_arguments_that_do_not_fit() -> None:
    with pytest.raises(fg.errors.ArgumentError, match="tuple with one entry per argument"):
        numerical_jvp(np.sin, 1.0, 1.0)
    with pytest.raises(fg.errors.ArgumentError, match="the tree of the primals"):
        numerical_jvp(np.sin, (1.0,), (1.0, 2.0))
    with pytest.raises(fg.errors.ArgumentError, match=r"the tangent of an argument has its shape: \(3,\) for \(2,\)"):
        numerical_jvp(np.sin, (np.ones(2),), (np.ones(3),))
    with pytest.raises(fg.errors.ArgumentError, match="numerical_jvp: sort returns None"):
        numerical_jvp(sort, (np.ones(2),), (np.ones(2),))
    with pytest.raises(fg.errors.ArgumentError, match="side is"):
        finite_differences(np.sin, 1.0, "up")
