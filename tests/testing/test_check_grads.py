"""check_grads passes what is right: functions of many kinds, sizes and scales."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.testing import check_grads, check_jit, numerical_jvp

R = np.random.default_rng(0)
MATRIX = R.normal(size=(4, 4)) + 4 * np.eye(4)
HILBERT = 1.0 / (np.arange(5)[:, None] + np.arange(5) + 1)


@fg.custom_vjp
def clipped_square(x: Any) -> Any:
    return x**2


clipped_square.defvjp(lambda x: (x**2, x), lambda x, ct: (2 * x * ct,))


@fg.custom_jvp
def wrong_second(x: Any) -> Any:
    return x**3


wrong_second.defjvps(lambda x_dot, y, x: 3 * fg.stop_gradient(x) ** 2 * x_dot)


def bisection(a: Any) -> Any:
    low, high = 0.0 * a, 10.0 + 0 * a
    for _ in range(60):
        middle = (low + high) / 2
        low, high = np.where(middle**2 < a, middle, low), np.where(middle**2 < a, high, middle)
    return low


RIGHT: dict[str, tuple[Any, ...]] = {
    "sin": (np.sin, 1.0),
    "network": (
        lambda p, x: np.sum(np.tanh(x @ p["w"] + p["b"]) ** 2),
        {"w": R.normal(size=(3, 4)), "b": R.normal(size=4)}, R.normal(size=(5, 3)),
    ),
    "logistic": (
        lambda w, x, y: np.mean(np.logaddexp(0, x @ w) - y * (x @ w)),
        R.normal(size=3), R.normal(size=(20, 3)), R.normal(size=20),
    ),
    "several results": (lambda x, y: {"a": x * y, "b": (np.sin(x), 3)}, R.normal(size=3), R.normal(size=3)),
    "scan": (
        lambda a, x: fg.lax.scan(lambda c, xi: (np.sin(c * a) + xi, c * xi), 0.3, x), 0.7, R.normal(size=3),
    ),
    "while": (lambda a: fg.lax.while_loop(lambda c: c < 10.0, lambda c: c * a, 1.2), 1.7),
    "cond": (lambda x: fg.lax.cond(x[0] > 0, lambda x: np.sum(x**3), np.sum, x), R.normal(size=3)),
    "checkpoint": (fg.checkpoint(lambda x: np.sum(np.exp(np.sin(x)))), R.normal(size=3)),
    "jit": (fg.jit(lambda x: np.sum(x**3 * np.cos(x))), R.normal(size=3)),
    "Python branch": (lambda x: x**2 if x > 0 else x**3, 0.7),
    "custom_vjp": (lambda x: np.sum(clipped_square(x) * x), R.normal(size=3)),
    "implicit": (fg.implicit.root(lambda x, a: x**2 - a, bisection), 4.0),
    "solve": (np.linalg.solve, MATRIX, R.normal(size=4)),
    "ill-conditioned solve": (np.linalg.solve, HILBERT, R.normal(size=5)),
    "softmax": (fg.nn.softmax, R.normal(size=5)),
    "log of all scales": (lambda x: np.sum(np.log(x)), np.array([1e-8, 1.0, 1e8])),
    "cube of all scales": (lambda x: np.sum(x**3), np.array([1e-8, 1.0, 1e8])),
    "large and small": (lambda x, y: np.sin(x * 1e8) * np.cos(y * 1e-8), 1e-8, 1e8),
    "tiny results": (lambda x: 1e-30 * np.sum(np.sin(x)), R.normal(size=3)),
    "fast": (lambda x: np.exp(-x) * np.sin(1e6 * x), 0.3),
    "cancellation": (lambda x: np.sum((x + 1e8) - 1e8), R.normal(size=3)),
    "at a minimum": (lambda x: np.sum((x - 3.0) ** 2), np.full(3, 3.0)),
    "constant": (lambda x: np.ones(3) + 0 * np.sum(x), R.normal(size=3)),
    "kinks elsewhere": (lambda x: np.sum(np.maximum(x, 0.0) * np.abs(x)), R.normal(size=30)),
    "a long sum": (lambda x: np.sum(np.cumsum(x) ** 2), R.normal(size=1000)),
    "float32": (lambda x: np.sum(np.sin(x) * x), np.float32(R.normal(size=4))),
    "float32 for good": (lambda x: np.sum(np.sin(x).astype(np.float32) * x), np.float32(R.normal(size=4))),
    "integers": (lambda x, i: x[i] * i, R.normal(size=5), np.array([1, 3])),
    "complex": (lambda z: z * z * np.exp(z), 1 + 2j),
    "real part": (lambda z: np.real(z * z), 1 + 2j),
    "nothing": (lambda x: np.sum(x), np.zeros((0, 3))),
    "one": (lambda x: np.prod(x), np.array([[2.0]])),
}  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_passes(name: str) -> None:
    f, *args = RIGHT[name]
    check_grads(f, tuple(args))


@pytest.mark.parametrize("name", ["network", "several results", "integers", "float32"])
def test_every_element_alone(name: str) -> None:
    f, *args = RIGHT[name]
    check_grads(f, tuple(args), full=True)


def test_a_rule_for_reverse_mode_in_a_branch_that_is_not_taken() -> None:
    branches = lambda x: fg.lax.cond(x > 0, lambda x: x**3, clipped_square, x)
    for f in (branches, fg.jit(branches), lambda x: fg.lax.switch(1, [clipped_square, np.sin], x)):
        for x in (1.5, -1.5):
            check_grads(f, (x,), order=3)
            check_grads(f, (x,), modes=("rev", "fwd"))
    check_grads(branches, (1.5,), order=1, modes="fwd")
    wrong = lambda x: fg.lax.cond(x > 0, lambda x: x * x * fg.stop_gradient(x), clipped_square, x)
    for modes in (("fwd", "rev"), ("rev",)):
        with pytest.raises(fg.errors.GradientError, match="culprit: stop_gradient"):
            check_grads(wrong, (1.5,), modes=modes)
    second = lambda x: fg.lax.cond(x > 0, wrong_second, clipped_square, x)
    with pytest.raises(fg.errors.GradientError, match="fwd over rev, order 2"):
        check_grads(second, (1.5,))


def test_third_order() -> None:
    check_grads(lambda x: np.exp(x) * np.sin(x), (0.3,), order=3)


def test_modes_and_keywords() -> None:
    check_grads(lambda x, *, a, n: n * np.sin(a * x), (0.3,), modes=("rev",), kwargs={"a": 2.0, "n": 3})
    check_grads(np.sin, (0.3,), modes="fwd")
    with pytest.raises(fg.errors.ForwardModeError, match="has no forward mode"):
        check_grads(clipped_square, (0.3,), modes=("fwd",))


@pytest.mark.parametrize("seed", range(3))
def test_a_thing_depends_on_the_seed_only(seed: int) -> None:
    messages = []
    for _ in range(2):
        with pytest.raises(fg.errors.GradientError) as caught:
            check_grads(lambda x: x * fg.stop_gradient(x), (R.normal(size=3) * 0 + 2.0,), seed=seed)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_arguments_that_do_not_fit() -> None:
    counts = [{name: n} for name in ("order", "directions") for n in (0, -1, 1.5, "2", True)]
    seeds = [{"seed": seed} for seed in ("a", -1, 0.5, None)]
    for wrong in (*counts, *seeds, {"modes": ("forward",)}, {"modes": ()}, {"kinks": "warn"}):
        with pytest.raises(fg.errors.ArgumentError, match="check_grads"):
            check_grads(np.sin, (1.0,), **wrong)
    with pytest.raises(fg.errors.ArgumentError, match="tuple with one entry per argument"):
        check_grads(np.sin, 1.0)
    for wrong in ({"rtol": -1.0}, {"rtol": "1e-3"}, {"atol": np.nan}):
        with pytest.raises(fg.errors.ArgumentError, match="is a number, 0 or more"):
            check_grads(np.sin, (1.0,), **wrong)
    with pytest.raises(fg.errors.ArgumentError, match="returns None"):
        check_grads(lambda x: None, (1.0,))
    with pytest.raises(fg.errors.ArgumentError, match="square gets no argument of floating point"):
        check_grads(np.square, (3,))
    with pytest.raises(fg.errors.ArgumentError, match="argmax returns nothing of floating point"):
        check_grads(np.argmax, (HILBERT,))
    check_grads(np.sum, (np.zeros(0),))
    with pytest.raises(fg.errors.UsageError, match="takes a function"):
        check_grads(3.0, (1.0,))


def test_it_is_loaded_when_it_is_used_only() -> None:
    code = (
        "import sys, funcgrad as fg\n"
        "assert not [m for m in sys.modules if m.startswith('funcgrad.testing')]\n"
        "fg.testing.check_grads\n"
        "assert not {'pytest', 'hypothesis', 'numba', 'scipy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# -- random functions: no false alarms

UNARY = [
    np.sin, np.cos, np.tanh, np.exp, np.arctan, np.square, lambda x: np.log1p(x * x), lambda x: np.sqrt(1 + x * x),
    lambda x: 1 / (2 + np.cos(x)), lambda x: x**3 - x, np.cumsum, lambda x: x[::-1], lambda x: x / (1 + np.sum(x * x)),
    lambda x: x - np.mean(x), lambda x: np.exp(-x * x), lambda x: x @ np.cos(np.outer(x, x)),
]  # fmt: skip
BINARY = [np.add, np.subtract, np.multiply, lambda x, y: x / (1 + y * y), np.hypot, np.arctan2, np.logaddexp]


def random_function(rng: np.random.Generator) -> Any:
    """A smooth function of two vectors: a few random operations one after the other."""
    plan = [(rng.integers(2), rng.integers(99), rng.integers(99), rng.integers(99)) for _ in range(rng.integers(2, 7))]
    scale = 10.0 ** rng.integers(-8, 9)

    def f(x: Any, y: Any) -> Any:
        values = [x, y]
        for binary, op, i, j in plan:
            a, b = values[i % len(values)], values[j % len(values)]
            values.append(BINARY[op % len(BINARY)](a, b) if binary else UNARY[op % len(UNARY)](a))
            values[-1] = np.tanh(values[-1] / 4) * 4
        return scale * values[-1]

    return f


@pytest.mark.parametrize("start", range(0, 200, 25))
def test_no_false_alarm_for_random_functions(start: int) -> None:
    for seed in range(start, start + 25):
        rng = np.random.default_rng(seed)
        f = random_function(rng)
        check_grads(f, (rng.normal(size=3), rng.normal(size=3)), order=1 + (seed % 5 == 0), seed=seed)


def test_functions_that_write_into_their_arguments() -> None:
    """They get copies, so that what is checked is the function at the point that was given."""

    def cube(x: Any) -> Any:
        x *= 1.5
        return np.sum(x**3)

    x = np.array([1.0, 2.0, 3.0])
    value, error = numerical_jvp(cube, (x,), (np.ones(3),))
    np.testing.assert_allclose(value, 3 * 1.5**3 * (1 + 4 + 9), rtol=1e-10)
    check_jit(cube, (x,))
    check_grads(cube, (x,))
    assert error < 1e-8 and x.tolist() == [1.0, 2.0, 3.0]


def test_python_floats_outside_of_the_domain_have_no_numerical_derivative() -> None:
    value, error = numerical_jvp(lambda x: 1 / x, (0.0,), (1.0,))
    assert np.isnan(value) and error == np.inf
