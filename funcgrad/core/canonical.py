"""One Program per computation: a function that is traced again gives back the Program it gave before.

Whatever was derived from that Program (its JVP, its transpose, its executable) is remembered on it, so the second
``grad(loss)(params)`` with the same types only traces. Programs hold no arrays, so keeping some costs little; those
that call functions of the user back may, through these.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping
from typing import Any

from funcgrad.base.shelter import lock
from funcgrad.core.ir import Program, Var, subprograms

KEPT = 512
KEPT_EQUATIONS = 20_000  # of all kept Programs together; what is derived from them takes several times as much
HELD_FUNCTION = KEPT_EQUATIONS // 16
_programs: OrderedDict[Hashable, Program] = OrderedDict()
_count = [0]
_lock = lock()


def canonical(program: Program, values: Mapping[Var, Any]) -> tuple[Program, Mapping[Var, Any]]:
    """The Program kept for this computation, and `values` for its Vars.

    Two Programs are the same if they compute the same on the same types, under the same names, from the same lines
    of the user's code. The most recently used ones are kept, up to `KEPT` Programs and `KEPT_EQUATIONS` equations.
    """
    key = (program.name, program.input_names, _lines(program), program.fingerprint)
    with _lock:
        kept = _programs.get(key)
        if kept is None:
            if len(program.equations) <= KEPT_EQUATIONS // 4:
                _programs[key] = program
                _count[0] += _cost(program)
                while _programs and (len(_programs) > KEPT or _count[0] > KEPT_EQUATIONS):
                    _count[0] -= _cost(_programs.popitem(last=False)[1])
            return program, values
        _programs.move_to_end(key)
    if values:
        values = {new: values[old] for old, new in _pairs(program, kept) if old in values}
    return kept, values


def _cost(program: Program) -> int:
    """What keeping it costs, in equations; functions of the user may hold anything, so few of these are kept."""

    def held(p: Program) -> bool:
        return any(
            [any(map(callable, e.params.values())) or any([held(q) for _, q in subprograms(e)]) for e in p.equations]
        )

    count = lambda: len(program.equations) + (HELD_FUNCTION if held(program) else 0)
    return program.remember("cost of keeping", count)


def _lines(program: Program) -> Hashable:
    return tuple(
        [
            (e.source.code.co_filename, e.source.code.co_firstlineno, e.source.offset) if e.source else None
            for e in program.equations
        ]
    )


def _pairs(a: Program, b: Program) -> list[tuple[Var, Var]]:
    pairs = list(zip(a.inputs, b.inputs, strict=True))
    for x, y in zip(a.equations, b.equations, strict=True):
        pairs += zip(x.outputs, y.outputs, strict=True)
    return pairs
