"""What check_vmap and check_custom_rule make of wrong batching rules, and of results of different dtypes and sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.errors import CheckError
from funcgrad.testing import check_custom_rule, check_grads, check_vmap

X = np.arange(1.0, 4.0)


def op(function: Callable[..., Any], batched: Callable[..., Any], shape: tuple[int, ...] | None = None) -> Any:
    """An operation whose batching rule takes operands with rows first, or as they are if they have none."""
    made = fg.extend.op(function)
    made.def_shape(lambda x, *_: fg.ShapeDtypeStruct(x.shape if shape is None else shape, x.dtype))
    made.def_batch(lambda size, args, axes: (batched(size, args, axes), 0))
    return made


def first(args: Any, axes: Any) -> list[Any]:
    """Operands with their rows along the first axis."""
    return [x if a is None else np.moveaxis(x, a, 0) for x, a in zip(args, axes, strict=True)]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32, np.int64])
@pytest.mark.parametrize("factor", [2, 7])
def test_a_wrong_factor(factor: int, dtype: Any) -> None:
    twice = op(lambda x: x * 2, lambda size, args, axes: first(args, axes)[0] * factor)
    if factor == 2:
        check_vmap(twice, (X.astype(dtype),), derivatives=False)
    else:
        with pytest.raises(CheckError, match=r"is (7|21), but row by row it is (2|6)"):
            check_vmap(twice, (X.astype(dtype),), derivatives=False)


def test_each_result_is_held_to_its_own_dtype() -> None:
    half = op(lambda x: x * 0.5, lambda size, args, axes: first(args, axes)[0] * 0.50025)
    with pytest.raises(CheckError, match=r"result\[0\]\[2\]"):
        check_vmap(lambda x: (half(x), x.astype(np.float32)), (X,), derivatives=False)


@pytest.mark.parametrize("wrong", [7.0, -np.inf, np.nan])
def test_what_is_infinite_has_to_be(wrong: float) -> None:
    inverse = op(
        lambda x: np.asarray(1.0 / x if x else np.inf)[()],
        lambda size, args, axes: np.where(args[0] == 0, wrong, 1 / np.where(args[0] == 0, 1.0, args[0])),
    )
    with pytest.raises(CheckError, match="row by row it is inf"):
        check_vmap(inverse, (np.array([2.0, 0.0]),), derivatives=False)


def test_large_integers_are_equal() -> None:
    same = op(lambda x: x, lambda size, args, axes: first(args, axes)[0] + 1)
    with pytest.raises(CheckError, match="result"):
        check_vmap(same, (np.array([2**60, 2**60 + 2]),), derivatives=False)


def linear(wrong: bool, where: str) -> Any:
    """x + 2 y, as an operation with a batching rule that may be wrong: of equal rows, or if one operand has none."""

    def batched(size: int, args: Any, axes: Any) -> Any:
        x, y = first(args, axes)
        if where == "first row" and wrong:
            return np.repeat((x + 2.0 * y)[:1], size, axis=0)
        factor = 3.0 if wrong and None in axes else 2.0
        return x + factor * y

    made = op(lambda x, y: x + 2.0 * y, batched)
    made.def_linear(lambda ct, x, y: ct, lambda ct, x, y: 2.0 * ct)
    return made


@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize("where", ["first row", "one operand"])
@pytest.mark.parametrize("point", [np.zeros(4), np.ones(4)])
def test_rules_of_rows(point: Any, where: str, wrong: bool) -> None:
    made = linear(wrong, where)
    if wrong:
        with pytest.raises(CheckError, match="row"):
            check_custom_rule(made, (point, point))
    else:
        check_custom_rule(made, (point, point))


@pytest.mark.parametrize("others", [lambda x: (1e12 * x,), lambda x: (x, 0.0 * x), lambda x: (1e-9 * x, 1e9 * x)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_backward_rule_beside_large_results(others: Any, dtype: Any) -> None:
    """The cotangents of all results are tried at once."""
    square = fg.custom_vjp(lambda x: x * x)
    square.defvjp(lambda x: (x * x, x), lambda x, ct: (2.01 * x * ct,))
    with pytest.raises(CheckError, match=r"rev, order 1: the derivative of result\[0\]"):
        check_grads(lambda x: (square(x), *others(x)), (dtype(3.0),))
    check_grads(lambda x: (x * x, *others(x)), (dtype(3.0),))
