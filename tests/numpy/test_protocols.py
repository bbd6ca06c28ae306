"""Plain NumPy on tracers: ufuncs and their methods, functions, ndarray's methods, and what is refused."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad.base.errors import AssignmentError, FuncgradError, TracerArrayConversionError, UnsupportedError
from funcgrad.core.check import check
from funcgrad.core.evaluate import run
from funcgrad.core.ir import make_aval
from funcgrad.core.trace import Trace, Tracer
from tests.numpy.routes import assert_same, traced
from tests.numpy.samples import array


def agree(function: Any, *args: Any, scale: float = 10) -> None:
    """`function` on tracers does what it does on plain arrays."""
    with np.errstate(all="ignore"):
        want = function(*args)
    for g, w in zip(traced(function, args, {}), want if isinstance(want, tuple) else [want], strict=True):
        assert_same(g, w, exact=False, scale=scale)


X = array((2, 3))


@pytest.fixture
def x() -> Any:
    with Trace("f") as t:
        yield t.input(make_aval((2, 3), np.dtype(float)), name="x")


# -- ufuncs


@pytest.mark.parametrize("ufunc", [np.add, np.multiply, np.maximum, np.minimum, np.logical_and, np.logical_or])
def test_reduce(ufunc: np.ufunc) -> None:
    agree(ufunc.reduce, X)
    agree(lambda x: ufunc.reduce(x, axis=1, keepdims=True), X)
    agree(lambda x: ufunc.reduce(x, axis=None), X)
    agree(lambda x: ufunc.reduce(x, 1), X)


def test_accumulate_and_outer() -> None:
    agree(np.add.accumulate, X)
    agree(lambda x: np.multiply.accumulate(x, axis=1), X)
    agree(np.subtract.outer, X, array((4,)))
    agree(lambda x: np.multiply.outer([1.0, 2.0], x), X)


def test_ufuncs_with_several_results() -> None:
    agree(np.modf, X)
    agree(np.divmod, X, array((3,)))


def test_ufuncs_that_are_refused(x: Any) -> None:
    plain = np.ones((2, 3))
    with pytest.raises(UnsupportedError, match=r"numpy\.ldexp is not supported on traced arrays"):
        np.ldexp(x, 2)
    with pytest.raises(UnsupportedError, match=r"numpy\.subtract\.reduce is not supported"):
        np.subtract.reduce(x)
    with pytest.raises(UnsupportedError, match=r"numpy\.add\.reduceat is not supported"):
        np.add.reduceat(x, [0, 1])
    with pytest.raises(AssignmentError, match=r"add\.at: a plain array cannot hold a traced value"):
        np.add.at(plain, [0], x[0])
    with pytest.raises(AssignmentError, match="add: a plain array cannot hold the traced result of x: f64"):
        plain += x
    with pytest.raises(AssignmentError, match="cannot hold"):
        np.sin(x, out=plain)
    with pytest.raises(AssignmentError, match=r"hint: plain = fnp\.asarray\(plain\)\.at\[1:\]\.add\(x\[1:\]\)"):
        plain[1:] += x[1:]
    with pytest.raises(UnsupportedError, match="where="):
        np.sin(x, where=plain > 0)
    with pytest.raises(TracerArrayConversionError):
        plain[0] = x[0]
    assert np.all(plain == 1)


# -- functions


def test_functions_that_are_refused(x: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"numpy\.unique is not supported") as caught:
        np.unique(x)
    assert "shape of its result depends on values" in caught.value.hint
    with pytest.raises(UnsupportedError, match=r"numpy\.linalg\.eigvals is not supported"):
        np.linalg.eigvals(x)
    for function in (np.copyto, np.put, np.place, np.putmask):
        with pytest.raises(AssignmentError, match=r"x = x\.at"):
            function(*([x, x, x] if function is not np.copyto else [x, x]))
    with pytest.raises(FuncgradError, match=r"np\.stack"):
        np.array([x, x])


def test_what_can_be_made_of_sorts_says_so(x: Any) -> None:
    for call in (np.median, lambda x: np.partition(x, 1), lambda x: np.quantile(x, 0.5), lambda x: x.sort()):
        with pytest.raises(FuncgradError) as caught:
            call(x[0])
        assert caught.value.hint is not None and "np.sort(x)" in caught.value.hint
    for call in (np.lexsort, lambda x: x.argpartition(1), lambda x: np.argpartition(x, 1)):
        with pytest.raises(UnsupportedError, match="not supported") as caught:
            call(x[0])
        assert caught.value.hint is not None and "np.argsort(x)" in caught.value.hint


def test_searching_is_refused_with_what_can_be_written_instead() -> None:
    ordered, values = np.array([0.0, 1.0, 1.0, 2.0]), np.array([-1.0, 0.0, 1.0, 1.5, 2.0, 3.0])
    for call in (np.searchsorted, lambda x, values: x.searchsorted(values)):
        with pytest.raises(UnsupportedError, match="not supported") as caught:
            fg.jit(call)(ordered, values)
        assert caught.value.hint is not None
        written = caught.value.hint.partition(" is ")[0]
        f = eval(f"lambda x, values: {written}", {"np": np})
        found = fg.jit(f)(ordered, values)
        assert found.tolist() == np.searchsorted(ordered, values).tolist()


def test_arguments_beside_tracers_are_accepted(x: Any) -> None:
    out = np.concatenate([np.ones((2, 3)), x, [[1, 2, 3]]])
    assert out.shape == (5, 3)
    assert np.where(x > 0, 1, np.ones(3)).shape == (2, 3)
    assert np.einsum("ij,j", x, np.ones(3)).shape == (2,)
    assert np.result_type(x, np.float32) == np.float64
    assert (np.ndim(x), np.shape(x), np.size(x)) == (2, (2, 3), 6)
    assert np.zeros_like(x, shape=4).shape == (4,)


def test_other_types_get_their_chance(x: Any) -> None:
    class Other:
        def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> str:
            return "other"

        def __array_ufunc__(self, *args: Any, **kwargs: Any) -> str:
            return "other"

    assert np.concatenate([x, Other()]) == "other"


def test_namespace(x: Any) -> None:
    assert x.__array_namespace__() is fnp


# -- methods


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum(), lambda x: x.sum(0, keepdims=True), lambda x: x.prod(1), lambda x: x.mean(axis=-1),
        lambda x: x.var(ddof=1), lambda x: x.std(0), lambda x: x.max(), lambda x: x.min(1), lambda x: (x > 0).any(),
        lambda x: (x > 0).all(0), lambda x: x.argmax(), lambda x: x.argmin(1), lambda x: x.argsort(0),
        lambda x: x.cumsum(), lambda x: x.cumprod(0), lambda x: x.reshape(3, 2), lambda x: x.reshape((3, -1)),
        lambda x: x.reshape(-1), lambda x: x.reshape([6]), lambda x: x.T, lambda x: x.mT, lambda x: x.transpose(),
        lambda x: x.transpose(1, 0),
        lambda x: x.transpose((1, 0)), lambda x: x.transpose([1, 0]), lambda x: x.ravel(), lambda x: x.flatten(),
        lambda x: x[None].squeeze(), lambda x: x[None].squeeze(0), lambda x: x.swapaxes(0, 1),
        lambda x: x.astype("float32"), lambda x: x.astype(int), lambda x: x.copy(), lambda x: x.dot(x.T),
        lambda x: x.clip(0, 1), lambda x: x.clip(min=0), lambda x: x.clip(max=0), lambda x: x.round(1),
        lambda x: x.round(), lambda x: x.conj(), lambda x: x.real, lambda x: x.imag, lambda x: x.repeat(2),
        lambda x: x.repeat(2, 1), lambda x: x.take([0, 1]), lambda x: x.take(1, 1), lambda x: x.diagonal(),
        lambda x: x.diagonal(1), lambda x: copy.copy(x) + copy.deepcopy(x), lambda x: x.conjugate(),
    ],
)  # fmt: skip
def test_methods(function: Any) -> None:
    agree(function, X)


@pytest.mark.parametrize("name", ["fill", "put", "resize", "setfield", "sort", "partition"])
def test_methods_that_change_in_place(x: Any, name: str) -> None:
    with pytest.raises(AssignmentError, match=rf"{name}: x: f64\[2,3\] is traced, and cannot be changed in place"):
        getattr(x, name)()


@pytest.mark.parametrize("name", ["nonzero", "argpartition", "searchsorted", "view", "tobytes", "byteswap", "compress"])
def test_methods_that_are_refused(x: Any, name: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"{name}: x: f64\[2,3\] is traced"):
        getattr(x, name)()


def test_all_arrays_can_be_waited_for() -> None:
    y = fg.jit(np.sin)(X)
    assert type(y) is fg.Array and y.block_until_ready() is y
    norm = lambda x: np.sum(np.sin(x).block_until_ready() ** 2)
    for f in (norm, fg.jit(norm)):
        np.testing.assert_allclose(fg.grad(f)(X), 2 * np.sin(X) * np.cos(X), rtol=1e-14)


def test_attributes(x: Any) -> None:
    assert (x.ndim, x.size, x.shape, x.dtype, x.itemsize, x.nbytes, x.device) == (
        2, 6, (2, 3), np.dtype(float), 8, 48, "cpu",
    )  # fmt: skip
    assert len(x) == 2
    assert not hasattr(x, "nothing")
    with pytest.raises(UnsupportedError):
        _ = x.strides


def test_a_plain_numpy_function_is_traced_as_it_stands() -> None:
    def loss(w: Any, data: np.ndarray) -> Any:
        h = np.tanh(data @ w[:3].reshape(3, 1) + w[3])
        p = np.exp(h) / np.sum(np.exp(h), axis=0)
        r = np.where(p > 0.3, p, 0.1 * p)
        return np.mean(np.square(r)) + np.linalg.norm(w) + np.log1p(np.abs(w)).sum()

    w, data = array((4,)), array((5, 3))
    (got,) = traced(loss, (w, data), {})
    np.testing.assert_allclose(got, loss(w, data), rtol=1e-13)
    with Trace("f") as t:  # the data as a constant
        out = loss(t.input(make_aval((4,), np.dtype(float))), data)
        program = check(t.program([out]))
        (got,) = run(program, [*t.constants(), w])
    np.testing.assert_allclose(got, loss(w, data), rtol=1e-13)


def test_python_control_flow_sees_values() -> None:
    with Trace("f", shows=True) as t:
        a = t.input(make_aval((), np.dtype(float)), np.array(2.0), name="a")
        assert a > 1 and not a < 1
        assert isinstance(fnp.sin(np.ones(2)), np.ndarray)
        assert isinstance(a, Tracer) and isinstance(a, fnp.ndarray)
