"""Odd arguments: a sample of the fuzzer, and the kinds of faults that it has found."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad import errors
from funcgrad.base.errors import printed
from tests.robustness import arguments
from tests.robustness.zoo import Layer, Raises, Shapeless

fnp = fg.numpy


def test_odd_arguments_give_results_or_errors() -> None:
    report = arguments.run(seed=0, calls=3000)
    assert report.calls == 3000 and not report.faults, str(report)


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(1, 5))
def test_many_odd_arguments_give_results_or_errors(seed: int) -> None:
    report = arguments.run(seed, calls=100_000)
    assert report.calls == 100_000 and not report.faults, str(report)


def cyclic() -> list[Any]:
    a: list[Any] = [1.0]
    a.append(a)
    return a


def nested(depth: int) -> Any:
    x: Any = 1.0
    for _ in range(depth):
        x = [x]
    return x


NOT_A_TREE: list[tuple[str, Callable[[], Any]]] = [
    ("contains itself", lambda: fg.tree.flatten(cyclic())),
    ("more than 1000 deep", lambda: fg.tree.map(lambda x: x, nested(10_000))),
    ("contains itself", lambda: fg.grad(lambda x: x[0])(cyclic())),
    ("contains itself", lambda: fg.jit(lambda x: cyclic())(1.0)),
    ("no array|different lengths|deep", lambda: fnp.sin(cyclic())),
    ("no array|different lengths|deep", lambda: fg.jit(lambda x: fnp.add(x, cyclic()))(1.0)),
    ("a Layer has no value for a field", lambda: fg.tree.leaves(object.__new__(Layer))),
    ("is_leaf is a function", lambda: fg.tree.leaves([1, 2], is_leaf=3)),  # type: ignore[arg-type]
    ("is_leaf is a function", lambda: fg.tree.leaves([1, 2], is_leaf=lambda x: np.ones(3))),  # type: ignore[arg-type, return-value]
    ("unflatten: a structure is needed", lambda: fg.tree.unflatten(np.ones(2), [1.0])),  # type: ignore[arg-type]
    ("transpose: a structure is needed", lambda: fg.tree.transpose(1, None, [1.0])),  # type: ignore[arg-type]
    ("keystr: a path and a string", lambda: fg.tree.keystr((), separator=0)),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("k", range(len(NOT_A_TREE)))
def test_what_is_no_tree_is_told(k: int) -> None:
    pattern, call = NOT_A_TREE[k]
    with pytest.raises(errors.FuncgradError) as info:
        call()
    assert re.search(pattern, info.value.message), info.value.message


def test_trees_of_the_greatest_depth() -> None:
    leaves, treedef = fg.tree.flatten(nested(990))
    assert leaves == [1.0]
    found, depth = fg.tree.unflatten(treedef, leaves), 0
    while isinstance(found, list):
        (found,) = found
        depth += 1
    assert depth == 990

    def f(x: Any) -> Any:
        return fg.tree.map(f, x)

    with pytest.raises(RecursionError):  # the user's own
        fg.tree.map(f, [1.0])


def test_messages_about_objects_without_a_repr() -> None:
    assert printed(Raises()) == "<Raises without a repr>"
    assert printed("a\n" * 100) == repr("a\n" * 100)[:60]
    for call in (
        lambda: fnp.sin(object.__new__(Layer)),
        lambda: fnp.sum(np.ones(3), axis=object.__new__(Layer)),
        lambda: fnp.zeros(object.__new__(Layer)),
        lambda: fnp.zeros(3, dtype=object.__new__(Layer)),
        lambda: fg.lax.switch(0, [object.__new__(Layer)], 1.0),
        lambda: fg.vmap(np.sin, in_axes=object.__new__(Layer))(np.ones(3)),
    ):
        with pytest.raises(errors.FuncgradError, match="Layer"):
            call()


def test_subclasses_that_lie_are_taken_for_what_they_are() -> None:
    x = np.arange(3.0)
    liar = x.view(Shapeless)
    assert liar.shape == (2**40, "x") and liar.dtype is None
    for f in (fnp.sin, fg.jit(np.sin), fg.vmap(np.sin)):
        for _ in range(2):
            np.testing.assert_allclose(f(liar), np.sin(x), rtol=1e-15)
    np.testing.assert_allclose(fg.grad(lambda v: np.sum(v**2))(liar), 2 * x)


def test_static_parameters_of_other_kinds() -> None:
    array = np.ones((2, 2))
    for call in (
        lambda: fg.jit(np.sin, lowering=array),
        lambda: fg.show(np.sin, 1.0, stage=array),
        lambda: fg.lax.scan(lambda c, x: (c, x), 0.0, np.ones(3), reverse=array),
        lambda: fg.lax.cumsum(np.ones(3), reverse=array),
        lambda: fg.lax.associative_scan(np.add, np.ones(3), reverse=array),
        lambda: fg.custom_vjp(lambda x: x, nondiff_argnums=1.0),
        lambda: fg.optim.exponential_decay(1.0, {}, 0.5),
        lambda: fg.optim.join_schedules(np.bool_(True), [1]),
        lambda: fnp.zeros((1,) * 70),
        lambda: fnp.broadcast_to(1.0, (1,) * 70),
        lambda: fnp.block(cyclic()),
        lambda: fnp.reshape(np.ones(1), (1,) * 70),
    ):
        with pytest.raises(errors.FuncgradError):
            call()
    assert fg.jit(lambda x: "l" in x)(np.ones(3)) == 0
