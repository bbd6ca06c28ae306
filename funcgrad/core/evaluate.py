"""Running a Program: on plain arrays with NumPy, or by recording its equations in the trace around.

`execute` runs a Program at a jit boundary; lowering replaces it by the compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from funcgrad.base.errors import FuncgradError
from funcgrad.core.device_array import device_of
from funcgrad.core.ir import Atom, Aval, Equation, Literal, Program, Var, last_uses
from funcgrad.core.nans import nans_searched, watched
from funcgrad.core.primitive import registry
from funcgrad.core.trace import Trace, Tracer, current, eagerly, require_open

Execute = Callable[[Program, Sequence[Any], str, tuple[int, ...]], list[Any]]


def evaluate(
    program: Program, args: Sequence[Any], known: Mapping[Var, Any] | None = None, device: str | None = None
) -> list[Any]:
    """The outputs of `program` for `args`.

    Inside a trace that has to see it, the equations are recorded there (and the results are tracers); otherwise
    they are computed with NumPy (and the results are raw arrays, which may be views: see `array.publish`), or as a
    whole on a device, if an argument lies there or a jitted function in it asked for it.

    Parameters
    ----------
    known
        Values of Vars of the program that a trace has computed before; they are not computed again.
    device
        Where it runs, outside of traces; by default where `args` and the program say.
    """
    trace = current()
    if type(trace) is Trace and (
        not trace.shows or (trace.waiting and program.effects) or any([type(a) is Tracer for a in args])
    ):
        return inline(trace, program, args, known or {})
    for a in args:
        if type(a) is Tracer:
            require_open(a, trace)
    device = device or device_of(program, args)
    if device is not None:
        return execute(program, args, device)
    with eagerly():
        if nans_searched():
            return watched(program, args, known or {}, lambda: run(program, args, known))
        return run(program, args, known or {})


def run(program: Program, args: Sequence[Any], known: Mapping[Var, Any] | None = None) -> list[Any]:
    """Compute with NumPy; frees every intermediate after its last use."""
    env: dict[Var, Any] = dict(zip(program.inputs, args, strict=True))
    known = known or {}
    for e, dead in zip(program.equations, last_uses(program), strict=True):
        if known and e.outputs and e.outputs[0] in known:
            results: Any = [known[v] for v in e.outputs]
        else:
            values = [env[a] if type(a) is Var else a.array for a in e.inputs]  # type: ignore[union-attr]
            try:
                results = e.primitive.evaluate(*values, **e.params)
            except FuncgradError as error:
                raise error.at(e.source) from None
        if len(results) == 1:
            env[e.outputs[0]] = results[0]
        else:
            env.update(zip(e.outputs, results, strict=True))
        for var in dead:
            del env[var]
    return [env[a] if isinstance(a, Var) else a.array for a in program.outputs]


def inline(trace: Trace, program: Program, args: Sequence[Any], known: Mapping[Var, Any] | None = None) -> list[Any]:
    """Record the equations of `program` in `trace`, with fresh Vars."""
    env: dict[Atom, Atom] = {}
    for var, arg in zip(program.inputs, args, strict=True):
        atom = trace.atom(arg)
        env[var] = atom if atom.aval is var.aval or atom.aval == var.aval else _weakened(trace, atom, var.aval)
    known = known or {}
    for e in program.equations:
        outputs = tuple([Var(v.aval) for v in e.outputs])
        for old, new in zip(e.outputs, outputs, strict=True):
            if old in known:
                trace.values[new] = known[old]
        inputs = tuple([a if type(a) is Literal else env[a] for a in e.inputs])
        emitted = trace.emit(Equation(e.primitive, inputs, e.params, outputs, e.source))
        env.update(zip(e.outputs, emitted, strict=True))
    return [Tracer(trace, a if isinstance(a, Literal) else env[a]) for a in program.outputs]


def _weakened(trace: Trace, atom: Atom, aval: Aval) -> Atom:
    """A scalar that is weak where the Program expects a strong one, or the other way."""
    if isinstance(atom, Literal):
        return Literal(atom.value, aval)
    converted = trace.add(registry["convert"], [Tracer(trace, atom)], {"dtype": aval.dtype, "weak": aval.weak})
    return converted[0].atom


_execute: list[Execute] = [lambda program, args, lowering, donated: run(program, args)]


def execute(program: Program, args: Sequence[Any], lowering: str = "llvm", donated: tuple[int, ...] = ()) -> list[Any]:
    """Run a Program at a jit boundary, on plain arrays.

    For each output, `donated` has the input whose memory it may be given, or -1.
    """
    if nans_searched():
        return watched(program, args, {}, lambda: _execute[0](program, args, lowering, ()))
    return _execute[0](program, args, lowering, donated)


def set_execute(function: Execute) -> None:
    """Let lowering take over `execute`."""
    _execute[0] = function
