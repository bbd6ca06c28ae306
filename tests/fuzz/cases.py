"""Cases: a seed, an operation to be met and a stack of wrappers make a random program, the same one each time."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from funcgrad.testing.drawing import Random, Style, draw_recipe, wrapped
from funcgrad.testing.nesting import WRAPPERS
from funcgrad.testing.recipes import Recipe
from funcgrad.testing.vocabulary import COMMON, OPERATIONS


@dataclass(frozen=True)
class Case:
    """What is drawn.

    Attributes
    ----------
    seed
    operation
        One that comes often, or "".
    stack
        Names of wrappers around the program, the innermost first. The more there are, the simpler is the program.
    outer
        Names of wrappers around all that, which leave it as it is.
    """

    seed: int
    operation: str = ""
    stack: tuple[str, ...] = ()
    outer: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [str(self.seed), self.operation, "+".join(self.stack), "+".join(self.outer)]
        return "/".join(parts if self.outer else parts[:-1])

    @classmethod
    def of(cls, text: str) -> Case:
        """What `str` gave; a ValueError says what it cannot be."""
        seed, *names = text.split("/")
        if not seed.isdecimal() or not 2 <= len(names) <= 3:
            raise ValueError("it is not seed/operation/stack, like '3//' or '3/dot/in_jit'")
        _require("operation", [names[0]], ["", *OPERATIONS])
        stack, outer = [tuple(filter(None, s.split("+"))) for s in [*names, ""][1:3]]
        _require("wrapper", [*stack, *outer], [*WRAPPERS])
        return cls(int(seed), names[0], stack, outer)

    @property
    def recipe(self) -> Recipe:
        """The program."""
        choices = Random(self.seed)
        depth = max(0, choices.below(4) - len(self.stack))
        steps = (6, 12, 25, 60)[choices.below(4)]
        if depth + len(self.stack) > 1:
            steps = min(steps, 12)
        if len(self.stack) > 2:
            steps = min(steps, (12, 3)[choices.below(2)])
        often = (self.operation,) * (len(OPERATIONS) // 6) if self.operation else ()
        style = Style(steps, depth, (*COMMON, *COMMON, *OPERATIONS, *often), tuple(WRAPPERS), nested=12)
        return wrapped(choices, draw_recipe(choices, style, self.stack), self.outer)


def _require(kind: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            similar = ", ".join(difflib.get_close_matches(name, known, 3))
            raise ValueError(f"there is no {kind} {name!r}" + (f"; similar ones: {similar}" if similar else ""))


def at_random(seed: int) -> Case:
    """A case that a seed decides."""
    choices = Random(seed)
    names: Sequence[str] = tuple(WRAPPERS)
    stack = tuple([names[choices.below(len(names))] for _ in range(choices.below(4))])
    return Case(seed, "", stack)
