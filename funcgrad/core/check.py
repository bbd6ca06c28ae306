"""The type checker of Programs: proves the invariants of `core.ir`.

Always on in the tests, and with FUNCGRAD_CHECK=1 after every transform. A failure is a bug in a rule, and the
message prints the equation that is wrong.
"""

from __future__ import annotations

import os
from typing import Any

from funcgrad.base.errors import ProgramError
from funcgrad.core.ir import Atom, Program, Var, subprograms


def checking() -> bool:
    """Whether FUNCGRAD_CHECK=1."""
    return os.environ.get("FUNCGRAD_CHECK", "0") not in ("", "0")


def checked(program: Program) -> Program:
    """`program` itself, after a check when checking is on."""
    if checking():
        check(program)
    return program


def check(program: Program) -> Program:
    """Raise `ProgramError` unless `program` is well formed and well typed; returns it."""
    return program.remember("checked", lambda: _check(program))


def _check(program: Program) -> Program:
    defined: set[Var] = set()

    def fail(message: str, where: Any = None) -> None:
        line = f" in equation {where.primitive.name} (line {where.source})" if where is not None else ""
        raise ProgramError(f"program {program.name}: {message}{line}", source=getattr(where, "source", None))

    def use(a: Atom, where: Any = None) -> None:
        if isinstance(a, Var):
            if a not in defined:
                fail(f"a value of type {a.aval} is used before it is defined", where)
        elif a.value.dtype != a.aval.dtype:
            fail(f"literal {a.value!r} is not of its type {a.aval}", where)

    def define(v: Var, where: Any = None) -> None:
        if v in defined:
            fail(f"a value of type {v.aval} is defined twice", where)
        defined.add(v)

    for v in program.inputs:
        define(v)
    for e in program.equations:
        for a in e.inputs:
            use(a, e)
        try:
            hash(tuple(e.params.values()))
        except TypeError:
            fail(f"a parameter is not hashable: {e.params}", e)
        for _, body in subprograms(e):
            check(body)
        expected = e.primitive.abstract(*[a.aval for a in e.inputs], **e.params)
        found = tuple(v.aval for v in e.outputs)
        if tuple(expected) != found:
            types = ", ".join(str(a.aval) for a in e.inputs)
            fail(
                f"results are {', '.join(map(str, found))}, but {e.primitive.name} of ({types}) gives "
                f"{', '.join(map(str, expected))}",
                e,
            )
        for v in e.outputs:
            define(v, e)
    for a in program.outputs:
        use(a)
    return program
