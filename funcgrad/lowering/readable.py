"""Kernels as a reader wants them: one block per kernel, one operation a line, with the user's lines.

loop (3,)  1 reduction
  a = mul x x                              # f.py:3
  b = reduce_sum[axes=(0,)] a
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from funcgrad.core.ir import Atom, Equation, Literal, Program, Var, subprograms
from funcgrad.core.printer import format_literal, format_param, names
from funcgrad.lowering.buffers import buffer_bytes, layout
from funcgrad.lowering.emit import functions_of
from funcgrad.lowering.kernels import Control, Library, Loop, Product, Scatter, Schedule, Walk, Write
from funcgrad.lowering.layout import View, row_major
from funcgrad.lowering.schedule import schedule
from funcgrad.lowering.simplify import simplify
from funcgrad.lowering.stages import is_native, stages, this_target


def format_kernels(program: Program) -> str:
    """The kernels of a Program, in the order in which they run; stage by stage if NumPy does a part of the work."""
    return _by_stage(program, lambda flat: _Formatter(flat, schedule(flat)).text())


def format_buffers(program: Program) -> str:
    """The buffers of a Program under the names that they have in `format_kernels`."""
    return _by_stage(program, _buffers)


def _by_stage(program: Program, form: Callable[[Program], str]) -> str:
    """The text of a Program, or of its stages if it has several."""
    flat = simplify(program)
    if is_native(flat):
        return form(flat)
    blocks = []
    for i, stage in enumerate(stages(flat)):
        if stage.program is not None:
            blocks.append(f"stage {i}: machine code\n{form(stage.program)}")
        else:
            assert stage.equation is not None
            blocks.append(f"stage {i}: {stage.equation.primitive.name}, with NumPy")
    return "\n\n".join(blocks)


def _buffers(flat: Program) -> str:
    formatter = _Formatter(flat, schedule(flat))
    formatter.text()  # gives the names
    return formatter.buffers()


class _Formatter:
    def __init__(self, program: Program, s: Schedule) -> None:
        self.schedule = s
        self.names: dict[Any, str] = {}
        taken = {n for n in program.input_names if n}
        self.fresh: Iterator[str] = (n for n in names() if n not in taken)
        for v, name in zip(program.inputs, program.input_names or ("",) * len(program.inputs), strict=True):
            self.names[v] = name or next(self.fresh)
        self.program = program
        self.made_by = {v: e for e in program.equations for v in e.outputs}

    def name(self, v: Any) -> str:
        """The name of a value or buffer."""
        v = self.schedule.shared.get(v, v)
        if v not in self.names:
            self.names[v] = next(self.fresh)
        return self.names[v]

    def atom(self, a: Atom, inside: set[Any]) -> str:
        """An operand: a constant, a register of this loop, what a loop recorded, or a view of a buffer."""
        if isinstance(a, Literal):
            return format_literal(a)
        if a in inside or a not in self.schedule.views:
            return self.name(a)
        return self.view(self.schedule.views[a])

    def view(self, v: View) -> str:
        """A buffer, with offset and strides where it is not read in C order."""
        root = self.name(v.root)
        if v.offset == 0 and v.strides == row_major(v.shape):
            return root
        return f"{root}[{v.offset}; {','.join(map(str, v.strides))}]"

    def text(self) -> str:
        """All kernels."""
        blocks = [self.kernel(i, k) for i, k in enumerate(self.schedule.kernels)]
        results = ", ".join([self.name(v) for v in self.schedule.outputs])
        return "\n".join([*blocks, f"return {results}"])

    def buffers(self) -> str:
        """A row for every buffer, and the size of the arena."""
        s = self.schedule
        calls = functions_of(s, this_target()).calls
        used: dict[Any, list[int]] = {}
        for k, (_, roots) in enumerate(calls):
            for r in roots:
                used.setdefault(r, []).append(k)
        arena = layout(s, [roots for _, roots in calls], {*self.program.inputs, *s.outputs})
        rows = [["buffer", "type", "bytes", "where", "kernels", "shares its place with"]]
        for r in (*self.program.inputs, *arena.places, *s.outputs):
            place = arena.places.get(r)
            where = f"arena + {place.offset}" if place else "result" if r in s.outputs else "input"
            shared = [o for o, p in arena.places.items() if place and o is not r and p.shares(place)]
            first, last = (used[r][0], used[r][-1]) if r in used else ("", "")
            kernels = f"{first}" if first == last else f"{first}..{last}"
            size = f"{buffer_bytes(s, r):,}"
            rows.append([self.name(r), str(r.aval), size, where, kernels, ", ".join([self.name(o) for o in shared])])
        widths = [max([len(row[i]) for row in rows]) for i in range(6)]
        lines = ["  ".join([f"{c:{'>' if i == 2 else '<'}{widths[i]}}" for i, c in enumerate(row)]) for row in rows]
        return "\n".join([*[line.rstrip() for line in lines], f"arena: {arena.size:,} bytes"])

    def kernel(self, i: int, k: Any) -> str:
        """One kernel."""
        if isinstance(k, Product):
            b, m, depth = k.x.shape
            sizes = f"{f'{b} x ' if b > 1 else ''}({m},{depth}) @ ({depth},{k.y.shape[2]})"
            line = self.made_by[k.out.root].source
            text = f"{self.view(k.out)} = {self.view(k.x)} @ {self.view(k.y)}"
            return f"kernel {i}: product {sizes}\n  {text}{f'   # {line}' if line else ''}"
        if isinstance(k, Library | Control):
            e = k.equation
            left = ", ".join([self.name(v) for v in e.outputs])
            return f"kernel {i}: {e.primitive.name}\n  {left} = {self._right(e, set())}"
        if isinstance(k, Walk):
            rows = [(f"{self.name(e.outputs[0])} = {self._right(e, set())}", str(e.source or "")) for e in k.equations]
            return _block(f"kernel {i}: walk {k.shape} along axis {k.axis}{', reversed' if k.reverse else ''}", rows)
        if isinstance(k, Scatter):
            row = f"{self.view(k.target)} <- {self._right(k.equation, set())}"
            return _block(
                f"kernel {i}: scatter {k.equation.inputs[0].aval.shape}", [(row, str(k.equation.source or ""))]
            )
        assert isinstance(k, Loop)
        inside = {v for e in k.equations for v in e.outputs}
        rows = [(f"{self.name(e.outputs[0])} = {self._right(e, inside)}", str(e.source or "")) for e in k.equations]
        rows += [(f"{self.name(e.outputs[0])} = {self._right(e, inside)}", str(e.source or "")) for e in k.reductions]
        for w in k.writes:
            if not (isinstance(w.value, Var) and w.value is w.target.root):
                rows.append((f"{self._target(w)} <- {self.atom(w.value, inside)}", ""))
        stored = [self.name(w.target.root) for w in k.writes if w.value is w.target.root]
        if stored:
            rows.append((f"store {', '.join(stored)}", ""))
        return _block(f"kernel {i}: loop {k.shape}", rows)

    def _target(self, w: Write) -> str:
        """Where a loop writes: a view, whose offset may be computed."""
        if not w.starts:
            return self.view(w.target)
        offset = " + ".join([f"{self.atom(s.position, set())}*{s.stride}" for s in w.starts])
        return f"{self.name(w.target.root)}[{offset}; {','.join(map(str, w.target.strides))}]"

    def _right(self, e: Equation, inside: set[Any]) -> str:
        hidden = e.primitive.hidden_params
        shown = {k: v for k, v in e.params.items() if not (k in hidden and hidden[k] in (v, None))}
        held = {id(p): p.name for _, p in subprograms(e)}
        params = " ".join([f"{k}={format_param(v, held)}" for k, v in shown.items()])
        name = e.primitive.name + (f"[{params}]" if params else "")
        return " ".join([name, *[self.atom(a, inside) for a in e.inputs]])


def _block(title: str, rows: list[tuple[str, str]]) -> str:
    """A kernel: its operations, each with the user's line where it is another one."""
    width = max([len(r[0]) for r in rows], default=0)
    lines, previous = [title], ""
    for text, line in rows:
        lines.append(f"  {text:<{width}}   # {line}" if line and line != previous else f"  {text}")
        previous = line
    return "\n".join(lines)
