"""Foreign code as LLVM text: functions of the user's that machine code calls through a pointer.

    i64 @foreign0(ptr table, ptr status)

The table holds addresses: of the operands, then of the results, all of them arrays in C order whose types the Program
has settled; then of memory for the copies that `copies_of` names. The function fills the results and returns `DONE`.
If it returns anything else it has failed, and the status then holds a reference to the exception (`thunks`); the code
leaves by the way of a failed check. Which address a name stands for is settled when the code is loaded, so the text
holds none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from funcgrad.core.ir import Aval, Equation, Var, make_aval, static_key
from funcgrad.core.primitive import Compiled
from funcgrad.lowering import sanitize
from funcgrad.lowering.layout import View, contiguous
from funcgrad.lowering.nests import STATUS, KernelText
from funcgrad.lowering.values import Shared

DONE = 0x66756E6367726164
"""What a call that went well returns; no function that broke off leaves this number by chance."""
FAILED = -16
"""The code of a Program whose foreign function 0 failed; the next ones have the codes below."""


def compiled_of(e: Equation) -> Compiled | None:
    """What Numba compiled, behind a foreign equation; None for a way through Python."""
    return e.primitive.compiled(e) if e.primitive.compiled is not None else None


def rows_of(c: Compiled, avals: list[Aval]) -> list[Aval]:
    """The types of the operands of one call; `avals` have the rows of all."""
    levels = [[int(flags[k]) for _, flags in c.levels] for k in range(len(avals))]
    return [make_aval(a.shape[sum(rows) :], a.dtype) for a, rows in zip(avals, levels, strict=True)]


def copies_of(e: Equation) -> list[Aval]:
    """Arrays that a compiled function is given copies of, since it may write into its arguments."""
    c = compiled_of(e)
    return [] if c is None else [a for a in rows_of(c, [x.aval for x in e.inputs]) if a.shape]


def call_lines(e: Equation, shared: Shared, table: str, places: Sequence[str], n: int) -> list[str]:
    """The call for a table filled with `places`, and the way out to ``%exit`` if it fails.

    Code goes on in block ``went<n>``.
    """
    source = (e.source.filename, e.source.line) if e.source is not None else None
    params = tuple([(k, static_key(v)) for k, v in sorted(e.params.items())])
    types = tuple([a.aval for a in (*e.inputs, *e.outputs)])
    key = (e.primitive, params, types, len(e.inputs), source)
    i = shared.foreign.setdefault(key, (len(shared.foreign), e))[0]
    shared.declares[f"declare i64 @foreign{i}(ptr, ptr)"] = None
    avals = [a.aval for a in (*e.inputs, *e.outputs)] + copies_of(e)
    spans = [(p, a.size * a.dtype.itemsize) for p, a in zip(places, avals, strict=True)]
    return [
        *sanitize.touches([(table, 8 * len(places)), ("%status", 64), *spans]),
        f"  %done{n} = call i64 @foreign{i}(ptr {table}, ptr %status)",
        f"  %good{n} = icmp eq i64 %done{n}, {DONE}",
        f"  br i1 %good{n}, label %went{n}, label %failed{n}",
        f"failed{n}:",
        f"  store i64 {FAILED - i}, ptr %status",
        "  br label %exit",
        f"went{n}:",
    ]


def foreign_text(e: Equation, views: dict[Var, View], shared: Shared) -> KernelText:
    """The function of one call whose operands are in memory."""
    roots: dict[Any, str] = {}
    copies = [contiguous(Var(a), a.shape) for a in copies_of(e)]
    places = [*[views[a] for a in (*e.inputs, *e.outputs) if isinstance(a, Var)], *copies]
    lines = [f"  %table = alloca [{len(places)} x ptr]"]
    for k, view in enumerate(places):
        p = roots.setdefault(view.root, f"%p{len(roots)}")
        lines.append(f"  %a{k} = getelementptr i8, ptr {p}, i64 {view.offset * view.root.aval.dtype.itemsize}")
        lines += [f"  %t{k} = getelementptr ptr, ptr %table, i64 {k}", f"  store ptr %a{k}, ptr %t{k}"]
    roots[STATUS] = "%status"
    lines += call_lines(e, shared, "%table", [f"%a{k}" for k in range(len(places))], 0)
    body = "\n".join([*lines, "  br label %exit", "exit:", "  ret void"])
    parameters = ", ".join([f"ptr {p}" for p in roots.values()])
    return KernelText(f"define internal void @KERNEL({parameters}) #0 {{\nentry:\n{body}\n}}\n", tuple(roots), False)


__all__ = ["DONE", "FAILED", "call_lines", "compiled_of", "copies_of", "foreign_text", "rows_of"]
