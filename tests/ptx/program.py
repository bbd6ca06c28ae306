"""A module made ready to run: the code of all its functions in a row, registers numbered, variables at addresses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.ptx import access, control, moves, warp
from tests.ptx.arithmetic import CARRY, dtype, find
from tests.ptx.errors import UnknownPtx
from tests.ptx.memory import GAP, LOCAL, SHARED, Memory, Region, Slot, aligned
from tests.ptx.parse import Function, Imm, Instruction, Operand, Reg, Sym, Variable, Vec, parse
from tests.ptx.registers import SPECIAL, Scope, reader, writer

Run = Callable[[Any, Any], None]
JUMPS = re.compile(r"(?:bra|brx|call|ret|exit|bar|barrier|shfl|vote|match|redux)\b.*")
BUILDERS = {**moves.BUILDERS, **access.BUILDERS, **control.BUILDERS, **warp.BUILDERS}
CALLED = re.compile(r"call(?:\.uni)?")


@dataclass(slots=True)
class Step:
    """One instruction, ready to run. Whoever `jumps` says itself where its threads go on; a label `leads` to it."""

    run: Run
    jumps: bool
    leads: bool
    line: int
    opcode: str
    text: str


class Program:
    """A module in the memory of a device.

    Parameters
    ----------
    text
        The PTX.
    memory
        Where its global and constant variables are allocated.
    """

    def __init__(self, text: str, memory: Memory) -> None:
        self.parsed = parse(text)
        self.functions = self.parsed.functions
        self.slots = 0
        self.specials: dict[str, int] = {}
        self.entries: dict[str, int] = {}
        self.code: list[Step] = []
        self.names: list[str] = []
        self.shared: list[Slot] = []
        self.local: list[Slot] = []
        self.dynamic: list[str] = []
        self.locals_of: dict[str, list[Slot]] = {}
        self.slots_of: dict[str, range] = {}
        symbols: dict[str, int] = {}
        for v in self.parsed.variables.values():
            symbols[v.name] = self._shared(v) if v.space == "shared" else 0
        self.scopes: dict[str, Scope] = {}
        lines = text.splitlines()
        for f in self._in_order():
            self._add(f, symbols)
        self._dynamic(symbols)
        self.globals = [self._global(v, memory, symbols) for v in self.parsed.variables.values() if v.space != "shared"]
        for region, v in self.globals:
            _initialise(region, v, symbols)
        for f in self._in_order():
            self.scopes[f.name].symbols.update({n: a for n, a in symbols.items() if n not in f.variables})
            self._compile(f, lines)
        self.code.append(Step(lambda m, threads: None, True, True, 0, "", "the end of the code"))

    # -- layout

    def _in_order(self) -> list[Function]:
        """The functions, each behind those that it calls."""
        out: list[Function] = []
        open_: set[str] = set()

        def visit(f: Function) -> None:
            if f in out:
                return
            if f.name in open_:
                raise UnknownPtx(f"{f.name} calls itself", f.name, f.line)
            open_.add(f.name)
            for name in self._callees(f):
                visit(self.functions[name])
            out.append(f)

        for f in self.functions.values():
            visit(f)
        return out

    def _callees(self, f: Function) -> list[str]:
        names = []
        for i in f.instructions:
            if CALLED.fullmatch(i.opcode):
                named = [o.name for o in i.operands if isinstance(o, Sym) and o.name in self.functions]
                if len(named) != 1:
                    raise UnknownPtx(f"a call of no function of the module (line {i.line})", f.name, i.line)
                names += named
        return names

    def _shared(self, v: Variable) -> int:
        """The address of a shared variable; those whose size the launch decides come last."""
        if v.nbytes < 0:
            self.dynamic.append(v.name)
            return 0
        at = self.shared[-1].base + self.shared[-1].nbytes + GAP if self.shared else SHARED + GAP
        self.shared.append(Slot(v.name, aligned(at, max(v.align, 16)), v.nbytes))
        return self.shared[-1].base

    def _dynamic(self, symbols: dict[str, int]) -> None:
        end = self.shared[-1].base + self.shared[-1].nbytes if self.shared else SHARED
        self.dynamic_base = aligned(end + GAP, GAP)
        symbols.update(dict.fromkeys(self.dynamic, self.dynamic_base))

    def _add(self, f: Function, symbols: dict[str, int]) -> None:
        """Number the registers of a function, and lay out its variables."""
        slots = {}
        for name, type in [*f.registers.items(), (CARRY, "pred")]:
            slots[name] = (self.slots + len(slots), type)
            self.names.append(f"{name} of {f.name}")
        self.slots_of[f.name] = range(self.slots, self.slots + len(slots))
        self.slots += len(slots)
        own = {}
        self.locals_of[f.name] = []
        for v in f.variables.values():
            if v.space == "shared":
                own[v.name] = self._shared(v)
            elif v.space == "local":
                at = self.local[-1].base + self.local[-1].nbytes + GAP if self.local else LOCAL + GAP
                self.local.append(Slot(v.name, aligned(at, max(v.align, 16)), v.nbytes))
                self.locals_of[f.name].append(self.local[-1])
                own[v.name] = self.local[-1].base
        at = sum([len(self.scopes[n].function.instructions) + 1 for n in self.scopes])
        self.scopes[f.name] = Scope(f, at, slots, own, self.specials, self.scopes)
        self.entries[f.name] = at

    def _global(self, v: Variable, memory: Memory, symbols: dict[str, int]) -> tuple[Region, Variable]:
        if v.space not in ("global", "const") or v.nbytes < 0:
            raise UnknownPtx(f"variable {v.name} in .{v.space} space")
        region = memory.allocate(v.space, v.nbytes, v.name)
        symbols[v.name] = region.base
        return region, v

    def register_name(self, slot: int) -> str:
        """The name of a register, and its function."""
        return self.names[slot]

    def special(self, name: str) -> tuple[str, int]:
        """What a special register holds, and of which axis."""
        return SPECIAL[name]

    # -- code

    def _compile(self, f: Function, lines: list[str]) -> None:
        scope = self.scopes[f.name]
        leads = {0, *f.labels.values()}
        for k, i in enumerate(f.instructions):
            scope.instruction = i
            run, jumps = build(scope, i, scope.at + k), bool(JUMPS.fullmatch(i.opcode))
            self.code.append(Step(run, jumps, k in leads, i.line, i.opcode, lines[i.line - 1].strip()))
        scope.instruction = Instruction("ret", (), None, f.line)
        end = len(f.instructions)
        self.code.append(
            Step(control.ret(scope, scope.at + end), True, end in leads, f.line, "", "the end of " + f.name)
        )

    def counts(self, counts: np.ndarray) -> Counter[str]:
        """How many threads executed each opcode."""
        out: Counter[str] = Counter()
        for step, n in zip(self.code, counts.tolist(), strict=True):
            if n and step.opcode:
                out[step.opcode] += n
        return out


def build(scope: Scope, i: Instruction, place: int) -> Run:
    """What executes an instruction, with its guard."""
    run = _unguarded(scope, i, place)
    if i.guard is None:
        return run
    guard = reader(scope, i.guard, "pred")
    jumps = bool(JUMPS.fullmatch(i.opcode))
    if i.guard.name in SPECIAL:
        raise scope.unknown("a special register as guard")

    def guarded(m: Any, threads: Any) -> None:
        condition = guard(m, threads)
        taken = m.some(threads, condition)
        if jumps:
            m.arrive(place + 1, m.some(threads, ~condition))
        if taken is not None:
            run(m, taken)

    return guarded


def _unguarded(scope: Scope, i: Instruction, place: int) -> Run:
    name = i.opcode.partition(".")[0]
    if name in BUILDERS:
        return BUILDERS[name](scope, place)
    operands, table = list(i.operands), None
    if name == "lop3":
        last = operands.pop()
        if not isinstance(last, Imm):
            raise scope.unknown("no table")
        table = last.value
    try:
        op = find(i.opcode, table)
    except LookupError:
        op = None
    if op is None:
        raise scope.unknown("unknown instruction")
    results = _results(operands[0]) if operands else []
    sources = operands[1:]
    results_expected = [len(op.results)] if len(op.results) == 1 else [1, len(op.results)]
    if len(results) not in results_expected or len(sources) != len(op.operands):
        raise scope.unknown("wrong number of operands")
    loose = name == "cvt"
    pairs = zip(sources, op.operands, strict=True)
    gets = [reader(scope, o, t, loose, k == op.undefined) for k, (o, t) in enumerate(pairs)]
    puts = [writer(scope, o, t, loose) for o, t in zip(results, op.results, strict=False)]
    if op.reads_carry:
        gets.append(reader(scope, Reg(CARRY), "pred"))
    if op.writes_carry:
        puts.append(writer(scope, Reg(CARRY), "pred"))
    return _arithmetic(op.compute, gets, puts, len(op.results) + op.writes_carry)


def _results(operand: Operand) -> list[Operand]:
    return list(operand.items) if isinstance(operand, Vec) else [operand]


def _arithmetic(compute: Callable[..., Any], gets: list[Any], puts: list[Any], count: int) -> Run:
    if count == 1:
        put = puts[0]
        if len(gets) == 1:
            (x,) = gets
            return lambda m, threads: put(m, threads, compute(x(m, threads)))
        if len(gets) == 2:
            x, y = gets
            return lambda m, threads: put(m, threads, compute(x(m, threads), y(m, threads)))
        return lambda m, threads: put(m, threads, compute(*[get(m, threads) for get in gets]))

    def run(m: Any, threads: Any) -> None:
        for put, value in zip(puts, compute(*[get(m, threads) for get in gets]), strict=False):
            put(m, threads, value)

    return run


def _initialise(region: Region, v: Variable, symbols: dict[str, int]) -> None:
    """The bytes of a variable that the module defines; without a value they are 0."""
    d = dtype(v.type)
    values: list[int] = []
    text = (v.value or "").strip().strip("{}").strip()
    for item in text.split(",") if text else []:
        address = re.fullmatch(r"\s*(?:generic\()?([$%_A-Za-z][\w$]*)\)?(?:\s*\+\s*(\d+))?\s*", item)
        if address:
            if address[1] not in symbols:
                raise UnknownPtx(f"{v.name}: no variable {address[1]}")
            values.append(symbols[address[1]] + int(address[2] or 0))
        else:
            float_bits = re.fullmatch(r"\s*0[fFdD]([0-9a-fA-F]+)\s*", item)
            values.append(int(float_bits[1], 16) if float_bits else int(item, 0))
    bits = 8 * d.itemsize
    data = np.array([x & (1 << bits) - 1 for x in values], f"u{d.itemsize}").view(np.uint8)
    region.data[: v.nbytes] = 0
    region.data[: len(data)] = data
    region.written[: v.nbytes] = 1
    region.readonly = v.space == "const"
