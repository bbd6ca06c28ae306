"""custom_vjp and custom_gradient: backward rules that the user defines, to third order, under every transform."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import lax
from funcgrad.core.evaluate import evaluate
from funcgrad.transforms.batch import batch
from funcgrad.transforms.transpose import transpose

X = np.array([0.3, -1.2, 2.5])


def twice(f: Any) -> Any:
    return fg.grad(fg.grad(f))


def thrice(f: Any) -> Any:
    return fg.grad(twice(f))


def product(fwd_applies_itself: bool) -> Any:
    """y sin x."""

    @fg.custom_vjp
    def f(x: Any, y: Any) -> Any:
        return np.sin(x) * y

    def forward(x: Any, y: Any) -> Any:
        return (f(x, y) if fwd_applies_itself else np.sin(x) * y), {"c": np.cos(x), "s": (np.sin(x), y)}

    def backward(r: Any, ct: Any) -> Any:
        s, y = r["s"]
        return r["c"] * ct * y, s * ct

    f.defvjp(forward, backward)
    return f


DERIVATIVES: dict[str, tuple[int, Callable[[Any], Callable[[Any], Any]]]] = {
    "grad": (1, fg.grad),
    "jacrev": (1, fg.jacrev),
    "vjp": (1, lambda f: lambda x: fg.vjp(f, x)[1](np.ones_like(x))[0]),
    "grad of jit": (1, lambda f: fg.grad(fg.jit(f))),
    "grad grad": (2, twice),
    "jacfwd grad": (2, lambda f: fg.jacfwd(fg.grad(f))),
    "jacrev jacrev": (2, lambda f: fg.jacrev(fg.jacrev(f))),
    "hessian": (2, fg.hessian),
    "hvp": (2, lambda f: lambda x: fg.hvp(f, (x,), (np.ones_like(x),))),
    "jvp of grad of jit": (2, lambda f: lambda x: fg.jvp(fg.grad(fg.jit(f)), (x,), (np.ones_like(x),))[1]),
    "grad of jit of grad": (2, lambda f: fg.grad(fg.jit(fg.grad(f)))),
    "grad grad grad": (3, thrice),
    "jacfwd jacfwd jacrev": (3, lambda f: fg.jacfwd(fg.hessian(f))),
}
EXACT = {1: lambda x: 3 * np.cos(x), 2: lambda x: -3 * np.sin(x), 3: lambda x: -3 * np.cos(x)}


@pytest.mark.parametrize("wrap", ["eager", "jit", "vmap", "jit vmap", "vmap jit", "vmap vmap"])
@pytest.mark.parametrize("applies_itself", [False, True])
@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_to_third_order(name: str, applies_itself: bool, wrap: str) -> None:
    order, transform = DERIVATIVES[name]
    f = product(applies_itself)
    g = transform(lambda x: f(x, 3.0))
    if "vmap" not in wrap:
        g = fg.jit(g) if wrap == "jit" else g
        found: Any = [g(np.float64(x)) for x in X]
    elif wrap == "vmap vmap":
        found = fg.vmap(fg.vmap(g))(X.reshape(3, 1)).reshape(3)
    else:
        found = {"vmap": fg.vmap(g), "jit vmap": fg.jit(fg.vmap(g)), "vmap jit": fg.vmap(fg.jit(g))}[wrap](X)
    np.testing.assert_allclose(found, EXACT[order](X), rtol=1e-13)


@pytest.mark.parametrize("inner_jit", [lambda f: f, fg.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("jit", [lambda f: f, fg.jit], ids=["eager", "jit"])
def test_rows_that_share_an_argument(jit: Any, inner_jit: Any) -> None:
    g = inner_jit(product(False))
    np.testing.assert_allclose(jit(fg.grad(lambda y: fg.vmap(g, (0, None))(X, y).sum()))(2.0), np.sin(X).sum())
    np.testing.assert_allclose(
        jit(fg.grad(lambda x: fg.vmap(g, (None, 0))(x, X).sum()))(0.5), np.cos(0.5) * X.sum(), rtol=1e-13
    )
    second = jit(fg.grad(lambda x: fg.vmap(fg.grad(g), (None, 0))(x, X).sum()))(0.5)
    np.testing.assert_allclose(second, -np.sin(0.5) * X.sum(), rtol=1e-13)
    inner = jit(fg.grad(lambda y: fg.vmap(lambda x: fg.vmap(lambda z: g(z, y) * x)(X))(X).sum()))(2.0)
    np.testing.assert_allclose(inner, np.sin(X).sum() * X.sum(), rtol=1e-13)


def test_a_backward_rule_that_is_not_linear() -> None:
    clip = fg.custom_vjp(lambda x: x)
    clip.defvjp(lambda x: (x, None), lambda _, ct: (np.clip(ct, -1.0, 1.0),))
    f = lambda x: (clip(x) * np.array([0.5, 5.0, -5.0])).sum()
    for g in (fg.grad(f), fg.jit(fg.grad(f)), fg.grad(fg.jit(f))):
        assert g(np.ones(3)).tolist() == [0.5, 1.0, -1.0]
    unit = fg.custom_vjp(lambda x: x)
    unit.defvjp(lambda x: (x, ()), lambda _, ct: (1.0 / np.sqrt(np.sum(ct * ct)) * ct,))
    g = lambda x: np.where(x > 0, unit(x), 0.0)
    expected = np.array([1.0, 0.0, 0.0])
    assert fg.jacrev(g)(np.array([2.0, -1.0, -1.0]))[0].tolist() == expected.tolist()
    back = fg.vjp(g, np.array([2.0, 2.0, -1.0]))[1]
    np.testing.assert_allclose(back(np.array([3.0, 4.0, 5.0]))[0], [0.6, 0.8, 0.0], rtol=1e-15)


def test_structural_zeros_pass_through_a_backward_rule() -> None:
    double = fg.custom_vjp(lambda x: 2 * x)
    double.defvjp(lambda x: (2 * x, None), lambda _, ct: (2 * ct,))
    assert fg.grad(lambda x: np.where(x > 0, double(np.sqrt(x)), 0.0))(0.0) == 0.0


def test_an_argument_whose_derivative_is_zero_costs_nothing() -> None:
    f = fg.custom_vjp(lambda x, y: x * y)
    f.defvjp(lambda x, y: (x * y, y), lambda y, ct: (ct * y, np.zeros(())))
    program = fg.make_program(fg.grad(lambda y: f(2.0, y)))(3.0)
    assert not [e for e in program.equations if e.primitive.name.startswith("custom")]
    assert fg.grad(lambda y: f(2.0, y))(3.0) == 0.0
    assert fg.grad(f)(2.0, 3.0) == 3.0


def test_a_backward_rule_that_is_a_constant() -> None:
    f = fg.custom_vjp(lambda x, y: x + y)
    f.defvjp(lambda x, y: (x + y, None), lambda _, ct: (3.0, ct))
    assert fg.grad(f, (0, 1))(1.0, 2.0) == fg.jit(fg.grad(f, (0, 1)))(1.0, 2.0) == (3.0, 1.0)


@pytest.mark.parametrize(
    "wrap", [fg.jit, fg.checkpoint, lambda f: lambda *a: lax.fori_loop(0, 1, lambda _, x: f(x, *a[1:]), a[0])]
)
def test_results_and_arguments_that_nothing_needs(wrap: Any) -> None:
    """The rule takes and returns them all the same."""
    f = fg.custom_vjp(lambda x, y, z: (x * y, z, y))
    f.defvjp(lambda x, y, z: ((x * y, z, y), (x, y)), lambda r, ct: (10 * ct[0] * r[1], ct[0] * r[0], 0 * ct[1]))
    g = wrap(lambda x, y, z: f(x, y, z)[0])
    for h in (fg.grad(g, (0, 1, 2)), fg.jit(fg.grad(g, (0, 1, 2)))):
        assert h(2.0, 3.0, 5.0) == (30.0, 2.0, 0.0)
    inner = lambda c: fg.grad(wrap(lambda x: x * f(c, 3.0, 5.0)[0]))(2.0)
    assert inner(2.0) == 6.0 and fg.grad(inner)(2.0) == fg.jit(fg.grad(inner))(2.0) == 30.0


def test_forward_mode_is_refused() -> None:
    f = product(False)
    y, lin = fg.linearize(f, 1.0, 2.0)
    assert y == np.sin(1.0) * 2.0
    calls: list[Callable[[], Any]] = [
        lambda: fg.jvp(f, (1.0, 2.0), (1.0, 0.0)),
        lambda: fg.jacfwd(f)(1.0, 2.0),
        lambda: lin(1.0, 1.0),
        lambda: fg.jit(lambda x: fg.jvp(f, (x, 2.0), (1.0, 0.0))[1])(1.0),
        lambda: fg.vmap(lambda x: fg.jvp(f, (x, 2.0), (1.0, 0.0))[1])(X),
        lambda: fg.jvp(fg.vmap(f, (0, None)), (X, 2.0), (X, 0.0)),
        lambda: fg.jvp(fg.jit(f), (1.0, 2.0), (1.0, 0.0)),
        lambda: fg.grad(lambda x: fg.jvp(f, (x, 2.0), (1.0, 0.0))[1])(1.0),
        lambda: fg.jacrev(fg.jacfwd(f))(1.0, 2.0),
    ]
    for call in calls:
        with pytest.raises(
            fg.errors.ForwardModeError, match=r"through f: custom_vjp has a backward rule only"
        ) as caught:
            call()
        assert "at test_custom_vjp.py" in str(caught.value)
    assert fg.jvp(lambda x: f(fg.stop_gradient(x), 2.0) * x, (1.0,), (1.0,))[1] == np.sin(1.0) * 2.0


@pytest.mark.parametrize("dims", [(0, 0), (1, 1), (1, 0), (0, None), (None, 0), (None, 1)])
def test_rows_of_a_tangent_have_rows_of_cotangents(dims: tuple[int | None, int | None]) -> None:
    """The Program of a tangent, batched and then transposed: what a tangent shared by all rows gets is their sum."""

    @fg.custom_vjp
    def f(x: Any) -> Any:
        return np.stack([x[0] * x[1], np.sin(x[0]), x[1]])

    def backward(x: Any, ct: Any) -> Any:
        return (np.stack([ct[0] * x[1] + ct[1] * np.cos(x[0]), ct[0] * x[0] + ct[2]]),)

    f.defvjp(lambda x: (f(x), x), backward)
    x, v, ct = np.array([[0.5, -1.0], [2.0, 0.25], [1.5, 3.0]]), np.ones((3, 2)), np.arange(9.0).reshape(3, 3)
    program = fg.make_program(lambda x, v: fg.jvp(f, (x,), (v,))[1])(x[0], v[0])
    batched, out_dims = batch(program, 3, dims)
    back, _ = transpose(batched, (False, True), (True,))
    place = lambda a, d: a[0] if d is None else np.moveaxis(a, 0, d)
    (found,) = evaluate(back, [place(x, dims[0]), place(ct, out_dims[0])])
    rows = [fg.vjp(f, x[0 if dims[0] is None else r])[1](ct[r])[0] for r in range(3)]
    expected = np.sum(rows, 0) if dims[1] is None else np.stack(rows, dims[1])
    np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_each_result_has_its_own_cotangent() -> None:
    @fg.custom_vjp
    def f(x: Any) -> Any:
        return x * x, np.sin(x)

    f.defvjp(lambda x: (f(x), x), lambda x, cts: (cts[0] * 2 * x + cts[1] * np.cos(x),))
    back = fg.vjp(f, 0.5)[1]
    np.testing.assert_allclose(back((3.0, 5.0))[0], 3.0 + 5.0 * np.cos(0.5), rtol=1e-15)
    rows = fg.vmap(lambda x: fg.grad(lambda x: f(x)[0] + 7 * f(x)[1])(x))(X)
    np.testing.assert_allclose(rows, 2 * X + 7 * np.cos(X), rtol=1e-15)


def test_pytrees_integers_and_none() -> None:
    @fg.custom_vjp
    def f(p: Any, n: Any, q: Any) -> Any:
        return {"a": p["w"] * n, "i": n + 1, "b": [p["b"][0] * q]}

    seen: list[Any] = []

    def backward(r: Any, ct: Any) -> Any:
        seen.append(ct)
        return {"w": ct["a"] * 10, "b": None}, None, ct["b"][0] * r

    f.defvjp(lambda p, n, q: (f(p, n, q), p["b"][0]), backward)
    p = {"w": 2.0, "b": [3.0, np.ones(2)]}
    value, back = fg.vjp(f, p, 4, 5.0)
    assert (value["a"], value["i"], value["b"][0]) == (8.0, 5, 15.0)
    zero = np.zeros((), fg.float0)
    p_bar, n_bar, q_bar = back({"a": 1.0, "i": zero, "b": [1.0]})
    assert (p_bar["w"], p_bar["b"][0], p_bar["b"][1].tolist(), q_bar) == (10.0, 0.0, [0.0, 0.0], 3.0)
    assert n_bar.dtype == fg.float0 and seen[0]["i"].dtype == fg.float0
    assert fg.grad(lambda n: f(p, 4, n)["b"][0])(5.0) == 3.0
    gradient = fg.grad(lambda p: f(p, 4, 5.0)["b"][0])(p)
    assert gradient["w"] == 0.0 and gradient["b"][0] == 0.0  # the cotangent of `a` is zero


def test_static_arguments_and_keywords() -> None:
    @functools.partial(fg.custom_vjp, nondiff_argnums=(0, 2))
    def apply(f: Any, x: Any, name: str = "none", scale: Any = 1.0) -> Any:
        return f(x) * scale

    def forward(f: Any, x: Any, name: Any, scale: Any) -> Any:
        assert name in ("none", "b")
        return f(x) * scale, (x, scale)

    def backward(f: Any, name: Any, r: Any, ct: Any) -> Any:
        assert callable(f) and isinstance(name, str)
        return 7 * ct * f(r[0]), None

    apply.defvjp(forward, backward)
    assert apply(np.exp, 0.0) == 1.0
    np.testing.assert_allclose(fg.grad(lambda x: apply(np.exp, x=x, scale=2.0, name="b"))(1.0), 7 * np.e)
    np.testing.assert_allclose(twice(lambda x: apply(np.exp, x))(1.0), 7 * np.e)
    with pytest.raises(fg.errors.UnexpectedTracerError, match="argument 2 of apply is in nondiff_argnums"):
        fg.grad(lambda x: apply(np.exp, 1.0, x))(1.0)


def captured(x: Any, applies_itself: bool) -> Any:
    """x² sin x, where the factor sin x is captured by the function and by both rules."""

    @fg.custom_vjp
    def f(a: Any) -> Any:
        return a * np.sin(x)

    f.defvjp(lambda a: (f(a) if applies_itself else a * np.sin(x), None), lambda _, ct: (ct * np.sin(x),))
    return f(x * x)


SERIES = [lambda x: x * x * np.sin(x), lambda x: 2 * x * np.sin(x) + x * x * np.cos(x),
          lambda x: 2 * np.sin(x) + 4 * x * np.cos(x) - x * x * np.sin(x),
          lambda x: 6 * np.cos(x) - 6 * x * np.sin(x) - x * x * np.cos(x)]  # fmt: skip


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("applies_itself", [False, True])
def test_what_is_captured_is_differentiated(applies_itself: bool, compiled: bool) -> None:
    f: Any = functools.partial(captured, applies_itself=applies_itself)
    jit: Any = fg.jit if compiled else lambda f: f
    derivative = f
    for order in range(4):
        np.testing.assert_allclose(jit(derivative)(0.7), SERIES[order](0.7), rtol=1e-13)
        np.testing.assert_allclose(jit(fg.vmap(derivative))(X), SERIES[order](X), rtol=1e-13)
        derivative = fg.grad(derivative)
    np.testing.assert_allclose(jit(fg.grad(lambda x: fg.vmap(f)(x).sum()))(X), SERIES[1](X), rtol=1e-13)
    np.testing.assert_allclose(jit(fg.hessian(f))(0.7), SERIES[2](0.7), rtol=1e-13)


def test_control_flow_sees_values() -> None:
    @fg.custom_vjp
    def f(x: Any) -> Any:
        return x if x > 0 else 0 * x

    f.defvjp(lambda x: (f(x), x), lambda x, ct: (ct * x * x if x > 0 else 0 * ct,))
    assert fg.grad(f)(3.0) == 9.0 and fg.grad(f)(-3.0) == 0.0
    assert twice(f)(3.0) == 6.0 and thrice(f)(3.0) == 2.0
    with pytest.raises(fg.errors.TracerBoolConversionError):
        fg.jit(fg.grad(f))(3.0)
    f.defvjp(lambda x: (x, None), lambda _, ct: (ct if ct > 0 else -ct,))
    with pytest.raises(fg.errors.TracerBoolConversionError, match="while the cotangents of a rule are traced"):
        fg.grad(f)(3.0)


def test_symbolic_zeros() -> None:
    seen: list[Any] = []

    @fg.custom_vjp
    def f(x: Any, y: Any) -> Any:
        return x * y, 3

    def forward(x: Any, y: Any) -> Any:
        seen.append((x.perturbed, y.perturbed))
        return (x.value * y.value, 3), (x.value, y.value)

    def backward(r: Any, ct: Any) -> Any:
        assert type(ct[1]) is fg.SymbolicZero and ct[1].dtype == fg.float0
        return ct[0] * r[1], fg.SymbolicZero((), np.dtype(float))

    f.defvjp(forward, backward, symbolic_zeros=True)
    assert fg.grad(lambda x: f(x, 2.0)[0])(3.0) == 2.0 and seen[-1] == (True, False)
    assert fg.grad(lambda x: f(2.0, x)[0])(3.0) == 0.0 and seen[-1] == (False, True)


def test_the_function_alone_runs_without_differentiation() -> None:
    calls: list[str] = []

    @fg.custom_vjp
    def f(x: Any) -> Any:
        calls.append("f")
        return x * 2

    f.defvjp(lambda x: (calls.append("forward"), x * 2)[::-1], lambda r, ct: (ct,))
    assert f(2.0) == 4.0 and calls == ["f"]
    assert fg.jit(f)(2.0) == 4.0 and fg.vmap(f)(X).tolist() == (X * 2).tolist()


def test_what_the_backward_rule_takes_from_the_forward_rule_is_a_residual() -> None:
    kept: list[Any] = []

    @fg.custom_vjp
    def f(x: Any) -> Any:
        return x * x

    def forward(x: Any) -> Any:
        kept[:] = [np.sin(x)]
        return x * x, None

    f.defvjp(forward, lambda _, ct: (ct * kept[0],))
    assert fg.grad(f)(2.0) == np.sin(2.0) and twice(f)(2.0) == np.cos(2.0)
    np.testing.assert_allclose(fg.jit(fg.vmap(twice(f)))(X), np.cos(X), rtol=1e-14)


# -- custom_gradient


@fg.custom_gradient
def scaled(x: Any, y: Any) -> Any:
    z = np.sin(x)
    return x * y, lambda ct: (100 * ct * z * y, ct * x)


@pytest.mark.parametrize("jit", [lambda f: f, fg.jit], ids=["eager", "jit"])
def test_custom_gradient(jit: Any) -> None:
    assert scaled(3.0, 2.0) == 6.0
    np.testing.assert_allclose(jit(fg.grad(scaled, (0, 1)))(3.0, 2.0), (200 * np.sin(3.0), 3.0), rtol=1e-14)
    np.testing.assert_allclose(jit(fg.hessian(scaled))(3.0, 2.0), 200 * np.cos(3.0), rtol=1e-14)
    np.testing.assert_allclose(jit(fg.vmap(fg.grad(scaled), (0, None)))(X, 2.0), 200 * np.sin(X), rtol=1e-14)
    np.testing.assert_allclose(jit(fg.grad(lambda y: fg.vmap(scaled, (0, None))(X, y).sum()))(2.0), X.sum(), rtol=1e-14)
    assert fg.grad(fg.custom_gradient(lambda x: (x, lambda ct: 5 * ct)))(1.0) == 5.0
    assert fg.grad(fg.custom_gradient(lambda x: (x, lambda ct: (5 * ct,))))(1.0) == 5.0
    with pytest.raises(fg.errors.CustomRuleError, match="must return a pair"):
        fg.custom_gradient(lambda x: x)(1.0)
    with pytest.raises(fg.errors.ForwardModeError):
        fg.jvp(scaled, (1.0, 2.0), (1.0, 1.0))


# -- errors

PAIR: Any = lambda x, y: (x * y, (x, y))
BACK: Any = lambda r, ct: (ct * r[1], ct * r[0])
BAD: list[tuple[str, Any, Any, str]] = [
    ("no pair", lambda x, y: x * y, BACK, "must return a pair, the output and the residuals"),
    ("tree of the output", lambda x, y: ((x * y,), (x, y)), BACK, "the tree of the result of the function"),
    ("shape of the output", lambda x, y: ((x * y)[:1], (x, y)), BACK, r"expected \(3,\), got \(1,\)"),
    ("dtype of the output", lambda x, y: ((x * y).astype("f4"), (x, y)), BACK, "expected f64, got f32"),
    ("residual", lambda x, y: (x * y, {"k": [x, "name"]}), BACK, r"residuals\.k\[1\] is a str: 'name'"),
    ("residual function", lambda x, y: (x * y, (x, np.sin)), BACK, r"residuals\[1\] is a ufunc"),
    ("no tuple", PAIR, lambda r, ct: ct, r"(?s)must return a tuple with one cotangent.*return a tuple of 2;"),
    ("number", PAIR, lambda r, ct: (ct,), r"expected 2, got 1"),
    ("tree", PAIR, lambda r, ct: (ct, [ct]), "cotangent 1 of <lambda>|cotangent 1 of f must have the tree"),
    ("shape", PAIR, lambda r, ct: (ct.sum(), ct), r"the cotangent of x must have the shape of x: expected \(3,\)"),
    ("dtype", PAIR, lambda r, ct: (ct, ct.astype("f4")), "the cotangent of y must have the dtype of y: expected f64"),
]


@pytest.mark.parametrize(("forward", "backward", "text"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_wrong_results_of_a_rule(forward: Any, backward: Any, text: str) -> None:
    @fg.custom_vjp
    def f(x: Any, y: Any) -> Any:
        return x * y

    f.defvjp(forward, backward)
    for g in (f, fg.jit(f)):
        with pytest.raises(fg.errors.CustomRuleError, match=text) as caught:
            fg.grad(lambda x, g=g: g(x, 2 * x).sum())(X)
        assert caught.value.source.text.startswith(("(", "PAIR", "BACK"))  # the rule, not the call


def test_no_rule() -> None:
    with pytest.raises(fg.errors.CustomRuleError, match="has no derivative rule"):
        fg.custom_vjp(lambda x: x)(1.0)
    with pytest.raises(fg.errors.UsageError):
        fg.custom_vjp(lambda x: x).defvjp(lambda x: (x, x), 3)


def test_rules_without_a_name_are_named_by_their_role() -> None:
    def square(x: Any) -> Any:
        return x * x

    cases = [
        (lambda x: x, lambda r, ct: (ct,), "the forward rule of square must return a pair"),
        (lambda x: (x, x), lambda r, ct: ct, "the backward rule of square must return a tuple"),
        (lambda: 1, lambda r, ct: (ct,), "custom_vjp: the forward rule of square does not take the arguments"),
        (lambda x: (x, x), lambda ct: (ct,), "custom_vjp: the backward rule of square does not take the arguments"),
    ]
    for forward, backward, message in cases:
        f = fg.custom_vjp(square)
        f.defvjp(forward, backward)
        with pytest.raises(fg.errors.CustomRuleError, match=message) as caught:
            fg.grad(f)(1.0)
        assert caught.value.source is not None
        assert caught.value.source.filename == __file__


def test_forward_mode_through_custom_gradient_says_so() -> None:
    f = fg.custom_gradient(lambda x: (x * x, lambda ct: ct * x))
    with pytest.raises(fg.errors.ForwardModeError, match="custom_gradient has a backward rule only"):
        fg.jvp(f, (1.0,), (1.0,))
