"""A scan whose reverse mode keeps the carry of each block of trips only, and runs a block again when it comes to it."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any

from funcgrad import tree
from funcgrad.api.checkpoint import checkpoint
from funcgrad.numpy import concatenate, reshape

SHORTEST = 4  # trips that are worth blocks

Scan = Callable[..., tuple[Any, Any]]


def scan_blocks(
    scan: Scan, f: Callable[[Any, Any], Any], init: Any, xs: Any, trips: int, reverse: bool, levels: int
) -> tuple[Any, Any]:
    """``scan(f, init, xs)`` as a scan over checkpointed scans, these again in blocks until `levels` is 0.

    With k levels there are n^(1/(k+1)) blocks, so that about (k+1) n^(1/(k+1)) carries are alive at a time. The trips
    that fill no block come last.
    """
    length = ceil(round(trips ** (levels / (levels + 1)), 9))
    blocks, rest = divmod(trips, length)
    full = blocks * length

    def run(carry: Any, xs: Any, n: int) -> tuple[Any, Any]:
        return scan(f, carry, xs, length=n, reverse=reverse, checkpoint=levels - 1)

    def pieces(carry: Any) -> tuple[Any, Any]:
        block = checkpoint(lambda c, x: run(c, x, length))
        rows = tree.map(lambda x: reshape(x[:full], (blocks, length, *x.shape[1:])), xs)
        carry, ys = scan(block, carry, rows, length=blocks, reverse=reverse)
        return carry, tree.map(lambda y: reshape(y, (full, *y.shape[2:])), ys)

    def remainder(carry: Any) -> tuple[Any, Any]:
        return checkpoint(lambda c, x: run(c, x, rest))(carry, tree.map(lambda x: x[full:], xs))

    if not rest:
        return pieces(init)
    first, second = (remainder, pieces) if reverse else (pieces, remainder)
    carry, some = first(init)
    carry, others = second(carry)
    early, late = (others, some) if reverse else (some, others)
    return carry, tree.map(lambda a, b: concatenate([a, b]), early, late)
