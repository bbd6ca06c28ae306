"""Forward-mode differentiation: a Program for values and tangents together.

In: a Program, and which inputs have a tangent. Out: the Program with the tangents of those inputs appended to its
inputs and the nonzero tangents of its outputs appended to its outputs; and which outputs have one.
The equations of the original are kept as they are (the same objects), so values known of them stay known.

    program f(x: f64[]) -> f64[] {        program f(x: f64[], x_dot: f64[]) -> (f64[], f64[]) {
      a: f64[] = sin x                      a: f64[] = sin x
      return a                              b: f64[] = cos x
    }                                       c: f64[] = mul x_dot b
                                            return a, c
                                          }
"""

from __future__ import annotations

from typing import Any

from funcgrad.base.errors import ForwardModeError, RuleError
from funcgrad.core.check import checked
from funcgrad.core.ir import Equation, Program, Var, tangent_aval
from funcgrad.core.trace import Trace, Tracer

Flags = tuple[bool, ...]


def jvp(program: Program, nonzero: Flags) -> tuple[Program, Flags]:
    """Value-and-tangent Program of `program`.

    Parameters
    ----------
    nonzero
        For each input, whether it has a tangent. Inputs of integer or bool dtype never have.

    Returns
    -------
    program, nonzero
        Inputs: those of `program`, then one tangent per True. Outputs likewise.
    """
    return program.remember(("jvp", nonzero), lambda: _jvp(program, nonzero))


def _jvp(program: Program, nonzero: Flags) -> tuple[Program, Flags]:
    dots: dict[Any, Any] = {}
    renamed: dict[Any, Any] = {}  # outputs of equations that a rule replaced: old Var → new atom
    with Trace(program.name) as t:
        names = program.input_names or ("",) * len(program.inputs)
        for var, name in zip(program.inputs, names, strict=True):
            t.adopt(var, name=name)
        for var, flag, name in zip(program.inputs, nonzero, names, strict=True):
            if flag:
                dots[var] = t.input(tangent_aval(var.aval), name=f"{name}_dot" if name else "")

        def read(a: Any) -> Tracer:
            return Tracer(t, renamed.get(a, a))

        for e in program.equations:
            inputs = e.inputs
            if renamed and any([a in renamed for a in inputs]):
                inputs = tuple([renamed.get(a, a) for a in inputs])
            tangents = [dots.get(a) for a in e.inputs]
            t.source = e.source
            if not any([d is not None for d in tangents]):
                t.emit(e if inputs is e.inputs else e.replace(inputs=inputs))
                continue
            primal = _Primal(t, e, inputs)
            try:
                outs, out_dots = e.primitive.jvp(primal, [Tracer(t, a) for a in inputs], tangents, **e.params)
            except (RuleError, ForwardModeError) as error:
                raise (error.at(e.source) if e.primitive.links is None else error) from None
            if not primal.emitted:
                renamed.update(zip(e.outputs, [t.atom(o) for o in outs], strict=True))
            for var, d in zip(e.outputs, out_dots, strict=True):
                if d is not None:
                    dots[var] = d
        out_nonzero = tuple([isinstance(a, Var) and a in dots for a in program.outputs])
        outputs = [read(a) for a in program.outputs]
        outputs += [dots[a] for a, flag in zip(program.outputs, out_nonzero, strict=True) if flag]
        result = t.program(outputs)
    assert not t.captured, "a JVP rule captured a value"
    return checked(result), out_nonzero


class _Primal:
    """Passed to a JVP rule: calling it records the original equation, and gives its results."""

    __slots__ = ("emitted", "equation", "inputs", "trace")

    def __init__(self, trace: Trace, equation: Equation, inputs: tuple[Any, ...]) -> None:
        self.trace = trace
        self.equation = equation
        self.inputs = inputs
        self.emitted = False

    def __call__(self) -> list[Tracer]:
        e = self.equation
        if not self.emitted:
            self.trace.emit(e if self.inputs is e.inputs else e.replace(inputs=self.inputs))
            self.emitted = True
        return [Tracer(self.trace, v) for v in e.outputs]
