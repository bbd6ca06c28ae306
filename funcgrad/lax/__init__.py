"""Loops and branches as one operation each: they trace once, run natively, and differentiate in both directions."""

from funcgrad.lax.branches import cond, switch
from funcgrad.lax.loops import fori_loop, map, scan, while_loop

__all__ = ["cond", "fori_loop", "map", "scan", "switch", "while_loop"]
