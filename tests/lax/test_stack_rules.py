"""The rules of what takes stacks apart: one value of a stack, also of a stack of stacks, and the length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from funcgrad.control.assemble import assemble
from funcgrad.control.loop import INDEX, loop
from funcgrad.control.rows import element_p, length_p
from funcgrad.core.trace import bind1
from funcgrad.ops.op import aval_of
from tests.rule_checker import check_rules


def rows_of(x: Any, n: Any) -> Any:
    """The stack of x², 2 x², …, n x²."""
    return loop(assemble("rows", [INDEX, aval_of(x)], lambda i, x: [x * x * (i + 1)]), n, [x], [], [])[0]


def triangle(x: Any, n: Any) -> Any:
    """The stack of n stacks, each one longer than the one before."""
    body = lambda i, x: [rows_of(x * (i + 1), i + 1)]
    return loop(assemble("triangle", [INDEX, aval_of(x)], body), n, [x], [], [])[0]


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "a value": (lambda x, n, i: bind1(element_p, rows_of(x, n), i), (2,)),
    "a value of a value": (lambda x, n, i: bind1(element_p, bind1(element_p, triangle(x, n), i), i - 1), ()),
    "a length": (lambda x, n, i: x * bind1(length_p, bind1(element_p, triangle(x, n), i)), ()),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_rules_of_stacks(name: str) -> None:
    f, shape = FUNCTIONS[name]
    x = 0.5 + np.arange(float(np.prod(shape, dtype=int))).reshape(shape)
    check_rules(f, x, np.asarray(4), np.asarray(2), oracle="difference")  # for other rows also beyond the end
