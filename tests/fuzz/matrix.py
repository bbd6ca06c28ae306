"""The matrix of a run: which primitive was met by which transform, at which depth of nesting, and compared.

A transform is at depth d if d - 1 others are inside it, not counting those that a primitive stands for or comes from.
What a program holds is read from its trace, so that primitives count that no user writes: those of derivatives, and of
loops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from funcgrad.testing.nesting import WRAPPERS
from funcgrad.testing.recipes import Recipe
from tests.fuzz.comparisons import NO_DERIVATIVE, Outcome, primitives
from tests.rule_checker import all_primitives

Cell = tuple[str, str, int]
COLUMNS = (
    "eager", "jit", "jvp", "vjp", "vmap", "checkpoint", "scan", "while", "cond", "custom_jvp", "custom_vjp",
)  # fmt: skip
DEPTHS = (1, 2, 3)
LEVELS = {
    **dict.fromkeys(["loop", "branch", "call", "checkpoint", "custom_jvp", "custom_vjp"], 1),  # levels themselves
    # made by so many
    "custom_backward": 2, "stack_empty": 3, "stack_length": 3, "stack_add": 3, "stack_collect": 3, "stack_element": 4,
}  # fmt: skip
"""How many levels of nesting there are wherever a primitive is."""
ROWS = tuple(all_primitives())


def cells_of(recipe: Recipe, outcome: Outcome) -> list[Cell]:
    """What a program that was compared covers."""
    found: set[Cell] = set()
    names: dict[int, set[str]] = {}
    for column, height, body in places(recipe):
        if (column if body is recipe else "eager") in outcome.ways:
            if id(body) not in names:
                names[id(body)] = primitives(body)
            found.update([(name, column, depth_of(name, height)) for name in names[id(body)]])
    return sorted(found)


def places(recipe: Recipe) -> Iterator[tuple[str, int, Recipe]]:
    """What is inside the transforms: the column of each, how deep the inside is nested, and the inside."""
    for way in ("eager", "jit", "jvp", "vjp"):
        yield way, recipe.height, recipe
    for s in recipe.levels():
        assert s.body is not None
        if WRAPPERS[s.text].column:
            yield WRAPPERS[s.text].column, s.body.height, s.body


def depth_of(name: str, height: int) -> int:
    """At which depth a transform meets a primitive in a program that is nested so deep."""
    return min(max(height + 1 - LEVELS.get(name, 0), 1), DEPTHS[-1])


def holds(recipe: Recipe, cell: Cell) -> bool:
    """Whether a program fills a cell if it can be compared."""
    name, column, depth = cell
    out = ("jvp", "vjp") if recipe.uses("float32", *NO_DERIVATIVE) else ("jvp",) if recipe.backward_only else ()
    return any([
        name in primitives(body)
        for c, height, body in places(recipe)
        if c == column and depth_of(name, height) == depth and not (body is recipe and c in out)
    ])  # fmt: skip


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
