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
        "control/assemble.py:_starts",
        "0  →  1",
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
        "abs.jvp",
        "coefficients constant",
    ): "they are: it is linear on either side",
    (
        "heaviside.jvp",
        "coefficients constant",
    ): "they are: it is linear on either side",
    (
        "maximum.jvp",
        "coefficients constant",
    ): "they are: it is linear on either side",
    (
        "minimum.jvp",
        "coefficients constant",
    ): "they are: it is linear on either side",
    (
        "fmax.jvp",
        "coefficients constant",
    ): "they are: it is linear on either side",
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
        "control/loop_snapshots.py:step",
        "parts(linear, consts, params['carry'])  →  parts(linear, params['carry'], consts)",
    ): "only what comes after both is taken",
    (
        "ops/cumulative.py:_record_jvp",
        "0  →  1",
    ): "at the first element the value of `keep` has no meaning",
    (
        "ops/trigonometric.py:<lambda>",
        "_over_square(y_dot, x, y, x)  →  _over_square(y_dot, x, x, y)",
    ): "the distance is the same, whichever coordinate comes first",
    (
        "ops/trigonometric.py:<lambda>",
        "_over_square(x_dot, y, y, x)  →  _over_square(x_dot, y, x, y)",
    ): "the distance is the same, whichever coordinate comes first",
    (
        "ops/windows.py:_moving",
        "clamped(starts[i], shape[i] - sizes[i])  →  clamped(shape[i] - sizes[i], starts[i])",
    ): "the smaller one of both, and 0 at least",
    (
        "control/branch.py:_remember",
        "branches[1:]  →  branches",
    ): "the first one is the one that remembers",
    (
        "control/branch.py:_blank",
        "0  →  1",
    ): "what stands in a slot that a branch does not use is never read",
    (
        "control/checkpoint.py:_halves",
        "[i for i, v in enumerate(halves.known.inputs) if v in used]  →  "
        "[i for i, v in enumerate(halves.known.inputs)]",
    ): "what a Program does not read is pruned from the operation that holds it",
    (
        "control/checkpoint.py:barrier",
        "bind(barrier_p, *args) if args else ()  →  bind(barrier_p, *args)",
    ): "a barrier of nothing has no results and does nothing",
    (
        "control/rows.py:add_stacks",
        "bind1(add_p, x, y, program=_sum_of(x.aval))  →  bind1(add_p, y, x, program=_sum_of(x.aval))",
    ): "x + y is y + x",
}
"""(file:function, before  →  after), or (primitive.slot, fault): why it is no fault."""
