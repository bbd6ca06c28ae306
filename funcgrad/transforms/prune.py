"""Dead code: drop equations that no wanted output needs.

In: a Program, and which outputs are wanted. Out: the Program with only those outputs, without the equations that
served the others. Effects are never dropped. Inputs stay.
"""

from __future__ import annotations

from funcgrad.core.ir import Equation, Program, Var


def prune(program: Program, wanted: tuple[bool, ...] | None = None) -> Program:
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


def narrow(e: Equation, wanted: tuple[bool, ...]) -> Equation:
    """An equation that holds a Program, without the results that nothing needs and the operands that only they did."""
    assert e.primitive.links is not None
    links = e.primitive.links(e.params)
    if links.carries or links.fixed:
        return e

    def shrink() -> tuple[Program, tuple[bool, ...]]:
        body = prune(links.body, wanted)
        used = {a for inner in body.equations for a in inner.inputs} | set(body.outputs)
        kept = tuple([v in used for v in body.inputs])
        names = body.input_names or ("",) * len(body.inputs)
        return Program(
            tuple([v for v, k in zip(body.inputs, kept, strict=True) if k]),
            body.equations,
            body.outputs,
            body.name,
            tuple([n for n, k in zip(names, kept, strict=True) if k]),
        ), kept

    body, kept = links.body.remember(("narrow", wanted), shrink)
    if all(kept) and all(wanted):
        return e
    return e.replace(
        inputs=tuple([a for a, k in zip(e.inputs, kept, strict=True) if k]),
        params=links.rebuild(body),
        outputs=tuple([v for v, w in zip(e.outputs, wanted, strict=True) if w]),
    )
