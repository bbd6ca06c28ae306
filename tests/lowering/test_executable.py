"""The interface of what jit runs."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.lowering import executable


def test_an_executable_runs_its_program() -> None:
    program = fg.make_program(lambda x: (np.sin(x), x.T))(np.ones((2, 3)))
    run = executable(program)
    x = np.arange(6.0).reshape(2, 3)
    y, t = run([x])
    np.testing.assert_array_max_ulp(y, np.sin(x), 4)
    assert np.array_equal(t, x.T) and t.flags.c_contiguous
    assert executable(program) is run


def test_a_nested_jit_runs_through_its_executable() -> None:
    inner = fg.jit(lambda x: x * 2)
    outer = fg.jit(lambda x: inner(x) + inner(x))
    assert outer(np.ones(2)).tolist() == [4, 4]


def test_machine_code_that_writes_behind_its_arena_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    lowering: Any = sys.modules["funcgrad.lowering.executable"]
    emit = lowering.emit

    def short(*args: Any) -> Any:
        module = emit(*args)
        assert module.arena >= 64
        return dataclasses.replace(module, arena=module.arena - 64)

    monkeypatch.setattr(lowering, "emit", short)

    def mean_distance(x: Any) -> Any:
        return np.sum(np.sqrt((x - np.sum(x * x) / 3.0) ** 2))

    f = fg.jit(mean_distance)
    for _ in range(3):
        with pytest.raises(fg.errors.ProgramError, match="program mean_distance wrote behind its arena of"):
            f(np.arange(3.0))
