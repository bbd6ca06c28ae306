"""Cases: a seed, an operation to be met and a stack of wrappers make a random program, the same one each time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from funcgrad.testing.drawing import Random, Style, draw_recipe
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
        Names of wrappers around the program, the innermost first.
    """

    seed: int
    operation: str = ""
    stack: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.seed}/{self.operation}/{'+'.join(self.stack)}"

    @classmethod
    def of(cls, text: str) -> Case:
        """What `str` gave."""
        seed, operation, stack = text.split("/")
        return cls(int(seed), operation, tuple(filter(None, stack.split("+"))))

    @property
    def recipe(self) -> Recipe:
        """The program."""
        choices = Random(self.seed)
        depth = max(0, choices.below(4) - len(self.stack))
        steps = (6, 12, 25, 60)[choices.below(4)]
        if depth + len(self.stack) > 1:
            steps = min(steps, 12)
        often = (self.operation,) * (len(OPERATIONS) // 6) if self.operation else ()
        style = Style(steps, depth, (*COMMON, *COMMON, *OPERATIONS, *often), tuple(WRAPPERS), nested=12)
        return draw_recipe(choices, style, self.stack)


def at_random(seed: int) -> Case:
    """A case that a seed decides."""
    choices = Random(seed)
    names: Sequence[str] = tuple(WRAPPERS)
    stack = tuple([names[choices.below(len(names))] for _ in range(choices.below(4))])
    return Case(seed, "", stack)
