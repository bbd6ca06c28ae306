"""Points on a kink: no rule is blamed, and the operation is named."""

from __future__ import annotations

import re
from typing import Any

import hypothesis
import numpy as np
import pytest

import funcgrad as fg
from funcgrad.errors import KinkError
from funcgrad.testing import arrays, check_grads

NOTHING = "nothing is left to check when directions with kinks are skipped; check another point"


def distance(x: Any) -> Any:
    return np.linalg.norm(x)


def hinge(x: Any, y: Any) -> Any:
    margin = 1 - x * y
    return np.sum(np.maximum(margin, 0.0))


KINKS: dict[str, tuple[Any, tuple[Any, ...], str]] = {
    "maximum": (lambda a, b: np.maximum(a, b), (np.array([1.0, 2.0]), np.array([3.0, 2.0])),
                "a kink of maximum at test_kinks.py:L (element 1: operands a - b = 0)"),
    "minimum": (lambda a: np.minimum(a, 1.5), (1.5,), "a kink of minimum at test_kinks.py:L (operands a - 1.5 = 0)"),
    "abs": (lambda x: np.sum(np.abs(np.sin(x))), (np.array([1.0, 0.0]),),
            "a kink of abs at test_kinks.py:L (element 1: operand 0)"),
    "abs of an argument": (np.abs, (0.0,), "a kink of abs at test_kinks.py:L (operand 0)"),
    "where": (lambda x: np.where(x > 1, x, 1.0), (np.array([0.5, 1.0]),),
              "a kink of select at test_kinks.py:L (element 1: its condition, gt at test_kinks.py:L, changes there)"),
    "clip": (lambda x: np.clip(x, -1.0, 1.0), (np.array([-1.0, 2.0]),),
             "a kink of maximum at test_kinks.py:L (element 0: operands x - -1 = 0)"),
    "hinge": (hinge, (np.array([0.5, 2.0]), np.array([1.0, 0.5])),
              "a kink of maximum at test_kinks.py:L (element 1: operands 0 - 0 = 0)"),
    "max": (lambda x: np.max(x), (np.array([1.0, 2.0, 2.0]),), "a kink of reduce_max at test_kinks.py:L"),
    "norm": (distance, (np.zeros(2),), "a kink of select at test_kinks.py:L"),
    "relu": (fg.nn.relu, (0.0,), " at test_kinks.py:L"),
    "in scan": (lambda x: fg.lax.scan(lambda c, xi: (np.maximum(c, xi) * 2, None), 0.5, x)[0],
                (np.array([0.1, 1.0, 0.3]),), "a kink of maximum at test_kinks.py:L (trip 1, operands 1 - 1 = 0)"),
    "in jit": (fg.jit(lambda x: np.sum(np.abs(x - 1.0))), (np.array([1.0, 2.0]),),
               "a kink of abs at test_kinks.py:L (element 0: operand 0)"),
    "in cond": (lambda x: fg.lax.cond(x > 0, lambda x: np.abs(x - 1), np.cos, x), (1.0,),
                "a kink of abs at test_kinks.py:L (branch 1, operand 0)"),
    "of the derivative": (lambda x: x * np.abs(x), (0.0,),
                          "a kink of abs at test_kinks.py:L (operand 0), and so no second derivative"),
    "a jump": (lambda x: np.floor(x) + x, (2.0,), "because of floor at test_kinks.py:L (operand x)"),
    "a jump of the derivative": (lambda x: fg.stop_gradient(np.floor(x)) * x, (2.0,), "because of floor at test_kinks"),
    "an infinite slope": (lambda x: np.sum(np.sqrt(x)), (np.array([1.0, 0.0]),), "because of sqrt at test_kinks.py:L"),
    "the end of the domain": (np.arccos, (1.0,), "because of arccos at test_kinks.py:L"),
    "a pole": (lambda x: 1 / x, (np.array([0.0, 1.0]),), "because of div at test_kinks.py:L"),
    "no finite value": (lambda x: np.sum(np.log(x)), (np.array([0.0, 1.0]),), "because of log at test_kinks.py:L"),
    "in Python": (lambda x: x if x > 1 else 2 * x - 1, (1.0,), "a kink of f\n"),
}  # fmt: skip


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("name", KINKS)
def test_a_kink_is_named(name: str) -> None:
    f, args, said = KINKS[name]
    with pytest.raises(KinkError) as caught:
        check_grads(f, args)
    message = str(caught.value)
    assert message.startswith(("this point sits on a kink of ", "differences do not converge at this point, "))
    assert said in re.sub(r"py:\d+", "py:L", message), message


def test_the_line_is_that_of_the_operation() -> None:
    with pytest.raises(KinkError) as caught:
        check_grads(hinge, (np.array([0.5, 2.0]), np.array([1.0, 0.5])))
    assert "return np.sum(np.maximum(margin, 0.0))" in str(caught.value)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_directions_with_kinks_can_be_left_out() -> None:
    nowhere, hints = set(), set()  # there is nothing else to check
    for name, (f, args, _) in KINKS.items():
        try:
            check_grads(f, args, kinks="skip")
        except KinkError as error:
            nowhere.add(name)
            hints.add(error.hint)
    assert hints == {NOTHING}
    assert nowhere == {
        "minimum", "abs of an argument", "norm", "relu", "in cond", "a jump", "a jump of the derivative",
        "an infinite slope", "the end of the domain", "a pole", "no finite value", "in Python",
    }  # fmt: skip
    f = lambda x, y: np.abs(x) + fg.stop_gradient(y) * y  # what is wrong in other directions is still found
    with pytest.raises(fg.errors.GradientError, match="in y is 2"):
        check_grads(f, (0.0, 2.0), kinks="skip")


def test_what_is_left_of_a_direction_with_a_kink_is_checked() -> None:
    f = lambda x: np.abs(x[0]) + fg.stop_gradient(x[1])
    with pytest.raises(fg.errors.GradientError, match=r"in x\[1\] is 0, but should be 1"):
        check_grads(f, (np.array([0.0, 2.0]),), kinks="skip")
    rows = lambda x: np.abs(x) * np.where(np.arange(40) == 33, fg.stop_gradient(x), x)
    x = np.where(np.arange(40) % 8 == 0, 0.0, 1.5)
    for full in (False, True):
        with pytest.raises(fg.errors.GradientError, match=r"result\[33\] in x\[33\]"):
            check_grads(rows, (x,), kinks="skip", full=full, order=1)
    check_grads(lambda x: x * np.abs(x), (0.0,), kinks="skip")  # at first order something is checked


def test_where_nothing_is_checked_hypothesis_draws_another_point() -> None:
    checked = []

    @hypothesis.settings(max_examples=20, deadline=None, database=None)
    @hypothesis.given(arrays(seek=0.0))
    def test(x: Any) -> None:
        check_grads(np.abs, (x,), kinks="skip")
        checked.append(x)

    test()
    assert len(checked) == 20 and 0.0 not in checked
    with pytest.raises(KinkError, match=NOTHING):
        check_grads(np.abs, (0.0,), kinks="skip")


def test_smooth_points_of_functions_with_kinks_pass() -> None:
    x = np.random.default_rng(0).normal(size=20)
    for f in (np.abs, fg.nn.relu, distance, lambda x: np.max(x), lambda x: np.clip(x, -1, 1)):
        check_grads(f, (x,))


def test_strong_curvature_is_no_kink() -> None:
    check_grads(lambda x: np.sqrt(x**2 + 1e-8), (1e-5,))
    check_grads(lambda x: np.logaddexp(0.0, 1e4 * x), (1e-5,))
    check_grads(lambda x: np.tanh(1e6 * x), (1e-7,))


SCALES: dict[str, tuple[Any, ...]] = {
    "decays": (lambda k: np.sum(2.0 * np.exp(-k * np.array([0.0, 1e4, 2e4]))), 1e-4),
    "a time constant": (lambda r, c: np.exp(-1e-9 / (r * c)), 1e3, 1e-12),
    "a pole": (lambda x: 1 / x, 1e-12),
    "a pole of even order": (lambda x: 1 / x**2, 1e-11),
    "a pole elsewhere": (lambda x: 1 / (1 - x), 1 - 1e-12),
    "log": (np.log, 1e-12),
    "sqrt": (np.sqrt, 1e-12),
    "log of a tiny number": (np.log, 1e-30),
    "the tail of a peak": (lambda x: np.exp(-((x / 1e-3) ** 2)), 0.0068),
    "the tail of another": (lambda x: np.exp(-((1e4 * x) ** 2)), 0.00063564),
}


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("name", SCALES)
def test_a_small_scale_is_no_kink(name: str) -> None:
    f, *args = SCALES[name]
    for seed in range(3):
        check_grads(f, tuple(args), seed=seed)
    *first, last = args
    wrong = fg.custom_jvp(f)
    factor = 3.0 if name == "a pole elsewhere" else 1.001  # four digits are all that the argument has there
    wrong.defjvp(lambda p, t: (f(*p), factor * fg.jvp(f, p, t)[1]))
    with pytest.raises(fg.errors.GradientError, match="culprit: custom_jvp"):
        check_grads(wrong, (*first, last), order=1)


def test_an_oscillation_that_the_argument_just_resolves() -> None:
    for seed in range(5):
        check_grads(lambda x: np.sin(1e10 * x), (52.84222026379407,), order=1, seed=seed)


def test_an_argument_that_is_not_finite() -> None:
    with pytest.raises(KinkError, match="sin has no derivative to check at this point: x0 is nan"):
        check_grads(np.sin, (np.nan,))
    with pytest.raises(KinkError, match=r"at this point: p\['w'\]\[1, 0\] is -inf"):
        check_grads(lambda p: np.sum(np.exp(1 / p["w"]) * p["w"]), ({"w": np.array([[1.0, 2.0], [-np.inf, 1.0]])},))
    check_grads(np.nansum, (np.array([1.0, np.nan]),))


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_no_warnings_of_numpy() -> None:
    with pytest.raises(KinkError, match=r"because of log at test_kinks\.py"):
        check_grads(np.log, (0.0,))
    check_grads(np.exp, (705.0,))
    check_grads(fg.jit(np.exp), (705.0,))


@pytest.mark.parametrize("distance", [-1.2e-4, -1.137047592698564e-4, 4.5e-5, 1e-6])
def test_beside_a_kink_the_sides_know_the_derivative(distance: float) -> None:
    """Central differences of steps that reach the kink may converge to a number between the slopes."""
    for seed in range(8):
        check_grads(fg.nn.relu, (distance,), order=1, seed=seed)
        check_grads(lambda x: np.maximum(x, 0.0) ** 2, (distance,), order=2, seed=seed)
