"""Mutants that no test can catch, because they compute the same; each with the reason."""

from __future__ import annotations

EQUIVALENT: dict[tuple[str, str], str] = {}
"""(file:function, before  →  after), or (primitive.slot, fault): why it is no fault."""
