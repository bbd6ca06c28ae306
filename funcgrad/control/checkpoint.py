"""`checkpoint`: a Program of which the backward pass computes again what it needs, in place of keeping it.

    y = checkpoint[program=f policy=None] x

What its linear half takes from the known half is its operands, and what the policy saves; the rest is computed again
there, behind a `barrier`, so that a compiler does not find it computed already. Higher orders do the same. What has an
effect is not run again: its results are saved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from funcgrad.control.body import computed, pull, push, rows
from funcgrad.control.call import opened
from funcgrad.core.ir import Atom, Aval, Equation, Program, Var
from funcgrad.core.primitive import Linear, Links, Primitive, Traits
from funcgrad.core.trace import bind, bind1
from funcgrad.transforms.prune import prune
from funcgrad.transforms.split import split

Policy = Callable[..., bool]
"""``policy(primitive, *avals, **params)``: whether the results of such an operation are kept."""

checkpoint_p = Primitive("checkpoint", Traits(kind="program"), "A Program that the backward pass computes again.")
checkpoint_p.hidden_params = {"policy": None}


def checkpointed(policy: Policy | None) -> Callable[..., tuple[Any, ...]]:
    """How to apply a Program as one equation `checkpoint`."""
    return lambda program, *args: bind(checkpoint_p, *args, program=program, policy=policy)


def _abstract(*avals: Aval, program: Program, policy: Policy | None) -> tuple[Aval, ...]:
    return program.out_avals


def _evaluate(*values: Any, program: Program, policy: Policy | None) -> tuple[Any, ...]:
    return computed(program, *values)


def _jvp(primal: Any, primals: Any, tangents: Any, *, program: Program, policy: Policy | None) -> Any:
    return push(checkpointed(policy), program, primals, tangents)


@dataclass(frozen=True, slots=True, eq=False)
class _Halves:
    """The two halves of a body.

    `known` takes the known inputs, and returns the known outputs and what is saved; `unknown` takes the known inputs
    at `positions`, what is saved, and the unknown inputs.
    """

    known: Program
    unknown: Program
    positions: tuple[int, ...]
    out_unknown: tuple[bool, ...]


def _halves(program: Program, unknown: tuple[bool, ...], policy: Policy | None) -> _Halves:
    body = program if policy is None else opened(program)
    halves = split(body, unknown)
    equations = halves.known.equations
    saved: list[Var] = []
    again: list[Equation] = []
    named: dict[Atom, Atom] = {}  # what has a name is saved with it
    for e in equations:
        if e.primitive.effects_of(e.params) or _keeps(policy, e):
            saved += e.outputs
            if e.primitive.traits.kind == "identity":
                named[e.inputs[0]] = e.outputs[0]
        else:
            again.append(e)
    hidden = [v for v, u in zip(body.inputs, unknown, strict=True) if u]
    outputs = halves.unknown.outputs
    again += halves.unknown.equations
    if named:
        again = [e.replace(inputs=tuple([named.get(a, a) for a in e.inputs])) for e in again]
    linear = prune(Program((), tuple(again), outputs, program.name))
    used = {a for e in linear.equations for a in e.inputs} | set(outputs)
    saved = [v for v in saved if v in used]
    positions = tuple([i for i, v in enumerate(halves.known.inputs) if v in used])
    inputs = (*[halves.known.inputs[i] for i in positions], *saved, *hidden)
    known_outputs = halves.known.outputs[: halves.out_unknown.count(False)]
    known = prune(Program(halves.known.inputs, equations, (*known_outputs, *saved), program.name))
    return _Halves(known, Program(inputs, linear.equations, outputs, program.name), positions, halves.out_unknown)


def _keeps(policy: Policy | None, e: Equation) -> bool:
    return policy is not None and bool(policy(e.primitive, *[a.aval for a in e.inputs], **e.params))


def _split(e: Equation, unknown: tuple[bool, ...]) -> tuple[list[Equation], list[Equation]]:
    program, policy = e.params["program"], e.params["policy"]
    halves: _Halves = program.remember(("checkpoint", unknown, policy), lambda: _halves(program, unknown, policy))
    known_inputs = tuple([a for a, u in zip(e.inputs, unknown, strict=True) if not u])
    unknown_inputs = [a for a, u in zip(e.inputs, unknown, strict=True) if u]
    known_outputs = [v for v, u in zip(e.outputs, halves.out_unknown, strict=True) if not u]
    unknown_outputs = tuple([v for v, u in zip(e.outputs, halves.out_unknown, strict=True) if u])
    saved = [Var(a) for a in halves.known.out_avals[len(known_outputs) :]]
    residuals = [*[known_inputs[i] for i in halves.positions], *saved]
    params = {"program": halves.known, "policy": policy}
    before = Equation(checkpoint_p, known_inputs, params, (*known_outputs, *saved), e.source)
    params = {"program": halves.unknown, "policy": policy}
    after = Equation(checkpoint_p, (*residuals, *unknown_inputs), params, unknown_outputs, e.source)
    return [before] if before.outputs else [], [after]


def _transpose(cts: Any, *args: Any, program: Program, policy: Policy | None) -> Any:
    guarded = iter(barrier(*[a for a in args if not isinstance(a, Linear)]))
    args = tuple([a if isinstance(a, Linear) else next(guarded) for a in args])
    return pull(checkpointed(policy), program, cts, args)


def _batch(size: int, args: Any, dims: Any, *, program: Program, policy: Policy | None) -> Any:
    return rows(checkpointed(policy), program, size, args, dims)


checkpoint_p.abstract = _abstract
checkpoint_p.evaluate = _evaluate
checkpoint_p.jvp = _jvp
checkpoint_p.split = _split
checkpoint_p.transpose = _transpose
checkpoint_p.batch = _batch
checkpoint_p.links = lambda params: Links((params["program"],), lambda bodies, *_: {**params, "program": bodies[0]})
checkpoint_p.effects_of = lambda params: params["program"].effects

# -- barrier


def barrier(*args: Any) -> tuple[Any, ...]:
    """The operands, as values that nothing is known of: what is computed from them is computed again."""
    return bind(barrier_p, *args) if args else ()


barrier_p = Primitive("barrier", Traits(exact=True, kind="barrier"), barrier.__doc__ or "")
barrier_p.abstract = lambda *avals: avals
barrier_p.evaluate = lambda *values: values
barrier_p.jvp = lambda primal, primals, tangents: (primal(), tangents)
barrier_p.transpose = lambda cts, *args: cts
barrier_p.batch = lambda size, args, dims: (barrier(*args), dims)

# -- names


def checkpoint_name(x: Any, name: str) -> Any:
    """`x` itself, under a name that policies of `checkpoint` know."""
    return bind1(name_p, x, name=name)


name_p = Primitive("checkpoint_name", Traits(exact=True, kind="identity"), checkpoint_name.__doc__ or "")
name_p.abstract = lambda aval, *, name: (aval,)
name_p.evaluate = lambda value, *, name: (value,)
name_p.jvp = lambda primal, primals, tangents, *, name: (primal(), tangents)
name_p.transpose = lambda cts, x, *, name: cts
name_p.batch = lambda size, args, dims, *, name: ((checkpoint_name(args[0], name),), dims)
