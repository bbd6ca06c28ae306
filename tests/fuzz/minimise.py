"""Minimising a program that fails: simpler ones are tried, as long as the same failure remains."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from funcgrad.testing.drawing import evaluated
from funcgrad.testing.plain import PLAIN
from funcgrad.testing.recipes import Recipe, Step, literal


def minimised(recipe: Recipe, fails: Callable[[Recipe], bool], seconds: float = 60.0) -> Recipe:
    """The simplest program found in that CPU time for which `fails` still holds."""
    end = time.process_time() + seconds
    again = True
    while again:
        again = False
        for simpler in simpler_ones(recipe):
            if time.process_time() > end:
                return recipe
            if size(simpler) < size(recipe) and _runs(simpler) and fails(simpler):
                recipe, again = simpler, True
                break
    return recipe


def size(recipe: Recipe) -> tuple[int, int]:
    """What is made smaller: the steps, and the length of the code."""
    steps = sum([1 + (size(s.body)[0] if s.body else 0) for s in recipe.steps])
    return steps, len(repr(recipe))


def _runs(recipe: Recipe) -> bool:
    try:
        with np.errstate(all="ignore"):
            recipe.function(PLAIN)(*recipe.args)
        return True
    except Exception:
        return False


def simpler_ones(recipe: Recipe) -> Iterator[Recipe]:
    """Programs with something less, the smallest first."""
    for s in recipe.steps:  # what is nested, alone
        if s.body is not None:
            yield s.body
    for k in range(len(recipe.results)):
        if len(recipe.results) > 1:
            yield clean(replace(recipe, results=(recipe.results[k],)))
    if recipe.steps and len(recipe.steps) > 3:  # the first half
        made = len(recipe.args) + sum([s.made for s in recipe.steps[: len(recipe.steps) // 2]])
        yield clean(Recipe(recipe.args, recipe.steps[: len(recipe.steps) // 2], (made - 1,)))
    used = set(recipe.results).union(*[s.operands for s in recipe.steps])
    for k in range(len(recipe.args)):
        if k not in used and len(recipe.args) > 1:
            moved = lambda i, k=k: i - (i > k)
            steps = tuple([replace(s, operands=tuple(map(moved, s.operands))) for s in recipe.steps])
            yield Recipe((*recipe.args[:k], *recipe.args[k + 1 :]), steps, tuple(map(moved, recipe.results)))
    yield from fewer_steps(recipe)


def fewer_steps(recipe: Recipe) -> Iterator[Recipe]:
    """Programs with the same results but for their values."""
    values = all_values(recipe)
    at = len(values)
    for k in reversed(range(len(recipe.steps))):
        s = recipe.steps[k]
        at -= s.made
        if s.body is not None:
            inlined = inline(recipe, k)
            if inlined is not None:
                yield inlined
            for body in _simpler_bodies(s.body):
                yield clean(replaced(recipe, k, replace(s, body=body)))
        if not s.count:
            alike = [i for i in range(at) if _type(values[i]) == _type(values[at])]
            near = [i for i in s.operands[::-1] if values[i].dtype == values[at].dtype]  # of any shape
            for i in dict.fromkeys([*near, *alike[:1], *alike[-1:]]):
                yield clean(without(recipe, k, at, i))
        for other in _instead(values, at, s):
            yield clean(replaced(recipe, k, other))


def _simpler_bodies(body: Recipe) -> Iterator[Recipe]:
    for simpler in fewer_steps(body):
        if len(simpler.args) == len(body.args):
            yield simpler


def _type(x: Any) -> tuple[Any, ...]:
    return x.shape, x.dtype


def _instead(values: Sequence[Any], at: int, s: Step) -> Iterator[Step]:
    """Steps of the same types as another one, but simpler."""
    if s.count > 1:
        return
    x = values[at]
    comma = "({},)" if s.count else "{}"
    for i in range(at if s.count else 0):
        if _type(values[i]) == _type(x):
            yield Step("({0},)", (i,), s.count)
            break
    if not s.text.startswith(("np.full", "(np.full")):
        value = literal(x.dtype.type(x.flat[0]))
        yield Step(comma.format(f"np.full({x.shape}, {value})" if x.ndim else value), (), s.count)


def without(recipe: Recipe, k: int, at: int, other: int) -> Recipe:
    """Without a step; another value stands for its result, which is the one at `at`."""
    moved = lambda i: other if i == at else i - (i > at)
    steps = [replace(s, operands=tuple(map(moved, s.operands))) for s in recipe.steps]
    return Recipe(recipe.args, (*steps[:k], *steps[k + 1 :]), tuple(map(moved, recipe.results)))


def replaced(recipe: Recipe, k: int, step: Step) -> Recipe:
    """With another step in one place."""
    return replace(recipe, steps=(*recipe.steps[:k], step, *recipe.steps[k + 1 :]))


def inline(recipe: Recipe, k: int) -> Recipe | None:
    """A nested program in place of the wrapper with it, if its results have the same types."""
    s = recipe.steps[k]
    assert s.body is not None
    if len(s.body.results) != s.count:
        return None
    before = len(recipe.args) + sum([t.made for t in recipe.steps[:k]])
    names = list(s.operands)
    new: list[Step] = []
    made = before
    for t in s.body.steps:
        new.append(replace(t, operands=tuple([names[i] for i in t.operands])))
        names += range(made, made + t.made)
        made += t.made
    results = [names[i] for i in s.body.results]
    shift = made - before - s.count
    moved = lambda i: i if i < before else (results[i - before] if i < before + s.count else i + shift)
    later = [replace(t, operands=tuple([moved(i) for i in t.operands])) for t in recipe.steps[k + 1 :]]
    return clean(Recipe(recipe.args, (*recipe.steps[:k], *new, *later), tuple([moved(i) for i in recipe.results])))


def clean(recipe: Recipe) -> Recipe:
    """Without steps and arguments that nothing uses."""
    used = set(recipe.results)
    at = recipe.values
    kept: list[Step] = []
    for s in reversed(recipe.steps):
        at -= s.made
        if used & set(range(at, at + s.made)):
            kept.insert(0, s)
            used |= set(s.operands)
        else:
            used = {i - s.made if i >= at + s.made else i for i in used}
            kept = [replace(t, operands=_closed(t.operands, at, s.made)) for t in kept]
            recipe = replace(recipe, results=_closed(recipe.results, at, s.made))
    return Recipe(recipe.args, tuple(kept), recipe.results)


def _closed(places: Sequence[int], at: int, gap: int) -> tuple[int, ...]:
    return tuple([i - gap if i >= at else i for i in places])


def all_values(recipe: Recipe) -> list[Any]:
    """The value of everything, at the example of arguments."""
    values = list(recipe.args)
    for s in recipe.steps:
        values.extend(evaluated(s, [values[i] for i in s.operands]))
    return values
