"""Rules with planted faults: each is found, and the message names the element, mode, operation and line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.errors import CheckError, GradientError
from funcgrad.testing import check_custom_rule, check_grads, check_jit, check_vmap

R = np.random.default_rng(0)
V = np.array([0.5, 1.25, -0.75])
W = np.array([1.5, -0.5, 2.0])
M = np.array([[0.5, -1.25, 0.3], [0.75, 1.5, -0.6], [0.2, 0.9, 1.1]])
stop = fg.stop_gradient
np_like = fg.numpy


def forward_rule(f: Callable[..., Any], rule: Callable[..., Any]) -> Any:
    """A function with a rule for its tangent: ``rule(primals, tangents) -> tangent``."""
    g = fg.custom_jvp(f)
    g.defjvp(lambda primals, tangents: (g(*primals), rule(primals, tangents)))
    return g


def backward_rule(f: Callable[..., Any], rule: Callable[..., Any]) -> Any:
    """A function with a backward rule: ``rule(primals, cotangent) -> cotangents``."""
    g = fg.custom_vjp(f)
    g.defvjp(lambda *x: (f(*x), x), rule)
    return g


def op(f: Callable[..., Any], jvp: Any = None, linear: Any = None, batch: Any = None, vjp: Any = None) -> Any:
    """An operation of the user's, whose result has the type of its first argument."""
    g = fg.extend.op(f)
    g.def_shape(lambda *types: types[0])
    for rules, define in ((jvp, g.def_jvp), (linear, g.def_linear)):
        if rules is not None:
            define(*rules)
    if batch is not None:
        g.def_batch(batch)
    if vjp is not None:
        g.def_vjp(vjp)
    return g


def sine(x: Any) -> Any:
    return np.sin(x)


def product(x: Any, y: Any) -> Any:
    return x * y


def matvec(m: Any, x: Any) -> Any:
    return m @ x


def running(m: Any) -> Any:
    return np.cumsum(m, axis=0)


wrong_sine = forward_rule(sine, lambda p, t: -np.cos(p[0]) * t[0])
wrong_tail = op(lambda x: np.cos(x), jvp=[lambda d, y, x: np.sin(x) * d])  # cos, with the sign of its derivative lost

# name: function, arguments, parts of the message
FAULTS: dict[str, tuple[Any, tuple[Any, ...], tuple[str, ...]]] = {
    # -- forward rules
    "factor 2": (
        forward_rule(sine, lambda p, t: 2 * np.cos(p[0]) * t[0]), (V,),
        ("fwd, order 1", "result[", "in x[", "culprit: custom_jvp of sine, rule f (test_planted_faults.py:"),
    ),
    "wrong sign": (wrong_sine, (V,), ("fwd, order 1", "custom_jvp of sine", "in x[")),
    "dropped term": (
        forward_rule(product, lambda p, t: t[0] * p[1]), (V, W), ("fwd, order 1", "in y[", " is 0, but should be ")
    ),
    "swapped arguments": (
        forward_rule(product, lambda p, t: t[0] * p[0] + t[1] * p[1]), (V, W), ("fwd, order 1", "custom_jvp of product")
    ),
    "other power": (
        forward_rule(lambda x: x**3, lambda p, t: 3 * p[0] * t[0]), (V,), ("fwd, order 1", "custom_jvp of f")
    ),
    "transposed matrix": (
        forward_rule(matvec, lambda p, t: t[0] @ p[1] + p[0].T @ t[1]), (M, V), ("fwd, order 1", "in x[")
    ),
    "off-by-one axis": (
        forward_rule(running, lambda p, t: np.cumsum(t[0], axis=1)), (M,), ("fwd, order 1", "in m[", "of running")
    ),
    "reversed": (
        forward_rule(lambda x: np.cumsum(x), lambda p, t: np.cumsum(t[0][::-1])[::-1]), (V,), ("fwd, order 1", "in x[")
    ),
    "mean for sum": (
        forward_rule(lambda x: np.sum(x), lambda p, t: np.mean(t[0])), (V,), ("fwd, order 1", "of result in x[")
    ),
    "one element only": (
        forward_rule(sine, lambda p, t: np_like.asarray(np.cos(p[0]) * t[0]).at[2].set(0.0)), (V,),
        ("the derivative of result[2] in x[2] is 0, but should be 0.73168886",),
    ),
    "a small error": (
        forward_rule(sine, lambda p, t: np.cos(p[0]) * t[0] * (1 + 1e-8)), (V,), ("fwd, order 1", "of sine")
    ),
    # -- backward rules
    "factor 2, backward": (
        backward_rule(sine, lambda p, ct: (2 * np.cos(p[0]) * ct,)), (V,),
        ("rev, order 1", "result[", "in x[", "culprit: custom_vjp of sine, rules f ("),
    ),
    "wrong sign, backward": (backward_rule(sine, lambda p, ct: (-np.cos(p[0]) * ct,)), (V,), ("rev, order 1", "sine")),
    "swapped cotangents": (
        backward_rule(product, lambda p, ct: (ct * p[0], ct * p[1])), (V, W), ("rev, order 1", "custom_vjp of product")
    ),
    "forgotten argument": (
        backward_rule(product, lambda p, ct: (ct * p[1], None)), (V, W), ("rev, order 1", "in y[", "is 0, but should")
    ),
    "dropped factor": (
        backward_rule(lambda x, y: x * y**2, lambda p, ct: (ct * p[1] ** 2, ct * p[0] * p[1])), (V, W),
        ("rev, order 1", "in y["),
    ),
    "transposed matrix, backward": (
        backward_rule(matvec, lambda p, ct: (np.outer(ct, p[1]), p[0] @ ct)), (M, V), ("rev, order 1", "in x[")
    ),
    "cotangent forgotten": (
        backward_rule(sine, lambda p, ct: (np.cos(p[0]) + 0 * ct,)), (V,), ("rev, order 1", "custom_vjp of sine")
    ),
    "rolled": (backward_rule(sine, lambda p, ct: (np.roll(np.cos(p[0]) * ct, 1),)), (V,), ("rev, order 1", "in x[")),
    "not summed over rows": (
        backward_rule(lambda m, b: m + b, lambda p, ct: (ct, ct[0])), (M, V), ("rev, order 1", "in b[", "custom_vjp")
    ),
    # -- operations
    "factor, op": (
        op(sine, jvp=[lambda d, y, x: 3 * np.cos(x) * d]), (V,), ("fwd, order 1", "culprit: extend.sine", "in x[")
    ),
    "wrong transpose only": (
        op(lambda x: 2 * x, linear=[lambda ct, x: 3 * ct]), (V,), ("rev, order 1", "its own reverse derivative")
    ),
    "turned transpose only": (
        op(lambda x: np.roll(x, 1), linear=[lambda ct, x: np.roll(ct, 1)]), (V,), ("rev, order 1", "reverse derivative")
    ),
    "wrong backward rule, op": (
        op(sine, vjp=lambda ct, y, x: ct * y), (V,), ("rev, order 1", "culprit: extend.sine", "in x[")
    ),
    # -- the second derivative only
    "second, stopped": (
        forward_rule(sine, lambda p, t: stop(np.cos(p[0])) * t[0]), (V,),
        ("fwd over fwd, order 2", "the tangent of result", "culprit: stop_gradient", "stop(np.cos(p[0]))"),
    ),
    "second, stopped, backward": (
        backward_rule(sine, lambda p, ct: (ct * stop(np.cos(p[0])),)), (V,),
        ("over rev, order 2", "the cotangent of x", "culprit: stop_gradient"),
    ),
    "second, wrong inside": (
        forward_rule(sine, lambda p, t: wrong_tail(p[0]) * t[0]), (V,),
        ("fwd over fwd, order 2", "culprit: extend.f", "wrong_tail(p[0])"),
    ),
    "second, wrong inside, backward": (
        backward_rule(sine, lambda p, ct: (ct * wrong_tail(p[0]),)), (V,),
        ("over rev, order 2", "culprit: extend.f", "wrong_tail(p[0])"),
    ),
    # -- in the middle of something
    "in a tree": (
        lambda params, x: np.sum(wrong_sine(x @ params["w"]) * params["b"]), ({"w": M, "b": V}, W),
        ("in params['w'][", "culprit: custom_jvp of sine", 'np.sum(wrong_sine(x @ params["w"])'),
    ),
    "in jit": (fg.jit(lambda x: np.exp(wrong_sine(x) + 1)), (V,), ("custom_jvp of sine", "np.exp(wrong_sine(x) + 1)")),
    "in scan": (
        lambda x: fg.lax.scan(lambda c, xi: (wrong_sine(c) * xi, None), 0.3, x)[0], (V,),
        ("(trip 0)", "custom_jvp of sine", "wrong_sine(c) * xi"),
    ),
    "in while": (
        lambda a: fg.lax.while_loop(lambda c: c < 9.0, lambda c: 0.1 * wrong_sine(c) + 2 * a + c, 1.2), (1.7,),
        ("(trip 0)", "custom_jvp of sine", "0.1 * wrong_sine(c)"),
    ),
    "in one branch": (
        lambda x: fg.lax.cond(x[0] > 0, lambda x: wrong_sine(x), np.cos, x), (V,), ("branch", "custom_jvp of sine"),
    ),
    "in checkpoint": (fg.checkpoint(lambda x: wrong_sine(x) ** 2), (V,), ("of sine", "wrong_sine(x) ** 2")),
    "in scan in jit": (
        fg.jit(lambda x: fg.lax.scan(lambda c, xi: (c + fg.checkpoint(wrong_sine)(xi), None), 0.3, x)[0]), (V,),
        ("(trip 0)", "custom_jvp of sine", "fg.checkpoint(wrong_sine)(xi)"),
    ),
    "a solver of another equation": (
        fg.implicit.root(lambda x, a: x**2 - 2 * a, lambda a: np.sqrt(a)), (4.0,), ("order 1", "in a", "culprit: "),
    ),
    "a derivative stopped": (
        lambda x: x * stop(x), (3.0,), ("the derivative of result in x is 3, but should be 6", "culprit: stop_gradient")
    ),
    "float32": (
        forward_rule(sine, lambda p, t: np.float32(1.001) * np.cos(p[0]) * t[0]), (np.float32(V),), ("of sine",)
    ),
    "complex": (
        forward_rule(lambda z: z**2, lambda p, t: 3 * p[0] * t[0]), (1 + 2j,), ("custom_jvp of f", "in z"),
    ),
}  # fmt: skip


def line_of(message: str) -> str:
    """The line of source that a message shows."""
    found = re.search(r"^  at \S+:\d+   (.*)$", message, re.MULTILINE)
    assert found, message
    return found[1]


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_and_named(name: str) -> None:
    f, args, parts = FAULTS[name]
    with pytest.raises(GradientError) as caught:
        check_grads(f, args)
    message = str(caught.value)
    for part in parts:
        assert part in message, message
    assert line_of(message)
    assert len(message.splitlines()) <= 8


def test_the_numbers_are_right() -> None:
    with pytest.raises(GradientError) as caught:
        check_grads(lambda p: np.sum(wrong_sine(p["w"]) * W), ({"w": V},))
    found = re.search(r"p\['w'\]\[(\d)\] is (\S+), but should be (\S+) ± (\S+)\n", str(caught.value))
    assert found
    i = int(found[1])
    exact = W[i] * np.cos(V[i])
    assert abs(float(found[2]) + exact) < 1e-9 and abs(float(found[3]) - exact) < 1e-9 and float(found[4]) < 1e-10


# -- rules of vmap


def doubled(size: int, args: Any, axes: Any) -> Any:
    return 2 * np.sin(args[0]), axes[0]


def turned(size: int, args: Any, axes: Any) -> Any:
    return np.sin(np.flip(args[0], axes[0])), axes[0]


def in_front(size: int, args: Any, axes: Any) -> Any:
    return np.cumsum(args[0], axis=1), 0  # wrong for rows along another axis


BATCHED = {
    "factor": (op(sine, jvp=[lambda d, y, x: np.cos(x) * d], batch=doubled), M, 0),
    "order": (op(sine, jvp=[lambda d, y, x: np.cos(x) * d], batch=turned), M, 0),
    "axis": (op(lambda x: np.cumsum(x), linear=[lambda ct, x: np.cumsum(ct[::-1])[::-1]], batch=in_front), M, 1),
}


@pytest.mark.parametrize("name", BATCHED)
def test_a_wrong_batch_rule_is_found(name: str) -> None:
    f, rows, axis = BATCHED[name]
    with pytest.raises(CheckError) as caught:
        check_vmap(lambda x: np.exp(f(x)), (rows,), in_axes=axis)
    message = str(caught.value)
    assert "vmap of f: result[" in message and "culprit: extend." in message
    assert line_of(message) == "check_vmap(lambda x: np.exp(f(x)), (rows,), in_axes=axis)"


def test_a_wrong_batch_rule_in_a_loop_is_found() -> None:
    f = BATCHED["factor"][0]
    step = lambda c, x: (f(c) + x, None)
    with pytest.raises(CheckError, match=r"culprit: extend\.sine") as caught:
        check_vmap(lambda x: fg.lax.scan(step, 0.3, x)[0], (M,))
    assert line_of(str(caught.value)) == "step = lambda c, x: (f(c) + x, None)"


def test_a_wrong_batch_rule_of_the_derivative_is_found() -> None:
    slope = op(lambda x: np.cos(x), jvp=[lambda d, y, x: -np.sin(x) * d], batch=lambda n, a, d: (a[0], d[0]))
    f = forward_rule(sine, lambda p, t: slope(p[0]) * t[0])
    with pytest.raises(CheckError, match=r"the tangent of result\[") as caught:
        check_vmap(f, (M,))
    assert "culprit: extend.f" in str(caught.value) and "slope(p[0])" in line_of(str(caught.value))


def test_check_vmap_passes() -> None:
    check_vmap(lambda p, x: np.sum(np.tanh(p["w"] @ x)), ({"w": M}, M), in_axes=(None, 0))
    check_vmap(lambda x: {"a": x * np.cumsum(x), "n": 3}, (M,), in_axes=1)
    check_vmap(lambda a: fg.lax.while_loop(lambda c: c < 9.0, lambda c: c * a, 1.2), (np.array([1.5, 2.0, 3.0]),))
    check_vmap(lambda x, i: x[i], (M, np.array([0, 2, 1])))
    check_vmap(np.sin, (np.float32(M),))
    check_vmap(op(sine, batch=lambda n, a, d: (np.sin(a[0]), d[0])), (M,), derivatives=False)
    with pytest.raises(fg.errors.ArgumentError, match="no argument has rows"):
        check_vmap(np.sin, (M,), in_axes=None)
    for x, axis in ((M, 5), (1.0, 0)):
        with pytest.raises(fg.errors.AxisError, match=f"axis {axis} is out of range"):
            check_vmap(np.sin, (x,), in_axes=axis)


# -- compiled code


def test_check_jit_passes() -> None:
    check_jit(lambda p, x: {"a": np.tanh(x @ p["w"]), "b": x + 1, "n": 3}, ({"w": M}, M))
    check_jit(lambda x, *, n: x * n, (V,), kwargs={"n": 2})
    check_jit(fg.grad(lambda x: np.sum(np.exp(x) ** 2)), (V,))
    check_jit(lambda x: 1 / x, (0.0,))


@pytest.mark.filterwarnings("error")
def test_values_that_are_not_finite_do_not_warn() -> None:
    check_jit(lambda x: np.log(x) / x, (np.array([0.0, 1.0, -1.0]),))
    check_vmap(lambda x: np.log(x) / x, (np.array([0.0, 1.0, -1.0]),))
    with pytest.raises(fg.errors.KinkError):
        check_grads(lambda x: np.log(x) / x, (np.array([0.0, 1.0, -1.0]),))


def test_what_is_no_array_is_said() -> None:
    with pytest.raises(fg.errors.ArgumentError, match=r"(?s)check_jit: a\['k'\] is a string, 'b', .*hint: close over"):
        check_jit(lambda x, a: x, (V, {"k": "b"}))
    with pytest.raises(fg.errors.ArgumentError, match="check_jit: mode is a string"):
        check_jit(lambda x, mode: x, (V,), kwargs={"mode": "a"})
    with pytest.raises(fg.errors.ArgumentError, match="check_vmap: a is a string"):
        check_vmap(lambda x, a: x, (M, "a"), in_axes=(0, None))
    with pytest.raises(fg.errors.ArgumentError, match="there are no rows to compare"):
        check_vmap(np.sin, (np.zeros((0, 3)),))
    for check in (check_grads, check_jit, check_vmap):
        with pytest.raises(fg.errors.ArgumentError, match="sin has 1 argument, got 2"):
            check(np.sin, (V, V))
    with pytest.raises(fg.errors.ArgumentError, match="check_vmap: seed is an integer, 0 or more, got 'a'"):
        check_vmap(np.sin, (V,), seed="a")
    with pytest.raises(fg.errors.ArgumentError, match="check_jit: ulps is a number, 0 or more, got -1"):
        check_jit(np.sin, (V,), ulps=-1)


def test_wrong_compiled_code_is_found() -> None:
    from funcgrad.core.primitive import registry
    from funcgrad.ops.elementwise import elementwise
    from funcgrad.ops.op import REAL, SMOOTH, apply
    from funcgrad.ops.scalar import of_floats

    def square(x: Any) -> Any:
        """The square."""
        return apply(planted, x)

    planted = elementwise(
        square, name="planted_square", numpy=None, dtypes=REAL, evaluate=lambda x: x * x, domain=SMOOTH
    )
    planted.emit = of_floats(lambda b, x: b.add(x, x))
    try:
        with pytest.raises(CheckError) as caught:
            check_jit(lambda x: {"y": square(x * 2) + 1}, (np.array([1.0, 1.5]),))
    finally:
        del registry["planted_square"]
    message = str(caught.value)
    assert "jit of f: result['y'][1] is 7.0, but 10.0 without jit; 512 units in the last place of the lar" in message
    assert "culprit: planted_square: result 0 alone[1] is 6.0, but 9.0 evaluated" in message
    assert line_of(message) == "return apply(planted, x)"


def test_ulps() -> None:
    from funcgrad.testing.compiled import difference

    x = np.array([1.0, 2.0])
    assert difference(x, x, "y", 0) is None
    assert difference(np.array([np.nan, -0.0]), np.array([np.nan, 0.0]), "y", 0) is None
    assert difference(x * (1 + 2e-16), x, "y", 0) == "y[0] is 1.0000000000000002, but 1.0"
    assert difference(x * (1 + 2e-16), x, "y", 1) is None
    assert difference(x, np.float32(x), "y", 1) == "y is float64 (2,), but float32 (2,)"
    assert difference(np.array([1, 2]), np.array([1, 3]), "y", 1) == "y[1] is 2, but 3"


# -- functions with rules


def test_right_rules_pass() -> None:
    check_custom_rule(forward_rule(sine, lambda p, t: np.cos(p[0]) * t[0]), (V,))
    check_custom_rule(backward_rule(product, lambda p, ct: (ct * p[1], ct * p[0])), (V, W))
    check_custom_rule(op(sine, jvp=[lambda d, y, x: np.cos(x) * d]), (V,))
    check_custom_rule(op(lambda x: 2 * x, linear=[lambda ct, x: 2 * ct]), (V,))
    with pytest.raises(fg.errors.ArgumentError, match=r"custom_vjp, custom_gradient or extend\.op made, got "):
        check_custom_rule(np.sin, (V,))
    with pytest.raises(fg.errors.ArgumentError, match="check_custom_rule: product gets no argument of floating"):
        check_custom_rule(backward_rule(product, lambda p, ct: (ct * p[1], ct * p[0])), (1, 2))
    with pytest.raises(fg.errors.ArgumentError, match="check_custom_rule: order is 1 or more"):
        check_custom_rule(op(sine, jvp=[lambda d, y, x: np.cos(x) * d]), (V,), order=0)


def test_arguments_without_a_rule_are_constants() -> None:
    scaled = lambda x, c: c @ x  # linear in either
    check_custom_rule(op(scaled, linear=[lambda ct, x, c: c.T @ ct, None]), (V, M))
    check_custom_rule(op(scaled, jvp=[lambda d, y, x, c: c @ d, None]), (V, M))
    check_custom_rule(op(lambda c, x: c * x, linear=[None, lambda ct, c, x: c * ct]), (V, W))
    wrong = op(lambda c, x: c * x, linear=[None, lambda ct, c, x: 2 * c * ct])
    with pytest.raises(GradientError, match=r"rev, order 1: the derivative of result\[\d\] in x\[\d\] is"):
        check_custom_rule(wrong, (V, W))


def test_at_a_kink_no_rule_is_blamed() -> None:
    relu = fg.custom_jvp(lambda x: np.maximum(x, 0.0))
    relu.defjvps(lambda x_dot, y, x: np.where(x > 0, 1.0, 0.0) * x_dot)
    check_custom_rule(relu, (1.0,))
    for x in (0.0, np.array([1.0, 0.0])):
        with pytest.raises(fg.errors.KinkError, match="a kink of maximum") as caught:
            check_custom_rule(relu, (x,))
        assert caught.value.culprit is None and caught.value.hint.endswith("check another point")


def survival(x: Any) -> Any:
    return np.exp(-x)


def survival_jvp(x_dot: Any, y: Any, x: Any) -> Any:
    return y * x_dot


def test_rules_are_at_the_same_line_for_all_checks() -> None:
    f = fg.custom_jvp(survival)
    f.defjvps(survival_jvp)
    line = survival_jvp.__code__.co_firstlineno
    for check in (check_grads, check_custom_rule):
        with pytest.raises(CheckError, match=rf"rule \w+ \(test_planted_faults\.py:{line}\)"):
            check(f, (1.0,))
    g = backward_rule(sine, half_back)
    line = half_back.__code__.co_firstlineno
    for check in (check_grads, check_custom_rule):
        with pytest.raises(CheckError, match=rf"half_back \(test_planted_faults\.py:{line}\)"):
            check(g, (V,))


def slow_sine_jvp(primals: Any, tangents: Any) -> Any:
    return np.sin(primals[0]) + 1e-6, np.cos(primals[0]) * tangents[0]


def test_another_value_is_found() -> None:
    f = fg.custom_jvp(sine)
    f.defjvp(slow_sine_jvp)
    with pytest.raises(CheckError) as caught:
        check_custom_rule(f, (V,))
    message = str(caught.value)
    assert "sine: under a derivative result[" in message
    assert "custom_jvp of sine, rule slow_sine_jvp (test_planted_faults.py:" in message
    assert line_of(message) == "def slow_sine_jvp(primals: Any, tangents: Any) -> Any:"


def half_back(p: Any, ct: Any) -> Any:
    return (np.cos(p[0]) * ct / 2,)


def test_another_derivative_is_found() -> None:
    with pytest.raises(CheckError) as caught:
        check_custom_rule(backward_rule(sine, half_back), (V,))
    message = str(caught.value)
    assert "sine: by the rule the cotangent of x[" in message and "but by the function without it" in message
    assert "half_back (test_planted_faults.py:" in message
    assert line_of(message) == "def half_back(p: Any, ct: Any) -> Any:"


def test_a_second_derivative_is_found() -> None:
    f = forward_rule(sine, lambda p, t: stop(np.cos(p[0])) * t[0])
    with pytest.raises(GradientError) as caught:
        check_custom_rule(f, (V,))
    assert "fwd over fwd, order 2" in str(caught.value) and "stop_gradient" in str(caught.value)


def test_a_batch_rule_is_found() -> None:
    with pytest.raises(CheckError) as caught:
        check_custom_rule(BATCHED["factor"][0], (V,))
    message = str(caught.value)
    assert "extend.op of sine, rules def_jvp (" in message and "def_batch (test_planted_faults.py:" in message
    assert line_of(message) == "def doubled(size: int, args: Any, axes: Any) -> Any:"


@fg.custom_vjp
def bad_square(x: Any) -> Any:
    return x * x


bad_square.defvjp(lambda x: (x * x, x), lambda x, ct: (3 * x * ct,))


@fg.extend.op
def weighted(x: Any, w: Any) -> Any:
    return 3 * x * w


weighted.def_shape(lambda x, w: x)
weighted.def_linear(lambda ct, x, w: 3 * ct * w, None)


def log_sum(x: Any) -> Any:
    top = fg.stop_gradient(np.max(x))
    return top + np.log(np.sum(np.exp(bad_square(x) - top)))


@pytest.mark.parametrize(
    ("f", "args"),
    [
        (log_sum, (np.array([0.5, 1.0, 2.0]),)),
        (fg.jit(log_sum), (np.array([0.5, 1.0, 2.0]),)),
        (lambda x: np.sum(bad_square(fg.nn.softmax(x))), (np.array([0.5, 1.0, 2.0]),)),
        (lambda x, w: weighted(x, fg.stop_gradient(w)) * bad_square(x), (2.0, 3.0)),
    ],
)
def test_what_is_declared_to_have_no_derivative_is_innocent(f: Any, args: tuple[Any, ...]) -> None:
    with pytest.raises(GradientError, match="culprit: custom_vjp of bad_square"):
        check_grads(f, args, order=1)


def test_what_is_declared_is_named_where_nothing_else_is_wrong() -> None:
    with pytest.raises(GradientError, match=r"culprit: extend.weighted: its own forward .* by declaration, where"):
        check_grads(lambda x, w: weighted(x, w), (2.0, 3.0), order=1)
    with pytest.raises(GradientError, match=r"culprit: stop_gradient: its own forward derivative is 0 by declaration"):
        check_grads(fg.jit(lambda x: x * fg.stop_gradient(x)), (2.0,), order=1)
