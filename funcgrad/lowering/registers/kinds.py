"""What straight-line code can hold: which equations, of which sizes."""

from __future__ import annotations

from math import prod
from typing import Any

from funcgrad.core.ir import Atom, Equation, Literal, Program, Stack, Var, subprograms
from funcgrad.lowering.registers.cells import is_small
from funcgrad.ops.scalar import ELEMENTS

STACKS = ("stack_length", "stack_empty", "stack_element")
"""Kinds of operations on stacks."""
MOST = 6000  # operations on registers in one function: code generation is superlinear in its length


def kind_of(e: Equation) -> str:
    """How an equation is emitted."""
    kind = e.primitive.traits.kind
    return "move" if kind in ("index", "view") else kind


def fits(e: Equation) -> bool:
    """Whether a loop or branch of a flat Program can be straight-line code; its operands are in memory.

    So can other operations on stacks.
    """

    def find() -> bool:
        body = _Body()
        owned = set(e.inputs)  # large carries, constants too, are copied to where their results are to be
        return body.equation(e, owned, set()) and body.cost <= MOST

    for _, body in subprograms(e):
        return body.remember(("fits", e.inputs, e.outputs), find)
    return find()


def _native(a: Atom) -> bool:
    return a.aval.dtype in ELEMENTS


class _Body:
    """Checks the equations of a body; adds up what they cost.

    A large array may be changed in place if it is `owned`, a carry of the loop around, and nothing reads it later.
    """

    def __init__(self) -> None:
        self.cost = 0

    def program(self, p: Program, owned: set[Any]) -> dict[Any, Any] | None:
        """Who owns each large value (by the input it began as), or None if the body does not fit."""
        last = {a: k for k, e in enumerate(p.equations) for a in e.inputs if isinstance(a, Var)}
        last |= {a: len(p.equations) for a in p.outputs if isinstance(a, Var)}
        owner: dict[Any, Any] = {v: v for v in p.inputs if v in owned}
        for k, e in enumerate(p.equations):
            dying = {a for a in e.inputs if a in owner and last[a] == k}
            if not self.equation(e, dying, owner):
                return None
            for v in e.outputs:
                if not is_small(v.aval):
                    found = _successor(e, v)
                    if found in owner:
                        owner[v] = owner[found]
        return owner

    def equation(self, e: Equation, dying: set[Any], owner: Any) -> bool:
        """Whether one equation fits; `dying` are the large operands that it may change in place."""
        if not all([_native(a) for a in (*e.inputs, *e.outputs)]):
            return False
        kind = kind_of(e)
        self.cost += sum([max(v.aval.size, 1) for v in e.outputs if is_small(v.aval)])
        small = lambda atoms: all([is_small(a.aval) for a in atoms])
        if kind == "elementwise":
            return e.primitive.emit is not None and small((*e.inputs, *e.outputs))
        if kind == "check":
            return e.primitive.check is not None and small(e.inputs)
        if kind in ("move", "iota"):
            return small(e.outputs) and all([a.aval.size < 1 << 20 for a in e.inputs])
        if kind == "reduce":
            return e.primitive.reduction is not None and small(e.inputs)
        if kind == "dot":
            self.cost += prod(e.inputs[0].aval.shape) * e.inputs[1].aval.size
            return small((*e.inputs, *e.outputs)) and e.outputs[0].aval.dtype.kind != "b"
        if kind in ("window", "gather"):
            return small((*e.inputs[1:], *e.outputs)) and e.inputs[0].aval.size > 0
        if kind in ("update", "scatter"):
            x = e.inputs[0]
            return x.aval.size > 0 and small(e.inputs[1:]) and (small((x,)) or x in dying)
        if kind == "foreign":
            return small((*e.inputs, *e.outputs))
        if kind in STACKS:
            return True
        if kind == "loop":
            return self._loop(e, dying)
        if kind == "branch":
            plain = small(e.outputs) and all([not isinstance(a, Literal) or small((a,)) for a in e.inputs])
            return plain and all([self.program(b, set()) is not None for b in e.params["branches"]])
        return False

    def _loop(self, e: Equation, dying: set[Any]) -> bool:
        body, consts, carry = e.params["body"], e.params["consts"], e.params["carry"]
        outer = e.inputs[1 + consts : 1 + consts + carry]
        inner = body.inputs[1 + consts : 1 + consts + carry]
        large = [not is_small(v.aval) for v in inner]
        backwards = e.params["test"] and e.params["reverse"]  # the number of its rows is not known before
        if backwards or any([not is_small(a) for a in body.out_avals[carry:]]):
            return False
        if any([f and a not in dying for a, f in zip(outer, large, strict=True)]):
            return False
        if any([isinstance(a, Literal) and not is_small(a.aval) for a in e.inputs[1 : 1 + consts]]):
            return False
        owner = self.program(body, {v for v, f in zip(inner, large, strict=True) if f})
        if owner is None:
            return False
        return all([owner.get(a) is v for a, v, f in zip(body.outputs, inner, large, strict=False) if f])


def _successor(e: Equation, v: Var) -> Any:
    """The operand whose memory a large result takes over, if there is one."""
    if kind_of(e) in ("update", "scatter"):
        return e.inputs[0]
    if kind_of(e) == "loop":
        j = e.outputs.index(v)
        return e.inputs[1 + e.params["consts"] + j] if j < e.params["carry"] else None
    return None


def side_by_side(e: Equation) -> bool:
    """Whether the rows of a loop over rows can run in the lanes of vectors: nothing in them touches memory."""
    p = e.params
    if p["carry"] or p["length"] is None or p["length"] < 2 or p["test"]:
        return False
    return all([not isinstance(a.aval, Stack) for a in (*e.inputs, *e.outputs)]) and _registers_only(p["body"])


def _registers_only(program: Program) -> bool:
    for e in program.equations:
        kind = kind_of(e)
        if kind not in ("elementwise", "move", "iota", "reduce", "dot", "loop", "branch"):
            return False
        if any([not is_small(a.aval) or isinstance(a.aval, Stack) for a in (*e.inputs, *e.outputs)]):
            return False
        if kind == "loop":
            body, carry = e.params["body"], e.params["carry"]
            if len(body.outputs) > carry or len(body.inputs) > 1 + e.params["consts"] + carry:
                return False
            if not _registers_only(body):
                return False
        if kind == "branch" and not all([_registers_only(b) for b in e.params["branches"]]):
            return False
    return True
