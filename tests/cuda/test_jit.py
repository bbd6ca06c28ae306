"""jit with device=: what comes back is right, lies on the device, and nests as any jit does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import DeviceArray, lax
from funcgrad.errors import (
    ArgumentError,
    DeviceError,
    ForwardModeError,
    NanError,
    OutOfBoundsError,
    ParameterError,
    StaticArgumentError,
    UnsupportedError,
)
from tests.cuda.interpreted import Borrowed

pytestmark = pytest.mark.usefixtures("gpu")
rng = np.random.default_rng(0)
X = rng.normal(size=(5, 7))
W = rng.normal(size=(7, 3))


def mlp(w: Any, x: Any) -> Any:
    return np.sum(np.tanh(x @ w) ** 2)


def newton(x: Any) -> Any:
    """The square root, by a loop of unknown length."""
    return lax.while_loop(lambda y: abs(y * y - x) > 1e-12, lambda y: 0.5 * (y + x / y), x)


PROGRAMS = {
    "elementwise": (lambda x: np.where(x > 0, np.sqrt(abs(x)), np.exp(x) * 3.0), (X,)),
    "broadcast": (lambda x, y: (x + y[:, None]) / 2.0, (X, X[:, 0])),
    "numbers": (lambda x, a, n: x * a + n, (X, 0.5, 3)),
    "sum": (lambda x: (np.sum(x), np.sum(x, axis=0), np.max(x, axis=1)), (X,)),
    "mean and std": (lambda x: (np.mean(x, axis=0), np.std(x)), (X,)),
    "product": (lambda x, w: x @ w, (X, W)),
    "vector product": (lambda x, w: x @ w[:, 0], (X, W)),
    "movement": (lambda x: np.concatenate([x.T[::-1], np.pad(x.T, 1)[1:-1, 1:-1]], axis=1)[2:6:2], (X,)),
    "gather": (lambda x, i: x[i] + x[:, i].T[:, :1] * 0, (X[:, :5], np.array([0, 4, 2]))),
    "scatter": (lambda x, i: x.at[i].add(1.0).at[i[0]].set(2.0), (fg.numpy.asarray(X), np.array([3, 1, 3]))),
    "cumsum": (lambda x: np.cumsum(x, axis=1), (X,)),
    "argmax": (lambda x: np.argmax(x, axis=1), (X,)),
    "integers": (lambda n: (n // 3, n % 3, n << 2, -n), (np.arange(-5, 6),)),
    "scan": (lambda x: lax.scan(lambda c, r: (c + np.sum(r), c * r), 0.0, x), (X,)),
    "fori": (lambda x: lax.fori_loop(0, 4, lambda i, c: c * 0.5 + i, x), (X,)),
    "while": (newton, (2.0,)),
    "cond": (lambda x, p: lax.cond(p, np.sin, np.cos, x), (X, True)),
    "captured": (lambda x: x @ W, (X,)),
    "nothing": (lambda: np.arange(4.0) * 2.0, ()),
    "empty": (lambda x: (x * 2.0, np.sum(x), x.T), (np.zeros((0, 3)),)),
}


def same(found: Any, expected: Any) -> None:
    """Equal structure, dtypes and shapes, and values within rounding."""
    a, b = fg.tree.leaves(found), fg.tree.leaves(expected)
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert x.dtype == y.dtype and x.shape == y.shape
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=2e-14, atol=1e-14)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_computes_what_it_does_on_the_cpu(name: str) -> None:
    f, args = PROGRAMS[name]
    found = fg.jit(f, device="cuda")(*args)
    assert all(type(x) is DeviceArray and x.device == "cuda:0" for x in fg.tree.leaves(found))
    same(found, fg.jit(f)(*args))


@pytest.mark.parametrize("dtype", ["f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"])
def test_every_dtype_goes_there_and_back(dtype: str) -> None:
    for shape in ((), (0,), (3,), (2, 5), (2, 0, 3)):
        x = (rng.normal(size=shape) * 50).astype(dtype)
        there = fg.device_put(x, "cuda")
        back = fg.device_get(there)
        assert type(back) is np.ndarray and back.dtype == x.dtype and back.shape == shape
        np.testing.assert_array_equal(back, x)
        np.testing.assert_array_equal(np.asarray(fg.jit(lambda x: x, device="cuda")(x)), x)


def test_exact_operations_have_the_same_bits() -> None:
    f = lambda x: np.where(x > 0, np.floor(x / 3.0) * x - 2.5, np.sqrt(abs(x)))[::-1]
    x = rng.normal(size=203) * 10
    np.testing.assert_array_equal(np.asarray(fg.jit(f, device="cuda")(x)), f(x))


# -- nesting


def test_gradients_of_a_jitted_function_run_there() -> None:
    f = fg.jit(mlp, device="cuda")
    for g in (fg.grad(f), fg.jit(fg.grad(mlp), device="cuda"), fg.jit(fg.grad(f), device="cuda")):
        found = g(W, X)
        assert type(found) is DeviceArray
        same(found, fg.grad(mlp)(W, X))


def test_values_of_derivatives_of_arrays_on_a_device_stay_there() -> None:
    w = fg.device_put(W, "cuda")
    value, gradient = fg.value_and_grad(mlp)(w, X)
    assert type(value) is DeviceArray and type(gradient) is DeviceArray
    same((value, gradient), fg.value_and_grad(mlp)(W, X))
    same(fg.jvp(mlp, (w, X), (W, X)), fg.jvp(mlp, (W, X), (W, X)))
    out, pull = fg.vjp(lambda w: np.tanh(X @ w), w)
    same(pull(out), fg.vjp(lambda w: np.tanh(X @ w), W)[1](np.tanh(X @ W)))
    same(fg.hessian(lambda v: np.sum(v**3))(w[0]), fg.hessian(lambda v: np.sum(v**3))(W[0]))


def test_derivatives_that_are_constants_stay_there_too(gpus: Any) -> None:
    x, total = fg.device_put(X[0], "cuda:1"), lambda v: np.sum(v * 2.0)
    y, pull = fg.vjp(lambda v: v * 2.0, x)
    for found, expected in [
        (fg.grad(total)(x), np.full(7, 2.0)),
        (fg.grad(lambda v: 1.0)(x), np.zeros(7)),
        (fg.grad(lambda w: np.sum(X @ w))(x), np.sum(X, axis=0)),
        (fg.grad(lambda p: np.sum(p["x"]) + np.sum(p["w"]))({"x": x, "w": W}), {"x": np.ones(7), "w": np.ones((7, 3))}),
        (fg.grad(lambda v: lax.while_loop(lambda c: c < 0.0, lambda c: c + v[0], 1.0))(x), np.zeros(7)),
        (fg.jvp(lambda v: np.ones(2), (x,), (x,)), (np.ones(2), np.zeros(2))),
        (pull(np.ones(7)), (np.full(7, 2.0),)),
        (fg.jit(lambda v: fg.vjp(lambda v: v * 2.0, v)[1])(x)(y), (X[0] * 4.0,)),
        (fg.linearize(lambda v: (v * 2.0, 1.0), x)[1](np.ones(7)), (np.full(7, 2.0), 0.0)),
        (fg.jacfwd(lambda v: v * 2.0)(x), 2.0 * np.eye(7)),
        (fg.jacrev(lambda v: (v * 2.0, 1.0))(x), (2.0 * np.eye(7), np.zeros(7))),
        (fg.hessian(total)(x), np.zeros((7, 7))),
        (fg.grad(lambda v: np.sum(v * x[0]))(W), np.full((7, 3), X[0, 0])),
        (
            fg.jit(fg.grad(lambda a, b: np.sum(a * b * a), (0, 1)), device="cuda:1")(x, fg.device_put(X[1], "cuda:0")),
            (2 * X[0] * X[1], X[0] ** 2),
        ),
    ]:
        assert [a.device for a in fg.tree.leaves(found)] == ["cuda:1"] * len(fg.tree.leaves(expected))
        same(found, fg.tree.map(np.asarray, expected))
    there = fg.grad(fg.jit(total, device="cuda:1"))(X)
    assert there.device == "cuda:1" and there.tolist() == np.full(X.shape, 2.0).tolist()
    moved = fg.device_put(fg.linearize(np.sin, x)[1], "cuda:0")
    assert moved(np.ones(7)).device == "cuda:0"


def test_arrays_on_two_gpus_do_not_meet_without_being_told_where(gpus: Any) -> None:
    x, y = fg.device_put(X[0], "cuda:0"), fg.device_put(X[1], "cuda:1")
    total = lambda a, b: np.sum(a * b)
    for call in (
        lambda: x + y,
        lambda: np.add(y, x),
        lambda: np.concatenate([x, y]),
        lambda: fg.jit(total)(x, y),
        lambda: fg.grad(total)(x, y),
        lambda: fg.jit(lambda v: v + x)(y),
        lambda: fg.vmap(lambda a, b: a * b)(x, y),
        lambda: fg.jvp(total, (x, y), (x, y)),
    ):
        with pytest.raises(DeviceError, match=r"its arrays lie on cuda:[01] and cuda:[01], and nothing says where"):
            call()
    for place in ("cuda:0", "cuda:1"):
        found = fg.jit(fg.grad(total, (0, 1)), device=place)(x, y)
        assert [a.device for a in found] == [place] * 2
        same(found, (X[1], X[0]))
        same(fg.jit(lambda v: v + x, device=place)(y), X[0] + X[1])
    same(fg.jit(total, device="cpu")(x, y), np.sum(X[0] * X[1]))


def test_a_jitted_function_inside_that_asks_for_the_cpu(gpu: Any) -> None:
    """It gets it, whatever is around; a device of the outermost jit comes first."""
    x, f = fg.device_put(X[0], "cuda"), lambda v: np.sum(np.sin(v) ** 2)
    here = fg.jit(f, device="cpu")
    ways = {
        "grad": lambda f: fg.grad(f),
        "vmap": lambda f: fg.vmap(f),
        "jit": lambda f: fg.jit(f),
        "vjp": lambda f: lambda v: fg.vjp(f, v)[1](1.0),
        "jvp": lambda f: lambda v: fg.jvp(f, (v,), (v,)),
        "linearize": lambda f: lambda v: fg.linearize(f, v)[1](v),
        "hessian": lambda f: fg.hessian(f),
        "beside": lambda f: fg.grad(lambda v: f(v) * np.sum(v)),
        "none": lambda f: f,
    }
    launched = len(gpu.launched)
    for name, way in ways.items():
        found = way(here)(x)
        assert not any([isinstance(y, DeviceArray) for y in fg.tree.leaves(found)]), name
        same(found, way(f)(X[0]))
    unknown = fg.jit(
        lambda v: np.sum(lax.while_loop(lambda c: np.sum(c) < 50.0, lambda c: c * 1.5 + 1, v)), device="cpu"
    )
    same(fg.grad(unknown)(x), fg.grad(unknown)(X[0]))
    assert len(gpu.launched) == launched
    assert isinstance(fg.jit(fg.grad(here), device="cuda")(x), DeviceArray)


def test_python_control_flow_sees_values_of_a_device() -> None:
    def f(x: Any) -> Any:
        return np.sum(x**3) if np.sum(x) > 0 else np.sum(x)

    x = np.array([1.0, 2.0])
    same(fg.grad(f)(fg.device_put(x, "cuda")), fg.grad(f)(x))


def test_rows_of_vmap() -> None:
    row = lambda x: np.sum(x * np.cos(x))
    same(fg.vmap(fg.jit(row, device="cuda"))(X), fg.vmap(row)(X))
    same(fg.jit(fg.vmap(fg.grad(row)), device="cuda")(X), fg.vmap(fg.grad(row))(X))
    same(fg.vmap(row)(fg.device_put(X, "cuda")), fg.vmap(row)(X))


def test_the_gradient_of_loops() -> None:
    f = lambda x: lax.scan(lambda c, r: (np.sin(c + r), c), 0.1, x)[0]
    x = X[0]
    same(fg.jit(fg.grad(f), device="cuda")(x), fg.grad(f)(x))
    same(fg.jit(fg.grad(newton), device="cuda")(2.0), fg.grad(newton)(2.0))


def chain(x: Any, n: Any) -> Any:
    """A loop of unknown length, whose trips are kept for the reverse mode."""
    return lax.while_loop(lambda s: s[1] < n, lambda s: (np.sin(s[0]) * x, s[1] + 1), (x, 0))[0]


def chains(x: Any, n: Any) -> Any:
    return lax.while_loop(lambda s: s[1] < n, lambda s: (chain(s[0] * x, s[1]), s[1] + 1), (x, 0))[0]


@pytest.mark.parametrize("x", [np.float64(0.7), np.linspace(0.5, 0.9, 40)], ids=["numbers", "arrays"])
@pytest.mark.parametrize("f", [pytest.param(chain, marks=pytest.mark.cuda), chains])
def test_what_loops_keep_stays_on_the_device_between_programs(f: Any, x: Any, gpu: Any) -> None:
    there = fg.device_put(x, "cuda")
    for n in (3, 0):
        expected, pull = fg.vjp(lambda x, n=n: f(x, n), x)
        out, pull_there = fg.vjp(lambda x, n=n: f(x, n), there)
        gradient = pull(np.ones_like(expected))
        same((out, pull_there(np.ones_like(expected))), (expected, gradient))
        fetched = gpu.fetched
        pull_there(out)
        assert gpu.fetched - fetched <= 4096  # lengths, and whether to go on, but no values
        same(fg.linearize(lambda x, n=n: f(x, n), there)[1](x), fg.jvp(lambda x, n=n: f(x, n), (x,), (x,))[1])
        returned = fg.jit(lambda x, n=n: fg.vjp(lambda x: f(x, n), x)[1], device="cuda")(x)
        same(returned(np.ones_like(expected)), gradient)
        same(fg.jit(returned, device="cpu")(np.ones_like(expected)), gradient)  # brought here
        from_here = fg.jit(pull, device="cuda")(np.ones_like(expected))  # sent there
        assert all(a.device == "cuda:0" for a in from_here)
        same(from_here, gradient)


def solved(z: Any) -> Any:
    """What has no straight-line code, so that the host drives the loop around."""
    return np.linalg.solve(4.0 * np.eye(2), z + 1.0)


def rows_of_an_odd_length(x: Any) -> Any:
    return lax.scan(lambda z, r: (solved(z), (r[:16] * 2, r + 1, z)), np.ones(2), x)


def a_part_of_an_array(x: Any) -> Any:
    part = x[0, 1:]
    return lax.scan(lambda z, _: (solved(z), part * z[0].astype(x.dtype)), np.ones(2), None, length=2)


def rows_that_a_kernel_keeps(x: Any) -> Any:
    def kept(y: Any, w: Any) -> Any:  # a trip keeps several values side by side; the derivative of w is large
        step = lambda s: (np.sin(s[0] * w[:4]) * np.cos(s[2]), s[1] + 1, np.sin(s[2] * w[0]))
        return np.sum(lax.while_loop(lambda s: s[1] < 3, step, (y, 0, y[0]))[0])

    return fg.grad(kept, argnums=(0, 1))(x[0, :4], np.repeat(x[1], 20))


@pytest.mark.parametrize("dtype", ["f8", "f4"])
@pytest.mark.parametrize("f", [rows_of_an_odd_length, a_part_of_an_array, rows_that_a_kernel_keeps])
def test_what_does_not_begin_at_16_bytes_is_not_loaded_by_them(f: Any, dtype: str) -> None:
    x = np.random.default_rng(2).normal(size=(3, 17)).astype(dtype)
    for a, b in zip(*[fg.tree.leaves(fg.jit(f, device=d)(x)) for d in ("cuda", "cpu")], strict=True):
        np.testing.assert_allclose(np.asarray(a), b, rtol=1e-6 if dtype == "f4" else 1e-14)


def test_the_outer_device_counts(gpus: Any) -> None:
    inner = fg.jit(np.sin, device="cuda:1")
    assert fg.jit(lambda x: inner(x) + 1, device="cuda:0")(X).device == "cuda:0"
    assert type(fg.jit(lambda x: inner(x) + 1, device="cpu")(X)) is fg.Array
    assert fg.jit(lambda x: inner(x) + 1)(X).device == "cuda:1"
    assert fg.grad(lambda x: np.sum(inner(x)))(X).device == "cuda:1"


def test_a_jitted_function_without_device_runs_where_its_arguments_are(gpus: Any) -> None:
    f = fg.jit(lambda x, y: x * y)
    assert type(f(X, X)) is fg.Array
    for name in ("cuda:0", "cuda:1"):
        found = f(fg.device_put(X, name), X)
        assert found.device == name
        same(found, X * X)
    assert type(f(X, X)) is fg.Array
    captured = fg.device_put(X, "cuda:1")
    assert fg.jit(lambda x: x * captured)(X).device == "cuda:1"
    assert type(fg.jit(lambda x: x * 2, device="cpu")(captured)) is fg.Array


def test_arguments_on_another_device_are_brought_there(gpus: Any) -> None:
    f = fg.jit(lambda x, y: x + y, device="cuda:1")
    found = f(fg.device_put(X, "cuda:0"), fg.device_put(X, "cuda:1"))
    assert found.device == "cuda:1"
    same(found, X + X)


# -- as any jit


def test_trees_and_static_arguments() -> None:
    @fg.jit(device="cuda", static_argnames=("n", "name"))
    def f(p: Any, n: int, name: str) -> Any:
        return {name: [p["w"] * k for k in range(n)], "none": None}

    found = f({"w": X}, 2, name="a")
    assert found["none"] is None
    same(found["a"], [X * 0, X * 1])
    assert f.cache_info().misses == 1
    f({"w": X + 1}, 2, name="a")
    assert f.cache_info() == (1, 1, 1)
    with pytest.raises(StaticArgumentError, match="not hashable"):
        f({"w": X}, 2, name=[])


def test_what_is_on_the_device_is_not_sent_again(gpu: Any) -> None:
    f = fg.jit(lambda x, y: x * y + 1.0, device="cuda")
    x, y = fg.device_put((X, X), "cuda")
    f(x, y)
    sent, fetched = gpu.sent, gpu.fetched
    z = f(x, y)
    assert (gpu.sent, gpu.fetched) == (sent, fetched)
    same(z, X * X + 1.0)


@pytest.mark.parametrize("grad", [False, True])
def test_loops_of_known_length_do_not_wait(gpu: Any, grad: bool) -> None:
    """Their bodies are kernels that the host starts; what these need to know of the trip is on the device already."""

    def f(x: Any) -> Any:
        trip = lambda c, i: (np.tanh(c @ W[:, :1] * i + c[::-1]), np.sum(c))
        last, sums = lax.scan(trip, x, np.arange(6))
        return np.sum(last) + np.sum(sums * lax.fori_loop(0, 70, lambda i, c: c + i * 0.5, np.zeros(6)))

    f = fg.grad(f) if grad else f
    g, x = fg.jit(f, device="cuda"), fg.device_put(X, "cuda")
    same(g(x), fg.jit(f)(X))
    launched, sent, fetched = len(gpu.launched), gpu.sent, gpu.fetched
    y = g(x)
    assert (gpu.sent, gpu.fetched) == (sent, fetched) and len(gpu.launched) - launched > 6
    same(y, fg.jit(f)(X))


def test_equal_programs_are_compiled_once(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    f, g = (fg.jit(lambda x: np.cos(x) * 0.25, device="cuda") for _ in range(2))
    f(X)
    monkeypatch.setattr(type(gpu), "load", None)
    same(g(X), np.cos(X) * 0.25)


def test_donated_arrays_are_gone() -> None:
    step = fg.jit(lambda w, g: w - 0.5 * g, device="cuda", donate_argnums=0)
    w, g = fg.device_put((np.ones(3), np.ones(3)), "cuda")
    new = step(w, g)
    assert new.tolist() == [0.5, 0.5, 0.5] and w.is_deleted() and not g.is_deleted()
    assert "deleted" in repr(w)
    for use in (lambda: w + 1, lambda: np.asarray(w), lambda: step(w, g)):
        with pytest.raises(DeviceError, match="donated"):
            use()
    twice = fg.device_put(np.ones(3), "cuda")
    step(twice, twice)
    assert not twice.is_deleted()


STEPS: dict[str, tuple[Any, list[bool]]] = {
    "one loop": (lambda w, g: w - 0.5 * g, [True]),
    "its sum too": (lambda w, g: (w - 0.5 * g, np.sum(w)), [True]),
    "both": (lambda w, g: (w + g, w * g), [True]),
    "never read": (lambda w, g: g * 2.0, [True]),
    "in another order": (lambda w, g: w[::-1] + g, [False]),
    "at positions too": (lambda w, g: w + w[np.argmax(g) * np.ones(w.shape, int)], [False]),
    "a running sum": (lambda w, g: np.cumsum(w), [False]),
    "by its norm": (lambda w, g: w / np.sum(w * g), [True]),
    "read again later": (lambda w, g: (w * 2.0, np.cumsum(w)), [False]),
    "a loop": (lambda w, g: lax.fori_loop(0, 3, lambda i, w: w - g, w), [False]),
}


@pytest.mark.parametrize("n", [7, 1024])
@pytest.mark.parametrize("name", STEPS)
def test_results_lie_in_donated_arrays_where_they_can(name: str, n: int) -> None:
    f, expected = STEPS[name]
    values, g = rng.normal(size=n), np.abs(rng.normal(size=n))
    step = fg.jit(f, device="cuda", donate_argnums=0)
    w = fg.device_put(values, "cuda")
    address, there = w.address, fg.device_put(g, "cuda")
    found = fg.tree.leaves(step(w, there))
    same(found, fg.tree.leaves(f(values, g)))
    taken = [x.address == address for x in found]
    assert all([e or not t for t, e in zip(taken, expected, strict=False)])  # True has to be proved
    assert taken[0] == expected[0] and w.is_deleted() and not there.is_deleted()
    w, there = fg.device_put((values, g), "cuda")
    swap = lambda w, g: (g, w, *fg.tree.leaves(f(w, g)))
    same(fg.jit(swap, device="cuda", donate_argnums=(0, 1))(w, there), swap(values, g))


ALL_AT_ONCE = {
    "many sums": lambda w, v: (w * 2.0, [np.sum(w * k) for k in range(64)], w + v),
    "read by others": lambda w, v: (v + w, w * v, w - v, np.sin(w)),
    "exchanged": lambda w, v: (v, w, v + w),
    "read late": lambda w, v: (w + 1.0, v * w, np.sum(w)),
}


@pytest.mark.parametrize("donated", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("name", ALL_AT_ONCE)
def test_what_a_kernel_reads_is_read_before_it_is_overwritten(name: str, donated: tuple[int, ...]) -> None:
    """Results are stored as early as they can be, sums are shared out between kernels: not so that this matters."""
    f, args = ALL_AT_ONCE[name], (np.linspace(0.0, 1.0, 1032), np.linspace(1.0, 3.0, 1032))
    same(fg.jit(f, device="cuda", donate_argnums=donated)(*fg.device_put(args, "cuda")), f(*args))


def test_no_memory_is_needed_for_a_result_in_a_donated_array(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    step = fg.jit(lambda p, g: [a - 0.5 * b for a, b in zip(p, g, strict=True)], device="cuda", donate_argnums=0)
    p, g = fg.device_put(([X, W], [X * 2, W * 2]), "cuda")
    p = step(p, g)
    sizes: list[int] = []
    allocate = type(gpu).allocate
    monkeypatch.setattr(type(gpu), "allocate", lambda d, n: (sizes.append(n), allocate(d, n))[1])
    for _ in range(3):
        p = step(p, g)
    assert max(sizes) < min(X.nbytes, W.nbytes)
    same(p, [X - 4 * X, W - 4 * W])


def test_memory_that_is_not_only_the_arguments_is_not_written_to(gpu: Any) -> None:
    step = fg.jit(lambda w, g: w - 0.5 * g, device="cuda", donate_argnums=0)
    x = fg.device_put(X, "cuda")
    same(step(x, x), X / 2)
    same(x, X)
    theirs = Borrowed(gpu, X)
    same(step(theirs, X), X / 2)
    assert gpu.read(theirs.memory.address, X.nbytes) == X.tobytes()
    captured = fg.device_put(X, "cuda")
    same(fg.jit(lambda w: w + captured, device="cuda", donate_argnums=0)(captured), X + X)
    assert step(X, X).device == "cuda:0"


def test_a_call_that_fails_leaves_donated_arrays_as_they_are() -> None:
    step = fg.jit(lambda w, i: (w * 2.0, w[i]), device="cuda", donate_argnums=0)
    w = fg.device_put(X[0], "cuda")
    with pytest.raises(OutOfBoundsError):
        step(w, np.array([0, 9]))
    same(w, X[0])
    same(step(w, np.array([0, 6])), (X[0] * 2.0, X[0][[0, 6]]))
    assert w.is_deleted()


# -- errors


def test_checks_raise_the_error_of_the_cpu_at_the_users_line() -> None:
    def pick(x: Any, i: Any) -> Any:
        return x[i] * 2.0

    f = fg.jit(pick, device="cuda")
    same(f(X[0], np.array([0, 6])), pick(X[0], np.array([0, 6])))
    with pytest.raises(OutOfBoundsError, match=r"index 9 is out of bounds for axis 0 of length 7 \(x: f64\[7\]\)") as e:
        f(X[0], np.array([0, 9]))
    assert e.value.source is not None and e.value.source.text == "return x[i] * 2.0"
    with pytest.raises(IndexError):
        f(X[0], np.array([-8, 0]))
    same(f(X[0], np.array([1, -1])), pick(X[0], np.array([1, -1])))


def test_operations_without_a_form_name_themselves_and_the_line() -> None:
    programs = [
        (lambda x: np.real(np.exp(1j * x)), "convert"),
        (lambda x: x.astype(np.float16) + 1, "convert"),
        (lambda x: fg.pure_callback(np.sin, x, x), "callback"),
    ]
    for f, name in programs:
        with pytest.raises(UnsupportedError, match=f"{name}.* has no CUDA form yet") as e:
            fg.jit(f, device="cuda")(X)
        assert e.value.source is not None and "lambda x" in e.value.source.text
        assert e.value.hint == "the CPU runs it: jit without device=, and fg.device_get(x) for arrays that lie on a GPU"
        y = fg.device_put(X, "cuda")
        with pytest.raises(UnsupportedError, match=f"{name}.* has no CUDA form yet") as e:
            fg.jit(f)(y)
        assert e.value.hint is not None and "fg.device_get(x)" in e.value.hint
        same(fg.jit(f)(fg.device_get(y)), f(X))


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "cuda:٣", "cpu:1", 0, "CUDA"])
def test_names_that_are_no_device(device: Any) -> None:
    with pytest.raises(ParameterError, match="device is 'cpu', 'cuda'"):
        fg.jit(lambda x: x, device=device)


def test_lowering_and_device() -> None:
    with pytest.raises(ParameterError, match="is for the CPU"):
        fg.jit(lambda x: x, device="cuda", lowering="numba")
    with pytest.raises(ParameterError, match="lowering is one of 'llvm', 'numba'"):
        fg.jit(lambda x: x, lowering="cuda:0")
    same(fg.jit(lambda x: x + 1, device="cpu", lowering="numba")(X), X + 1)


def test_arguments_that_are_no_arrays() -> None:
    with pytest.raises(ArgumentError, match="is a string"):
        fg.jit(lambda x: x, device="cuda")("a")


def test_nothing_of_a_trace_escapes_to_a_device() -> None:
    for transform in (fg.jit, fg.vmap, fg.grad):
        with pytest.raises(ArgumentError, match=r"device_put: x: f64.* is traced, and what is traced together"):
            transform(lambda x: np.sum(fg.device_put({"x": x}, "cuda")["x"]))(X)
    y = fg.device_put(X, "cuda")
    same(fg.grad(lambda x: np.sum(x * y + y / x - (y - x) ** 2))(X + 9), fg.grad(
        lambda x: np.sum(x * X + X / x - (X - x) ** 2))(X + 9))  # fmt: skip


def test_nans_are_traced_back_to_their_line() -> None:
    f = fg.jit(lambda x: np.sum(np.log(x) * 2.0), device="cuda")
    with fg.debug_nans():
        same(f(X**2), np.sum(np.log(X**2) * 2.0))
        with pytest.raises(NanError, match=r"log: element 1 of the result \[3\] is NaN for -1.0") as e:
            f(np.array([1.0, -1.0, 2.0]))
        assert e.value.source is not None and "np.log(x)" in e.value.source.text
        with pytest.raises(NanError, match="log"):
            fg.grad(lambda x: np.log(x))(fg.device_put(-1.0, "cuda"))


def test_threads_share_what_is_compiled() -> None:
    f = fg.jit(lambda x: np.cumsum(np.sin(x) @ x.T, axis=0), device="cuda")
    xs = [X + i for i in range(8)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(f, xs))
    for x, y in zip(xs, found, strict=True):
        same(y, np.cumsum(np.sin(x) @ x.T, axis=0))


def test_rules_of_the_users() -> None:
    @fg.custom_vjp
    def f(x: Any) -> Any:
        return np.sin(x)

    f.defvjp(lambda x: (np.sin(x), x), lambda x, ct: (ct * 10.0 * np.cos(x),))
    x = fg.device_put(X[0], "cuda")
    same(fg.grad(lambda x: np.sum(f(x)))(x), 10.0 * np.cos(X[0]))
    same(
        fg.grad(lambda x: np.sum(fg.checkpoint(lambda x: np.sin(np.sin(x)))(x)))(x), np.cos(np.sin(X[0])) * np.cos(X[0])
    )
    same(fg.jit(fg.grad(lambda x: np.sum(f(x))))(x), 10.0 * np.cos(X[0]))
    for forward in (lambda: fg.jvp(f, (x,), (x,)), lambda: fg.jit(fg.jacfwd(f), device="cuda")(X[0])):
        with pytest.raises(ForwardModeError, match="custom_vjp has a backward rule only"):
            forward()
    g, scale = fg.custom_jvp(lambda x: np.sin(x)), fg.device_put(10.0, "cuda")
    g.defjvp(lambda primals, tangents: (np.sin(*primals), scale * np.cos(*primals) * tangents[0]))
    for found in (fg.grad(lambda x: np.sum(g(x)))(x), fg.jit(fg.grad(lambda x: np.sum(g(x))))(X[0])):
        same(found, 10.0 * np.cos(X[0]))


def test_an_optimizer_runs_where_its_parameters_are(gpu: Any) -> None:
    opt = fg.optim.adam(0.1)
    w = fg.device_put({"w": W}, "cuda")
    state, host, host_state = opt.init(w), {"w": W}, opt.init({"w": W})
    for _ in range(2):
        updates, state = opt.update(fg.grad(lambda p: mlp(p["w"], X))(w), state, w)
        w = fg.optim.apply_updates(w, updates)
        updates, host_state = opt.update(fg.grad(lambda p: mlp(p["w"], X))(host), host_state, host)
        host = fg.optim.apply_updates(host, updates)
    assert type(w["w"]) is DeviceArray
    same(w, host)


@pytest.mark.parametrize("dtype", ["f8", "f4", "i2", "i8", "?"])
def test_long_reductions_over_the_first_axis_of_few_columns(dtype: str) -> None:
    x = (rng.normal(size=(99, 4)) * 9).astype(dtype)
    f = lambda x: (np.sum(x, axis=0), np.max(x, axis=0), np.any(x > 20, axis=0), np.argmin(x, axis=0))
    found = fg.jit(f, device="cuda")(x)
    for a, b in zip(found, f(x), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(np.asarray(a), b, rtol=1e-5 if dtype == "f4" else 1e-13)
