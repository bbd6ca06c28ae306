"""Primitives that hold Programs: how operands, bodies, carries and results are tied, and iteration over the ties.

A transform asks `Primitive.links` for the `Links` of an equation and works on the body as on any Program; what
comes back through a carry may change the flags of the inputs it feeds, so flags are brought to a fixed point.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from funcgrad.core.ir import Program
from funcgrad.core.primitive import Links

Flags = tuple[bool, ...]
T = TypeVar("T")


def fixpoint(
    links: Links, flags: Flags, step: Callable[[Program, Flags], tuple[T, Flags]]
) -> tuple[tuple[T, ...], Flags, Flags]:
    """Flags of the bodies' inputs that agree with what their carries bring back.

    Parameters
    ----------
    flags
        The property (has a tangent, is batched, is marked ...) of each body input, from the operands.
    step
        Applies a transform to a body for given flags; returns its result and the flags of the body's outputs.

    Returns
    -------
    results, input flags, output flags
        Of the last step. An output has the property if it has it in any body. Flags only ever grow, so this ends
        after at most one round per carry.
    """
    while True:
        steps = [step(body, flags) for body in links.bodies]
        out = tuple([any(column) for column in zip(*[o for _, o in steps], strict=True)])
        grown = list(flags)
        for output, carried in links.carries:
            grown[carried] = grown[carried] or out[output]
        if tuple(grown) == flags:
            return tuple([r for r, _ in steps]), flags, out
        flags = tuple(grown)
