"""Mutants that no test can catch, because they compute the same; each with the reason."""

from __future__ import annotations

EQUIVALENT: dict[tuple[str, str], str] = {
    (
        "ops/broadcasting.py:move_axis",
        "if source == target  →  if False",
    ): "a transpose in the same order moves nothing",
    (
        "control/assemble.py:_starts",
        "i if k == axis else np.int64(0)  →  i",
    ): "along the other axes the window is as long as the axis, and any start is clipped to 0",
    (
        "ops/indexing.py:_winners",
        "1  →  0",
    ): "a single update is the last one at its place, and that of a place outside has no cotangent",
    (
        "cummax.jvp",
        "coefficients constant",
    ): "they are: which element it is, and how many there are of it",
    (
        "cummin.jvp",
        "coefficients constant",
    ): "they are: which element it is, and how many there are of it",
    (
        "reduce_max.jvp",
        "coefficients constant",
    ): "they are: which element it is, and how many there are of it",
    (
        "reduce_min.jvp",
        "coefficients constant",
    ): "they are: which element it is, and how many there are of it",
    (
        "ops/positions.py:within",
        "(ge(index, 0), lt(index, n))  →  (lt(index, n), ge(index, 0))",
    ): "both must hold, in any order",
    (
        "control/checkpoint.py:barrier",
        "bind(barrier_p, *args) if args else ()  →  bind(barrier_p, *args)",
    ): "a barrier of nothing has no results and does nothing",
}
"""(file:function, before  →  after), or (primitive.slot, fault): why it is no fault."""
