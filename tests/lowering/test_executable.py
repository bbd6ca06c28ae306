"""The interface of what jit runs."""

from __future__ import annotations

import numpy as np

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
