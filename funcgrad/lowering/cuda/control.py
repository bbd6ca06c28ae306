"""Loops and branches whose bodies are straight-line code, on the GPU.

The rows of a loop without a carry (those of a `vmap`) are threads, each with trips of its own. Any other loop runs in
one thread. Large values that a loop changes are copied to where their results are to be by a kernel of many threads.
"""

from __future__ import annotations

from typing import Any

from funcgrad.core.ir import Equation, Literal, Stack, Var
from funcgrad.lowering import kernels
from funcgrad.lowering.cuda.rows import is_threads
from funcgrad.lowering.cuda.threads import BLOCK, Launch, below, flat_thread, note_first, only_if, register, widened
from funcgrad.lowering.kernels import Loop, Schedule, Write
from funcgrad.lowering.layout import contiguous
from funcgrad.lowering.nests import STATUS
from funcgrad.lowering.registers.cells import is_small
from funcgrad.lowering.registers.control import Control
from funcgrad.lowering.registers.kernel import ControlKernel
from funcgrad.lowering.values import Shared, Target, Value


def copies_of(kernel: kernels.Control, s: Schedule) -> list[Loop]:
    """Loops that copy the large carries of a loop to where their results are to be."""
    e = kernel.equation
    if e.primitive.traits.kind != "loop":
        return []
    consts, carry = e.params["consts"], e.params["carry"]
    loops = []
    for j, (a, out) in enumerate(zip(e.inputs[1 + consts :][:carry], e.outputs, strict=False)):
        if not is_small(a.aval) and j not in kernel.kept:
            loops.append(Loop(a.aval.shape, writes=[Write(a, contiguous(out, a.aval.shape))]))
    return loops


def control_launch(
    kernel: kernels.Control, s: Schedule, target: Target, shared: Shared, checks: list[Equation]
) -> Launch:
    """The kernel of a loop or branch whose large carries are where their results are to be."""
    return _CudaControl(kernel, s.views, target, shared, checks).launch()


class _Straight(Control):
    """Straight-line code without what needs the host."""

    def _watch(self, k: int) -> None:
        """A kernel cannot be interrupted."""

    def leave(self, code: int, value: Value | None = None) -> None:
        """Leave the kernel with a code; that of the first thread that does stays."""
        note_first(self.b, "%status", code, value)
        self.b.lines.append("  br label %exit")


class _CudaControl(ControlKernel):
    def launch(self) -> Launch:
        """The kernel."""
        e = self.e
        self.emitter = _Straight(self.b, self.emitter.checks)
        self.kept = frozenset(range(len(e.outputs)))
        rows = rows_of(e)
        if rows:
            self._rows(rows)
        else:
            only_if(self.b, below(self.b, register(self.b, "tid.x"), 1), self.one_by_one)
        return self._done(-(-rows // BLOCK) if rows else 1, BLOCK if rows else 32)

    def _lanes(self, target: Target) -> int:
        return 1

    def _rows(self, rows: int) -> None:
        """One trip a thread."""
        e, b, emitter = self.e, self.b, self.emitter
        p = e.params
        body, consts = p["body"], p["consts"]
        flat = flat_thread(b, rows)

        def run() -> None:
            i = widened(b, flat)
            cells = [self.operand(a) for a in e.inputs]
            xs = [emitter._rows(x, a) for x, a in zip(cells[1 + consts :], e.inputs[1 + consts :], strict=True)]
            places = [self.whole(v) for v in e.outputs]
            fixed = [emitter._settled(c, v.aval) for c, v in zip(cells[1:], body.inputs[1 : 1 + consts], strict=False)]
            row = [emitter._row(x, i, v.aval) for x, v in zip(xs, body.inputs[1 + consts :], strict=True)]
            targets = [place.row(b, i, elem) for place, elem in zip(places, body.out_avals, strict=True)]
            env = dict(zip(body.inputs, [[i], *fixed, *row], strict=True))
            outs = self._loop_of_row(env, targets) if is_threads(e) else emitter.run(body, [*env.values()])
            for out, target in zip(outs, targets, strict=True):
                if out is not target:
                    emitter._store_row(target, out)

        only_if(b, below(b, flat, rows), run)

    def _loop_of_row(self, env: dict[Any, Any], targets: list[Any]) -> list[Any]:
        """The loop that a row ends with; what its trips hand out goes to its place as it is computed."""
        emitter, body = self.emitter, self.e.params["body"]
        *before, inner = body.equations
        emitter.compute(before, env)
        cells = [emitter.constants(a) if isinstance(a, Literal) else env[a] for a in inner.inputs]
        places = dict(zip(body.outputs, targets, strict=True))
        results = emitter.loop(inner, cells, [places.get(v) for v in inner.outputs])
        env.update(zip(inner.outputs, results, strict=True))
        return [emitter.read(env, a) for a in body.outputs]

    def _done(self, blocks: int, threads: int) -> Launch:
        emitter = self.emitter
        roots = dict(self.roots)
        if emitter.failed:
            roots[STATUS] = "%status"
        own: list[str] = []  # memory of the thread
        if emitter.scratch:
            own.append(f"  %scratch = alloca [{emitter.scratch} x i8], align 16")
        if any([isinstance(v.aval, Stack) for v in self.e.outputs]):
            roots |= emitter.growing  # which other kernels read
        else:
            for root, name in emitter.growing.items():
                own += [f"  {name} = alloca [{root.aval.size} x i64], align 16"]
                own.append(f"  store [{root.aval.size} x i64] zeroinitializer, ptr {name}")
        parameters = ", ".join([f"ptr {p}" for p in roots.values()])
        lines = "\n".join([*own, *self.b.lines, "  br label %exit", "exit:", "  ret void"])
        text = f"define internal void @KERNEL({parameters}) #0 {{\nentry:\n{lines}\n}}\n"
        written = {*roots} - {self.views[a].root for a in self.e.inputs if isinstance(a, Var)} | {*self.e.outputs}
        return Launch(text, tuple(roots), frozenset(written), blocks, threads)


def rows_of(e: Equation) -> int:
    """How many rows of a loop are threads; 0 if it is not of that kind."""
    p = e.params
    if e.primitive.traits.kind != "loop" or p["carry"] or p["test"] or (p["length"] or 0) < 2:
        return 0
    if not isinstance(e.inputs[0], Literal) or any([isinstance(a.aval, Stack) for a in (*e.inputs, *e.outputs)]):
        return 0
    return int(p["length"])
