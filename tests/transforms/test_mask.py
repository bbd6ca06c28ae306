"""What `mask` says of each operation that is linear: when its results may hold structural zeros, and what it guards."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.ops.arithmetic import add, div, mask_both, mask_div, mask_mul, mul, neg, select, sub
from funcgrad.ops.broadcasting import broadcast, reduce_sum, reshape, transpose
from funcgrad.ops.cumulative import cumsum
from funcgrad.ops.indexing import gather, scatter, scatter_add
from funcgrad.ops.movement import concatenate, pad, reverse, slice_
from funcgrad.ops.op import full_like
from funcgrad.ops.windows import dynamic_slice, dynamic_update_slice
from funcgrad.transforms.mask import mask

X, Y = np.array([1.0, 2.0, 3.0]), np.array([0.5, -1.0, 2.0])
CHOICE, PLACES, ZERO = np.array([True, False, True]), np.array([1, 1, 0]), np.int64(0)

JOINED: dict[str, tuple[Callable[..., Any], Any, tuple[Any, ...]]] = {  # the second operand, and what does not move
    "add": (add, Y, ()),
    "sub": (sub, Y, ()),
    "select": (lambda t, u, c: select(c, t, u), Y, (CHOICE,)),
    "concatenate": (lambda t, u: concatenate([t, u], 0), Y, ()),
    "pad": (lambda t, u: pad(t, u, (1,), (0,), (0,)), np.float64(4.0), ()),
    "scatter": (scatter, Y, (PLACES,)),
    "scatter_add": (scatter_add, Y, (PLACES,)),
    "dynamic_update_slice": (dynamic_update_slice, Y[:2], (ZERO,)),
}
MOVED: dict[str, Callable[..., Any]] = {
    "neg": neg,
    "reduce_sum": lambda t: reduce_sum(t, (0,)),
    "cumsum": lambda t: cumsum(t, 0),
    "broadcast": lambda t: broadcast(t, (2, 3), (1,)),
    "reshape": lambda t: reshape(t, (3, 1)),
    "transpose": lambda t: transpose(reshape(t, (3, 1)), (1, 0)),
    "reverse": lambda t: reverse(t, (0,)),
    "slice": lambda t: slice_(t, (0,), (2,), (1,)),
    "gather": lambda t: gather(t, PLACES),
    "dynamic_slice": lambda t: dynamic_slice(t, ZERO, sizes=(2,)),
}
GUARDS: dict[str, Callable[..., Any]] = {"mask_mul": mask_mul, "mask_div": mask_div, "mask_both": mask_both}


def masked(f: Callable[..., Any], args: Any, linear: Any, structural: Any) -> tuple[bool, str]:
    """Whether the result of a function may hold structural zeros, and which primitive computes it in the end."""
    program = fg.make_program(f)(*args)
    rest = (False,) * (len(program.inputs) - len(linear))
    program, (flag,) = mask(program, (*linear, *rest), (*structural, *rest))
    return flag, program.equations[-1].primitive.name


@pytest.mark.parametrize("flags", list(itertools.product([False, True], repeat=2)))
@pytest.mark.parametrize("name", JOINED)
def test_two_that_move(name: str, flags: tuple[bool, bool]) -> None:
    """A sum is zero by construction where both terms are, what has elements of both if one is."""
    f, u, others = JOINED[name]
    expected = all(flags) if name in ("add", "sub") else any(flags)
    assert masked(f, (X, u, *others), (True, True), flags) == (expected, name)


@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("name", JOINED)
def test_beside_a_zero(name: str, flag: bool) -> None:
    """A zero that a rule puts among elements is one by construction; added, it changes nothing."""
    f, u, others = JOINED[name]
    expected = flag if name in ("add", "sub") else True
    g = lambda t, *others: f(t, full_like(u, 0.0), *others)
    assert masked(g, (X, *others), (True,), (flag,)) == (expected, name)


@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("name", MOVED)
def test_elements_that_move(name: str, flag: bool) -> None:
    assert masked(MOVED[name], (X,), (True,), (flag,)) == (flag, name)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize(("f", "guarded"), [(mul, "mask_mul"), (div, "mask_div")])
def test_products(f: Any, guarded: str, flag: bool, first: bool) -> None:
    """A product is guarded for the factor that moves, which comes first then."""
    if f is div and not first:
        return
    linear, structural = ((True, False), (flag, False)) if first else ((False, True), (False, flag))
    assert masked(f, (X, Y), linear, structural) == (flag, guarded if flag else f.__name__)
    program = mask(fg.make_program(f)(X, Y), linear, structural)[0]
    if flag:
        assert program.equations[-1].inputs[0] is program.inputs[0 if first else 1]


@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("name", GUARDS)
def test_guards(name: str, flag: bool) -> None:
    """What comes out of a guard has zeros by construction, whatever is put in."""
    assert masked(GUARDS[name], (X, Y), (True, False), (flag, False)) == (True, name)


@pytest.mark.parametrize(("flag", "name"), [(False, "mask_mul"), (True, "mask_both")])
def test_a_guard_that_is_linear_in_the_other_factor(flag: bool, name: str) -> None:
    """If that has zeros by construction, both are guarded; a guard of both stays one."""
    assert masked(mask_mul, (X, Y), (False, True), (False, flag)) == (True, name)
    assert masked(mask_both, (X, Y), (False, True), (False, flag)) == (True, "mask_both")


def test_a_call_keeps_how_it_is_lowered() -> None:
    g = fg.jit(np.log, lowering="numba")
    f = lambda x: g(np.where(x > 0, x, 0.0))
    for derivative in (fg.grad(f), lambda x: fg.jvp(f, (x,), (1.0,))[1]):
        calls = [e.params for e in fg.make_program(derivative)(1.0).equations if e.primitive.name == "call"]
        assert calls and all([params["lowering"] == "numba" for params in calls])
