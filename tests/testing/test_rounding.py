"""How much rounding matters, found by shaking every operation, and checks where digits are lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.errors import GradientError
from funcgrad.testing import check_grads
from funcgrad.testing.flat import flat_function
from funcgrad.testing.rounding import rounding

EPS = 2.0**-52
X = np.array([0.5, -1.25, 3.0])


def noise(f: Any, *args: Any) -> Any:
    return rounding(flat_function(f, args, None, "test"))


def test_what_does_not_round() -> None:
    for f in (
        lambda x: x[::-1],
        lambda x: np.maximum(x, 0.0),
        np.abs,
        lambda x: np.where(x > 0, x, 0.0),
        lambda x: x - x,
    ):
        assert not noise(f, X).any()


def test_what_rounds() -> None:
    found = noise(np.sin, X)
    assert (found <= 4 * EPS * abs(np.sin(X))).all() and found.any()
    lost = noise(lambda x: (x + 1e8) - 1e8, X)
    assert (lost >= 1e8 * EPS).all() and (lost <= 1e8 * 4 * EPS).all()
    assert noise(fg.jit(lambda x: (x + 1e8) - 1e8), X).max() >= 1e8 * EPS
    assert noise(lambda x: 1 - np.tanh(x) ** 2, 20.0) >= EPS


LOSSY: dict[str, tuple[Any, ...]] = {
    "saturated": (lambda x: np.sum(np.tanh(x)), np.array([15.0, 17.0, 25.0])),
    "a saturated square": (lambda x: 1 - np.tanh(x) ** 2, 12.0),
    "a small difference": (lambda x: (1 - np.cos(x)) / x**2, 1e-4),
    "a polynomial at its root": (lambda x: (x - 1) ** 5, 1.001),
    "the same, expanded": (lambda x: x**5 - 5 * x**4 + 10 * x**3 - 10 * x**2 + 5 * x - 1, 1.001),
    "a saturated square at a small scale": (lambda x: 100 * (1 - np.tanh(1e8 * x) ** 2), -15.564366701599987e-8),
    "numbers too small for all digits": (lambda x: 1e-4 * np.exp(-((1e6 * x) ** 2)), -27.090406305201682e-6),
    "far away": (lambda x: np.cos(x), 1e8),
}


@pytest.mark.parametrize("name", LOSSY)
def test_lost_digits_are_no_false_alarm(name: str) -> None:
    f, *args = LOSSY[name]
    check_grads(f, tuple(args))


@pytest.mark.parametrize("start", range(0, 60, 20))
def test_softmax_of_large_numbers(start: int) -> None:
    check_grads(fg.nn.softmax, (np.array([12.3, -13.8, -9.3, -10.5]),))
    for seed in range(start, start + 20):
        check_grads(fg.nn.softmax, (np.random.default_rng(seed).normal(size=4) * 10,), seed=seed)


def test_rounding_errors_do_not_cancel_by_chance() -> None:
    for seed in range(100):
        x = np.random.default_rng(seed).normal(size=3)
        assert (noise(lambda x: np.exp(x) * 3 / (x + 1e8) - np.exp(x) * 3 / (x + 1e8 + 1), x) > 0).all()
        assert (noise(lambda x: np.exp(x) + 1 - np.exp(x), x) >= EPS / 4).all()


def test_a_surrogate_where_digits_are_lost() -> None:
    step = fg.custom_jvp(lambda x: 1 - 1 / (1 + np.exp(-x)))
    step.defjvp(lambda p, t: (step(p[0]), 0.0 * t[0]))
    with pytest.raises(GradientError, match=r"result in x is 0, but should be -1\.5229.*\n *culprit: custom_jvp"):
        check_grads(lambda x: step(x), (18.0,))


def test_faults_are_found_among_lost_digits() -> None:
    wrong = fg.custom_jvp(np.tanh)
    wrong.defjvp(lambda p, t: (np.tanh(p[0]), 1.01 * (1 - np.tanh(p[0]) ** 2) * t[0]))
    with pytest.raises(GradientError, match="custom_jvp of tanh"):
        check_grads(lambda x: wrong(x) + 1e3, (5.0,))
