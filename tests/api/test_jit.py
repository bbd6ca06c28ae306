"""jit: when it traces again, static and donated arguments, methods, pickling, results, errors."""

from __future__ import annotations

import gc
import inspect
import pickle
import weakref
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import errors


def counted(**options: Any) -> tuple[Any, list[int]]:
    traces: list[int] = []

    def f(*args: Any, **kwargs: Any) -> Any:
        traces.append(1)
        return fg.tree.leaves((args, kwargs))[0] * 2

    return fg.jit(f, **options), traces


def test_it_traces_again_for_another_type_only() -> None:
    f, traces = counted()
    for x, count in [
        (1, 1), (2, 1), (1.0, 2), (2.5, 2), (np.ones(2), 3), (np.zeros(2), 3), (np.ones(2, np.float32), 4),
        (np.float32(1), 5), (np.float64(1), 6), (True, 7), (np.ones(3), 8), ([1.0], 9), ((1.0,), 10), ({"a": 1.0}, 11),
    ]:  # fmt: skip
        f(x)
        assert len(traces) == count, x
    info = f.cache_info()
    assert info.misses == 11 and info.hits == 3 and info.size == 11
    f.clear_cache()
    f(1)
    assert len(traces) == 12


def test_static_arguments_are_keyed_by_type_and_value() -> None:
    f, traces = counted(static_argnums=1)
    x = np.ones(2)
    for n, count in [(1, 1), (1, 1), (1.0, 2), (True, 3), ("a", 4), ((1, 2), 5), (None, 6), (1, 6)]:
        f(x, n)
        assert len(traces) == count


def test_static_by_name_and_by_position_are_the_same() -> None:
    @fg.jit(static_argnames="n")
    def power(x: Any, n: int) -> Any:
        assert isinstance(n, int)
        return x if n == 0 else x * power.__wrapped__(x, n - 1)

    assert float(power(2.0, 3)) == float(power(2.0, n=3)) == 16.0

    @fg.jit(static_argnums=(1,))
    def g(x: Any, flag: bool = True) -> Any:
        return x if flag else -x

    assert float(g(1.0)) == 1.0 and float(g(1.0, False)) == -1.0 and float(g(1.0, flag=False)) == -1.0


def test_two_jits_of_one_function_share_a_cache() -> None:
    traces = []

    def f(x: Any) -> Any:
        traces.append(1)
        return x * 2

    fg.jit(f)(1.0)
    fg.jit(f)(1.0)
    assert len(traces) == 1
    fg.jit(lambda x: f(x))(1.0)
    assert len(traces) == 2
    fg.jit(f, static_argnums=0)(1.0)
    assert len(traces) == 3


def test_the_cache_dies_with_the_function() -> None:
    def f(x: Any) -> Any:
        return x * big

    big = np.ones(1000)
    alive = weakref.ref(f)
    jitted = fg.jit(f)
    jitted(2.0)
    weakref.ref(jitted)
    del f, jitted
    gc.collect()
    assert alive() is None


def test_results() -> None:
    out = fg.jit(lambda x: {"a": x, "n": None, "i": 3, "t": (x * 2, 2.5, True)})(np.ones(2))
    assert type(out["a"]) is fg.Array and out["n"] is None
    assert out["i"].dtype == np.int64 and out["i"].shape == () and int(out["i"]) == 3
    assert out["t"][1].dtype == np.float64 and out["t"][2].dtype == np.bool_
    assert fg.jit(lambda x: x)(1.0).dtype == np.float64
    assert fg.jit(lambda: None)() is None
    assert fg.jit(lambda x: x + np.float32(1))(1.0).dtype == np.float32  # a Python scalar is weak
    assert fg.jit(lambda x: x + np.float32(1))(np.float64(1)).dtype == np.float64


def test_equal_to_eager_bit_for_bit() -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((5, 4)), rng.standard_normal((4, 3))
    f = lambda x, w: np.where(x > w.max(), np.sqrt(np.abs(x)) / 3.0, np.floor(x) * x - 2.5).T[::-1]
    assert np.array_equal(fg.jit(f)(x, w), f(fg.numpy.asarray(x), fg.numpy.asarray(w)))
    g = lambda w: np.sum(np.tanh(x @ w) ** 2)  # sums, products and tanh are within their error, not bit for bit
    np.testing.assert_allclose(fg.jit(fg.grad(g))(w), fg.grad(g)(w), rtol=1e-13)


class Model:
    def __init__(self, k: float) -> None:
        self.k = k

    @fg.jit
    def static_self(x: Any) -> Any:  # noqa: N805
        return x * 3

    def __call__(self, x: Any) -> Any:
        return x * self.k

    def method(self, x: Any) -> Any:
        return x * self.k


@fg.tree.register_node_class if hasattr(fg.tree, "register_node_class") else fg.tree.register_pytree_node_class
class Layer:
    def __init__(self, w: Any) -> None:
        self.w = w

    def tree_flatten(self) -> Any:
        return (self.w,), None

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Any) -> Any:
        return cls(*children)

    @fg.jit
    def apply(self, x: Any) -> Any:
        return x * self.w


def test_methods_and_callables() -> None:
    assert Layer(np.ones(2) * 3).apply(np.ones(2)).tolist() == [3, 3]
    m = Model(5.0)
    assert float(fg.jit(m)(2.0)) == 10.0
    assert float(fg.jit(m.method)(2.0)) == 10.0
    assert float(Model.static_self(2.0)) == 6.0


@fg.jit
def module_level(x: Any, *, scale: float = 2.0) -> Any:
    """Doc of module_level."""
    return x * scale


def test_the_object() -> None:
    assert module_level.__name__ == "module_level" and module_level.__doc__ == "Doc of module_level."
    assert str(inspect.signature(module_level)).startswith("(x: 'Any', *, scale")
    assert pickle.loads(pickle.dumps(module_level)) is module_level
    assert weakref.ref(module_level)() is module_level
    assert callable(module_level.__wrapped__)
    program = module_level.trace(fg.ShapeDtypeStruct((3,), "f4"))
    assert "f32[3]" in str(program)
    assert str(module_level.eval_shape(np.ones(3), scale=1.0)) == "f64[3]"
    assert module_level.lower(np.ones(3)).as_text() == str(module_level.trace(np.ones(3)))


def test_a_nested_jit_stays_one_call() -> None:
    inner = fg.jit(lambda x: np.sin(x) * 2)
    program = fg.make_program(lambda x: inner(x) + inner(x * 2))(np.ones(3))
    assert [e.primitive.name for e in program.equations] == ["call", "mul", "call", "add"]
    assert str(program).count("program ") == 2  # the body is printed once


def test_derived_bodies_are_remembered() -> None:
    inner = fg.jit(lambda x: np.sum(np.sin(x) * 2))
    inner(np.ones(3))
    body = inner.trace(np.ones(3))
    fg.grad(lambda x: inner(x))(np.ones(3))
    size = len(body._memo)
    fg.grad(lambda x: inner(x) * 3)(np.ones(3))
    assert inner.trace(np.ones(3)) is body and len(body._memo) == size


# -- donation


def test_a_donated_argument_is_returned() -> None:
    step = fg.jit(lambda w, g: w - 0.5 * g, donate_argnums=0)
    w, g = np.ones(3), np.ones(3)
    out = step(w, g)
    assert out is w and w.tolist() == [0.5] * 3 and g.tolist() == [1.0] * 3
    a = fg.numpy.array(np.ones(3))
    assert np.array_equal(fg.jit(lambda w: w * 2, donate_argnames="w")(a), np.full(3, 2.0))


def test_donated_trees_and_swaps() -> None:
    swap = fg.jit(lambda t: {"a": t["b"], "b": t["a"]}, donate_argnums=0)
    a, b = np.zeros(3), np.ones(3)
    out = swap({"a": a, "b": b})
    assert out["a"].tolist() == [1] * 3 and out["b"].tolist() == [0] * 3


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.ones(6)[::2],
        lambda: np.ones((3, 2)).T[0],
        lambda: np.broadcast_to(np.float64(1), 3),
        lambda: np.ones(3, ">f8"),
        lambda: np.ones(3).view(np.recarray),
        lambda: [1.0, 1.0, 1.0],
    ],
)
def test_what_cannot_be_donated_is_copied(make: Any) -> None:
    w = make()
    before = np.array(w).tolist()
    f = fg.jit(lambda w: fg.numpy.asarray(w) * 2 if not isinstance(w, list) else w[0] * 2, donate_argnums=0)
    out = f(w)
    assert np.array_equal(out, np.full(np.shape(out), 2.0))
    assert np.array(w).tolist() == before and out is not w


def test_a_tracer_that_outlived_its_trace_is_not_donated() -> None:
    kept: list[Any] = []
    fg.jit(lambda x: kept.append(x) or x)(np.ones(3))
    with pytest.raises(errors.UnexpectedTracerError):
        fg.jit(lambda x: x * 2, donate_argnums=0)(kept[0])


def test_an_argument_given_twice_is_not_overwritten() -> None:
    f = fg.jit(lambda a, b: (a + b, a - b), donate_argnums=0)
    x = np.ones(3)
    s, d = f(x, x)
    assert s.tolist() == [2] * 3 and d.tolist() == [0] * 3 and x.tolist() == [1] * 3
    y = np.arange(4.0)
    s, d = f(y[:2].base[:2] if False else y, y[::-1])
    assert s.tolist() == [3] * 4 and y.tolist() == [0, 1, 2, 3]


# -- bad input

FIRST = lambda x, y: x

BAD = [
    ("no function", lambda: fg.jit(3), errors.UsageError, "jit takes a function"),
    ("static list", lambda: fg.jit(FIRST, static_argnums=1)(1.0, [1]), errors.StaticArgumentError, "argument 1"),
    ("static array", lambda: fg.jit(FIRST, static_argnames="y")(1.0, y=np.ones(2)), errors.StaticArgumentError, "'y'"),
    ("position", lambda: fg.jit(lambda x: x, static_argnums=3), errors.ArgumentError, "position 3"),
    ("name", lambda: fg.jit(lambda x: x, static_argnames="y"), errors.ArgumentError, "no parameter 'y'"),
    ("lowering", lambda: fg.jit(lambda x: x, lowering="c"), errors.ParameterError, "lowering"),
    ("if", lambda: fg.jit(lambda x: x if x > 0 else -x)(1.0), errors.TracerBoolConversionError, "if"),
    ("while", lambda: fg.jit(lambda x: [0 for _ in range(x)])(3), errors.TracerIntegerConversionError, "integer"),
    ("float", lambda: fg.jit(lambda x: float(x))(1.0), errors.TracerArrayConversionError, "float"),
    ("numpy", lambda: fg.jit(lambda x: np.asarray(x))(1.0), errors.TracerArrayConversionError, "plain NumPy array"),
    ("string", lambda: fg.jit(lambda x: x)("s"), errors.ArgumentError, "string"),
    ("big int", lambda: fg.jit(lambda x: x)(2**70), errors.ArgumentError, "does not fit"),
    ("assignment", lambda: fg.jit(lambda x: x.__setitem__(0, 1.0))(np.ones(3)), errors.AssignmentError, "at"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "text"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_input(call: Any, kind: type, text: str) -> None:
    with pytest.raises(kind, match=text) as found:
        call()
    assert len(str(found.value).splitlines()) <= 8


def test_tracebacks_show_only_the_users_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    def loss(x: Any) -> Any:
        return x @ np.ones((3, 2))

    def frames() -> list[str]:
        with pytest.raises(errors.ShapeError) as found:
            fg.jit(loss)(np.ones(4))
        out, tb = [], found.value.__traceback__
        while tb is not None:
            out.append(tb.tb_frame.f_code.co_filename)
            tb = tb.tb_next
        return out

    assert sum("funcgrad/funcgrad" in name or "/funcgrad/api" in name for name in frames()) <= 1
    monkeypatch.setenv("FUNCGRAD_TRACEBACK", "full")
    assert sum("/funcgrad/" in name for name in frames()) > 3


def test_static_values_that_compare_equal_are_not_the_same() -> None:
    divide = fg.jit(lambda x, n: x / n, static_argnums=1)
    assert divide(1.0, 0.0) == np.inf and divide(1.0, -0.0) == -np.inf
    pick = fg.jit(lambda x, t: x * t[0], static_argnums=1)
    assert [pick(3, t).dtype.name for t in ((1,), (1.0,), (True,), ((2, 1)[1:]))] == [
        "int64",
        "float64",
        "int64",
        "int64",
    ]
    by_name = fg.jit(lambda x, *, t: x * t, static_argnames="t")
    assert by_name(3, t=1).dtype == np.int64 and by_name(3, t=1.0).dtype == np.float64


def test_results_follow_the_configuration_after_a_native_entry() -> None:
    f = fg.jit(lambda x: x * 2)
    assert type(f(np.ones(2))) is type(f(np.ones(2))) is fg.Array
    fg.config.results = "numpy"
    try:
        assert type(f(np.ones(2))) is np.ndarray and type(f(2.0)) is np.float64
    finally:
        fg.config.results = "array"
    assert type(f(np.ones(2))) is fg.Array


def test_a_native_entry_still_records_inside_a_trace() -> None:
    f = fg.jit(lambda x: np.sin(x) * 2)
    for _ in range(3):
        f(1.5)
    assert float(fg.grad(f)(1.5)) == 2 * np.cos(1.5)
    assert "call" in str(fg.make_program(lambda x: f(x))(1.5))
    assert fg.vmap(f)(np.ones(2)).shape == (2,)
    assert f.cache_info().hits >= 2


def test_index_errors_out_of_native_code_name_the_line() -> None:
    f = fg.jit(lambda x, i: x[i] * 2)
    x = np.arange(3.0)
    for _ in range(2):
        assert f(x, np.array([0, 2])).tolist() == [0.0, 4.0]
    for bad in (3, -4):
        with pytest.raises(
            errors.OutOfBoundsError, match=f"index {bad} is out of bounds for axis 0 of length 3"
        ) as found:
            f(x, np.array([0, bad]))
        assert "test_jit.py" in str(found.value)


def test_scipy_linalg_can_be_imported_after_a_product() -> None:
    import subprocess
    import sys

    code = (
        "import numpy as np, funcgrad as fg; f = fg.jit(lambda x: x @ x); f(np.eye(3)); f(np.eye(3));"
        "import scipy.linalg; print(scipy.linalg.inv(np.eye(2))[0, 0])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "1.0"


@pytest.mark.parametrize(
    ("array", "scalar"), [(np.int8([1, 2]), 200), (np.uint8([1]), -1), (np.uint32([1]), 2**32), (np.int16([3]), -40000)]
)
def test_a_traced_python_integer_that_does_not_fit_is_refused_as_numpy_does(array: Any, scalar: int) -> None:
    with pytest.raises(OverflowError):
        array + scalar
    for f in (fg.jit(lambda a, s: a + s), fg.jit(lambda a, s: s * a), fg.jit(lambda a, s: np.maximum(a, s))):
        for _ in range(2):
            with pytest.raises(errors.IntegerOverflowError, match=f"{scalar} does not fit") as found:
                f(array, scalar)
            assert "test_jit.py" in str(found.value)
        assert f(array, 100).dtype == array.dtype


def test_what_is_planned_says_so() -> None:
    with pytest.raises(AttributeError, match="planned"):
        fg.random  # noqa: B018
    with pytest.raises(AttributeError, match="works on plain arrays only"):
        fg.numpy.median  # noqa: B018
    assert not hasattr(fg, "nothing") and not hasattr(fg.numpy, "nothing")


def test_static_arguments_are_values_where_one_looks_inside(capsys: pytest.CaptureFixture[str]) -> None:
    power = fg.jit(lambda x, n: x**n, static_argnums=1)
    x = np.ones(3)
    for stage in ("program", "kernels", "llvm", "numba"):
        assert fg.show(power, x, 3, stage=stage)
    assert "int" not in str(fg.make_program(power)(x, 3)) and len(fg.cost(power, x, 3, time=False)) == 1
    assert "def f(x)" in fg.to_numba(power, x, n=3)
    assert fg.eval_shape(power, x, 3).shape == (3,)


def test_an_argument_is_not_static_and_donated() -> None:
    with pytest.raises(fg.errors.ArgumentError, match="static and donated"):
        fg.jit(lambda x: x, static_argnums=0, donate_argnums=0)
    with pytest.raises(fg.errors.ArgumentError, match="show: 'kernels' is the name of a stage"):
        fg.show(np.sin, np.ones(3), "kernels")
