"""Creation, selection and calculus against NumPy's, on every route."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.base.errors import ArgumentError, ConcretizationTypeError, DtypeError, ParameterError, UnsupportedError
from funcgrad.core.array import Array, config
from funcgrad.core.evaluate import run
from funcgrad.core.ir import make_aval
from funcgrad.core.trace import Trace, Tracer
from tests.numpy.routes import assert_same, check_call, traced
from tests.numpy.samples import DTYPES, FLOATS, SHAPES, array

BY_DTYPE = pytest.mark.parametrize("dtype", DTYPES)


@BY_DTYPE
def test_filled_arrays(dtype: str) -> None:
    for shape in (*SHAPES, 3, [2, 1]):
        check_call("zeros", shape, dtype, exact=True)
        check_call("ones", shape, dtype, exact=True)
        check_call("full", shape, 1, exact=True)
        check_call("full", shape, 1, dtype, exact=True)
        assert fnp.empty(shape, dtype).dtype == dtype
    for shape in SHAPES:
        x = array(shape, dtype)
        for name in ("zeros_like", "ones_like"):
            check_call(name, x, exact=True)
            check_call(name, x, "float32", shape=(2,), exact=True)
        check_call("full_like", x, 1, exact=True)
        check_call("full_like", x, 2.5, "float64", exact=True)
    check_call("zeros", (2,))
    check_call("zeros", (-1,))
    check_call("full_like", np.zeros(2, np.uint8), 300)


@BY_DTYPE
def test_matrices(dtype: str) -> None:
    for args in ((3,), (3, 2), (2, 3, 1), (3, 3, -1), (0,), (2, 0)):
        check_call("eye", *args, dtype=dtype, exact=True)
        check_call("tri", *args, dtype=dtype, exact=True)
    check_call("identity", 3, dtype)
    check_call("vander", array((3,), dtype), scale=100)
    for n in (0, 2, 5):
        check_call("vander", array((3,), dtype), n, True, scale=100)


@BY_DTYPE
def test_conversions(dtype: str) -> None:
    for shape in SHAPES:
        x = array(shape, dtype)
        check_call("array", [[1, 2], [3, 4]], dtype, exact=True)
        assert_same(fnp.array(x, ndmin=3), np.array(x, ndmin=3), exact=True)
        for other in DTYPES:
            if not (dtype in FLOATS and other.endswith(("int8", "int32", "int64"))):
                check_call("astype", x, other, exact=True)
    assert_same(fnp.array([1, 2.5, True]), np.array([1, 2.5, True]), exact=True)


def test_conversion_to_integers_saturates() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 2.9, -2.9])
    np.testing.assert_array_equal(fnp.astype(x, "int8"), [0, 127, -128, 127, -128, 2, -2])
    np.testing.assert_array_equal(fnp.array(x, "uint8"), [0, 255, 0, 255, 0, 2, 0])


def test_asarray_shares_memory_and_array_does_not() -> None:
    x = np.ones(3)
    assert type(fnp.asarray(x)) is Array and np.shares_memory(fnp.asarray(x), x)
    assert not np.shares_memory(fnp.array(x), x)
    assert not np.shares_memory(fnp.asarray(x, copy=True), x)
    assert not np.shares_memory(fnp.asarray(x, "float32"), x)
    with pytest.raises(ParameterError, match="copy=False"):
        fnp.asarray([1.0], copy=False)
    assert fnp.asarray(1.0).dtype == np.float64 and fnp.asarray(1.0).shape == ()


def test_asarray_in_a_body_gives_a_tracer() -> None:
    table = np.arange(3.0)
    with Trace("f") as t:
        i = t.input(make_aval((), np.dtype(int)), name="i")
        a = fnp.asarray(table)
        assert type(a) is Tracer
        program = t.program([a[i], fnp.zeros(2), fnp.arange(3), fnp.asarray(2)])
        assert type(fnp.zeros(2)) is Tracer
    got = run(program, [*t.constants(), np.int64(2)])
    assert got[0] == 2
    with Trace("f", shows=True) as t:
        assert type(fnp.asarray(table)) is Array and type(fnp.zeros(2)) is Array


def test_copies_made_in_a_body_have_at() -> None:
    table = np.arange(3.0)

    def f(x: Any) -> Any:
        made = (fnp.array(table), fnp.array([0.0, 1.0, 2.0], "float32"), fnp.copy(table), fnp.astype(table, "float32"))
        return [a.at[1].set(x) for a in made]

    for g in (f, fg.jit(f)):
        for got, dtype in zip(g(5.0), ("float64", "float32") * 2, strict=True):
            assert got.tolist() == [0.0, 5.0, 2.0] and got.dtype == dtype
    assert type(fnp.array(table)) is Array and type(fnp.astype(table, "float32")) is Array


@BY_DTYPE
def test_arange(dtype: str) -> None:
    for args in ((5,), (2, 7), (0, 10, 3), (10, 0, -3), (0.5, 3), (0, 1, 0.1), (3, 3), (1.0,), (0, -3), (1, 2, 0.3)):
        check_call("arange", *args, exact=True)
        if dtype != "bool":
            check_call("arange", *args, dtype=dtype, exact=True)
    check_call("arange", 0, 1, 0)
    check_call("arange", np.float32(3))
    with Trace("f") as t, pytest.raises(ConcretizationTypeError, match="n: i64"):
        fnp.arange(t.input(make_aval((), np.dtype(int)), name="n"))


def test_sequences() -> None:
    for args in ((0, 1), (2, 5, 4), (0, 1, 0), (1, 1, 1), (0, 10, 5, False), (-1, 3, 7)):
        check_call("linspace", *args, exact=True)
        check_call("linspace", *args, dtype="int64", exact=True)
        check_call("linspace", *args, dtype="float32", exact=True)
        check_call("linspace", *args, retstep=True, exact=True)
        check_call("logspace", *args, scale=100)
    for args in ((1, 2), (2, 500, 4), (1, 1000, 5, False), (-1, -8, 3)):
        check_call("geomspace", *args, scale=100)
    check_call("geomspace", 0, 1)
    check_call("linspace", 0, 1, -1)
    for dtype in ("int32", "float32", "float64"):
        x, y = array((3,), dtype), array((3,), dtype, seed=1)
        check_call("linspace", x, y, 5, scale=10)
        check_call("linspace", x, y, 5, axis=1, scale=10)
        check_call("linspace", array((), dtype), array((2,), dtype), 4, scale=10)
        check_call("linspace", x, 1.5, 3, scale=10)
    (got,) = traced(lambda a: fnp.linspace(a, 1.0, 3), (np.array(0.0),), {})
    assert_same(got, np.linspace(0, 1, 3), exact=True)


@pytest.mark.parametrize("sparse", [False, True])
def test_grids(sparse: bool) -> None:
    a, b, c = array((2,)), array((3,)), array((4,))
    for indexing in ("xy", "ij", "yx"):
        check_call("meshgrid", a, b, indexing=indexing, sparse=sparse)
        check_call("meshgrid", a, b, c, indexing=indexing, sparse=sparse)
        check_call("meshgrid", a, indexing=indexing, sparse=sparse)
    check_call("indices", (2, 3), sparse=sparse)
    check_call("indices", (2, 3), "float32", sparse=sparse)
    check_call("fromfunction", lambda i, j: i + 2 * j, (2, 3))
    check_call("fromfunction", lambda i, j: i + 2 * j, (2, 3), dtype=int)


# -- selection


@BY_DTYPE
def test_where(dtype: str) -> None:
    for shape in SHAPES:
        x, c = array(shape, dtype, special=True), array(shape, "bool", seed=1)
        for other in DTYPES:
            check_call("where", c, x, array(shape, other), exact=True)
            check_call("where", c, x, array((), other), exact=True)
        for scalar in (1, 2.5, True, -1, 300):
            check_call("where", c, x, scalar, exact=True)
            check_call("where", c, scalar, x, exact=True)
        check_call("where", x, x, x, exact=True)
    check_call("where", array((2, 1), "bool"), array((3,), dtype), array((), dtype), exact=True)
    check_call("where", array((3,), "bool"), 1, 2.5, exact=True)
    check_call("where", array((3,), "bool"), 1, 2, exact=True)
    with pytest.raises(UnsupportedError, match="shape of the result depends on values"):
        fnp.where(np.ones(2))


@BY_DTYPE
def test_clip(dtype: str) -> None:
    for shape in SHAPES:
        x = array(shape, dtype)
        for scalar in (1, 2.5, -1, 300):
            check_call("clip", x, scalar, None)
            check_call("clip", x, None, scalar)
            check_call("clip", x, -1, scalar)
            check_call("clip", x, min=scalar)
        for other in DTYPES:
            check_call("clip", x, array((), other), array((), other, seed=1))
    check_call("clip", array((2, 3), dtype), array((3,), dtype), array((2, 1), dtype))


@BY_DTYPE
def test_choices(dtype: str) -> None:
    x, y, c = array((3,), dtype), array((3,), dtype, seed=1), array((3,), "bool")
    check_call("select", [c, ~c], [x, y], exact=True)
    check_call("select", [c, c], [x, y], 5, exact=True)
    check_call("select", [x > 0, x > 1], [x, y], y, exact=True)
    for mode in ("clip", "wrap"):
        check_call("choose", np.array([0, 5, -1]), [x, y, x], mode=mode, exact=True)
    assert_same(fnp.choose(np.array([0, 1, 2]), [x, y, x]), np.choose([0, 1, 2], [x, y, x]), exact=True)
    with pytest.raises(ParameterError, match="outside"):
        fnp.choose(np.array([5]), [x[:1]])


@BY_DTYPE
def test_closeness(dtype: str) -> None:
    for shape in SHAPES:
        x, y = array(shape, dtype, special=True), array(shape, dtype, seed=1)
        for name in ("isclose", "allclose", "array_equal", "array_equiv"):
            check_call(name, x, x)
            check_call(name, x, y)
        check_call("isclose", x, x, equal_nan=True)
        check_call("allclose", x, x, equal_nan=True)
        check_call("array_equal", x, x, equal_nan=True)
        check_call("isclose", x, 1)
        check_call("isclose", 1, x, 0.5, 2)
    check_call("array_equal", np.ones(2), np.ones(3))
    check_call("array_equiv", np.ones(2), np.ones((3, 2)))
    check_call("array_equiv", np.ones(2), np.ones(3))


@BY_DTYPE
def test_small_functions(dtype: str) -> None:
    for shape in SHAPES:
        x = array(shape, dtype, special=True)
        for name in (
            "nan_to_num", "isposinf", "isneginf", "fix", "modf", "positive", "fabs", "real", "imag", "conjugate",
        ):  # fmt: skip
            check_call(name, x, exact=True)
        check_call("angle", x, scale=10)
        check_call("angle", x, True, scale=10)
        check_call("nan_to_num", x, nan=1.5, posinf=2, neginf=-3, exact=True)
        x = array(shape, dtype)
        for decimals in (0, 1, 2, -1):
            check_call("round", x, decimals)
            check_call("around", x, decimals)
        check_call("divmod", x, array(shape, dtype, seed=1), exact=True)
        check_call("float_power", np.abs(x), 2, scale=10)


# -- calculus


@BY_DTYPE
def test_differences(dtype: str) -> None:
    x = array((3, 4), dtype)
    for axis in (0, -1):
        for n in (0, 1, 2, 5):
            check_call("diff", x, n, axis, scale=10)
        check_call("diff", x, axis=axis, prepend=0, scale=10)
        check_call("diff", x, axis=axis, append=1, prepend=x, scale=10)
        check_call("trapezoid", x, axis=axis, scale=50)
        check_call("trapezoid", x, dx=0.5, axis=axis, scale=50)
        check_call("gradient", x, axis=axis, scale=50)
    check_call("trapezoid", x, x, scale=50)
    check_call("trapezoid", x, array((4,), dtype), scale=50)
    check_call("ediff1d", x, scale=10)
    for order in (1, 2):
        y = array((5,), dtype if dtype != "bool" else "int8")
        check_call("gradient", y, np.array([0.0, 1, 3, 4, 9]), edge_order=order, scale=100)
        check_call("gradient", y, 2.0, edge_order=order, scale=100)
    check_call("gradient", x, 2, 3, scale=100)
    check_call("gradient", x, 2, np.array([1.0, 2, 4, 8]), scale=100)
    check_call("gradient", x, 2, 3, 4)
    check_call("diff", x, -1)


@BY_DTYPE
def test_polyval(dtype: str) -> None:
    for p, x in (((3,), (2,)), ((1,), ()), ((0,), (2,)), ((4,), (2, 2))):
        check_call("polyval", array(p, dtype), array(x, dtype, seed=1), scale=100)


# -- the package


def test_plain_results_on_request() -> None:
    try:
        config.results = "numpy"
        assert type(fnp.sin(np.ones(2))) is np.ndarray
        assert type(fnp.sin(1.0)) is np.float64
    finally:
        config.results = "array"


def test_every_public_name_is_documented_and_named_as_in_numpy() -> None:
    ours = {"logsumexp"}
    for name in fnp.__all__:
        value = getattr(fnp, name)
        if callable(value) and not isinstance(value, type) and getattr(value, "__module__", "").startswith("funcgrad"):
            assert value.__doc__, name
            assert hasattr(np, name) or name in ours, name


def test_wrong_arguments() -> None:
    with pytest.raises(ArgumentError, match="shape is made of integers"):
        fnp.zeros("a")
    with pytest.raises(DtypeError, match="is not a dtype"):
        fnp.zeros(2, "nope")
    with pytest.raises(DtypeError, match="object"):
        fnp.zeros(2, object)
    with pytest.raises(ParameterError, match="'yx'"):
        fnp.meshgrid(1, indexing="yx")
    with pytest.raises(UnsupportedError, match="order='F'"):
        fnp.zeros(2, order="F")
