"""Compiled code goes when its function goes, and calls leave nothing behind."""

from __future__ import annotations

import dataclasses
import gc
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import funcgrad as fg

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@fg.tree.register_dataclass
@dataclasses.dataclass
class Moments:
    mean: Any
    scale: Any
    label: str = dataclasses.field(default="moments", metadata={"static": True})


def resident() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4 / 1024


def mappings() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


def compile_and_drop(number: float) -> None:
    f = fg.jit(lambda x: np.sqrt(x * (1.0 + number)) + number)
    x = np.ones(3)
    assert np.allclose(f(x), np.sqrt(1.0 + number) + number) and np.allclose(f(x), f(x))


def distinct_programs(count: int) -> None:
    for i in range(100 + count // 5):  # until the heap has found its size
        compile_and_drop(i)
    gc.collect()
    memory, maps = resident(), mappings()
    for i in range(count):
        compile_and_drop(100_000.0 + i)
    gc.collect()
    assert resident() - memory < 20 and mappings() - maps < 50


def many_calls(count: int) -> None:
    f = fg.jit(lambda x, t: {"a": x + 1, "b": (t["k"] * 2, None)})
    step = fg.jit(lambda s, g: Moments(s.mean * 0.5 + g, np.flip(s.scale)), donate_argnums=0)
    x, t = np.ones(3), {"k": 2.0}
    mean, scale, label = np.ones(3), np.arange(3.0), "moments"
    state = Moments(mean, scale, label)
    for _ in range(1000):
        f(x, t)
        state = step(state, x)
    gc.collect()
    memory, counts = resident(), [sys.getrefcount(v) for v in (mean, scale, label, x)]
    out: Any = None
    for _ in range(count):
        out = f(x, t)
        state = step(state, x)
    assert out["b"][0] == 4.0
    assert state.mean is mean and state.scale is scale and mean.tolist() == [2, 2, 2] and sorted(scale) == [0, 1, 2]
    assert [sys.getrefcount(v) for v in (mean, scale, label, x)] == counts
    assert resident() - memory < 2


def test_distinct_programs() -> None:
    distinct_programs(400)


def test_calls() -> None:
    many_calls(100_000)


@pytest.mark.slow
def test_many_distinct_programs() -> None:
    distinct_programs(10_000)


@pytest.mark.slow
def test_many_calls() -> None:
    many_calls(1_000_000)
