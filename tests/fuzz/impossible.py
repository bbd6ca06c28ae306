"""Cells of the matrix in which there can be no program, each with the reason: by primitive, or primitive and column."""

from __future__ import annotations

IMPOSSIBLE: dict[str | tuple[str, str], str] = {
    "banded": "only lowering makes it, after all transforms: it is in no traced Program",
}
