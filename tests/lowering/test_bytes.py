"""Memory that compiled functions read and write, counted from their kernels: a value is read as seldom as can be."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.lowering.cost import accesses
from funcgrad.lowering.emit import functions_of
from funcgrad.lowering.kernels import Loop, Schedule
from funcgrad.lowering.loops import STATUS
from funcgrad.lowering.schedule import schedule
from funcgrad.lowering.simplify import simplify
from funcgrad.lowering.values import Target

AVX512 = Target(64, True, True)


def scheduled(f: Any, *args: Any) -> tuple[Schedule, dict[str, Any]]:
    """The schedule of ``jit(f)`` for these arguments, and its inputs by name."""
    flat = simplify(fg.make_program(f)(*args))
    return schedule(flat), dict(zip(flat.input_names, flat.inputs, strict=True))


def reads_of(s: Schedule, root: Any) -> list[int]:
    """The bytes of every access that reads a buffer, over all kernels."""
    return [a.bytes for k in s.kernels for a in accesses(k, s) if a.root is root and not a.written]


# -- an elementwise chain: value and three gradients in one pass


def wave(x: Any, rate: Any, shift: Any) -> Any:
    """A damped wave and a slow term: five elementary functions of every element, summed."""
    damping = np.exp(-x * x)
    return np.sum(np.sin(rate * x + shift) * damping + np.log(1 + x * x) * np.arctan(x))


WAVE = fg.value_and_grad(wave, argnums=(0, 1, 2))
X = np.linspace(-3.0, 3.0, 1001)


def test_value_and_gradient_of_an_elementwise_loss_read_the_data_once() -> None:
    s, inputs = scheduled(WAVE, X, 1.5, 0.25)
    assert reads_of(s, inputs["x"]) == [8 * 1001]
    (loop,) = [k for k in s.kernels if isinstance(k, Loop) and k.shape == (1001,)]
    written = {a.root: a.bytes for a in accesses(loop, s) if a.written}
    assert sorted(written.values()) == [8, 8, 8, 8 * 1001]  # the value, two slopes, the gradient
    assert set(written) <= set(s.outputs)


def test_the_code_loads_what_was_counted() -> None:
    s, _ = scheduled(WAVE, X, 1.5, 0.25)
    f = functions_of(s, AVX512)
    at = next(i for i, k in enumerate(s.kernels) if k.shape == (1001,))  # type: ignore[union-attr]
    name = f.calls[at][0]
    body = re.search(rf"define internal void @{name}\(.*?\n}}\n", f.text, re.DOTALL)[0]  # type: ignore[index]
    assert len(re.findall(r"= load <8 x double>", body)) == 1  # x
    assert len(re.findall(r"= load double", body)) == 2  # rate and shift
    assert len(re.findall(r"store <8 x double>", body)) == 1  # the gradient


def test_the_values_are_right() -> None:
    value, (slope, by_rate, by_shift) = fg.jit(WAVE)(X, 1.5, 0.25)
    e, angle, q = np.exp(-X * X), 1.5 * X + 0.25, 1 + X * X
    np.testing.assert_allclose(value, np.sum(np.sin(angle) * e + np.log(q) * np.arctan(X)), rtol=1e-14)
    inner = 1.5 * np.cos(angle) * e - 2 * X * np.sin(angle) * e + 2 * X / q * np.arctan(X) + np.log(q) / q
    np.testing.assert_allclose(slope, inner, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose([by_rate, by_shift], [np.sum(X * np.cos(angle) * e), np.sum(np.cos(angle) * e)])


# -- logistic regression: two products are the least


def logistic(w: Any, bias: Any, features: Any, labels: Any) -> Any:
    score = features @ w + bias
    return np.mean(np.logaddexp(0.0, score) - labels * score) + 5e-4 * np.sum(w * w)


def test_logistic_regression_reads_its_features_twice() -> None:
    f = fg.value_and_grad(logistic, argnums=(0, 1))
    s, inputs = scheduled(f, np.zeros(30), 0.1, np.ones((569, 30)), np.ones(569))
    assert reads_of(s, inputs["features"]) == [8 * 569 * 30] * 2  # for the scores, and for the gradient
    assert reads_of(s, inputs["labels"]) == [8 * 569]
    total = sum([a.bytes for k in s.kernels for a in accesses(k, s)])
    assert total <= 8 * (2 * 569 * 30 + 6 * 569 + 10 * 30 + 30)


# -- a training step of a network: 64-128-128-10, Adam


def network(params: Any, x: Any, y: Any) -> Any:
    (a, p), (b, q), (c, r) = params
    h = np.tanh(np.tanh(x @ a + p) @ b + q)
    z = h @ c + r
    return np.mean(np.log(np.sum(np.exp(z - np.max(z, 1, keepdims=True)), 1)) + np.max(z, 1) - np.sum(y * z, 1))


def train_step(state: Any, x: Any, y: Any) -> Any:
    params, m, v, t = state
    slopes = fg.grad(network)(params, x, y)
    t = t + 1
    first, second = 1 - 0.9**t, 1 - 0.999**t
    m = fg.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, slopes)
    v = fg.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, slopes)
    step = lambda p, m, v: p - 1e-3 * (m / first) / (np.sqrt(v / second) + 1e-8)
    return fg.tree.map(step, params, m, v), m, v, t


def layers() -> Any:
    return [(np.ones((i, o), np.float32), np.ones(o, np.float32)) for i, o in ((64, 128), (128, 128), (128, 10))]


STEP = (train_step, (layers(), layers(), layers(), np.float32(0)), np.ones((32, 64), np.float32),
        np.ones((32, 10), np.float32))  # fmt: skip


def test_no_kernel_of_a_training_step_reads_an_operand_twice() -> None:
    s, _ = scheduled(*STEP)
    for k in s.kernels:
        if isinstance(k, Loop):
            places = Counter([a.root for a in accesses(k, s) if not a.written])
            assert all(n == 1 for n in places.values()), k.shape


def test_adam_reads_and_writes_each_array_once() -> None:
    s, inputs = scheduled(*STEP)
    for name, v in inputs.items():
        if name.startswith(("state[1]", "state[2]")):  # the moments are used nowhere else
            assert reads_of(s, v) == [4 * v.aval.size]
    weights = [v for name, v in inputs.items() if name.startswith("state[0]") and v.aval.ndim == 2]
    uses = [len(reads_of(s, v)) for v in weights]
    assert uses == [2, 3, 3]  # forward, update, and (but in the first layer) backward


# -- what is counted


@pytest.mark.parametrize(
    ("f", "args", "read", "written"),
    [
        (lambda x, y: x + y, (np.ones((3, 4)), np.ones(4)), 8 * (12 + 4), 8 * 12),  # repeated: counted as stored
        (lambda x: x[1:] - x[:-1], (np.ones(10),), 8 * (9 + 9), 8 * 9),  # two views, two accesses
        (lambda x: x + x.reshape(2, 6).reshape(3, 4), (np.ones((3, 4)),), 8 * 12, 8 * 12),  # the same view
        (lambda x: x.T * x.T, (np.ones((3, 4), np.float32),), 4 * 12, 4 * 12),
        (lambda x: x[::2] > 0, (np.ones(9),), 8 * 5, 5),  # bools take a byte
        (lambda x: np.sum(x, axis=0), (np.ones((6, 5)),), 8 * 30, 8 * 5),
        (lambda x: x * 2, (np.ones((0, 3)),), 0, 0),
        (lambda x: np.cumsum(x), (np.ones(5, np.complex128),), 80, 80),  # with NumPy
        (lambda x, y: x @ y, (np.ones((3, 4)), np.ones((4, 5))), 8 * (12 + 20), 8 * 15),
    ],
)
def test_bytes(f: Any, args: tuple[Any, ...], read: int, written: int) -> None:
    total = fg.cost(f, *args, time=False).total
    assert (total.bytes_read, total.bytes_written) == (read, written)


def test_reads_at_positions_count_what_they_take() -> None:
    s, inputs = scheduled(lambda table, i: table[i], np.ones((100, 3)), np.zeros(7, np.int64))
    assert reads_of(s, inputs["table"]) == [8 * 7 * 3]


@pytest.mark.parametrize(
    "args", [(WAVE, X, 1.5, 0.25), STEP, (fg.hessian(lambda x: np.sum(x[1:] * x[:-1] ** 2)), X[:9])]
)
def test_accesses_are_the_buffers_that_the_code_is_given(args: Any) -> None:
    s, _ = scheduled(*args)
    for k, (_, roots) in zip(s.kernels, functions_of(s, AVX512).calls, strict=True):
        assert {a.root for a in accesses(k, s)} == set(roots) - {STATUS}
