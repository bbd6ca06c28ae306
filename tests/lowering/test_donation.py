"""Donated arguments: results that lie in them are right, they are returned themselves, and nothing else is touched."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.core.array import Array
from funcgrad.lowering import donation
from funcgrad.lowering.emit import CpuKernels, emit
from funcgrad.lowering.schedule import schedule
from funcgrad.lowering.simplify import simplify
from funcgrad.lowering.stages import this_target

# -- which result goes into which argument


def avals(*arrays: Any) -> list[Any]:
    return [fg.ShapeDtypeStruct(np.shape(a), np.asarray(a).dtype) for a in arrays]


def test_pairs_are_made_in_order() -> None:
    a, b, c = np.ones(3), np.ones(3), np.ones(3, np.float32)
    every = [True, True, True]
    assert donation.pair(avals(a, b, c), every, avals(a, c, b)) == (0, 2, 1)
    assert donation.pair(avals(a, b, c), [False, True, True], avals(c, a, b)) == (2, 1, -1)
    assert donation.pair(avals(a), [True], avals(np.ones(4))) == ()
    assert donation.pair(avals(a), [False], avals(a)) == ()
    weak = fg.make_program(lambda x: x)(1.0).in_avals
    assert weak[0].weak and donation.pair(weak, [True], avals(1.0)) == ()


def placed(f: Callable[..., Any], *args: Any) -> list[bool]:
    """For each result of `f` whether it may lie in the argument of the same position from the start."""
    program = simplify(fg.make_program(f)(*args))
    s = schedule(program)
    kernels = CpuKernels(this_target())
    kernels.given |= {*s.outputs}
    texts = [kernels.code(k, s) for k in s.kernels]
    return [donation.in_place(s, texts, r, x) for r, x in zip(s.outputs, program.inputs, strict=False)]


X, Y = np.arange(64.0).reshape(8, 8), np.ones((8, 8))

PLACES: list[tuple[str, Callable[..., Any], list[bool]]] = [
    ("one loop", lambda x, y: x * 2 - y, [True]),
    ("itself", lambda x, y: x, [True]),
    ("both", lambda x, y: (x + y, x * y), [True, True]),
    ("never read", lambda x, y: y + 1, [True]),
    ("swapped", lambda x, y: (y, x), [False, True]),
    ("reversed", lambda x, y: x[::-1] + x, [False]),
    ("transposed", lambda x, y: x.T, [False]),
    ("shifted", lambda x, y: np.roll(x, 1), [False]),
    ("a row for all", lambda x, y: x - x[0], [False]),
    ("a row for all, from elsewhere", lambda x, y: x - y[0], [True]),
    ("by its sum", lambda x, y: x / np.sum(x), [True]),
    ("its sum afterwards", lambda x, y: (x + 1, np.sum(x)), [True]),
    ("positions", lambda x, y: x[np.array([3, 1, 0, 2, 7, 6, 5, 4])], [False]),
    ("itself and positions", lambda x, y: x + x[np.array([3, 1, 0, 2, 7, 6, 5, 4])], [False]),
    ("a product of it", lambda x, y: x @ y, [False]),
    ("a product added", lambda x, y: x - 0.1 * (y @ y), [True]),
    ("a product of it added", lambda x, y: x - 0.1 * (x.T @ y), [True]),
    ("read by a later product", lambda x, y: (x + y, x @ y), [True]),
    ("padded", lambda x, y: np.pad(x, ((1, 0), (0, 0)))[:-1], [True]),  # through a buffer of its own
    ("joined", lambda x, y: np.concatenate([x[4:], x[:4]]), [False]),
]


@pytest.mark.parametrize(("name", "f", "expected"), PLACES, ids=[p[0] for p in PLACES])
def test_where_results_may_lie(name: str, f: Callable[..., Any], expected: list[bool]) -> None:
    found = placed(f, X, Y)
    # False is always right; True has to be proved.
    assert all([e or not p for p, e in zip(found, expected, strict=False)]), found
    if name in ("one loop", "both", "never read", "a row for all, from elsewhere", "by its sum", "a product added"):
        assert found[: len(expected)] == expected


def test_loops_whose_vectors_overlap_are_in_place_too() -> None:
    lanes = this_target().lanes(8)
    for n in (4 * lanes, 4 * lanes + 1, 5 * lanes - 1, lanes + 1, 1):
        assert placed(lambda x: x + 1, np.ones(n)) == [True]
    program = simplify(fg.make_program(lambda x: x + 1)(np.ones(4 * lanes + 1)))
    s = schedule(program)
    plain = [CpuKernels(this_target()).code(k, s) for k in s.kernels]
    assert [t.once for t in plain] == [lanes == 1]
    assert donation.in_place(s, plain, s.outputs[0], program.inputs[0]) == (lanes == 1)


def test_a_result_that_may_not_lie_there_is_copied_at_the_end() -> None:
    program = simplify(fg.make_program(lambda x: x[::-1] * 1.0)(np.ones(64)))
    plain, donating = emit(program, this_target()), emit(program, this_target(), (0,))
    assert plain.arena.size == 0 and donating.arena.size == 512


# -- results


FUNCTIONS: list[Callable[..., Any]] = [
    lambda a, b: a * 2 - b,
    lambda a, b: (a + b, a - b),
    lambda a, b: (b, a),
    lambda a, b: (b - a, a * b, np.sum(a)),
    lambda a, b: (np.flip(a) + a, np.flip(b) * a),
    lambda a, b: a / (1 + np.sum(a * a)) - b,
    lambda a, b: np.roll(a, 1) - np.cumsum(b),
    lambda a, b: (np.where(a > b, a, b), np.where(a > b, b, a)),
    lambda a, b: (a[np.abs(np.sign(b)).astype(int) * (len(a) - 1)], b),
    lambda a, b: (np.concatenate([a[1:], a[:1]]), a * 1.5),
    lambda a, b: (np.outer(a, b) @ b, b * np.max(a)),
    lambda a, b: (a - np.mean(a), b - np.mean(a * b)),
    lambda a, b: (a + a[np.arange(len(a))[::-1] * 1], b),
]
FEW: tuple[list[int], list[Any]] = ([0, 16, 257], [np.float64, np.int8])
MANY: tuple[list[int], list[Any]] = (
    [0, 1, 2, 3, 5, 8, 15, 16, 17, 31, 64, 100, 128, 257],
    [np.float64, np.float32, np.int64, np.int32, np.int8],
)


class Donations:
    """Calls with arguments of every kind; each lies between margins that must stay as they are."""

    def __init__(self, seed: int, sizes: list[int], dtypes: list[Any]) -> None:
        self.random = random.Random(seed)
        self.sizes, self.dtypes = sizes, dtypes
        self.jitted: dict[Any, Any] = {}
        self.taken = 0

    def compiled(self, k: int, donated: tuple[int, ...]) -> Any:
        if (k, donated) not in self.jitted:
            self.jitted[k, donated] = fg.jit(FUNCTIONS[k], donate_argnums=donated)
        return self.jitted[k, donated]

    def argument(self, values: np.ndarray) -> tuple[np.ndarray, bool, list[np.ndarray]]:
        """An array of these values, whether it may be overwritten, and what must not change."""
        r, n = self.random, values.size
        kind = r.randrange(9)
        if kind == 0:  # a part of another array
            whole = np.zeros(n + 8, values.dtype)
            whole[4 : n + 4] = values
            return whole[4 : n + 4], False, [whole]
        if kind == 1:
            frozen = values.copy()
            frozen.flags.writeable = False
            return frozen, False, [frozen]
        if kind == 2:
            spread = np.zeros(2 * n, values.dtype)
            spread[::2] = values
            return spread[::2], False, [spread]
        if kind == 3:
            swapped = values.astype(values.dtype.newbyteorder(">"))
            return swapped, values.itemsize == 1, [swapped] if values.itemsize > 1 else []
        if kind == 4:
            raw = np.zeros(n * values.itemsize + 1, np.uint8)
            shifted = raw[1:].view(values.dtype)
            shifted[:] = values
            return shifted, False, [raw]
        if kind == 5:
            exported = values.copy()
            return exported, False, [exported, np.asarray(memoryview(exported))]
        own = values.copy()
        return (own.view(Array).copy() if kind == 6 else own), True, []

    def call(self) -> None:
        r = self.random
        k, dtype, n = r.randrange(len(FUNCTIONS)), r.choice(self.dtypes), r.choice(self.sizes)
        f = FUNCTIONS[k]
        if n == 0 and k in (8, 10, 11):
            n = 1
        donated = r.choice([(0,), (1,), (0, 1)])
        values = [np.random.default_rng(r.randrange(10**6)).integers(-9, 10, n).astype(dtype) for _ in range(2)]
        (a, may_a, kept_a), (b, may_b, kept_b) = self.argument(values[0]), self.argument(values[1])
        if r.random() < 0.1:
            b, may_a, may_b, kept_b, values[1] = a, False, False, kept_a, values[0]
        elif r.random() < 0.1 and a.flags.c_contiguous and n:
            b, may_a, may_b, kept_b, values[1] = a[:], False, False, kept_a, values[0]
        before = sys.getrefcount(a), sys.getrefcount(b)
        may = may_a and 0 in donated, may_b and 1 in donated
        self.check(f, self.compiled(k, donated), (a, b), values, may, kept_a + kept_b)
        assert (sys.getrefcount(a), sys.getrefcount(b)) == before

    def check(self, f: Any, g: Any, args: Any, values: Any, may: tuple[bool, bool], kept: list[np.ndarray]) -> None:
        """One call: right results, nothing touched but what may be, no memory shared."""
        watched = kept + [x for x, m in zip(args, may, strict=True) if not m]
        before = [x.copy() for x in watched]
        expected, result = f(*[v.copy() for v in values]), g(*args)
        expected = expected if isinstance(expected, tuple) else (expected,)
        result = result if isinstance(result, tuple) else (result,)
        for y, e in zip(result, expected, strict=True):
            assert y.dtype == np.asarray(e).dtype and y.shape == np.shape(e)
            np.testing.assert_allclose(y, e, rtol=2e-5 if y.dtype == np.float32 else 1e-12, atol=1e-4)
        for x, old in zip(watched, before, strict=True):
            assert x.tobytes() == old.tobytes()
        for i, y in enumerate(result):
            for x, m in zip(args, may, strict=True):
                self.taken += y is x
                assert m if y is x else not np.may_share_memory(y, x)
            assert not any(np.may_share_memory(y, z) for z in result[:i])


def donations(seed: int, calls: int, sizes: list[int], dtypes: list[Any]) -> None:
    run = Donations(seed, sizes, dtypes)
    for _ in range(calls):
        run.call()
    assert run.taken > 0.2 * calls


def test_donated_arguments_of_every_kind() -> None:
    donations(0, 10_000, *FEW)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
def test_many_donated_arguments_of_every_kind(seed: int) -> None:
    donations(seed, 100_000, *MANY)


@pytest.mark.parametrize("n", [3, 64, 100_000, 2**20 + 1])
def test_the_same_object_again_and_again(n: int) -> None:
    step = fg.jit(lambda w, m, g: (w - 0.5 * m, 0.9 * m + g), donate_argnums=(0, 1))
    w, m, g = np.ones(n), np.zeros(n), np.full(n, 0.25)
    w0, m0, address = w, m, (w.ctypes.data, m.ctypes.data)
    x, v = 1.0, 0.0
    for _ in range(10):
        w, m = step(w, m, g)
        x, v = x - 0.5 * v, 0.9 * v + 0.25
    assert w is w0 and m is m0 and (w.ctypes.data, m.ctypes.data) == address
    assert np.all(w == x) and np.all(m == v) and step.cache_info().hits == 9


@pytest.mark.parametrize("n", [16, 37, 100])
def test_checked_positions_are_not_looked_at_after_they_are_overwritten(n: int) -> None:
    f = fg.jit(lambda i, x: (i * 1000 + 7, x[i]), donate_argnums=0)
    x = np.arange(float(n))
    for _ in range(3):
        i = np.arange(n)[::-1].copy()
        far, taken = f(i, x)
        assert far is i and np.array_equal(far, np.arange(n)[::-1] * 1000 + 7) and np.array_equal(taken, x[::-1])
    with pytest.raises(IndexError):
        f(np.full(n, n), x)


def test_results_of_the_pool_are_donated() -> None:
    step = fg.jit(lambda w: w * 0.5, donate_argnums=0)
    add = fg.jit(lambda x: x + 1.0)
    add(np.ones(2**18))
    w = add(np.ones(2**18))
    assert w.base is not None and step(w) is w and step(w) is w and np.all(w == 0.5)


def test_donation_under_other_transforms_is_ignored() -> None:
    f = fg.jit(lambda w: w * w, donate_argnums=0)
    w = np.arange(3.0)
    assert fg.grad(lambda w: np.sum(f(w)))(w).tolist() == [0, 2, 4] and w.tolist() == [0, 1, 2]
    assert fg.vmap(f)(w).tolist() == [0, 1, 4] and w.tolist() == [0, 1, 2]
    assert fg.jit(lambda x: f(x) + x)(w).tolist() == [0, 2, 6] and w.tolist() == [0, 1, 2]
