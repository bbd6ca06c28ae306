"""The stage from a schedule to LLVM text: one module, a function per kernel, a driver that calls them in order.

Kernels whose text is equal are one function, called with other buffers. Buffers that are neither inputs nor results
lie in an arena, at offsets that are reused when a value is no longer needed. The driver is

    i64 @program(ptr args)        args: arena, status, then the inputs, then the results

and returns 0, or the number of the check that failed. `native_form` says which equations can be emitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from funcgrad.core.ir import Atom, Equation, Program, Stack, Var
from funcgrad.lowering import blas
from funcgrad.lowering.bodies import BodyKernels, fits_in_kernels
from funcgrad.lowering.builder import Shared, Target
from funcgrad.lowering.layout import VIEWS
from funcgrad.lowering.loops import STATUS, KernelText, loop_text
from funcgrad.lowering.reductions import REDUCTIONS
from funcgrad.lowering.registers.control import BUFFER
from funcgrad.lowering.registers.kernel import control_text
from funcgrad.lowering.registers.kinds import fits
from funcgrad.lowering.schedule import Control, Kernel, Loop, Product, Schedule, schedule
from funcgrad.ops.scalar import ELEMENTS

ALIGNMENT = 64
GROWING_BYTES = 32  # of the description of a growing buffer


@dataclass(frozen=True, slots=True)
class Module:
    """Emitted code.

    Attributes
    ----------
    text
        LLVM text without its header.
    arena
        Bytes of scratch memory that a call needs, aligned to 64.
    imports
        External functions by name (BLAS).
    level
        Of the code generator.
    checks
        The equations that can fail: the driver returns 1 + the position of the first that does, and leaves the value
        at fault in the status.
    """

    text: str
    arena: int
    imports: tuple[str, ...]
    level: int
    checks: tuple[Equation, ...]


def native_type(atom: Atom) -> bool:
    """Whether native code can hold values of this type."""
    return atom.aval.dtype.name in ELEMENTS and not isinstance(atom.aval, Stack)


def native_form(e: Equation) -> bool:
    """Whether an equation of a flat Program can be emitted."""
    kind, name = e.primitive.traits.kind, e.primitive.name
    if kind in ("loop", "branch"):
        return all([a.aval.dtype.name in ELEMENTS for a in (*e.inputs, *e.outputs)]) and (
            fits(e) or fits_in_kernels(e, native_form)
        )
    if not all([native_type(a) for a in (*e.inputs, *e.outputs)]):
        return False
    if kind == "elementwise":
        return e.primitive.emit is not None and (e.primitive.name != "pow" or e.outputs[0].aval.dtype.kind == "f")
    if kind == "reduce":
        return name in REDUCTIONS and isinstance(e.inputs[0], Var)
    if kind == "index":
        return name in VIEWS or name in ("pad", "concatenate", "iota")
    if kind == "check":
        return e.primitive.check is not None and isinstance(e.inputs[0], Var)
    if kind == "gather":
        x, index = e.inputs[:2]
        return isinstance(x, Var) and x.aval.size > 0 and index.aval.ndim > 0
    if kind == "dot" and e.params["contract"] == ((), ()) == e.params["batch"]:
        return True
    if kind != "dot" or e.outputs[0].aval.dtype.kind != "f":
        return False
    return all([a.aval.size < 2**31 for a in (*e.inputs, *e.outputs)])  # BLAS counts in 32 bits


def emit(program: Program, target: Target) -> Module:
    """The LLVM text of a flat Program, all of whose equations have a native form."""
    s = schedule(program)
    functions = Functions(target)
    calls = functions.calls(s)
    slots = {v: i + 2 for i, v in enumerate((*program.inputs, *s.outputs))}
    growing = list(dict.fromkeys([r for _, roots in calls for r in roots if r is not STATUS and r.aval is BUFFER]))
    offsets, arena = arrange(s, calls, {*slots, *growing}, len(growing) * GROWING_BYTES)
    offsets |= {r: i * GROWING_BYTES for i, r in enumerate(growing)}
    declares, imports = functions.imports(bool(growing))
    text = "\n".join(
        [
            *declares,
            functions.shared.text(),
            *functions.texts,
            _driver(calls, slots, offsets, len(growing), "interrupt" in imports),
            "attributes #0 = { noinline nounwind }",
            "",
        ]
    )
    return Module(text, arena, imports, 1 if functions.loops else 0, tuple(functions.checks))


class Functions:
    """The kernels of a module as functions; equal texts are one function."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.shared = Shared()
        self.checks: list[Equation] = []
        self.texts: list[str] = []
        self.names: dict[str, str] = {}
        self.products: set[str] = set()
        self.loops = False

    def calls(self, s: Schedule) -> list[Call]:
        """The calls of a schedule in order: names, and the roots whose addresses are the arguments."""
        found = []
        for kernel in s.kernels:
            k = self._text(kernel, s)
            self.loops |= k.loops
            name = self.names.get(k.text)
            if name is None:
                name = self.names[k.text] = f"k{len(self.names)}"
                self.texts.append(k.text.replace("@KERNEL", f"@{name}", 1))
            found.append((name, k.roots))
        return found

    def _text(self, kernel: Kernel, s: Schedule) -> KernelText:
        if isinstance(kernel, Loop):
            return loop_text(kernel, s.views, self.target, self.shared, self.checks)
        if isinstance(kernel, Control):
            e = kernel.equation
            if fits(e):
                return control_text(e, s.views, s.stacks, self.target, self.shared, self.checks)
            return BodyKernels(e, s.views, s.stacks, self.shared, self.calls, arrange).run()
        assert isinstance(kernel, Product)
        self.products.add(blas.routine(kernel))
        return KernelText(blas.product_text(kernel), (kernel.x.root, kernel.y.root, kernel.out.root), True)

    def imports(self, growing: bool) -> tuple[list[str], tuple[str, ...]]:
        """Declarations and names of the functions that the module takes from outside."""
        products = sorted(self.products)
        declares = [f"declare void @{name}({', '.join(['ptr'] * blas.ARGUMENTS[name])})" for name in products]
        declares += ["declare void @free(ptr)"] if growing else []
        copies = ["memcpy"] if any(["llvm.memcpy" in d for d in self.shared.declares]) else []
        watched = ["interrupt"] if any(["@interrupt" in d for d in self.shared.declares]) else []
        return declares, (*products, *copies, *watched, *(["free", "realloc"] if growing else []))


Call = tuple[str, tuple[Any, ...]]
PART = 64  # calls of one function of the driver: code generation is superlinear in the length of a function


def _driver(calls: list[Call], slots: dict[Any, int], offsets: dict[Any, int], growing: int, watched: bool) -> str:
    """``@program``, and the parts that it calls in turn."""
    parts = [calls[i : i + PART] for i in range(0, len(calls), PART)]
    texts = [_part(n, part, slots, offsets) for n, part in enumerate(parts)]
    name = "run" if growing or watched else "program"
    lines = [f"define i64 @{name}(ptr %args) #0 {{", "entry:", "  %arena = load ptr, ptr %args"]
    lines += ["  %as = getelementptr ptr, ptr %args, i64 1", "  %status = load ptr, ptr %as"]
    for n, part in enumerate(parts):
        lines.append(f"  %s{n} = call i64 @part{n}(ptr %args, ptr %arena, ptr %status)")
        if any([STATUS in roots for _, roots in part]):
            lines.append(f"  %bad{n} = icmp ne i64 %s{n}, 0")
            lines += [f"  br i1 %bad{n}, label %fail{n}, label %go{n}", f"fail{n}:", f"  ret i64 %s{n}", f"go{n}:"]
    lines += ["  ret i64 0", "}"]
    return "\n".join([*texts, *lines, *(_around(growing, watched) if name == "run" else []), ""])


def _around(growing: int, watched: bool) -> list[str]:
    """``@program`` around ``@run``: growing buffers are empty at the start and freed at the end, Ctrl-C is forgotten."""
    words = growing * GROWING_BYTES // 8
    lines = ["define i64 @program(ptr %args) #0 {", "entry:", "  %arena = load ptr, ptr %args"]
    if growing:
        lines.append(f"  store [{words} x i64] zeroinitializer, ptr %arena")
    if watched:
        lines.append("  store volatile i64 0, ptr @interrupt")
    lines.append("  %code = call i64 @run(ptr %args)")
    for i in range(growing):
        lines.append(f"  %p{i} = getelementptr i8, ptr %arena, i64 {i * GROWING_BYTES}")
        lines += [f"  %d{i} = load ptr, ptr %p{i}", f"  call void @free(ptr %d{i})"]
    return [*lines, "  ret i64 %code", "}"]


def _part(n: int, calls: list[Call], slots: dict[Any, int], offsets: dict[Any, int]) -> str:
    lines = [f"define internal i64 @part{n}(ptr %args, ptr %arena, ptr %status) #0 {{", "entry:"]
    for i, (name, roots) in enumerate(calls):
        pointers = []
        for k, root in enumerate(roots):
            p = f"%r{i}.{k}"
            if root is STATUS:
                p = "%status"
            elif root in slots:
                lines += [f"  {p}a = getelementptr ptr, ptr %args, i64 {slots[root]}", f"  {p} = load ptr, ptr {p}a"]
            else:
                lines.append(f"  {p} = getelementptr i8, ptr %arena, i64 {offsets[root]}")
            pointers.append(f"ptr {p}")
        lines.append(f"  call void @{name}({', '.join(pointers)})")
        if STATUS in roots:
            lines += [f"  %s{i} = load i64, ptr %status", f"  %bad{i} = icmp ne i64 %s{i}, 0"]
            lines += [f"  br i1 %bad{i}, label %fail{i}, label %go{i}", f"fail{i}:", f"  ret i64 %s{i}", f"go{i}:"]
    return "\n".join([*lines, "  ret i64 0", "}", ""])


def arrange(s: Schedule, calls: list[Call], elsewhere: set[Any], start: int = 0) -> tuple[dict[Any, int], int]:
    """An offset from `start` on for every buffer that is not elsewhere, and the end of the last.

    Places are reused after the last kernel that touches a buffer, those of outputs never. Scratch memory of kernels is a buffer too.
    """
    first: dict[Any, int] = {}
    last: dict[Any, int] = {}
    for k, (_, roots) in enumerate(calls):
        for r in roots:
            if r is not STATUS and r not in elsewhere and r.aval is not BUFFER:
                first.setdefault(r, k)
                last[r] = k
    last |= {r: len(calls) for r in s.outputs if r in last}
    offsets: dict[Any, int] = {}
    placed: list[tuple[int, int, int]] = []  # offset, end, last use
    start = total = -(-start // ALIGNMENT) * ALIGNMENT
    for r in sorted(first, key=first.__getitem__):
        size = -(-max(_bytes(r, s.buffers.get(r, r.aval.shape)), 1) // ALIGNMENT) * ALIGNMENT
        placed = [p for p in placed if p[2] >= first[r]]
        at = start
        for o, e, _ in sorted(placed):
            if at + size <= o:
                break
            at = max(at, e)
        offsets[r] = at
        placed.append((at, at + size, last[r]))
        total = max(total, at + size)
    return offsets, total


def _bytes(root: Var, shape: tuple[int, ...]) -> int:
    return prod(shape) * root.aval.dtype.itemsize
