"""The stage from a schedule to LLVM text: one module, a function per kernel, a driver that calls them in order.

Kernels whose text is equal are one function, called with other buffers. Buffers that are neither inputs nor results
lie in an arena, at offsets that are reused when a value is no longer needed. The driver is

    i64 @program(ptr args)        args: arena, status, then the inputs, then the results

and returns 0, or the number of the check that failed. `native_form` says which equations can be emitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from funcgrad.core.ir import Equation, Program, Stack, Var
from funcgrad.lowering import blas, sanitize, tile
from funcgrad.lowering.bodies import BodyKernels
from funcgrad.lowering.buffers import Layout, buffer_bytes, layout
from funcgrad.lowering.builder import Builder
from funcgrad.lowering.donation import copied, in_place, updates
from funcgrad.lowering.foreign import foreign_text
from funcgrad.lowering.forms import native_type
from funcgrad.lowering.kernels import Control, Library, Loop, Product, Scatter, Schedule, Walk, touched
from funcgrad.lowering.loops import loop_text
from funcgrad.lowering.nests import STATUS, KernelText
from funcgrad.lowering.registers.kernel import control_text
from funcgrad.lowering.registers.kinds import fits
from funcgrad.lowering.registers.stacks import DESCRIPTION, OWNED, WORDS, Growing, depth_of, hand_over, need_copy
from funcgrad.lowering.schedule import schedule
from funcgrad.lowering.target import Kernels
from funcgrad.lowering.values import Shared, Target
from funcgrad.lowering.walks import scatter_text, walk_text

Call = tuple[str, tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Module:
    """Emitted code.

    Attributes
    ----------
    text
        LLVM text without its header.
    arena
        The scratch memory that a call needs.
    imports
        External functions by name (BLAS).
    level
        Of the code generator.
    checks
        The equations that can fail: the driver returns 1 + the position of the first that does, and leaves the value
        at fault in the status.
    foreign
        The calls of foreign code: the i-th is of the external function ``foreign<i>``.
    """

    text: str
    arena: Layout
    imports: tuple[str, ...]
    level: int
    checks: tuple[Equation, ...]
    foreign: tuple[Equation, ...]


class CpuKernels(Kernels[KernelText]):
    """The kernels of a module as functions, and the calls of them."""

    def __init__(self, target: Target) -> None:
        super().__init__(target, Shared(sanitize.declares()))
        self.products: set[str] = set()
        self.loops = False
        self.given: set[Var] = set()  # results that may lie in donated arguments

    @classmethod
    def form(cls, e: Equation) -> bool:
        """Foreign functions can be called, and BLAS counts in 32 bits."""
        kind = e.primitive.traits.kind
        if kind == "foreign":
            return all([native_type(a.aval) for a in (*e.inputs, *e.outputs)])
        if kind == "dot" and e.outputs[0].aval.dtype.kind == "f" and e.params["contract"][0]:
            return super().form(e) and all([a.aval.size < 2**31 for a in (*e.inputs, *e.outputs)])
        return super().form(e)

    def loop(self, kernel: Loop, s: Schedule) -> KernelText:
        """A function of vectors."""
        return loop_text(kernel, s.views, self.target, self.shared, self.checks, updates(kernel, self.given))

    def walk(self, kernel: Walk, s: Schedule) -> KernelText:
        """Line by line."""
        return walk_text(kernel, s.views, self.target, self.shared)

    def scatter(self, kernel: Scatter, s: Schedule) -> KernelText:
        """One update after the other."""
        return scatter_text(kernel, s.views, self.target, self.shared)

    def product(self, kernel: Product, s: Schedule) -> KernelText:
        """Small ones in registers, others by BLAS."""
        roots = (kernel.x.root, kernel.y.root, kernel.out.root)
        if tile.fits(kernel):
            return KernelText(tile.tile_text(kernel, self.target, self.shared), roots, True)
        self.products.add(blas.routine(kernel))
        return KernelText(blas.product_text(kernel), roots, True)

    def control(self, kernel: Control, s: Schedule) -> KernelText:
        """In registers, or a function that calls kernels."""
        e = kernel.equation
        if e.primitive.traits.kind == "foreign":
            return foreign_text(e, s.views, self.shared)
        if fits(e):
            return control_text(kernel, s.views, self.target, self.shared, self.checks)
        return BodyKernels(kernel, s.views, self.target, self.shared, lambda body: self.calls(body)[0]).run()

    def whole(self, kernel: Library, s: Schedule) -> KernelText:
        """There are none: such an equation has no form here."""
        raise NotImplementedError(kernel.equation.primitive.name)

    def calls(self, s: Schedule, arguments: Sequence[Var | None] = ()) -> tuple[list[Call], list[Var]]:
        """The calls of a schedule in order, and for every output the root whose buffer is the result."""
        self.given |= {r for r, a in zip(s.outputs, arguments, strict=False) if a is not None}
        texts = [self.code(k, s) for k in s.kernels]
        if s.shared:
            for kernel, k in zip(s.kernels, texts, strict=True):
                unknown = s.buffers.keys() & set(k.roots) - touched(kernel, s.views)
                assert not unknown, "a kernel touches what `inplace` does not know"
            texts = [replace(k, roots=tuple([s.shared.get(r, r) for r in k.roots])) for k in texts]
        results = list(s.outputs)
        for i, argument in enumerate(arguments):
            if argument is not None and not in_place(s, texts, s.outputs[i], argument):
                copy, results[i] = copied(s.outputs[i])
                texts.append(self.code(copy, s))
        self.loops |= any([k.loops for k in texts])
        return [(self.named(k.text), k.roots) for k in texts], results

    def imports(self) -> tuple[list[str], tuple[str, ...]]:
        """Declarations and names of the functions that the module takes from outside."""
        products = sorted(self.products)
        declares = [f"declare void @{name}({', '.join(['ptr'] * blas.ARGUMENTS[name])})" for name in products]
        needed = {
            "memcpy": "@llvm.memcpy",
            "interrupt": "@interrupt ",
            "interrupted": "@interrupted",
            "realloc": "@realloc",
        }
        others = [name for name, what in needed.items() if any([what in d for d in self.shared.declares])]
        if "realloc" in others:
            declares.append("declare void @free(ptr)")
            others.append("free")
        return declares, (*products, *others)


native_form = CpuKernels.form


@dataclass(frozen=True, slots=True)
class Functions:
    """The kernels of a schedule as functions, without a driver that calls them.

    Attributes
    ----------
    text
        Declarations, helpers, and the functions.
    calls
        For each kernel the name of its function, and the buffers for its parameters.
    results
        For every output the root whose buffer is the result.
    imports, level, checks, foreign
        As in a `Module`.
    """

    text: str
    calls: tuple[Call, ...]
    results: tuple[Var, ...]
    imports: tuple[str, ...]
    level: int
    checks: tuple[Equation, ...]
    foreign: tuple[Equation, ...]

    @property
    def growing(self) -> list[Var]:
        """The roots of the descriptions of growing buffers."""
        roots = [r for _, roots in self.calls for r in roots if r is not STATUS and isinstance(r.aval, Growing)]
        return list(dict.fromkeys(roots))


def functions_of(s: Schedule, target: Target, arguments: Sequence[Var | None] = ()) -> Functions:
    """The functions of all kernels; kernels with equal text are one function.

    Parameters
    ----------
    arguments
        For each output the input whose address a call may pass for it as well, or None; empty for none.
    """
    kernels = CpuKernels(target)
    calls, results = kernels.calls(s, arguments)
    if any([isinstance(r.aval, Stack) for r in results]):
        need_copy(Builder(target, 1, kernels.shared))
    declares, imports = kernels.imports()
    text = "\n".join([*declares, kernels.shared.text(), *kernels.texts])
    level = 1 if kernels.loops else 0
    foreign = tuple([e for _, e in kernels.shared.foreign.values()])
    return Functions(text, tuple(calls), tuple(results), imports, level, tuple(kernels.checks), foreign)


ATTRIBUTES = "attributes #0 = { noinline nounwind }"


def emit(program: Program, target: Target, donated: Sequence[int] = ()) -> Module:
    """The LLVM text of a flat Program, all of whose equations have a native form.

    Parameters
    ----------
    donated
        For each output the input whose address a call may pass for it as well, or -1; empty for none.
    """
    s = schedule(program)
    f = functions_of(s, target, [program.inputs[d] if d >= 0 else None for d in donated])
    slots = {v: i + 2 for i, v in enumerate((*program.inputs, *f.results))}
    growing = f.growing
    words = sum([r.aval.size for r in growing])
    places = layout(s, [roots for _, roots in f.calls], {*slots, *growing}, words * 8)
    offsets = {root: place.offset for root, place in places.places.items()}
    offsets |= {r: 8 * sum([q.aval.size for q in growing[:i]]) for i, r in enumerate(growing)}
    out = [(slots[r], r.aval) for r in f.results if isinstance(r.aval, Stack)]
    known = _Known(
        s, places.size, len(program.inputs), offsets, {r for r, d in zip(f.results, donated, strict=False) if d >= 0}
    )
    driver = _driver(f.calls, slots, offsets, out, words, known)
    text = "\n".join([f.text, driver, ATTRIBUTES, ""])
    return Module(text, places, f.imports, f.level, f.checks, f.foreign)


class _Known:
    """What checks of memory want to know of a driver's pointers; nothing without them."""

    def __init__(self, s: Schedule, arena: int, inputs: int, offsets: dict[Any, int], given: set[Any]) -> None:
        self.schedule, self.arena, self.inputs, self.offsets, self.given = s, arena, inputs, offsets, given
        self.seen: set[Any] = set()

    def arguments(self, slots: dict[Any, int]) -> list[str]:
        """The table that `@program` is called with."""
        return sanitize.parameter("%args", 8 * (max(slots.values(), default=1) + 1))

    def block(self, name: str) -> str:
        """The arena, or the status."""
        return sanitize.buffer(self.arena if name == "arena" else 64, name)

    def buffer(self, root: Any, slot: int | None) -> str:
        """A buffer that a kernel is called with."""
        kind = f"arena + {self.offsets.get(root)}" if slot is None else "input" if slot < self.inputs + 2 else "result"
        place = kind if slot is None else f"{kind} {slot - 2 - (self.inputs if kind == 'result' else 0)}"
        return sanitize.buffer(buffer_bytes(self.schedule, root), place)

    def fresh(self, root: Any, slot: int | None, pointer: str) -> list[str]:
        """Where the buffer was not used before."""
        if root in self.seen or isinstance(root.aval, Stack | Growing) or root in self.given:
            return []
        self.seen.add(root)
        own = slot is None or slot >= self.inputs + 2
        return sanitize.fresh(pointer, buffer_bytes(self.schedule, root)) if own else []


PART = 64  # calls of one function of the driver: code generation is superlinear in the length of a function


def _driver(
    calls: Sequence[Call],
    slots: dict[Any, int],
    offsets: dict[Any, int],
    stacks: Sequence[tuple[int, Stack]],
    words: int,
    known: _Known,
) -> str:
    """``@program``, and the parts that it calls in turn; results that are stacks are handed over last."""
    parts = [calls[i : i + PART] for i in range(0, len(calls), PART)]
    texts = [_part(n, part, slots, offsets, known) for n, part in enumerate(parts)]
    name = "run" if words else "program"
    lines = [f"define i64 @{name}(ptr %args) #0 {{", "entry:", *(known.arguments(slots) if name == "program" else [])]
    lines += [f"  %arena = load ptr, ptr %args{known.block('arena')}"]
    lines += ["  %as = getelementptr ptr, ptr %args, i64 1", f"  %status = load ptr, ptr %as{known.block('status')}"]
    for n, part in enumerate(parts):
        lines.append(f"  %s{n} = call i64 @part{n}(ptr %args, ptr %arena, ptr %status)")
        if any([STATUS in roots for _, roots in part]):
            lines.append(f"  %bad{n} = icmp ne i64 %s{n}, 0")
            lines += [f"  br i1 %bad{n}, label %fail{n}, label %go{n}", f"fail{n}:", f"  ret i64 %s{n}", f"go{n}:"]
    for n, (slot, aval) in enumerate(stacks):
        lines += [f"  %o{n}a = getelementptr ptr, ptr %args, i64 {slot}", f"  %o{n} = load ptr, ptr %o{n}a"]
        lines[-1] += sanitize.buffer(8 * (WORDS + DESCRIPTION * depth_of(aval)), "a stack")
        lines += hand_over(f"%o{n}", aval, n)
    lines += ["  ret i64 0", "}"]
    return "\n".join([*texts, *lines, *(_around(words, slots, known) if words else []), ""])


def _around(words: int, slots: dict[Any, int], known: _Known) -> list[str]:
    """``@program`` around ``@run``: growing buffers are empty at the start, and freed at the end.

    Their descriptions are that many words at the beginning of the arena.
    """
    lines = ["define i64 @program(ptr %args) #0 {", "entry:", *known.arguments(slots)]
    lines.append(f"  %arena = load ptr, ptr %args{known.block('arena')}")
    lines += [f"  store [{words} x i64] zeroinitializer, ptr %arena", "  %code = call i64 @run(ptr %args)"]
    for i in range(OWNED, words, DESCRIPTION):
        lines.append(f"  %p{i} = getelementptr i64, ptr %arena, i64 {i}")
        lines += [f"  %d{i} = load ptr, ptr %p{i}", f"  call void @free(ptr %d{i})"]
    return [*lines, "  ret i64 %code", "}"]


def _part(n: int, calls: Sequence[Call], slots: dict[Any, int], offsets: dict[Any, int], known: _Known) -> str:
    lines = [f"define internal i64 @part{n}(ptr %args, ptr %arena, ptr %status) #0 {{", "entry:"]
    for i, (name, roots) in enumerate(calls):
        pointers = []
        for k, root in enumerate(roots):
            p = f"%r{i}.{k}"
            if root is STATUS:
                p = "%status"
            else:
                slot = slots.get(root)
                if slot is not None:
                    lines += [f"  {p}a = getelementptr ptr, ptr %args, i64 {slot}", f"  {p} = load ptr, ptr {p}a"]
                else:
                    lines.append(f"  {p} = getelementptr i8, ptr %arena, i64 {offsets[root]}")
                lines[-1] += known.buffer(root, slot)
                lines += known.fresh(root, slot, p)
            pointers.append(f"ptr {p}")
        lines.append(f"  call void @{name}({', '.join(pointers)})")
        if STATUS in roots:
            lines += [f"  %s{i} = load i64, ptr %status", f"  %bad{i} = icmp ne i64 %s{i}, 0"]
            lines += [f"  br i1 %bad{i}, label %fail{i}, label %go{i}", f"fail{i}:", f"  ret i64 %s{i}", f"go{i}:"]
    return "\n".join([*lines, "  ret i64 0", "}", ""])
