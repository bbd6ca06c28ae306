"""Property tests of gradients: what is drawn, what fails and how it shrinks, and how pytest collects them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import errors, find, given, settings, strategies as st

import funcgrad as fg
from funcgrad.errors import (
    ArgumentError,
    DtypeError,
    GradientError,
    KinkError,
    MissingPackageError,
    ParameterError,
    UsageError,
)
from funcgrad.testing import arrays, check_grads, gradients, like, programs
from funcgrad.testing.properties import code
from funcgrad.testing.vocabulary import PUBLIC

REPO = Path(__file__).resolve().parents[2]


def drawn(strategy: Any, count: int = 100) -> list[Any]:
    """Examples of a strategy."""
    values = []

    @settings(max_examples=count)
    @given(strategy)
    def collect(x: Any) -> None:
        values.append(x)

    collect()
    return values


# -- what is drawn


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.complex64, np.complex128])
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3)])
def test_arrays_have_the_shape_and_dtype(shape: tuple[int, ...], dtype: Any) -> None:
    for x in drawn(arrays(shape, dtype), 20):
        assert x.shape == shape and x.dtype == dtype and np.isfinite(x).all()
        assert (abs(x.real) <= 4).all() and (abs(x.imag) <= 4).all()


def test_elements_stay_between_the_bounds_and_away_from_kinks() -> None:
    values = np.concatenate(drawn(arrays(8, low=-1, high=3, avoid=[0, 1], distance=0.1)))
    assert values.min() >= -1 and values.max() <= 3
    assert (abs(values) >= 0.1).all() and (abs(values - 1) >= 0.1).all()
    parts = [values < -0.1, (values > 0.1) & (values < 0.9), values > 1.1]
    assert all(part.any() for part in parts)


def test_points_are_sought() -> None:
    values = np.array(drawn(arrays(seek=[2.5, 100.0], high=200.0), 200))
    for p, scale in ((2.5, 2.5), (100.0, 100.0)):
        for step in (0, 2.0**-4, -(2.0**-4), 2.0**-10, -(2.0**-10)):
            assert (values == p + step * scale).any()
    assert np.unique(values).size > 20
    assert 2.5 not in drawn(arrays(seek=2.5, avoid=2.5))


def test_values_are_short_where_there_is_room() -> None:
    assert all(x == np.float16(x) for x in drawn(arrays()))
    narrow = drawn(arrays(low=0.1, high=0.1001))
    assert all(0.1 <= x <= 0.1001 for x in narrow) and np.unique(narrow).size > 10
    large = drawn(arrays(low=1e30, high=1e300))
    assert all(1e30 <= x <= 1e300 for x in large)
    assert drawn(arrays(low=0.1, high=0.1), 3)[0] == 0.1


def test_shapes_can_be_drawn() -> None:
    shapes = {x.shape for x in drawn(arrays(st.tuples(st.integers(0, 2), st.just(3))))}
    assert shapes == {(0, 3), (1, 3), (2, 3)}


def test_trees_are_like_their_example() -> None:
    example = {"w": np.ones((2, 3), np.float32), "b": fg.ShapeDtypeStruct((3,), np.float64), "c": (0.5, 1j, None)}
    example |= {"n": 4, "i": np.arange(3), "s": arrays(2, low=5, high=6)}
    for x in drawn(like(example, low=0, high=1), 20):
        assert x["w"].shape == (2, 3) and x["w"].dtype == np.float32 and x["b"].shape == (3,)
        assert type(x["c"][0]) is float and type(x["c"][1]) is complex and x["c"][2] is None
        assert x["n"] == 4 and np.array_equal(x["i"], np.arange(3))
        assert ((x["s"] >= 5) & (x["s"] <= 6)).all() and ((x["w"] >= 0) & (x["w"] <= 1)).all()


def test_they_shrink_to_simple_numbers() -> None:
    assert find(arrays(), lambda x: bool(x > 2)) == 3.0
    assert find(arrays((2, 2)), lambda x: bool(x.sum() >= 8)).tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert find(arrays(avoid=0), lambda x: True) == 1.0
    assert find(arrays(low=-5, high=-1), lambda x: True) == -1.0


def test_what_cannot_be_drawn_is_said() -> None:
    with pytest.raises(ParameterError, match=r"no 64-bit float from 0 to 0\.01 at a distance of 0\.0625 from 0\n"):
        arrays(low=0, high=0.01, avoid=0.0)
    with pytest.raises(ParameterError, match="no 16-bit float from 1e"):
        arrays((), np.float16, low=1e6, high=1e7)
    with pytest.raises(DtypeError, match="draws floats, got int64"):
        arrays(3, int)
    for shape in (-1, (2, -1), 3.0, "3", np.ones(3)):
        with pytest.raises(ParameterError, match="a shape is an integer or a tuple of such, 0 or more, got"):
            arrays(shape)
    with pytest.raises(ParameterError, match=r"(?s)programs: 'cumsun' is not one of the operations\n.*cumsum"):
        programs(operations=["sin", "cumsun"])
    with pytest.raises(ParameterError, match=r"(?s)programs: 'jit' is not one of the wrappers\n.*in_jit"):
        programs(wrappers="jit")
    with pytest.raises(ParameterError, match="programs: steps is 0, depth 1"):
        programs(steps=0)


@pytest.mark.parametrize("depth", [0, 1])
def test_differences_work_for_programs(depth: int) -> None:
    smooth = 0

    @settings(max_examples=10, deadline=None)
    @given(programs(depth=depth))
    def test(f: Any) -> None:
        nonlocal smooth
        check_grads(f, f.args, order=1, kinks="skip")
        smooth += 1

    test()
    assert smooth == 10
    assert not {"stop_gradient", "nextafter", "spacing"} & set(PUBLIC)


# -- property tests


def gate(x: Any, a: Any) -> Any:
    return np.sum(x / (1 + np.exp(-a * x)))


@gradients(arrays(3), arrays(), examples=10)
def smooth(x, a):
    return gate(x, a)


@gradients(examples=5)
def test_type_hints(x: float, y: Annotated[np.ndarray, arrays((2, 2))], n: int = 3):  # noqa: PT028
    assert n == 3
    return x**n * np.sum(np.sin(y))


@gradients(np.ones(3), {"n": 2, "a": 0.5}, avoid=0.0, examples=10)
def test_examples(x, p):
    return np.sum(np.abs(x)) ** p["n"] * np.exp(p["a"] / 10)


@fg.custom_vjp
def square(x: Any) -> Any:
    return x * x


square.defvjp(lambda x: (x * x, x), lambda x, ct: (ct * (2 * x if x < 2 else 3 * x),))


def wrong(x, y):
    return np.sum(np.sin(x)) * fg.stop_gradient(y)


def test_a_smooth_function_passes() -> None:
    smooth()
    assert smooth.__name__ == "smooth" and smooth.__test__ and smooth.function(np.zeros(3), 1.0) == 0
    gradients(fg.ShapeDtypeStruct((2,), float), examples=5)(np.tanh)()


def test_a_wrong_derivative_shrinks_to_code_that_fails_too() -> None:
    test = gradients(arrays(2), arrays(), order=1)(wrong)
    with pytest.raises(GradientError) as caught:
        test()
    message = str(caught.value)
    assert "rev, order 1" in message or "fwd, order 1" in message
    hint = message.split("hint: ")[1]
    assert hint == "check_grads(wrong, (np.array([1.0, 1.0]), np.float64(0.0)), order=1)"
    with pytest.raises(GradientError, match="stop_gradient"):
        eval(hint, {"check_grads": check_grads, "wrong": wrong, "np": np})


def test_a_rule_that_is_wrong_somewhere_only() -> None:
    test = gradients(0.5, order=1, modes=("rev",))(lambda x: square(x) + 1.0)
    with pytest.raises(GradientError, match=r"check_grads\(f, \(2\.0,\), order=1, modes=\('rev',\)\)"):
        test()
    with pytest.raises(GradientError, match=r"at test_strategies\.py:\d+   @fg\.custom_vjp"):
        gradients(0.5, order=1)(square)()


def test_a_decorated_function_is_reproduced_by_its_attribute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "wrong", test := gradients(1.0, 1.0, examples=20)(wrong))
    with pytest.raises(GradientError, match=r"check_grads\(wrong\.function, \(0\.0, "):
        test()


def test_other_errors_say_where() -> None:
    def broken(x: Any) -> Any:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as caught:
        gradients(arrays(1))(broken)()
    assert "at check_grads(broken, (np.array([0.0]),), order=2)" in caught.value.__notes__


def test_kinks_and_points_outside_of_the_domain_are_skipped() -> None:
    points = []

    def f(x: Any) -> Any:
        if type(x) is float:
            points.append(x)
        return np.log(x) * np.abs(x - 1)

    gradients(0.5, seek=1.0, examples=10)(f)()
    assert min(points) < 0 and 1.0 in points

    with pytest.raises((errors.FailedHealthCheck, errors.Unsatisfiable)) as found:
        gradients(0.0, low=0.0, high=0.0)(np.abs)()
    assert any(["absolute is on a kink, or not finite, at most" in note for note in found.value.__notes__])


def test_where_floats_of_python_raise_or_leave_the_reals_is_outside_of_the_domain() -> None:
    for f in (lambda x: 1 / x, lambda x: x**0.5, lambda x: np.sin(x**1.5), lambda x: 2.0 ** (800 * x)):
        gradients(1.0, seek=0.0, examples=10, order=1)(f)()
    for f, x in ((lambda x: x**0.5, -1.0), (lambda x: 1 / x, 0.0), (lambda x: x**300, 1e20)):
        with pytest.raises(KinkError, match="differences do not converge"):
            check_grads(f, (x,))
    check_grads(lambda x: np.sqrt(x + 0j), (-1.0,))
    check_grads(lambda x, w: np.sum(w * x), (0.5, np.float32([1, 2])))  # a weak float
    with pytest.raises(GradientError, match="stop_gradient"):
        gradients(1.0)(lambda x: fg.stop_gradient(1 / x))()
    with pytest.raises(ZeroDivisionError):
        check_grads(lambda x: x * (1 // 0), (1.0,))


def test_examples_can_be_counted() -> None:
    seen = []

    def f(x: Any) -> Any:
        if type(x) is float:
            seen.append(x)
        return x * 1.0

    gradients(0.5, examples=3, order=1)(f)()
    first = len(seen)
    gradients(0.5, examples=12, order=1)(f)()
    assert len(seen) - first > 2 * first


def test_what_strategies_would_ignore_is_refused() -> None:
    said = r"(?s)gradients: avoid and seek would say nothing, .*hint: give them to the strategy, as in arrays\(3, avoid"
    with pytest.raises(ArgumentError, match=said):
        gradients(arrays(3), avoid=0.0, seek=1.0)(np.abs)
    with pytest.raises(ArgumentError, match="like: low would say nothing"):
        like({"a": arrays(3), "n": 2}, low=0.5)

    def hinted(x: Annotated[np.ndarray, arrays(3)]) -> Any:
        return np.sum(x)

    with pytest.raises(ArgumentError, match="gradients: distance would say nothing"):
        gradients(distance=0.5)(hinted)
    gradients(arrays(3), {"a": 2.0}, low=0.5, examples=3)(lambda x, p: x * np.log(p["a"]))()


class TestMethods:
    scale = 2.0

    @gradients(arrays(2), arrays(), examples=5)
    def test_of_a_class(self, x, a):
        return np.sum(np.sin(self.scale * x)) * a

    @gradients
    def test_with_hints(self, x: float, y: Annotated[np.ndarray, arrays(2)], n: int = 3):  # noqa: PT028
        return x**n * np.sum(y)

    @gradients(arrays(2), examples=5, order=1)
    def wrong(self, x):
        return fg.stop_gradient(x) * self.scale

    wrong.__test__ = False

    def test_that_a_fault_is_found(self) -> None:
        with pytest.raises(GradientError) as caught:
            self.wrong()
        hint = str(caught.value).split("hint: ")[1]
        assert hint.startswith("check_grads(TestMethods.wrong.function.__get__(TestMethods()), (np.array([")
        with pytest.raises(GradientError, match="stop_gradient"):
            eval(hint, {"check_grads": check_grads, "TestMethods": TestMethods, "np": np})


def test_self_is_a_name_like_others_of_a_function() -> None:
    gradients(arrays(2), examples=3)(lambda self: np.sin(self))()


@pytest.mark.filterwarnings("error")
def test_wrong_use_is_said() -> None:
    for wrong, said in (
        ({"distance": -1}, "distance is 0 or more, got -1"),
        ({"avoid": "0"}, "avoid is a finite number, or several, got '0'"),
        ({"seek": [1.0, None]}, "seek is a finite number, or several"),
        ({"low": np.nan}, "low is a finite number, got nan"),
        ({"high": [1.0]}, r"high is a finite number, got \[1.0\]"),
    ):
        for make, of in ((arrays, 3), (like, 1.0), (gradients, 1.0)):
            with pytest.raises(ParameterError, match=f"{make.__name__}: {said}"):
                make(of, **wrong)
    for examples in (0, 2.5, "3"):
        with pytest.raises(ArgumentError, match="gradients: examples is 1 or more, got"):
            gradients(1.0, examples=examples)
    with pytest.raises(ParameterError, match="programs: operations is empty"):
        programs(operations=[])
    with pytest.raises(ParameterError, match=r"programs: steps is 2\.5"):
        programs(steps=2.5)
    with pytest.raises(ArgumentError, match="no type hint says what to draw for x of gate"):
        gradients(gate)
    with pytest.raises(ArgumentError, match="f has no arguments to draw"):
        gradients(lambda: 3.0)
    with pytest.raises(ArgumentError, match="arrays has no arguments to draw"):
        gradients(arrays)
    with pytest.raises(UsageError):
        gradients(arrays(3))(3.0)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="gradients: order is 1 or more, got 0"):
        gradients(arrays(3), order=0)
    with pytest.raises(ArgumentError, match="gradients: modes are 'fwd' and 'rev'"):
        gradients(arrays(3), modes=("back",))
    with pytest.raises(ParameterError, match="seek=9 is not between -4 and 4"):
        arrays(3, seek=(1, 9))
    with pytest.raises(ParameterError, match="seek=0 is not between -4 and 4, or too close to a point in avoid"):
        like(1.0, seek=0, avoid=0, distance=0.5)


@pytest.mark.parametrize(
    "value",
    [
        (np.array([0.5, 1.25]), 2.0, 3),
        {"w": np.zeros((0, 3)), "b": [np.float64(0.5), None]},
        (np.array([0.1], np.float32), np.array([[1 + 2j]]), np.float16(0.5), np.array(0.5)),
        np.array([1, 2], np.int32),
    ],
)
def test_trees_as_code(value: Any) -> None:
    found = eval(code(value), {"np": np})
    assert fg.tree.structure(found) == fg.tree.structure(value)
    for x, y in zip(fg.tree.leaves(found), fg.tree.leaves(value), strict=True):
        assert type(x) is type(y) and np.array_equal(x, y) and np.shape(x) == np.shape(y)
        assert getattr(x, "dtype", None) == getattr(y, "dtype", None)


# -- packages


def test_hypothesis_is_not_needed_until_it_is() -> None:
    script = "import sys, funcgrad.testing; print(*[m for m in ('hypothesis', 'pytest') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", script], cwd=REPO, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == ""
    with mock.patch.dict(sys.modules, hypothesis=None):
        for make in (lambda: gradients(gate), lambda: gradients(1.0), lambda: arrays(3), lambda: like(1.0)):
            with pytest.raises(MissingPackageError, match="pip install hypothesis"):
                make()


MODULE = """
import unittest
import numpy as np
import funcgrad as fg
from funcgrad.testing import arrays, gradients


@gradients(arrays(3), examples=5)
def energy(x):
    return np.sum(x**2)


@gradients(arrays(2), examples=20)
def test_wrong(x):
    return np.sum(fg.stop_gradient(x) * x)


class TestRules:
    @gradients(arrays(2), examples=5)
    def test_method(self, x):
        return np.sum(x**2)


class Case(unittest.TestCase):
    @gradients(arrays(2), examples=5)
    def test_case(self, x):
        return np.sum(x**2)
"""


def test_pytest_collects_them_by_any_name(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(MODULE, "utf-8")
    env = {**os.environ, "PYTHONPATH": str(REPO), "PYTEST_ADDOPTS": ""}
    out = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-v", "test_it.py"],
        cwd=tmp_path, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "test_it.py::energy PASSED" in out.stdout, out.stdout
    assert "test_it.py::TestRules::test_method PASSED" in out.stdout
    assert "test_it.py::Case::test_case PASSED" in out.stdout
    assert "test_it.py::test_wrong FAILED" in out.stdout
    assert "hint: check_grads(test_wrong.function, (np.array([" in out.stdout
