"""Guarded products where their zeros meet infinities: t annihilates, c does not, and so in every derivative."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import funcgrad as fg
from funcgrad.core.primitive import registry
from funcgrad.core.trace import bind1
from tests.rule_checker import all_primitives, same_bits

all_primitives()
VALUES = np.array([0.0, 0.5, -2.0, np.inf, np.nan])
FIRST, SECOND, DOT = (x.ravel() for x in np.meshgrid(VALUES, VALUES, VALUES))
once = lambda t, c: np.where(t == 0, t, t * c)
both = lambda t, c: np.where(t == 0, t, np.where(c == 0, c, t * c))
over = lambda t, c: np.where(t == 0, t, t / c)

# the primitive; its derivatives along a tangent of the first and of the second operand; and the adjoints of these
DERIVATIVES: dict[str, tuple[Any, Any, Any, Any]] = {
    "mask_mul": (lambda t, c, d: once(d, c), lambda t, c, d: once(t, d),
                 lambda t, c, d: once(d, c), lambda t, c, d: once(t, d)),
    "mask_both": (lambda t, c, d: both(d, c), lambda t, c, d: both(t, d),
                  lambda t, c, d: both(d, c), lambda t, c, d: both(t, d)),
    "mask_div": (lambda t, c, d: over(d, c), lambda t, c, d: -once(over(t, c), d / c),
                 lambda t, c, d: over(d, c), lambda t, c, d: over(once(over(t, c), -d), c)),
}  # fmt: skip


def check(found: Any, expected: Any) -> None:
    """Bit for bit, but for the sign of zeros and what a NaN is."""
    assert same_bits(found + 0.0, expected + 0.0)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_of_a_guarded_product_are_guarded(name: str) -> None:
    f = lambda t, c: bind1(registry[name], t, c)
    forward_t, forward_c, reverse_t, reverse_c = DERIVATIVES[name]
    operands = FIRST, SECOND, DOT
    for wrap in (lambda g: g, fg.jit, fg.vmap):
        check(wrap(lambda t, c, d: fg.jvp(lambda t: f(t, c), (t,), (d,))[1])(*operands), forward_t(*operands))
        check(wrap(lambda t, c, d: fg.jvp(lambda c: f(t, c), (c,), (d,))[1])(*operands), forward_c(*operands))
        check(wrap(lambda t, c, d: fg.vjp(lambda t: f(t, c), t)[1](d)[0])(*operands), reverse_t(*operands))
        check(wrap(lambda t, c, d: fg.vjp(lambda c: f(t, c), c)[1](d)[0])(*operands), reverse_c(*operands))
