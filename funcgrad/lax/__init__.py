"""Loops and branches as one operation each: they trace once, run natively, and differentiate in both directions."""

from funcgrad.lax.branches import cond, switch
from funcgrad.lax.loops import fori_loop, map, scan, while_loop
from funcgrad.lax.prefix import associative_scan, cumlogsumexp, cummax, cummin, cumprod, cumsum

__all__ = [
    "associative_scan",
    "cond",
    "cumlogsumexp",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "fori_loop",
    "map",
    "scan",
    "switch",
    "while_loop",
]
