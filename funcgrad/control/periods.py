"""Equal equations that come again at equal distances: what a Python loop leaves in a Program.

Equations are told apart by numbers, equal for the same operation with the same parameters on the same types from the
same place in the user's code. What they read does not count here, nor where a slice begins.

    a = sin x; b = mul a 2.0; c = sin b; d = mul c 3.0        numbers 0 1 0 1: two periods of two equations
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from types import CodeType
from typing import Any

import numpy as np

from funcgrad.base.source import Source
from funcgrad.core.ir import Aval, Equation, static_key

TRIES = 8  # distances that are looked at before a Program counts as one without repetition


def numbered(equations: Sequence[Equation]) -> Any:
    """A number for each equation, equal for equations that may be the same one in two rounds of a loop."""
    known: dict[Hashable, int] = {}
    types = _Types()
    return np.array([known.setdefault(_key(e, i, types), len(known)) for i, e in enumerate(equations)], np.int64)


class _Types(dict[int, int]):
    """The number of a type by the identity of the object: most equal types are one object. And places in sources."""

    def __init__(self) -> None:
        self.numbers: dict[Aval, int] = {}
        self.positions: dict[CodeType, list[Hashable]] = {}

    def place(self, source: Source | None) -> Hashable:
        """Line and column: one call can have several offsets, since Python changes its instructions as it runs."""
        if source is None:
            return None
        found = self.positions.get(source.code)
        if found is None:
            found = self.positions[source.code] = [(source.code, p) for p in source.code.co_positions()]
        return found[source.offset // 2]

    def of(self, aval: Aval) -> int:
        found = self.get(id(aval))
        if found is None:
            found = self[id(aval)] = self.numbers.setdefault(aval, len(self.numbers))
        return found


def _key(e: Equation, i: int, types: _Types) -> Hashable:
    if e.primitive.effects_of(e.params):
        return i
    try:
        key = (
            e.primitive.key,
            types.place(e.source),
            _fixed(e),
            tuple([types.of(a.aval) for a in (*e.inputs, *e.outputs)]),
        )
        hash(key)
    except TypeError:
        return i
    return key


def _fixed(e: Equation) -> Hashable:
    """The parameters, without the start of a slice: a row of an array is another one in each round."""
    if e.primitive.traits.kind == "view" and "start" in e.params:
        start, stop = e.params["start"], e.params["stop"]
        return (tuple([b - a for a, b in zip(start, stop, strict=True)]), e.params["step"])
    return tuple([(k, static_key(v)) for k, v in e.params.items()]) if e.params else ()


def periods(numbers: Any, least: int) -> Iterator[tuple[int, int, int]]:
    """Runs of equal periods, longest periods first: (where it begins, length of a period, number of equations).

    A run is as long as can be, so the last period may not be complete; it has `least` complete ones or more.
    """
    order, counts = np.unique(numbers, return_counts=True)
    tried: set[int] = set()
    for number in order[np.argsort(counts, kind="stable")][np.sort(counts) >= least]:
        gaps = Counter(np.diff(np.flatnonzero(numbers == number)).tolist())
        period, often = gaps.most_common(1)[0]
        if period in tried or often < least - 1:
            continue
        tried.add(period)
        for begin, length in _runs(numbers[period:] == numbers[:-period]):
            if length >= (least - 1) * period:
                run = numbers[begin : begin + length + period]
                for shorter in _divisors(period):
                    if (run[shorter:] == run[:-shorter]).all():
                        yield begin, shorter, len(run)
        if len(tried) == TRIES:
            return


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def _runs(flags: Any) -> list[tuple[int, int]]:
    """Where and for how long `flags` are true, the longest run first."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.view(np.int8), [0]])))
    found = [(int(a), int(b - a)) for a, b in zip(edges[::2], edges[1::2], strict=True)]
    return sorted(found, key=lambda run: -run[1])
