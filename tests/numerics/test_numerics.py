"""docs/numerics.md says what was measured, and what was measured is so still: its worst cases, and a sample."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.core.evaluate import run
from funcgrad.core.primitive import registry
from funcgrad.core.trace import bind1, eagerly
from funcgrad.lowering.stages import this_target
from tests.numerics import data, page, sums
from tests.numerics.arguments import numbers, pairs, points
from tests.numerics.compiled import DTYPES, WIDEST, Array, arity, f32, f64
from tests.numerics.measure import (
    COMPARED,
    again,
    codes,
    different,
    exact_functions,
    exhaustive,
    functions,
    jitted,
    oracle_error,
)
from tests.numerics.oracles import BINARY, BOUNDS, REFERENCES, UNARY, exact_error, reference, worst

FOUND = data.load()
RECORDS = FOUND["functions"]
HERE = data.machine() == FOUND["machine"]  # eager figures are NumPy's, and the order of sums depends on vectors
CASES = [(name, dtype) for name in functions() for dtype in DTYPES]
compiled_here = pytest.mark.skipif(
    WIDEST < 32 or np.finfo(np.longdouble).nmant != 63, reason="needs vectors of 32 bytes and an 80-bit long double"
)


def record(name: str, dtype: Any) -> dict[str, Any]:
    return data.best(RECORDS[name][np.dtype(dtype).name])


# -- the page


def test_the_page_is_what_was_measured() -> None:
    assert page.PAGE.read_text("utf-8") == page.generated(FOUND), "python -m tests.numerics --write"


def test_every_function_was_measured() -> None:
    assert set(functions()) == set(REFERENCES) == set(BOUNDS) == set(RECORDS)
    for name in functions():
        assert set(RECORDS[name]) == {"float32", "float64"}
        for r in RECORDS[name].values():
            assert r["inputs"] >= 10**6
            assert r.get("every", {"inputs": 1 << 32})["inputs"] == 1 << 32
            assert r["oracle"] < 0.002
            for code in ("fma", "plain"):
                assert r[code]["ulp"] <= data.best(r)[code]["ulp"] <= BOUNDS[name]


def test_every_kind_of_sum_was_measured() -> None:
    every = product(sums.OPS, sums.KINDS, sums.LENGTHS, ("float32", "float64"))
    assert set(FOUND["sums"]) == {sums.key(*each) for each in every}


# -- elementary functions


@compiled_here
@pytest.mark.parametrize("name", functions())
def test_worst_cases_are_what_they_were(name: str) -> None:
    for dtype in DTYPES:
        r = record(name, dtype)
        for code in ("fma", "plain", "eager") if HERE else ("fma", "plain"):
            if r[code]["at"] and np.isfinite(r[code]["ulp"]):
                assert again(name, dtype, r, code) == r[code]["ulp"], (dtype, code)


@compiled_here
@pytest.mark.parametrize("name", functions())
def test_no_sample_is_worse(name: str) -> None:
    for dtype in DTYPES:
        r = record(name, dtype)
        args = tuple(a[::29] for a in pairs(dtype)) if name in BINARY else (
            np.concatenate([points(dtype)[::97], numbers(name, dtype, 8192, 0)]),
        )  # fmt: skip
        expected = reference(name, dtype, args)
        for code in ("fma", "plain"):
            ulp, i = worst(name, codes(name, dtype)[code](*args), expected, args)
            assert ulp <= r[code]["ulp"] + 2e-3, (dtype, code, ulp, [float(a[i]).hex() for a in args])


@compiled_here
@pytest.mark.parametrize("name", functions())
def test_jit_is_what_was_measured(name: str) -> None:
    code = "fma" if this_target().fma else "plain"
    for dtype in DTYPES:
        at = [[float.fromhex(a) for a in record(name, dtype)[c]["at"]] for c in ("fma", "plain", "eager", "apart")]
        at = [a for a in at if a] + [[0.7] * arity(name), [-0.0] * arity(name)]
        args = [np.array(a, dtype) for a in zip(*at, strict=True)]
        assert not different(np.asarray(jitted(name)(*args)), codes(name, dtype)[code](*args)).any()


@compiled_here
@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_references_agree_with_mpmath(name: str, dtype: Any) -> None:
    assert oracle_error(name, dtype, 10) < 0.002


def test_errors_are_counted_right() -> None:
    x = np.array([1.0, 0.0, 5e-324, 1.7e308])
    exact = np.array([1, 0, 5e-324, 1.7e308], np.longdouble)
    for y, ulp in (([1 + 2.0**-52, 0, 5e-324, 1.7e308], 1), ([1 - 2.0**-53, 0, 5e-324, 1.7e308], 0.5),
                   ([1, 5e-324, 5e-324, 1.7e308], 1), ([1, -0.0, 5e-324, 1.7e308], np.inf),
                   ([1, 0, 1.5e-323, 1.7e308], 2), ([1, np.nan, 5e-324, 1.7e308], np.inf),
                   ([1, 0, 5e-324, np.inf], (2.0**1023 - 0.85e308) * 2 / 2.0**971)):  # fmt: skip
        assert worst("", np.array(y), exact, (x,))[0] == pytest.approx(ulp, rel=1e-3)
    assert exact_error("exp", f64, np.exp(1.0), 1.0) < 0.5 < 0.67 < exact_error("exp", f64, np.nextafter(np.e, 3), 1.0)
    assert exact_error("sin", f64, 5e-324, 0.0) == 1
    assert exact_error("exp", f64, np.inf, 709.78) > 1e10 > exact_error("exp", f64, np.inf, 1000.0) == 0


def test_exact_operations_are_equal_bit_for_bit() -> None:
    ops = [name for name in exact_functions() if name not in ("select", "convert")]

    def everything(x: Array, y: Array) -> list[Any]:
        chosen = [bind1(registry["select"], x > y, x, y)]
        return chosen + [bind1(registry[name], *(x, y)[: arity(name)]) for name in ops]

    for dtype in DTYPES:
        x, y = (a[-COMPARED // 2 :] for a in pairs(dtype))
        x, y = (np.concatenate([a[: COMPARED // 2], b]) for a, b in zip(pairs(dtype), (x, y), strict=True))
        program = fg.make_program(everything)(x, y)
        with eagerly(), np.errstate(all="ignore"):
            expected = run(program, [x, y])
        for name, a, b in zip(["select", *ops], fg.jit(everything)(x, y), expected, strict=True):
            a, b = np.asarray(a), np.asarray(b)
            assert a.dtype == b.dtype
            wrong = different(a, b) if a.dtype.kind == "f" else a != b
            assert not wrong.any(), (name, x[wrong][0], y[wrong][0])


@pytest.mark.slow
@compiled_here
@pytest.mark.parametrize("name", UNARY)
def test_all_floats(name: str) -> None:
    r = exhaustive(name)
    for code in ("fma", "plain"):
        print(f"{name} f32, all inputs, {code}: {r[code]}")
        assert r[code]["ulp"] <= BOUNDS[name]
        if "every" in RECORDS[name]["float32"]:
            assert r[code] == record(name, f32)[code]


# -- sums


@pytest.mark.parametrize("op", sums.OPS)
def test_sums_are_as_exact_as_they_were(op: str) -> None:
    for kind in sums.KINDS:
        for dtype in ("float32", "float64"):
            found = sums.measured(op, kind, 100, dtype, sums.DRAWS[100])
            assert found["jit"] <= (50 if "cum" in op else 9)
            if HERE:
                if "@" in op:  # others depend on the BLAS
                    found = {**FOUND["sums"][sums.key(op, kind, 100, dtype)], "jit": found["jit"]}
                assert found == FOUND["sums"][sums.key(op, kind, 100, dtype)]


def test_errors_of_sums_are_counted_right() -> None:
    x = np.array([1.0, 2.0**-60, -1.0, 3.0])
    high, rest = next(sums.terms((x,)))
    assert sums.error_of_total(3.0, high, rest, mean=False) == 2.0**-60 / 5
    assert sums.error_of_total(0.75, high, rest, mean=True) == 2.0**-60 / 5
    total, low = sums.prefixes(x)
    assert (total + low == [1, 1, 2.0**-60, 3]).all()
    assert low.tolist() == [0, 2.0**-60, 0, 2.0**-60]
    (a, b), y = sums.product(np.float64(1 + 2.0**-30), np.float64(1 + 2.0**-30)), 1 + 2.0**-29
    assert (a, b) == (y, 2.0**-60)
