"""`custom_vjp`: a Program with a backward rule of its own.

    y = custom_vjp[program=f rules=(f_fwd, f_bwd) captured=0] x      f_fwd(x) -> (y, r);  f_bwd(r, y_bar) -> x_bar

Its derivative is the forward rule in place of the equation, and one equation `custom_linear` that stands for the
tangent: it can only be transposed, to the backward rule, which stays behind `custom_backward` because it need not be
linear. How the result moves with what the function captured is the derivative of the function itself.
"""

from __future__ import annotations

from typing import Any, NoReturn

from funcgrad.base.dtypes import is_inexact
from funcgrad.base.errors import ForwardModeError
from funcgrad.control.body import computed, inlined, pull, push
from funcgrad.control.custom_jvp import by_rule_and_code
from funcgrad.control.rules import Programs, Rules, change, resolve
from funcgrad.core.ir import Aval, Literal, Program, tangent_aval
from funcgrad.core.primitive import Linear, Links, Primitive, Traits
from funcgrad.core.trace import bind
from funcgrad.ops.op import literal_of, zeros_of
from funcgrad.transforms.batch import SUM, batch, batch_onto
from funcgrad.transforms.prune import prune

custom_vjp_p = Primitive("custom_vjp", Traits(kind="program"), "A Program with a backward rule of its own.")
custom_vjp_p.hidden_params = {"captured": 0, "made": None}
custom_linear_p = Primitive("custom_linear", Traits(kind="custom_linear"), "The tangent of `custom_vjp`.")
custom_linear_p.hidden_params = {"name": None, "made": None}
custom_backward_p = Primitive("custom_backward", Traits(kind="program"), "The backward rule of `custom_vjp`.")


def _abstract(*avals: Aval, program: Program, rules: Rules, captured: int, made: str) -> tuple[Aval, ...]:
    return program.out_avals


def _evaluate(*values: Any, program: Program, rules: Rules, captured: int, made: str) -> tuple[Any, ...]:
    return computed(program, *values)


def _jvp(primal: Any, primals: Any, tangents: Any, *, program: Program, rules: Rules, captured: int, made: str) -> Any:
    ruled = lambda moving: _ruled(program, resolve(rules), primals, moving, captured, made)
    return by_rule_and_code(ruled, primal, program, primals, tangents, captured)


def _ruled(program: Program, rules: Programs, primals: Any, tangents: Any, captured: int, made: str) -> Any:
    """Outputs of the forward rule, and their tangents."""
    forward, backward = rules
    n = len(program.outputs)
    results = inlined(forward, *primals)
    avals = program.in_avals[captured:]
    moving = [t for t, aval in zip(tangents, avals, strict=True) if is_inexact(aval.dtype)]
    wanted = tuple(
        [
            t is not None and not is_zero(literal_of(t)) and not is_zero(a)
            for t, a in zip(moving, backward.outputs, strict=True)
        ]
    )
    dots: list[Any] = [None] * n
    if any(wanted):
        backward = backward.remember(("prune", wanted), lambda: prune(backward, wanted))
        residuals = [*primals[:captured], *results[n:]]
        given = [t for t, w in zip(moving, wanted, strict=True) if w]
        found = iter(bind(custom_linear_p, *residuals, *given, backward=backward, name=program.name, made=made))
        dots = [next(found) if is_inexact(aval.dtype) else None for aval in program.out_avals]
    return results[:n], dots


def is_zero(x: Any) -> bool:
    """Whether `x` is a literal zero."""
    return isinstance(x, Literal) and x.is_zero()


def _transpose(cts: Any, *args: Any, program: Program, rules: Rules, captured: int, made: str) -> Any:
    return pull(inlined, program, cts, args)


def _batch(size: int, args: Any, dims: Any, *, program: Program, rules: Rules, captured: int, made: str) -> Any:
    outs = (0,) * len(program.outputs)
    dims = tuple(dims)
    avals = program.in_avals

    def batched(given: Programs) -> Programs:
        forward, backward = given
        found = batch(forward, size, dims)[1]
        forward = batch_onto(forward, size, dims, outs + found[len(outs) :])
        residuals = (*dims[:captured], *found[len(outs) :])
        cotangents = (0,) * (len(backward.inputs) - len(residuals))
        moving = [d for d, aval in zip(dims[captured:], avals[captured:], strict=True) if is_inexact(aval.dtype)]
        targets = tuple([SUM if d is None else d for d in moving])
        return forward, batch_onto(backward, size, residuals + cotangents, targets)

    body = batch_onto(program, size, dims, outs)
    rules = change(rules, batched, ("batched", size, dims))
    return bind(custom_vjp_p, *args, program=body, rules=rules, captured=captured, made=made), outs


def _links(params: dict[str, Any]) -> Links:
    return Links((params["program"],), lambda bodies, *_: {**params, "program": bodies[0]}, fixed=True)


custom_vjp_p.abstract = _abstract
custom_vjp_p.evaluate = _evaluate
custom_vjp_p.jvp = _jvp
custom_vjp_p.transpose = _transpose
custom_vjp_p.batch = _batch
custom_vjp_p.links = _links
custom_vjp_p.effects_of = lambda params: params["program"].effects

# -- the tangent: operands are residuals, then one tangent per output of the backward rule


def _residuals(args: Any, backward: Program) -> int:
    return len(args) - len(backward.outputs)


def _linear_abstract(*avals: Aval, backward: Program, name: str, made: str) -> tuple[Aval, ...]:
    return tuple([tangent_aval(a) for a in backward.in_avals[_residuals(avals, backward) :]])


FORWARD = {
    "custom_vjp": "give the function a custom_jvp rule",
    "custom_gradient": "give the function a custom_jvp rule",
    "def_vjp": "define def_jvp in its place",
    "from_numba(vjp=...)": "pass jvp= in its place",
}
"""By how a backward rule was given: the forward rule that serves both modes."""


def _refusal(name: str, made: str) -> ForwardModeError:
    return ForwardModeError(
        f"forward mode (jvp, jacfwd, linearize) through {name}: {made} has a backward rule only",
        hint=f"use reverse mode (grad, vjp, jacrev), or {FORWARD[made]}, which serves both",
    )


def _linear_evaluate(*values: Any, backward: Program, name: str, made: str) -> NoReturn:
    raise _refusal(name, made)


def _linear_jvp(primal: Any, primals: Any, tangents: Any, *, backward: Program, name: str, made: str) -> NoReturn:
    raise _refusal(name, made)


def _linear_transpose(cts: Any, *args: Any, backward: Program, name: str, made: str) -> Any:
    n = _residuals(args, backward)
    avals = backward.in_avals[n:]
    given = [zeros_of(aval) if ct is None else ct for ct, aval in zip(cts, avals, strict=True)]
    results = bind(custom_backward_p, *args[:n], *given, program=backward)
    bars = [ct if isinstance(a, Linear) else None for ct, a in zip(results, args[n:], strict=True)]
    return [None] * n + bars


def _linear_batch(size: int, args: Any, dims: Any, *, backward: Program, name: str, made: str) -> Any:
    n = _residuals(args, backward)
    outs = (0,) * (len(backward.inputs) - n)
    targets = tuple([SUM if d is None else d for d in dims[n:]])
    body = batch_onto(backward, size, (*dims[:n], *outs), targets)
    return bind(custom_linear_p, *args, backward=body, name=name, made=made), outs


custom_linear_p.abstract = _linear_abstract
custom_linear_p.evaluate = _linear_evaluate
custom_linear_p.refusal = lambda params: _refusal(params["name"], params["made"])
custom_linear_p.jvp = _linear_jvp
custom_linear_p.transpose = _linear_transpose
custom_linear_p.batch = _linear_batch

# -- the backward rule: in place wherever it is transformed, a boundary only where products are guarded


def _backward_batch(size: int, args: Any, dims: Any, *, program: Program) -> Any:
    body, out_dims = batch(program, size, tuple(dims))
    return bind(custom_backward_p, *args, program=body), out_dims


custom_backward_p.abstract = lambda *avals, program: program.out_avals
custom_backward_p.evaluate = lambda *values, program: computed(program, *values)
custom_backward_p.jvp = lambda primal, primals, tangents, *, program: push(inlined, program, primals, tangents)
custom_backward_p.transpose = lambda cts, *args, program: pull(inlined, program, cts, args)
custom_backward_p.batch = _backward_batch
custom_backward_p.links = lambda params: Links(
    (params["program"],), lambda bodies, *_: {"program": bodies[0]}, opaque=True
)
custom_backward_p.effects_of = lambda params: params["program"].effects
