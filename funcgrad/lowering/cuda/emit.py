"""The stage from a schedule to the kernels of a GPU: one module, and the launches that run it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from funcgrad.core.ir import Equation, Program, Var
from funcgrad.lowering.buffers import Layout, layout
from funcgrad.lowering.cuda.loops import loop_launches
from funcgrad.lowering.cuda.products import as_loop, product_launches
from funcgrad.lowering.cuda.ptx import gpu_target
from funcgrad.lowering.cuda.threads import Launch
from funcgrad.lowering.cuda.walks import scatter_launches, walk_launches
from funcgrad.lowering.kernels import Kernel, Loop, Product, Scatter, Schedule, Walk
from funcgrad.lowering.schedule import schedule
from funcgrad.lowering.values import Shared


@dataclass(frozen=True, slots=True)
class Step:
    """One launch: a kernel of the module, its buffers, and its threads."""

    name: str
    roots: tuple[Any, ...]
    blocks: int
    threads: int


@dataclass(frozen=True, slots=True)
class Module:
    """The kernels of a Program, and how they are launched, in order.

    Attributes
    ----------
    text
        LLVM text without its header.
    steps
        What is launched.
    inputs, results
        The roots of the Program's inputs and outputs.
    arena
        Where the other buffers lie.
    checks
        The equations that can fail; the status holds 1 + the position of one that does, and the value at fault.
    """

    text: str
    steps: tuple[Step, ...]
    inputs: tuple[Var, ...]
    results: tuple[Var, ...]
    arena: Layout
    checks: tuple[Equation, ...]


class Kernels:
    """The kernels of a module, as they are emitted; equal texts are one kernel."""

    def __init__(self) -> None:
        self.target = gpu_target()
        self.shared = Shared()
        self.checks: list[Equation] = []
        self.texts: list[str] = []
        self.names: dict[str, str] = {}

    def launches(self, kernel: Kernel, s: Schedule) -> list[Launch]:
        """What runs one kernel of a schedule."""
        if isinstance(kernel, Loop):
            return loop_launches(kernel, s.views, self.target, self.shared, self.checks)
        if isinstance(kernel, Walk):
            return walk_launches(kernel, s.views, self.target, self.shared)
        if isinstance(kernel, Scatter):
            return scatter_launches(kernel, s.views, self.target, self.shared)
        if isinstance(kernel, Product):
            loop = as_loop(kernel, s)
            if loop is not None:
                return self.launches(loop, s)
            return product_launches(kernel, self.target, self.shared)
        raise NotImplementedError(type(kernel).__name__)

    def steps(self, s: Schedule) -> list[Step]:
        """The launches of a schedule, in order."""
        steps = []
        for kernel in s.kernels:
            for launch in self.launches(kernel, s):
                roots = tuple([s.shared.get(r, r) for r in launch.roots])
                written = {s.shared.get(r, r) for r in launch.written}
                steps.append(Step(self._name(_as_kernel(launch, roots, written)), roots, launch.blocks, launch.threads))
        return steps

    def _name(self, text: str) -> str:
        name = self.names.get(text)
        if name is None:
            name = self.names[text] = f"k{len(self.names)}"
            self.texts.append(text.replace("@KERNEL", f"@{name}", 1))
        return name


def _as_kernel(launch: Launch, roots: tuple[Any, ...], written: set[Any]) -> str:
    """The text of a function as that of a kernel, which says what it reads only, and what has memory of its own."""
    head, _, body = launch.text.partition("\n")
    parameters = re.findall(r"%p\d+|%status|%scratch", head)
    declared = []
    for name, root in zip(parameters, roots, strict=True):
        alone = roots.count(root) == 1
        attributes = " noalias readonly" if alone and root not in written else " noalias" if alone else ""
        declared.append(f"ptr{attributes} align 16 {name}")
    return f"define ptx_kernel void @KERNEL({', '.join(declared)}) #0 {{\n{body}"


ATTRIBUTES = "attributes #0 = { nounwind }"


def emit(program: Program) -> Module:
    """The kernels of a flat Program."""
    s = schedule(program)
    kernels = Kernels()
    steps = kernels.steps(s)
    places = layout(s, [step.roots for step in steps], {*program.inputs, *s.outputs})
    text = "\n".join([kernels.shared.text(), *kernels.texts, ATTRIBUTES, ""])
    return Module(text, tuple(steps), tuple(program.inputs), tuple(s.outputs), places, tuple(kernels.checks))
