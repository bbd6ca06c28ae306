"""Every op of the registry, from what stands beside its definition: slots, derivatives, batching, NumPy's results.

An elementwise op is tested on its `Domain`; every other primitive on its entries in `samples`. A primitive that
has neither, or whose exact derivative is not in `EXACT`, fails here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from scipy import special

import funcgrad as fg
from funcgrad.core.primitive import Primitive, registry
from funcgrad.core.trace import bind1, eagerly
from funcgrad.ops.op import Op
from tests.ops.samples import ABSOLUTE, EXACT, F32, F64, SAMPLES, of_dtype
from tests.rule_checker import TOLERANCES, all_primitives, check_rules, close, richardson, same_bits, ulps

OPS = all_primitives()
ELEMENTWISE = [n for n, op in OPS.items() if op.traits.kind == "elementwise" and n not in SAMPLES]
DIFFERENTIABLE = [n for n in ELEMENTWISE if not OPS[n].no_derivative]
FLOATS = (F64, F32)
HOLDERS = ("program", "custom_linear", "barrier", "identity")  # what they hold has types and derivatives of its own
ELSEWHERE = {"custom_vjp", "custom_linear", "linear_solve"}  # tests/control/test_custom_vjp.py, tests/test_implicit.py
SLOTS = ("abstract", "evaluate", "jvp", "transpose", "batch")


def arity(op: Primitive) -> int:
    """The number of operands."""
    return len(inspect.signature(op.function).parameters)


def apply(name: str) -> Callable[..., Any]:
    """The op as a function of its operands; a new one every time, so that nothing about it is remembered."""
    op = registry[name]
    return lambda *args: bind1(op, *args)


def evaluate(name: str, *args: Any) -> Any:
    """The result of the `evaluate` slot."""
    with eagerly():
        return registry[name].evaluate(*args)[0]


def points(name: str, shape: tuple[int, ...], dtype: Any, seed: int = 0) -> list[np.ndarray]:
    """Random operands from the domain of an op; integers and truth values where it takes no floats."""
    op, random = registry[name], np.random.default_rng(seed)
    if dtype.kind == "f":
        return [random.uniform(*op.domain.interval(i), shape).astype(dtype) for i in range(arity(op))]
    return [random.integers(0, 2 if dtype.kind == "b" else 20, shape).astype(dtype) for _ in range(arity(op))]


def dtypes_of(name: str) -> list[Any]:
    """The dtypes to test an op with: both floats, or else one of each kind."""
    kinds = registry[name].dtypes
    if "f" in kinds:
        return [F64, F32]
    return [np.dtype(t) for t in ("bool", "int64", "uint8") if np.dtype(t).kind in kinds]


# -- (a) the registry


@pytest.mark.parametrize("name", OPS)
def test_every_slot_is_filled_or_declined(name: str) -> None:
    op = OPS[name]
    for slot in SLOTS:
        assert op.has(slot) or op.declined.get(slot), f"{slot} of {name} is empty, and nothing says why"
    assert op.doc.strip(), "no docstring"
    assert op.traits.kind


@pytest.mark.parametrize("name", [n for n, op in OPS.items() if isinstance(op, Op) and op.traits.kind not in HOLDERS])
def test_every_derivative_is_stated(name: str) -> None:
    op = OPS[name]
    if op.no_derivative:
        return
    assert op.domain is not None, f"{name} has a derivative, but no Domain beside it"
    assert op.domain.at or op.domain.smooth, f"the Domain of {name} has neither special points nor a reason"
    for point, (gradient, diagonal) in op.domain.at.items():
        assert len(point) == len(gradient) == len(diagonal) == arity(op)


def test_every_primitive_has_samples() -> None:
    counts = {name: len(SAMPLES.get(name, ())) for name in OPS}
    for name in ELEMENTWISE:
        domain = OPS[name].domain
        counts[name] = 0 if domain is None or (name in DIFFERENTIABLE and name not in EXACT) else 1 + len(domain.at)
    for name, n in counts.items():
        print(f"{name:20} {OPS[name].traits.kind:12} {n}")
    assert not [name for name, n in counts.items() if n == 0 and name not in ELSEWHERE and isinstance(OPS[name], Op)]
    assert not set(SAMPLES) - set(OPS) and not set(EXACT) - set(OPS)


# -- (b) rules


@pytest.mark.parametrize("name", [n for n, op in OPS.items() if isinstance(op, Op) and op.no_derivative])
def test_an_op_without_derivative_has_its_value_and_no_tangent(name: str) -> None:
    value, operand, tangent = [np.arange(3.0) + k for k in range(3)]
    outs, dots = OPS[name].jvp(lambda: [value], [operand], [tangent])
    assert len(outs) == 1 and outs[0] is value and dots == (None,)


SAMPLE_CASES = [
    pytest.param(s, dtype, id=f"{s}-{dtype}")
    for name, samples in SAMPLES.items()
    for k, s in enumerate(samples)
    for dtype in (
        (F64, F32) if k < 2 and OPS[name].traits.kind not in HOLDERS else (F64,)
    )  # what a call holds has types of its own
]


@pytest.mark.parametrize(("sample", "dtype"), SAMPLE_CASES)
def test_rules_of_a_sample(sample: Any, dtype: Any) -> None:
    args = [x.astype(dtype) if x.dtype == F64 else x for x in sample.args]
    check_rules(sample.function, *args, oracle=sample.oracle, batch=bool(args), linear_in=sample.linear_in)


OTHER_DTYPES = [
    (name, dtype)
    for name in SAMPLES
    for dtype in ("bool", "int8", "uint16", "int64", "complex128")
    if OPS[name].traits.kind not in HOLDERS
    and name not in ("iota", "banded")
    and "f" in OPS[name].dtypes
    and np.dtype(dtype).kind in OPS[name].dtypes
]


@pytest.mark.parametrize(("name", "dtype"), OTHER_DTYPES, ids=str)
def test_values_and_rows_of_other_dtypes(name: str, dtype: str) -> None:
    for s in SAMPLES[name][:3]:
        args = [of_dtype(x, dtype) if x.dtype == F64 else x for x in s.args]
        check_rules(s.function, *args, orders=0)


@pytest.mark.parametrize("shape", [(), (2, 3)], ids=str)
@pytest.mark.parametrize(("name", "dtype"), [(n, d) for n in ELEMENTWISE for d in dtypes_of(n)], ids=str)
def test_rules_of_an_elementwise_op(name: str, dtype: Any, shape: tuple[int, ...]) -> None:
    op = OPS[name]
    oracle = "zero" if op.no_derivative else "complex" if "c" in op.dtypes else "difference"
    check_rules(apply(name), *points(name, shape, dtype, 3), oracle=oracle)


JUMPS = {
    "f": np.array([[np.nan, -1.5, 0.0], [2.0, np.inf, -1.5], [-0.5, 1.0, -np.inf], [3.0, -0.0, 2.0]]),
    "i": np.array([[3, 1, 0], [2, 7, 5], [0, 4, 1], [1, 2, 6]]),
    "b": np.array([[True, False, False], [False, True, True], [True, True, False], [True, False, True]]),
}


@pytest.mark.parametrize("name", [n for n in ELEMENTWISE if OPS[n].no_derivative or not all(OPS[n].differentiable)])
def test_rows_that_jump(name: str) -> None:
    """Rows that are near to each other, as above, have equal results here; these have not."""
    x, *rest = [
        np.roll(JUMPS[next(k for k in "fib" if k in OPS[name].dtypes)], i, (0, 1)) for i in range(arity(OPS[name]))
    ]
    expected = evaluate(name, x, *rest)
    for axis in (0, 1):
        rows = np.moveaxis(expected, axis, 0)
        np.testing.assert_array_equal(fg.vmap(apply(name), axis)(x, *rest), rows)
        shared = [y.take(0, axis) for y in rest]
        mixed = fg.vmap(apply(name), (axis, *[None] * len(rest)))(x, *shared)
        one = [np.broadcast_to(np.expand_dims(y, axis), x.shape) for y in shared]
        np.testing.assert_array_equal(mixed, np.moveaxis(evaluate(name, x, *one), axis, 0))


def forward(f: Callable[..., Any], i: int) -> Callable[..., Any]:
    """The derivative of an elementwise function in operand `i`, element by element, by forward mode."""

    def derivative(*x: Any) -> Any:
        ones = np.ones(x[i].shape, x[i].dtype)
        return fg.jvp(lambda t: f(*x[:i], t, *x[i + 1 :]), (x[i],), (ones,))[1]

    return derivative


def reverse(f: Callable[..., Any], i: int) -> Callable[..., Any]:
    """The same by reverse mode."""

    def derivative(*x: Any) -> Any:
        y, back = fg.vjp(lambda t: f(*x[:i], t, *x[i + 1 :]), x[i])
        return back(np.ones(y.shape, y.dtype))[0]

    return derivative


MODES = {"forward": forward, "reverse": reverse}


@cache
def exact_derivatives(name: str, dtype: Any, order: int) -> tuple[list[np.ndarray], dict[tuple[int, ...], np.ndarray]]:
    """Random points, and all partial derivatives of that order there."""
    x, n = points(name, (40,), dtype, 1), arity(OPS[name])
    indices = [(i,) for i in range(n)] if order == 1 else [(i, j) for i in range(n) for j in range(i, n)]
    out = {}
    with mp.workdps(40):
        for index in indices:
            orders = tuple(index.count(k) for k in range(n))
            values = []
            for point in zip(*x, strict=True):
                at = tuple(mp.mpf(float(v)) for v in point)
                d = mp.diff(EXACT[name], at if n > 1 else at[0], orders if n > 1 else order)
                values.append(0.0 if abs(d) < 1e-15 else float(d))
            out[index] = np.array(values)
    return x, out


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_derivatives_at_random_points(name: str, order: int, dtype: Any) -> None:
    x, exact = exact_derivatives(name, dtype, order)
    tolerance = TOLERANCES[dtype]
    size = np.maximum(np.max([np.abs(d) for d in exact.values()], axis=0), float(ABSOLUTE.get(name, (0, 0))[order - 1]))
    for index, expected in exact.items():
        for m1, first in MODES.items():
            for m2, second in MODES.items() if order == 2 else [("", None)]:
                d = first(apply(name), index[0])
                found = second(d, index[1])(*x) if second else d(*x)
                assert found.dtype == dtype
                error = np.abs(np.float64(found) - expected)
                worst = np.argmax(error - tolerance.ulps * 4 ** (order - 1) * tolerance.eps * size)
                assert error[worst] <= tolerance.ulps * 4 ** (order - 1) * tolerance.eps * size[worst], (
                    f"d{order} {name}{tuple(v[worst] for v in x)} in {index}, {m2} {m1}: {found[worst]!r}, not "
                    f"{expected[worst]!r}: {error[worst] / size[worst] / tolerance.eps:.1f} ulps"
                )


@pytest.mark.parametrize("name", [n for n in DIFFERENTIABLE if "c" in OPS[n].dtypes])
def test_complex_derivatives(name: str) -> None:
    # holomorphic: the derivative along v is that along real multiples of v; the transpose does not conjugate
    random = np.random.default_rng(5)
    z = [random.uniform(0.3, 0.8, 5) + 1j * random.uniform(0.1, 0.5, 5) for _ in range(arity(OPS[name]))]
    v, w = [np.exp(1j * random.uniform(0, 6, 5)) for _ in z], np.exp(1j * random.uniform(0, 6, 5))
    f, along = apply(name), lambda t: [a + t * b for a, b in zip(z, v, strict=True)]
    value = lambda t: [evaluate(name, *along(t))]
    dots = fg.jvp(f, tuple(z), tuple(v))[1]
    second = fg.jvp(lambda *x: fg.jvp(f, x, tuple(v))[1], tuple(z), tuple(v))[1]
    bars = fg.vjp(f, *z)[1](w)
    tolerance = TOLERANCES[F64]
    np.testing.assert_allclose(dots, richardson(value)[0], rtol=tolerance.first, atol=tolerance.first)
    twice = richardson(lambda t: richardson(lambda s: value(s + t)))[0]
    np.testing.assert_allclose(second, twice, rtol=tolerance.second, atol=tolerance.second)
    left, right = np.sum(w * dots), sum(np.sum(a * b) for a, b in zip(bars, v, strict=True))
    np.testing.assert_allclose(left, right, rtol=tolerance.same, atol=tolerance.same)


def stated(found: Any, expected: Any, dtype: Any, what: str) -> None:
    """Exactly the stated value if it is 0, infinite or NaN; others to 4 ulps."""
    value = np.asarray(found)
    assert value.dtype == dtype
    error = ulps(value, np.full(value.shape, np.asarray(expected, dtype)), TOLERANCES[dtype].eps)
    assert (error <= 4).all(), f"{what}: {found}, not {expected}"


AT = [(name, p) for name in ELEMENTWISE for p in OPS[name].domain.at]
WRAPPERS = {
    "eager": (lambda f: f, lambda d: d),
    "jit": (lambda f: f, fg.jit),
    "jit inside": (fg.jit, lambda d: d),
    "vmap": (lambda f: f, fg.vmap),
}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize(("name", "point"), AT, ids=str)
def test_derivatives_at_special_points(name: str, point: tuple[float, ...], wrapper: str) -> None:
    inside, outside = WRAPPERS[wrapper]
    gradient, diagonal = OPS[name].domain.at[point]
    every = tuple(range(len(point)))

    def derivatives(*x: Any) -> dict[str, Any]:
        f, out = inside(apply(name)), {}
        for i in every:
            for m1, first in MODES.items():
                out[f"{m1} {i}"] = first(f, i)(*x)
                for m2, second in MODES.items():
                    out[f"{m2} {m1} {i}"] = second(first(f, i), i)(*x)
        if len(every) > 1:  # all operands at once: a basis vector is a structural zero elsewhere
            hessian = fg.hessian(f, every)(*x)
            out |= {f"jacfwd {i}": d for i, d in enumerate(fg.jacfwd(f, every)(*x))}
            out |= {f"jacrev {i}": d for i, d in enumerate(fg.jacrev(f, every)(*x))}
            out |= {f"second, hessian {i}": hessian[i][i] for i in every}
        return out

    for dtype in FLOATS:
        x = [np.array([v, v] if wrapper == "vmap" else v, dtype) for v in point]
        for label, found in outside(derivatives)(*x).items():
            stated(found, (gradient if label.count(" ") == 1 else diagonal)[int(label[-1])], dtype, label)


@pytest.mark.parametrize(("name", "point"), AT, ids=str)
def test_elements_do_not_mix_at_special_points(name: str, point: tuple[float, ...]) -> None:
    # next to an element at a regular point: all that joins the two is exactly 0, never 0 inf
    domain, every = OPS[name].domain, tuple(range(len(point)))
    gradient, diagonal = domain.at[point]
    x = [np.array([v, np.mean(domain.interval(i))]) for i, v in enumerate(point)]
    total = lambda *x: bind1(registry["reduce_sum"], apply(name)(*x), axes=(0,))
    for jacobian in (fg.jacfwd, fg.jacrev):
        for i, found in enumerate(jacobian(apply(name), every)(*x)):
            stated(found[0], np.array([gradient[i], 0.0]), F64, f"{jacobian.__name__}, {i}")
            assert found[1, 0] == 0
        for derivative in (fg.jacfwd(total, every), fg.jacrev(total, every), fg.grad(total, every)):
            hessian = jacobian(derivative, every)(*x)
            for i in every:
                stated(hessian[i][i][0], np.array([diagonal[i], 0.0]), F64, f"{jacobian.__name__}, {i}")
                assert all(hessian[i][j][0, 1] == 0 and hessian[i][j][1, 0] == 0 for j in every)


TIES = {  # op, operand, parameters, Jacobian
    "reduce_max": ([1.0, 3.0, 3.0, 2.0, 3.0], {"axes": (0,)}, [0, 1 / 3, 1 / 3, 0, 1 / 3]),
    "reduce_min": ([1.0, 3.0, 1.0], {"axes": (0,)}, [0.5, 0, 0.5]),
    "cummax": ([1.0, 1.0, 2.0, 2.0], {"axis": 0, "reverse": False},
               [[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 1, 0], [0, 0, 0.5, 0.5]]),
    "cummin": ([2.0, 1.0, 3.0, 1.0], {"axis": 0, "reverse": True},
               [[0, 0.5, 0, 0.5], [0, 0.5, 0, 0.5], [0, 0, 0, 1], [0, 0, 0, 1]]),
    "reduce_prod": ([0.0, 2.0, 3.0], {"axes": (0,)}, [6, 0, 0]),
}  # fmt: skip


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", TIES)
def test_derivatives_at_ties(name: str, dtype: Any) -> None:
    x, params, jacobian = TIES[name]
    f = lambda x: bind1(registry[name], x, **params)
    for derivative in (fg.jacfwd(f), fg.jacrev(f), fg.jit(fg.jacfwd(f)), fg.jit(fg.jacrev(f))):
        assert same_bits(derivative(np.array(x, dtype)) + dtype.type(0), np.array(jacobian, dtype))
    if name != "reduce_prod":
        assert not fg.hessian(f)(np.array(x, dtype)).any()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ["scatter_max", "scatter_min"])
def test_derivatives_at_ties_of_updates(name: str, dtype: Any) -> None:
    f = lambda x, u: bind1(registry[name], x, u, np.array([0, 0, 1, 1]), mode="clip")
    x, u = np.array([2.0, 7.0], dtype), np.array([2.0, 2.0, 7.0, 7.0], dtype)
    for jacobian in (fg.jacfwd, fg.jacrev):
        in_x, in_u = jacobian(f, (0, 1))(x, u)
        np.testing.assert_allclose(in_x, np.eye(2) / 3, rtol=TOLERANCES[dtype].same)
        np.testing.assert_allclose(in_u, np.array([[1, 1, 0, 0], [0, 0, 1, 1]]) / 3, rtol=TOLERANCES[dtype].same)


# -- (c) sizes and layouts


def column_of(x: np.ndarray) -> np.ndarray:
    """Every second element of memory."""
    out = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
    out[..., ::2] = x
    return out[..., ::2]


LAYOUTS: dict[str, tuple[tuple[int, ...], Callable[[np.ndarray], np.ndarray]]] = {
    "()": ((), lambda x: x),
    "(0,)": ((0,), lambda x: x),
    "(1,)": ((1,), lambda x: x),
    "(7,)": ((7,), lambda x: x),
    "(2,0,3)": ((2, 0, 3), lambda x: x),
    "(3,5)": ((3, 5), lambda x: x),
    "strided": ((3, 5), column_of),
    "reversed": ((7,), lambda x: x[::-1].copy()[::-1]),
    "transposed": ((3, 5), np.asfortranarray),
    "stride 0": ((3, 5), lambda x: np.broadcast_to(x[:1], (3, 5))),
    "unaligned": ((5,), lambda x: np.frombuffer(b"\0" + x.tobytes(), x.dtype, offset=1)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_sizes_and_layouts(name: str, layout: str) -> None:
    shape, arrange = LAYOUTS[layout]
    dtype = dtypes_of(name)[0]
    x = [arrange(v) for v in points(name, shape, dtype, 4)]
    plain = [np.array(v, order="C") for v in x]
    before = [v.copy() for v in x]
    found, expected = evaluate(name, *x), evaluate(name, *plain)
    assert found.shape == expected.shape == x[0].shape and found.dtype == expected.dtype

    def everything(*x: Any) -> list[Any]:
        f = apply(name)
        smooth = dtype.kind == "f" == expected.dtype.kind
        return [f(*x), *[mode(f, i)(*x) for i in range(len(x)) for mode in (forward, reverse) if smooth]]

    with eagerly():
        exact = everything(*plain)
    for values in ([found], everything(*x), fg.jit(everything)(*x)):
        for a, b in zip(values, exact, strict=False):
            assert a.dtype == b.dtype
            close(f"{name} {layout}", a, b, TOLERANCES.get(dtype, TOLERANCES[F64]).same)
    for a, b in zip(x, before, strict=True):
        assert same_bits(a, b), "an argument was written to"


# -- (d) NumPy's values

DTYPES = [np.dtype(t) for t in ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
                                "float32", "float64")]  # fmt: skip


def edges(dtype: Any) -> np.ndarray:
    """Values where implementations differ."""
    if dtype.kind == "b":
        return np.array([False, True])
    if dtype.kind in "iu":
        low, high, width = np.iinfo(dtype).min, np.iinfo(dtype).max, dtype.itemsize * 8
        few = {low, low + 1, -width, -7, -3, -2, -1, 0, 1, 2, 3, 5, 7, width - 1, width, width + 1, high - 1, high}
        return np.array(sorted(v for v in few if low <= v <= high), dtype)
    f = np.finfo(dtype)
    few = [
        0.0,
        f.smallest_subnormal,
        f.tiny,
        f.eps,
        1 + f.eps,
        f.max,
        np.inf,
        *[0.3, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 1e10],
    ]
    return np.array([s * v for v in few for s in (1.0, -1.0)] + [np.nan], dtype)


def integer_power(x: Any, y: Any) -> Any:
    """x**y for two integers: wrapped, and 1 / x**-y rounded toward zero."""
    if y >= 0:
        return pow(x, y, 2**64) if abs(y) < 2**16 else pow(x % 2**64, y, 2**64)
    return 0 if abs(x) != 1 else x ** (-y % 2)


def integers(f: Callable[..., Any]) -> Callable[..., Any]:
    """A function of Python integers, elementwise, wrapped to the dtype of the operands."""

    def apply(*x: Any) -> Any:
        values = [f(*map(int, point)) for point in zip(*x, strict=True)]
        return np.array([v % 2**64 for v in values], np.uint64).astype(x[0].dtype)

    return apply


# Where it is not NumPy's function that decides, or not by its bits: kinds of dtypes, function, ulps.
DIFFERS: dict[str, tuple[str, Callable[..., Any], float]] = {
    "fmax": ("f", lambda x, y: np.where((x > y) | np.isnan(y), x, y), 0),  # of 0.0 and -0.0 the second
    "fmin": ("f", lambda x, y: np.where((x < y) | np.isnan(y), x, y), 0),
    "maximum": ("f", lambda x, y: np.where((x > y) | np.isnan(x), x, y), 0),
    "minimum": ("f", lambda x, y: np.where((x < y) | np.isnan(x), x, y), 0),
    "pow": ("i", integers(integer_power), 0),  # NumPy raises for negative powers
    "reciprocal": ("iu", integers(lambda x: x if abs(x) == 1 else 0), 0),  # NumPy's 1 / 0 is undefined
    "erf": ("f", special.erf, 0),
    "erfc": ("f", special.erfc, 0),
    "erfinv": ("f", lambda x: np.copysign(special.erfinv(x), x), 0),  # odd, also at zeros
    "mask_both": ("f", lambda t, c: np.where(t == 0, t, np.where(c == 0, c, t * c)), 0),
    "mask_div": ("f", lambda t, c: np.where(t == 0, t, t / c), 0),
    "mask_mul": ("f", lambda t, c: np.where(t == 0, t, t * c), 0),
    "one_minus_square": ("f", lambda x: (1 - x) * (1 + x), 0),
    "sigmoid": ("f", special.expit, 4),
    "stop_gradient": ("biuf", lambda x: x, 0),
    "xlog1py": ("f", special.xlog1py, 4),
    "xlogy": ("f", special.xlogy, 4),
}
ROUNDED = {"sinc": 1e-15}  # an algorithm of its own, with a stated absolute error


def expected_values(name: str, x: list[np.ndarray]) -> Any:
    """What the op must give, and by how many ulps it may differ."""
    kinds, function, allowed = DIFFERS.get(name, ("", None, 0.0))
    with np.errstate(all="ignore"):
        if x[0].dtype.kind in kinds:
            return function(*x), allowed
        return registry[name].numpy(*x), 0.0


PARITY = [(n, d) for n in ELEMENTWISE for d in DTYPES if d.kind in OPS[n].dtypes]


@pytest.mark.parametrize(("name", "dtype"), PARITY, ids=str)
def test_values_at_the_edges_of_a_dtype(name: str, dtype: Any) -> None:
    grid = np.meshgrid(*[edges(dtype)] * arity(OPS[name]))
    x = [g.ravel() for g in grid]
    expected, allowed = expected_values(name, x)
    found = evaluate(name, *x)
    if name in ROUNDED:
        assert np.array_equal(np.isfinite(found), np.isfinite(*x)) and found.dtype == dtype
        finite = np.isfinite(expected)  # NumPy's pi x overflows
        assert np.max(np.abs(found - expected)[finite]) <= ROUNDED[name] + 4 * TOLERANCES[dtype].eps
    elif allowed:
        assert found.dtype == dtype
        assert (ulps(found, expected, TOLERANCES[dtype].eps) <= allowed).all()
    elif not same_bits(found, expected):
        assert found.dtype == expected.dtype
        wrong = [k for k in range(len(found)) if not same_bits(found[k], expected[k])]
        rows = [f"{name}{tuple(v[k] for v in x)} = {found[k]!r}, not {expected[k]!r}" for k in wrong[:5]]
        raise AssertionError("\n".join(rows))
    for k in range(0, len(found), 1 + len(found) // 60):  # a scalar, as literals are
        if name == "pow" and x[1][k] == 0.5:
            continue  # NumPy takes the root for an exponent that is one scalar: of -inf it is NaN, not inf
        assert same_bits(evaluate(name, *[v[k] for v in x]), found[k]), f"{name}{tuple(v[k] for v in x)} of scalars"


@pytest.mark.parametrize("target", DTYPES, ids=str)
@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_conversions_saturate(source: Any, target: Any) -> None:
    x = edges(source)
    if target.kind in "iu" and source.kind == "f":
        low, high = np.iinfo(target).min, np.iinfo(target).max
        whole = [0 if np.isnan(v) else low if v == -np.inf else high if v == np.inf else int(v) for v in x]
        expected = np.array([min(max(v, low), high) for v in whole], target)
    else:
        with np.errstate(all="ignore"):
            expected = x.astype(target)
    with eagerly():
        convert = lambda value: registry["convert"].evaluate(value, dtype=target, weak=False)[0]
        assert same_bits(convert(x), expected), (x, convert(x), expected)
        for value, result in zip(x, expected, strict=True):
            assert same_bits(convert(value), result)


def test_integers_where_the_documentation_says_so() -> None:
    i8 = lambda *values: np.array(values, np.int8)
    table = {
        "floor_divide": ([7, 0, -128, -7], [0, 0, -1, 2], [0, 0, -128, -4]),
        "remainder": ([7, 0, -128, -7], [0, 0, -1, 2], [0, 0, 0, 1]),
        "fmod": ([7, 0, -128, -7], [0, 0, -1, 2], [0, 0, 0, -1]),
        "left_shift": ([1, 1, 1, -1], [7, 8, 100, -1], [-128, 0, 0, 0]),
        "right_shift": ([-128, -1, 127, -128], [7, 8, 100, -1], [-1, -1, 0, -1]),
        "pow": ([2, 0, -1, 2], [-1, -1, -3, 8], [0, 0, -1, 0]),
        "mul": ([64, -128, 127, 0], [2, -1, 127, 5], [-128, -128, 1, 0]),
    }
    for name, (x, y, expected) in table.items():
        assert same_bits(evaluate(name, i8(*x), i8(*y)), i8(*expected)), name


def test_the_derivative_of_the_first_power_is_no_product() -> None:
    first = lambda x: bind1(registry["pow"], x, np.float64(1.0))
    program = fg.make_program(lambda x, t: fg.jvp(first, (x,), (t,))[1])(2.0, 3.0)
    assert "mul" not in [e.primitive.name for e in program.equations]
