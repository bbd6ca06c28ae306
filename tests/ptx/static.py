"""What stands in the code of a kernel: opcodes, loops, registers, without running it.

code = Static(ptx_text, "k")
assert not code.opcodes("fma")                     # of the kernel and of all functions that it calls
assert "ld.global.nc.v4.b32" in code.opcodes()
assert not code.opcodes("div", "rem", within_loops=True)
assert code.registers["b64"] < 40
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tests.ptx.parse import Function, Instruction, Parsed, Sym, parse


@dataclass(frozen=True, slots=True)
class Loop:
    """A backward branch in a function that closes a circle: the lines of its target and its own, and what is inside."""

    function: str
    lines: tuple[int, int]
    inside: frozenset[int]


class Static:
    """A kernel, and the functions that it calls.

    Parameters
    ----------
    text
        The PTX, or the module.
    kernel
        The name of the entry; default: the only one.

    Attributes
    ----------
    functions
        By name, the kernel first.
    loops
        All of them, the inner ones too.
    registers
        Virtual registers that are declared, by type (pred, b16, b32, b64), of all functions together.
    """

    def __init__(self, text: str | Parsed, kernel: str = "") -> None:
        module = parse(text) if isinstance(text, str) else text
        entries = [f.name for f in module.functions.values() if f.entry]
        if not kernel and len(entries) != 1:
            raise ValueError(f"which kernel of {entries}?")
        self.functions: dict[str, Function] = {}
        self._reach(module, kernel or entries[0])
        self.loops = [loop for f in self.functions.values() for loop in loops_of(f)]
        self.registers = Counter(t for f in self.functions.values() for t in f.registers.values())

    def _reach(self, module: Parsed, name: str) -> None:
        if name in self.functions:
            return
        f = self.functions[name] = module.functions[name]
        for i in f.instructions:
            if i.opcode.startswith("call"):
                for callee in i.operands:
                    if isinstance(callee, Sym) and callee.name in module.functions:
                        self._reach(module, callee.name)

    def instructions(self, within_loops: bool = False) -> list[Instruction]:
        """All of them, or those that may run more than once: in loops, and in what loops call."""
        if not within_loops:
            return [i for f in self.functions.values() for i in f.instructions]
        out: list[Instruction] = []
        whole = self._called_in_loops()
        for f in self.functions.values():
            inside = frozenset().union(*[loop.inside for loop in self.loops if loop.function == f.name])
            out += [i for k, i in enumerate(f.instructions) if k in inside or f.name in whole]
        return out

    def _called_in_loops(self) -> set[str]:
        """The functions that loops call, and whatever these call."""
        inside = [self.functions[loop.function].instructions[k] for loop in self.loops for k in loop.inside]
        todo = [o.name for i in inside if i.opcode.startswith("call") for o in i.operands if isinstance(o, Sym)]
        found: set[str] = set()
        while todo:
            name = todo.pop()
            if name in self.functions and name not in found:
                found.add(name)
                todo += [o.name for i in self.functions[name].instructions for o in i.operands if isinstance(o, Sym)]
        return found

    def opcodes(self, *like: str, within_loops: bool = False) -> Counter[str]:
        """How often each opcode stands there; only those in which the parts of a name of `like` follow one another.

        ``"fma"``, ``"f64"``; ``"ld.v4"`` is also ld.global.nc.v4.b32.
        """
        found = Counter(i.opcode for i in self.instructions(within_loops))
        wanted = [name.split(".") for name in like]
        return Counter({o: n for o, n in found.items() if not like or any(_follow(w, o.split(".")) for w in wanted)})

    def guarded(self) -> int:
        """How many instructions have a condition, branches not counted."""
        return sum(i.guard is not None and not i.opcode.startswith("bra") for i in self.instructions())


def _follow(parts: list[str], whole: list[str]) -> bool:
    """Whether `parts` stand in `whole`, in that order."""
    rest = iter(whole)
    return all(p in rest for p in parts)


def successors(f: Function) -> list[list[int]]:
    """Where each instruction may lead; the end of the function is the number after the last."""
    out = []
    for k, i in enumerate(f.instructions):
        name = i.opcode.partition(".")[0]
        labels = [o.name for o in i.operands if isinstance(o, Sym)] if name in ("bra", "brx") else []
        targets = [f.labels[t] for n in labels for t in f.targets.get(n, [n])]
        ends = name in ("bra", "brx", "ret", "exit", "trap") and i.guard is None
        out.append(targets + ([] if ends else [k + 1]))
    return [*out, []]


def reachable(edges: list[list[int]], start: int, stop: int = -1) -> set[int]:
    """All places that lie behind one, and itself; not those that lie behind `stop` alone."""
    found, todo = {start}, [start]
    while todo:
        at = todo.pop()
        for k in edges[at]:
            if k not in found and at != stop:
                found.add(k)
                todo.append(k)
    return found


def loops_of(f: Function) -> list[Loop]:
    """The loops of a function."""
    forward = successors(f)
    backward: list[list[int]] = [[] for _ in forward]
    for k, targets in enumerate(forward):
        for t in targets:
            backward[t].append(k)
    out = []
    for k, i in enumerate(f.instructions):
        for first in forward[k]:
            if first <= k and k in (behind := reachable(forward, first)):
                before = reachable(backward, k, stop=first)  # without another turn of a loop around it
                inside = frozenset(behind & before)
                out.append(Loop(f.name, (f.instructions[first].line, i.line), inside))
    return out
