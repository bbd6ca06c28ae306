"""Random programs on a GPU that is not there: compiled to PTX and executed by its interpreter, which detects races.

The sizes from which on work is shared out are drawn, too, so that small programs take the ways of large ones: a sum by
a block or in parts, a sort of several runs, a loop that the host drives.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

import funcgrad as fg
from funcgrad.api.inspect import abstract_trace
from funcgrad.base.errors import UnsupportedError
from funcgrad.core.ir import Program
from funcgrad.core.trace import eagerly
from funcgrad.lowering.cuda import loops, sorts
from funcgrad.lowering.cuda.executable import CudaExecutable
from funcgrad.lowering.registers import cells, kinds
from funcgrad.testing.recipes import Recipe
from tests.cuda.against_cpu import ARCHS, check_code, device, has_same_bits
from tests.fuzz.comparisons import Checker, Failure, Function, Outcome, equations
from tests.rule_checker import same_bits

SIZES = ((loops, "LONG", 2), (loops, "PART", 2), (sorts, "RUN", 2), (kinds, "MOST", 4), (cells, "SMALL", 2))
LARGE = 1500  # equations above which the interpreter takes too long


@contextmanager
def settings(seed: int) -> Iterator[None]:
    """Some of the sizes are small for a while, on the CPU too: what is found out with them is remembered."""
    choices = random.Random(seed)
    some = [(where, name, small, getattr(where, name)) for where, name, small in SIZES if choices.random() < 0.5]
    for where, name, small, _ in some:
        setattr(where, name, small)
    try:
        yield
    finally:
        for where, name, _, before in some:
            setattr(where, name, before)


def compare(recipe: Recipe, outcome: Outcome, seed: int) -> None:
    """Values, and the reverse derivative, against those of the CPU without jit."""
    checker = Checker(recipe, seed)
    checker.outcome = outcome
    try:
        _compare(checker, "cuda", recipe, checker.args, seed)
        if checker.floats and checker.moving:
            f = checker.of_floats(recipe)
            xs = [checker.args[i] for i in checker.floats]
            w = tuple([np.ones_like(checker.expected[i]) for i in checker.moving])
            _compare(checker, "cuda vjp", lambda *xs: fg.vjp(f, *xs)[1](w), xs, seed)
    except Failure as failure:
        outcome.failure = failure


def _compare(checker: Checker, way: str, f: Function, args: Sequence[Any], seed: int) -> None:
    traced = abstract_trace(f, tuple(args), {}, way)
    program, values = traced.program, [np.asarray(x) for x in (*traced.constants, *args)]
    if equations(program) > LARGE:
        checker.outcome.unsettled.append(f"{way}: large")
        return
    with np.errstate(all="ignore"):
        expected = [np.asarray(y) for y in fg.tree.leaves(f(*args))]
    try:
        found = checker.run(way, lambda: _executed(program, values, ARCHS[seed % len(ARCHS)]))
    except Failure as failure:
        if not isinstance(failure.__cause__, UnsupportedError):
            raise
        checker.outcome.unsettled.append(f"{way}: unsupported")
        return
    if has_same_bits(program) and all([e.primitive.traits.exact for e in program.equations]):
        for k, (a, b) in enumerate(zip(found, expected, strict=True)):
            if not same_bits(np.asarray(a) + 0, b + 0):
                raise Failure(way, f"exact result {k} is {a!r}, not {b!r}")
    checker.compare(way, found, expected, lambda *xs: tuple(fg.tree.leaves(f(*xs))), args)


def _executed(program: Program, values: Sequence[Any], arch: str) -> list[Any]:
    with eagerly():
        executable = CudaExecutable(program, device(arch))
        check_code(executable, arch)
        return [np.asarray(y) for y in executable(values)]
