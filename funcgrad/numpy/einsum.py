"""einsum: sums of products written with one letter per axis, as a sequence of pairwise contractions.

Repeated letters of one operand take a diagonal first. The order of the pairs is NumPy's `einsum_path`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from string import ascii_letters
from typing import Any

import numpy as np

from funcgrad.base.errors import ArgumentError, ParameterError, ShapeError, printed
from funcgrad.core.ir import Shape
from funcgrad.core.trace import describe
from funcgrad.numpy import rearranging
from funcgrad.numpy.elementwise import refuse_out
from funcgrad.numpy.operands import array, given_dtype, promoted_dtype, public
from funcgrad.numpy.parameters import integer, integers, sequence
from funcgrad.numpy.products import contract, total
from funcgrad.ops.broadcasting import transpose
from funcgrad.ops.movement import convert


@public(np.einsum)
def einsum(*operands: Any, out: None = None, dtype: Any = None, order: str = "K", casting: str = "safe",
           optimize: Any = True) -> Any:  # fmt: skip
    """The sum of products that `subscripts` describes.

    Parameters
    ----------
    operands
        The subscripts, ``"ij,jk->ik"``, then the arrays; or every array followed by a list of axis numbers, and at
        last the list of the result. Letters that are not in the result are summed; without ``->`` it has the letters
        that stand once, in alphabetical order. ``...`` stands for axes that broadcast.
    dtype
        The dtype to compute in. Default: the common dtype of the arrays.
    optimize
        How the order of the pairs is chosen: True or "greedy", "optimal", False (from left to right), or a path of
        `numpy.einsum_path`.

    Raises
    ------
    ShapeError
        A letter stands for axes of different lengths.
    """
    refuse_out("einsum", out)
    subscripts, arrays = _given(operands)
    xs = [array(x, "einsum") for x in arrays]
    path_key = _path_key(optimize)
    terms, result, steps = _plan(subscripts, tuple([x.shape for x in xs]), path_key)
    sizes: dict[str, tuple[int, int]] = {}
    for k, (term, x) in enumerate(zip(terms, xs, strict=True)):
        for letter, n in zip(term, x.shape, strict=True):
            m, first = sizes.setdefault(letter, (n, k))
            if m == 1:
                sizes[letter] = (n, k)
            elif n not in (1, m):
                raise ShapeError(
                    f"einsum: axis {letter} has lengths {m} (in {describe(xs[first])}) and {n} (in {describe(x)})"
                )
    if dtype is not None:
        xs = [convert(x, given_dtype("einsum", dtype)) for x in xs]
    else:
        xs = promoted_dtype("einsum", *xs)
    live = [_distinct(x, term) for x, term in zip(xs, terms, strict=True)]
    for step in steps:
        chosen = [live.pop(i) for i in sorted(step, reverse=True)][::-1]
        x, term = chosen[0]
        for i, (y, other) in enumerate(chosen[1:], 2):
            needed = set(result).union(*[t for _, t in live], *[t for _, t in chosen[i:]])
            last = not live and i == len(chosen)
            kept = result if last else _natural(term, other, needed)
            x, term = contract(x, tuple(term), y, tuple(other), tuple(kept)), kept
        live.append((x, term))
    x, term = live[0]
    return _lone(x, term, result)


def _path_key(optimize: Any) -> Any:
    """The `optimize` argument, hashable."""
    if isinstance(optimize, list | tuple):
        return tuple([p if isinstance(p, str) else integers("einsum", "optimize", p) for p in optimize])
    if optimize is None or isinstance(optimize, bool) or (isinstance(optimize, str) and optimize in _STRATEGIES):
        return optimize
    raise ParameterError(f"einsum: optimize is True, False, a name or a path, got {printed(optimize)}")


_STRATEGIES = ("greedy", "optimal")


def _given(operands: tuple[Any, ...]) -> tuple[str, list[Any]]:
    """Subscripts without spaces, and the arrays."""
    if not operands:
        raise ArgumentError("einsum: subscripts and arrays are missing")
    if isinstance(operands[0], str):
        return operands[0].replace(" ", ""), list(operands[1:])
    arrays, terms = list(operands[0 : len(operands) // 2 * 2 : 2]), list(operands[1::2])
    texts = [_letters(t) for t in terms]
    subscripts = ",".join(texts)
    if len(operands) % 2:
        subscripts += "->" + _letters(operands[-1])
    return subscripts, arrays


def _letters(axes: Sequence[Any]) -> str:
    out = []
    for a in sequence("einsum", "a list of axes", axes):
        number = 0 if a is Ellipsis else integer("einsum", "an axis", a)
        if not 0 <= number < len(ascii_letters):
            raise ParameterError(f"einsum: an axis is a number in 0 ... {len(ascii_letters) - 1}, got {a}")
        out.append("..." if a is Ellipsis else ascii_letters[number])
    return "".join(out)


@lru_cache(maxsize=1024)
def _plan(subscripts: str, shapes: tuple[Shape, ...], optimize: Any) -> tuple[list[str], str, list[tuple[int, ...]]]:
    """A term of letters per operand, that of the result, and which operands are contracted one after the other."""
    inputs, arrow, output = subscripts.partition("->")
    terms = inputs.split(",")
    if len(terms) != len(shapes):
        raise ArgumentError(f"einsum: {subscripts!r} describes {len(terms)} arrays, {len(shapes)} were given")
    used = set(subscripts)
    bad = used - set(ascii_letters) - set(",.->")
    if bad:
        raise ParameterError(f"einsum: {sorted(bad)[0]!r} in {subscripts!r} is no letter")
    free = [c for c in ascii_letters if c not in used]
    widest = 0
    for term, shape in zip(terms, shapes, strict=True):
        letters = len(term.replace("...", ""))
        if "..." in term:
            widest = max(widest, len(shape) - letters)
        if letters > len(shape) or ("..." not in term and letters != len(shape)):
            raise ShapeError(f"einsum: {term!r} describes {letters} axes, an array of shape {shape} was given")
    dots = "".join(free[:widest])
    spelled = []
    for term, shape in zip(terms, shapes, strict=True):
        n = len(shape) - len(term.replace("...", ""))
        spelled.append(term.replace("...", dots[len(dots) - n :]))
        if "." in spelled[-1]:
            raise ParameterError(f"einsum: {term!r} has a stray dot")
    if arrow:
        result = output.replace("...", dots)
    else:
        once = [c for c in sorted(set("".join(terms)) - {"."}) if "".join(terms).count(c) == 1]
        result = (dots if "..." in inputs else "") + "".join(once)
    known = set("".join(spelled))
    if len(set(result)) < len(result) or not set(result) <= known or "." in result:
        raise ParameterError(f"einsum: the result of {subscripts!r} repeats a letter, or has one that no operand has")
    count = len(spelled)
    if count < 2:
        steps: list[tuple[int, ...]] = []
    elif optimize is False or count == 2:
        steps = [tuple(range(count))]
    elif isinstance(optimize, tuple) and optimize and optimize[0] == "einsum_path":
        steps = list(optimize[1:])
    else:
        dummies = [np.broadcast_to(np.float64(0), s) for s in shapes]
        try:
            path, _ = np.einsum_path(",".join(spelled) + "->" + result, *dummies, optimize=optimize)
        except ValueError:  # lengths that do not fit: the caller says which
            path = ["einsum_path", tuple(range(count))]
        steps = list(path[1:])
    return spelled, result, steps


def _distinct(x: Any, term: str) -> tuple[Any, str]:
    """An operand with each letter once: diagonals of the repeated ones."""
    for letter in dict.fromkeys(term):
        while term.count(letter) > 1:
            i = term.index(letter)
            j = term.index(letter, i + 1)
            if x.shape[i] != x.shape[j]:
                raise ShapeError(f"einsum: axis {letter} has lengths {x.shape[i]} and {x.shape[j]} in {describe(x)}")
            x = rearranging.diagonal(x, 0, i, j)
            term = term[:i] + term[i + 1 : j] + term[j + 1 :] + letter
    return x, term


def _natural(a: str, b: str, needed: set[str]) -> str:
    """The letters that are still needed, in the order that the contraction gives them in."""
    parts = ([c for c in a if c in b], [c for c in a if c not in b], [c for c in b if c not in a])
    return "".join([c for part in parts for c in part if c in needed])


def _lone(x: Any, term: str, result: str) -> Any:
    """The last operand, summed over the letters that the result has not, in its order."""
    x = total(x, tuple([i for i, c in enumerate(term) if c not in result]))
    kept = [c for c in term if c in result]
    return transpose(x, tuple([kept.index(c) for c in result]))
