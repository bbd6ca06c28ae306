"""Instructions that decide where threads go on: branches, calls, ends, and the barrier of a block."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.ptx.errors import OutOfBounds, Trap
from tests.ptx.parse import Imm, Sym, Variable, Vec
from tests.ptx.registers import Scope, reader

Run = Callable[[Any, Any], None]


def branch(scope: Scope, place: int) -> Run:
    """``bra``."""
    i = scope.instruction
    assert i is not None
    if not re.fullmatch(r"bra(?:\.uni)?", i.opcode) or len(i.operands) != 1:
        raise scope.unknown("unknown instruction")
    to = scope.label(i.operands[0])
    return lambda m, threads: m.arrive(to, threads)


def table(scope: Scope, place: int) -> Run:
    """``brx.idx``: to the label of a number."""
    i = scope.instruction
    assert i is not None
    named = i.operands[1] if len(i.operands) == 2 else None
    if not re.fullmatch(r"brx\.idx(?:\.uni)?", i.opcode) or not isinstance(named, Sym):
        raise scope.unknown("unknown instruction")
    labels = [scope.label(Sym(name)) for name in scope.function.targets.get(named.name, [])]
    get = reader(scope, i.operands[0], "u32")

    def run(m: Any, threads: Any) -> None:
        index = np.broadcast_to(get(m, threads), (m.size(threads),))
        outside = m.some(threads, index >= len(labels))
        if outside is not None:
            m.fail(OutOfBounds, f"a branch to one of {len(labels)} labels", outside)
        for k, to in enumerate(labels):
            m.arrive(to, m.some(threads, index == k))

    return run


def call(scope: Scope, place: int) -> Run:
    """``call``: arguments are copied there, and the function's own memory is undefined again."""
    i = scope.instruction
    assert i is not None
    operands = list(i.operands)
    results = operands.pop(0) if operands and isinstance(operands[0], Vec) else Vec(())
    arguments = operands.pop() if operands and isinstance(operands[-1], Vec) else Vec(())
    if not re.fullmatch(r"call(?:\.uni)?", i.opcode) or len(operands) != 1 or not isinstance(operands[0], Sym):
        raise scope.unknown("unknown instruction")
    inner = scope.scopes[operands[0].name]
    function = inner.function
    pairs = _pairs(scope, arguments, function.params)
    scope.calls[place + 1] = (function.name, tuple([n for n, _ in _pairs(scope, results, function.results)]))

    def run(m: Any, threads: Any) -> None:
        m.enter(function, threads, place + 1)
        for own, its in pairs:
            source, to = m.parameter(scope.function, own), m.parameter(function, its)
            to.data[threads], to.written[threads] = source.data[threads], source.written[threads]
        for its in function.results:
            m.parameter(function, its.name).written[threads] = False
        m.arrive(inner.at, threads)

    return run


def _pairs(scope: Scope, given: Vec, expected: list[Variable]) -> list[tuple[str, str]]:
    """The variables of a call beside the parameters, or results, of the function."""
    names = [o.name for o in given.items if isinstance(o, Sym)]
    variables = scope.function.variables
    if [variables[n].nbytes for n in names if n in variables] != [v.nbytes for v in expected]:
        raise scope.unknown("arguments that the function does not take")
    return [(n, v.name) for n, v in zip(names, expected, strict=True)]


def ret(scope: Scope, place: int) -> Run:
    """``ret``: the end of an entry; from a function, with its results, to where each thread was called."""
    f = scope.function
    if f.entry:
        return lambda m, threads: m.exit(threads)

    def run(m: Any, threads: Any) -> None:
        back = m.returns[f.name][threads]
        for to in np.unique(back).tolist():
            part = m.some(threads, back == to)
            caller = next(s for s in scope.scopes.values() if s.calls.get(to, ("",))[0] == f.name)
            for own, its in zip(caller.calls[to][1], f.results, strict=True):
                source, dest = m.parameter(f, its.name), m.parameter(caller.function, own)
                dest.data[part], dest.written[part] = source.data[part], source.written[part]
            m.arrive(to, part)

    return run


def returns(scope: Scope, place: int) -> Run:
    """``ret`` as it stands in the text."""
    i = scope.instruction
    assert i is not None
    if not re.fullmatch(r"ret(?:\.uni)?", i.opcode) or i.operands:
        raise scope.unknown("unknown instruction")
    return ret(scope, place)


def leave(scope: Scope, place: int) -> Run:
    """``exit``."""
    i = scope.instruction
    assert i is not None
    if i.opcode != "exit" or i.operands:
        raise scope.unknown("unknown instruction")
    return lambda m, threads: m.exit(threads)


def trap(scope: Scope, place: int) -> Run:
    """``trap``: an error."""
    i = scope.instruction
    assert i is not None
    if i.opcode != "trap" or i.operands:
        raise scope.unknown("unknown instruction")
    return lambda m, threads: m.fail(Trap, "a trap", threads)


BARRIER = re.compile(r"bar(?:\.cta)?\.sync|barrier(?:\.cta)?\.sync(?:\.aligned)?")


def barrier(scope: Scope, place: int) -> Run:
    """``bar.sync`` and ``barrier.sync`` of all threads of a block."""
    i = scope.instruction
    assert i is not None
    if i.opcode == "bar.warp.sync":
        from_warp: Run = scope_meeting(scope, place)
        return from_warp
    if not BARRIER.fullmatch(i.opcode) or len(i.operands) != 1 or not isinstance(i.operands[0], Imm):
        raise scope.unknown("unknown instruction")
    return lambda m, threads: m.wait(threads)


def scope_meeting(scope: Scope, place: int) -> Run:
    """``bar.warp.sync``: orders the accesses of a warp if all its threads take part."""
    i = scope.instruction
    assert i is not None
    if len(i.operands) != 1:
        raise scope.unknown("unknown instruction")
    mask = reader(scope, i.operands[0], "b32")
    return lambda m, threads: m.meet(threads, mask(m, threads), m.end_warp_epoch)


BUILDERS = {
    "bra": branch, "brx": table, "call": call, "ret": returns, "exit": leave, "trap": trap, "bar": barrier,
    "barrier": barrier,
}  # fmt: skip
