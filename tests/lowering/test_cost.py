"""The cost table: operations by hand, the order and names of its rows, and that measuring runs what jit runs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.core.primitive import registry
from funcgrad.lowering import measure
from funcgrad.lowering.cost import ELEMENTARY, Cost, KernelCost, operations
from funcgrad.lowering.readable import format_kernels
from funcgrad.lowering.simplify import simplify

V, M = np.linspace(0.5, 2.0, 6), np.ones((4, 6))


@pytest.mark.parametrize(
    ("f", "args", "flops"),
    [
        (lambda x: x * 2 + 1, (V,), 12),
        (lambda x: np.exp(x) / x, (V,), 6 * (ELEMENTARY + 1)),
        (lambda x: np.sum(x * x), (V,), 12),
        (lambda x: np.max(x, axis=0), (M,), 24),
        (lambda x: np.where(x > 1, x, 0.0), (V,), 6),  # the comparison
        (lambda x: x[::-1].reshape(2, 3).T.astype(np.float32), (V,), 0),
        (lambda x: (x + 1) * x, (np.arange(6),), 0),  # integers
        (lambda x, y: x @ y, (M, V), 2 * 24),
        (lambda x, y: x @ y, (np.ones((3, 4, 5)), np.ones((3, 5, 2))), 2 * 3 * 4 * 5 * 2),
        (lambda x, y: np.outer(x, y), (V, V), 36),
        (lambda x: np.cumsum(x), (V,), 6),
        (lambda x: np.deg2rad(x), (V,), 6),
        (lambda x: x + 1, (np.ones((0, 3)),), 0),
    ],
)
def test_flops(f: Any, args: tuple[Any, ...], flops: int) -> None:
    assert fg.cost(f, *args, time=False).total.flops == flops


def test_elementary_functions_weigh_what_is_said() -> None:
    program = simplify(fg.make_program(lambda x: np.tanh(x))(V))
    assert [operations(e, (6,)) for e in program.equations] == [6 * ELEMENTARY]
    inexact = [p for p in registry.values() if p.traits.kind == "elementwise" and not p.traits.exact]
    assert {p.name for p in inexact if p.flops is not None} == {"deg2rad", "rad2deg"}
    assert all(p.flops is None or p.flops >= 0 for p in registry.values())


def loss(w: Any, x: Any, y: Any) -> Any:
    z = x @ w
    return np.mean(np.logaddexp(0.0, z) - y * z)


ARGS = (fg.grad(loss), np.zeros(6), M, np.ones(4))


def test_rows_are_the_kernels_that_are_shown() -> None:
    table = fg.cost(*ARGS, time=False)
    heads = [line for line in format_kernels(fg.make_program(ARGS[0])(*ARGS[1:])).splitlines() if line[:6] == "kernel"]
    assert [f"{k.name}: {k.kind}" for k in table] == heads
    assert len(table) == len(heads) and table[0] is table.kernels[0]
    lines = {line.partition(":")[0] for k in table for line in k.lines}
    assert lines == {"test_cost.py"}
    first = loss.__code__.co_firstlineno
    assert table[0].lines == (f"test_cost.py:{first + 1}",)


def test_a_table_prints_aligned_and_adds_up() -> None:
    table = fg.cost(*ARGS, time=False)
    rows = str(table).splitlines()
    assert rows[0].split() == ["kernel", "flops", "read", "B", "written", "B", "flops/B", "lines"]
    assert len(rows) == len(table) + 2
    end = rows[0].index("flops") + len("flops")
    assert all(row[end - 1] in "0123456789s" and row[end] == " " for row in rows)
    assert table.total.flops == sum(k.flops for k in table)
    assert table.total.bytes_read == sum(k.bytes_read for k in table)
    assert table.total.microseconds is None and table[0].gigaflops is None and table[0].gigabytes_per_second is None


def test_derived_figures() -> None:
    k = KernelCost("kernel 0", "loop (4,)", ("a.py:3", "a.py:5", "b.py:1"), 1_000, 3_000, 1_000, 2.0)
    assert (k.intensity, k.gigabytes_per_second, k.gigaflops) == (0.25, 2.0, 0.5)
    empty = KernelCost("kernel 0", "loop (0,)", (), 0, 0, 0)
    assert empty.intensity == 0.0
    text = str(Cost((k, k)))
    assert "a.py:3,5, b.py:1" in text and Cost((k, k)).total.microseconds == 4.0
    assert text.splitlines()[0].split()[-4:] == ["µs", "GB/s", "GFLOP/s", "lines"]
    assert str(Cost(())).splitlines()[-1].split()[0] == "total"


def mixed(x: Any) -> Any:
    y = np.sqrt(x) + 1
    z = np.real(np.exp(1j * y)) * 2  # complex numbers are NumPy's
    return z - y


def test_what_numpy_does_is_listed() -> None:
    table = fg.cost(mixed, V, time=False)
    by_numpy = [k for k in table if k.name.startswith("numpy")]
    assert [k.kind for k in by_numpy] == ["convert", "mul", "exp", "convert"]
    assert [k.flops for k in by_numpy] == [0, 6, 6 * ELEMENTARY, 0]
    assert [int(k.name.split()[1]) for k in table] == list(range(len(table)))
    assert table.total.bytes_written >= 2 * V.nbytes


@pytest.mark.parametrize("args", [ARGS, (mixed, V), (lambda x, i: x[i] + 1, V, np.array([5, 0])), (np.sum, V[:0])])
def test_measuring_gives_a_time_to_every_row(args: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "LEAST", 0.0)
    before = [a.copy() for a in args[1:]]
    table = fg.cost(*args)
    assert all(k.microseconds is not None and 0 < k.microseconds < math.inf for k in table)
    static = fg.cost(*args, time=False)
    assert [(k.name, k.flops, k.bytes_read) for k in table] == [(k.name, k.flops, k.bytes_read) for k in static]
    assert all(np.array_equal(a, b) for a, b in zip(before, args[1:], strict=True))


def test_kernels_are_timed_on_the_values_that_they_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    exp = registry["exp"].evaluate

    def evaluate(x: Any) -> Any:
        seen.append(np.array(x))
        return exp(x)

    monkeypatch.setattr(measure, "LEAST", 0.0)
    monkeypatch.setattr(registry["exp"], "evaluate", evaluate)
    fg.cost(lambda x: np.exp(np.sqrt(x) * 1j) + 1, V)
    assert len(seen) >= 3 and all(np.array_equal(x, np.sqrt(V) * 1j) for x in seen)


def test_errors() -> None:
    shape = fg.ShapeDtypeStruct((6,), float)
    assert fg.cost(np.sin, shape, time=False).total.bytes_read == 48
    with pytest.raises(fg.errors.ParameterError, match="no value"):
        fg.cost(np.sin, shape)
    with pytest.raises(fg.errors.UsageError):
        fg.cost(3.0)
    with pytest.raises(fg.errors.OutOfBoundsError, match="index 9"):
        fg.cost(lambda x, i: x[i] + 1, V, np.array([9]))


def test_a_jitted_function_and_a_captured_array() -> None:
    captured = np.arange(6.0)
    f = fg.jit(lambda x: x * captured)
    table = fg.cost(f, V, time=False)
    assert (table.total.bytes_read, table.total.bytes_written) == (96, 48)
