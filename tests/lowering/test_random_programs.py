"""Random Programs over all primitives, compiled and evaluated.

Exact operations (group E) give equal bits, all intermediate values of a program included. Of every other operation
the compiled result is held to the bound of the operation, on the operands that it met in the compiled program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import funcgrad as fg
from funcgrad.core.evaluate import run
from funcgrad.core.ir import Equation, Literal, Program
from funcgrad.core.primitive import registry
from funcgrad.core.trace import eagerly
from funcgrad.lowering.executable import Executable
from tests.lowering.random_programs import ALL, DTYPES, EXTREMES, GROUP_E, NATIVE, SHAPES, draw_array, random_function
from tests.lowering.test_native_ops import same_bits

# Where a value differs, the equation that made it is known, with its operands: a shorter program would say no more.
programs = st.tuples(st.integers(0, 2**31), st.integers(20, 94), st.sampled_from(SHAPES))


def inputs_of(seed: int, shape: tuple[int, ...]) -> list[Any]:
    """Three arrays, mostly of one shape, of any dtypes."""
    rng = np.random.default_rng(seed)
    return [draw_array(rng, shape if rng.random() < 0.8 else (), rng.choice(DTYPES)) for _ in range(3)]


def traced(f: Callable[..., Any], xs: Sequence[Any]) -> tuple[Program, Program]:
    """The Program of `f`, and the same that returns the result of every equation."""
    p = fg.make_program(f)(*xs)
    every = tuple([v for e in p.equations for v in e.outputs])
    return p, Program(p.inputs, p.equations, every, p.name, p.input_names)


def compiled(program: Program, xs: Sequence[Any]) -> list[Any]:
    before = [x.copy() for x in xs]
    with eagerly():
        found = Executable(program)(xs)
    assert all(same_bits(a, b) for a, b in zip(xs, before, strict=True)), "an input was changed"
    return found


def agrees(e: Equation, found: Any, expected: Any) -> bool:
    """Equal bits; but the sign and payload of NaN, and the sign of zero of an extreme, are open."""
    if e.primitive.name in EXTREMES and np.asarray(expected).dtype.kind == "f":
        found, expected = found + 0.0, expected + 0.0
    return same_bits(found, expected)


# -- exact operations


def check_exact(seed: int, equations: int, shape: tuple[int, ...], names: Sequence[str] = GROUP_E) -> list[Equation]:
    """A random program of exact operations; its equations."""
    xs = inputs_of(seed, shape)
    program, every = traced(random_function(names, seed, equations, results=4), xs)
    assert 20 <= len(program.equations) <= 100 and all(e.primitive.traits.exact for e in program.equations)
    with eagerly():
        values = run(every, xs)
        results = run(program, xs)
    for i, (e, a, b) in enumerate(zip(every.equations, compiled(every, xs), values, strict=True)):
        assert agrees(e, a, b), f"equation {i}, {e.primitive.name} {e.params}: {a} is not {b}"
    for a, b in zip(compiled(program, xs), results, strict=True):  # fused more: little is stored
        assert same_bits(a, b)
    return list(program.equations)


def covered(equations: Iterable[Equation], wanted: Iterable[str]) -> None:
    """Print how often each primitive was drawn, and fail if one never was."""
    seen = Counter([e.primitive.name for e in equations])
    wanted = set(wanted)
    print(f"{len(wanted & set(seen))} of {len(wanted)} primitives in {sum(seen.values())} equations")
    print(", ".join(f"{name} {n}" for name, n in sorted(seen.items())))
    assert not wanted - set(seen), f"never drawn: {sorted(wanted - set(seen))}"


@pytest.mark.parametrize("part", range(2))
def test_exact_operations_bit_for_bit(part: int) -> None:
    drawn: list[Equation] = []

    @settings(max_examples=20)
    @given(programs)
    def check(program: Any) -> None:
        seed, equations, shape = program
        drawn.extend(check_exact(seed + part, equations, shape))

    check()
    covered(drawn, GROUP_E)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_many_exact_programs(part: int) -> None:
    rng = np.random.default_rng(part)
    for _ in range(150):
        shape = SHAPES[rng.integers(len(SHAPES))]
        check_exact(int(rng.integers(2**31)), int(rng.integers(20, 95)), shape)


# -- other operations, each within its bound

ULPS = dict.fromkeys(["exp", "log", "sin", "cos", "tanh"], 1.0) | {"erfc": 3.0, "deg2rad": 0.5, "rad2deg": 0.5}
"""Of the compiled functions; 2 for all others (tests/ops/test_vecmath)."""
EVALUATED_ULPS = 4.0  # of NumPy's and SciPy's functions
SUMS = {"reduce_sum", "cumsum", "dot", "scatter_add", "linear_recurrence"}
PRODUCTS = {"reduce_prod", "cumprod", "scatter_mul"}


def within_bound(e: Equation, found: Any, values: list[Any]) -> bool:
    """Whether a compiled result may stand for the evaluated one, for the same operands."""

    def evaluate(*args: Any) -> Any:
        with np.errstate(all="ignore"):
            return np.asarray(e.primitive.evaluate(*args, **e.params)[0])

    expected, found = evaluate(*values), np.asarray(found)
    name, dtype = e.primitive.name, expected.dtype
    if e.primitive.traits.exact or dtype.kind != "f":
        return agrees(e, found, expected)
    if found.dtype != dtype or found.shape != expected.shape:
        return False
    info = np.finfo(dtype)
    terms = max([np.size(x) for x in values], default=1) + 1
    of_floats = lambda g: [g(x) if np.asarray(x).dtype.kind == "f" else x for x in values]
    with np.errstate(all="ignore"):
        if name in SUMS:  # relative to the sum of the absolute values
            size = evaluate(*of_floats(np.abs))
            settled = np.isfinite(size) | np.isnan(size)
            allowed = 2 * terms * info.eps * size
        elif name in PRODUCTS:  # where no order of the factors leaves the normal numbers
            large = evaluate(*of_floats(lambda x: np.maximum(np.abs(x), 1)))
            small = evaluate(*of_floats(lambda x: np.minimum(np.where(x == 0, 1, np.abs(x)), 1)))
            settled = (np.isfinite(large) & (small > info.tiny)) | np.isnan(large)
            allowed = terms * info.eps * np.abs(expected)
        else:
            size = np.abs(expected)
            if name in ("logaddexp", "logaddexp2"):  # its terms cancel: relative to them
                size = np.maximum(size, np.maximum(np.maximum(*np.abs(values)), 1))
            if name == "sinc":
                size = np.maximum(size, 1)
            if name == "erfc":  # SciPy's has the error of x² in exp(-x²)
                size = size * (1 + np.minimum(values[0], 30) ** 2)
            settled = np.ones(size.shape, bool)
            allowed = (ULPS.get(name, 2.0) + EVALUATED_ULPS) * np.maximum(info.eps * size, info.smallest_subnormal)
        top = lambda y: np.where(np.isinf(y), np.copysign(info.max, y), y).astype(np.longdouble)  # overflow by rounding
        near = np.abs(top(found) - top(expected)) <= allowed
    same = (found == expected) | (np.isnan(found) & np.isnan(expected))
    return bool(np.all(same | near | ~settled))


def check_mixed(seed: int, equations: int, shape: tuple[int, ...], names: Sequence[str] = tuple(ALL)) -> list[Equation]:
    """A random program of any operations; its equations."""
    xs = inputs_of(seed, shape)
    _, every = traced(random_function(names, seed, equations), xs)
    found = compiled(every, xs)
    env = dict(zip(every.inputs, xs, strict=True)) | dict(zip(every.outputs, found, strict=True))
    for i, e in enumerate(every.equations):
        values = [a.array if isinstance(a, Literal) else env[a] for a in e.inputs]
        assert within_bound(e, env[e.outputs[0]], values), (
            f"equation {i}, {e.primitive.name} {e.params} of {values}: {env[e.outputs[0]]}"
        )
    return list(every.equations)


def test_every_operation_within_its_bound() -> None:
    drawn: list[Equation] = []

    @settings(max_examples=40)
    @given(programs)
    def check(program: Any) -> None:
        drawn.extend(check_mixed(*program))

    check()
    covered(drawn, ALL)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_many_mixed_programs(part: int) -> None:
    rng = np.random.default_rng(100 + part)
    for _ in range(150):
        shape = SHAPES[rng.integers(len(SHAPES))]
        check_mixed(int(rng.integers(2**31)), int(rng.integers(20, 95)), shape)


# -- faults are found


def check_many(check: Callable[..., Any], name: str) -> None:
    for seed in range(30):
        check(seed, 20, (17,), [name, "add", "convert", "reverse"])


@pytest.mark.parametrize(
    ("name", "emit"),
    [
        ("rint", lambda b, dtype, x: b.floor(b.add(x, 0.5))),  # half a unit is rounded up
        ("minimum", lambda b, dtype, x, y: b.select(b.lt(y, x), y, x)),  # of equal zeros and NaN the wrong one
        ("trunc", registry["floor"].emit),
    ],
)
def test_a_wrong_exact_operation_is_found(name: str, emit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry[name], "emit", emit)
    with pytest.raises(AssertionError, match=f"equation .* {name} "):
        check_many(check_exact, name)


@pytest.mark.parametrize("name", ["exp", "tanh", "sub"])
def test_a_result_beyond_its_bound_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = registry[name].emit
    assert right is not None
    off = lambda b, dtype, *x: b.mul(right(b, dtype, *x), 1 + 2.0**-19) if dtype.kind == "f" else right(b, dtype, *x)
    monkeypatch.setattr(registry[name], "emit", off)
    with pytest.raises(AssertionError, match=f"equation .* {name} "):
        check_many(check_mixed, name)


# -- arguments of jit of any layout


def laid_out(x: Any, how: int) -> Any:
    """An array equal to `x`: strided, reversed, in Fortran order, inside a larger one, read-only, unaligned."""
    x = np.asarray(x)
    if how == 0:
        wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1]) if x.ndim else (2,), x.dtype)
        y = wide[..., ::2] if x.ndim else wide[::2].reshape(())
    elif how == 1:
        y = np.empty(x.shape, x.dtype)[(..., *[slice(None, None, -1)] * x.ndim)]
    elif how == 2:
        y = np.empty_like(x, order="F")
    elif how == 3:
        y = np.zeros(x.size + 3, x.dtype)[1 : 1 + x.size].reshape(x.shape)
    elif how == 4:
        y = np.zeros(x.nbytes + 1, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    else:
        y = np.empty_like(x)
    y[...] = x
    y.flags.writeable = how != 5
    return y


@pytest.mark.parametrize("drawn", [NATIVE, GROUP_E], ids=["native", "in stages"])
def test_arguments_of_any_layout(drawn: list[str]) -> None:
    entered = []

    @settings(max_examples=15)
    @given(programs, st.lists(st.integers(0, 6), min_size=9, max_size=9))
    def check(program: Any, layouts: list[int]) -> None:
        seed, equations, shape = program
        f = random_function(drawn, seed, equations // 3, results=3)
        xs = inputs_of(seed, shape)
        with eagerly():
            expected = run(fg.make_program(f)(*xs), xs)
        g = fg.jit(f)
        for call in range(3):  # the first through Python, the others natively where that is possible
            args = [laid_out(x, k) for x, k in zip(xs, layouts[3 * call :], strict=False)]
            found = g(*args)
            assert all(same_bits(a, b) for a, b in zip(found, expected, strict=True))
            assert all(same_bits(a, b) for a, b in zip(args, xs, strict=True))
            found[0][...] = 0  # the results are fresh
            assert all(same_bits(a, b) for a, b in zip(args, xs, strict=True))
        entered.append(bool(g._natives))
        assert g.cache_info().hits == 2

    check()
    assert sum(entered) >= (8 if drawn is NATIVE else 2)  # served by machine code alone


@settings(max_examples=15)
@given(programs)
def test_arguments_that_overlap(program: Any) -> None:
    seed, equations, _ = program
    whole = draw_array(np.random.default_rng(seed), (20,), DTYPES[seed % len(DTYPES)])
    xs = [whole[:12], whole[5:17], whole[::-1][3:15], whole[2:14]]
    f = random_function(NATIVE, seed, equations // 3, results=3)
    before = whole.copy()
    with eagerly():
        expected = run(fg.make_program(f)(*xs), xs)
    g = fg.jit(f)
    for _ in range(2):
        assert all(same_bits(a, b) for a, b in zip(g(*xs), expected, strict=True))
        assert same_bits(whole, before)
