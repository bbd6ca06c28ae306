"""From a Program to machine code: simplify, schedule, emit, compile; and the `Executable` that runs it."""

from funcgrad.lowering.executable import Executable, executable
from funcgrad.ops import (
    arithmetic,
    checks,
    comparison,
    exponential,
    extrema,
    indexing,
    movement,
    positions,
    powers,
    rounding,
    scalar,
    special,
    trigonometric,
)

scalar.install()
