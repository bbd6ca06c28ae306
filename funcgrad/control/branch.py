"""`branch`: one of several Programs, chosen by an index; the branches of cond and switch.

    results = branch(index, *operands)

runs the Program number `index`, clamped to those that there are. All of them take the index and the operands, and
return the same types. Under every transform the choice stays a choice: a branch that is not taken is not computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from funcgrad.base.errors import ProgramError, RuleError
from funcgrad.control.assemble import apply, assemble, empty_p, zero
from funcgrad.control.loop import INDEX
from funcgrad.control.rows import lanes
from funcgrad.core.check import checked
from funcgrad.core.evaluate import execute
from funcgrad.core.ir import Aval, Equation, Program, Stack, Var, tangent_aval
from funcgrad.core.primitive import Flags, Linear, Links, Primitive, Traits
from funcgrad.core.trace import bind, bind1
from funcgrad.ops.broadcasting import align
from funcgrad.ops.op import constant
from funcgrad.transforms.batch import batch, batched_aval
from funcgrad.transforms.jvp import jvp
from funcgrad.transforms.split import Split, split
from funcgrad.transforms.transpose import transpose

branch_p = Primitive("branch", Traits(kind="branch"), "One of several Programs, chosen by an index.")

Programs = tuple[Program, ...]


def branch(branches: Programs, index: Any, *args: Any) -> tuple[Any, ...]:
    """The results of the Program number `index`, an int64 scalar, for ``(index, *args)``."""
    return bind(branch_p, index, *args, branches=branches)


def _abstract(*avals: Aval, branches: Programs) -> tuple[Aval, ...]:
    outs = branches[0].out_avals
    if avals[0] != INDEX or any(b.in_avals != avals or b.out_avals != outs for b in branches):
        types = [f"{b.in_avals} -> {b.out_avals}" for b in branches]
        raise ProgramError(f"branch: branches {types} for operands {avals}")
    return outs


def _evaluate(index: Any, *args: Any, branches: Programs) -> tuple[Any, ...]:
    return tuple(execute(branches[min(max(int(index), 0), len(branches) - 1)], [index, *args]))


def _links(params: dict[str, Any]) -> Links:
    return Links(params["branches"], lambda bodies, inputs, results: {"branches": bodies}, held=(0,))


def _remember(branches: Programs, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
    return branches[0].remember((*key, branches[1:]), make)


def _any(flags: Sequence[Flags]) -> Flags:
    return tuple([any(column) for column in zip(*flags, strict=True)])


# -- forward mode


def _jvp(primal: Any, primals: Any, tangents: Any, *, branches: Programs) -> Any:
    given = tuple([t is not None for t in tangents])
    derived, out = _remember(branches, ("branch jvp", given), lambda: _derive(branches, given))
    results = branch(derived, *primals, *[t for t in tangents if t is not None])
    dots = iter(results[len(out) :])
    return results[: len(out)], [next(dots) if f else None for f in out]


def _derive(branches: Programs, given: Flags) -> tuple[Programs, Flags]:
    found = [jvp(b, given) for b in branches]
    out = _any([own for _, own in found])
    avals = branches[0].in_avals
    avals = (*avals, *[tangent_aval(a) for a, f in zip(avals, given, strict=True) if f])

    def wrapped(program: Program, own: Flags) -> Program:
        def function(*args: Any) -> list[Any]:
            results = apply(program, *args)
            return [*results[: len(own)], *_filled(results[len(own) :], own, out, program.out_avals)]

        return assemble(program.name, avals, function)

    return tuple([wrapped(p, own) for p, own in found]), out


def _filled(values: Sequence[Any], own: Flags, wanted: Flags, avals: Sequence[Aval]) -> list[Any]:
    """The values of the flags `own`, with zeros for those that are only in `wanted`."""
    given = iter(values)
    found = [next(given) if f else None for f in own]
    return [zero(a) if v is None else v for v, f, a in zip(found, wanted, avals, strict=False) if f]


# -- reverse mode


def _split(e: Equation, unknown: Flags) -> tuple[list[Equation], list[Equation]]:
    branches = e.params["branches"]
    if unknown[0]:
        raise RuleError("branch: the choice depends on an unknown value")
    key = ("branch split", unknown)
    known, linear, out, forwarded, slots = _remember(branches, key, lambda: _halves(branches, unknown))
    operands = [a for a, u in zip(e.inputs, unknown, strict=True) if not u]
    saved = [Var(a) for a in slots]
    pick = lambda flag: [v for v, u in zip(e.outputs, out, strict=True) if u == flag]
    before = Equation(branch_p, tuple(operands), {"branches": known}, (*pick(False), *saved), e.source)
    rest = [a for a, u in zip(e.inputs, unknown, strict=True) if u]
    inputs = (e.inputs[0], *[operands[i] for i in forwarded], *saved, *rest)
    after = Equation(branch_p, inputs, {"branches": linear}, tuple(pick(True)), e.source)
    return [before], [after]


def _halves(branches: Programs, unknown: Flags) -> tuple[Programs, Programs, Flags, list[int], list[Aval]]:
    """Known and linear branches; which outputs are unknown; the known inputs that the linear ones read; residuals."""
    out = _any([split(b, unknown).out_unknown for b in branches])
    halves = [split(b, unknown, out) for b in branches]
    forwarded = sorted({i for h in halves for i in h.forwarded} - {0})
    slots: list[Aval] = []
    places = [_places(h, slots) for h in halves]
    known = tuple([_known(h, p, slots) for h, p in zip(halves, places, strict=True)])
    linear = tuple([_linear(h, p, forwarded, slots) for h, p in zip(halves, places, strict=True)])
    return known, linear, out, forwarded, slots


def _computed(half: Split) -> list[Var]:
    return list(half.unknown.inputs[len(half.forwarded) : len(half.forwarded) + half.computed])


def _places(half: Split, slots: list[Aval]) -> list[int]:
    """A slot for each residual of a branch: branches share slots of one type. May add to `slots`."""
    free = list(range(len(slots)))
    out = []
    for v in _computed(half):
        k = next((k for k in free if slots[k] == v.aval), None)
        if k is None:
            k = len(slots)
            slots.append(v.aval)
        else:
            free.remove(k)
        out.append(k)
    return out


def _known(half: Split, places: list[int], slots: list[Aval]) -> Program:
    def function(*args: Any) -> list[Any]:
        results = apply(half.known, *args)
        outputs = len(results) - half.computed
        own = dict(zip(places, results[outputs:], strict=True))
        return [*results[:outputs], *[own.get(k) if k in own else _blank(a) for k, a in enumerate(slots)]]

    return assemble(half.known.name, half.known.in_avals, function)


def _blank(aval: Aval) -> Any:
    """Anything of this type: what stands in a slot that a branch does not use."""
    if isinstance(aval, Stack):
        return bind1(empty_p, elem=aval.elem)
    return constant(0, aval)


def _linear(half: Split, places: list[int], forwarded: list[int], slots: list[Aval]) -> Program:
    given = len(half.forwarded) + half.computed
    residuals, rest = half.unknown.inputs[:given], half.unknown.inputs[given:]
    position = dict(zip(half.forwarded, residuals, strict=False))
    index = position.get(0, Var(INDEX))
    taken = [position.get(i) or Var(half.known.inputs[i].aval) for i in forwarded]
    slot_vars = dict(zip(places, residuals[len(half.forwarded) :], strict=True))
    saved = [slot_vars.get(k) or Var(a) for k, a in enumerate(slots)]
    inputs = (index, *taken, *saved, *rest)
    return checked(Program(inputs, half.unknown.equations, half.unknown.outputs, half.known.name))


def _transpose(cts: Any, *args: Any, branches: Programs) -> Any:
    linear = tuple([isinstance(a, Linear) for a in args])
    given = tuple([c is not None for c in cts])
    turned, out = _remember(branches, ("branch transpose", linear, given), lambda: _turn(branches, linear, given))
    values = [a for a in args if not isinstance(a, Linear)]
    results = iter(branch(turned, *values, *[c for c in cts if c is not None]) if any(out) else ())
    flags = iter(out)
    return [next(results) if flag and next(flags) else None for flag in linear]


def _turn(branches: Programs, linear: Flags, given: Flags) -> tuple[Programs, Flags]:
    found = [transpose(b, linear, given) for b in branches]
    out = _any([own for _, own in found])
    first = branches[0]
    avals = [a for a, f in zip(first.in_avals, linear, strict=True) if not f]
    avals += [tangent_aval(a) for a, f in zip(first.out_avals, given, strict=True) if f]
    targets = [a for a, f in zip(first.in_avals, linear, strict=True) if f]

    def wrapped(program: Program, own: Flags) -> Program:
        return assemble(program.name, avals, lambda *args: _filled(apply(program, *args), own, out, targets))

    return tuple([wrapped(p, own) for p, own in found]), out


# -- rows


def _batch(size: int, args: Any, dims: Any, *, branches: Programs) -> Any:
    if dims[0] is not None:
        return lanes(size, branch_p, args, dims, {"branches": branches})
    found = [batch(b, size, tuple(dims)) for b in branches]
    out = _any([tuple([d is not None for d in own]) for _, own in found])
    outs = branches[0].out_avals
    if any(f and isinstance(a, Stack) for f, a in zip(out, outs, strict=True)):
        return lanes(size, branch_p, args, dims, {"branches": branches})
    avals = [batched_aval(a, size, d) for a, d in zip(branches[0].in_avals, dims, strict=True)]

    def wrapped(program: Program, own: Sequence[int | None]) -> Program:
        def function(*args: Any) -> list[Any]:
            results = apply(program, *args)
            return [align(r, d, 0, size) if f else r for r, d, f in zip(results, own, out, strict=True)]

        return assemble(program.name, avals, function)

    return branch(tuple([wrapped(*f) for f in found]), *args), [0 if f else None for f in out]


branch_p.abstract = _abstract
branch_p.evaluate = _evaluate
branch_p.jvp = _jvp
branch_p.split = _split
branch_p.transpose = _transpose
branch_p.batch = _batch
branch_p.links = _links
branch_p.effects_of = lambda params: frozenset().union(*[b.effects for b in params["branches"]])
