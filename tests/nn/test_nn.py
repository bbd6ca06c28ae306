"""funcgrad.nn: values and derivatives against mpmath, kinks, tails, rows that are empty."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import mpmath
import numpy as np
import pytest

import funcgrad as fg
from funcgrad import nn
from funcgrad.errors import DtypeError, ParameterError, ShapeError

mp = mpmath.mp.clone()
mp.dps = 60

ALPHA, SCALE = mp.mpf("1.6732632423543772848170429916717"), mp.mpf("1.0507009873554804934193349852946")


def mp_elu(x: Any, alpha: Any = 1, rate: Any = 1) -> Any:
    return x if x > 0 else alpha * mp.expm1(x / rate)


def mp_gelu_tanh(x: Any) -> Any:
    u = mp.sqrt(2 / mp.pi) * (x + mp.mpf(0.044715) * x**3)
    return x / (1 + mp.exp(-2 * u))


REFERENCE: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "sigmoid": (nn.sigmoid, lambda x: 1 / (1 + mp.exp(-x))),
    "log_sigmoid": (nn.log_sigmoid, lambda x: -mp.log1p(mp.exp(-x))),
    "softplus": (nn.softplus, lambda x: mp.log1p(mp.exp(x))),
    "silu": (nn.silu, lambda x: x / (1 + mp.exp(-x))),
    "gelu": (nn.gelu, mp_gelu_tanh),
    "gelu exact": (lambda x: nn.gelu(x, approximate=False), lambda x: x * mp.erfc(-x / mp.sqrt(2)) / 2),
    "mish": (nn.mish, lambda x: x * mp.tanh(mp.log1p(mp.exp(x)))),
    "elu": (nn.elu, mp_elu),
    "elu 1.5": (lambda x: nn.elu(x, 1.5), lambda x: mp_elu(x, mp.mpf(1.5))),
    "selu": (nn.selu, lambda x: SCALE * mp_elu(x, ALPHA)),
    "celu": (lambda x: nn.celu(x, 2.0), lambda x: mp_elu(x, 2, 2)),
    "soft_sign": (nn.soft_sign, lambda x: x / (1 + abs(x))),
    "squareplus": (nn.squareplus, lambda x: (x + mp.sqrt(x * x + 4)) / 2),
}
POINTS = [-30.0, -4.7, -1.3, -0.2, 0.3, 1.7, 6.1, 30.0]
POINTS_OF = {name: [*POINTS, -700.0, 700.0] for name in ("sigmoid", "log_sigmoid", "softplus", "silu")}
POINTS_OF["gelu exact"] = POINTS[1:]  # the condition number of erfc grows as x²
ELEMENTWISE = [
    nn.relu, nn.relu6, nn.leaky_relu, nn.elu, nn.selu, nn.celu, nn.sigmoid, nn.log_sigmoid, nn.softplus, nn.silu,
    nn.gelu, nn.mish, nn.soft_sign, nn.squareplus, nn.hard_tanh, nn.hard_sigmoid, nn.hard_silu,
]  # fmt: skip


def derivative(f: Callable[..., Any], order: int) -> Callable[..., Any]:
    for _ in range(order):
        f = fg.grad(f)
    return f


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("name", REFERENCE)
def test_values_and_derivatives(name: str, order: int) -> None:
    ours, reference = REFERENCE[name]
    f = derivative(ours, order)
    for x in POINTS_OF.get(name, POINTS):
        with mp.workdps(1000 if abs(x) > 100 else 60):  # 1 - exp(-700) has 304 nines
            want = mp.diff(reference, mp.mpf(x), order) if order else reference(mp.mpf(x))
            # the second derivative crosses zero, where it is a difference of terms of the size of the first
            first = mp.diff(reference, mp.mpf(x)) / (1 + abs(x)) if order == 2 else 0
            error = abs(mp.mpf(float(f(x))) - want)
            assert error <= 4e-14 * (abs(want) + abs(first)) + mp.mpf(1e-307), x


@pytest.mark.parametrize("f", ELEMENTWISE)
def test_forward_and_reverse_mode_agree(f: Callable[..., Any]) -> None:
    x = np.linspace(-5.2, 7.3, 41)
    ones = np.ones_like(x)
    forward = fg.jvp(f, (x,), (ones,))[1]
    reverse = fg.grad(lambda v: f(v).sum())(x)
    assert np.allclose(forward, reverse, rtol=1e-14, atol=0)
    np.testing.assert_allclose(fg.jit(f)(x), f(x), rtol=1e-14)  # elementary functions: within their error
    assert np.array_equal(fg.vmap(f)(x), f(x))


@pytest.mark.parametrize("f", ELEMENTWISE)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtype_and_fresh_arrays(f: Callable[..., Any], dtype: Any) -> None:
    x = np.array([[-2.0, 0.0, 1.0]], dtype)
    x.flags.writeable = False
    y = f(x)
    assert type(y) is fg.Array
    assert y.dtype == dtype
    assert y.shape == x.shape
    assert y.flags.writeable
    assert not np.may_share_memory(x, y)
    assert fg.grad(lambda v: f(v).sum())(x).dtype == dtype
    assert fg.jit(f)(x).dtype == dtype
    assert f(x[:0]).shape == (0, 3)


@pytest.mark.parametrize("f", ELEMENTWISE)
def test_python_numbers_and_lists(f: Callable[..., Any]) -> None:
    assert type(f(1.5)) is fg.Array
    assert f(1.5).dtype == np.float64
    assert float(f([1.5])[0]) == float(f(1.5))
    assert float(f(2)) == float(f(2.0))
    assert float(fg.jit(f)(1.5)) == float(f(1.5))
    assert np.isnan(float(f(nan)))


@pytest.mark.parametrize(
    ("f", "at_minus_inf", "at_inf"),
    [
        (nn.relu, 0, inf),
        (nn.relu6, 0, 6),
        (nn.leaky_relu, -inf, inf),
        (nn.elu, -1, inf),
        (nn.sigmoid, 0, 1),
        (nn.log_sigmoid, -inf, 0),
        (nn.softplus, 0, inf),
        (nn.silu, 0, inf),
        (nn.gelu, 0, inf),
        (nn.mish, 0, inf),
        (nn.hard_tanh, -1, 1),
        (nn.hard_silu, 0, inf),
    ],
)
def test_limits(f: Callable[..., Any], at_minus_inf: float, at_inf: float) -> None:
    assert f(np.array([-inf, inf])).tolist() == [at_minus_inf, at_inf]


# -- kinks


@pytest.mark.parametrize(
    ("f", "x", "slope"),
    [
        (nn.relu, 0.0, 0.0),
        (nn.relu, -0.0, 0.0),
        (nn.relu6, 0.0, 0.0),
        (nn.relu6, 6.0, 0.0),
        (nn.leaky_relu, 0.0, 1.0),
        (nn.elu, 0.0, 1.0),
        (lambda x: nn.elu(x, 0.5), 0.0, 0.5),
        (nn.celu, 0.0, 1.0),
        (nn.hard_tanh, 1.0, 1.0),
        (nn.hard_tanh, -1.0, 1.0),
        (nn.hard_sigmoid, 3.0, 0.0),
        (nn.soft_sign, 0.0, 1.0),
    ],
)
def test_the_derivative_at_a_kink(f: Callable[..., Any], x: float, slope: float) -> None:
    assert float(fg.grad(f)(x)) == slope
    assert float(fg.jvp(f, (x,), (1.0,))[1]) == slope
    assert float(fg.jit(fg.grad(f))(x)) == slope


def test_relu_is_flat_at_zero_to_every_order() -> None:
    for order in (1, 2, 3):
        assert float(derivative(nn.relu, order)(0.0)) == 0.0
        assert float(derivative(lambda x: nn.relu(x) ** 3, order)(0.0)) == 0.0
        assert float(derivative(lambda x: x * nn.relu(x), order)(0.0)) == 0.0
    assert float(derivative(lambda x: nn.relu(x) ** 3, 3)(2.0)) == 6.0


def test_elu_does_not_leak_from_the_dead_side() -> None:
    assert float(fg.grad(nn.elu)(1000.0)) == 1.0
    assert float(derivative(nn.selu, 2)(1000.0)) == 0.0


def test_slopes_can_be_learned() -> None:
    x = np.array([-2.0, 3.0])
    assert fg.grad(lambda a: nn.leaky_relu(x, a).sum())(np.array(0.1)) == -2.0
    assert np.allclose(fg.grad(lambda a: nn.elu(x, a).sum())(1.0), np.expm1(-2.0))
    assert nn.leaky_relu(x, np.array([0.5, 0.5])).tolist() == [-1.0, 3.0]


def test_relu_keeps_integers() -> None:
    assert nn.relu(np.array([-1, 2], np.int8)).dtype == np.int8
    assert nn.sigmoid(np.array([0])).dtype == np.float64


# -- softmax and its logarithm

ROWS = np.array([[1.0, 2.0, 4.0], [1000.0, 1000.0, -1000.0], [-3.0, -inf, 0.5]])


def mp_log_softmax(row: Any) -> list[Any]:
    xs = [mp.mpf(float(x)) for x in row]
    total = mp.log(mp.fsum([mp.exp(x) for x in xs]))
    return [x - total for x in xs]


@pytest.mark.parametrize("row", ROWS)
def test_softmax_values(row: Any) -> None:
    want = mp_log_softmax(row)
    assert np.allclose(nn.log_softmax(row), [float(x) for x in want], rtol=2e-16, atol=1e-16)
    assert np.allclose(nn.softmax(row), [float(mp.exp(x)) for x in want], rtol=1e-15, atol=0)
    assert np.allclose(nn.logsumexp(row), float(row[0] - want[0]), rtol=2e-16)


@pytest.mark.parametrize("row", ROWS)
def test_softmax_derivatives(row: Any) -> None:
    y = nn.softmax(row)
    jacobian = np.diag(y) - np.outer(y, y)
    for transform in (fg.jacfwd, fg.jacrev):
        assert np.allclose(transform(nn.softmax)(row), jacobian, rtol=1e-14, atol=1e-17)
        assert np.allclose(transform(nn.log_softmax)(row), np.eye(3) - y, rtol=1e-14, atol=1e-17)
    assert np.allclose(fg.hessian(nn.logsumexp)(row), jacobian, rtol=1e-14, atol=1e-17)
    # d2 softmax_i = y_i ((δij - yj)(δik - yk) - yj δjk + yj yk)
    e = np.eye(3) - y
    second = y[:, None, None] * (e[:, :, None] * e[:, None, :] - np.diag(y) + np.outer(y, y))
    assert np.allclose(fg.jacfwd(fg.jacrev(nn.softmax))(row), second, rtol=1e-13, atol=1e-16)


def test_softmax_of_nothing() -> None:
    empty = np.full(3, -inf)
    for x in (np.stack([empty, ROWS[0]]), empty):
        assert nn.softmax(x)[..., :].reshape(-1, 3)[0].tolist() == [0.0, 0.0, 0.0]
        assert nn.log_softmax(x).reshape(-1, 3)[0].tolist() == [-inf] * 3
        assert np.isfinite(fg.jacrev(nn.softmax)(x)).all()
        assert np.isfinite(fg.jacfwd(nn.log_softmax)(x)).all()
    assert not np.any(fg.jacrev(nn.softmax)(empty))
    assert nn.softmax(np.zeros((2, 0))).shape == (2, 0)
    assert nn.logsumexp(empty) == -inf
    assert not np.any(fg.grad(nn.logsumexp)(empty))


def test_softmax_with_a_mask() -> None:
    x = np.array([[1.0, nan, 2.0], [5.0, 6.0, inf]])
    mask = np.array([[True, False, True], [True, True, False]])
    y = nn.softmax(x, where=mask)
    assert np.allclose(y, [np.insert(nn.softmax([1.0, 2.0]), 1, 0), np.append(nn.softmax([5.0, 6.0]), 0)])
    assert np.array_equal(nn.log_softmax(x, where=mask) == -inf, ~mask)
    g = fg.grad(lambda v: (nn.softmax(v, where=mask) ** 2).sum())(x)
    assert np.isfinite(g).all()
    assert not g[~mask].any()
    assert not nn.softmax(x, where=np.zeros(3, bool)).any()


@pytest.mark.parametrize("f", [nn.softmax, nn.log_softmax])
def test_axes_of_softmax(f: Callable[..., Any]) -> None:
    x = np.random.default_rng(0).normal(size=(3, 4, 5))
    assert np.allclose(f(x, axis=0), np.moveaxis(f(np.moveaxis(x, 0, -1)), -1, 0))
    assert np.allclose(f(x, axis=(0, 2))[:, 1], f(x[:, 1].ravel()).reshape(3, 5))
    assert np.allclose(f(x, axis=None), f(x.ravel()).reshape(x.shape))
    assert np.allclose(fg.vmap(f)(x), f(x))
    assert f(x.astype(np.float32)).dtype == np.float32
    assert f([1, 2]).dtype == np.float64
    assert np.allclose(fg.jit(f)(x), f(x), rtol=1e-14)


# -- the rest


def test_one_hot() -> None:
    assert nn.one_hot([2, 0, 5, -1], 3).tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert nn.one_hot(1, 2).tolist() == [0.0, 1.0]
    assert nn.one_hot([1], 2, dtype=np.int8).dtype == np.int8
    x = np.arange(6).reshape(2, 3)
    assert nn.one_hot(x, 7).shape == (2, 3, 7)
    assert nn.one_hot(x, 7, axis=0).shape == (7, 2, 3)
    assert np.array_equal(np.moveaxis(nn.one_hot(x, 7, axis=1), 1, -1), nn.one_hot(x, 7))
    assert np.array_equal(fg.jit(lambda v: nn.one_hot(v, 7))(x), nn.one_hot(x, 7))
    assert np.array_equal(fg.vmap(lambda v: nn.one_hot(v, 7, axis=0))(x), nn.one_hot(x, 7, axis=1))
    assert nn.one_hot([0], 0).shape == (1, 0)
    with pytest.raises(DtypeError, match="one_hot takes integers"):
        nn.one_hot(1.0, 3)
    with pytest.raises(ParameterError, match="num_classes"):
        nn.one_hot(1, -1)


def test_standardize() -> None:
    x = np.random.default_rng(1).normal(3.0, 2.0, (4, 100))
    y = nn.standardize(x, epsilon=0.0)
    assert np.allclose(y.mean(axis=1), 0, atol=1e-14)
    assert np.allclose(y.std(axis=1), 1)
    assert np.allclose(nn.standardize(x, mean=1.0, variance=4.0, epsilon=0.0), (x - 1) / 2)
    mask = np.arange(100) < 50
    assert np.allclose(nn.standardize(x, where=mask, epsilon=0.0)[:, :50], nn.standardize(x[:, :50], epsilon=0.0))
    assert nn.standardize(x.astype(np.float32)).dtype == np.float32


def test_glu() -> None:
    x = np.random.default_rng(2).normal(size=(4, 6))
    assert np.allclose(nn.glu(x), x[:, :3] / (1 + np.exp(-x[:, 3:])))
    assert np.allclose(nn.glu(x, axis=0), x[:2] / (1 + np.exp(-x[2:])))
    with pytest.raises(ShapeError, match="odd length 3"):
        nn.glu(np.ones(3))


def test_aliases() -> None:
    assert nn.swish is nn.silu
    assert nn.hard_swish is nn.hard_silu
    assert all([getattr(nn, name).__doc__ for name in nn.__all__])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_squareplus_does_not_overflow(dtype: str) -> None:
    largest = np.finfo(dtype).max
    for x in (np.sqrt(largest) * 10, largest / 4, inf):
        x = np.dtype(dtype).type(x)
        for b in (4.0, 0.5):
            value, slope = fg.value_and_grad(nn.squareplus)(x, b)
            assert value == x and slope == 1
            value, slope = fg.value_and_grad(nn.squareplus)(-x, b)
            assert 0 <= value <= b / x and 0 <= slope < 1 / np.sqrt(largest)
            assert fg.grad(nn.squareplus, 1)(x, b) < 1 / np.sqrt(largest)
            assert fg.jit(fg.grad(fg.grad(nn.squareplus)))(x, b) == 0
