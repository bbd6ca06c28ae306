"""Bounds checks in compiled code: ``FUNCGRAD_SANITIZE=1``.

In: the text of a module. Out: the same text with a check at every access to memory. Nothing about it is in the
emitters: a pointer belongs to the buffer that it was derived from, wherever the text goes with it. A buffer is an
argument, memory that a function allocates, or a constant, and what is called with a pointer is told its bounds too.
Pointers that come out of memory, or of integers, have the bounds with which they went there.

Emitters say, in comments, what the text does not show: where a part of a block begins that is a buffer of its own
(`buffer`), and what foreign code does with the pointers that it is given (`touches`). Fresh buffers are filled with
NaNs (`fresh`), so that what is read before it is written shows.

A check that fails is recorded, and the access goes elsewhere: a load and a store to a spare place, a copy or a call
is left out. So the flow of control is what it was; the Program ends with the code `FAULT`, and `sanitizer` says where.

    >>> lines = ["define i64 @program(ptr %args) {", "  ; is ptr %args 8", "  %x = load i64, ptr %args", "}"]
    >>> text, sites = instrumented("\\n".join(lines))
    >>> [site.text for site in sites]
    ['%x = load i64, ptr %args']

Invariant: a line that mentions a pointer and is not understood is an error, so nothing is left unchecked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from funcgrad.base.errors import ProgramError

ON = os.environ.get("FUNCGRAD_SANITIZE", "0") not in ("", "0")  # read once: code with and without checks never mix
FAULT = -4
"""The code of a Program that reached outside of a buffer (-1 to -3 are a damaged arena, an interrupt, no memory)."""

# -- what emitters say


def buffer(size: int, name: str) -> str:
    """The end of a line that makes a pointer: a buffer of `size` bytes begins there."""
    return f" ; buffer {size} {name}" if ON else ""


def fresh(pointer: str, size: int) -> list[str]:
    """A buffer that nothing was written to yet: filled with NaNs."""
    return [f"  call void @llvm.memset.p0.i64(ptr {pointer}, i8 -1, i64 {size}, i1 false)"] if ON and size else []


def touches(spans: Iterable[tuple[str, int]]) -> list[str]:
    """Before a call of foreign code: the bytes from each pointer on that it reads or writes."""
    return [f"  ; touches ptr {pointer} {size}" for pointer, size in spans] if ON else []


def parameter(pointer: str, size: int) -> list[str]:
    """The size of what the argument of a function points to that is called from outside."""
    return [f"  ; is ptr {pointer} {size}"] if ON else []


def declares() -> dict[str, None]:
    """What `fresh` needs in a module."""
    return {"declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)": None} if ON else {}


# -- the pass


@dataclass(frozen=True, slots=True)
class Site:
    """Where a check is: the function, the instruction, and what its pointer was derived from there."""

    function: str
    text: str
    origin: str


class Sites(list[Site]):
    """The checks of a module in order, and for each call of the driver the kernel and what its buffers are called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, list[str]]] = []
        self.widest = 64
        """Bytes of the largest access."""


CHECK = f"""@check.fault = internal global i64 0
@check.call = internal global i64 -1
@check.spare = internal global [$WIDEST x i8] zeroinitializer, align 64
declare void @check_report(i64, i64, i64, i64, i64, i64)
declare void @check_low_is(ptr, i64)
declare void @check_high_is(ptr, i64)
declare i64 @check_low(ptr)
declare i64 @check_high(ptr)
define internal ptr @check.place(ptr %p, i64 %low, i64 %high, i64 %size, i64 %site) noinline nounwind {{
entry:
  %a = ptrtoint ptr %p to i64
  %end = add i64 %a, %size
  %above = icmp uge i64 %a, %low
  %below = icmp ule i64 %end, %high
  %whole = icmp uge i64 %end, %a
  %both = and i1 %above, %below
  %inside = and i1 %both, %whole
  %none = icmp eq i64 %size, 0
  %good = or i1 %inside, %none
  br i1 %good, label %fine, label %wrong
fine:
  ret ptr %p
wrong:
  %call = load i64, ptr @check.call
  call void @check_report(i64 %site, i64 %a, i64 %size, i64 %low, i64 %high, i64 %call)
  store i64 1, ptr @check.fault
  ret ptr @check.spare
}}
define i64 @program(ptr %args) noinline nounwind {{
entry:
  %code = call i64 @check.program(ptr %args)
  %flag = load i64, ptr @check.fault
  store i64 0, ptr @check.fault
  %wrong = icmp ne i64 %flag, 0
  %result = select i1 %wrong, i64 {FAULT}, i64 %code
  ret i64 %result
}}
"""

_MEMORY = re.compile(r"\b(?:ptr|alloca)\b")
NAME = r"[%@][\w.$-]+"
_PARAMETER = re.compile(rf"ptr ({NAME})")
_DEFINE = re.compile(r"define (internal )?(\S.*?) @([\w.$-]+)\((.*?)\)(.*)$")
_CALL = re.compile(r"(?:(%\S+) = )?(?:tail )?call (.*?) @([\w.$-]+)\((.*)\)(.*)$")
_GLOBAL = re.compile(r"@([\w.$-]+) = .*?(?:global|constant) (.*)$")
_ACCESS = re.compile(rf"(?:(%\S+) = load|store)( volatile)? (.*), ptr ({NAME})((?:, align \d+)?)$")
_GEP = re.compile(rf"(%\S+) = getelementptr (?:inbounds )?\S.*?, ptr ({NAME}), i\d+ \S+$")
_SELECT = re.compile(rf"(%\S+) = select i1 (\S+), ptr ({NAME}), ptr ({NAME})$")
_TO_INT = re.compile(rf"(%\S+) = ptrtoint ptr ({NAME}) to i64$")
_FROM_INT = re.compile(r"(%\S+) = inttoptr i64 \S+ to ptr$")
_COMPARE = re.compile(r"%\S+ = icmp (?:eq|ne) ptr \S+, null$")
_ALLOCA = re.compile(r"(%\S+) = alloca (.*?)(?:, align \d+)?$")
_BUFFER = re.compile(r"(.*?) ; buffer (\d+) (.*)$")
_TOUCHES = re.compile(rf"; touches ptr ({NAME}) (\d+)$")
_IS = re.compile(rf"; is ptr ({NAME}) (\d+)$")
_SCALAR = re.compile(r"(double|float|ptr|i(\d+))")


def size_of(type: str) -> int:
    """Bytes of an LLVM type in memory."""
    for left, right in ("<>", "[]"):
        if type.startswith(left):
            count, _, element = type[1 : type.rindex(right)].partition(" x ")
            return int(count) * size_of(element)
    found = _SCALAR.match(type)
    if found is None:
        raise ProgramError(f"no size is known for the LLVM type {type}")
    return {"double": 8, "float": 4, "ptr": 8}.get(found[1]) or -(-int(found[2]) // 8)


def _type(text: str) -> str:
    """The type at the beginning of ``type value``."""
    for left, right in ("<>", "[]"):
        if text.startswith(left):
            depth = 0
            for i, c in enumerate(text):
                depth += (c == left) - (c == right)
                if depth == 0:
                    return text[: i + 1]
    return text.partition(" ")[0]


def instrumented(text: str) -> tuple[str, Sites]:
    """The text of a module with checks, and the checks."""
    sites = Sites()
    lines = text.split("\n")
    heads = [m for line in lines if (m := _DEFINE.match(line))]
    inner = {m[3] for m in heads if m[3] != "program"}
    sizes = {f"@{m[1]}": size_of(_type(m[2])) for line in lines if (m := _GLOBAL.match(line))}
    out: list[str] = []
    stubs: dict[str, str] = {}
    function: _Function | None = None
    for line in lines:
        head = _DEFINE.match(line)
        if head is not None:
            function = _Function(head, inner, sizes, sites, stubs)
            out.append(function.head())
        elif line.startswith("}"):
            assert function is not None
            out += [*function.lines(), line]
            function = None
        elif function is not None:
            function.line(line.strip(), line)
        else:
            out.append(line)
    check = CHECK.replace("$WIDEST", str(sites.widest))
    return "\n".join([*out, check, *stubs.values(), ""]), sites


class _Function:
    """One function in the making. `%x.low` and `%x.high` are the bounds of the buffer that begins as `%x`."""

    def __init__(
        self, head: re.Match[str], inner: set[str], sizes: dict[str, int], sites: Sites, stubs: dict[str, str]
    ) -> None:
        self.inner, self.sizes, self.sites, self.stubs = inner, sizes, sites, stubs
        _, self.result, self.name, self.parameters, self.rest = head.groups()
        self.origin: dict[str, str] = {}  # of each pointer: what it was derived from
        self.named: dict[str, str] = {}  # what emitters call buffers
        self.exact: dict[str, int] = {}  # pointers to the begin of memory whose size is known here
        self.allocas: list[str] = []
        self.out: list[str] = []
        self.pending: list[tuple[str, int]] = []  # what the next call touches
        self.count = 0
        for p in _PARAMETER.findall(self.parameters):
            self.origin[p] = p

    # -- the parts of the text

    def head(self) -> str:
        """The first line, with the bounds of the arguments."""
        if self.name == "program":
            return f"define internal {self.result} @check.program({self.parameters}){self.rest}"
        bounds = [f"i64 {p}.low, i64 {p}.high" for p in self.origin]
        parameters = ", ".join([self.parameters, *bounds]) if bounds else self.parameters
        return f"define internal {self.result} @{self.name}({parameters}){self.rest}"

    def lines(self) -> list[str]:
        """The body; what is allocated is so before everything else."""
        at = 1 if self.out and self.out[0].endswith(":") else 0
        return [*self.out[:at], *self.allocas, *self.out[at:]]

    def add(self, *lines: str) -> None:
        """Lines of the body."""
        self.out += [f"  {line}" for line in lines]

    def new(self) -> str:
        """The name of a fresh value."""
        self.count += 1
        return f"%check{self.count}"

    # -- bounds

    def bounds(self, pointer: str) -> tuple[str, str]:
        """The first and the last address of the buffer of a pointer."""
        if pointer.startswith("@"):
            size = self.sizes.get(pointer)
            if size is None:
                raise ProgramError(f"@{self.name}: the size of {pointer} is not known")
            self.count += 1
            low, high = f"%check{self.count}.low", f"%check{self.count}.high"
            self.add(f"{low} = ptrtoint ptr {pointer} to i64", f"{high} = add i64 {low}, {size}")
            return low, high
        origin = self.origin.get(pointer)
        if origin is None:
            raise ProgramError(f"@{self.name}: the buffer of {pointer} is not known")
        return (f"{origin}.low", f"{origin}.high") if origin.startswith("%") else self.bounds(origin)

    def owns(self, pointer: str, size: int | str) -> None:
        """A buffer of that many bytes begins at a pointer."""
        self.origin[pointer] = pointer
        self.add(f"{pointer}.low = ptrtoint ptr {pointer} to i64", f"{pointer}.high = add i64 {pointer}.low, {size}")

    def unknown(self, pointer: str) -> None:
        """A pointer that comes out of memory or of an integer."""
        self.origin[pointer] = pointer
        self.add(f"{pointer}.low = call i64 @check_low(ptr {pointer})")
        self.add(f"{pointer}.high = call i64 @check_high(ptr {pointer})")

    def checked(self, pointer: str, size: int | str, text: str) -> str:
        """The pointer, or a spare place if `size` bytes from there on are not inside of its buffer."""
        if isinstance(size, int) and size <= self.exact.get(pointer, self.sizes.get(pointer, -1)):
            return pointer
        low, high = self.bounds(pointer)
        origin = pointer if pointer.startswith("@") else self.origin[pointer]
        self.sites.append(Site(self.name, text, self.named.get(origin, origin)))
        name = self.new()
        operands = f"ptr {pointer}, i64 {low}, i64 {high}, i64 {size}, i64 {len(self.sites) - 1}"
        self.add(f"{name} = call ptr @check.place({operands})")
        return name

    # -- lines

    def line(self, text: str, line: str) -> None:
        """One line of the body."""
        if not _MEMORY.search(text):
            self.out.append(line)
            return
        part = _BUFFER.match(text)
        if part is not None:
            self._part(part[1], int(part[2]), part[3])
            return
        for pattern, handle in self._HANDLERS:
            found = pattern.match(text)
            if found is not None:
                handle(self, found)
                return
        raise ProgramError(f"@{self.name}: the checks do not understand this line: {text}")

    def _part(self, text: str, size: int, name: str) -> None:
        """A line that makes a pointer to a buffer: a part of another one must lie inside of that."""
        pointer = text.partition(" ")[0]
        load = _ACCESS.match(text)
        if load is not None:
            self._load(load)
            self.owns(pointer, size)
        else:
            self.line(text, f"  {text}")
            self.checked(pointer, size, f"{text} ({size} bytes of {name})")
            self._inside(pointer, size)
        self.named[pointer] = name

    def _inside(self, pointer: str, size: int) -> None:
        """What lies of a part in the block that it is a part of."""
        low, high = self.bounds(pointer)
        begin, end, more, less = (self.new() for _ in range(4))
        self.add(
            f"{begin} = ptrtoint ptr {pointer} to i64",
            f"{end} = add i64 {begin}, {size}",
            f"{less} = icmp ult i64 {begin}, {low}",
            f"{pointer}.low = select i1 {less}, i64 {low}, i64 {begin}",
            f"{more} = icmp ugt i64 {end}, {high}",
            f"{pointer}.high = select i1 {more}, i64 {high}, i64 {end}",
        )
        self.origin[pointer] = pointer

    def _access(self, m: re.Match[str]) -> None:
        result, volatile, what, pointer, align = m.groups()
        if result is not None:
            self._load(m)
            if what == "ptr":
                self.unknown(result)
            return
        type = _type(what)
        place = self._place(pointer, type, m[0])
        if type == "ptr":
            self._escape(what.partition(" ")[2])
        self.add(f"store{volatile or ''} {what}, ptr {place}{align}")

    def _load(self, m: re.Match[str]) -> None:
        result, volatile, type, pointer, align = m.groups()
        place = self._place(pointer, type, m[0])
        self.add(f"{result} = load{volatile or ''} {type}, ptr {place}{align}")

    def _place(self, pointer: str, type: str, text: str) -> str:
        """Where a value is loaded from or stored to."""
        size = size_of(type)
        self.sites.widest = max(self.sites.widest, size)
        return self.checked(pointer, size, text)

    def _escape(self, pointer: str) -> None:
        """A pointer goes where its bounds cannot follow."""
        self._stored(pointer, *self.bounds(pointer))

    def _stored(self, pointer: str, low: str, high: str) -> None:
        for end, value in (("low", low), ("high", high)):
            self.add(f"call void @check_{end}_is(ptr {pointer}, i64 {value})")

    def _gep(self, m: re.Match[str]) -> None:
        self.origin[m[1]] = self.origin.get(m[2], m[2])
        self.add(m[0])

    def _select(self, m: re.Match[str]) -> None:
        name, condition, *pointers = m.groups()
        self.add(m[0])
        ends = zip(("low", "high"), *[self.bounds(p) for p in pointers], strict=True)
        self.add(*[f"{name}.{end} = select i1 {condition}, i64 {x}, i64 {y}" for end, x, y in ends])
        self.origin[name] = name

    def _to_int(self, m: re.Match[str]) -> None:
        self.add(m[0])
        self._escape(m[2])

    def _from_int(self, m: re.Match[str]) -> None:
        self.add(m[0])
        self.unknown(m[1])

    def _alloca(self, m: re.Match[str]) -> None:
        name, size = m[1], size_of(m[2])
        self.allocas.append(f"  {m[0]}")
        kept, self.out = self.out, self.allocas
        self.owns(name, size)
        self.out, self.exact[name] = kept, size

    def _is(self, m: re.Match[str]) -> None:
        self.owns(m[1], int(m[2]))

    def _touches(self, m: re.Match[str]) -> None:
        self.pending.append((m[1], int(m[2])))

    def _called(self, m: re.Match[str]) -> None:
        result, type, name, operands, rest = m.groups()
        pointers = _PARAMETER.findall(operands)
        if name.startswith("llvm.mem"):
            self._memory(m, pointers)
        elif name in ("realloc", "free"):
            self._stored(pointers[0], "0", "0")  # nothing may be reached through it any more
            self.add(m[0])
            if result:
                self.owns(result, operands.rpartition(" ")[2])
        elif name in self.inner:
            if self.name.startswith("part"):
                self.add(f"store i64 {len(self.sites.calls)}, ptr @check.call")
                self.sites.calls.append((name, [self.named.get(p, p) for p in pointers]))
            bounds = [f"i64 {low}, i64 {high}" for low, high in map(self.bounds, pointers)]
            operands = ", ".join([operands, *bounds])
            self.add(f"{f'{result} = ' if result else ''}call {type} @{name}({operands}){rest}")
        else:
            self._foreign(m)

    def _memory(self, m: re.Match[str], pointers: Sequence[str]) -> None:
        """A copy of memory, or memory filled: of nothing, if any of it is outside."""
        _, type, name, operands, rest = m.groups()
        *_, size, volatile = operands.split(", ")
        amount = size.removeprefix("i64 ")
        places = [self.checked(p, int(amount) if amount.isdigit() else amount, m[0]) for p in pointers]
        for p, place in zip(pointers, places, strict=True):
            good, left = self.new(), self.new()
            self.add(f"{good} = icmp eq ptr {p}, {place}", f"{left} = select i1 {good}, i64 {amount}, i64 0")
            amount = left
        others = [o for o in operands.split(", ")[:-2] if not o.startswith("ptr ")]
        operands = ", ".join([*[f"ptr {p}" for p in places], *others, f"i64 {amount}", volatile])
        self.add(f"call {type} @{name}({operands}){rest}")

    def _foreign(self, m: re.Match[str]) -> None:
        """A call of code that has no checks: what it touches is checked before; it is left out if that is wrong."""
        result, type, name, operands, rest = m.groups()
        if not self.pending:
            raise ProgramError(f"@{self.name}: nothing says which memory @{name} touches")
        good = "true"
        for pointer, size in self.pending:
            place, same, both = self.checked(pointer, size, m[0]), self.new(), self.new()
            self.add(f"{same} = icmp eq ptr {pointer}, {place}", f"{both} = and i1 {good}, {same}")
            good = both
        self.pending = []
        types = ", ".join([o.partition(" ")[0] for o in operands.split(", ")])
        end = "ret void" if type == "void" else f"ret {type} 0"
        self.stubs[name] = f"define internal {type} @check.no.{name}({types}) noinline nounwind {{\n  {end}\n}}"
        function = self.new()
        self.add(f"{function} = select i1 {good}, ptr @{name}, ptr @check.no.{name}")
        self.add(f"{f'{result} = ' if result else ''}call {type} {function}({operands}){rest}")

    def _same(self, m: re.Match[str]) -> None:
        self.add(m[0])

    _HANDLERS = (
        (_ACCESS, _access),
        (_GEP, _gep),
        (_CALL, _called),
        (_SELECT, _select),
        (_TO_INT, _to_int),
        (_FROM_INT, _from_int),
        (_COMPARE, _same),
        (_ALLOCA, _alloca),
        (_IS, _is),
        (_TOUCHES, _touches),
    )


__all__ = ["FAULT", "Site", "Sites", "buffer", "declares", "fresh", "instrumented", "parameter", "touches"]
