"""One Program per computation: what is the same, what is kept, and how much."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.core import canonical


def test_few_functions_of_the_user_are_kept() -> None:
    arrays = []

    def f(x: Any) -> Any:
        big = np.zeros(10)
        arrays.append(weakref.ref(big))
        return x * fg.pure_callback(lambda: float(big[0]) + 1.0, fg.ShapeDtypeStruct((), float))

    for _ in range(60):
        assert fg.grad(f)(2.0) == 1.0
    gc.collect()
    assert sum([a() is not None for a in arrays]) < 20


def test_the_second_gradient_derives_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from funcgrad.transforms import jvp as module

    derived = []
    original = module._jvp
    monkeypatch.setattr(module, "_jvp", lambda *a: (derived.append(1), original(*a))[1])

    def loss(w: Any) -> Any:
        return np.sum(np.tanh(w) ** 2)

    for i in range(4):
        fg.grad(loss)(np.ones(3) * i)
    assert len(derived) == 1
    fg.grad(loss)(np.ones(4))
    assert len(derived) == 2


def test_constants_lines_and_names_tell_programs_apart() -> None:
    def make(c: Any) -> Any:
        return lambda x: x / c

    assert [float(fg.grad(make(c))(1.0)) for c in (2.0, 4.0, 2, -0.0, 0.0)] == [0.5, 0.25, 0.5, -np.inf, np.inf]
    captured = [np.array([1.0, 2.0]), np.array([3.0, 4.0])]
    assert [fg.grad(lambda x, c=c: np.sum(x * c))(np.ones(2)).tolist() for c in captured] == [[1, 2], [3, 4]]


def test_how_much_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from collections import OrderedDict

    monkeypatch.setattr(canonical, "_programs", OrderedDict())
    monkeypatch.setattr(canonical, "_count", [0])
    monkeypatch.setattr(canonical, "KEPT_EQUATIONS", 1000)

    def f(x: Any, length: int, c: float) -> Any:
        for _ in range(length):
            x = x * c
        return x

    for i in range(60):
        fg.grad(f)(1.0, 100, 1.0 + i)
        assert sum(len(p.equations) for p in canonical._programs.values()) == canonical._count[0] <= 1000
    assert len(canonical._programs) == 9
    fg.grad(f)(1.0, 600, 0.5)  # too large to keep
    assert max(len(p.equations) for p in canonical._programs.values()) == 101


def test_scalars_taken_from_an_array_are_operands(monkeypatch: pytest.MonkeyPatch) -> None:
    from funcgrad.transforms import jvp as module

    derived = []
    original = module._jvp
    monkeypatch.setattr(module, "_jvp", lambda *a: (derived.append(1), original(*a))[1])

    def loss(w: Any, data: Any) -> Any:
        total = 0.0
        for v in data:  # numpy.float64, other ones at every call
            total = total + (w * v - 1.0) ** 2
        return total

    for k in range(4):
        data = np.array([1.0, 2.0, 3.0]) + k
        assert np.isclose(float(fg.grad(loss)(0.5, data)), 2 * np.sum((0.5 * data - 1) * data))
    assert len(derived) == 1
