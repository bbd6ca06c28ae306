"""Transforms in any nesting and order, on a function with a dict of arrays, a captured array, a nested jit and a
reduction, against mpmath's derivatives of the same function written out for numbers of 50 digits."""

from __future__ import annotations

import itertools
from typing import Any

import mpmath as mp
import numpy as np
import pytest

import funcgrad as fg

C = np.array([0.5, -1.25, 0.75])
POINT = {"a": np.array([0.3, -0.7, 1.1]), "b": np.array([0.9, -0.4])}
OTHER = {"a": np.array([-0.2, 0.5, 0.1]), "b": np.array([1.3, 0.6])}
DIRECTION = {"a": np.array([0.2, 1.0, -0.5]), "b": np.array([-0.3, 0.8])}
KEYS = ("a", "b")


@fg.jit
def h(u: Any, v: Any) -> Any:
    return np.tanh(u * v) + np.exp(-u * u) * v


def f(p: Any) -> Any:
    a, b = p["a"], p["b"]
    s = np.sum(np.sin(a * C) * h(a, b[0])) / (1 + b[1] ** 2)
    t = np.log1p(np.exp(a @ C)) * np.sqrt(1 + b[0] ** 2 * b[1] ** 2)
    return s + t + np.sum(np.cosh(a[1:] - a[:-1]) ** 2 * b) * np.arctan2(b[0], 2.0)


def f_exact(*x: Any) -> Any:
    a, b = x[:3], x[3:]

    def h(u: Any, v: Any) -> Any:
        return mp.tanh(u * v) + mp.exp(-u * u) * v

    s = sum(mp.sin(u * c) * h(u, b[0]) for u, c in zip(a, C, strict=True)) / (1 + b[1] ** 2)
    t = mp.log1p(mp.exp(sum(u * c for u, c in zip(a, C, strict=True)))) * mp.sqrt(1 + b[0] ** 2 * b[1] ** 2)
    d = [mp.cosh(a[i + 1] - a[i]) ** 2 * b[i] for i in range(2)]
    return s + t + sum(d) * mp.atan2(b[0], mp.mpf(2))


def flat(p: dict[str, Any]) -> np.ndarray:
    return np.concatenate([np.asarray(p[k], float) for k in KEYS])


def partial(point: dict[str, Any], *orders: int) -> float:
    """The partial derivative with these indices, for example ``partial(p, 0, 0, 3)`` = d³/da0² db0."""
    counts = tuple(orders.count(i) for i in range(5))
    with mp.workdps(50):
        return float(mp.diff(f_exact, tuple(map(mp.mpf, flat(point).tolist())), counts))


def tensor(point: dict[str, Any], order: int) -> np.ndarray:
    """All partial derivatives of that order."""
    out = np.empty((5,) * order)
    for index in itertools.combinations_with_replacement(range(5), order):
        value = partial(point, *index)
        for i in set(itertools.permutations(index)):
            out[i] = value
    return out


GRADIENT = {id(p): tensor(p, 1) for p in (POINT, OTHER)}
HESSIAN = {id(p): tensor(p, 2) for p in (POINT, OTHER)}
THIRD = tensor(POINT, 3)


def as_matrix(tree: Any) -> np.ndarray:
    """A Hessian as a dict of dicts, put together."""
    return np.block([[np.asarray(tree[r][c]) for c in KEYS] for r in KEYS])


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found, float), expected, rtol=2e-11, atol=2e-12)


def test_the_function_is_large_enough() -> None:
    program = fg.make_program(f)(POINT)
    names = [e.primitive.name for e in program.equations]
    assert len(names) >= 20
    assert "call" in names and "reduce_sum" in names
    assert program.input_names[0] == "c0"  # the captured array


def test_value() -> None:
    close(f({k: fg.numpy.asarray(v) for k, v in POINT.items()}), float(f_exact(*flat(POINT).tolist())))


FIRST = {
    "grad": lambda: fg.grad(f)(POINT),
    "grad(jit)": lambda: fg.grad(fg.jit(f))(POINT),
    "jit(grad)": lambda: fg.jit(fg.grad(f))(POINT),
    "jit(grad(jit))": lambda: fg.jit(fg.grad(fg.jit(f)))(POINT),
    "jacrev": lambda: fg.jacrev(f)(POINT),
    "jacfwd": lambda: fg.jacfwd(f)(POINT),
    "jit(jacfwd(jit))": lambda: fg.jit(fg.jacfwd(fg.jit(f)))(POINT),
    "vjp": lambda: fg.vjp(f, POINT)[1](1.0)[0],
    "value_and_grad": lambda: fg.value_and_grad(f)(POINT)[1],
}


@pytest.mark.parametrize("name", FIRST)
def test_first_order(name: str) -> None:
    close(flat(FIRST[name]()), GRADIENT[id(POINT)])


@pytest.mark.parametrize("wrap", [lambda f: f, fg.jit], ids=["eager", "jit"])
def test_first_order_along_a_direction(wrap: Any) -> None:
    expected = GRADIENT[id(POINT)] @ flat(DIRECTION)
    value, dot = fg.jvp(wrap(f), (POINT,), (DIRECTION,))
    close(dot, expected)
    close(value, float(f_exact(*flat(POINT).tolist())))
    close(fg.linearize(wrap(f), POINT)[1](DIRECTION), expected)
    close(wrap(lambda p, v: fg.jvp(f, (p,), (v,))[1])(POINT, DIRECTION), expected)


HESSIANS = {
    "hessian": lambda f: fg.hessian(f)(POINT),
    "hessian(jit)": lambda f: fg.hessian(fg.jit(f))(POINT),
    "jit(hessian)": lambda f: fg.jit(fg.hessian(f))(POINT),
    "jacfwd(jacrev)": lambda f: fg.jacfwd(fg.jacrev(f))(POINT),
    "jacrev(jacfwd)": lambda f: fg.jacrev(fg.jacfwd(f))(POINT),
    "jacfwd(jacfwd)": lambda f: fg.jacfwd(fg.jacfwd(f))(POINT),
    "jacrev(jacrev)": lambda f: fg.jacrev(fg.jacrev(f))(POINT),
    "jacrev(grad(jit))": lambda f: fg.jacrev(fg.grad(fg.jit(f)))(POINT),
    "jacfwd(jit(grad))": lambda f: fg.jacfwd(fg.jit(fg.grad(f)))(POINT),
    "jit(jacrev(jit(jacfwd(jit))))": lambda f: fg.jit(fg.jacrev(fg.jit(fg.jacfwd(fg.jit(f)))))(POINT),
}


@pytest.mark.parametrize("name", HESSIANS)
def test_second_order(name: str) -> None:
    close(as_matrix(HESSIANS[name](f)), HESSIAN[id(POINT)])


PRODUCTS = {
    "jvp(grad)": lambda: fg.jvp(fg.grad(f), (POINT,), (DIRECTION,))[1],
    "hvp": lambda: fg.hvp(f, (POINT,), (DIRECTION,)),
    "jit(hvp)": lambda: fg.jit(lambda p, v: fg.hvp(f, (p,), (v,)))(POINT, DIRECTION),
    "vjp(grad)": lambda: fg.vjp(fg.grad(f), POINT)[1](DIRECTION)[0],
    "linearize(grad)": lambda: fg.linearize(fg.grad(f), POINT)[1](DIRECTION),
    "grad(jvp)": lambda: fg.grad(lambda p: fg.jvp(f, (p,), (DIRECTION,))[1])(POINT),
    "grad(<grad, v>)": lambda: fg.grad(lambda p: sum(np.sum(fg.grad(f)(p)[k] * DIRECTION[k]) for k in KEYS))(POINT),
    "grad(<jit(grad), v>)": lambda: fg.grad(
        lambda p: sum(np.sum(fg.jit(fg.grad(f))(p)[k] * DIRECTION[k]) for k in KEYS)
    )(POINT),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_hessian_times_vector(name: str) -> None:
    close(flat(PRODUCTS[name]()), HESSIAN[id(POINT)] @ flat(DIRECTION))


def moved(t: Any) -> dict[str, Any]:
    return {k: POINT[k] + t * DIRECTION[k] for k in KEYS}


THIRDS = {
    "grad(grad(grad))": lambda g: fg.grad(fg.grad(fg.grad(g)))(0.0),
    "grad(jit(grad(jit(grad))))": lambda g: fg.grad(fg.jit(fg.grad(fg.jit(fg.grad(g)))))(0.0),
    "jit(grad(grad(grad)))": lambda g: fg.jit(fg.grad(fg.grad(fg.grad(g))))(0.0),
    "jacfwd(jacrev(jacfwd))": lambda g: fg.jacfwd(fg.jacrev(fg.jacfwd(g)))(0.0),
    "jvp(jvp(jvp))": lambda g: fg.jvp(
        lambda t: fg.jvp(lambda t: fg.jvp(g, (t,), (1.0,))[1], (t,), (1.0,))[1], (0.0,), (1.0,)
    )[1],
    "grad(hessian)": lambda g: fg.grad(fg.hessian(g))(0.0),
    "hessian(jit(jacfwd))": lambda g: fg.hessian(fg.jit(fg.jacfwd(g)))(0.0),
}


@pytest.mark.parametrize("name", THIRDS)
def test_third_order_along_a_line_through_a_closure(name: str) -> None:
    v = flat(DIRECTION)
    close(THIRDS[name](lambda t: f(moved(t))), np.einsum("ijk,i,j,k", THIRD, v, v, v))


def test_gradient_of_a_function_of_the_hessian() -> None:
    def g(p: Any) -> Any:
        hess = fg.hessian(f)(p)
        return sum(np.sum(hess[r][c]) for r in KEYS for c in KEYS)

    close(flat(fg.grad(g)(POINT)), THIRD.sum((0, 1)))
    close(flat(fg.jit(fg.grad(g))(POINT)), THIRD.sum((0, 1)))


ROWS = {k: np.stack([POINT[k], OTHER[k], POINT[k]]) for k in KEYS}
ORDER = (POINT, OTHER, POINT)

BATCHED_FIRST = {
    "vmap(grad)": lambda: fg.vmap(fg.grad(f))(ROWS),
    "vmap(grad(jit))": lambda: fg.vmap(fg.grad(fg.jit(f)))(ROWS),
    "jit(vmap(grad))": lambda: fg.jit(fg.vmap(fg.grad(f)))(ROWS),
    "grad(sum(vmap))": lambda: fg.grad(lambda p: np.sum(fg.vmap(f)(p)))(ROWS),
    "grad(sum(vmap(jit)))": lambda: fg.grad(lambda p: np.sum(fg.vmap(fg.jit(f))(p)))(ROWS),
    "vmap(jacfwd)": lambda: fg.vmap(fg.jacfwd(f))(ROWS),
    "vmap(vjp)": lambda: fg.vmap(lambda p: fg.vjp(f, p)[1](1.0)[0])(ROWS),
}


@pytest.mark.parametrize("name", BATCHED_FIRST)
def test_first_order_of_rows(name: str) -> None:
    found = BATCHED_FIRST[name]()
    for i, p in enumerate(ORDER):
        close(flat({k: found[k][i] for k in KEYS}), GRADIENT[id(p)])


BATCHED_SECOND = {
    "jit(vmap(hessian))": lambda: fg.jit(fg.vmap(fg.hessian(f)))(ROWS),
    "vmap(hessian(jit))": lambda: fg.vmap(fg.hessian(fg.jit(f)))(ROWS),
    "vmap(jit(jacrev(jacrev)))": lambda: fg.vmap(fg.jit(fg.jacrev(fg.jacrev(f))))(ROWS),
    "vmap(jacfwd(jacfwd(jit)))": lambda: fg.vmap(fg.jacfwd(fg.jacfwd(fg.jit(f))))(ROWS),
}


@pytest.mark.parametrize("name", BATCHED_SECOND)
def test_second_order_of_rows(name: str) -> None:
    found = BATCHED_SECOND[name]()
    for i, p in enumerate(ORDER):
        close(as_matrix({r: {c: found[r][c][i] for c in KEYS} for r in KEYS}), HESSIAN[id(p)])


def test_jacobian_of_a_vmapped_function() -> None:
    found = fg.jacfwd(fg.vmap(f))(ROWS)
    for i, j in itertools.product(range(3), range(3)):
        block = flat({k: found[k][i, j] for k in KEYS})
        close(block, GRADIENT[id(ORDER[i])] if i == j else np.zeros(5))


def test_vmap_over_a_closed_over_row_inside_grad() -> None:
    def g(scale: Any) -> Any:
        rows = np.array([1.0, 2.0, 3.0])
        return np.sum(fg.vmap(lambda r: np.sin(r * scale) * scale)(rows))

    s = 0.7
    r = np.array([1.0, 2.0, 3.0])
    close(fg.grad(g)(s), np.sum(r * np.cos(r * s) * s + np.sin(r * s)))
    close(fg.grad(fg.grad(g))(s), np.sum(2 * r * np.cos(r * s) - r**2 * np.sin(r * s) * s))


def test_perturbations_are_not_confused() -> None:
    assert float(fg.grad(lambda x: x * fg.grad(lambda y: x + y)(2.0))(3.0)) == 1.0
    assert float(fg.grad(lambda x: x * fg.jvp(lambda y: x + y, (2.0,), (1.0,))[1])(3.0)) == 1.0
    assert float(fg.grad(lambda x: x * fg.jit(fg.grad(lambda y: x * y))(2.0))(3.0)) == 6.0
    assert float(fg.jvp(lambda x: x * fg.jvp(lambda y: x * y, (x,), (1.0,))[1], (3.0,), (1.0,))[1]) == 6.0
    inner = fg.vmap(lambda r: fg.grad(lambda y: x0 * y * r)(1.0))
    x0 = 5.0
    assert inner(np.array([1.0, 2.0])).tolist() == [5.0, 10.0]


def test_a_closure_over_tracers_of_two_levels_inside_jit() -> None:
    def outer(x: Any) -> Any:
        def middle(y: Any) -> Any:
            @fg.jit
            def inner(z: Any) -> Any:
                return np.sin(x * y) * z + x * y**2 * z**3

            return fg.grad(inner)(x * y)

        return fg.grad(middle)(0.5)

    def exact(x: Any) -> Any:  # middle(y) = sin(xy) + 3 x y² (xy)² = sin(xy) + 3 x³ y⁴
        y = mp.mpf("0.5")
        return x * mp.cos(x * y) + 12 * x**3 * y**3

    for g in (outer, fg.jit(outer)):
        close(g(1.3), float(exact(mp.mpf(1.3))))
        close(fg.grad(g)(1.3), float(mp.diff(exact, mp.mpf(1.3))))
        close(fg.jacfwd(fg.grad(g))(1.3), float(mp.diff(exact, mp.mpf(1.3), 2)))
