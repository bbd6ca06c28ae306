"""custom_jvp: derivatives that the user defines, in both modes, to third order, under every transform."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import Any

import mpmath as mp
import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.api.jacobian import jacfwd, jacrev
from funcgrad.core import canonical

X = np.array([0.3, -1.2, 2.5])


def twice(f: Any) -> Any:
    return fg.grad(fg.grad(f))


def thrice(f: Any) -> Any:
    return fg.grad(twice(f))


@fg.custom_jvp
def log1pexp(x: Any) -> Any:
    return np.log(1 + np.exp(x))


@log1pexp.defjvp
def log1pexp_jvp(primals: Any, tangents: Any) -> Any:
    (x,), (x_dot,) = primals, tangents
    return log1pexp(x), x_dot / (1 + np.exp(-x))


def softplus(order: int, x: float) -> float:
    return float(mp.diff(lambda t: mp.log(1 + mp.exp(t)), x, order))


DERIVATIVES: dict[str, tuple[int, Callable[[Any], Any]]] = {
    "grad": (1, fg.grad(log1pexp)),
    "jvp": (1, lambda x: fg.jvp(log1pexp, (x,), (np.ones_like(x),))[1]),
    "linearize": (1, lambda x: fg.linearize(log1pexp, x)[1](np.ones_like(x))),
    "vjp": (1, lambda x: fg.vjp(log1pexp, x)[1](np.ones_like(x))[0]),
    "grad of jit": (1, fg.grad(fg.jit(log1pexp))),
    "grad grad": (2, twice(log1pexp)),
    "jacfwd grad": (2, jacfwd(fg.grad(log1pexp))),
    "jacrev jacfwd": (2, jacrev(jacfwd(log1pexp))),
    "jacfwd jacfwd": (2, jacfwd(jacfwd(log1pexp))),
    "hessian": (2, fg.hessian(log1pexp)),
    "grad of jit of grad": (2, fg.grad(fg.jit(fg.grad(log1pexp)))),
    "hvp": (2, lambda x: fg.hvp(log1pexp, (x,), (np.ones_like(x),))),
    "grad grad grad": (3, thrice(log1pexp)),
    "jacfwd hessian": (3, jacfwd(fg.hessian(log1pexp))),
}


@pytest.mark.parametrize("wrap", ["eager", "jit", "vmap", "jit vmap", "vmap jit", "vmap vmap"])
@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_to_third_order(name: str, wrap: str) -> None:
    order, f = DERIVATIVES[name]
    expected = np.array([softplus(order, x) for x in X])
    if "vmap" not in wrap:
        f = fg.jit(f) if wrap == "jit" else f
        found: Any = [f(np.float64(x)) for x in X]
    elif wrap == "vmap vmap":
        found = fg.vmap(fg.vmap(f))(X.reshape(3, 1)).reshape(3)
    else:
        found = {"vmap": fg.vmap(f), "jit vmap": fg.jit(fg.vmap(f)), "vmap jit": fg.vmap(fg.jit(f))}[wrap](X)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_the_rule_and_not_the_code_is_differentiated() -> None:
    assert np.isnan(fg.grad(lambda x: np.log(1 + np.exp(x)))(1000.0))
    assert fg.grad(log1pexp)(1000.0) == 1.0 and fg.jit(fg.grad(log1pexp))(1000.0) == 1.0
    assert twice(log1pexp)(1000.0) == 0.0


def test_gradients_of_rows() -> None:
    expected = 1 / (1 + np.exp(-X))
    for f in (fg.vmap(log1pexp), log1pexp, fg.jit(fg.vmap(log1pexp))):
        np.testing.assert_allclose(fg.grad(lambda x, f=f: f(x).sum())(X), expected, rtol=1e-14)


def test_results_that_do_not_depend_on_rows_stay_single() -> None:
    f = fg.custom_jvp(lambda x, y: (x * y, 3 * y, 2))
    f.defjvp(lambda p, t: ((p[0] * p[1], 3 * p[1], 2), (t[0] * p[1], 30 * t[1], np.zeros((), fg.float0))))
    for jit in (lambda f: f, fg.jit):
        z, y, n = jit(fg.vmap(f, (0, None), (0, None, None)))(X, 2.0)
        assert z.tolist() == (2 * X).tolist() and y == 6.0 and n == 2
        total = lambda y: sum([v.sum() for v in fg.vmap(f, (0, None), (0, None, None))(X, y)[:2]])
        assert jit(fg.grad(total))(2.0) == 30.0
    g = fg.custom_jvp(lambda x, y: 3 * y)
    g.defjvp(lambda p, t: (3 * p[1], 30 * t[1] * p[0]))  # the tangent differs from row to row
    assert fg.vmap(g, (0, None))(X, 2.0).tolist() == [6.0] * 3
    np.testing.assert_allclose(fg.grad(lambda y: fg.vmap(g, (0, None))(X, y).sum())(2.0), 30 * X.sum(), rtol=1e-14)


def planted() -> Any:
    """x sin(y) with wrong derivatives, so that the rule is seen: 10 in x, 100 x in y."""

    @fg.custom_jvp
    def f(x: Any, y: Any) -> Any:
        return x * np.sin(y)

    @f.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        x, y = primals
        x_dot, y_dot = tangents
        return f(x, y), 10 * x_dot + 100 * x * y_dot

    return f


def test_several_arguments() -> None:
    f = planted()
    assert fg.grad(f, (0, 1))(2.0, 3.0) == (10.0, 200.0)
    assert fg.grad(f, 1)(2.0, 3.0) == 200.0
    assert fg.jvp(f, (2.0, 3.0), (1.0, 1.0))[1] == 210.0
    assert fg.hessian(f, (0, 1))(2.0, 3.0) == ((0.0, 0.0), (100.0, 0.0))  # of the rule, not symmetric
    rows = fg.grad(lambda y: fg.vmap(f, (0, None))(X, y).sum())(3.0)
    np.testing.assert_allclose(rows, 100 * X.sum())
    rows = fg.grad(lambda x: fg.vmap(f, (None, 0))(x, X).sum())(3.0)
    assert rows == 30.0


def test_keywords_and_defaults_are_resolved_to_positions() -> None:
    @fg.custom_jvp
    def f(x: Any, scale: Any = 2.0) -> Any:
        return x * scale

    f.defjvps(lambda t, out, x, scale: 7 * t, lambda t, out, x, scale: 9 * t)
    assert fg.grad(f)(3.0) == 7.0 and fg.grad(lambda s: f(scale=s, x=3.0))(1.0) == 9.0
    assert f(3.0) == 6.0 and f(x=3.0) == 6.0
    g = fg.custom_jvp(lambda x, *, k: x)
    g.defjvp(log1pexp_jvp)
    with pytest.raises(fg.errors.ArgumentError, match="keyword-only"):
        g(1.0, k=2)
    sine = fg.custom_jvp(np.sin)  # its keyword-only arguments keep their defaults
    sine.defjvp(lambda p, t: (sine(*p), 7 * t[0]))
    assert fg.grad(sine)(2.0) == 7.0 and fg.vmap(sine)(X).tolist() == np.sin(X).tolist()
    partial = fg.custom_jvp(functools.partial(lambda a, x: a * x * x, 3.0))
    partial.defjvp(lambda p, t: (partial(*p), 7 * t[0]))
    assert fg.grad(lambda x: fg.grad(partial)(x) * x)(2.0) == 7.0


def test_many_orders() -> None:
    f = fg.custom_jvp(lambda x: np.sin(x))
    f.defjvp(lambda p, t: (f(p[0]), t[0] * f(p[0] + np.pi / 2)))
    derivative: Any = f
    for order in range(6):
        np.testing.assert_allclose(derivative(0.4), np.sin(0.4 + order * np.pi / 2), rtol=1e-13)
        derivative = fg.grad(derivative)


def test_pytrees() -> None:
    @fg.custom_jvp
    def f(p: Any) -> Any:
        return {"s": p["a"] * p["b"][0], "n": (p["b"][1], np.int64(3))}

    @f.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        (p,), (t,) = primals, tangents
        assert t["i"].dtype == fg.float0
        return f(p), {"s": t["a"] * p["b"][0] + p["a"] * t["b"][0], "n": (5 * t["b"][1], None)}

    p = {"a": 2.0, "b": [3.0, np.ones(2)], "i": np.arange(2)}
    with pytest.raises(fg.errors.CustomRuleError, match=r"tree of the output.*\.n\[1\]"):
        fg.grad(lambda a: f({**p, "a": a})["s"])(2.0)

    @f.defjvp
    def fixed(primals: Any, tangents: Any) -> Any:
        (p,), (t,) = primals, tangents
        zero = np.zeros((), fg.float0)
        return f(p), {"s": t["a"] * p["b"][0] + p["a"] * t["b"][0], "n": (5 * t["b"][1], zero)}

    out = fg.grad(lambda a, b: f({**p, "a": a, "b": b})["s"], (0, 1))(2.0, p["b"])
    assert out[0] == 3.0 and out[1][0] == 2.0 and out[1][1].tolist() == [0.0, 0.0]
    assert fg.jacrev(lambda v: f({**p, "b": [3.0, v]})["n"][0])(np.ones(2)).tolist() == [[5.0, 0.0], [0.0, 5.0]]


def test_static_arguments() -> None:
    @functools.partial(fg.custom_jvp, nondiff_argnums=(0, 2))
    def apply(f: Any, x: Any, name: str) -> Any:
        return f(x)

    seen = []

    @apply.defjvp
    def rule(f: Any, name: Any, primals: Any, tangents: Any) -> Any:
        seen.append(name)
        return apply(f, primals[0], name), 3 * tangents[0] * f(primals[0])

    assert apply(np.exp, 0.0, "a") == 1.0 and not seen
    np.testing.assert_allclose(fg.grad(lambda x: apply(np.exp, x, "b"))(2.0), 3 * np.exp(2.0))
    np.testing.assert_allclose(twice(lambda x: apply(np.exp, x, "b"))(2.0), 3 * np.exp(2.0))
    assert set(seen) == {"b"}

    @functools.partial(fg.custom_jvp, nondiff_argnums=0)
    def power(n: Any, x: Any) -> Any:
        return x**n

    power.defjvp(lambda n, p, t: (power(n, p[0]), n * t[0]))
    assert fg.grad(lambda x: power(3, x))(2.0) == 3.0
    assert fg.grad(lambda x: fg.grad(lambda y: power([3][0], y) * y)(x))(2.0) == 3.0 + 3.0
    with pytest.raises(fg.errors.UnexpectedTracerError, match="argument 0 of power is in nondiff_argnums"):
        fg.grad(lambda n: power(n, 2.0))(3.0)
    with pytest.raises(fg.errors.ArgumentError, match="nondiff_argnums"):
        fg.custom_jvp(lambda x: x, nondiff_argnums="x")


def test_methods() -> None:
    class Model:
        @functools.partial(fg.custom_jvp, nondiff_argnums=(0,))
        def f(self, x: Any) -> Any:
            return x * 2

        @f.defjvp
        def _rule(self, primals: Any, tangents: Any) -> Any:
            return self.f(primals[0]), tangents[0] * 11

    m = Model()
    assert m.f(1.0) == 2.0 and fg.grad(m.f)(1.0) == 11.0


# -- what it captures


def captured(x: Any, applies_itself: bool) -> Any:
    """x² sin x, where the factor sin x is captured by the function and by its rule."""

    @fg.custom_jvp
    def f(a: Any) -> Any:
        return a * np.sin(x)

    @f.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        a, a_dot = primals[0], tangents[0]
        return (f(a) if applies_itself else a * np.sin(x)), a_dot * np.sin(x)

    return f(x * x)


EXACT = [lambda x: x * x * np.sin(x), lambda x: 2 * x * np.sin(x) + x * x * np.cos(x),
         lambda x: 2 * np.sin(x) + 4 * x * np.cos(x) - x * x * np.sin(x),
         lambda x: 6 * np.cos(x) - 6 * x * np.sin(x) - x * x * np.cos(x)]  # fmt: skip


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("applies_itself", [False, True])
def test_what_is_captured_is_differentiated(applies_itself: bool, compiled: bool) -> None:
    f: Any = functools.partial(captured, applies_itself=applies_itself)
    jit: Any = fg.jit if compiled else lambda f: f
    for order in range(4):
        derivative = f
        for _ in range(order):
            derivative = fg.grad(derivative)
        np.testing.assert_allclose(jit(derivative)(0.7), EXACT[order](0.7), rtol=1e-13)
        np.testing.assert_allclose(jit(fg.vmap(derivative))(X), EXACT[order](X), rtol=1e-13)
    np.testing.assert_allclose(jit(fg.grad(lambda x: fg.vmap(f)(x).sum()))(X), EXACT[1](X), rtol=1e-13)
    np.testing.assert_allclose(jit(jacfwd(jacfwd(f)))(0.7), EXACT[2](0.7), rtol=1e-13)


def test_what_is_captured_moves_alone() -> None:
    def outer(x: Any) -> Any:
        @fg.custom_jvp
        def f(a: Any) -> Any:
            return a * np.sin(x)

        @f.defjvp
        def rule(primals: Any, tangents: Any) -> Any:
            raise AssertionError("its argument does not move")

        return f(3.0)

    y, y_dot = fg.jvp(outer, (0.7,), (1.0,))
    np.testing.assert_allclose([y, y_dot], [3 * np.sin(0.7), 3 * np.cos(0.7)], rtol=1e-15)
    np.testing.assert_allclose(fg.jit(fg.grad(outer))(0.7), 3 * np.cos(0.7), rtol=1e-15)
    np.testing.assert_allclose(twice(outer)(0.7), -3 * np.sin(0.7), rtol=1e-15)


def test_a_rule_that_applies_itself_inside_jit_and_vmap() -> None:
    def outer(x: Any) -> Any:
        @fg.custom_jvp
        def f(a: Any) -> Any:
            return a * np.sin(x)

        @f.defjvp
        def rule(primals: Any, tangents: Any) -> Any:
            a, a_dot = primals[0], tangents[0]
            return fg.jit(f)(a), a_dot * fg.vmap(f)(np.ones(1) * a)[0] / a

        return f(x * x)

    np.testing.assert_allclose(fg.grad(outer)(0.7), EXACT[1](0.7), rtol=1e-13)
    np.testing.assert_allclose(twice(outer)(0.7), EXACT[2](0.7), rtol=1e-13)
    np.testing.assert_allclose(fg.jit(twice(outer))(0.7), EXACT[2](0.7), rtol=1e-13)


def test_captured_arrays_made_anew_by_the_rule() -> None:
    @fg.custom_jvp
    def f(x: Any) -> Any:
        return (x * np.arange(3.0)).sum()

    @f.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        return f(primals[0]), (tangents[0] * np.arange(3.0) * primals[0] * 2).sum()

    assert fg.grad(f)(2.0) == 12.0 and twice(f)(2.0) == 6.0
    assert thrice(lambda x: f(x) ** 2)(2.0) == 36 * 6 * 2.0  # f' = 6x: (f²)″ = 2 f'² + 12 f, (f²)‴ = 4·6x·6 + 72x


def test_the_value_of_an_inner_function_is_a_constant_for_the_outer() -> None:
    f = planted()
    assert fg.grad(lambda x: x * fg.grad(lambda y: f(x, y))(1.0))(2.0) == 2 * 100 * 2.0


# -- values, zeros


def test_control_flow_sees_values() -> None:
    @fg.custom_jvp
    def f(x: Any) -> Any:
        return x if x > 0 else 0 * x

    @f.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        (x,), (t,) = primals, tangents
        return (f(x), t * x * x) if x > 0 else (f(x), 0 * t)

    assert fg.grad(f)(3.0) == 9.0 and fg.grad(f)(-3.0) == 0.0
    assert twice(f)(3.0) == 6.0 and thrice(f)(3.0) == 2.0
    with pytest.raises(fg.errors.TracerBoolConversionError):
        fg.jit(fg.grad(f))(3.0)

    @f.defjvp
    def wrong(primals: Any, tangents: Any) -> Any:
        return f(primals[0]), tangents[0] if tangents[0] > 0 else -tangents[0]

    with pytest.raises(fg.errors.TracerBoolConversionError, match="while the tangents of a rule are traced"):
        fg.grad(f)(3.0)


def test_zero_tangents_annihilate() -> None:
    """d(x^y) with y constant, at x = 0: the term of y is 0 · log 0, and not computed."""

    @fg.custom_jvp
    def power(x: Any, y: Any) -> Any:
        return x**y

    @power.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        (x, y), (x_dot, y_dot) = primals, tangents
        return power(x, y), x_dot * y * x ** (y - 1) + y_dot * np.log(x) * x**y

    assert fg.grad(power)(0.0, 2.0) == 0.0 and fg.jit(fg.grad(power))(0.0, 2.0) == 0.0
    assert fg.jvp(lambda x: power(x, 3.0), (0.0,), (1.0,))[1] == 0.0
    assert np.isnan(fg.grad(power, 1)(0.0, 2.0))
    assert "log" not in [e.primitive.name for e in fg.make_program(fg.grad(power))(0.0, 2.0).equations]


def test_zero_tangents_annihilate_inside_a_call() -> None:
    power = fg.custom_jvp(lambda x, y: x**y)
    term = fg.jit(lambda x, y, x_dot, y_dot: (x_dot * y * x ** (y - 1), y_dot * np.log(x) * x**y))
    power.defjvp(lambda p, t: (power(*p), sum(fg.checkpoint(term)(*p, *t))))
    assert fg.grad(power)(0.0, 2.0) == 0.0 and fg.jit(fg.grad(power))(0.0, 2.0) == 0.0
    assert fg.jvp(lambda x: power(x, 3.0), (0.0,), (1.0,))[1] == 0.0
    np.testing.assert_allclose(fg.grad(power, 1)(2.0, 3.0), 8 * np.log(2.0), rtol=1e-14)
    assert fg.grad(power, (0, 1))(1.0, 3.0) == (3.0, 0.0)


def test_symbolic_zeros() -> None:
    seen: list[Any] = []

    @fg.custom_jvp
    def f(x: Any, y: Any, n: Any) -> Any:
        return x * y

    def rule(primals: Any, tangents: Any) -> Any:
        seen.append(tangents)
        x, y, _ = primals
        dots = [t for t in (tangents[0], tangents[1]) if not isinstance(t, fg.SymbolicZero)]
        return x * y, sum(dots) if dots else fg.SymbolicZero((2,), np.dtype(float))

    f.defjvp(rule, symbolic_zeros=True)
    x, y = np.ones(2), np.array([2.0, 3.0])
    assert fg.grad(lambda x: f(x, y, 3).sum())(x).tolist() == [1.0, 1.0]
    zero = seen[-1][1]
    assert type(zero) is fg.SymbolicZero and zero.shape == (2,) and zero.dtype == np.float64 and zero.ndim == 1
    assert type(seen[-1][2]) is fg.SymbolicZero and seen[-1][2].dtype == fg.float0
    assert fg.grad(lambda z: f(x, y, 3).sum() + z)(1.0) == 1.0
    assert fg.grad(lambda x: f(fg.stop_gradient(x), x, 3).sum())(x).tolist() == [1.0, 1.0]
    assert type(seen[-1][0]) is fg.SymbolicZero
    assert fg.jit(fg.grad(lambda x, y: f(x, y, 3).sum()))(x, y).tolist() == [1.0, 1.0]


def test_structural_zeros_pass_through_a_rule() -> None:
    double = fg.custom_jvp(lambda x: 2 * x)
    double.defjvps(lambda t, out, x: 2 * t)
    f = lambda x: np.where(x > 0, double(np.sqrt(x)), 0.0)
    assert fg.grad(f)(0.0) == 0.0 and fg.jvp(f, (0.0,), (1.0,))[1] == 0.0


def test_rules_may_use_other_functions_with_rules() -> None:
    half = fg.custom_jvp(lambda x: x / 2)
    half.defjvps(lambda t, out, x: t / 2)
    backward_half = fg.custom_vjp(lambda x: x / 2)
    backward_half.defvjp(lambda x: (x / 2, None), lambda _, ct: (ct / 2,))
    f = fg.custom_jvp(lambda x: x * x)
    f.defjvp(lambda p, t: (f(p[0]), half(4 * p[0] * t[0])))
    assert fg.grad(f)(3.0) == 6.0 and twice(f)(3.0) == 2.0 and fg.jit(twice(f))(3.0) == 2.0
    g = fg.custom_jvp(lambda x: x * x)
    g.defjvp(lambda p, t: (g(p[0]), fg.jit(backward_half)(4 * p[0] * t[0])))
    assert fg.grad(g)(3.0) == 6.0 and fg.jvp(g, (3.0,), (1.0,))[1] == 6.0


def test_a_tangent_may_come_from_a_function_with_a_backward_rule() -> None:
    m, n, k = np.random.default_rng(0).uniform(-1, 1, (3, 3, 3))
    u, v = np.array([[0.5, -1.0, 2.0], [0.25, 1.5, -0.75]])
    linear = fg.custom_vjp(lambda a, b: (m @ a + n @ b, k @ b))
    linear.defvjp(lambda a, b: (linear(a, b), None), lambda _, ct: (ct[0] @ m, ct[0] @ n + ct[1] @ k))
    f = fg.custom_jvp(lambda x, y: (m @ x**2 + n @ y, k @ y))
    f.defjvp(lambda p, t: (f(*p), linear(2 * p[0] * t[0], t[1])))
    expected = ((m * 2 * u, n), (np.zeros((3, 3)), k))
    for derivative in (fg.jacfwd, fg.jacrev):
        for g in (derivative(f, (0, 1)), fg.jit(derivative(f, (0, 1)))):
            for found, wanted in zip(g(u, v), expected, strict=True):
                np.testing.assert_allclose(found, wanted, rtol=1e-14, atol=1e-15)


def test_what_a_tangent_that_is_zero_annihilates() -> None:
    """A rule is for all tangents; of those that are none nothing is computed, in branches neither."""
    f = fg.custom_jvp(lambda x, m: m @ x)
    f.defjvp(lambda p, t: (f(*p), p[1] @ t[0] + t[1] @ p[0]))
    x, m = np.array([0.5, -2.0]), np.array([[1.0, 2.0], [3.0, 4.0]])
    along = fg.make_program(lambda x, m: fg.jvp(lambda x: f(x, m), (x,), (x,))[1])(x, m)
    assert [e.primitive.name for e in along.equations].count("dot") == 1
    assert fg.jvp(lambda x: f(x, m), (x,), (x,))[1].tolist() == (m @ x).tolist()

    def chosen(primals: Any, tangents: Any) -> Any:
        (x, y), (s, t) = primals, tangents
        return g(x, y), lax.cond(x > 0, lambda: s * y + t * x, lambda: t * 3.0 - s * 5.0)

    g = fg.custom_jvp(lambda x, y: x * y)
    g.defjvp(chosen)
    for x in (2.0, -2.0):
        wanted = (7.0, 2.0) if x > 0 else (-5.0, 3.0)
        for k in (0, 1):
            assert fg.grad(g, k)(x, 7.0) == wanted[k] == fg.jit(fg.grad(g, k))(x, 7.0)
            assert fg.jvp(lambda z, k=k, x=x: g(*((z, 7.0), (x, z))[k]), ((x, 7.0)[k],), (1.0,))[1] == wanted[k]


@pytest.mark.parametrize("rule", ["forward", "backward"])
def test_products_are_guarded_in_what_a_tangent_is_made_with(rule: str) -> None:
    """The derivative of the branch that is not taken is a structural zero, times infinity."""
    scaled: Any
    if rule == "forward":
        scaled = fg.custom_jvp(lambda c, t: c * t)
        scaled.defjvps(None, lambda t, out, c, _: c * t)
    else:
        scaled = fg.custom_vjp(lambda c, t: c * t)
        scaled.defvjp(lambda c, t: (c * t, c), lambda c, ct: (0.0, c * ct))
    f = fg.custom_jvp(np.log)
    f.defjvp(lambda p, t: (f(*p), scaled(1 / p[0], t[0])))
    g = lambda x: f(np.where(x > 0, x, 0.0))
    for derivative in (fg.grad(g), lambda x: fg.jvp(g, (x,), (1.0,))[1]):
        for x, wanted in ((-1.0, 0.0), (4.0, 0.25)):
            assert derivative(x) == fg.jit(derivative)(x) == wanted


def test_a_result_that_is_zero_has_the_tangent_that_its_rule_says() -> None:
    f = fg.custom_jvp(lambda x: (0.0, x))
    f.defjvp(lambda p, t: ((0.0, p[0]), (5 * t[0], 0.0)))
    assert fg.jvp(f, (2.0,), (3.0,)) == ((0.0, 2.0), (15.0, 0.0))
    assert fg.jacrev(f)(2.0) == fg.jit(fg.jacrev(f))(2.0) == (5.0, 0.0)


def test_what_a_function_in_a_rule_returns_beside_a_zero() -> None:
    f = fg.custom_jvp(lambda x, y: x * x * y)

    @f.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        (x, y), (s, t) = primals, tangents
        zero, half, term = fg.jit(lambda t: (np.int64(0), 0.5, x * x * t))(t)
        return f(x, y), half * x * y * s * (zero + 4) + term

    assert fg.grad(f)(3.0, 5.0) == fg.jit(fg.grad(f))(3.0, 5.0) == 30.0 and fg.grad(f, 1)(3.0, 5.0) == 9.0


# -- what is remembered


def test_the_function_alone_runs_without_differentiation() -> None:
    calls: list[str] = []

    @fg.custom_jvp
    def f(x: Any) -> Any:
        calls.append("f")
        return x * 2

    @f.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        calls.append("rule")
        return primals[0] * 2, tangents[0] * 2

    assert f(2.0) == 4.0 and calls == ["f"]
    assert fg.jit(f)(2.0) == 4.0 and fg.vmap(f)(X).tolist() == (X * 2).tolist()


def test_a_rule_that_fails_does_so_only_when_a_derivative_is_asked_for() -> None:
    @fg.custom_jvp
    def f(x: Any) -> Any:
        return x * 2

    @f.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        raise KeyError("on purpose")

    assert fg.jit(f)(2.0) == 4.0 and fg.vmap(f)(X).tolist() == (X * 2).tolist()
    for _ in range(2):
        with pytest.raises(KeyError, match="on purpose"):
            fg.grad(f)(2.0)
        with pytest.raises(KeyError, match="on purpose"):
            fg.grad(fg.jit(f))(2.0)


def test_equal_programs_are_kept_once_and_functions_of_the_user_are_not() -> None:
    def first() -> Any:
        f = fg.custom_jvp(lambda x: x * x)
        f.defjvps(lambda t, out, x: 5 * t)
        return f

    def second() -> Any:
        f = fg.custom_jvp(lambda x: x * x)
        f.defjvps(lambda t, out, x: 6 * t)
        return f

    for make, slope in ((first, 5.0), (second, 6.0), (first, 5.0), (second, 6.0)):
        f = make()
        assert fg.grad(f)(2.0) == slope and fg.grad(fg.grad(lambda x, f=f: f(x) * x))(2.0) == 2 * slope


def test_redefining_a_rule() -> None:
    f = fg.custom_jvp(lambda x: x * x)
    f.defjvps(lambda t, out, x: 5 * t)
    assert fg.grad(f)(2.0) == 5.0
    f.defjvps(lambda t, out, x: 6 * t)
    assert fg.grad(f)(2.0) == 6.0 and twice(lambda x: f(x) * x)(2.0) == 12.0


# -- errors

BAD: list[tuple[str, Callable[[Any, Any], Any], str]] = [
    ("no pair", lambda p, t: p[0], "must return a pair, the output and its tangent"),
    ("three", lambda p, t: (p[0], t[0], 1), "it returned 3 values"),
    ("tree of the output", lambda p, t: ((p[0],), t[0]), "must have the tree of the result of the function"),
    ("tree of the tangent", lambda p, t: (p[0], [t[0]]), "must have the tree of the output"),
    ("shape of the output", lambda p, t: (p[0][:2], t[0]), r"the shape of the result .* expected \(3,\), got \(2,\)"),
    ("shape of the tangent", lambda p, t: (p[0], t[0].sum()), r"the shape of the output: expected \(3,\), got \(\)"),
    ("dtype of the tangent", lambda p, t: (p[0], t[0].astype("f4")), "expected f64, got f32"),
    ("dtype of the output", lambda p, t: (p[0].astype("f4"), t[0]), "expected f64, got f32"),
    ("no array", lambda p, t: (p[0], "zero"), "is a string"),
]


@pytest.mark.parametrize(("rule", "text"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_wrong_results_of_a_rule(rule: Any, text: str) -> None:
    f = fg.custom_jvp(lambda x: x * 1.0)
    f.defjvp(rule)
    for g in (f, fg.jit(f), fg.vmap(f, in_axes=None, axis_size=2)):
        with pytest.raises(fg.errors.CustomRuleError, match=text):
            fg.grad(lambda x, g=g: g(x).sum())(X)
    assert issubclass(fg.errors.CustomRuleError, TypeError) and issubclass(fg.errors.CustomRuleError, ValueError)


def test_no_rule() -> None:
    f = fg.custom_jvp(lambda x: x)
    with pytest.raises(fg.errors.CustomRuleError, match="has no derivative rule"):
        f(1.0)
    with pytest.raises(fg.errors.UsageError):
        fg.custom_jvp(3)
    g = fg.custom_jvp(lambda x, y: x)
    g.defjvps(lambda t, out, x, y: t)
    with pytest.raises(fg.errors.CustomRuleError, match="got 1 for 2 arguments"):
        fg.grad(g)(1.0, 2.0)
    h = fg.custom_jvp(lambda n, x: x, nondiff_argnums=0)
    with pytest.raises(fg.errors.CustomRuleError, match="defjvps cannot be used with nondiff_argnums"):
        h.defjvps(None)


NONLINEAR: list[tuple[str, Callable[[Any, Any], Any]]] = [
    ("sin", lambda t, x: np.sin(t)),
    ("mul", lambda t, x: t * t * x),
    ("div", lambda t, x: x / t),
    ("select", lambda t, x: np.where(t > 0, t, 0.0)),
    ("maximum", lambda t, x: np.maximum(t, 0.0)),
    ("dot", lambda t, x: np.dot(t[None], t[None])),
]


@pytest.mark.parametrize(("name", "rule"), NONLINEAR, ids=[n[0] for n in NONLINEAR])
def test_a_rule_that_is_not_linear_is_refused_in_reverse_mode(name: str, rule: Any) -> None:
    f = fg.custom_jvp(lambda x: x * 1.0)
    f.defjvp(lambda p, t: (p[0], rule(t[0], p[0])))
    for g in (f, fg.jit(f), lambda x: fg.vmap(f)(x[None])):
        with pytest.raises(fg.errors.LinearityError, match=f"not linear in its tangents: {name} ") as caught:
            fg.grad(lambda x, g=g: g(x).sum())(np.float64(0.5))
        assert "at test_custom_jvp.py" in str(caught.value)


def test_a_tracer_that_escapes_from_a_rule_is_reported() -> None:
    kept: list[Any] = []
    f = fg.custom_jvp(lambda x: x * 1.0)

    @f.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        kept.append(tangents[0])
        return f(primals[0]), tangents[0]

    fg.grad(f)(1.0)
    with pytest.raises(fg.errors.UnexpectedTracerError):
        fnp.sin(kept[0])


@fg.custom_jvp
def cube(x: Any) -> Any:
    return x**3


cube.defjvps(lambda x_dot, out, x: 3 * x_dot * x**2)


@pytest.mark.parametrize("f", [log1pexp, cube])
def test_programs_are_kept_and_arguments_are_not(f: Any) -> None:
    def run() -> weakref.ref[Any]:
        x = np.linspace(0.0, 1.0, 50)
        fg.grad(lambda x: f(x).sum())(x)
        fg.grad(lambda x: fg.grad(lambda x: f(x).sum())(x).sum())(x)
        fg.grad(fg.jit(lambda x: f(x).sum()))(x)
        return weakref.ref(x)

    first = run()
    known = set(map(id, canonical._programs.values()))
    second = run()
    assert set(map(id, canonical._programs.values())) == known
    gc.collect()
    assert first() is None and second() is None


def _of_rule(tangent: Any) -> Any:
    @fg.custom_jvp
    def f(x: Any, y: Any) -> Any:
        return np.sin(x) * y

    @f.defjvp
    def rule(primals: Any, tangents: Any) -> Any:
        return f(*primals), tangent(*primals, *tangents)

    return f


@pytest.mark.parametrize(
    "tangent",
    [lambda x, y, dx, dy: np.cos(x) * y, lambda x, y, dx, dy: 1.0, lambda x, y, dx, dy: 0.0 * x + y],
    ids=["forgotten", "constant", "sum"],
)
@pytest.mark.parametrize("wrap", [lambda f: f, fg.jit], ids=["eager", "jit"])
def test_a_tangent_that_depends_on_no_tangent_is_an_error(tangent: Any, wrap: Any) -> None:
    f = _of_rule(tangent)
    assert wrap(f)(0.5, 2.0) == np.sin(0.5) * 2.0
    for d in (fg.grad(f), lambda x, y: fg.jvp(f, (x, y), (1.0, 1.0)), fg.grad(fg.grad(f))):
        with pytest.raises(fg.errors.CustomRuleError, match="rule returns a tangent that depends on none") as info:
            wrap(d)(0.5, 2.0)
        assert "test_custom_jvp.py" in str(info.value)


@pytest.mark.parametrize(
    "tangent",
    [
        lambda x, y, dx, dy: 0.0,
        lambda x, y, dx, dy: np.zeros(()),
        lambda x, y, dx, dy: np.zeros_like(x),
        lambda x, y, dx, dy: 0.0 * np.cos(x) + 0.0 * y,
        lambda x, y, dx, dy: np.where(x > 0, 0.0 * y, 0.0) * 0.0,
    ],
)
def test_a_tangent_may_be_zero(tangent: Any) -> None:
    f = _of_rule(tangent)
    assert fg.grad(f, (0, 1))(0.5, 2.0) == (0.0, 0.0)
    assert fg.jit(lambda x: fg.jvp(f, (x, 2.0), (1.0, 1.0))[1])(0.5) == 0.0


def test_a_rule_without_a_name_is_named_by_its_role() -> None:
    def square(x: Any) -> Any:
        return x * x

    cases = [
        (lambda p, t: p[0], "the rule of square must return a pair"),
        (lambda p, t: (p[0], None), "the tangent of the rule of square must have the tree of the output"),
        (lambda p: (p[0], p[0]), "custom_jvp: the rule of square does not take the arguments it is called with"),
    ]
    for rule, message in cases:
        f = fg.custom_jvp(square)
        f.defjvp(rule)
        with pytest.raises(fg.errors.CustomRuleError, match=message) as caught:
            fg.grad(f)(1.0)
        assert caught.value.source is not None
        assert caught.value.source.filename == __file__
        if "tangent" in message:
            assert caught.value.hint is not None and "np.zeros_like(out)" in caught.value.hint
