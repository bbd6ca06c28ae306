"""Partial evaluation: separate what is known from what is not.

In: a Program, and which inputs are unknown. Out: a `Split`: the known Program, which needs only known inputs and
also returns the residuals; and the unknown Program, which takes residuals and the unknown inputs.
After `jvp` the known part is the value with all coefficients of the derivative, the unknown part is linear.

    known(x) -> (a, r): a = sin x, r = cos x        unknown(r, x_dot) -> c: c = mul x_dot r
"""

from __future__ import annotations

from dataclasses import dataclass

from funcgrad.core.check import checked
from funcgrad.core.ir import Equation, Literal, Program, Var
from funcgrad.transforms.prune import prune

Flags = tuple[bool, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """The two halves of a Program.

    Attributes
    ----------
    known : Program
        Takes the known inputs; returns the known outputs, then the computed residuals.
    unknown : Program
        Takes residuals (first the `forwarded` ones, then the computed ones), then the unknown inputs; returns
        the unknown outputs.
    forwarded : tuple of int
        Positions among the known inputs of residuals that are inputs: handed on, never copied.
    out_unknown : tuple of bool
        For each output of the original, whether it is in the unknown half.
    """

    known: Program
    unknown: Program
    forwarded: tuple[int, ...]
    out_unknown: Flags

    @property
    def computed(self) -> int:
        """How many residuals `known` returns after the known outputs."""
        return len(self.known.outputs) - self.out_unknown.count(False)


def split(program: Program, unknown: Flags, forced: Flags = ()) -> Split:
    """Separate `program` by which of its inputs are unknown; `forced` outputs are given by the unknown half."""
    return program.remember(("split", unknown, forced), lambda: _split(program, unknown, forced))


def _split(program: Program, unknown: Flags, forced: Flags) -> Split:
    hidden: set[object] = {v for v, u in zip(program.inputs, unknown, strict=True) if u}
    known_equations: list[Equation] = []
    unknown_equations: list[Equation] = []
    for e in program.equations:
        flags = tuple([a in hidden for a in e.inputs])
        if not any(flags):
            known_equations.append(e)
        elif e.primitive.split is None:
            unknown_equations.append(e)
            hidden.update(e.outputs)
        else:
            before, after = e.primitive.split(e, flags)
            known_equations += before
            unknown_equations += after
            for u in after:
                hidden.update(u.outputs)

    out_unknown = tuple([a in hidden for a in program.outputs])
    if forced:
        out_unknown = tuple([u or f for u, f in zip(out_unknown, forced, strict=True)])
    known_outputs = [a for a, u in zip(program.outputs, out_unknown, strict=True) if not u]
    unknown_outputs = tuple([a for a, u in zip(program.outputs, out_unknown, strict=True) if u])
    known_inputs = tuple([v for v, u in zip(program.inputs, unknown, strict=True) if not u])
    unknown_inputs = tuple([v for v, u in zip(program.inputs, unknown, strict=True) if u])
    names = program.input_names or ("",) * len(program.inputs)
    known_names = tuple([n for n, u in zip(names, unknown, strict=True) if not u])
    unknown_names = tuple([n for n, u in zip(names, unknown, strict=True) if u])

    body = prune(Program(unknown_inputs, tuple(unknown_equations), unknown_outputs))
    made = {*unknown_inputs, *[v for e in body.equations for v in e.outputs]}
    read = [*[a for e in body.equations for a in e.inputs], *unknown_outputs]
    needed = dict.fromkeys([a for a in read if not isinstance(a, Literal) and a not in made])
    position = {v: i for i, v in enumerate(known_inputs)}
    forwarded = [v for v in needed if v in position]
    computed = [v for v in needed if v not in position]

    residuals: list[Var] = [*forwarded, *computed]
    known = Program(known_inputs, tuple(known_equations), (*known_outputs, *computed), program.name, known_names)
    linear = Program(
        (*residuals, *unknown_inputs),
        body.equations,
        unknown_outputs,
        program.name,
        (*[known_names[position[v]] if v in position else "" for v in residuals], *unknown_names),
    )
    return Split(checked(prune(known)), checked(linear), tuple([position[v] for v in forwarded]), out_unknown)
