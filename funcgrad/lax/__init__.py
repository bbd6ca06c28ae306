"""Loops and branches as one operation each: they trace once, run natively, and differentiate in both directions."""

import numpy as _np

import funcgrad.numpy as _numpy
from funcgrad.lax.branches import cond, switch
from funcgrad.lax.loops import fori_loop, map, scan, while_loop
from funcgrad.lax.prefix import associative_scan, cumlogsumexp, cummax, cummin, cumprod, cumsum

_INSTEAD = {
    "clamp": "np.clip(x, low, high)",
    "dynamic_index_in_dim": "x[i]",
    "dynamic_slice": "x[i + np.arange(n)]",
    "dynamic_slice_in_dim": "x[i + np.arange(n)]",
    "dynamic_update_index_in_dim": "x.at[i].set(value)",
    "dynamic_update_slice": "x.at[i + np.arange(n)].set(value)",
    "dynamic_update_slice_in_dim": "x.at[i + np.arange(n)].set(value)",
    "iota": "np.arange(n)",
    "rsqrt": "1 / np.sqrt(x)",
    "select": "np.where(condition, a, b)",
    "stop_gradient": "fg.stop_gradient(x)",
}
"""What to write for functions of jax.lax that are not here."""


def __getattr__(name: str) -> object:
    if name in _INSTEAD:
        raise AttributeError(f"funcgrad.lax has no {name}; write {_INSTEAD[name]}")
    if not name.startswith("_") and callable(getattr(_np, name, None)):
        if name in _numpy.__all__:
            raise AttributeError(f"funcgrad.lax has no {name}; write np.{name}")
        raise AttributeError(f"funcgrad.lax has no {name}, nor has funcgrad.numpy; np.{name} takes plain arrays only")
    raise AttributeError(f"module 'funcgrad.lax' has no attribute {name!r}")


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
