"""The matrix of a run: which primitive was met by which transform, at which depth of nesting, and compared.

A transform is at depth d if d - 1 others are inside it, not counting those that a primitive stands for or comes from.
What a program holds is read from its trace, so that primitives count that no user writes: those of derivatives, and of
loops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from funcgrad.testing.nesting import WRAPPERS
from funcgrad.testing.recipes import Recipe
from tests.fuzz.comparisons import Outcome, primitives
from tests.rule_checker import all_primitives

Cell = tuple[str, str, int]
COLUMNS = (
    "eager", "jit", "jvp", "vjp", "vmap", "checkpoint", "scan", "while", "cond", "custom_jvp", "custom_vjp",
)  # fmt: skip
DEPTHS = (1, 2, 3)
NESTS = ("loop", "branch", "call", "checkpoint", "custom_jvp", "custom_vjp")  # these are levels themselves
OF_NESTS = ("custom_backward", "stack_empty", "stack_length", "stack_element", "stack_collect")  # made by two levels
ROWS = tuple(all_primitives())


def cells_of(recipe: Recipe, outcome: Outcome) -> list[Cell]:
    """What a program that was compared covers."""
    found: set[Cell] = set()

    def add(names: Iterable[str], column: str, depth: int) -> None:
        found.update([(name, column, min(max(depth - own_levels(name), 1), DEPTHS[-1])) for name in names if column])

    whole = primitives(recipe)
    for way in ("eager", "jit", "jvp", "vjp"):
        if way in outcome.ways:
            add(whole, way, recipe.height + 1)
    if "eager" in outcome.ways:
        for s in recipe.levels():
            assert s.body is not None
            add(primitives(s.body), WRAPPERS[s.text].column, s.body.height + 1)
    return sorted(found)


def own_levels(name: str) -> int:
    """How many levels of nesting there are wherever a primitive is."""
    return 2 if name in OF_NESTS else int(name in NESTS)


def empty(seen: Counter[Any], impossible: dict[Any, str]) -> list[Cell]:
    """The cells without a program that could have one."""
    every = [(p, c, d) for p in ROWS for c in COLUMNS for d in DEPTHS]
    return [cell for cell in every if not seen[cell] and why_not(cell, impossible) is None]


def why_not(cell: Cell, impossible: dict[Any, str]) -> str | None:
    """Why there can be no program in a cell; keys are primitives, or pairs of a primitive and a column."""
    return impossible.get(cell[0]) or impossible.get(cell[:2])


def table(seen: Counter[Any], impossible: dict[Any, str]) -> str:
    """The matrix as text: how many programs, for the three depths."""
    lines = [f"{'':22}" + "".join([f"{c:>16}" for c in COLUMNS])]
    for p in ROWS:
        row = [f"{p:22}"]
        for c in COLUMNS:
            counts = [seen[p, c, d] for d in DEPTHS]
            text = "-" if why_not((p, c, 1), impossible) else " ".join([_short(n) for n in counts])
            row.append(f"{text:>16}")
        lines.append("".join(row))
    return "\n".join(lines)


def _short(n: int) -> str:
    return str(n) if n < 10_000 else f"{n // 1000}k"
