"""Numba source: an independent way from a Program to results, compared with NumPy evaluation.

Exact operations give the same bits. A Numba compilation costs half a second, so many ops share a Program, and LLVM's
optimisation is off unless NUMBA_OPT says otherwise; every op with every dtype is in the slow suite.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import errors
from funcgrad.api.inspect import abstract_trace
from funcgrad.core.evaluate import run
from funcgrad.core.primitive import registry
from funcgrad.core.trace import bind1, eagerly
from funcgrad.lowering import LOWERINGS
from funcgrad.lowering.numba_source.executable import NumbaExecutable, numba_executable
from funcgrad.lowering.numba_source.helpers import HELPERS
from funcgrad.lowering.numba_source.spelling import CHECKS, SPELLINGS
from funcgrad.lowering.numba_source.whole import LIBRARY
from funcgrad.lowering.numba_source.writer import REDUCTIONS
from funcgrad.ops.op import Op
from tests.lowering.random_programs import NATIVE, SHAPES, draw_array, random_function
from tests.lowering.test_native_ops import DTYPES, edges, same_bits
from tests.ops.samples import SAMPLES
from tests.rule_checker import TOLERANCES, all_primitives, close, ulps

os.environ.setdefault("NUMBA_OPT", "0")  # read when Numba is imported, which is later
PRIMITIVES = {n: p for n, p in all_primitives().items() if n == "call" or (isinstance(p, Op) and n != "solve")}
ELEMENTWISE = [n for n, op in PRIMITIVES.items() if op.traits.kind == "elementwise"]
slow = pytest.mark.slow
BY_KIND = ["float64", "int32", "bool"]


def each_dtype(*default: str, of: list[str]) -> list[Any]:
    """All dtypes as parameters, those that are not in `default` for the slow suite."""
    return [pytest.param(d, marks=[] if d in default else slow) for d in of]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


def numba_and_numpy(f: Callable[..., Any], args: list[Any]) -> tuple[list[Any], list[Any]]:
    """Results of the Program of `f` by Numba, and as evaluated."""
    traced = abstract_trace(f, tuple(args), {}, "test")
    before, values = [np.array(x) for x in args], [*traced.constants, *args]
    with eagerly():
        found, expected = NumbaExecutable(traced.program)(values), run(traced.program, values)
    assert all(same_bits(x, y) for x, y in zip(args, before, strict=True)), "an argument was written to"
    return found, expected


def arity(name: str) -> int:
    return registry[name].function.__code__.co_argcount if name != "convert" else 1


# -- elementwise


@pytest.mark.parametrize("dtype", each_dtype(*BY_KIND, of=DTYPES))
def test_exact_ops_give_the_same_bits(dtype: str) -> None:
    """On the edge values of a dtype, and all pairs of them."""
    one = edges(dtype)
    pairs = [np.ascontiguousarray(a).ravel() for a in np.meshgrid(one, one)]
    args = [one, *pairs, np.resize([True, False], pairs[0].size)]
    cases = [
        (n, {"dtype": np.dtype(to), "weak": False} if to else {})
        for n in ELEMENTWISE
        if registry[n].traits.exact and np.dtype(dtype).kind in registry[n].dtypes
        for to in (DTYPES if n == "convert" else [None])
    ]

    def f(x: Any, a: Any, b: Any, c: Any) -> list[Any]:
        return [bind1(registry[n], *{1: (x,), 2: (a, b), 3: (c, a, b)}[arity(n)], **p) for n, p in cases]

    found, expected = numba_and_numpy(f, args)
    wrong = [case for case, a, b in zip(cases, found, expected, strict=True) if not same_bits(a, b)]
    assert not wrong
    assert len(cases) >= 15


ROUNDED = [n for n in ELEMENTWISE if not registry[n].traits.exact]
ABSOLUTE = {"sinc": 1e-15}  # the error that the op states, where it is not relative


@pytest.mark.parametrize("dtype", each_dtype("float64", of=["float32", "float64"]))
def test_functions_and_their_derivatives(dtype: str) -> None:
    """On the domain of each op, at its special points, and at infinity and NaN."""
    names = [n for n in ELEMENTWISE if "f" in registry[n].dtypes and n not in SAMPLES]
    rng = np.random.default_rng(0)
    columns: dict[str, list[Any]] = {}
    for n in names:
        domain = registry[n].domain
        special = [*domain.at, *[(v,) * arity(n) for v in (np.nan, np.inf, -np.inf, 0.0)]]
        columns[n] = [
            np.concatenate([rng.uniform(*domain.interval(i), 5), [p[i] for p in special]]).astype(dtype)
            for i in range(arity(n))
        ]
    length = max(len(x) for xs in columns.values() for x in xs)
    table = np.array([np.resize(x, length) for xs in columns.values() for x in xs])
    derived = [n for n in names if not registry[n].no_derivative]

    def f(table: Any) -> tuple[list[Any], list[Any]]:
        rows = iter(range(len(table)))
        values, derivatives = [], []
        for n in names:
            xs = [table[next(rows)] for _ in range(arity(n))]
            y, back = fg.vjp(lambda *xs, n=n: bind1(registry[n], *xs), *xs)
            values.append(y)
            if n in derived:
                derivatives.append(back(np.ones(length, dtype)))
        return values, derivatives

    found, expected = numba_and_numpy(f, [table])
    eps = TOLERANCES[np.dtype(dtype)].eps
    for n, a, b in zip(names, found, expected, strict=False):
        if registry[n].traits.exact:
            assert same_bits(a, b), n
        else:
            bound = TOLERANCES[np.dtype(dtype)].ulps
            bad = (ulps(a, b, eps) > bound) & ~(abs(a - b) <= ABSOLUTE.get(n, 0.0) + (eps if n in ABSOLUTE else 0.0))
            assert a.dtype == b.dtype and not bad.any(), f"{n}: {a[bad]}, not {b[bad]}"
    labels = [n for n in derived for _ in range(arity(n))]
    for n, a, b in zip(labels, found[len(names) :], expected[len(names) :], strict=True):
        close(f"vjp of {n}", a, b, TOLERANCES[np.dtype(dtype)].same)


@pytest.mark.parametrize("dtype", each_dtype("int64", of=[d for d in DTYPES if "int" in d]))
def test_integer_powers_wrap(dtype: str) -> None:
    a, b = (np.ascontiguousarray(v).ravel() for v in np.meshgrid(edges(dtype), edges(dtype)))
    found, expected = numba_and_numpy(lambda a, b: bind1(registry["pow"], a, b), [a, b])
    assert same_bits(found[0], expected[0])


def test_derivatives_of_sinc_of_higher_order() -> None:
    x = np.linspace(-4, 4, 33)
    f = lambda x: [bind1(registry["sinc"], x, order=k) for k in range(4)]
    for k, (a, b) in enumerate(zip(*numba_and_numpy(f, [x]), strict=True)):
        np.testing.assert_allclose(a, b, rtol=1e-13, atol=2e-15 * np.pi**k)


# -- all other primitives


def back(s: Any) -> Callable[..., Any]:
    """The cotangents of a sample's floats."""

    def f(*args: Any) -> Any:
        at = [i for i, x in enumerate(args) if x.dtype.kind == "f"]
        at = [1] if s.linear_in else at

        def of_floats(*xs: Any) -> Any:
            full = list(args)
            for i, x in zip(at, xs, strict=True):
                full[i] = x
            return s.function(*full)[0]

        y, pull = fg.vjp(of_floats, *[args[i] for i in at])
        return pull((1.0 + np.arange(y.size).reshape(y.shape)).astype(y.dtype))

    return f


def check_samples(cases: list[tuple[Any, list[Any]]], derive: bool) -> None:
    """Values (and cotangents) of samples, all in one Program."""
    counts = [len(args) for _, args in cases]

    def f(*flat: Any) -> list[Any]:
        out, rest = [], list(flat)
        for (s, _), n in zip(cases, counts, strict=True):
            args, rest = rest[:n], rest[n:]
            result = s.function(*args)
            floats = any(x.dtype.kind == "f" for x in args) and result[0].dtype.kind == "f"
            out.append((result, back(s)(*args) if derive and floats else ()))
        return out

    flat = [x for _, args in cases for x in args]
    found, expected = numba_and_numpy(f, flat)
    tree = fg.tree.structure(f(*flat))
    pairs = zip(fg.tree.unflatten(tree, found), fg.tree.unflatten(tree, expected), strict=True)
    for (s, _), ((a, a_bar), (b, b_bar)) in zip(cases, pairs, strict=True):
        for x, y in zip(a, b, strict=True):
            if registry[s.name].traits.exact:
                assert same_bits(x, y), f"{s}: {x}, not {y}"
            else:
                assert x.dtype == y.dtype
                close(str(s), x, y, TOLERANCES.get(y.dtype, TOLERANCES[np.dtype(float)]).same)
        for x, y in zip(a_bar, b_bar, strict=True):
            assert x.dtype == y.dtype
            close(f"vjp of {s}", x, y, TOLERANCES[y.dtype].same)


GROUPS = {
    "movement": [
        "broadcast",
        "reshape",
        "transpose",
        "reverse",
        "slice",
        "pad",
        "concatenate",
        "iota",
        "select",
        "banded",
    ],
    "reductions": ["reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "reduce_any", "reduce_all", "argmax"],
    "totals": ["argmin", "cumsum", "cumprod", "cummax", "cummin", "linear_recurrence"],
    "products and windows": ["dot", "convert", "call", "dynamic_slice", "dynamic_update_slice"],
    "places": ["check_index", "check_fits", "stable_order", "gather", "scatter", "scatter_add"],
    "more scatters": ["scatter_mul", "scatter_min", "scatter_max"],
}
CHOSEN = {"linear_recurrence": 2, "dot": 11, "reduce_sum": 3, "reduce_max": 4, "pad": 2, "slice": 3, "cumsum": 1,
          "scatter_mul": 4, "scatter": 8, "concatenate": 3}  # fmt: skip


def test_every_primitive_is_covered() -> None:
    assert {n for group in GROUPS.values() for n in group} | {n for n in ELEMENTWISE if n != "convert"} >= set(
        PRIMITIVES
    )
    assert set(SPELLINGS) == set(ELEMENTWISE)
    kinds = {n: op.traits.kind for n, op in PRIMITIVES.items()}
    in_loops = {
        "broadcast",
        "reshape",
        "transpose",
        "reverse",
        "slice",
        "pad",
        "concatenate",
        "iota",
        "gather",
        "dynamic_slice",
        "call",
        "banded",
    }
    other = {n for n, kind in kinds.items() if kind != "elementwise"} - in_loops
    assert other == set(CHECKS) | set(REDUCTIONS) | set(LIBRARY)


@pytest.mark.parametrize("group", GROUPS)
def test_values_and_cotangents(group: str) -> None:
    check_samples([((s := SAMPLES[n][CHOSEN.get(n, 0)]), list(s.args)) for n in GROUPS[group]], derive=True)


@slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [n for group in GROUPS.values() for n in group])
def test_all_samples_with_every_dtype(name: str, dtype: str) -> None:
    if np.dtype(dtype).kind not in registry[name].dtypes if name != "call" else dtype != "float64":
        pytest.skip("it does not take this dtype")
    samples = SAMPLES[name]
    as_dtype = lambda x: (np.abs(np.rint(2 * x)) if "u" in dtype else 2 * x).astype(dtype) if x.dtype == float else x
    for k in range(0, len(samples), 12):
        cases = [(s, [as_dtype(x) for x in s.args]) for s in samples[k : k + 12]]
        check_samples(cases, derive=dtype.startswith("float"))


# -- whole Programs


def check_random_program(seed: int, longest: int) -> bool:
    rng = np.random.default_rng(seed)
    shape = SHAPES[rng.integers(len(SHAPES))]
    xs = [draw_array(rng, shape if rng.random() < 0.8 else (), DTYPES[rng.integers(len(DTYPES))]) for _ in range(3)]
    f = random_function(NATIVE, seed, int(rng.integers(6, longest)))
    if any(a.aval.dtype.name not in DTYPES for e in fg.make_program(f)(*xs).equations for a in e.outputs):
        return False  # float16 on the way
    for i, (a, b) in enumerate(zip(*numba_and_numpy(f, xs), strict=True)):
        assert same_bits(a, b), f"seed {seed}, result {i}"
    return True


def test_random_programs_bit_for_bit() -> None:
    done, seed = 0, 0
    while done < 20:
        done += check_random_program(seed, 14)
        seed += 1


@slow
def test_many_random_programs() -> None:
    assert sum(check_random_program(seed, 40) for seed in range(1000, 1400)) > 200


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sums_are_within_an_ulp_of_the_exact_result(dtype: str) -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((37, 53)) * 10.0 ** rng.integers(-6, 6, (37, 53))).astype(dtype)
    found = fg.jit(lambda x: (np.sum(x), np.sum(x, axis=0), np.sum(x, axis=1)), lowering="numba")(x)
    for s, rows in zip(found, (x.reshape(1, -1), x.T, x), strict=True):
        exact = np.array([math.fsum(r) for r in rows.astype(float)]).reshape(s.shape)
        size = np.array([math.fsum(abs(r)) for r in rows.astype(float)]).reshape(s.shape)
        eps = np.finfo(dtype).eps
        assert np.all(abs(np.asarray(s, float) - exact) <= eps * abs(exact) + eps**2 * x.size * size)


def test_beyond_the_finite() -> None:
    f = fg.jit(lambda x: (np.sum(x, axis=1), np.max(x, axis=1), np.min(x, axis=1)), lowering="numba")
    inf, nan = np.inf, np.nan
    x = np.array([[inf, 1, 2], [-inf, -inf, 1], [inf, -inf, 0], [1, nan, 2], [1e308, 1e308, 1e308], [-0.0, 0.0, 0.0]])
    with np.errstate(all="ignore"):
        for a, b in zip(f(x), (x.sum(axis=1), x.max(axis=1), x.min(axis=1)), strict=True):
            assert np.array_equal(a, b, equal_nan=True)


def test_products_of_any_layout() -> None:
    rng = np.random.default_rng(1)
    x, y, v, t = rng.normal(size=(4, 3)), rng.normal(size=(4, 3)), rng.normal(size=3), rng.normal(size=(2, 4, 3))

    def f(x: Any, y: Any, v: Any, t: Any) -> Any:
        return [
            x @ y.T, x.T @ y, x[::-1] @ v, v @ x[1:, :].T, x[::2] @ y[1:3].T, v @ v, x[:, :1] @ y[:, 1:2].T,
            t @ t.transpose(0, 2, 1), np.einsum("bij,bik->bjk", t, t[::-1]), np.einsum("bij,bij->b", t, t),
            x[:0] @ y.T, x[:, :0] @ y[:, :0].T, np.tensordot(t, t, ((0, 1), (0, 1))), t.reshape(8, 3) @ v,
        ]  # fmt: skip

    for k, (a, b) in enumerate(zip(*numba_and_numpy(f, [x, y, v, t]), strict=True)):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-13, err_msg=str(k))


# -- jit


def test_jit_with_all_transforms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Derivatives and batches of a function go the same way as the function."""

    def never(program: Any, place: str) -> Any:
        raise AssertionError("another lowering was used")

    def loss(w: Any, x: Any) -> Any:
        return np.sum(np.tanh(x @ w) ** 2)

    w, x = np.array([0.5, -0.25]), np.array([[1.0, 2.0], [3.0, 0.5], [2.0, -1.0]])
    f = fg.jit(loss, lowering="numba")
    monkeypatch.setitem(LOWERINGS, "llvm", SimpleNamespace(ready=never))
    np.testing.assert_allclose(f(w, x), loss(w, x), rtol=1e-14)
    np.testing.assert_allclose(fg.grad(f)(w, x), fg.grad(loss)(w, x), rtol=1e-13)
    np.testing.assert_allclose(fg.jvp(f, (w, x), (w, x))[1], fg.jvp(loss, (w, x), (w, x))[1], rtol=1e-13)
    rows = np.stack([w, 2 * w])
    np.testing.assert_allclose(fg.vmap(f, (0, None))(rows, x), [loss(r, x) for r in rows], rtol=1e-13)
    hessian = fg.jit(fg.hessian(loss), lowering="numba")
    np.testing.assert_allclose(hessian(w, x), fg.hessian(loss)(w, x), rtol=1e-12, atol=1e-14)


def test_results_are_fresh_and_of_the_right_types() -> None:
    f = fg.jit(
        lambda p, n: {"same": p["x"], "n": n + 1, "flag": p["x"] > 0, "short": n.astype(np.int8), "one": 1.0},
        lowering="numba",
    )
    x = np.array([1.0, -1.0])
    x.flags.writeable = False
    out = f({"x": x}, 200)
    assert type(out["same"]) is fg.Array and not np.shares_memory(out["same"], x) and out["same"].flags.writeable
    assert [v.dtype.name for v in fg.tree.leaves(out)] == ["bool", "int64", "float64", "float64", "int8"]
    assert out["n"] == 201 and out["short"] == -56 and out["one"] == 1.0
    assert np.array_equal(f({"x": np.arange(4.0)[::2]}, 1)["flag"], [False, True])  # another layout
    assert fg.jit(lambda x: None, lowering="numba")(x) is None


def test_equal_programs_are_compiled_once() -> None:
    f, g = (fg.make_program(h)(np.ones(3)) for h in (lambda x: x * 2.0 + 1.0, lambda y: 1.0 + y * 2.0))
    h = fg.make_program(lambda z: z * 2.0 + 1.0)(np.ones(3))
    assert numba_executable(f) is numba_executable(h) is not numba_executable(g)


def test_a_position_outside() -> None:
    f = fg.jit(lambda x, i: np.sqrt(x)[i] + 1.0, lowering="numba")
    x = np.array([4.0, 9.0, 16.0])
    assert f(x, np.array([-1, 0])).tolist() == [5.0, 3.0]
    with pytest.raises(errors.OutOfBoundsError, match="index 7 is out of bounds for axis 0 of length 3"):
        f(x, np.array([0, 7]))
    assert f(x, np.array([1, 1])).tolist() == [4.0, 4.0]


def test_sizes_zero_and_one() -> None:
    def f(x: Any) -> Any:
        y = np.concatenate([x, 2.0 * x])
        return np.sin(x), np.sum(x), np.cumsum(x), y[::-1], x.reshape(-1, 1) @ x.reshape(1, -1), np.prod(x, axis=0)

    for n in (0, 1):
        x = np.arange(n) + 0.5
        for a, b in zip(*numba_and_numpy(f, [x]), strict=True):
            assert a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=1e-15)


def test_what_it_does_not_take() -> None:
    with pytest.raises(errors.UnsupportedError, match=r"not c128\[\]"):
        fg.jit(lambda x: np.real(np.exp(1j * x)), lowering="numba")(1.0)
    with pytest.raises(errors.UnsupportedError, match=r"not f16\[2\]"):
        fg.to_numba(lambda x: x * 2, np.ones(2, np.float16))


def test_what_has_no_form_names_its_line_and_what_to_do() -> None:
    def called(x: Any) -> Any:
        return fg.pure_callback(np.sin, fg.ShapeDtypeStruct((), float), x) + 1

    for make in (fg.to_numba, lambda f, x: fg.jit(f).numba(x), lambda f, x: fg.jit(f, lowering="numba")(x)):
        with pytest.raises(errors.UnsupportedError, match="callback has no Numba form yet") as caught:
            make(called, 1.0)
        assert "pure_callback(np.sin" in str(caught.value) and "plain jit" in str(caught.value)


def test_a_handle_lists_its_arguments_in_order() -> None:
    handle = fg.jit(lambda p: p["w"] * 2 + p["b"]).numba({"w": 1.5, "b": np.ones(2)})
    assert "x0: p.b, f64[2]" in handle.__doc__ and "x1: p.w, f64[]" in handle.__doc__
    np.testing.assert_array_equal(handle(np.ones(2), 1.5), [4.0, 4.0])


# -- the text


def alone(text: str, then: str, folder: Path) -> str:
    """What `then` prints after ``from code import *``, where funcgrad cannot be imported."""
    (folder / "code_of_test.py").write_text(text, "utf-8")
    start = "import sys; sys.modules['funcgrad'] = None\nimport numpy as np\nfrom code_of_test import *\n"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", start + then], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_text_stands_alone(tmp_path: Path) -> None:
    def model(params: Any, x: Any, i: Any, scale: Any) -> Any:
        h = np.tanh(x @ params["w"] + params["b"])[i] * scale
        return np.sum(h**2), {"h": h}

    params = {"w": np.array([[0.5, -1.0], [2.0, 0.25]]), "b": np.array([0.1, -0.2])}
    x, i = np.array([[1.0, 2.0], [3.0, -1.0], [0.5, 0.5]]), np.array([2, 0])
    f = fg.value_and_grad(model, has_aux=True)
    text = fg.to_numba(f, params, x, i, 2.0)
    assert "funcgrad" not in text.split('"""')[0] and "import funcgrad" not in text
    printed = alone(
        text,
        f"w, b = np.array({params['w'].tolist()}), np.array({params['b'].tolist()})\n"
        f"x, i = np.array({x.tolist()}), np.array({i.tolist()})\n"
        "out = value_and_grad_model(b, w, x, i, 2.0)\n"
        "print(*[v for y in out for v in np.ravel(y)])\n"
        "for bad, error in (((b, w, x, i + 1, 2.0), IndexError), ((b, w, x[:2], i, 2.0), ValueError)):\n"
        "    try:\n"
        "        value_and_grad_model(*bad)\n"
        "    except error as e:\n"
        "        print('#', e)\n",
        tmp_path,
    )
    values, first, second = printed.splitlines()
    expected = np.concatenate([np.ravel(v) for v in fg.tree.leaves(f(params, x, i, 2.0))])
    np.testing.assert_allclose([float(v) for v in values.split()], expected, rtol=1e-13)
    assert first.startswith("# index 3 is out of bounds for axis 0 of length 3")
    assert second == "# x must have the shape (3, 2)"


def test_how_the_text_reads() -> None:
    def loss(params: Any, x: Any) -> Any:
        """The sum of squares."""
        return np.sum((params["a"] * x) ** 2)

    assert (
        fg.to_numba(loss, {"a": 2.0}, np.ones(3))
        == '''\
import numba
import numpy as np

njit = numba.njit(error_model="numpy")


@njit
def two_sum(total, low, x):
    """total + x; and low plus what that addition lost, which is exactly known (Knuth)."""
    t = total + x
    z = t - total
    lost = (total - (t - z)) + (x - z)
    return t, low + lost if np.isfinite(lost) else low


@njit
def loss(params_a, x):
    """The sum of squares.

    Parameters
    ----------
    params_a : float64, params.a
    x : float64[3]

    Returns
    -------
    float64
    """
    if x.shape != (3,):
        raise ValueError("x must have the shape (3,)")
    c_sum, c_low = 0.0, 0.0
    for i in range(3):
        a = params_a * x[i]  # test_numba_source.py:LINE
        b = a * a
        c_sum, c_low = two_sum(c_sum, c_low, b)
    c = c_sum + c_low
    return c
'''.replace("LINE", str(loss.__code__.co_firstlineno + 2))
    )


def test_names_do_not_clash() -> None:
    def f(i: Any, np_: Any, sigmoid: Any, lambda_: Any, status: Any, f: Any) -> Any:
        return fg.nn.sigmoid(i) + np_ * sigmoid - lambda_ / status + f

    args = [np.full(2, 0.5 + k) for k in range(6)]
    found, expected = numba_and_numpy(f, args)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-15)
    text = fg.to_numba(f, *args)
    assert "def f(i, np_, sigmoid_, lambda_, status_, f_):" in text


@pytest.mark.usefixtures("unrolled")
def test_equal_loops_are_one_function() -> None:
    def f(x: Any, a: Any) -> Any:
        for _ in range(30):
            x = np.sqrt(np.abs(a @ x)) + x.sum()
        return x

    x, a = np.arange(3.0), np.linspace(0.1, 0.9, 9).reshape(3, 3)
    text = fg.to_numba(f, x, a)
    assert text.count("def kernel_") <= 4
    (found,), (expected,) = numba_and_numpy(f, [x, a])
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_show_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    text, same = [g(np.sin, 1.0) for g in (lambda *args: fg.show(*args, stage="numba"), fg.to_numba)]
    assert capsys.readouterr().out == text + "\n"
    assert text.replace(text.partition("  # ")[2].partition("\n")[0], "") == same.replace(
        same.partition("  # ")[2].partition("\n")[0], ""
    )
    assert fg.jit(np.sin).lower(1.0).as_text("numba").startswith("import numba")


def test_every_helper_says_what_it_does() -> None:
    assert all('"""' in text.splitlines()[1] for text in HELPERS.values())


def test_many_axes() -> None:
    x = np.arange(2.0**17).reshape((2,) * 17)
    text = fg.to_numba(lambda a: a.T * 2.0, x)
    assert "for i0 in range(2)" in text or "i0" in text
