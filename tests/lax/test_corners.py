"""Loops at their corners: what is handed on as it is, nothing to do, and where carries and captured values meet."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.control.assemble import assemble
from funcgrad.control.branch import branch
from funcgrad.control.loop import INDEX
from funcgrad.core.ir import make_aval
from funcgrad.core.primitive import registry
from funcgrad.core.trace import bind1
from funcgrad.ops.arithmetic import mul

ROW = np.arange(20.0) + 1


def counted(c: Any) -> Any:
    """The states of a scan without arrays to read."""
    return lax.scan(lambda s, _: (s + 1.0, s), c[0], length=20)[1]


@pytest.mark.parametrize("wrap", [lambda f: f, fg.jit], ids=["eager", "jit"])
def test_stacked_results_of_an_inner_loop_are_the_next_carry(wrap: Any) -> None:
    mapped = wrap(lambda c: lax.fori_loop(0, 1, lambda i, c: lax.map(fnp.sin, c), c))
    np.testing.assert_allclose(mapped(ROW), np.sin(ROW), rtol=1e-15)
    twice = wrap(lambda c: lax.fori_loop(0, 2, lambda i, c: counted(c), c))
    np.testing.assert_array_equal(twice(ROW), ROW)


def test_a_carry_that_is_changed_and_kept() -> None:
    @fg.jit
    def f(x: Any) -> Any:
        def changed(x: Any) -> Any:
            d = lax.map(fnp.sin, x)
            return d.at[0].set(0.0), d

        return lax.cond(x[0] > 0, changed, lambda x: (x, x), x)

    put, kept = f(ROW)
    np.testing.assert_allclose(kept, np.sin(ROW), rtol=1e-15)
    np.testing.assert_allclose(put, np.where(np.arange(20) == 0, 0.0, np.sin(ROW)), rtol=1e-15)


def test_gradient_of_a_branch_on_a_changed_carry() -> None:
    def f(x: Any) -> Any:
        def body(i: Any, x: Any) -> Any:
            return lax.cond(x[2] > -9, lambda a: a * 2, lambda a: a, x.at[0].set(x[2]))

        return lax.fori_loop(0, 1, body, x)[0]

    for g in fg.vmap(fg.grad(f)), fg.jit(fg.vmap(fg.grad(f))):
        np.testing.assert_array_equal(g(np.ones((2, 3))), [[0.0, 0.0, 2.0]] * 2)


def test_gradient_of_a_map_in_machine_code() -> None:
    x = np.arange(4.0) + 1
    np.testing.assert_allclose(fg.jit(fg.grad(lambda x: np.sum(lax.map(fnp.sin, x))))(x), np.cos(x), rtol=1e-15)


def test_bounds_and_carry_of_whole_numbers() -> None:
    total = fg.jit(lambda lo, hi: lax.fori_loop(lo, hi, lambda i, y: y + i, 0))
    assert [int(total(1, 4)), int(total(4, 1)), int(total(-3, 2))] == [6, 0, -5]


def test_second_order_through_a_checkpoint_with_python_numbers() -> None:
    def f(x: Any) -> Any:
        step = fg.checkpoint(lambda c: 0.6 * c * c)
        return lax.scan(lambda c, _: (step(c), None), x, length=3)[0]

    # f(x) = 0.6^7 x^8
    for g in fg.grad(fg.grad(f)), fg.jit(fg.grad(fg.grad(f))):
        np.testing.assert_allclose(g(0.9), 0.6**7 * 56 * 0.9**6, rtol=1e-13)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_nothing_to_add_in_a_body(shape: tuple[int, ...]) -> None:
    x = np.ones(shape)

    @fg.jit
    def f(x: Any, s: Any) -> Any:
        def body(i: Any, s: Any) -> Any:
            return s + np.sum(x) + np.prod(x) + np.sum(x.T @ x)

        return lax.fori_loop(0, 3, body, s)

    assert f(x, 1.0) == 4.0


def test_cost_of_programs_with_loops() -> None:
    w = np.ones((3, 3))

    def f(x: Any) -> Any:
        y = lax.scan(lambda c, _: (np.tanh(w @ c), None), x, length=5)[0]
        return np.sum(lax.while_loop(lambda c: np.sum(c) < 10, lambda c: c * 2, y))

    assert fg.cost(f, np.ones(3)).total.flops >= 0


def test_kernels_of_loops_can_be_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    def f(x: Any) -> Any:
        return np.sum(lax.while_loop(lambda c: np.sum(c) < 10, lambda c: np.sin(c) + c * 2, x))

    text = fg.show(fg.grad(f), np.ones(3), stage="kernels")
    assert "reverse=True" in text
    assert "arena" in fg.show(fg.grad(f), np.ones(3), stage="buffers")
    monkeypatch.setenv("FUNCGRAD_DUMP", str(tmp_path))
    fg.jit(fg.grad(f))(np.ones(3))
    assert list(tmp_path.iterdir())


def test_a_linear_system_of_one_number() -> None:
    def f(b: Any) -> Any:
        return fg.custom_linear_solve(lambda x: 2.0 * x, b, lambda mv, b: b / mv(1.0), symmetric=True)

    assert f(6.0) == 3.0
    assert fg.grad(f)(6.0) == 0.5


def test_associative_scan_says_which_shapes_differ() -> None:
    with pytest.raises(fg.errors.FuncgradError, match="shape"):
        lax.associative_scan(lambda a, b: np.sum(a) + np.sum(b), np.ones((4, 3)))


@pytest.mark.parametrize("bounds", [(0, 2**70), (-(2**70), 0), (-(2**63), 2**63 - 1)])
def test_bounds_beyond_whole_numbers_of_64_bits(bounds: tuple[int, int]) -> None:
    with pytest.raises(fg.errors.FuncgradError, match="int64"):
        lax.fori_loop(*bounds, lambda i, c: c, 0.0)


# -- what bodies are given beside their operands


def test_branches_that_read_which_one_they_are() -> None:
    """The derivative of an element is put back at its place: the linear half reads the index, too."""
    x = np.array([2.0, 3.0, 5.0])
    at = lambda i, x: bind1(registry["dynamic_slice"], x, i, sizes=(1,))
    square = lambda i, x: mul(at(i, x), at(i, x))
    branches = tuple([assemble("b", [INDEX, make_aval((3,), x.dtype)], lambda *a, f=f: [f(*a)]) for f in (at, square)])
    for k, expected in ((0, [1.0, 0.0, 0.0]), (1, [0.0, 6.0, 0.0])):
        f = fg.grad(lambda x, k=k: branch(branches, np.int64(k), x)[0][0])
        assert f(x).tolist() == expected and fg.jit(f)(x).tolist() == expected


def test_the_same_branch_beside_others() -> None:
    """What is remembered of a branch is so for those beside it."""
    for other, slope in ((lambda x: 3 * x, 3.0), (lambda x: x * x, 4.0), (lambda x: x / 4, 0.25)):
        f = lambda i, x, other=other: lax.switch(i, [fnp.sin, other, fnp.cos], x)
        assert fg.grad(f, 1)(1, 2.0) == fg.jvp(lambda x, f=f: f(1, x), (2.0,), (1.0,))[1] == slope
        assert fg.grad(f, 1)(2, 2.0) == -np.sin(2.0)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_rows_along_any_axis_of_what_a_loop_reads(axis: int) -> None:
    x = np.sin(np.arange(24.0)).reshape(2, 3, 4)

    def f(x: Any) -> Any:
        return lax.scan(lambda c, m: (c * 0.5 + m, m[::-1] * c), np.zeros(x.shape[1:]), x)

    for g in (fg.vmap(f, axis), fg.jit(fg.vmap(f, axis))):
        for k, row in enumerate(np.moveaxis(x, axis, 0)):
            for found, wanted in zip(g(x), f(row), strict=True):
                np.testing.assert_array_equal(found[k], wanted)


# -- structural zeros


def guarded(x: Any) -> Any:
    """Its derivative is infinite, or NaN, where it is not taken."""
    return fnp.where(x > 0.1, fnp.sqrt(x), 0.5)


OVERWRITTEN = {
    "for": lambda x: lax.fori_loop(0, 3, lambda i, s: guarded(x * 0.7), guarded(x)),
    "while": lambda x: lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, guarded(x * s[0])), (0, guarded(x)))[1],
}
DERIVED: dict[str, Any] = {
    "g": fg.grad, "gJ": lambda f: fg.grad(fg.jacfwd(f)), "Jg": lambda f: fg.jacfwd(fg.grad(f)),
    "gJJ": lambda f: fg.grad(fg.jacfwd(fg.jacfwd(f))), "gJg": lambda f: fg.grad(fg.jacfwd(fg.grad(f))),
    "ggg": lambda f: fg.grad(fg.grad(fg.grad(f))), "JJJ": lambda f: fg.jacfwd(fg.jacfwd(fg.jacfwd(f))),
}  # fmt: skip


@pytest.mark.parametrize("order", DERIVED)
@pytest.mark.parametrize("name", OVERWRITTEN)
def test_a_carry_that_is_overwritten_in_a_branch(name: str, order: str) -> None:
    """What the loop begins with has a cotangent that is zero, with and without trips."""
    f = lambda x: lax.cond(x > -2, OVERWRITTEN[name], lambda x: 0.3 * x, x)
    d, last = DERIVED[order](f), 0.7 if name == "for" else 2.0
    slope = {1: lambda x: 0.5 * x**-0.5, 2: lambda x: -0.25 * x**-1.5, 3: lambda x: 0.375 * x**-2.5}[len(order)]
    for g in (d, fg.jit(d)):
        assert g(-0.9) == 0.0
        np.testing.assert_allclose(g(0.8), last ** len(order) * slope(0.8 * last), rtol=1e-13)


@pytest.mark.parametrize("wrap", [lambda f: f, fg.jit], ids=["eager", "jit"])
def test_a_pullback_of_a_loop_of_unknown_length_is_transposed(wrap: Any) -> None:
    """Sums of stacks are linear, however long the stacks are."""
    f = lambda x: lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, fnp.sin(s[1]) * x), (0, x))[1]
    slope = fg.grad(fg.grad(f))

    def system(x: Any) -> Any:
        y, back = fg.vjp(slope, x)
        matvec = lambda u: (u[0], u[1] - back(u[0])[0])
        inverse = lambda m, u: tuple([2 * a - b for a, b in zip(u, m(u), strict=True)])
        return fg.custom_linear_solve(matvec, (y, x), inverse, inverse)[1]

    expected = lambda x: x + fg.grad(slope)(x) * slope(x)
    for d in (lambda f: f, fg.grad, lambda f: fg.grad(fg.grad(f)), lambda f: fg.jacfwd(fg.grad(f))):
        np.testing.assert_allclose(wrap(d(system))(0.7), d(expected)(0.7), rtol=1e-11)
