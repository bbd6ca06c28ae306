"""grad, value_and_grad, vjp, jvp, linearize: arguments, trees, aux, integers, ownership."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import errors

Point = namedtuple("Point", "x y")


def test_argnums() -> None:
    f = lambda x, y, z=2.0: x * x * y * z
    assert float(fg.grad(f)(3.0, 5.0)) == 60.0
    assert float(fg.grad(f, argnums=1)(3.0, 5.0)) == 18.0
    assert float(fg.grad(f, argnums=-1)(3.0, 5.0)) == 18.0
    gx, gy = fg.grad(f, argnums=(0, 1))(3.0, 5.0)
    assert (float(gx), float(gy)) == (60.0, 18.0)
    gy, gx = fg.grad(f, argnums=(-1, 0))(3.0, 5.0)
    assert (float(gx), float(gy)) == (60.0, 18.0)
    (gx,) = fg.grad(f, argnums=(0,))(3.0, 5.0)
    assert float(gx) == 60.0
    assert float(fg.grad(f)(3.0, 5.0, z=1.0)) == 30.0  # keywords pass through


def test_trees_keep_their_type_and_None_passes() -> None:
    params = {
        "p": Point(1.0, np.array([2.0, 3.0])),
        "o": OrderedDict(z=np.float32(4.0), a=[5.0, None]),
        "n": None,
    }

    def f(t: Any) -> Any:
        assert isinstance(t["p"], Point) and t["n"] is None and t["o"]["a"][1] is None
        return t["p"].x ** 2 + np.sum(t["p"].y ** 2) + t["o"]["z"] * 3 + t["o"]["a"][0]

    g = fg.grad(f)(params)
    assert isinstance(g["p"], Point) and g["n"] is None
    assert list(g["o"]) == ["z", "a"] and g["o"]["a"][1] is None
    assert float(g["p"].x) == 2.0 and g["p"].y.tolist() == [4.0, 6.0]
    assert g["o"]["z"].dtype == np.float32 and float(g["o"]["z"]) == 3.0


def test_an_unused_leaf_gets_zeros_of_its_type() -> None:
    g = fg.grad(lambda p: p["a"] * 2.0)({"a": 1.0, "b": np.ones((2, 3), np.float32)})
    assert g["b"].dtype == np.float32 and g["b"].shape == (2, 3) and not g["b"].any()
    g["b"][:] = 1  # fresh and writeable
    assert fg.grad(lambda x: 3.0)(1.0) == 0.0
    assert fg.grad(lambda x: fg.stop_gradient(x) * 3.0)(1.0) == 0.0


def test_aux_comes_out_of_the_trace() -> None:
    def f(x: Any) -> Any:
        y = np.sin(x)
        return y * 2, {"y": y, "n": 3, "none": None}

    (value, aux), g = fg.value_and_grad(f, has_aux=True)(0.5)
    assert type(aux["y"]) is fg.Array and float(aux["y"]) == np.sin(0.5) and aux["n"] == 3
    assert float(value) == 2 * np.sin(0.5) and float(g) == 2 * np.cos(0.5)
    g, aux = fg.grad(f, has_aux=True)(0.5)
    assert float(aux["y"]) == np.sin(0.5)
    _, back, aux = fg.vjp(f, 0.5, has_aux=True)
    assert float(back(1.0)[0]) == 2 * np.cos(0.5) and float(aux["y"]) == np.sin(0.5)
    _, dot, aux = fg.jvp(f, (0.5,), (1.0,), has_aux=True)
    assert float(dot) == 2 * np.cos(0.5) and float(aux["y"]) == np.sin(0.5)
    jac, aux = fg.jacfwd(f, has_aux=True)(0.5)
    assert float(jac) == 2 * np.cos(0.5) and float(aux["y"]) == np.sin(0.5)
    hess, aux = fg.hessian(f, has_aux=True)(0.5)
    assert float(hess) == -2 * np.sin(0.5) and float(aux["y"]) == np.sin(0.5)
    # the value and aux belong to the outer trace when there is one
    second = fg.grad(lambda x: fg.grad(f, has_aux=True)(x)[1]["y"])(0.5)
    assert float(second) == np.cos(0.5)


def test_integer_leaves() -> None:
    f = lambda x, n: np.sum(x**n)
    _, back = fg.vjp(f, np.array([2.0, 3.0]), 2)
    gx, gn = back(1.0)
    assert gx.tolist() == [4.0, 6.0]
    assert gn.dtype == fg.float0 and gn.shape == ()
    _, dot = fg.jvp(f, (np.array([2.0, 3.0]), 2), (np.ones(2), np.zeros((), fg.float0)))
    assert float(dot) == 10.0
    _, lin = fg.linearize(f, np.array([2.0, 3.0]), 2)
    assert float(lin(np.ones(2), np.zeros((), fg.float0))) == 10.0
    _, dot = fg.jvp(lambda x: (np.floor(x).astype(int), x > 0), (1.5,), (1.0,))
    assert dot[0].dtype == fg.float0 and dot[1].dtype == fg.float0


def test_vjp_is_reusable_and_nests() -> None:
    _, back = fg.vjp(lambda x, w: (np.sin(x * w), x + w), 0.3, 2.0)
    for scale in (1.0, -2.0):
        gx, gw = back((scale, 0.0))
        assert np.isclose(float(gx), scale * 2 * np.cos(0.6)) and np.isclose(float(gw), scale * 0.3 * np.cos(0.6))
    assert float(fg.grad(lambda c: back((c, c))[0] ** 2)(1.0)) == pytest.approx(2 * (2 * np.cos(0.6) + 1) ** 2)
    rows = fg.vmap(lambda c: back((c, 0.0))[0])(np.arange(3.0))
    np.testing.assert_allclose(rows, np.arange(3) * 2 * np.cos(0.6))
    assert float(fg.jit(back)((1.0, 0.0))[0]) == float(back((1.0, 0.0))[0])


def test_what_is_returned_is_fresh() -> None:
    x, c = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    y, back = fg.vjp(lambda x: x * x * c, x)
    expected = back(np.ones(2))[0].copy()
    y[:] = 0
    x[:] = 0
    c[:] = 0
    g = back(np.ones(2))[0]
    assert g.tolist() == expected.tolist() == [6.0, 16.0]
    g[:] = 0
    assert back(np.ones(2))[0].tolist() == [6.0, 16.0]

    y, back = fg.vjp(np.tanh, np.array([0.5]))  # the residual is the output itself
    first = float(back(np.ones(1))[0][0])
    y[:] = 7
    assert float(back(np.ones(1))[0][0]) == first

    x = np.array([[1.0, 2.0], [3.0, 4.0]])
    for f in (lambda x: x, lambda x: x.T, lambda x: x[0], lambda x: np.reshape(x, -1), lambda x: (x, x)):
        for result in (fg.jit(f)(x), fg.vjp(f, x)[0], fg.jvp(f, (x,), (x,)), fg.linearize(f, x)[0], fg.vmap(f)(x)):
            arrays = fg.tree.leaves(result)
            for i, a in enumerate(arrays):
                assert type(a) is fg.Array and a.flags.c_contiguous and a.flags.writeable
                assert not np.shares_memory(a, x)
                assert not any(np.shares_memory(a, b) for b in arrays[:i])
    ct = np.ones((2, 2))
    assert not np.shares_memory(fg.vjp(lambda x: x, x)[1](ct)[0], ct)
    t = np.ones((2, 2))
    assert not np.shares_memory(fg.jvp(lambda x: x, (x,), (t,))[1], t)


VIEWS = {
    "itself": lambda y: y,
    "transpose": lambda y: y.T,
    "reshape": lambda y: np.reshape(y, (3, 2)),
    "slice": lambda y: y[:, 1:],
    "reverse": lambda y: y[::-1],
    "broadcast": lambda y: np.broadcast_to(y, (4, 2, 3)),
    "broadcast of a transpose": lambda y: np.broadcast_to(y.T, (4, 3, 2)),
    "two steps": lambda y: np.reshape(y.T[::-1], -1)[1:],
}


@pytest.mark.parametrize("wrap", [lambda f: f, fg.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("name", VIEWS)
def test_a_residual_that_is_a_view_of_a_result(name: str, wrap: Any) -> None:
    view = VIEWS[name]

    def f(x: Any) -> Any:
        y = x * 2.0
        return y, np.sum(view(y) * np.exp(view(x)))

    x = np.arange(6.0).reshape(2, 3) / 3
    one = np.ones((2, 3))
    mask = fg.grad(lambda x: np.sum(view(x)))(x)  # how often each element is in the view
    expected = mask * 2 * np.exp(x) * (1 + x)

    (y, _), back = fg.vjp(wrap(f), x)
    y[:] = 99
    np.testing.assert_allclose(back((0 * one, 1.0))[0], expected, rtol=1e-14)
    (y, _), lin = fg.linearize(wrap(f), x)
    y[:] = 99
    np.testing.assert_allclose(lin(one)[1], expected.sum(), rtol=1e-14)
    (y, _), back, aux = fg.vjp(lambda x: (wrap(f)(x), view(x * 3.0)), x, has_aux=True)
    y[:], aux[...] = 99, 99
    np.testing.assert_allclose(back((0 * one, 1.0))[0], expected, rtol=1e-14)


def test_config_results_numpy() -> None:
    fg.config.results = "numpy"
    try:
        assert type(fg.grad(lambda x: np.sum(x * x))(np.ones(2))) is np.ndarray
        assert type(fg.grad(lambda x: x * x)(1.0)) is np.float64
        assert type(fnp.sin(np.ones(2))) is np.ndarray
    finally:
        fg.config.results = "array"


def test_jacobians_of_trees() -> None:
    f = lambda p: {"u": p["a"] * np.sum(p["b"]), "v": p["b"][0] ** 2}
    p = {"a": np.array([1.0, 2.0]), "b": np.array([3.0, 4.0, 5.0])}
    for jacobian in (fg.jacfwd, fg.jacrev, fg.jacobian):
        j = jacobian(f)(p)
        assert j["u"]["a"].tolist() == [[12.0, 0.0], [0.0, 12.0]]
        assert j["u"]["b"].tolist() == [[1.0] * 3, [2.0] * 3]
        assert j["v"]["a"].tolist() == [0.0, 0.0]
        assert j["v"]["b"].tolist() == [6.0, 0.0, 0.0]
    j = fg.jacfwd(lambda x, y: x * y, argnums=(0, 1))(np.ones(2), np.array([2.0, 3.0]))
    assert j[0].tolist() == [[2.0, 0.0], [0.0, 3.0]] and j[1].tolist() == [[1.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0), (2, 3)])
def test_jacobian_shapes(shape: tuple[int, ...]) -> None:
    x = np.arange(np.prod(shape), dtype=float).reshape(shape) + 1
    for jacobian in (fg.jacfwd, fg.jacrev):
        j = jacobian(lambda x: x * 2.0)(x)
        assert j.shape == shape * 2
        assert np.array_equal(j.reshape(x.size, x.size), 2 * np.eye(x.size))
    assert fg.hessian(lambda x: np.sum(x**3))(x).shape == shape * 2
    assert fg.jacfwd(lambda x: np.sum(x))(x).shape == shape


def test_float32_stays_float32() -> None:
    x = np.array([1.0, 2.0], np.float32)
    f = lambda x: np.sum(np.sin(x) * 2.0 + x**2)
    assert fg.grad(f)(x).dtype == np.float32
    assert fg.hessian(f)(x).dtype == np.float32
    assert fg.jvp(f, (x,), (x,))[1].dtype == np.float32
    # the transpose of a conversion converts back
    mixed = lambda x: np.sum(x.astype(np.float64) * np.array([1.0, 2.0]))
    assert fg.grad(mixed)(x).dtype == np.float32


def test_the_f_of_a_transform_keeps_its_name_and_doc() -> None:
    def loss(x: Any) -> Any:
        """My loss."""
        return x * x

    assert fg.grad(loss).__name__ == "grad(loss)" and "My loss." in (fg.grad(loss).__doc__ or "")
    assert fg.jit(loss).__name__ == "loss" and fg.jit(loss).__doc__ == "My loss."


# -- bad input


BAD = [
    ("a function result", lambda: fg.grad(3.0), errors.UsageError, "grad takes a function, got float"),
    ("vector loss", lambda: fg.grad(lambda x: x * 2.0)(np.ones(3)), errors.NonScalarOutputError, r"returns f64\[3\]"),
    ("(1,) loss", lambda: fg.grad(lambda x: x * 2.0)(np.ones(1)), errors.NonScalarOutputError, r"returns f64\[1\]"),
    ("tuple loss", lambda: fg.grad(lambda x: (x, x))(1.0), errors.NonScalarOutputError, "has_aux"),
    ("None loss", lambda: fg.grad(lambda x: None)(1.0), errors.NonScalarOutputError, "0 leaves"),
    ("int loss", lambda: fg.grad(lambda x: np.sum(x > 0))(np.ones(2)), errors.NonScalarOutputError, "i64"),
    ("int argument", lambda: fg.grad(lambda x: x * 2.0)(3), errors.DtypeError, r"but x is i64\[\]"),
    ("int leaf", lambda: fg.grad(lambda p: p["n"] * 1.0)({"n": np.arange(2)}), errors.DtypeError, r"p\.n is i64\[2\]"),
    ("bool argument", lambda: fg.grad(lambda x: x * 2.0)(True), errors.DtypeError, "bool"),
    ("argnums out of range", lambda: fg.grad(lambda x: x, argnums=2)(1.0), errors.ArgumentError, "argnums=2"),
    ("argnums twice", lambda: fg.grad(lambda x, y: x, argnums=(0, -2))(1.0, 1.0), errors.ArgumentError, "twice"),
    ("argnums float", lambda: fg.grad(lambda x: x, argnums=(0.0,))(1.0), errors.ArgumentError, "ints"),  # type: ignore
    ("argnums None", lambda: fg.grad(lambda x: x, argnums=None)(1.0), errors.ArgumentError, "ints"),
    ("argnums empty", lambda: fg.grad(lambda x: x, argnums=())(1.0), errors.ArgumentError, "empty"),
    ("string", lambda: fg.grad(lambda p: p["s"])({"s": "text"}), errors.ArgumentError, r"p\.s is a string"),
    ("object", lambda: fg.grad(lambda p: p)(object()), errors.ArgumentError, "p is a object"),
    ("object array", lambda: fg.grad(lambda p: p)(np.array([None])), errors.ArgumentError, "no array of numbers"),
    ("has_aux", lambda: fg.grad(lambda x: x, has_aux=True)(1.0), errors.TreeError, "must return"),
    ("returns a string", lambda: fg.jit(lambda x: {"a": "s"})(1.0), errors.ArgumentError, r"result\.a"),
    ("keys", lambda: fg.grad(lambda p: p[1])({1: 1.0, "a": 2.0}), errors.TreeError, "orderable"),
    ("jvp tree", lambda: fg.jvp(lambda x: x, ([1.0],), ((1.0,),)), errors.TreeError, "expected a list, got a tuple"),
    ("jvp shape", lambda: fg.jvp(lambda x: x, (np.ones(2),), (np.ones(3),)), errors.ShapeError, r"expected \(2,\)"),
    ("jvp dtype", lambda: fg.jvp(lambda x: x, (np.ones(2),), (np.ones(2, "f4"),)), errors.DtypeError, "expected f64"),
    ("jvp no tuple", lambda: fg.jvp(lambda x: x, 1.0, 1.0), errors.ArgumentError, "tuple"),
    ("cotangent tree", lambda: fg.vjp(lambda x: (x, x), 1.0)[1](1.0), errors.TreeError, "tree of the output"),
    ("cotangent shape", lambda: fg.vjp(lambda x: x, np.ones(2))[1](1.0), errors.ShapeError, "shape of the output"),
    ("jac of int", lambda: fg.jacfwd(lambda x: x > 0)(1.0), errors.DtypeError, "bool"),
    ("hvp no tuple", lambda: fg.hvp(lambda x: x, 1.0, 1.0), errors.ArgumentError, "tuple"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "text"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_input(call: Any, kind: type, text: str) -> None:
    with pytest.raises(kind, match=text) as found:
        call()
    lines = str(found.value).splitlines()
    assert len(lines) <= 8 and "test_differentiate.py" in lines[1]


def test_a_dataclass_must_be_registered() -> None:
    import dataclasses

    @dataclasses.dataclass
    class Params:
        w: Any

    with pytest.raises(errors.ArgumentError, match="dataclass that is not registered") as found:
        fg.grad(lambda p: p.w)(Params(1.0))
    assert "register_dataclass" in str(found.value)
    fg.tree.register_dataclass(Params)
    assert float(fg.grad(lambda p: p.w * 2.0)(Params(1.0)).w) == 2.0
