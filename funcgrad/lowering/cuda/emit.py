"""The stage from a schedule to the kernels of a GPU: one module, and the plan by which the host runs it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from funcgrad.core.ir import Equation, Program, Stack, Var, make_aval, subprograms
from funcgrad.lowering.buffers import layout
from funcgrad.lowering.cuda.bodies import host_steps
from funcgrad.lowering.cuda.control import control_launch, copies_of
from funcgrad.lowering.cuda.loops import loop_launches
from funcgrad.lowering.cuda.plan import ALIGNED, Fill, Fresh, Place, Run, Step
from funcgrad.lowering.cuda.products import as_loop, product_launches
from funcgrad.lowering.cuda.ptx import FEW, gpu_target
from funcgrad.lowering.cuda.rows import is_threads, spread
from funcgrad.lowering.cuda.solves import solve_launches
from funcgrad.lowering.cuda.sorts import sort_launches
from funcgrad.lowering.cuda.threads import Launch
from funcgrad.lowering.cuda.walks import scatter_launches, walk_launches
from funcgrad.lowering.donation import Touches, in_place
from funcgrad.lowering.forms import native_type
from funcgrad.lowering.kernels import Control, Kernel, Library, Loop, Product, Scatter, Schedule, Walk
from funcgrad.lowering.nests import STATUS
from funcgrad.lowering.registers.kernel import BYTE
from funcgrad.lowering.registers.kinds import fits
from funcgrad.lowering.registers.stacks import Growing, depth_of
from funcgrad.lowering.schedule import schedule
from funcgrad.lowering.target import Kernels
from funcgrad.lowering.values import Shared

ALIGNMENT = 256  # bytes: of every buffer of its own


@dataclass(frozen=True, slots=True)
class Module:
    """The kernels of a Program, and how they are run.

    Attributes
    ----------
    text
        LLVM text without its header.
    plan
        What is done, in order.
    inputs, results
        The roots of the Program's inputs and outputs.
    buffers
        The offset of each other buffer in the memory of a call, and the size of that.
    fixed, constants
        The offset of buffers that hold the same in every call, and what all of these hold.
    heap
        Whether kernels take memory while they run, from a heap that the kernel ``set_heap`` is told of.
    checks
        The equations that can fail; the status holds 1 + the position of one that does, and the value at fault.
    given
        For each result the number of the input whose memory may be its own, or -1.
    """

    text: str
    plan: tuple[Step, ...]
    inputs: tuple[Var, ...]
    results: tuple[Var, ...]
    buffers: dict[Any, int]
    size: int
    fixed: dict[Any, int]
    constants: bytes
    heap: bool
    checks: tuple[Equation, ...]
    given: tuple[int, ...]


class CudaKernels(Kernels[list[Launch]]):
    """The launches of a module, and the plan that runs them."""

    def __init__(self) -> None:
        super().__init__(gpu_target(), Shared())
        self.buffers: dict[Any, int] = {}
        self.size = 0
        self.fixed: dict[bytes, tuple[Any, int]] = {}
        self.growing: dict[Any, Place] = {}
        self.alignment: Callable[[Any], int] = lambda root: ALIGNED  # bytes that a buffer begins at multiples of
        self.donated: Mapping[Var, Var] = {}
        self.given: dict[Var, Var] = {}  # results, and the donated arguments in which they may lie

    # -- kernels

    @classmethod
    def form(cls, e: Equation) -> bool:
        """Also sorts and linear systems; but functions of the user's run on the processor, wherever they are called."""
        if e.primitive.traits.kind in ("sort", "solve"):
            return all([native_type(a.aval) for a in (*e.inputs, *e.outputs)])
        return super().form(e) and not _calls_out(e)

    def loop(self, kernel: Loop, s: Schedule) -> list[Launch]:
        """One index a thread; a reduction may take two launches."""
        return loop_launches(kernel, s.views, self.target, self.shared, self.checks, self.alignment, self.donated)

    def walk(self, kernel: Walk, s: Schedule) -> list[Launch]:
        """One line a thread, or a block."""
        return walk_launches(kernel, s.views, self.target, self.shared)

    def scatter(self, kernel: Scatter, s: Schedule) -> list[Launch]:
        """One update a thread."""
        return scatter_launches(kernel, s.views, self.target, self.shared)

    def product(self, kernel: Product, s: Schedule) -> list[Launch]:
        """One tile a block, or a sum where the result is a row or column."""
        loop = as_loop(kernel, s)
        return product_launches(kernel, self.target, self.shared) if loop is None else self.loop(loop, s)

    def control(self, kernel: Control, s: Schedule) -> list[Launch]:
        """Straight-line code in threads, after copies; nothing where the host goes round (`plan`)."""
        if _by_host(kernel):
            return []
        copies = [launch for loop in copies_of(kernel, s) for launch in self.loop(loop, s)]
        return [*copies, control_launch(kernel, s, self.target, self.shared, self.checks)]

    def whole(self, kernel: Library, s: Schedule) -> list[Launch]:
        """A sort, a launch for the runs and for each time that they are merged; or a matrix a block."""
        if kernel.equation.primitive.traits.kind == "sort":
            return sort_launches(kernel, s, self.target, self.shared)
        return solve_launches(kernel, lambda loop: self.loop(loop, s), self.target, self.shared, self.checks)

    # -- plans

    def described(self, root: Any) -> Place:
        """Where the descriptions of growing buffers are."""
        if root not in self.growing:
            self.growing[root] = self.buffer(root.aval.size * 8)
        return self.growing[root]

    def buffer(self, size: int) -> Place:
        """Memory of its own in that of the call."""
        root = Var(make_aval((max(size, 1),), BYTE))
        self.buffers[root] = self.size
        self.size += _rounded(size)
        return Place(root)

    def constant(self, data: bytes) -> Place:
        """Memory that holds these bytes, in every call."""
        if data not in self.fixed:
            end = sum([_rounded(len(other)) for other in self.fixed])
            self.fixed[data] = Var(make_aval((max(len(data), 1),), BYTE)), end
        return Place(self.fixed[data][0])

    def plan(
        self, s: Schedule, known: Mapping[Any, Place], kept: bool = False, donated: Mapping[Var, Var] | None = None
    ) -> list[Step]:
        """The steps of a schedule, some of whose buffers have a place already.

        Where stacks are `kept`, kernels that make them find other buffers to grow each time that they run. Of the
        results that `donated` pairs with arguments, those that can be written there are noted.
        """

        def shared(root: Any) -> Any:
            return s.shared.get(root, root)

        def alignment(root: Any) -> int:
            place = known.get(shared(root))
            return ALIGNED if place is None else place.alignment

        self.alignment, self.donated = alignment, donated or {}
        items = [self.code(kernel, s) for kernel in s.kernels]

        touched = [[shared(r) for launch in item for r in launch.roots] for item in items]
        for kernel, roots in zip(s.kernels, touched, strict=True):
            if _by_host(kernel):
                e = kernel.equation
                roots += [shared(s.views[a].root) for a in e.inputs if isinstance(a, Var)]
                roots += [shared(v) for v in e.outputs]
        touches = [Touches((*roots,), isinstance(k, Loop)) for k, roots in zip(s.kernels, touched, strict=True)]
        self.given |= {r: a for r, a in (donated or {}).items() if in_place(s, touches, r, a)}
        growing = {r for roots in touched for r in roots if r is not STATUS and isinstance(r.aval, Growing)}
        places = layout(s, touched, {*known, STATUS, *growing})
        frame = self.buffer(places.size) if places.places else None

        def at(root: Any) -> Place:
            root = shared(root)
            if root in known:
                return known[root]
            if root is STATUS:
                return Place(STATUS)
            if isinstance(root.aval, Growing):
                return Place(root) if kept else self.described(root)
            assert frame is not None
            return frame.after(places.places[root].offset)

        steps: list[Step] = []
        for kernel, item in zip(s.kernels, items, strict=True):
            if _by_host(kernel):
                steps += host_steps(self, kernel, s, at, kept)
            for launch in item:
                roots, written = [shared(r) for r in launch.roots], {shared(r) for r in launch.written}
                lies = [self.given.get(r, r) for r in roots]
                begin = [alignment(r) for r in roots]
                name = self.named(_as_kernel(launch, lies, {self.given.get(r, r) for r in written}, begin))
                if kept:
                    steps += [Fresh(r, r.aval.size * 8) for r in roots if r in growing]
                steps.append(Run(name, tuple([at(r) for r in roots]), launch.blocks, launch.threads, kernel))
        return steps


def _rounded(size: int) -> int:
    """Bytes that a buffer of its own takes."""
    return -(-max(size, 1) // ALIGNMENT) * ALIGNMENT


def _calls_out(e: Equation) -> bool:
    """Whether a function of the user's is called, somewhere inside."""
    inside = [q for _, body in subprograms(e) for q in body.equations]
    return e.primitive.traits.kind == "foreign" or any([_calls_out(q) for q in inside])


def _by_host(kernel: Kernel) -> TypeGuard[Control]:
    """Whether the host goes round: a loop or branch whose bodies are kernels."""
    return isinstance(kernel, Control) and not fits(kernel.equation) and not is_threads(kernel.equation)


def _as_kernel(launch: Launch, roots: list[Any], written: set[Any], begin: list[int]) -> str:
    """The text of a function as that of a kernel, which says what it reads only, and what has memory of its own.

    Buffers `begin` at multiples of so many bytes.
    """
    head, _, body = launch.text.partition("\n")
    parameters = re.findall(r"ptr (%[\w.]+)", head)
    declared = []
    for name, root, aligned in zip(parameters, roots, begin, strict=True):
        alone = roots.count(root) == 1
        attributes = " noalias readonly" if alone and root not in written else " noalias" if alone else ""
        declared.append(f"ptr{attributes} align {aligned} {name}")
    return f"define ptx_kernel void @KERNEL({', '.join(declared)}) #{int(launch.few)} {{\n{body}"


REALLOC = "declare ptr @realloc(ptr, i64)"
HEAP = """@heap = internal addrspace(1) global [2 x i64] zeroinitializer, align 16

define ptx_kernel void @set_heap(i64 %base, i64 %end) #0 {
  store i64 %base, ptr addrspace(1) @heap
  %ep = getelementptr i64, ptr addrspace(1) @heap, i64 1
  store i64 %end, ptr addrspace(1) %ep
  ret void
}

define internal ptr @realloc(ptr %old, i64 %size) #0 {
entry:
  %more = add i64 %size, 31
  %taken = and i64 %more, -16
  %at = atomicrmw add ptr addrspace(1) @heap, i64 %taken monotonic
  %ep = getelementptr i64, ptr addrspace(1) @heap, i64 1
  %end = load i64, ptr addrspace(1) %ep
  %after = add i64 %at, %taken
  %full = icmp ugt i64 %after, %end
  br i1 %full, label %none, label %some
none:
  ret ptr null
some:
  %head = inttoptr i64 %at to ptr
  store i64 %size, ptr %head
  %new = getelementptr i8, ptr %head, i64 16
  %first = icmp eq ptr %old, null
  br i1 %first, label %done, label %before
before:
  %oldhead = getelementptr i8, ptr %old, i64 -16
  %length = load i64, ptr %oldhead
  %longer = add i64 %length, 7
  %words = lshr i64 %longer, 3
  br label %copy
copy:
  %k = phi i64 [ 0, %before ], [ %next, %copy ]
  %from = getelementptr i64, ptr %old, i64 %k
  %x = load i64, ptr %from
  %to = getelementptr i64, ptr %new, i64 %k
  store i64 %x, ptr %to
  %next = add i64 %k, 1
  %further = icmp ult i64 %next, %words
  br i1 %further, label %copy, label %done
done:
  ret ptr %new
}
"""
"""Memory that only grows until the call ends: a size, then the bytes, at least one. What does not fit is null, and the
host begins again with more."""

ATTRIBUTES = f"""attributes #0 = {{ nounwind }}
attributes #1 = {{ nounwind "nvvm.maxnreg"="{FEW}" }}"""


def _without_recursion(text: str, depth: int) -> str:
    """`copy_stack`, which calls itself for each level of stacks, as that many functions: a GPU has little stack."""
    levels = [text.replace("@copy_stack(", f"@copy_stack{k}(") for k in range(depth)]
    for k in range(1, depth):
        levels[k] = levels[k].replace(f"call i1 @copy_stack{k}(", f"call i1 @copy_stack{k - 1}(")
    levels[-1] = levels[-1].replace(f"@copy_stack{depth - 1}(ptr %from", "@copy_stack(ptr %from")
    call = next(line for line in levels[0].splitlines() if "call i1 @copy_stack" in line)
    levels[0] = levels[0].replace(call, f"{call.partition('=')[0]}= icmp ne i64 %depth, %depth")  # never: depth is 1
    return "\n".join(levels)


def _depth(program: Program) -> int:
    """How many levels of stacks there are."""
    atoms = [a for e in program.equations for a in (*e.inputs, *e.outputs)]
    own = [depth_of(a.aval) for a in atoms if isinstance(a.aval, Stack)]
    return max([1, *own, *[_depth(body) for e in program.equations for _, body in subprograms(e)]])


def emit(program: Program, donated: Sequence[int] = ()) -> Module:
    """The kernels of a flat Program; for each output `donated` has the input whose memory it may be given, or -1.

    Nothing is written there where a call may fail, or begin again.
    """
    program = spread(program)
    s = schedule(program)
    kernels = CudaKernels()
    pairs = {r: program.inputs[i] for r, i in zip(s.outputs, donated, strict=False) if i >= 0}
    plan = kernels.plan(s, {v: Place(v) for v in (*program.inputs, *s.outputs)}, donated=pairs)
    copies = kernels.shared.functions.get("copy_stack")
    if copies is not None:
        copies.text = _without_recursion(copies.text, _depth(program))
    heap = kernels.shared.declares.pop(REALLOC, REALLOC) is None
    text = "\n".join([*([HEAP] if heap else []), kernels.shared.text(), *kernels.texts, ATTRIBUTES, ""])
    empty = [Fill(place, bytes(8), root.aval.size) for root, place in kernels.growing.items()]
    return Module(
        text,
        (*empty, *plan),
        tuple(program.inputs),
        tuple(s.outputs),
        kernels.buffers,
        kernels.size,
        dict(kernels.fixed.values()),
        b"".join([data.ljust(_rounded(len(data)), b"\0") for data in kernels.fixed]),
        heap,
        tuple(kernels.checks),
        tuple(
            [-1 if heap or kernels.checks or r not in kernels.given else donated[k] for k, r in enumerate(s.outputs)]
        ),
    )
