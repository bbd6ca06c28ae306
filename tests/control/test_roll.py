"""Equal steps of a Python loop are one loop of the Program, and compute what the unrolled steps do."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.control import roll
from funcgrad.core.ir import Program, subprograms
from funcgrad.lowering.emit import emit
from funcgrad.lowering.simplify import simplify
from funcgrad.lowering.stages import this_target

RNG = np.random.default_rng(7)
U = RNG.normal(size=12)
TABLE = RNG.normal(size=(12, 3))
WIDE = RNG.normal(size=(3, 24))


@pytest.fixture
def eager_to_roll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short loops of few operations are rolled up as well."""
    monkeypatch.setattr(roll, "STEPS", 4)
    monkeypatch.setattr(roll, "EQUATIONS", 8)


def loops(program: Program) -> int:
    """The number of loops in a Program, inner ones too."""
    return sum([(e.primitive.name == "loop") + sum(loops(b) for _, b in subprograms(e)) for e in program.equations])


def pendulum(state: Any, dt: float) -> Any:
    return np.stack([state[1], -9.81 * np.sin(state[0])])


def rk4(state: Any, dt: float) -> Any:
    k1 = pendulum(state, dt)
    k2 = pendulum(state + 0.5 * dt * k1, dt)
    k3 = pendulum(state + 0.5 * dt * k2, dt)
    k4 = pendulum(state + dt * k3, dt)
    return state + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def swing(steps: int) -> Callable[[Any], Any]:
    def angle(state: Any) -> Any:
        for _ in range(steps):
            state = rk4(state, 0.01)
        return state[0]

    return angle


# -- one step, however many there are


def test_the_code_does_not_grow_with_the_steps() -> None:
    """The same number of equations and of machine functions for 50 and 800 steps, of the value and its gradient."""
    found = []
    for steps in (50, 800):
        for f in (swing(steps), fg.grad(swing(steps))):
            program = fg.make_program(f)(np.array([1.0, 0.0]))
            functions = emit(simplify(program), this_target()).text.count("\ndefine ")
            found.append((len(program.equations), loops(program), functions))
    assert found[:2] == found[2:]
    assert found[0][1] == 1


def test_the_gradient_of_many_steps_is_that_of_the_loop_written_out() -> None:
    """800 steps against scan, and against central differences of plain NumPy."""
    start = np.array([1.0, 0.0])
    rolled = fg.jit(fg.grad(swing(800)))(start)
    scanned = fg.jit(fg.grad(lambda s: fg.lax.scan(lambda s, _: (rk4(s, 0.01), None), s, None, length=800)[0][0]))(
        start
    )
    assert np.array_equal(rolled, scanned)
    h = 1e-6
    for i in range(2):
        e = h * np.eye(2)[i]
        plain = (swing(800)(start + e) - swing(800)(start - e)) / (2 * h)
        np.testing.assert_allclose(rolled[i], plain, rtol=1e-7)


# -- what a step may read, and what may be read of it


def trajectory(x: Any) -> Any:
    out = []
    for i in range(12):
        x = np.sin(x) * 1.1 + 0.01 * i - x**2 * 0.1
        out.append(x)
    return np.stack(out)


def rows_of_an_array(x: Any) -> Any:
    u = np.cos(x) * fg.numpy.asarray(U)
    for i in range(12):
        x = np.tanh(x * u[i]) + u[11 - i] * x - np.sin(x)
    return x


def columns(x: Any) -> Any:
    w = x * fg.numpy.asarray(WIDE)
    y = np.ones(3)
    for i in range(12):
        y = np.tanh(y * w[:, 2 * i]) - np.sin(y) + w[:, 0]
    return np.sum(y)


def captured_arrays(x: Any) -> Any:
    total = 0.0
    for row in TABLE:
        total = total + np.sum(np.tanh(x * row) ** 2) + np.sin(total) * 0.3
    return total


def captured_numbers(x: Any) -> Any:
    for a in U:
        x = np.sin(x * a) + a
    return x


def constants_of_any_shape(x: Any) -> Any:
    y = x * np.ones((2, 3))
    for i in range(12):
        y = np.cos(y) * (i * 0.1) + y * 0.5
    return np.sum(y)


def loss_of_a_list(x: Any) -> Any:
    out, total = [], 0.0
    for i in range(12):
        x = np.sin(x) * 1.1 + 0.01 * i
        out.append(x)
    for y, observed in zip(out, U, strict=True):
        total = total + (y - observed) ** 2 * np.exp(-0.1 * total)
    return total


def three_steps_back(x: Any) -> Any:
    a, b, c = x, x, x
    for _ in range(14):
        a, b, c = np.sin(a) * 0.5 + b * 0.3 - c * 0.1, a, b
    return a + 2.0 * b + 3.0 * c


def from_a_constant(x: Any) -> Any:
    s = 0.0
    for _ in range(12):
        s = np.sqrt(s + x) + np.sin(s) * 0.1
    return s


def read_in_the_middle(x: Any) -> Any:
    kept = x
    for i in range(12):
        x = np.sin(x) * 1.1 - x**2 * 0.1
        if i == 5:
            kept = x
    return x * kept


def nested(x: Any) -> Any:
    for i in range(8):
        for j in range(5):
            x = np.sin(x) + x * 0.01 * j
        x = x - i * 0.01 + np.cos(x)
    return x


def a_part_of_the_last_step(x: Any) -> Any:
    y = x
    for _ in range(12):
        y = np.sin(x) * 0.9
        x = y + 0.1 * x
    return x * y


def descent(x: Any) -> Any:
    def cost(w: Any) -> Any:
        return np.tanh(w) ** 2 + np.sin(w) * 0.3

    for _ in range(10):
        x = x - 0.1 * fg.grad(cost)(x)
    return x


def calls(x: Any) -> Any:
    step = fg.jit(lambda x: np.sin(x) * 1.2)
    for _ in range(12):
        x = step(x) + np.where(x > 0, np.sqrt(x), 0.0)
    return x


def loops_in_steps(x: Any) -> Any:
    for _ in range(8):
        x = fg.lax.fori_loop(0, 3, lambda i, y: np.sin(y) + 0.1 * i, x)
        x = fg.lax.while_loop(lambda y: y > 1.0, lambda y: 0.5 * y, x + 1.0)
        x = fg.lax.cond(x > 0.7, np.cos, np.sin, x)
    return x


def windows(x: Any) -> Any:
    y = x * fg.numpy.asarray(WIDE[0])
    for i in range(12):
        x = x + np.sum(np.sin(y[i : i + 3])) * np.cos(x)
    return x


def batches_of_every_epoch(x: Any) -> Any:
    data = np.sin(x) * fg.numpy.asarray(WIDE[1])
    for _ in range(3):
        for b in range(4):
            batch = data[b * 6 : (b + 1) * 6]
            x = x - 0.1 * np.mean(np.tanh(x * batch))
    return x


def rows_in_any_order(x: Any) -> Any:
    table = np.cos(x) * fg.numpy.asarray(TABLE)
    for k in (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8):
        x = np.sin(x) + np.sum(table[k]) * 0.1
    return x


def a_grid(x: Any) -> Any:
    table = np.cos(x) * fg.numpy.asarray(TABLE)
    for i in range(12):
        for j in range(min(i, 3)):
            x = np.sin(x) + table[i, j] * 0.1
    return x


def a_recurrence_in_an_array(x: Any) -> Any:
    u = fg.numpy.ones(14) * x
    for i in range(2, 14):
        u = u.at[i].set(np.sin(u[i - 1]) + 0.5 * u[i - 2])
    return np.sum(u * u)


def updates_in_two_axes(x: Any) -> Any:
    u = fg.numpy.ones((12, 3)) * x
    for i in range(12):
        u = u.at[i, i % 3].add(np.sin(u[11 - i, 1])).at[i, 1:].multiply(0.5)
    return np.sum(u * u)


def a_list_that_turns(x: Any) -> Any:
    u = [x * (1 + 0.1 * i) for i in range(4)]
    for _ in range(10):
        u = [u[i] + 0.1 * (np.sin(u[(i - 1) % 4]) - 2 * u[i] + u[(i + 1) % 4]) for i in range(4)]
    return u[0] + 2.0 * u[1] + 3.0 * u[3]


CASES = [
    trajectory, rows_of_an_array, columns, captured_arrays, captured_numbers, constants_of_any_shape, loss_of_a_list,
    three_steps_back, from_a_constant, read_in_the_middle, nested, a_part_of_the_last_step, descent, calls,
    loops_in_steps, windows, batches_of_every_epoch, rows_in_any_order, a_grid, a_recurrence_in_an_array,
    updates_in_two_axes, a_list_that_turns,
]  # fmt: skip
EXACTLY_ONE = {
    trajectory: 1,
    captured_arrays: 1,
    descent: 1,
    loss_of_a_list: 2,
    a_list_that_turns: 1,
    batches_of_every_epoch: 1,
}


@pytest.mark.usefixtures("eager_to_roll")
@pytest.mark.parametrize("f", CASES, ids=lambda f: f.__name__)
def test_rolled_steps_compute_what_python_does(f: Callable[[Any], Any]) -> None:
    """Values, and derivatives of two orders in both modes, one by one and in a batch, against those without jit."""
    x, xs = 0.3, np.array([0.3, 0.8, 0.5])
    total = lambda x: np.sum(f(x))
    program = fg.jit(lambda x: f(x)).trace(x)
    assert loops(program) >= 1
    if f in EXACTLY_ONE:
        assert sum(e.primitive.name == "loop" for e in program.equations) == EXACTLY_ONE[f]
    close = lambda got, wanted: np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-13)
    close(fg.jit(f)(x), f(x))
    first, second = fg.grad(total), fg.grad(fg.grad(total))
    close(fg.jit(first)(x), first(x))
    close(fg.jit(second)(x), second(x))
    close(fg.jit(fg.jacfwd(total))(x), first(x))
    close(fg.jit(fg.jacfwd(fg.grad(total)))(x), second(x))
    close(fg.jit(fg.vmap(f))(xs), np.array([f(float(v)) for v in xs]))
    close(fg.jit(fg.vmap(first))(xs), np.array([first(float(v)) for v in xs]))


@pytest.mark.usefixtures("eager_to_roll")
def test_a_carry_of_a_constant_has_no_derivative_before_the_first_step() -> None:
    """The square root of 0 in the first step has an infinite slope, but nothing moves it."""
    f = lambda x: _roots(x)
    assert np.isfinite(fg.jit(fg.grad(f))(2.0))
    np.testing.assert_allclose(fg.jit(fg.grad(f))(2.0), fg.grad(f)(2.0), rtol=1e-14)
    np.testing.assert_allclose(fg.jit(fg.jvp, static_argnums=0)(f, (2.0,), (1.0,))[1], fg.grad(f)(2.0), rtol=1e-14)


def _roots(x: Any) -> Any:
    s = np.zeros(())
    for _ in range(8):
        s = np.sqrt(s) + x
    return s


@pytest.mark.usefixtures("eager_to_roll")
@pytest.mark.parametrize("x", [0.3, np.float64(0.3)], ids=["weak", "strong"])
def test_all_values_may_be_returned_one_by_one(x: Any) -> None:
    """Rows taken out of a loop's results are not rolled up again, for ever."""

    def f(x: Any) -> list[Any]:
        out = []
        for _ in range(12):
            x = x * 0.9 + x * x * 0.1
            out.append(x)
        return [2.0 * v for v in out[:2]] + out

    assert loops(fg.jit(lambda x: f(x)).trace(x)) == 1
    np.testing.assert_allclose(fg.jit(f)(x), f(x), rtol=1e-14)
    np.testing.assert_allclose(fg.jit(fg.jacfwd(f))(x), fg.jacfwd(f)(x), rtol=1e-13)


# -- what stays as it is


@pytest.mark.usefixtures("eager_to_roll")
def test_effects_stay_one_by_one() -> None:
    seen: list[float] = []

    @fg.jit
    def f(x: Any) -> Any:
        for i in range(6):
            x = np.sin(x) + i
            fg.debug.callback(lambda v: seen.append(float(v)), x)
            x = x * 0.5 + np.cos(x)
        return x

    f(0.3)
    x, wanted = 0.3, []
    for i in range(6):
        x = np.sin(x) + i
        wanted.append(float(x))
        x = x * 0.5 + np.cos(x)
    np.testing.assert_allclose(seen, wanted, rtol=1e-14)


@pytest.mark.usefixtures("eager_to_roll")
def test_other_parameters_in_each_step_are_not_rolled() -> None:
    """Arguments one by one: no row of an array can stand for them."""
    ws = [np.float64(w) for w in U]

    def arguments(x: Any, ws: Any) -> Any:
        for w in ws:
            x = np.sin(x * w) + w
        return x

    assert loops(fg.jit(arguments).trace(0.3, ws)) == 0
    np.testing.assert_allclose(fg.jit(arguments)(0.3, ws), arguments(0.3, ws), rtol=1e-13)


@pytest.mark.usefixtures("eager_to_roll")
def test_an_error_names_the_line_of_the_step() -> None:
    def f(x: Any, at: Any) -> Any:
        for _ in range(8):
            x = np.sin(x) + x[at]  # this line
        return x

    assert loops(fg.jit(f).trace(np.ones(3), 1)) == 1
    with pytest.raises(IndexError, match=r"this line|test_roll.py"):
        fg.jit(f)(np.ones(3), 7)


@pytest.mark.usefixtures("eager_to_roll")
def test_only_constants_that_are_read_are_kept() -> None:
    """What became rows of one array is not captured a second time."""
    traced = fg.jit(lambda x: captured_arrays(x)).specialized((0.3,), {})
    assert [np.shape(c) for c in traced.constants].count((3,)) <= 2  # those of steps that stand alone
    assert any(np.ndim(c) == 2 for c in traced.constants)


def test_short_programs_stay_as_written() -> None:
    program = fg.jit(lambda x: trajectory(x)).trace(0.3)
    assert loops(program) == 0


# -- random steps


def random_program(seed: int) -> Callable[[Any], Any]:
    """A function with a loop of random steps over some numbers and a vector; read after it is whatever was kept."""
    rnd = random.Random(seed)
    steps, width = rnd.randint(5, 9), rnd.randint(1, 3)
    before, after = rnd.random() < 0.3, rnd.random() < 0.3
    lines = []
    for _ in range(rnd.randint(2, 6)):
        kind = rnd.choice(["sin", "mix", "row", "literal", "array", "vector", "shift", "where", "window", "update"])
        lines.append((kind, rnd.randrange(width), rnd.randrange(width), round(rnd.uniform(-0.9, 0.9), 2)))
    keeps = rnd.choice(["nothing", "all", "middle"])
    table = np.random.default_rng(seed).normal(size=(steps, 2))

    def f(x: Any) -> Any:
        u = np.sin(x) * fg.numpy.asarray(table)
        state = [x * (1 + 0.1 * i) for i in range(width)]
        vector, kept = x * np.array([0.5, 0.25]), []
        if before:
            state[0] = np.cos(state[0])
        for i in range(steps):
            for kind, a, b, c in lines:
                if kind == "sin":
                    state[a] = np.sin(state[b]) * c
                elif kind == "mix":
                    state[a] = state[a] * 0.5 + np.tanh(state[b] * c)
                elif kind == "row":
                    state[a] = state[a] + 0.1 * u[i, 0] - 0.1 * u[steps - 1 - i, 1]
                elif kind == "literal":
                    state[a] = state[a] * 0.9 + c * i * 0.1
                elif kind == "array":
                    vector = np.cos(vector) * table[i] + state[b]
                elif kind == "vector":
                    state[a] = state[a] * 0.3 + np.sum(vector * vector) * 0.1
                elif kind == "window":
                    state[a] = state[a] * 0.5 + np.sum(u[max(i - 1, 0) : max(i - 1, 0) + 2]) * 0.1
                elif kind == "update":
                    u = u.at[i, b % 2].set(np.sin(u[(i * 2) % steps, 0]) + state[a])
                elif kind == "shift":
                    state = [*state[1:], np.sin(state[0])]
                else:
                    state[a] = np.where(state[b] > c, np.sqrt(np.abs(state[b])), state[a])
            if keeps == "all" or (keeps == "middle" and i == steps // 2):
                kept.append(state[0])
        total = sum(state[1:], state[0]) + np.sum(vector)
        if after:
            total = np.sin(total)
        return total + (np.sum(np.stack(kept) * 0.5) if kept else 0.0)

    return f


@pytest.mark.usefixtures("eager_to_roll")
@pytest.mark.parametrize("seed", range(40))
def test_random_steps(seed: int) -> None:
    f = random_program(seed)
    np.testing.assert_allclose(fg.jit(f)(0.4), f(np.float64(0.4)), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(fg.jit(fg.grad(f))(0.4), fg.grad(f)(0.4), rtol=1e-11, atol=1e-12)
    second = fg.grad(fg.grad(f))
    np.testing.assert_allclose(fg.jit(second)(0.4), second(0.4), rtol=1e-10, atol=1e-11)


@pytest.mark.usefixtures("eager_to_roll")
def test_most_random_steps_are_rolled() -> None:
    """What the test above is about does happen."""
    assert sum(loops(fg.jit(random_program(seed)).trace(0.4)) > 0 for seed in range(40)) >= 30
