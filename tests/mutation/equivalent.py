"""Mutants that no test can catch, because they compute the same; each with the reason."""

from __future__ import annotations

EQUIVALENT: dict[tuple[str, str], str] = {
    ("ops/broadcasting.py:move_axis", "if source == target  →  if False"): "a transpose in the same order is dropped",
}
"""(file:function, before  →  after), or (primitive.slot, fault): why it is no fault."""
