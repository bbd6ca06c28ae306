"""Ops of users: the value by NumPy, every rule against a closed form, and errors that name the op."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import errors, extend, lax
from funcgrad.core.primitive import registry

X = np.array([0.5, -1.25, 2.0])
ROWS = np.arange(6.0).reshape(2, 3) - 2.5


def make(function: Callable[..., Any], shape: Callable[..., Any]) -> extend.Op:
    made = extend.op(function)
    made.def_shape(shape)
    return made


def cube_op() -> extend.Op:
    cube = make(lambda x: x * x * x, lambda x: x)
    cube.def_jvp(lambda x_dot, y, x: 3.0 * x**2 * x_dot)
    return cube


def test_a_value_and_its_derivatives_of_every_order() -> None:
    cube = cube_op()
    np.testing.assert_array_equal(cube(X), X * X * X)
    np.testing.assert_array_equal(fg.jit(lambda x: cube(x) + 1.0)(X), X * X * X + 1.0)
    for wrap in (lambda f: f, fg.jit):
        assert wrap(fg.grad(cube))(2.0) == 12.0
        assert wrap(fg.grad(fg.grad(cube)))(2.0) == 12.0
        assert wrap(fg.grad(fg.grad(fg.grad(cube))))(2.0) == 6.0
    np.testing.assert_array_equal(fg.jvp(cube, (X,), (np.ones(3),))[1], 3 * X**2)


def test_vmap_is_row_by_row_without_a_rule() -> None:
    shapes = []

    def value(x: Any) -> Any:
        shapes.append(x.shape)
        return np.cumsum(x)

    running = make(value, lambda x: x)
    for f in (fg.vmap(running), fg.jit(fg.vmap(running))):
        np.testing.assert_array_equal(f(ROWS), np.cumsum(ROWS, axis=1))
    assert set(shapes) == {(3,)}
    np.testing.assert_array_equal(fg.vmap(running, in_axes=1)(ROWS), np.cumsum(ROWS.T, axis=1))
    np.testing.assert_array_equal(fg.vmap(fg.vmap(cube_op()))(ROWS), ROWS**3)
    assert fg.vmap(running)(np.empty((0, 3))).shape == (0, 3)
    np.testing.assert_allclose(fg.jit(fg.vmap(fg.grad(lambda x: np.sum(cube_op()(x)))))(ROWS), 3 * ROWS**2, rtol=1e-15)


def test_a_batch_rule_is_called_once_for_all_rows() -> None:
    shapes = []

    def value(x: Any, y: Any) -> Any:
        shapes.append((x.shape, y.shape))
        return x + y

    def rule(size: int, args: Any, axes: Any) -> Any:
        assert axes == (1, None)
        return add(args[0].T, np.broadcast_to(args[1], (size, 2))), 0

    add = make(value, lambda x, y: x)
    add.def_batch(rule)
    found = fg.jit(fg.vmap(add, in_axes=(1, None)))(ROWS, 1.0 + np.arange(2.0))
    np.testing.assert_array_equal(found, ROWS.T + (1.0 + np.arange(2.0)))
    assert set(shapes) == {((3, 2), (3, 2))}


def test_a_linear_op_has_its_tangent_and_its_transpose() -> None:
    total = make(lambda x, *, scale: scale * x.sum(), lambda x, scale: fg.ShapeDtypeStruct((), x.dtype))
    total.def_linear(lambda ct, x, scale: np.broadcast_to(scale * ct, (3,)))
    assert total(X, scale=2.0) == 2.5
    for wrap in (lambda f: f, fg.jit):
        np.testing.assert_array_equal(wrap(fg.grad(lambda x: total(x * x, scale=2.0)))(X), 4 * X)
        assert wrap(lambda x: fg.jvp(lambda v: total(v, scale=3.0), (x,), (x,))[1])(X) == 3.75
    np.testing.assert_array_equal(fg.hessian(lambda x: total(x * x, scale=1.0))(X), 2 * np.eye(3))


def test_a_product_is_linear_in_each_argument() -> None:
    mul = make(lambda x, y: x * y, lambda x, y: x)
    mul.def_jvp(lambda x_dot, out, x, y: mul(x_dot, y), lambda y_dot, out, x, y: mul(x, y_dot))
    mul.def_transpose(lambda ct, x, y: mul(ct, y), lambda ct, x, y: mul(x, ct))
    assert fg.grad(lambda x, y: mul(x, y), argnums=(0, 1))(3.0, 5.0) == (5.0, 3.0)
    assert fg.jit(fg.grad(fg.grad(lambda x: mul(mul(x, x), x))))(2.0) == 12.0


def test_a_vjp_serves_reverse_mode_only() -> None:
    norm = make(lambda x, k: k * np.sqrt(x @ x), lambda x, k: k)
    norm.def_vjp(lambda ct, y, x, k: (ct * k**2 * x / y, ct * y / k))
    expected = (2.0 * X / np.sqrt(X @ X), np.sqrt(X @ X))
    for wrap in (lambda f: f, fg.jit):
        for found, want in zip(wrap(fg.grad(norm, argnums=(0, 1)))(X, 2.0), expected, strict=True):
            np.testing.assert_allclose(found, want, rtol=4e-16)
    rows = fg.jit(fg.vmap(fg.grad(norm), in_axes=(0, None)))(ROWS, 2.0)
    np.testing.assert_allclose(rows, 2 * ROWS / np.linalg.norm(ROWS, axis=1)[:, None], rtol=1e-15)
    with pytest.raises(errors.ForwardModeError, match=norm.name):
        fg.jvp(norm, (X, 2.0), (X, 0.0))


def test_several_results_also_of_integers() -> None:
    split = make(lambda x: (np.abs(x), (x > 0).astype(np.int64)), lambda x: (x, fg.ShapeDtypeStruct(x.shape, int)))
    split.def_jvp(lambda x_dot, out, x: (np.sign(x) * x_dot, None))
    size, sign = fg.jit(split)(X)
    np.testing.assert_array_equal(size, np.abs(X))
    np.testing.assert_array_equal(sign, [1, 0, 1])
    np.testing.assert_array_equal(fg.grad(lambda x: np.sum(split(x)[0] ** 2))(X), 2 * X)
    by_vjp = make(lambda x: (2.0 * x, 3.0 * x), lambda x: (x, x))
    by_vjp.def_vjp(lambda cts, ys, x: 2.0 * cts[0] + 3.0 * cts[1])
    np.testing.assert_array_equal(fg.grad(lambda x: np.sum(by_vjp(x)[1]))(X), [3.0, 3.0, 3.0])


def test_in_loops_and_branches() -> None:
    cube = cube_op()
    f = fg.jit(lambda x: lax.fori_loop(0, 2, lambda i, v: cube(v), x))
    assert f(2.0) == 512.0
    assert fg.grad(f)(2.0) == 9 * 2.0**8
    assert fg.jit(lambda x: lax.cond(x > 0, cube, lambda v: v, x))(-2.0) == -2.0


def test_the_function_gets_copies_and_gives_copies() -> None:
    kept: list[Any] = []
    same = np.ones(3)

    def value(x: Any) -> Any:
        kept.append(x)
        x += 1.0
        return same

    strange = make(value, lambda x: x)
    x = np.zeros(3)
    for f in (strange, fg.jit(lambda v: strange(v * 1.0) + 0.0)):
        out = f(x)
        assert not np.shares_memory(out, same) and not np.shares_memory(x, kept[-1])
        assert kept[-1].flags.writeable and type(kept[-1]) is np.ndarray
    np.testing.assert_array_equal(x, np.zeros(3))
    returned = make(lambda x: x, lambda x: x)
    y = np.ones(3)
    assert not np.shares_memory(returned(y), y)


def test_names_may_repeat_and_are_not_listed() -> None:
    before = dict(registry)

    def sin(x: Any) -> Any:
        return 2.0 * x

    first, second = make(sin, lambda x: x), make(lambda x: 3.0 * x, lambda x: x)
    second_too = make(sin, lambda x: x)
    assert (fg.jit(first)(1.0), fg.jit(second)(1.0), second_too(1.0), np.sin(0.0)) == (2.0, 3.0, 2.0, 0.0)
    assert registry == before
    assert "= extend.sin " in str(fg.make_program(first)(1.0))


def test_a_rule_that_is_defined_again_is_used() -> None:
    op = cube_op()
    assert fg.grad(op)(2.0) == 12.0
    op.def_jvp(lambda x_dot, y, x: 5.0 * x_dot)
    assert fg.grad(op)(2.0) == 5.0
    op.def_vjp(lambda ct, y, x: 7.0 * ct)
    assert fg.grad(op)(2.0) == fg.jit(fg.grad(op))(2.0) == 7.0


# -- errors


def bare(x: Any) -> Any:
    return x


def test_a_missing_rule_names_the_op() -> None:
    with pytest.raises(errors.CustomRuleError, match=r"bare: it has no shape rule: define bare\.def_shape"):
        extend.op(bare)(1.0)
    op = make(bare, lambda x: x)
    with pytest.raises(errors.RuleError, match=r"bare: it has no derivative: define bare\.def_jvp"):
        fg.grad(op)(1.0)
    op.def_jvp(lambda x_dot, y, x: op(x_dot))
    with pytest.raises(errors.LinearityError, match=r"not linear in its tangents: extend\.bare"):
        fg.grad(op)(1.0)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (lambda x_dot, y, x: np.sum(x_dot), "bare: the jvp rule of argument 0 must have the shape of the result"),
        (lambda x_dot, y, x: x_dot.astype("float32"), "bare: the jvp rule of argument 0 must have the dtype"),
        (lambda x_dot, y, x: x_dot * X, "bare: the jvp rule of argument 0 uses an array that is none of its arguments"),
        (lambda x_dot, y, x: np.zeros(3), "bare: the jvp rule of argument 0 does not depend on the arguments"),
    ],
)
def test_a_jvp_rule_that_returns_something_else(rule: Any, message: str) -> None:
    op = make(bare, lambda x: x)
    op.def_jvp(rule)
    with pytest.raises(errors.CustomRuleError, match=message):
        fg.grad(lambda x: np.sum(op(x)))(X)


def test_other_rules_that_return_something_else() -> None:
    op = make(lambda x, y: x, lambda x, y: x)
    op.def_jvp(lambda x_dot, out, x, y: x_dot)
    with pytest.raises(errors.CustomRuleError, match="def_jvp has 1 rules, one per argument, and was called with 2"):
        fg.grad(op)(1.0, 2.0)
    op.def_vjp(lambda ct, out, x, y: ct)
    with pytest.raises(errors.CustomRuleError, match="one cotangent per argument: expected 2, got 1"):
        fg.grad(op)(1.0, 2.0)
    op.def_batch(lambda size, args, axes: args[0])
    with pytest.raises(errors.CustomRuleError, match="the result of the batch rule is a pair"):
        fg.vmap(op)(X, X)
    op.def_batch(lambda size, args, axes: (args[0], 1))
    with pytest.raises(errors.CustomRuleError, match="along an axis of it, or None; got 1"):
        fg.vmap(op)(X, X)


def test_a_value_of_another_type() -> None:
    with pytest.raises(errors.CallbackError, match=r"extend.bare returns f64\[3\] as result 0, declared is f64\[\]"):
        make(bare, lambda x: fg.ShapeDtypeStruct((), float))(X)
    two = make(bare, lambda x: (x, x))
    with pytest.raises(errors.CustomRuleError, match="bare: the result is a tuple of 2"):
        fg.jit(two)(1.0)


def test_arguments_and_parameters() -> None:
    op = make(lambda x, *, k: x, lambda x, k: x)
    with pytest.raises(errors.ParameterError, match="parameter 'k' is not hashable: list"):
        op(1.0, k=[1])
    with pytest.raises(errors.ArgumentError, match="takes one rule per argument"):
        op.def_jvp()
    with pytest.raises(errors.FuncgradError, match="argument 0"):
        op("x", k=1)
    raising = make(lambda x: math.sqrt(x), lambda x: x)
    with pytest.raises(ValueError, match=r"math domain|nonnegative"):
        fg.jit(raising)(-1.0)


def test_a_jvp_rule_that_forgets_its_tangent_is_an_error() -> None:
    @extend.op
    def sine(x: Any) -> Any:
        return np.sin(x)

    sine.def_shape(lambda x: x)
    sine.def_jvp(lambda x_dot, y, x: np.cos(x))
    for d in (fg.grad(sine), lambda x: fg.jvp(sine, (x,), (1.0,))):
        with pytest.raises(fg.errors.CustomRuleError, match="sine: the jvp rule of argument 0 returns a tangent that"):
            d(0.5)
    sine.def_jvp(lambda x_dot, y, x: 0.0 * np.cos(x))
    assert fg.grad(sine)(0.5) == 0.0
    sine.def_jvp(lambda x_dot, y, x: np.cos(x) * x_dot)
    assert fg.grad(sine)(0.5) == np.cos(0.5)


def scaled(**rules: Any) -> extend.Op:
    @extend.op
    def half(x: Any, *, k: float = 0.5) -> Any:
        return k * x

    half.def_shape(lambda x: x)
    for name, rule in rules.items():
        getattr(half, name)(rule)
    return half


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"def_jvp": lambda t, y, x: 0.5}, "the jvp rule of argument 0 returns a tangent that depends on none of"),
        ({"def_jvp": lambda t, y, x: 0.5 * x}, "the jvp rule of argument 0 returns a tangent that depends on none of"),
        ({"def_jvp": lambda t, y, x: None}, "the jvp rule of argument 0 returns None"),
        ({"def_vjp": lambda ct, y, x: None}, "the vjp rule returns None"),
        ({"def_linear": lambda ct, x: None}, "the transpose rule of argument 0 returns None"),
        ({"def_linear": lambda ct, x: 0.5}, "the transpose rule of argument 0 returns a cotangent that depends on"),
        ({"def_jvp": lambda t, x: t}, "the jvp rule of argument 0 does not take the arguments it is called with"),
        ({"def_vjp": lambda ct: ct}, "the vjp rule does not take the arguments it is called with"),
        ({"def_linear": lambda ct: ct}, "the transpose rule of argument 0 does not take the arguments"),
        ({"def_shape": lambda: 1}, "the shape rule does not take the arguments it is called with"),
    ],
)
@pytest.mark.parametrize("wrap", [lambda f: f, fg.jit])
def test_a_mistake_in_a_rule_is_no_silent_zero(rules: dict[str, Any], message: str, wrap: Any) -> None:
    half = scaled(**rules)
    for d in (fg.grad(half), fg.grad(lambda x: 7 * half(x))):
        with pytest.raises(errors.CustomRuleError, match=f"half: {message}") as caught:
            wrap(d)(3.0)
        assert caught.value.source is not None
        assert caught.value.source.filename == __file__


def test_none_for_one_argument_and_a_zero_number_are_zeros() -> None:
    assert fg.grad(scaled(def_vjp=lambda ct, y, x: (None,)))(3.0) == 0.0
    assert fg.grad(scaled(def_jvp=lambda t, y, x: 0.0))(3.0) == 0.0
    assert fg.grad(scaled(def_linear=lambda ct, x: 0.0))(3.0) == 0.0
    assert fg.grad(scaled(def_linear=lambda ct, x: 0.5 * ct))(3.0) == 0.5


def test_a_batch_rule_that_does_not_take_its_arguments() -> None:
    with pytest.raises(errors.CustomRuleError, match="half: the batch rule does not take the arguments"):
        fg.vmap(scaled(def_batch=lambda size, args: args))(X)


def test_a_rule_that_asks_for_a_default_gets_it() -> None:
    half = scaled(
        def_shape=lambda x, k: x, def_jvp=lambda t, y, x, k: k * t, def_batch=lambda n, xs, axes: (xs[0] / 2, 0)
    )
    assert half(3.0) == 1.5
    assert half(3.0, k=2.0) == 6.0
    assert fg.grad(half)(3.0) == 0.5
    assert fg.jit(fg.grad(lambda x: half(x, k=2.0)))(3.0) == 2.0
    np.testing.assert_array_equal(fg.vmap(half)(X), X / 2)
    half.def_jvp(lambda t, y, x: t)
    with pytest.raises(errors.CustomRuleError, match=r"jvp rule of argument 0 .*unexpected keyword argument 'k'"):
        fg.grad(lambda x: half(x, k=2.0))(3.0)


def test_a_call_with_other_arguments_names_the_op() -> None:
    half = scaled()
    with pytest.raises(errors.ArgumentError, match=r"half: got an unexpected keyword argument 'j'") as caught:
        half(1.0, j=2)
    assert caught.value.hint == "half(x, *, k=0.5)"
    with pytest.raises(errors.ArgumentError, match="half: missing a required argument: 'x'"):
        half()


def test_forward_mode_through_a_vjp_rule_names_its_remedy() -> None:
    half = scaled(def_vjp=lambda ct, y, x: (ct / 2,))
    with pytest.raises(errors.ForwardModeError, match="def_vjp has a backward rule only") as caught:
        fg.jvp(half, (1.0,), (1.0,))
    assert "define def_jvp in its place" in str(caught.value)
