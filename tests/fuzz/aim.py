"""Aiming: a case for an empty cell of the matrix, around the smallest programs so far that held its primitive.

No list says which operations and transforms make a program hold a primitive: what earlier programs held is remembered.
Such a case is drawn again inside as many wrappers as the depth takes, and inside the one that the column is for, until
the trace of the whole has what the cell wants.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from funcgrad.core.primitive import registry
from funcgrad.testing.drawing import Random, wrapped
from funcgrad.testing.nesting import WRAPPERS
from funcgrad.testing.recipes import Recipe
from funcgrad.testing.vocabulary import OPERATIONS
from tests.fuzz.cases import Case, at_random
from tests.fuzz.comparisons import equations, trace
from tests.fuzz.impossible import IMPOSSIBLE
from tests.fuzz.matrix import COLUMNS, LEVELS, Cell, holds, why_not

KEPT = 3  # cases of one primitive and height
TRIES = 10  # cases drawn for a cell
APART = 100_000_000  # between the seeds of these
SECONDS = 6.0  # for these
LARGE = 2000  # equations of a program whose derivatives are too slow to be compared
ANY = 0.3  # how many of the programs are for no cell
PATIENCE, OTHERS = 6, 0.9  # after so many tries of every cell that is still empty, more of them

Sample = tuple[str, int, tuple[bool, int, int], str]  # a primitive, a height, how large it is, a case

MAKERS = {
    "branch": ("in_cond",), "loop": ("in_scan",), "call": ("in_jit",), "checkpoint": ("in_checkpoint",),
    "custom_jvp": ("with_jvp_rule",), "custom_vjp": ("with_vjp_rule",), "custom_backward": ("with_vjp_rule", "in_grad"),
    "custom_linear": ("with_vjp_rule", "as_root"),
    "stack_empty": ("in_fori", "in_switch", "in_grad"), "stack_length": ("in_fori", "in_hessian", "in_vjp"),
    "stack_add": ("in_fori", "in_hessian", "in_vjp"),
    "stack_element": ("in_fori", "in_switch", "in_hessian", "in_vmap"),
    "stack_collect": ("in_while", "in_grad", "in_jit"),
}  # fmt: skip
"""Wrappers to begin with, for primitives that no operation makes."""
EFFECT = "heard"
"""An operation with an effect: what holds it is spelled out (`Primitive.unfold`) under eager derivatives."""
SLOTS = {
    "jvp": ("jvp", "custom_jvp"), "transpose": ("vjp",), "split": ("vjp",), "batch": ("vmap",), "links": COLUMNS,
    "unfold": ("jvp", "vjp"),
}  # fmt: skip
"""The columns in which a rule is used."""


class Known:
    """For each primitive, the smallest cases that held it, by how deep they are nested."""

    def __init__(self, samples: Iterable[Sequence[object]] = ()) -> None:
        self.samples: dict[tuple[str, int], list[Sample]] = {}
        for name, height, size, case in samples:
            self.add([name], height, size, case)  # type: ignore[arg-type, list-item]

    def add(self, names: Iterable[str], height: int, size: Sequence[int], case: str) -> None:
        """What a case held."""
        backward, order, steps = size
        for name in names:
            found = self.samples.setdefault((name, height), [])
            sample = (name, height, (bool(backward), order, steps), case)
            if sample not in found:
                found.append(sample)
                found.sort(key=lambda s: s[2:])
                del found[KEPT:]

    def of(self, name: str, height: int) -> list[str]:
        """Cases with a primitive that are nested no deeper."""
        return [case for h in range(height + 1) for *_, case in self.samples.get((name, h), ())]

    def all(self) -> list[Sample]:
        """Everything, as `__init__` takes it."""
        return [s for found in self.samples.values() for s in found]


def weight(recipe: Recipe) -> tuple[bool, int, int]:
    """How hard it is to nest a program: the smaller, the easier."""
    return recipe.backward_only, recipe.order, recipe.size


def wanted(seed: int, tried: dict[Cell, int], known: Known) -> Case:
    """A case for one of the cells that were tried least, which counts as a try; or any."""
    r = random.Random(seed)
    least = min(tried.values(), default=PATIENCE)
    if not tried or r.random() < (ANY if least < PATIENCE else OTHERS):
        return at_random(seed)
    cell = r.choice(sorted([c for c, n in tried.items() if n == least]))
    tried[cell] += 1
    end = time.process_time() + SECONDS
    for k in range(TRIES):
        if time.process_time() > end:
            break
        case = aimed(r, seed + k * APART, cell, known)
        recipe = case.recipe
        try:
            most = LARGE if cell[1] in ("jvp", "vjp") else 4 * LARGE  # others are compared without their derivatives
            if (why_not(cell, IMPOSSIBLE) or holds(recipe, cell)) and equations(trace(recipe)) <= most:
                return case
        except Exception:  # a program that cannot be traced is what is looked for
            return case
    return at_random(seed)


def aimed(r: random.Random, seed: int, cell: Cell, known: Known) -> Case:
    """A case that may fill a cell."""
    name, column, depth = cell
    height = depth - 1 + LEVELS.get(name, 0)
    effect = name == "stack_collect" or (registry[name].unfold is not None and r.random() < 0.3)
    case = Case(seed, name if name in OPERATIONS else EFFECT if effect else "", MAKERS.get(name, ()))
    small = [] if effect else known.of(name, height)
    if small and r.random() < (0.5 if name in OPERATIONS else 0.9):
        case = Case.of(r.choice(small))
    recipe = case.recipe
    while recipe.height < height:
        outer = around(r, recipe, list(WRAPPERS))
        if outer is None:
            break
        case, recipe = replace(case, outer=(*case.outer, outer[0])), outer[1]
    last = around(r, recipe, [w for w, found in WRAPPERS.items() if found.column == column])
    return case if last is None else replace(case, outer=(*case.outer, last[0]))


def around(r: random.Random, recipe: Recipe, names: list[str]) -> tuple[str, Recipe] | None:
    """One of several wrappers that can be around a program, and the program inside it."""
    for name in r.sample(names, len(names)):
        found = wrapped(Random(0), recipe, (name,))
        if found.height > recipe.height:
            return name, found
    return None
