"""PTX text to functions of instructions with parsed operands. What is not known is an error, nothing is skipped.

The text is what LLVM writes: one module, entries and functions, `.reg`, `.param`, `.local`, `.shared`, `.global` and
`.const` variables. Names declared in an inner scope are made unique by a suffix.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tests.ptx.errors import UnknownPtx

SIZES = {f"{kind}{bits}": bits // 8 for kind in "busf" for bits in (8, 16, 32, 64) if (kind, bits) != ("f", 8)}
LABEL = re.compile(r"([$%_A-Za-z][\w$]*)\s*:")
NAME = r"[%$_A-Za-z][\w$]*(?:\.[xyz])?"
MEMORY = re.compile(rf"\[\s*({NAME}|\d+)\s*(?:\+\s*(-?\d+))?\s*\]")
NUMBER = re.compile(r"-?(?:0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|0[xX][0-9a-fA-F]+|\d+)U?")
SYMBOL = re.compile(rf"({NAME})(?:\s*\+\s*(-?\d+))?")
INSTRUCTION = re.compile(r"(?:@(!?)(%[\w$]+)\s+)?([a-z][\w.:]*)\s*(.*)", re.DOTALL)
VARIABLE = re.compile(
    r"(?:\.(?P<linkage>visible|extern|weak|common)\s+)*\.(?P<space>global|const|shared|local|param)\s+"
    r"(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<type>\w+)\s+(?P<name>[$%_A-Za-z][\w$]*)"
    r"(?P<array>\[\s*\d*\s*\])?\s*(?:=\s*(?P<value>.*))?",
    re.DOTALL,
)
PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<type>\w+)\s+(?:\.ptr\s*(?:\.\w+\s*(?:\d+\s*)?)*\s)?"
    r"\s*(?P<name>[$%_A-Za-z][\w$]*)(?:\[(?P<count>\d+)\])?"
)
HEADER = re.compile(
    r"(?P<linkage>(?:\.(?:visible|extern|weak)\s+)*)\.(?P<kind>entry|func)\s*(?:\(\s*(?P<result>[^)]*)\))?\s*"
    r"(?P<name>[$%_A-Za-z][\w$]*)\s*(?:\((?P<params>[^)]*)\))?\s*(?P<rest>.*)",
    re.DOTALL,
)
DIRECTIVE = re.compile(r"\.(maxntid|reqntid|minnctapersm|maxnreg|noreturn)\s*((?:\d+\s*,?\s*)*)")


@dataclass(frozen=True, slots=True)
class Reg:
    """A register, or a special one; ``!p`` is negated."""

    name: str
    negated: bool = False


@dataclass(frozen=True, slots=True)
class Imm:
    """A constant: an integer, or the bits of a float of that many bytes."""

    value: int
    float_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Sym:
    """The address of a variable, a function, or a label."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Mem:
    """A place in memory: a register, variable or number, and an offset."""

    base: Reg | Sym | Imm
    offset: int


@dataclass(frozen=True, slots=True)
class Vec:
    """Several registers or constants in braces, or in the parentheses of a call."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Sink:
    """The operand ``_``."""


Operand = Reg | Imm | Sym | Mem | Vec | Sink


@dataclass(slots=True)
class Variable:
    """A declared variable; `nbytes` is -1 for an array whose size the launch decides."""

    name: str
    space: str
    type: str
    nbytes: int
    align: int
    value: str | None = None


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: what it does, under which condition, and where it stands in the text."""

    opcode: str
    operands: tuple[Operand, ...]
    guard: Reg | None
    line: int


@dataclass(slots=True)
class Function:
    """An entry or a function: its parameters, registers by name with their type, variables, instructions, labels."""

    name: str
    entry: bool
    line: int
    params: list[Variable] = field(default_factory=list)
    results: list[Variable] = field(default_factory=list)
    registers: dict[str, str] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    targets: dict[str, list[str]] = field(default_factory=dict)
    limits: dict[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class Parsed:
    """A module: its functions in the order of the text, and its variables."""

    functions: dict[str, Function]
    variables: dict[str, Variable]
    target: str


def parse(text: str) -> Parsed:
    """Read a module."""
    return _Parser(text).module()


def split_operands(text: str) -> list[str]:
    """The operands of an instruction: what commas outside of brackets part."""
    out, depth, start = [], 0, 0
    for i, c in enumerate(text):
        if c in "{[(":
            depth += 1
        elif c in "}])":
            depth -= 1
        elif c == "," and depth == 0:
            out.append(text[start:i])
            start = i + 1
    return [o for o in [*out, text[start:]] if o.strip()]


class _Parser:
    """Reads the text from its beginning to its end; `at` is where it stands."""

    def __init__(self, text: str) -> None:
        blank = lambda found: re.sub(r"[^\n]", " ", found[0])
        self.text = re.sub(r"//[^\n]*|/\*.*?\*/", blank, text, flags=re.DOTALL)
        self.at = 0
        self.function: Function | None = None
        self.scopes: list[dict[str, str]] = []

    def fail(self, message: str) -> UnknownPtx:
        line = self.line()
        kernel = self.function.name if self.function else ""
        return UnknownPtx(f"{message} (line {line}{' of ' + kernel if kernel else ''})", kernel, line)

    def line(self) -> int:
        return self.text.count("\n", 0, self.at) + 1

    def skip_space(self) -> bool:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1
        return self.at < len(self.text)

    def until(self, stops: str) -> tuple[str, str]:
        """The text up to one of `stops`, which is passed over, and which it was."""
        end = self.at
        while end < len(self.text) and self.text[end] not in stops:
            end += 1
        if end == len(self.text):
            raise self.fail("the text ends within a statement")
        found, stop = self.text[self.at : end], self.text[end]
        self.start, self.at = self.at, end + 1
        return found, stop

    # -- the module

    def module(self) -> Parsed:
        functions: dict[str, Function] = {}
        variables: dict[str, Variable] = {}
        target = ""
        while self.skip_space():
            head = re.compile(r"\.(version|target|address_size)\s+([^\n]+)").match(self.text, self.at)
            if head:
                if head[1] == "address_size" and head[2].strip() != "64":
                    raise self.fail(f".address_size {head[2]}")
                target = head[2].strip() if head[1] == "target" else target
                self.at = head.end()
                continue
            if re.compile(r"(?:\.(?:visible|extern|weak)\s+)*\.(?:entry|func)\b").match(self.text, self.at):
                function = self.header()
                if function is not None:
                    self.body(function)
                    functions[function.name] = function
                continue
            declaration, _ = self.until(";")
            v = self.variable(declaration)
            variables[v.name] = v
        return Parsed(functions, variables, target)

    def variable(self, text: str) -> Variable:
        found = VARIABLE.fullmatch(text.strip())
        if not found or found["type"] not in SIZES:
            raise self.fail(f"unknown declaration: {' '.join(text.split())[:80]}")
        size = SIZES[found["type"]]
        array = found["array"]
        count = 1 if array is None else int(array.strip("[] \n\t") or "-1")
        align = int(found["align"] or size)
        return Variable(found["name"], found["space"], found["type"], max(count * size, -1), align, found["value"])

    def header(self) -> Function | None:
        """A function up to its opening brace; None for a mere declaration."""
        line = self.line()
        text, stop = self.until("{;")
        found = HEADER.fullmatch(text.strip())
        if not found:
            raise self.fail(f"unknown function header: {' '.join(text.split())[:80]}")
        f = Function(found["name"], found["kind"] == "entry", line)
        f.results = self.parameters(found["result"] or "")
        f.params = self.parameters(found["params"] or "")
        rest = DIRECTIVE.sub("", found["rest"]).strip()
        if rest:
            raise self.fail(f"unknown directive of a function: {rest[:80]}")
        for name, numbers in DIRECTIVE.findall(found["rest"]):
            f.limits[name] = tuple(int(n) for n in re.findall(r"\d+", numbers))
        f.variables = {p.name: p for p in [*f.params, *f.results]}
        return f if stop == "{" else None

    def parameters(self, text: str) -> list[Variable]:
        out = []
        for part in split_operands(text):
            found = PARAMETER.fullmatch(part.strip())
            if not found or found["type"] not in SIZES:
                raise self.fail(f"unknown parameter: {part.strip()}")
            size = SIZES[found["type"]]
            nbytes = size * int(found["count"] or 1)
            out.append(Variable(found["name"], "param", found["type"], nbytes, int(found["align"] or size)))
        return out

    # -- a function

    def body(self, f: Function) -> None:
        self.function, self.scopes = f, [{}]
        while self.scopes:
            if not self.skip_space():
                raise self.fail("the text ends within a function")
            c = self.text[self.at]
            if c in "{}":
                self.at += 1
                if c == "{":
                    self.scopes.append({})
                else:
                    self.scopes.pop()
                continue
            label = LABEL.match(self.text, self.at)
            if label:
                self.at = label.end()
                self.skip_space()
                if self.text.startswith(".branchtargets", self.at):
                    self.at += len(".branchtargets")
                    f.targets[label[1]] = [t.strip() for t in self.until(";")[0].split(",")]
                else:
                    f.labels[label[1]] = len(f.instructions)
                continue
            line = self.line()
            text, _ = self.until(";")
            text = text.strip()
            if text.startswith("."):
                self.declaration(f, text)
            elif text:
                f.instructions.append(self.instruction(text, line))
        self.function = None
        missing = [t for i in f.instructions for t in self.labels_of(i) if t not in f.labels and t not in f.targets]
        missing += [t for ts in f.targets.values() for t in ts if t not in f.labels]
        if missing:
            raise UnknownPtx(f"{f.name}: no label {missing[0]}", f.name, f.line)

    def labels_of(self, i: Instruction) -> list[str]:
        if not i.opcode.startswith(("bra", "brx")):
            return []
        last = i.operands[-1]
        if not isinstance(last, Sym):
            raise UnknownPtx(f"a branch to {last} (line {i.line})", line=i.line)
        return [last.name]

    def declare(self, f: Function, name: str) -> str:
        """The name under which a variable of the current scope is known."""
        taken = name in f.registers or name in f.variables
        unique = f"{name}'{self.start}" if taken else name
        self.scopes[-1][name] = unique
        return unique

    def lookup(self, name: str) -> str:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return name

    def declaration(self, f: Function, text: str) -> None:
        if re.fullmatch(r'\.pragma\s+"nounroll"', text):
            return
        found = re.fullmatch(r"\.reg\s+\.(\w+)\s+(.*)", text, re.DOTALL)
        if not found:
            v = self.variable(text)
            if v.space not in ("local", "shared", "param"):
                raise self.fail(f"a variable in .{v.space} space within a function")
            v.name = self.declare(f, v.name)
            f.variables[v.name] = v
            return
        type, names = found[1], found[2]
        if type != "pred" and type not in SIZES:
            raise self.fail(f"registers of type .{type}")
        for name in names.split(","):
            many = re.fullmatch(r"([%$_A-Za-z][\w$]*)<(\d+)>", name.strip())
            for one in [f"{many[1]}{k}" for k in range(int(many[2]))] if many else [name.strip()]:
                f.registers[self.declare(f, one)] = type

    def instruction(self, text: str, line: int) -> Instruction:
        found = INSTRUCTION.fullmatch(text)
        if not found:
            raise self.fail(f"unknown statement: {text[:80]}")
        guard = Reg(self.lookup(found[2]), bool(found[1])) if found[2] else None
        operands = tuple([self.operand(o.strip()) for o in split_operands(found[4])])
        return Instruction(found[3], operands, guard, line)

    def operand(self, text: str) -> Operand:
        if text == "_":
            return Sink()
        if text[0] in "{(" and text[-1] in "})":
            return Vec(tuple([self.operand(o.strip()) for o in split_operands(text[1:-1])]))
        if "|" in text:
            return Vec(tuple([self.operand(o.strip()) for o in text.split("|")]))
        if text[0] == "!":
            return Reg(self.lookup(text[1:]), negated=True)
        if NUMBER.fullmatch(text):
            return number(text)
        memory = MEMORY.fullmatch(text)
        if memory:
            base = self.operand(memory[1])
            assert isinstance(base, Reg | Sym | Imm)
            return Mem(base, int(memory[2] or 0))
        symbol = SYMBOL.fullmatch(text)
        if not symbol:
            raise self.fail(f"unknown operand: {text}")
        name = self.lookup(symbol[1])
        assert self.function is not None
        if name in self.function.registers or (name.startswith("%") and not symbol[2]):
            return Reg(name)
        return Sym(name, int(symbol[2] or 0))


def number(text: str) -> Imm:
    """The constant that `text` writes."""
    text = text.rstrip("U")
    sign, digits = (-1, text[1:]) if text[0] == "-" else (1, text)
    if digits[:2] in ("0f", "0F", "0d", "0D"):
        return Imm(int(digits[2:], 16), 4 if digits[1] in "fF" else 8)
    return Imm(sign * int(digits, 0 if digits[:2] in ("0x", "0X") else 10))
