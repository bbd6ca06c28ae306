"""funcgrad.optim: against formulas, against NumPy, inside jit, grad and vmap."""

from __future__ import annotations

from collections.abc import Callable
from math import cos, pi
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import optim, tree
from funcgrad.errors import ArgumentError, ParameterError, TreeError

PARAMS = {"w": np.array([[1.0, -2.0], [0.5, 3.0]]), "b": np.array([0.1, -0.2]), "none": None}
SCALES = {"w": np.array([[1.0, 2.0], [3.0, 4.0]]), "b": np.array([5.0, 6.0]), "none": None}

OPTIMIZERS: dict[str, Callable[[Any], optim.GradientTransformation]] = {
    "sgd": optim.sgd,
    "momentum": lambda rate: optim.sgd(rate, momentum=0.9),
    "nesterov": lambda rate: optim.sgd(rate, momentum=0.9, nesterov=True),
    "adam": optim.adam,
    "adamw": lambda rate: optim.adamw(rate, weight_decay=0.01),
    "clipped": lambda rate: optim.chain(optim.clip_by_global_norm(1.0), optim.clip(0.5), optim.adam(rate)),
}


def loss(p: Any) -> Any:
    """A quadratic bowl with its minimum at 0."""
    return sum(np.sum(SCALES[k] * p[k] ** 2) for k in ("w", "b")) / 2


def run(optimizer: optim.GradientTransformation, params: Any, steps: int, jit: bool = False) -> Any:
    def step(params: Any, state: Any) -> Any:
        updates, state = optimizer.update(fg.grad(loss)(params), state, params)
        return optim.apply_updates(params, updates), state

    step = fg.jit(step) if jit else step
    state = optimizer.init(params)
    for _ in range(steps):
        params, state = step(params, state)
    return params, state


def reference(name: str, rate: Callable[[int], float], p: Any, scales: Any, steps: int) -> Any:
    """The same in plain NumPy, for one leaf."""
    t = m = v = np.zeros_like(p)
    for i in range(steps):
        g = scales * p
        if name == "sgd":
            u = g
        elif name in ("momentum", "nesterov"):
            t = g + 0.9 * t
            u = g + 0.9 * t if name == "nesterov" else t
        else:
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            u = m / (1 - 0.9 ** (i + 1)) / (np.sqrt(v / (1 - 0.999 ** (i + 1))) + 1e-8)
            u = u + 0.01 * p if name == "adamw" else u
        p = p - rate(i) * u
    return p


# -- whole optimizers


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("name", ["sgd", "momentum", "nesterov", "adam", "adamw"])
def test_twenty_steps(name: str, jit: bool) -> None:
    schedule = optim.linear_schedule(0.1, 0.01, 15)
    for rate in (0.05, schedule):
        found, _ = run(OPTIMIZERS[name](rate), PARAMS, 20, jit)
        for k in ("w", "b"):
            want = reference(
                name, (lambda i: float(schedule(i))) if callable(rate) else lambda i: 0.05, PARAMS[k], SCALES[k], 20
            )
            assert np.allclose(found[k], want, rtol=1e-12, atol=1e-14)
        assert found["none"] is None


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_convergence(name: str) -> None:
    found, _ = run(OPTIMIZERS[name](optim.cosine_decay_schedule(0.1, 300)), PARAMS, 300, jit=True)
    assert float(loss(found)) < 1e-6 * float(loss(PARAMS))


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("rate", [0.1, np.float64(0.1), optim.constant_schedule(0.1)])
@pytest.mark.parametrize("jit", [False, True])
def test_float32_stays_float32(name: str, rate: Any, jit: bool) -> None:
    params = {"w": np.ones((2, 2), np.float32), "b": np.ones(2)}
    found, state = run(OPTIMIZERS[name](rate), params, 2, jit)
    assert found["w"].dtype == np.float32
    assert found["b"].dtype == np.float64
    moments = [leaf for path, leaf in tree.leaves_with_path(state) if tree.keystr(path).endswith("['w']")]
    assert all([m.dtype == np.float32 for m in moments])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_trace_serves_every_step(name: str) -> None:
    optimizer = OPTIMIZERS[name](optim.exponential_decay(0.1, 10, 0.5))
    traces = 0

    @fg.jit
    def step(params: Any, state: Any) -> Any:
        nonlocal traces
        traces += 1
        updates, state = optimizer.update(fg.grad(loss)(params), state, params)
        return optim.apply_updates(params, updates), state

    params, state = tree.map(np.asarray, PARAMS), optimizer.init(PARAMS)
    for _ in range(3):
        params, state = step(params, state)
    assert traces == 1
    assert all([isinstance(x, np.ndarray) for x in tree.leaves(state)])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_nothing_is_changed_in_place(name: str) -> None:
    params = tree.map(np.copy, PARAMS)
    optimizer = OPTIMIZERS[name](0.1)
    state = optimizer.init(params)
    gradient = fg.grad(loss)(params)
    _, state1 = optimizer.update(gradient, state, params)
    before = tree.map(np.copy, (gradient, state1, params))
    updates, _ = optimizer.update(gradient, state1, params)
    optim.apply_updates(params, updates)
    assert tree.all(tree.map(np.array_equal, (gradient, state1, params), before))


# -- first steps, in closed form


def test_first_step_of_adam_is_the_sign_of_the_gradient() -> None:
    g = np.array([3.0, -1e-4, 0.0, 2e5])
    optimizer = optim.adam(0.01, eps=1e-8)
    updates, state = optimizer.update(g, optimizer.init(g))
    assert np.allclose(updates, -0.01 * g / (np.abs(g) + 1e-8), rtol=1e-14, atol=0)
    assert int(state[0].count) == 1
    assert np.allclose(state[0].mu, 0.1 * g, rtol=1e-15)
    assert np.allclose(state[0].nu, 0.001 * g * g, rtol=1e-15)


def test_adam_with_a_constant_gradient_keeps_its_pace() -> None:
    optimizer = optim.adam(0.01)
    state = optimizer.init(0.0)
    for _ in range(50):
        updates, state = optimizer.update(5.0, state)
        assert np.isclose(float(updates), -0.01, rtol=1e-7)


def test_first_steps_of_momentum() -> None:
    plain, nesterov = optim.trace(0.5), optim.trace(0.5, nesterov=True)
    assert [float(x) for x in plain_steps(plain, 1.0, 4)] == [1.0, 1.5, 1.75, 1.875]
    assert [float(x) for x in plain_steps(nesterov, 1.0, 4)] == [1.5, 1.75, 1.875, 1.9375]


def plain_steps(transformation: optim.GradientTransformation, g: Any, steps: int) -> list[Any]:
    state = transformation.init(g)
    out = []
    for _ in range(steps):
        updates, state = transformation.update(g, state)
        out.append(updates)
    return out


def test_decoupled_weight_decay() -> None:
    p = {"w": np.array([2.0]), "b": np.array([4.0])}
    zero = tree.map(np.zeros_like, p)
    optimizer = optim.adamw(0.1, weight_decay=0.5)
    updates, _ = optimizer.update(zero, optimizer.init(p), p)
    assert (updates["w"].tolist(), updates["b"].tolist()) == ([-0.1], [-0.2])
    for mask in ({"w": True, "b": False}, lambda p: tree.map_with_path(lambda path, x: path[0].key == "w", p)):
        optimizer = optim.adamw(0.1, weight_decay=0.5, mask=mask)
        updates, _ = optimizer.update(zero, optimizer.init(p), p)
        assert (updates["w"].tolist(), updates["b"].tolist()) == ([-0.1], [0.0])
    with pytest.raises(ArgumentError, match="needs the parameters"):
        optimizer.update(zero, optimizer.init(p))


# -- parts


def test_clip() -> None:
    g = {"a": np.array([-3.0, 0.5]), "b": 2.0}
    updates, state = optim.clip(1.0).update(g, optim.clip(1.0).init(g))
    assert updates["a"].tolist() == [-1.0, 0.5]
    assert float(updates["b"]) == 1.0
    assert state == optim.EmptyState()


def test_global_norm_and_clipping_by_it() -> None:
    g = {"a": np.array([3.0, 0.0]), "b": np.array([[4.0]], np.float32)}
    assert float(optim.global_norm(g)) == 5.0
    clipper = optim.clip_by_global_norm(1.0)
    updates, _ = clipper.update(g, clipper.init(g))
    assert np.allclose(updates["a"], [0.6, 0.0])
    assert updates["b"].dtype == np.float32
    assert float(optim.global_norm(updates)) == pytest.approx(1.0, rel=1e-7)
    small = tree.map(lambda x: x / 10, g)
    assert tree.all(tree.map(np.array_equal, clipper.update(small, clipper.init(small))[0], small))
    zero = tree.map(np.zeros_like, g)
    assert not any([x.any() for x in tree.leaves(clipper.update(zero, clipper.init(zero))[0])])
    assert not any([x.any() for x in tree.leaves(fg.grad(optim.global_norm)(zero))])
    assert float(optim.global_norm([])) == 0.0


def test_chain_scale_and_identity() -> None:
    both = optim.chain(optim.scale(2.0), optim.identity(), optim.scale(-3))
    updates, state = both.update({"a": np.ones(2)}, both.init({"a": np.ones(2)}))
    assert updates["a"].tolist() == [-6.0, -6.0]
    assert len(state) == 3
    up = optim.scale_by_learning_rate(0.5, flip_sign=False)
    assert float(up.update(4.0, up.init(1.0))[0]) == 2.0
    with pytest.raises(ArgumentError, match="chain takes gradient transformations"):
        optim.chain(optim.adam(0.1), 0.5)
    with pytest.raises(ArgumentError, match="the state has 1 parts"):
        both.update(1.0, (optim.EmptyState(),))


def test_apply_updates() -> None:
    params = {"w": np.ones(2, np.float32), "frozen": np.array([7.0]), "s": 1.0}
    new = optim.apply_updates(params, {"w": np.full(2, 0.5), "frozen": None, "s": -1.0})
    assert new["w"].dtype == np.float32
    assert new["w"].tolist() == [1.5, 1.5]
    assert new["frozen"] is params["frozen"]
    assert float(new["s"]) == 0.0
    with pytest.raises(TreeError, match="different structures"):
        optim.apply_updates(params, {"w": 1.0})


# -- schedules


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (optim.constant_schedule(0.3), {0: 0.3, 100: 0.3}),
        (optim.linear_schedule(1.0, 3.0, 4, 2), {0: 1.0, 2: 1.0, 3: 1.5, 6: 3.0, 9: 3.0}),
        (optim.polynomial_schedule(1.0, 0.0, 2, 4), {0: 1.0, 2: 0.25, 4: 0.0, 5: 0.0}),
        (optim.exponential_decay(1.0, 2, 0.25), {0: 1.0, 1: 0.5, 2: 0.25, 4: 0.0625}),
        (optim.exponential_decay(1.0, 2, 0.25, transition_begin=1), {0: 1.0, 1: 1.0, 2: 0.5}),
        (optim.exponential_decay(1.0, 2, 0.25, staircase=True), {1: 1.0, 2: 0.25, 3: 0.25}),
        (optim.exponential_decay(1.0, 2, 0.25, end_value=0.3), {1: 0.5, 2: 0.3, 9: 0.3}),
        (optim.exponential_decay(1.0, 1, 2.0, end_value=3.0), {1: 2.0, 2: 3.0}),
        (optim.cosine_decay_schedule(2.0, 8), {0: 2.0, 2: 1 + cos(pi / 4), 4: 1.0, 8: 0.0, 9: 0.0}),
        (optim.cosine_decay_schedule(2.0, 8, alpha=0.5), {0: 2.0, 4: 1.5, 8: 1.0}),
        (optim.cosine_decay_schedule(2.0, 8, exponent=2.0), {0: 2.0, 4: 0.5}),
        (optim.piecewise_constant_schedule(8.0, {6: 0.5, 3: 0.25}), {2: 8.0, 3: 2.0, 5: 2.0, 6: 1.0}),
        (optim.piecewise_constant_schedule(8.0), {2: 8.0}),
        (optim.warmup_constant_schedule(0.0, 1.0, 4), {0: 0.0, 1: 0.25, 4: 1.0, 9: 1.0}),
        (
            optim.warmup_cosine_decay_schedule(0.0, 1.0, 2, 6, end_value=0.2),
            {0: 0.0, 1: 0.5, 2: 1.0, 4: 0.6, 6: 0.2, 7: 0.2},
        ),
        (
            optim.join_schedules([optim.constant_schedule(1.0), optim.linear_schedule(2.0, 3.0, 2)], [3]),
            {0: 1.0, 2: 1.0, 3: 2.0, 4: 2.5, 5: 3.0},
        ),
    ],
)
def test_schedules(schedule: optim.GradientTransformation, values: dict[int, float]) -> None:
    compiled = fg.jit(schedule)
    for count, value in values.items():
        assert float(schedule(count)) == pytest.approx(value, rel=1e-14, abs=1e-15)
        assert float(compiled(np.array(count))) == pytest.approx(value, rel=1e-14, abs=1e-15)
    assert compiled(np.array(0)).dtype == np.float64


def test_schedules_refuse() -> None:
    with pytest.raises(ParameterError, match="transition_steps must be positive, got 0"):
        optim.linear_schedule(1.0, 0.0, 0)
    with pytest.raises(ParameterError, match="counts the warm-up too"):
        optim.warmup_cosine_decay_schedule(0.0, 1.0, 5, 5)
    with pytest.raises(ParameterError, match="need 1 boundaries, got 0"):
        optim.join_schedules([optim.constant_schedule(1.0)] * 2, [])


def test_the_schedule_counts_from_zero() -> None:
    optimizer = optim.sgd(lambda count: 1.0 + count)
    assert [float(u) for u in plain_steps(optimizer, 1.0, 3)] == [-1.0, -2.0, -3.0]


# -- under transforms


def trained(optimizer: Callable[[Any], optim.GradientTransformation], rate: Any, p: Any, steps: int = 3) -> Any:
    o = optimizer(rate)
    state = o.init(p)
    for _ in range(steps):
        updates, state = o.update(fg.grad(loss)(p), state, p)
        p = optim.apply_updates(p, updates)
    return loss(p)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_differentiating_through_steps(name: str) -> None:
    """The derivative of the loss after three steps, by the learning rate and by the start, against differences."""

    def f(rate: Any, p: Any) -> Any:
        return trained(OPTIMIZERS[name], rate, p)

    rng = np.random.default_rng(0)
    direction = {k: rng.normal(size=PARAMS[k].shape) for k in ("w", "b")} | {"none": None}
    _, slope = fg.jvp(f, (0.05, PARAMS), (1.0, direction))
    by_rate, by_start = fg.grad(f, (0, 1))(0.05, PARAMS)
    product = by_rate + sum(np.sum(by_start[k] * direction[k]) for k in ("w", "b"))
    assert np.isclose(slope, product, rtol=1e-10)

    def along(h: float) -> float:
        return float(f(0.05 + h, tree.map(lambda p, d: p + h * d, PARAMS, direction)))

    assert np.isclose(slope, (along(1e-5) - along(-1e-5)) / 2e-5, rtol=1e-5)
    assert np.isclose(fg.jit(fg.grad(f))(0.05, PARAMS), by_rate, rtol=1e-12)


def test_derivative_of_a_step_of_adam_at_gradient_zero() -> None:
    def first(g: Any) -> Any:
        optimizer = optim.adam(1.0, eps=1e-3)
        return optimizer.update(g, optimizer.init(g))[0]

    assert np.isclose(float(fg.grad(first)(0.0)), -1e3)  # of -g / (|g| + eps)
    assert np.isclose(float(fg.jvp(first, (0.0,), (1.0,))[1]), -1e3)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_many_trainings_at_once(name: str) -> None:
    rates = np.array([0.01, 0.05, 0.2])
    batched = fg.vmap(lambda rate: trained(OPTIMIZERS[name], rate, PARAMS))(rates)
    assert np.allclose(batched, [float(trained(OPTIMIZERS[name], r, PARAMS)) for r in rates], rtol=1e-12)
    starts = tree.map(lambda x: np.stack([x, 2 * x, -x]), PARAMS)
    batched = fg.vmap(lambda p: trained(OPTIMIZERS[name], 0.05, p))(starts)
    one_by_one = [float(trained(OPTIMIZERS[name], 0.05, tree.map(lambda x, i=i: x[i], starts))) for i in range(3)]
    assert np.allclose(batched, one_by_one, rtol=1e-12)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_batch_of_states(name: str) -> None:
    optimizer = OPTIMIZERS[name](optim.linear_schedule(0.1, 0.01, 5))
    starts = tree.map(lambda x: np.stack([x, -2 * x]), PARAMS)
    states = fg.vmap(optimizer.init)(starts)

    def step(p: Any, state: Any) -> Any:
        updates, state = optimizer.update(fg.grad(loss)(p), state, p)
        return optim.apply_updates(p, updates), state

    found, many = starts, fg.jit(fg.vmap(step))
    for _ in range(3):
        found, states = many(found, states)
    for i in range(2):
        want, _ = run(optimizer, tree.map(lambda x, i=i: x[i], starts), 3)
        assert tree.all(tree.map(lambda x, y, i=i: np.allclose(x[i], y, rtol=1e-12), found, want))


def test_every_name_is_documented() -> None:
    for name in optim.__all__:
        assert getattr(optim, name).__doc__
