"""Every op with a native form, on edge values of every dtype, gives the bits that evaluation gives."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.core.evaluate import run
from funcgrad.core.primitive import registry
from funcgrad.core.trace import bind1, eagerly
from funcgrad.lowering.emit import native_form
from funcgrad.lowering.executable import Executable
from funcgrad.lowering.simplify import simplify
from funcgrad.ops.op import Op
from tests.ops.samples import SAMPLES
from tests.rule_checker import all_primitives

DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64"]
FLOATS = [
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.7, np.inf, -np.inf, np.nan, 1e300, -1e300, 1e-300, 5e-324,
    -5e-324, 1e-40, 1e16, -1e16, 2.0**31, 2.0**63, -(2.0**63), 255.0, 256.0, -129.0, 4503599627370497.5,
]  # fmt: skip
OPS = [n for n, p in registry.items() if p.traits.kind == "elementwise" and p.traits.exact and p.emit is not None]


def edges(name: str) -> np.ndarray:
    dtype = np.dtype(name)
    if dtype.kind == "f":
        with np.errstate(all="ignore"):
            return np.array(FLOATS).astype(dtype)
    if dtype.kind == "b":
        return np.array([True, False])
    i = np.iinfo(dtype)
    values = {0, 1, 2, 3, 7, 8, 31, 33, 63, 64, 65, i.max, i.max - 1, i.min, i.min + 1, -1, -2, -3, -7}
    return np.array(sorted(v for v in values if i.min <= v <= i.max), dtype)


def same_bits(found: Any, expected: Any) -> bool:
    found, expected = np.ascontiguousarray(found), np.ascontiguousarray(expected)
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    if found.dtype.kind != "f":
        return bool(np.array_equal(found, expected))
    unsigned = f"u{found.dtype.itemsize}"
    equal = np.atleast_1d(found).view(unsigned) == np.atleast_1d(expected).view(unsigned)
    return bool(np.all(equal | np.atleast_1d(np.isnan(found) & np.isnan(expected))))


def compiled_and_evaluated(f: Any, args: list[Any]) -> tuple[list[Any], list[Any]]:
    program = fg.make_program(f)(*args)
    with eagerly():
        return Executable(program)(args), run(program, args)


@pytest.mark.parametrize("name", OPS)
def test_bits(name: str) -> None:
    op = registry[name]
    arity = 1 if name == "convert" else len(inspect.signature(op.function).parameters)
    for d, to in itertools.product(DTYPES, DTYPES if name == "convert" else [None]):
        if np.dtype(d).kind not in op.dtypes:
            continue
        v = edges(d)
        if name == "select":
            args = [np.resize([True, False], len(v)), v, v[::-1].copy()]
        else:
            args = [np.ascontiguousarray(a).ravel() for a in np.meshgrid(*[v] * arity)] if arity > 1 else [v]
        params = {"dtype": np.dtype(to), "weak": False} if to else {}
        found, expected = compiled_and_evaluated(lambda *a, p=params: bind1(op, *a, **p), args)
        assert same_bits(found[0], expected[0]), (d, to)


def test_the_list_is_not_empty() -> None:
    exact = [n for n, p in registry.items() if p.traits.kind == "elementwise" and p.traits.exact]
    missing = sorted(set(exact) - set(OPS))
    assert missing == []
    assert len(OPS) >= 40


WITHOUT: dict[str, str] = {"stable_order": "sorts are NumPy's", "solve": "LAPACK is NumPy's"}
"""The primitives without a native form, and why."""


def applications(name: str) -> list[tuple[Any, Sequence[Any]]]:
    """Functions and arguments: its samples, or ones of every dtype that it takes and that machine code knows."""
    if name in SAMPLES:
        return [(s.function, s.args) for s in SAMPLES[name]]
    op = registry[name]
    operands = len(inspect.signature(op.function).parameters)
    kinds = [d for d in DTYPES if np.dtype(d).kind in op.dtypes]
    return [(lambda *args: bind1(op, *args), [np.ones(3, d)] * operands) for d in kinds]


def test_what_has_no_native_form_is_listed() -> None:
    """A new primitive has a native form for every native dtype, or stands in `WITHOUT` with a reason."""
    found = set()
    for name in [name for name, p in all_primitives().items() if isinstance(p, Op)]:
        for f, args in applications(name):
            program = simplify(fg.make_program(f)(*args))
            found.update([e.primitive.name for e in program.equations if not native_form(e)])
    assert found == set(WITHOUT)
