"""Cells of the matrix in which there can be no program, each with the reason: by primitive, or primitive and column."""

from __future__ import annotations

IMPOSSIBLE: dict[str | tuple[str, str], str] = {
    "banded": "only lowering makes it, after all transforms: it is in no traced Program",
    "custom_linear": "it stands for a backward rule between linearisation and transposition: no function holds it",
    "stack_collect": "an effect under an eager derivative makes it, of values that are known: in a trace none is",
    ("custom_vjp", "jvp"): "forward mode is declined: there is a backward rule only",
    ("custom_vjp", "custom_jvp"): "the rules of a `custom_jvp` are made by forward mode, which is declined",
}
