"""Names: those of the Program as Python identifiers, and fresh ones that clash with nothing."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterable
from itertools import count
from typing import Any

from funcgrad.core.ir import Program
from funcgrad.core.printer import names as letters
from funcgrad.lowering.numba_source.helpers import HELPERS

INDICES = "ijklmnopqrstuvw"
RESERVED = {"np", "math", "numba", "njit", "status", *HELPERS, *keyword.kwlist, *dir(builtins)}


def identifier(text: str) -> str:
    """A name with letters, digits and underscores only: ``params.w`` becomes ``params_w``."""
    name = re.sub(r"\W+", "_", text, flags=re.ASCII).strip("_") or "x"
    return f"x{name}" if name[0].isdigit() else name


class Names:
    """Names of values of one Program, each given once."""

    def __init__(self, program: Program, function: str) -> None:
        self.taken = {*RESERVED, function}
        self.known: dict[Any, str] = {}
        given = program.input_names or ("",) * len(program.inputs)
        for v, name in zip(program.inputs, given, strict=True):
            if name:
                self.known[v] = self.fresh(identifier(name))
        depth = max([len(a.aval.shape) for e in program.equations for a in (*e.inputs, *e.outputs)], default=0)
        self.indices = [c for c in (*INDICES, *[f"i{k}" for k in range(depth)]) if c not in self.taken][
            : max(depth, 3) + 1
        ]
        self.taken.update(self.indices)
        self.letters = (n for n in letters() if n not in self.taken)

    def of(self, value: Any) -> str:
        """The name of a value or buffer."""
        if value not in self.known:
            self.known[value] = next(self.letters)
            self.taken.add(self.known[value])
        return self.known[value]

    def fresh(self, base: str) -> str:
        """`base`, or `base` with something behind it."""
        if base in self.taken:
            base = f"{base}_"
        name = base if base not in self.taken else next(n for i in count(2) if (n := f"{base}{i}") not in self.taken)
        self.taken.add(name)
        return name

    def reserve(self, values: Iterable[Any]) -> None:
        """Name these now, in this order."""
        for v in values:
            self.of(v)
