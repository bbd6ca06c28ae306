"""What becomes machine code: a whole Program, or the parts of it that can, between operations that NumPy does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from funcgrad.base.errors import FuncgradError, UnsupportedError
from funcgrad.core.ir import Equation, Literal, Program, Var, can_raise
from funcgrad.lowering.emit import Module, emit, native_form
from funcgrad.lowering.forms import obstacles
from funcgrad.lowering.machine import assembly, header, host
from funcgrad.lowering.simplify import simplify
from funcgrad.lowering.values import Target


def this_target() -> Target:
    """What emitted text may rely on here."""
    h = host()
    return Target(h.vector_bytes, h.fma, h.has("sse4.1") or h.vector_bytes > 16, h.triple)


def module_text(program: Program) -> str:
    """The LLVM text of a whole Program, for this processor."""
    return header() + _module(program).text


def module_assembly(program: Program) -> str:
    """The machine code of a whole Program, for this processor, as assembly."""
    module = _module(program)
    return assembly(header() + module.text, module.level)


def _module(program: Program) -> Module:
    flat = simplify(program)
    for name, source in obstacles(flat, native_form):
        raise UnsupportedError(
            f"{name} has no native form yet: this Program runs in stages, some of them with NumPy", source=source
        )
    return emit(flat, this_target())


@dataclass(slots=True)
class Stage:
    """A part of a flat Program: a Program for native code, or one equation for NumPy.

    `native`, which takes the inputs and gives the outputs, is filled in when the stage is compiled.
    """

    inputs: tuple[Var, ...]
    outputs: tuple[Var, ...]
    program: Program | None
    equation: Equation | None
    native: Callable[[Sequence[Any]], list[Any]] | None = None

    def run(self, env: dict[Any, Any]) -> None:
        """Compute the outputs from `env` into `env`."""
        if self.native is not None:
            results: Any = self.native([env[v] for v in self.inputs])
        else:
            e = self.equation
            assert e is not None
            try:
                results = (e.primitive.interpret or e.primitive.evaluate)(*self.operands(env), **e.params)
            except FuncgradError as error:
                raise error.at(e.source) from None
        env.update(zip(self.outputs, results, strict=True))

    def operands(self, env: dict[Any, Any]) -> list[Any]:
        """The values that its equation is evaluated on."""
        assert self.equation is not None
        return [a.array if isinstance(a, Literal) else env[a] for a in self.equation.inputs]


def is_native(program: Program) -> bool:
    """Whether a flat Program is one native module as it stands."""
    return not obstacles(program, native_form)


def stages(program: Program) -> list[Stage]:
    """Cut a flat Program into stages; native equations join the earliest native stage that they can.

    Effects stay in order, among themselves and with what can raise.
    """
    level: dict[Var, int] = dict.fromkeys(program.inputs, 0)  # even: native, odd: NumPy
    groups: dict[int, list[Equation]] = {}
    effects = raising = 0
    for e in program.equations:
        least = max([level[a] for a in e.inputs if isinstance(a, Var)], default=0)
        effect = bool(e.primitive.effects_of(e.params))
        raises = can_raise(e)
        if effect or raises:
            least = max(least, effects, raising if effect else 0)
        at = least if (least % 2 == 0) == native_form(e) else least + 1
        effects, raising = max(effects, at) if effect else effects, max(raising, at) if raises else raising
        groups.setdefault(at, []).append(e)
        for v in e.outputs:
            level[v] = at
    needed: set[Any] = {a for a in program.outputs if isinstance(a, Var)}
    out: list[Stage] = []
    for at in sorted(groups, reverse=True):
        equations = groups[at]
        made = {v for e in equations for v in e.outputs}
        if at % 2:
            out += [Stage((), e.outputs, None, e) for e in reversed(equations)]
            needed.update([a for e in equations for a in e.inputs if isinstance(a, Var)])
            continue
        used = dict.fromkeys([a for e in equations for a in e.inputs if isinstance(a, Var) and a not in made])
        outputs = tuple([v for e in equations for v in e.outputs if v in needed])
        part = Program(tuple(used), tuple(equations), outputs, program.name)
        out.append(Stage(tuple(used), outputs, part, None))
        needed.update(used)
    out.reverse()
    return out
