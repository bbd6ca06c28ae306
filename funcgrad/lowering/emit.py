"""The stage from a schedule to LLVM text: one module, a function per kernel, a driver that calls them in order.

Kernels whose text is equal are one function, called with other buffers. Buffers that are neither inputs nor results
lie in an arena, at offsets that are reused when a value is no longer needed. The driver is

    i64 @program(ptr args)        args: arena, status, then the inputs, then the results

and returns 0, or the number of the check that failed. `native_form` says which equations can be emitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from funcgrad.core.ir import Atom, Equation, Program, Var
from funcgrad.lowering import blas
from funcgrad.lowering.builder import Shared, Target
from funcgrad.lowering.donation import copied, in_place, updates
from funcgrad.lowering.layout import VIEWS
from funcgrad.lowering.loops import STATUS, KernelText, loop_text
from funcgrad.lowering.reductions import REDUCTIONS
from funcgrad.lowering.schedule import Kernel, Loop, Product, Schedule, schedule
from funcgrad.ops.scalar import ELEMENTS

ALIGNMENT = 64


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
    return atom.aval.dtype.name in ELEMENTS


def native_form(e: Equation) -> bool:
    """Whether an equation of a flat Program can be emitted."""
    if not all([native_type(a) for a in (*e.inputs, *e.outputs)]):
        return False
    kind, name = e.primitive.traits.kind, e.primitive.name
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


def kernel_text(
    kernel: Kernel, s: Schedule, target: Target, shared: Shared, checks: list[Equation], once: bool = False
) -> KernelText:
    """The function of one kernel; the checks in it are appended to `checks`. For `once` see `loop_text`."""
    if isinstance(kernel, Loop):
        return loop_text(kernel, s.views, target, shared, checks, once)
    assert isinstance(kernel, Product)
    return KernelText(blas.product_text(kernel), (kernel.x.root, kernel.y.root, kernel.out.root), True)


def emit(program: Program, target: Target, donated: Sequence[int] = ()) -> Module:
    """The LLVM text of a flat Program, all of whose equations have a native form.

    Parameters
    ----------
    donated
        For each output the input whose address a call may pass for it as well, or -1; empty for none.
    """
    s = schedule(program)
    shared = Shared()
    names: dict[str, str] = {}
    functions: list[str] = []
    calls: list[Call] = []
    loops = False
    checks: list[Equation] = []
    into = {r for r, d in zip(s.outputs, donated, strict=False) if d >= 0}
    texts = [kernel_text(k, s, target, shared, checks, updates(k, into)) for k in s.kernels]
    results = list(s.outputs)
    for i, d in enumerate(donated):
        if d >= 0 and not in_place(s, texts, s.outputs[i], program.inputs[d]):
            copy, results[i] = copied(s.outputs[i])
            texts.append(kernel_text(copy, s, target, shared, checks))
    for k in texts:
        loops |= k.loops
        name = names.get(k.text)
        if name is None:
            name = names[k.text] = f"k{len(names)}"
            functions.append(k.text.replace("@KERNEL", f"@{name}", 1))
        calls.append((name, k.roots))
    offsets, arena = _arena(s, calls, set(results))
    slots = {v: i + 2 for i, v in enumerate((*program.inputs, *results))}
    imports = tuple(sorted({blas.routine(k) for k in s.kernels if isinstance(k, Product)}))
    declares = [f"declare void @{name}({', '.join(['ptr'] * blas.ARGUMENTS[name])})" for name in imports]
    text = "\n".join(
        [
            *declares,
            shared.text(),
            *functions,
            _driver(calls, slots, offsets),
            "attributes #0 = { noinline nounwind }",
            "",
        ]
    )
    return Module(text, arena, imports, 1 if loops else 0, tuple(checks))


Call = tuple[str, tuple[Any, ...]]
PART = 64  # calls of one function of the driver: code generation is superlinear in the length of a function


def _driver(calls: list[Call], slots: dict[Any, int], offsets: dict[Any, int]) -> str:
    """``@program``, and the parts that it calls in turn."""
    parts = [calls[i : i + PART] for i in range(0, len(calls), PART)]
    texts = [_part(n, part, slots, offsets) for n, part in enumerate(parts)]
    lines = ["define i64 @program(ptr %args) #0 {", "entry:", "  %arena = load ptr, ptr %args"]
    lines += ["  %as = getelementptr ptr, ptr %args, i64 1", "  %status = load ptr, ptr %as"]
    for n, part in enumerate(parts):
        lines.append(f"  %s{n} = call i64 @part{n}(ptr %args, ptr %arena, ptr %status)")
        if any([STATUS in roots for _, roots in part]):
            lines.append(f"  %bad{n} = icmp ne i64 %s{n}, 0")
            lines += [f"  br i1 %bad{n}, label %fail{n}, label %go{n}", f"fail{n}:", f"  ret i64 %s{n}", f"go{n}:"]
    return "\n".join([*texts, *lines, "  ret i64 0", "}", ""])


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


def _arena(s: Schedule, calls: list[Call], results: set[Any]) -> tuple[dict[Any, int], int]:
    """An offset for every buffer that is no result; places are reused after the last kernel that touches a buffer."""
    first: dict[Any, int] = {}
    last: dict[Any, int] = {}
    for k, (_, roots) in enumerate(calls):
        for r in roots:
            if r in s.buffers and r not in results:
                first.setdefault(r, k)
                last[r] = k
    offsets: dict[Any, int] = {}
    placed: list[tuple[int, int, int]] = []  # offset, end, last use
    total = 0
    for r in sorted(first, key=first.__getitem__):
        size = -(-max(_bytes(r, s.buffers[r]), 1) // ALIGNMENT) * ALIGNMENT
        placed = [p for p in placed if p[2] >= first[r]]
        at = 0
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
