"""Dead code: drop equations that no wanted output needs.

In: a Program, and which outputs are wanted. Out: the Program with only those outputs, without the equations that
served the others. Effects are never dropped. Inputs stay.
"""

from __future__ import annotations

from typing import Any

from funcgrad.core.ir import Equation, Program, Var
from funcgrad.core.primitive import Links

Flags = tuple[bool, ...]


def prune(program: Program, wanted: Flags | None = None) -> Program:
    """`program` with the outputs where `wanted` is True (default: all), and only the equations these need."""
    outputs = (
        program.outputs if wanted is None else tuple([a for a, w in zip(program.outputs, wanted, strict=True) if w])
    )
    alive = {a for a in outputs if isinstance(a, Var)}
    kept = []
    for e in reversed(program.equations):
        if not alive.isdisjoint(e.outputs) or e.primitive.effects_of(e.params):
            if e.primitive.links is not None:
                e = narrow(e, tuple([v in alive for v in e.outputs]))
            alive.update([a for a in e.inputs if isinstance(a, Var)])
            kept.append(e)
    kept.reverse()
    return Program(program.inputs, tuple(kept), outputs, program.name, program.input_names)


def narrow(e: Equation, wanted: Flags) -> Equation:
    """An equation that holds Programs, without the results that nothing needs and the operands that only they did."""
    assert e.primitive.links is not None
    links = e.primitive.links(e.params)
    if links.fixed:
        return e
    first = links.bodies[0]
    key = ("narrow", wanted, links.bodies[1:], links.carries, links.needed, links.held)
    bodies, kept, results = first.remember(key, lambda: _narrow(links, wanted))
    if all(kept) and all(results):
        return e
    return e.replace(
        inputs=tuple([a for a, k in zip(e.inputs, kept, strict=True) if k]),
        params=links.rebuild(bodies, kept, results),
        outputs=tuple([v for v, k in zip(e.outputs, results, strict=True) if k]),
    )


def _narrow(links: Links, wanted: Flags) -> tuple[tuple[Program, ...], Flags, Flags]:
    """The bodies without dead results and operands, and which operands and results are left."""
    results = tuple([w or j in links.needed for j, w in enumerate(wanted)])
    while True:
        bodies = [prune(body, results) for body in links.bodies]
        used: set[Any] = set().union(*[{a for e in b.equations for a in e.inputs} | set(b.outputs) for b in bodies])
        grown = list(results)
        for output, carried in links.carries:
            grown[output] = grown[output] or any([body.inputs[carried] in used for body in bodies])
        if tuple(grown) == results:
            break
        results = tuple(grown)
    held = {*links.held, *[i for j, i in links.carries if results[j]]}
    kept = tuple([i in held or any([b.inputs[i] in used for b in bodies]) for i in range(len(bodies[0].inputs))])
    return tuple([_with_inputs(b, kept) for b in bodies]), kept, results


def _with_inputs(body: Program, kept: Flags) -> Program:
    names = body.input_names or ("",) * len(body.inputs)
    return Program(
        tuple([v for v, k in zip(body.inputs, kept, strict=True) if k]),
        body.equations,
        body.outputs,
        body.name,
        tuple([n for n, k in zip(names, kept, strict=True) if k]),
    )
