"""A scan whose reverse mode keeps a few carries only, and runs a block of trips again when it comes to it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from math import ceil, comb
from typing import Any

from funcgrad import tree
from funcgrad.api.checkpoint import checkpoint
from funcgrad.numpy import concatenate, reshape

SHORTEST = 4  # trips that are worth blocks

Scan = Callable[..., tuple[Any, Any]]


def scan_blocks(
    scan: Scan, f: Callable[[Any, Any], Any], init: Any, xs: Any, trips: int, reverse: bool, levels: int
) -> tuple[Any, Any]:
    """``scan(f, init, xs)`` as a scan over checkpointed scans.

    Of n trips, n^(1/(k+1)) make a block. With one level the carry of each block is kept; with k levels those of as few
    blocks as it takes to get to each of them in k passes (`loop_snapshots`). The trips that fill no block come last.
    """
    length = ceil(round(trips ** (1 / (levels + 1)), 9))
    blocks, rest = divmod(trips, length)
    full = blocks * length
    snapshots = 0 if levels == 1 else next(s for s in count(1) if comb(s + levels, levels) >= blocks)

    def run(carry: Any, xs: Any, n: int) -> tuple[Any, Any]:
        return scan(f, carry, xs, n, reverse)

    def pieces(carry: Any) -> tuple[Any, Any]:
        block = checkpoint(lambda c, x: run(c, x, length))
        rows = tree.map(lambda x: reshape(x[:full], (blocks, length, *x.shape[1:])), xs)
        carry, ys = scan(block, carry, rows, blocks, reverse, snapshots)
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
