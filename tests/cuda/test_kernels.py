"""Every class of kernels, on a GPU that is not there, against the target of the CPU.

What runs by default is the least of each; ``-m cuda`` runs all of it for every architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import lax
from funcgrad.core.primitive import registry
from funcgrad.core.trace import bind1
from funcgrad.demo import mlp
from funcgrad.errors import OutOfBoundsError, SingularMatrixError
from funcgrad.lowering.cuda import plan
from funcgrad.lowering.cuda.executable import ptx_of
from funcgrad.lowering.cuda.plan import Choose, Repeat, Run
from tests.cuda.against_cpu import ARCHS, compared, compiled, device
from tests.lax.test_stacks import made
from tests.lowering.test_sums import KINDS, check_sums
from tests.ptx.static import Static

rng = np.random.default_rng(3)
FLOATS = ("float32", "float64")
SHAPES = ((), (0,), (1,), (7,), (0, 3), (3, 5), (1, 4), (2, 3, 4), (33, 64), (1031,))
on_every_arch = pytest.mark.parametrize(
    "arch", ["sm_80", *[pytest.param(a, marks=pytest.mark.cuda) for a in ARCHS if a != "sm_80"]]
)
in_every_dtype = pytest.mark.parametrize(
    "dtype", ["float32", *[pytest.param(d, marks=pytest.mark.cuda) for d in ("float64", "int32")]]
)


def draw(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Small numbers, of both signs where there are any."""
    return np.asarray((rng.normal(size=shape) * (3 if dtype[0] in "iu" else 1)).astype(dtype))


def runs(steps: Any) -> Iterator[Run]:
    """All launches of a plan."""
    for s in steps:
        if isinstance(s, Run):
            yield s
        for part in s.branches if isinstance(s, Choose) else (s.steps,) if isinstance(s, Repeat) else ():
            yield from runs(part)


# -- elementwise


@on_every_arch
@in_every_dtype
def test_elementwise(dtype: str, arch: str) -> None:
    x = [draw(shape, dtype) for shape in SHAPES]
    y = [draw(shape, dtype)[..., ::-1] if shape else draw(shape, dtype) for shape in SHAPES]
    f = lambda x, y: [(np.maximum(a, b) * a - b, np.where(a > b, abs(a), b + a)) for a, b in zip(x, y, strict=True)]
    compared(f, (x, y), arch)
    compared(lambda x: [a.T * 2 + a.T[::-1] for a in x[4:]], (x,), arch)
    compared(lambda x, y: x[8][:, :, None] * y[5][0] + y[7][0, 0, 0], (x, y), arch)


@on_every_arch
@in_every_dtype
def test_index_maps(dtype: str, arch: str) -> None:
    def f(x: Any, v: Any) -> Any:
        return (
            x.T, x[::-1], x[:, ::-2], x[1:-1, 3:], np.pad(x, ((1, 0), (0, 2))), np.concatenate([x, x[:1] * 2]),
            np.concatenate([x.T, x.T[:, :1]], axis=1), np.stack([x, -x], axis=1), x.reshape(5, -1)[:, ::3],
            np.broadcast_to(v, (3, 20)) + x[:3], np.tile(v, 3), np.roll(x, 2, axis=1), np.flip(x.T[1:], axis=1),
            x[2, 3], x[-1], x[:, 4],
        )  # fmt: skip

    compared(f, (draw((10, 20), dtype), draw((20,), dtype)), arch)


# -- reductions

STRATEGIES = [  # shape, axis, kernels, and the threads or blocks that share the work
    ((12, 40), 0, "thread"),
    ((9, 1024), 0, "thread"),
    ((40, 12), 1, "thread"),
    ((40, 700), 1, "block"),
    ((700, 5), 0, "block"),
    ((40, 12000), 1, "block, parts"),
    ((100_003,), 0, "block, parts"),
    ((1000, 256), 0, "thread, parts"),
    ((9, 140, 8), 1, "thread, parts"),
]


@on_every_arch
@in_every_dtype
@pytest.mark.parametrize(("shape", "axis", "strategy"), STRATEGIES, ids=str)
def test_strategies_of_reductions(shape: tuple[int, ...], axis: int, strategy: str, dtype: str, arch: str) -> None:
    x = draw(shape, dtype)
    f = lambda x: (np.sum(x * x, axis=axis), np.max(x, axis=axis), np.argmin(x, axis=axis))
    compared(f, (x,), arch, scale=float(np.sum(x * x, axis=axis).max()))
    module = compiled(f, (x,), arch).module
    launches = list(runs(module.plan))
    assert (len(launches) == 2) == strategy.endswith("parts")
    assert bool(Static(ptx_of(module, arch), launches[0].name).opcodes("bar", "barrier")) == strategy.startswith(
        "block"
    )


@on_every_arch
@in_every_dtype
def test_reductions_over_all_choices_of_axes(dtype: str, arch: str) -> None:
    x = draw((5, 3, 8), dtype)
    choices = [axes for n in range(1, 4) for axes in combinations(range(3), n)]
    f = lambda x: [(np.sum(x, axis=a), np.min(x, axis=a), np.any(x > 1, axis=a), np.prod(x, axis=a)) for a in choices]
    compared(f, (x,), arch, scale=float(np.prod(1 + abs(x))) ** 0.5)
    compared(lambda x: [(np.mean(x, axis=a), np.std(x, axis=a)) for a in choices], (x,), arch, scale=9.0)


@on_every_arch
def test_reductions_of_small_dtypes(arch: str) -> None:
    for dtype in ("int8", "uint16", "bool") if arch == "sm_80" else ("int8", "uint8", "int16", "uint16", "bool"):
        x = draw((99, 4), "float64").astype(dtype)
        f = lambda x: (np.sum(x, axis=0), np.max(x, axis=0), np.argmax(x, axis=0), np.all(x, axis=1), np.min(x))
        compared(f, (x,), arch)


@pytest.mark.cuda
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", KINDS)
def test_sums_are_never_worse_than_pairwise_ones(kind: str, dtype: str) -> None:
    check_sums(kind, dtype, device="cuda")


# -- gather and scatter


@on_every_arch
@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "float64", "int16", "int32", "uint64"])
def test_gather_and_scatter(dtype: str, arch: str) -> None:
    x, u = draw((7, 5), dtype), draw((6, 5), dtype)
    i = np.array([3, 0, 3, 6, 1, 3])
    j = np.array([0, 4, 2, 2, 1, 0])
    at = lambda x: fg.numpy.asarray(x).at
    calls: list[Callable[..., Any]] = [
        lambda x, u, i, j: (x[i], x[:, j], x[i, j], x[i[:3, None], j[:2]]),
        lambda x, u, i, j: (at(x)[i].set(u), at(x)[i, j].set(u[:, 0])),
    ]
    if dtype != "bool":
        calls += [
            lambda x, u, i, j: (at(x)[i].add(u), at(x)[i, j].add(u[:, 0]), at(x * 1)[i].max(u), at(x * 1)[i].min(u)),
            lambda x, u, i, j: (at(x)[i].multiply(u), at(x * 1)[i, j].multiply(u[:, 0])),
            lambda x, u, i, j: (at(x * 1)[i + 3].add(u, mode="drop"), at(x)[i + 3].set(u, mode="clip")),
        ]
    for f in calls:
        compared(f, (x, u, i, j), arch, scale=100.0)


@on_every_arch
@in_every_dtype
def test_windows(dtype: str, arch: str) -> None:
    def f(x: Any, s: Any, u: Any) -> Any:
        window = bind1(registry["dynamic_slice"], x, s, s, sizes=(4, 9))
        return window * 2, bind1(registry["dynamic_update_slice"], x, u, s, s)

    for s in (0, 3, 9, 40, -2):
        compared(f, (draw((10, 20), dtype), np.int64(s), draw((3, 8), dtype)), arch)


# -- sorts


def order(x: Any) -> Any:
    """Where the elements along the last axis are in order."""
    return bind1(registry["stable_order"], x)


@on_every_arch
@pytest.mark.parametrize("n", [1, 255, 256, 257, 1031, pytest.param(5000, marks=pytest.mark.cuda)])
def test_sorts(n: int, arch: str) -> None:
    for dtype in ("int64", "uint8", "int32", "uint64"):
        x = rng.integers(0, 100, n).astype(dtype) - np.array(50, dtype)  # the first of unsigned ones are the largest
        (found,) = compared(order, (x,), arch)
        np.testing.assert_array_equal(found, np.argsort(x, kind="stable"))


@on_every_arch
@pytest.mark.parametrize("n", [12, 300, 1031])
def test_sorts_of_floats_have_nan_last(n: int, arch: str) -> None:
    some = np.array([3.0, np.nan, -0.0, 0.0, 1.0, -np.inf, np.nan, 0.5, np.inf, -2.0])
    for dtype in ("float64", "float32", "bool"):
        x = rng.choice(some, n)
        x = np.isnan(x) if dtype == "bool" else x.astype(dtype)
        found, ordered = compared(lambda x: (order(x), np.sort(x)), (x,), arch)
        np.testing.assert_array_equal(found, np.argsort(x, kind="stable"))
        np.testing.assert_array_equal(ordered, np.sort(x, kind="stable"))
    place = np.arange(float(n))
    (slope,) = compared(lambda x, g: fg.vjp(np.sort, x)[1](g)[0], (rng.choice(some, n), place), arch)
    assert sorted(slope) == list(place)


@on_every_arch
def test_sorts_of_views(arch: str) -> None:
    x = rng.integers(0, 9, (3, 4, 300))
    f = lambda x: (
        order(x),
        order(x[:, ::2, ::-1]),
        order(x.T),
        order(np.broadcast_to(x[0, 0, 0], (400,))),
        order(x[:0]),
    )
    compared(f, (x,), arch)
    compared(lambda x: order(fg.numpy.full_like(x[0, :2], 7)), (x,), arch)


@on_every_arch
def test_derivatives_of_products_at_places(arch: str) -> None:
    f = lambda x, u, i: np.sum(np.sin(x.at[i].multiply(u)))
    x, u, i = draw((5,), "float64"), draw((300,), "float64"), rng.integers(0, 5, 300)
    compared(fg.grad(f, (0, 1)), (fg.numpy.asarray(x), 1.0 + 0.01 * u, i), arch)
    rows = np.stack([x, -x]), 1.0 + np.stack([u, u[::-1]])[:, :7], np.stack([i, i[::-1]])[:, :7]
    compared(fg.vmap(fg.grad(lambda *a: fg.grad(f, 1)(*a)[2])), rows, arch)


# -- linear systems

SYSTEMS = [
    ((), 1, 1),
    ((2,), 17, 2),
    *[pytest.param(*s, marks=pytest.mark.cuda) for s in (((2, 2), 5, 3), ((), 70, 40))],
]


@on_every_arch
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("batch", "n", "k"), SYSTEMS)
def test_linear_systems(batch: tuple[int, ...], n: int, k: int, dtype: str, arch: str) -> None:
    """Rows in any order, so that each step has to exchange some."""
    a = np.eye(n)[rng.permutation(n)] + 0.1 * rng.normal(size=(*batch, n, n)) / n**0.5
    x, a = draw((*batch, n, k), dtype), a.astype(dtype)
    (found,) = compared(np.linalg.solve, (a, a @ x), arch, scale=20.0)
    np.testing.assert_allclose(found, x, rtol=0, atol=1e-12 if dtype == "float64" else 1e-4)
    compared(lambda a, b: np.linalg.solve(np.swapaxes(a, -1, -2), b[..., ::-1] * 2), (a, x), arch, scale=20.0)


@on_every_arch
def test_pivots_are_those_of_lapack(arch: str) -> None:
    """Of equal ones the first, on numbers with which every step is exact."""
    a = np.array([[0, 2, 3], [-4, 2, 0], [4, 2, 2]], float)
    assert compared(np.linalg.solve, (a, a @ np.array([1.0, -2.0, 3.0])), arch)[0].tolist() == [1.0, -2.0, 3.0]


@on_every_arch
def test_a_singular_matrix_raises(arch: str) -> None:
    a = np.stack([np.eye(6), np.eye(6)])
    executable = compiled(np.linalg.solve, (a, a), arch)
    for bad in (np.zeros((6, 6)), np.ones((6, 6)), np.diag([1.0] * 5 + [0])):
        with pytest.raises(SingularMatrixError, match="solve: the matrix of order 6 is singular"):
            executable([np.stack([np.eye(6), bad]), a])


# -- walks and products


@on_every_arch
@in_every_dtype
@pytest.mark.parametrize("shape", [(6, 40), (3, 1500), (2048,)], ids=str)
def test_walks(shape: tuple[int, ...], dtype: str, arch: str) -> None:
    x = draw(shape, dtype)
    f = lambda x: [(np.cumsum(x, axis=a), bind1(registry["cummax"], x, axis=a, reverse=True)) for a in range(x.ndim)]
    compared(f, (x,), arch, scale=float(abs(x).sum()))
    compared(lambda x: np.cumsum(x[..., ::-1], axis=-1)[..., ::-1], (x,), arch, scale=float(abs(x).sum()))
    if shape[0] == 6:
        compared(lambda x: np.cumprod(x, axis=1), (x,), arch, scale=float(np.prod(1 + abs(x), axis=1).max()))


PRODUCTS = [(1, 1, 1), (17, 33, 20), (70, 30, 40), (1, 300, 5), (64, 100, 1), (5, 0, 3)]


@on_every_arch
@in_every_dtype
def test_products(dtype: str, arch: str) -> None:
    for n, k, m in PRODUCTS if arch != "sm_80" else PRODUCTS[1::2]:
        x, y = draw((n, k), dtype), draw((k, m), dtype)
        compared(lambda x, y: (x @ y, y.T @ x.T, (x @ y)[0]), (x, y), arch, scale=float(k))
    x, y = draw((3, 9, 20), dtype), draw((3, 20, 7), dtype)
    compared(lambda x, y: (x @ y, x[0] @ y, np.einsum("bij,bjk->kb", x, y), x @ y[:, :, 0:1]), (x, y), arch, scale=60.0)
    compared(lambda x, y: (np.outer(x, y), x @ x), (x[0, 0], y[0, 0]), arch, scale=60.0)


# -- control


def newton(x: Any) -> Any:
    """The square root, by a loop of unknown length."""
    return lax.while_loop(lambda y: abs(y * y - x) > 1e-6 * x, lambda y: (y + x / y) / 2, x)


def doubled(x: Any) -> Any:
    """Larger than 100: a loop of unknown length over an array."""
    return lax.while_loop(lambda c: np.sum(c) < 100, lambda c: c * 2 + np.roll(c, 1), x)


@on_every_arch
@pytest.mark.parametrize("dtype", ["float64", pytest.param("float32", marks=pytest.mark.cuda)])
def test_control(dtype: str, arch: str) -> None:
    v, m = abs(draw((9,), dtype)) + np.ones((), dtype), draw((40, 300), dtype)
    total = lambda f: lambda x: np.sum(f(x))
    programs: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "one thread": (newton, (v[0],)),
        "rows as threads": (fg.vmap(newton), (v,)),
        "its gradient": (fg.vmap(fg.grad(newton)), (v,)),
        "a host loop": (doubled, (abs(m),)),
        "its gradient too": (fg.grad(total(doubled)), (abs(m),)),
        "scan": (lambda x: lax.scan(lambda c, r: (np.tanh(c + r), c * r), x[0], x), (m,)),
        "scan, gradient": (fg.grad(lambda x: np.sum(lax.scan(lambda c, r: (np.tanh(c + r), c), x[0], x)[0])), (m,)),
        "small scan, gradient": (fg.grad(lambda x: lax.scan(lambda c, r: (np.sin(c + r), c), x[0], x)[0]), (v,)),
        "branches": (lambda p, x: lax.cond(p, lambda x: x @ x.T, lambda x: x[:, :40] * 2, x), (np.True_, m)),
        "branches of numbers": (lambda p, x: lax.cond(p, np.sin, np.cos, x), (np.False_, v[0])),
        "fori": (lambda x: lax.fori_loop(0, 3, lambda i, c: c * 2 + i.astype(dtype), x), (m,)),
        "map": (lambda x: lax.map(lambda r: np.cumsum(r)[-1], x), (m[:, :5],)),
    }
    for f, args in list(programs.values())[:: 1 if arch != "sm_80" else 2]:
        compared(f, args, arch, scale=300.0)


@on_every_arch
def test_a_heap_grows(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the reverse mode of loops of unknown length keeps is more than the heap has at first: all runs again."""
    monkeypatch.setattr(plan, "HEAP", 1 << 10)
    f = fg.vmap(fg.grad(lambda x: newton(x) * x))
    sizes = []
    allocate = type(device(arch)).allocate
    monkeypatch.setattr(type(device(arch)), "allocate", lambda d, n: (sizes.append(n), allocate(d, n))[1])
    compared(f, (abs(draw((70,), "float64")) + 1.0,), arch)
    assert {1 << 10, 1 << 12, 1 << 14} <= set(sizes)


@on_every_arch
def test_rows_of_a_loop_of_unknown_length_grow(arch: str) -> None:
    """The host keeps them, in a buffer that grows."""
    f = lambda x: np.sum(lax.while_loop(lambda c: c[0] < 40, lambda c: (c[0] + 1, np.sin(c[1]) * 1.5), (0, x))[1])
    compared(fg.grad(f), (draw((300,), "float64"),), arch, scale=1e3)

    def several(x: Any, y: Any) -> Any:
        step = lambda c: (c[0] + 1, np.sin(c[1]) * c[2], np.cos(c[2]))
        return np.sum(lax.while_loop(lambda c: c[0] < 40, step, (0, x, y))[1])

    compared(fg.grad(several, (0, 1)), (draw((33,), "float64"), np.float64(0.5)), arch, scale=10.0)


def steps(x: Any, n: Any) -> Any:
    """A loop of unknown length; those below have it inside."""
    return lax.while_loop(lambda s: s[1] < n, lambda s: (np.sin(s[0]) * x, s[1] + 1), (x, 0))[0]


def twice(x: Any, n: Any, k: Any) -> Any:
    return lax.while_loop(lambda s: s[1] < n, lambda s: (steps(s[0] * x, k + s[1]), s[1] + 1), (x, 0))[0]


def thrice(x: Any, n: Any, k: Any) -> Any:
    return lax.while_loop(lambda s: s[1] < n, lambda s: (twice(s[0] * x, k, k), s[1] + 1), (x, 0))[0]


def some(x: Any, n: Any, k: Any) -> Any:
    """With a loop in one of two branches, and a number of trips that is known."""
    inside = lambda i, y: lax.cond(i % 2 == 0, lambda y: steps(y * x, k), lambda y: np.cos(y) * x, y)
    return lax.fori_loop(0, 3, inside, x * n)


@on_every_arch
@pytest.mark.parametrize("shape", [(), (40,)], ids=["numbers", "arrays"])
@pytest.mark.parametrize("f", [twice, *[pytest.param(f, marks=pytest.mark.cuda) for f in (some, thrice)]])
def test_reverse_mode_of_loops_in_loops(f: Callable[..., Any], shape: tuple[int, ...], arch: str) -> None:
    """What an inner loop keeps is kept for each trip of the outer one: by the host where the values are arrays."""
    x, total = np.full(shape, 0.7) + 0.01 * np.arange(int(np.prod(shape))).reshape(shape), lambda *a: np.sum(f(*a))
    for n, k in ((2, 2), (0, 2), (3, 0)):
        compared(fg.grad(total), (x, n, k), arch)
    second = fg.grad(lambda *a: np.sum(np.sin(fg.grad(total)(*a))))
    compared(second, (x, 2, 1), arch)
    if arch != "sm_80":
        compared(fg.vmap(fg.grad(total), (0, None, None)), (np.stack([x, x / 2]), 2, 2), arch)


@on_every_arch
@pytest.mark.parametrize("shape", [(), (40,)], ids=["numbers", "arrays"])
def test_stacks_that_are_carried(shape: tuple[int, ...], arch: str) -> None:
    """They change places, grow, are handed out whole, and are read beyond their ends."""
    x = np.linspace(0.3, 0.9, int(np.prod(shape))).reshape(shape)[()]
    for n in (0, 7) if arch == "sm_80" else (0, 1, 7):
        compared(made(shape), (x, np.int64(n)), arch, scale=50.0)


def test_a_trip_that_keeps_nothing_gives_its_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a loop kept for the gradient that is taken in a trip is gone after it."""
    gradient = lambda i, x: x + 0.1 * fg.grad(lambda x: np.sum(steps(x, 3)))(x)
    held: list[int] = []
    row = plan._Growing.row
    monkeypatch.setattr(plan._Growing, "row", lambda g, *a: (held.append(len(g.running.held)), row(g, *a))[1])
    compared(lambda x: lax.fori_loop(0, 20, gradient, x), (draw((40,), "float64"),))
    assert len(held) >= 20 and max(held) <= 2


# -- checks and a whole step


@on_every_arch
def test_checks(arch: str) -> None:
    f = lambda x, i: np.cumsum(x[i] * 2.0)
    x = draw((40,), "float64")
    compared(f, (x, np.arange(-40, 40)), arch, scale=80.0)
    executable = compiled(f, (x, np.arange(300)), arch)
    for bad in (np.full(300, 40), np.where(np.arange(300) == 299, -41, 0)):
        with pytest.raises(OutOfBoundsError, match=f"index {bad[-1]} is out of bounds for axis 0 of length 40"):
            executable([x, bad])


@pytest.mark.parametrize("hidden", [24, pytest.param(mlp.HIDDEN, marks=pytest.mark.cuda)])
@on_every_arch
def test_the_training_step_of_the_demo(arch: str, hidden: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss, gradient and Adam, kernel by kernel."""
    monkeypatch.setattr(mlp, "HIDDEN", hidden)
    optimizer = fg.optim.adamw(fg.optim.cosine_decay_schedule(3e-3, 10), weight_decay=0.1)
    p = mlp.init(np.random.default_rng(0), 64)
    x, labels = abs(rng.normal(size=(mlp.BATCH, 64))), rng.integers(0, mlp.CLASSES, mlp.BATCH)
    step = mlp.train_step(optimizer)
    args = p, optimizer.init(p), x, labels
    found = compared(step, args, arch)
    for a, b in zip(found, fg.tree.leaves(step(*args)), strict=True):
        np.testing.assert_allclose(a, np.asarray(b), rtol=1e-6, atol=1e-12)


def test_the_sign_of_what_nobody_needs_otherwise() -> None:
    x = np.linspace(-2.0, 2.0, 33)
    compared(lambda x: np.signbit(np.arcsinh(x)), [x])  # LLVM leaves all of it away but the sign
