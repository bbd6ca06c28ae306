"""What the reverse mode of a loop keeps of each trip: the results of the known loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import funcgrad as fg
import funcgrad.numpy as fnp
from funcgrad import lax
from funcgrad.core.ir import Equation
from funcgrad.lowering.executable import Executable

X = np.linspace(0.5, 1.5, 30)


def loops(f: Callable[..., Any], *args: Any) -> list[Equation]:
    program = Executable(fg.make_program(f)(*args)).program
    return [e for e in program.equations if e.primitive.name == "loop"]


def kept(e: Equation) -> list[int]:
    """Elements of each value that is kept of a trip."""
    return [a.size for a in e.params["body"].out_avals[e.params["carry"] :]]


def test_a_recurrence_keeps_numbers_not_arrays() -> None:
    def f(a: Any) -> Any:
        x = lax.fori_loop(1, 50, lambda i, x: x.at[i].set(np.sin(x[i - 1]) * a), fnp.zeros(50).at[0].set(a))
        return np.sum(x)

    for g in (fg.grad(f), fg.grad(fg.grad(f))):
        for e in loops(g, 0.5):
            assert set(kept(e)) <= {1}


def test_what_is_the_same_in_every_trip_is_not_stacked() -> None:
    f = lambda a, x: np.sum(lax.fori_loop(0, 5, lambda i, y: y * np.exp(np.sin(x) * a), x))
    known, linear = loops(fg.grad(f, (0, 1)), 0.5, X)
    assert kept(known) == [30] and kept(linear) == []  # y alone
    names = [q.primitive.name for e in (known, linear) for q in e.params["body"].equations]
    assert "sin" not in names and "exp" not in names


def test_nothing_is_kept_of_a_linear_loop() -> None:
    f = lambda x, a: np.sum(lax.while_loop(lambda s: s[1] < 4, lambda s: (s[0] * a + x, s[1] + 1), (x, 0))[0])
    known, linear = loops(fg.grad(f), X, 0.5)
    assert kept(known) == [] and kept(linear) == []
    assert all([a.size == 1 for a in known.params["body"].out_avals])  # nor computed: trips are counted


def test_a_carry_that_nobody_reads_is_gone() -> None:
    step = lambda i, s: (s[0] * 0.5, np.tanh(s[1]) + s[0], s[2] + s[1])
    (e,) = loops(lambda x: lax.fori_loop(0, 4, step, (x, x, x))[0], X)
    assert e.params["carry"] == 1 and len(e.params["body"].equations) == 1
