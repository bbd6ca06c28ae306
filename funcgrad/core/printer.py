"""How a Program reads: one equation a line, the user's names and lines, deterministic, ASCII."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np

from funcgrad.base.dtypes import short
from funcgrad.base.source import Source
from funcgrad.core.ir import PRINTER, Atom, Literal, Program, Var, subprograms


def names() -> Iterator[str]:
    """a, b, ..., z, aa, ab, ..."""
    for n in count():
        text = ""
        while n >= 0:
            text = chr(ord("a") + n % 26) + text
            n = n // 26 - 1
        yield text


def format_literal(literal: Literal) -> str:
    """The shortest text that gives back exactly this value."""
    value = literal.value
    if value.dtype.kind == "b":
        return "true" if value else "false"
    return (
        str(value.item())
        if value.dtype.kind in "iu"
        else repr(value.item())
        if value.dtype.itemsize == 8
        else str(value)
    )


def format_param(value: Any, program_names: dict[int, str]) -> str:
    """A static parameter without spaces."""
    if isinstance(value, Program):
        return program_names[id(value)]
    if isinstance(value, np.dtype):
        return short(value)
    if isinstance(value, tuple):
        inner = ",".join(format_param(v, program_names) for v in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return str(value).replace(" ", "")


def format_program(program: Program) -> str:
    """The text of `program`, with the Programs it holds below it, each once."""
    order: list[Program] = []
    program_names: dict[int, str] = {}
    by_fingerprint: dict[Any, str] = {}
    used: set[str] = set()

    def collect(p: Program) -> None:
        if id(p) in program_names:
            return
        same = by_fingerprint.get(p.fingerprint)
        if same is not None:
            program_names[id(p)] = same
            return
        name = p.name
        for i in count(1):
            if name not in used:
                break
            name = f"{p.name}_{i}"
        used.add(name)
        program_names[id(p)] = by_fingerprint[p.fingerprint] = name
        order.append(p)
        for e in p.equations:
            for _, body in subprograms(e):
                collect(body)

    collect(program)
    return "\n\n".join(_format_one(p, program_names) for p in order)


def _format_one(program: Program, program_names: dict[int, str]) -> str:
    env: dict[Var, str] = {}
    taken = {n for n in program.input_names if n}
    fresh = (n for n in names() if n not in taken)
    for var, name in zip(program.inputs, program.input_names or ("",) * len(program.inputs), strict=True):
        env[var] = name or next(fresh)

    def atom(a: Atom) -> str:
        return format_literal(a) if isinstance(a, Literal) else env[a]

    ins = ", ".join(f"{env[v]}: {v.aval}" for v in program.inputs)
    outs = ", ".join(str(a) for a in program.out_avals)
    head = f"program {program_names[id(program)]}({ins}) -> {outs if len(program.outputs) == 1 else f'({outs})'} {{"
    rows: list[tuple[str, str, str]] = []
    previous = ""
    for e in program.equations:
        for v in e.outputs:
            env[v] = next(fresh)
        left = ", ".join(f"{env[v]}: {v.aval}" for v in e.outputs)
        shown = {
            k: v
            for k, v in e.params.items()
            if not (k in e.primitive.hidden_params and e.primitive.hidden_params[k] in (v, None))
        }
        params = " ".join(f"{k}={format_param(v, program_names)}" for k, v in shown.items())
        text = e.primitive.name + (f"[{params}]" if params else "")
        line = str(e.source) if isinstance(e.source, Source) else ""
        rows.append((left, " ".join([text, *map(atom, e.inputs)]), f"# {line}" if line and line != previous else ""))
        previous = line
    width = max((len(r[0]) for r in rows), default=0)
    body = [f"  {left:<{width}} = {right}" if left else f"  {right}" for left, right, _ in rows]
    column = max((len(b) for b in body), default=0)
    lines = [f"{b:<{column}}   {r[2]}".rstrip() for b, r in zip(body, rows, strict=True)]
    returned = ", ".join(map(atom, program.outputs))
    return "\n".join([head, *lines, f"  return {returned}".rstrip(), "}"])


PRINTER.append(format_program)
