"""Names: those of the Program as Python identifiers, and fresh ones that clash with nothing."""

from __future__ import annotations

import builtins
import copy
import keyword
import re
from collections.abc import Iterable
from itertools import count
from typing import Any

from funcgrad.core.ir import Program
from funcgrad.core.printer import names as letters
from funcgrad.lowering.numba_source.helpers import HELPERS, helper

INDICES = "ijklmnopqrsuvw"
TRIPS = "tsr"  # numbers of trips, outer loops first
RESERVED = {"np", "math", "numba", "njit", "status", *HELPERS, *keyword.kwlist, *dir(builtins)}


def is_reserved(name: str) -> bool:
    """Whether a name means something in every module."""
    return name in RESERVED or helper(name) is not None


def identifier(text: str) -> str:
    """A name with letters, digits and underscores only: ``params.w`` becomes ``params_w``."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "x"
    return f"x{name}" if name[0].isdigit() else name


class Names:
    """Names of values of one Program, and of the bodies in it, each given once."""

    def __init__(self, program: Program, function: str) -> None:
        self.taken = {*RESERVED, function}
        self.known: dict[Any, str] = {}
        given = program.input_names or ("",) * len(program.inputs)
        for v, name in zip(program.inputs, given, strict=True):
            if name:
                self.known[v] = self.fresh(identifier(name))
        depth = _most_axes(program)
        self.indices = [c for c in (*INDICES, *[f"i{k}" for k in range(depth)]) if c not in self.taken][
            : max(depth, 3) + 1
        ]
        self.taken.update(self.indices)
        self.letters = (n for n in letters() if n not in self.taken)
        self.trips: list[str] = []
        self.outer: Names | None = None

    def inside(self) -> Names:
        """The names of a body: it knows those around it, and what it names is known to nobody else."""
        inner = copy.copy(self)
        inner.known, inner.outer = {}, self
        return inner

    def find(self, value: Any) -> str | None:
        """The name of a value, if it has one."""
        names: Names | None = self
        while names is not None and value not in names.known:
            names = names.outer
        return None if names is None else names.known[value]

    def of(self, value: Any) -> str:
        """The name of a value or buffer."""
        found = self.find(value)
        if found is None:
            found = self.known[value] = self.letter()
        return found

    def letter(self) -> str:
        """A short name."""
        name = next(self.letters)
        self.taken.add(name)
        return name

    def trip(self, depth: int) -> str:
        """The name of the number of the trip, for a loop in that many others."""
        while len(self.trips) <= depth:
            self.trips.append(self.fresh(TRIPS[min(len(self.trips), len(TRIPS) - 1)]))
        return self.trips[depth]

    def fresh(self, base: str) -> str:
        """`base`, or `base` with something behind it."""
        if base in self.taken or is_reserved(base):
            base = f"{base}_"
        name = base if base not in self.taken else next(n for i in count(2) if (n := f"{base}{i}") not in self.taken)
        self.taken.add(name)
        return name

    def reserve(self, values: Iterable[Any]) -> None:
        """Name these now, in this order."""
        for v in values:
            self.of(v)


def _most_axes(program: Program) -> int:
    """The largest number of axes of a value, in bodies too."""
    found = 0
    for e in program.equations:
        bodies = () if e.primitive.links is None else e.primitive.links(e.params).bodies
        axes = [len(a.aval.shape) for a in (*e.inputs, *e.outputs)]
        found = max([found, *axes, *[_most_axes(b) for b in bodies]])
    return found
