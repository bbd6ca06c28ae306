"""Products, einsum and norms against NumPy's, on every route; and the equations they become."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import funcgrad.numpy as fnp
from funcgrad.base.errors import ArgumentError, ParameterError, ShapeError, UnsupportedError
from funcgrad.core.check import check
from funcgrad.core.ir import make_aval
from funcgrad.core.trace import Trace
from tests.numpy.routes import check_call, traced
from tests.numpy.samples import DTYPES, array

BY_DTYPE = pytest.mark.parametrize("dtype", DTYPES)
PAIRS = [
    ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 2)), ((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)),
    ((5, 2, 3), (5, 3, 4)), ((1, 2, 3), (5, 3, 4)), ((5, 1, 2, 3), (4, 3, 2)), ((5, 2, 3), (3,)), ((3,), (5, 3, 2)),
    ((0, 3), (3, 2)), ((2, 0), (0, 3)), ((3, 2), (3, 2)), ((), (3,)), ((), ()), ((4,), (3,)), ((2, 3), (4, 2)),
]  # fmt: skip
TERMS = [
    ("ij->ji", [(2, 3)]), ("ii", [(3, 3)]), ("ii->i", [(3, 3)]), ("ijj->ij", [(2, 3, 3)]), ("iij", [(3, 3, 2)]),
    ("iii->i", [(2, 2, 2)]), ("ij->", [(2, 3)]), ("ij->j", [(2, 3)]), ("i,i", [(3,), (3,)]), ("i,j", [(3,), (2,)]),
    ("ij,jk", [(2, 3), (3, 4)]), ("ij,jk->ki", [(2, 3), (3, 4)]), ("ij,kj->ik", [(2, 3), (4, 3)]),
    ("bij,bjk->bik", [(5, 2, 3), (5, 3, 4)]), ("bij,jk->bik", [(5, 2, 3), (3, 4)]), ("ij,ij->i", [(2, 3), (2, 3)]),
    ("ij,ij->", [(2, 3), (2, 3)]), ("ij,i->ij", [(2, 3), (2,)]), ("ij,ij->ij", [(2, 3), (2, 3)]),
    ("...ij,...jk->...ik", [(5, 2, 3), (3, 4)]), ("...ij,...jk", [(1, 2, 3), (5, 3, 4)]),
    ("i...->...", [(2, 3, 4)]), ("...i->...", [(2, 3)]), ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 2)]),
    ("ij,jk,kl", [(2, 3), (3, 4), (4, 2)]), ("i,ij,j", [(2,), (2, 3), (3,)]),
    ("ab,bc,ca->", [(2, 3), (3, 4), (4, 2)]), ("ij,jk", [(2, 1), (3, 4)]), ("i,i->i", [(1,), (3,)]),
    ("ij,k->ik", [(2, 3), (4,)]), ("ii,i->i", [(3, 3), (3,)]), ("i,->i", [(3,), ()]), (",", [(), ()]), ("", [()]),
    ("ij,jk,ik->ij", [(2, 3), (3, 4), (2, 4)]), ("...,...", [(2, 3), (3,)]),
    ("ij..., jk...-> ik...", [(2, 3, 2), (3, 4, 2)]), ("i j -> j i", [(2, 3)]), ("ba", [(2, 3)]),
    ("a,ab,abc->abc", [(2,), (2, 3), (2, 3, 4)]), ("ij,jk->ijk", [(2, 3), (3, 4)]),
    ("abc,cd,ef->af", [(2, 3, 4), (4, 2), (3, 2)]),
]  # fmt: skip
WRONG = [
    ("ij,jk", [(2, 3), (4, 4)]), ("ij", [(3,)]), ("ij->ik", [(2, 3)]), ("ij->ii", [(2, 3)]), ("ij,jk", [(2, 3)]),
    ("i.j", [(2, 3)]), ("i1", [(2, 3)]), ("ii", [(2, 3)]), ("ij,jk,kl", [(2, 3), (3, 4), (5, 2)]),
]  # fmt: skip


@pytest.mark.parametrize("name", ["dot", "matmul", "inner", "outer", "vdot", "kron", "vecdot", "matvec", "vecmat"])
@BY_DTYPE
def test_products(name: str, dtype: str) -> None:
    if not hasattr(np, name):
        pytest.skip(f"this NumPy has no {name}")
    for a, b in PAIRS:
        check_call(name, array(a, dtype), array(b, dtype, seed=1), scale=100)
    for other in DTYPES:
        check_call(name, array((3, 3), dtype), array((3, 3), other), scale=100)


@BY_DTYPE
def test_products_with_scalars(dtype: str) -> None:
    for name in ("dot", "inner"):
        check_call(name, array((2, 3), dtype), 2.5, scale=10)
        check_call(name, 2, array((2, 3), dtype), scale=10)
    check_call("matmul", array((2, 3), dtype), 2)


@BY_DTYPE
def test_tensordot(dtype: str) -> None:
    def a(*shape: int) -> np.ndarray:
        return array(shape, dtype)

    for x, y, axes in [
        (a(2, 3, 4), a(4, 3, 2), ([1, 2], [1, 0])), (a(2, 3, 4), a(3, 4, 2), 2), (a(2, 3), a(3, 2), 0),
        (a(2, 3), a(2, 4), (0, 0)), (a(2, 3), a(2, 4), (-2, -2)), (a(2, 3), a(2, 4), 3),
        (a(2, 3), a(2, 4), ((0, 1), (0,))), (a(2, 3), a(4, 3), 1), (a(3), a(3), 1),
    ]:  # fmt: skip
        check_call("tensordot", x, y, axes, scale=100)


@BY_DTYPE
def test_cross(dtype: str) -> None:
    def a(*shape: int) -> np.ndarray:
        return array(shape, dtype)

    check_call("cross", a(3), a(3), scale=100)
    check_call("cross", a(2, 3), a(3), scale=100)
    check_call("cross", a(3, 2), a(3, 2), axis=0, scale=100)
    check_call("cross", a(3, 2), a(2, 3), axisa=0, axisc=0, scale=100)
    check_call("cross", a(4), a(4))
    check_call("vecdot", a(3, 2), a(3, 2), axis=0, scale=100)


@pytest.mark.parametrize(("subscripts", "shapes"), TERMS)
@pytest.mark.parametrize("dtype", ["bool", "int32", "float32", "float64"])
def test_einsum(subscripts: str, shapes: list, dtype: str) -> None:
    xs = [array(s, dtype, seed=i) for i, s in enumerate(shapes)]
    check_call("einsum", subscripts, *xs, scale=100)
    if len(xs) > 2:
        for optimize in (False, "optimal", "greedy", ["einsum_path", (0, 1), (0, 1)]):
            check_call("einsum", subscripts, *xs, optimize=optimize, scale=100)


@pytest.mark.parametrize(("subscripts", "shapes"), WRONG)
def test_einsum_refuses(subscripts: str, shapes: list) -> None:
    with pytest.raises((ShapeError, ParameterError, ArgumentError), match="einsum: "):
        fnp.einsum(subscripts, *[array(s) for s in shapes])


def test_einsum_with_lists_of_axes() -> None:
    check_call("einsum", array((2, 3)), [0, 1], array((3, 4)), [1, 2], [0, 2], scale=10)
    check_call("einsum", array((2, 3)), [0, 1], array((3, 4)), [1, 2], scale=10)
    check_call("einsum", array((5, 2, 3)), [..., 0, 1], array((3, 4)), [1, 2], [..., 2, 0], scale=10)
    check_call("einsum", "ij,jk", array((2, 3)), array((3, 4)), dtype="float32", casting="unsafe", scale=10)


@pytest.mark.parametrize("order", [None, 1, 2, 0, -1, 3, 2.5, np.inf, -np.inf, "fro"])
@pytest.mark.parametrize("dtype", ["int32", "float32", "float64"])
def test_norm(order: Any, dtype: str) -> None:
    for shape in ((3,), (2, 3), (0,), (2, 3, 4)):
        x = array(shape, dtype)
        if not (order == 2 and len(shape) == 2):
            check_call("linalg.norm", x, order, scale=100)
        check_call("linalg.norm", x, order, -1, scale=100)
        check_call("linalg.norm", x, order, 0, True, scale=100)
        if order != 2 and len(shape) > 1:
            check_call("linalg.norm", x, order, (0, 1), scale=100)
            check_call("linalg.norm", x, order, (-1, 0), keepdims=True, scale=100)
    with pytest.raises(UnsupportedError, match="singular values"):
        fnp.linalg.norm(np.ones((2, 2)), 2)


def test_vector_and_matrix_norm() -> None:
    check_call("linalg.vector_norm", array((2, 3)), scale=10)
    check_call("linalg.vector_norm", array((2, 3, 4)), axis=(0, 2), ord=1, scale=10)
    check_call("linalg.matrix_norm", array((2, 3, 4)), scale=10)
    x, y = array((2, 3, 3)), array((2, 3, 3), seed=1)
    for name in ("trace", "diagonal"):
        check_call(f"linalg.{name}", x, scale=10)
        check_call(f"linalg.{name}", x, offset=1, scale=10)
    for name in ("matmul", "vecdot", "cross", "outer"):
        check_call(f"linalg.{name}", x, y, scale=10)
    check_call("linalg.outer", x[0, 0], y[0, 0], scale=10)
    check_call("linalg.tensordot", x, y, axes=1, scale=10)
    check_call("linalg.matrix_transpose", x, exact=True)


X, W = make_aval((3, 4), np.dtype(float)), make_aval((3, 4), np.dtype(float))


@pytest.mark.parametrize(
    ("call", "message", "hint"),
    [
        (lambda x, w: x @ w, "matmul: contracted axes differ: 4 (axis 1 of x: f64[3,4]) and 3 (axis 0 of w: f64[3,4])",
         "x @ w.T has shape (3, 3)"),
        (fnp.dot, "dot: contracted axes differ: 4 (axis 1 of x: f64[3,4]) and 3 (axis 0 of w: f64[3,4])",
         "x @ w.T has shape (3, 3)"),
        (lambda x, w: x.T @ w[:2], "matmul: contracted axes differ: 3 (axis 1 of f64[4,3]) and 2 (axis 0 of f64[2,4])",
         None),
        (lambda x, w: x.T @ w.T, "matmul: contracted axes differ: 3 (axis 1 of f64[4,3]) and 4 (axis 0 of f64[4,3])",
         "x @ y.T has shape (4, 4)"),
        (lambda x, w: fnp.inner(x, w.T),
         "inner: contracted axes differ: 4 (axis 1 of x: f64[3,4]) and 3 (axis 1 of f64[4,3])", None),
        (lambda x, w: fnp.einsum("ij,jk", x, w),
         "einsum: axis j has lengths 4 (in x: f64[3,4]) and 3 (in w: f64[3,4])", None),
        (lambda x, w: fnp.matmul(x, 2.0), "matmul: not defined for scalars: x: f64[3,4] and f64[]", "x * y"),
    ],
)  # fmt: skip
def test_errors_name_the_operands_and_help(call: Any, message: str, hint: str | None) -> None:
    with Trace("f") as t:
        x, w = t.input(X, name="x"), t.input(W, name="w")
        with pytest.raises(ShapeError) as caught:
            call(x, w)
    lines = str(caught.value).splitlines()
    assert lines[0] == message
    assert (lines[-1].strip() == f"hint: {hint}") if hint else ("hint" not in lines[-1] or "@" in lines[-1])


def primitives(function: Any, *shapes: tuple[int, ...]) -> list[str]:
    with Trace("f") as t:
        xs = [t.input(make_aval(s, np.dtype(float))) for s in shapes]
        return [e.primitive.name for e in check(t.program([function(*xs)])).equations]


@pytest.mark.parametrize(
    ("function", "shapes", "want"),
    [
        (lambda x, y: x @ y, [(2, 3), (3, 4)], ["dot"]),
        (lambda x, y: x @ y.T, [(2, 3), (4, 3)], ["transpose", "dot"]),
        (lambda x, y: x @ y, [(5, 2, 3), (3, 4)], ["dot"]),
        (lambda x, y: x @ y, [(5, 2, 3), (5, 3, 4)], ["dot"]),
        (lambda x, y: fnp.einsum("ij,jk->ki", x, y), [(2, 3), (3, 4)], ["dot"]),
        (lambda x, y: fnp.einsum("ij,kj->ik", x, y), [(2, 3), (4, 3)], ["dot"]),
        (lambda x, y: fnp.einsum("ij,ij->ij", x, y), [(2, 3), (2, 3)], ["mul"]),
        (lambda x: fnp.einsum("ii->i", x), [(3, 3)], ["reshape", "slice"]),
        (lambda x, y: fnp.tensordot(x, y, 1), [(2, 3), (3, 4)], ["dot"]),
        (lambda x, y: fnp.outer(x, y), [(2,), (3,)], ["broadcast", "broadcast", "mul"]),
        (lambda x: fnp.diag(x), [(3,)], ["pad", "reshape"]),
        (lambda x: fnp.trace(x), [(3, 3)], ["reshape", "slice", "reduce_sum"]),
    ],
)  # fmt: skip
def test_the_program_of_a_product_is_short(function: Any, shapes: list, want: list[str]) -> None:
    assert primitives(function, *shapes) == want


def test_einsum_takes_the_cheap_order() -> None:
    (got,) = traced(lambda a, b, c: fnp.einsum("ij,jk,k->i", a, b, c), (array((4, 5)), array((5, 6)), array((6,))), {})
    np.testing.assert_allclose(got, array((4, 5)) @ array((5, 6)) @ array((6,)), rtol=1e-13)
    with Trace("f") as t:
        a, b, c = [t.input(make_aval(s, np.dtype(float))) for s in ((4, 5), (5, 6), (6,))]
        out = fnp.einsum("ij,jk,k->i", a, b, c)
        shapes = [v.aval.shape for e in t.program([out]).equations for v in e.outputs if e.primitive.name == "dot"]
    assert shapes == [(5,), (4,)]
