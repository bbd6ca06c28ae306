"""Python's operators on tracers: NumPy's results, weak scalars, other operands."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.base.errors import DtypeError, FuncgradError, IntegerOverflowError, ParameterError
from funcgrad.core.check import check
from funcgrad.core.evaluate import run
from funcgrad.core.ir import make_aval
from funcgrad.core.trace import Trace, Tracer
from tests.numpy.routes import assert_same, traced
from tests.numpy.samples import DTYPES, array

BINARY = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.and_,
    operator.or_, operator.xor, operator.lshift, operator.rshift, operator.eq, operator.ne, operator.lt, operator.le,
    operator.gt, operator.ge, operator.matmul, divmod,
]  # fmt: skip
UNARY = [operator.neg, operator.pos, operator.abs, operator.invert]
IN_PLACE = [operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ifloordiv, operator.imod]


def numpys(function: Callable[..., Any], *args: Any) -> Any:
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(*args)
    except (TypeError, ValueError, OverflowError) as error:
        return error


def agree(function: Callable[..., Any], *args: Any) -> None:
    """`function` on tracers (of the arrays among `args`) does what it does on the arrays."""
    want = numpys(function, *args)
    if isinstance(want, Exception):
        with pytest.raises((FuncgradError, TypeError)):
            traced(function, args, {})
        return
    for g, w in zip(traced(function, args, {}), want if isinstance(want, tuple) else [want], strict=True):
        assert_same(g, w, exact=True)


@pytest.mark.parametrize("function", UNARY)
def test_one_operand(function: Callable[..., Any]) -> None:
    for dtype in DTYPES:
        agree(function, array((3,), dtype, special=True))


@pytest.mark.parametrize("function", BINARY)
@pytest.mark.parametrize("dtype", DTYPES)
def test_two_operands(function: Callable[..., Any], dtype: str) -> None:
    x = array((3,), dtype, special=True)
    for other in DTYPES:
        y = array((3,), other, seed=1)
        agree(function, x, y)
        agree(lambda a: function(a, y), x)  # noqa: B023
        agree(lambda a: function(y, a), x)  # noqa: B023
        agree(lambda a: function(y[:1][0], a), x)  # noqa: B023
        agree(lambda a: function(a, y[:1][0]), x)  # noqa: B023
    for scalar in (2, 0.5, True, -1, 300):
        agree(lambda a: function(a, scalar), x)  # noqa: B023
        agree(lambda a: function(scalar, a), x)  # noqa: B023
    if function not in (operator.matmul, divmod):
        agree(lambda a: function(a, [1, 2, 3]), x)
        agree(lambda a: function([1, 2, 3], a), x)


@pytest.mark.parametrize("function", IN_PLACE)
def test_augmented_assignment_rebinds(function: Callable[..., Any]) -> None:
    x = array((3,), "float64")
    agree(lambda a: function(a * 1, 2.5), x)
    agree(lambda a: function(a * 1, x), x)


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, -1, 0.5, -0.5, 2.0, 0.0, 2.5, True, 17])
def test_powers(exponent: float) -> None:
    for dtype in DTYPES:
        x = array((4,), dtype)
        if x.dtype.kind == "f":
            x = np.abs(x) + np.asarray(0.5, dtype)
        want = numpys(operator.pow, x, exponent)
        if isinstance(want, Exception):
            with pytest.raises((ParameterError, TypeError)):
                traced(lambda a: a**exponent, (x,), {})
            continue
        (got,) = traced(lambda a: a**exponent, (x,), {})
        assert_same(got, want, exact=False, scale=10)


@pytest.mark.parametrize(
    ("exponent", "primitive"),
    [(2, "square"), (2.0, "square"), (-1, "reciprocal"), (0.5, "sqrt"), (3, "pow"), (1, None), (0, None)],
)
def test_a_known_exponent_becomes_a_cheaper_operation(exponent: float, primitive: str | None) -> None:
    with Trace("f") as t:
        x = t.input(make_aval((3,), np.dtype(float)))
        program = t.program([x**exponent])
    assert [e.primitive.name for e in program.equations] == ([primitive] if primitive else [])


def test_reflected_powers() -> None:
    x = array((3,), "float64")
    for base in (2, 2.5, np.float32(3), np.array([1.0, 2.0, 3.0])):
        (got,) = traced(lambda a: base**a, (x,), {})  # noqa: B023
        assert_same(got, base**x, exact=False, scale=10)


def weak(value: Any) -> Any:
    """A weak tracer and the trace it belongs to."""
    kinds = {int: np.int64, float: np.float64}
    return make_aval((), np.dtype(kinds[type(value)]), True)


@pytest.mark.parametrize("function", [operator.add, operator.mul, operator.truediv, operator.floordiv, operator.lt])
def test_weak_scalars(function: Callable[..., Any]) -> None:
    """A Python number that was made an argument promotes as the number itself does."""
    for value in (3, 2.5):
        for dtype in DTYPES:
            x = array((3,), dtype)
            want = numpys(function, value, x)
            with Trace("f") as t:
                w = t.input(weak(value))
                out = function(w, x)
                program = check(t.program([out]))
                args = [*t.constants(), np.float64(value) if type(value) is float else np.int64(value)]
            with np.errstate(all="ignore"):
                assert_same(run(program, args)[0], want, exact=True)
            # only weak operands: as in Python, and still weak if the result is no bool
            with Trace("f") as t:
                w = t.input(weak(value))
                for other in (2, 1.5, w):
                    out = function(w, other)
                    pure = function(value, value if other is w else other)
                    assert out.dtype == np.asarray(pure).dtype
                    assert out.aval.weak == (out.dtype != bool)


def test_functions_make_weak_scalars_strong() -> None:
    with Trace("f") as t:
        w = t.input(weak(2.5))
        assert (w * 2 + 1).aval.weak and (-w).aval.weak and (w**2).aval.weak
        assert not fnp.sin(w).aval.weak and not fnp.add(w, 1).aval.weak and not np.exp(w).aval.weak
        assert (fnp.sin(w) + np.float32(1)).dtype == np.float64
        assert (w + np.float32(1)).dtype == np.float32
        assert not (w + np.float32(1)).aval.weak
        check(t.program([fnp.sin(w) + np.float32(1), w + np.float32(1), w * np.ones(2)]))


def test_numbers_that_do_not_fit() -> None:
    with Trace("f") as t:
        x = t.input(make_aval((3,), np.dtype(np.uint8)))
        with pytest.raises(IntegerOverflowError, match="300 does not fit u8"):
            x + 300
        assert (x < 300).dtype == bool
        with pytest.raises(ParameterError, match="negative power -1"):
            x**-1
        with pytest.raises(DtypeError, match="subtract: not defined for bool and bool"):
            (x > 0) - (x > 1)


def test_other_objects_get_their_chance() -> None:
    class Other:
        def __radd__(self, x: Any) -> str:
            return "radd"

        def __rmatmul__(self, x: Any) -> str:
            return "rmatmul"

        def __rpow__(self, x: Any) -> str:
            return "rpow"

    with Trace("f") as t:
        x = t.input(make_aval((3,), np.dtype(float)))
        assert x + Other() == "radd" and x @ Other() == "rmatmul" and x ** Other() == "rpow"
        with pytest.raises(TypeError, match="unsupported operand"):
            x + "a"
        with pytest.raises(TypeError, match="unsupported operand"):
            None * x
        assert (x == "a") is False and (x != None) is True  # noqa: E711


def test_membership_and_rounding() -> None:
    with Trace("f", shows=True) as t:
        x = t.input(make_aval((3,), np.dtype(float)), np.array([1.0, 2.5, 3.5]))
        assert 2.5 in x and 7 not in x
        out = t.program([round(x), round(x, 1), x.round(1)])
        got = run(out, [*t.constants(), np.array([1.0, 2.5, 3.25])])
    np.testing.assert_array_equal(got[0], [1, 2, 3])
    np.testing.assert_array_equal(got[1], [1, 2.5, 3.2])


def test_tracers_have_no_hash() -> None:
    with Trace("f") as t:
        x = t.input(make_aval((3,), np.dtype(float)))
        with pytest.raises(TypeError, match="unhashable"):
            hash(x)
        assert isinstance(x == x, Tracer)
