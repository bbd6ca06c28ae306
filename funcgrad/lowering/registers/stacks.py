"""Stacks in machine code: what loops of unknown length hand out, and what they carry.

A stack is three integers wherever it stands, in registers, in memory or as the row of another stack: the address of
the description of its rows, the first of them that it has, and how many. A description says where row 0 is, how far
apart the rows are, how many there are, how many there is room for, and which memory it owns. All descriptions of a
call lie together, and what they own is freed when it ends, however it ends.

What a loop hands out or carries is its own: rows of stacks are copied into buffers of the loop, one for each level of
stacks. So what a body makes is of no use after the trip, a loop begins with empty buffers whenever it runs, and no
buffer grows while it is read. (One copy is saved: rows that a loop makes in straight-line code, and the loop around
hands out as they are, are put behind those of the trip before, until the loop around begins again.) The values of one
trip lie side by side in one buffer. Reading beyond the end of a stack gives zeros: an empty one stands for zeros of any
length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from funcgrad.base.dtypes import INT
from funcgrad.core.ir import Aval, Stack, make_aval
from funcgrad.lowering.builder import Builder
from funcgrad.lowering.registers.cells import I64, StackCell
from funcgrad.lowering.values import Value, make_type

WORDS = 3  # of a stack in memory
START, STRIDE, ROWS, CAPACITY, OWNED, DESCRIPTION = range(6)  # the words of a description, and how many they are
OUT_OF_MEMORY = -3  # -1 is what an entry returns for a damaged arena, -2 an interrupt
BIT = make_type("i1")
LEAST = 4096  # bytes of the rows that a growing buffer has room for at least, if it has any


@dataclass(frozen=True, slots=True)
class Growing(Aval):
    """The type of descriptions, which lie in memory one after the other."""


def growing(count: int) -> Growing:
    """The type of that many descriptions."""
    return Growing((DESCRIPTION * count,), INT)


def in_memory(aval: Aval) -> Aval:
    """The type of what stands in memory for a value: a stack is three integers there."""
    return make_aval((WORDS,), INT) if isinstance(aval, Stack) else aval


def bytes_of(aval: Aval) -> int:
    """Bytes that a value takes in memory."""
    held = in_memory(aval)
    return held.size * held.dtype.itemsize


def depth_of(aval: Stack) -> int:
    """Levels of stacks."""
    return 1 + (depth_of(aval.elem) if isinstance(aval.elem, Stack) else 0)


def _leaf(aval: Stack) -> int:
    """Bytes of a row of the innermost stacks."""
    return _leaf(aval.elem) if isinstance(aval.elem, Stack) else bytes_of(aval.elem)


GROW = """declare { i64, i1 } @llvm.umul.with.overflow.i64(i64, i64)

define internal i1 @grow(ptr %description, i64 %rows, i64 %row) #0 {
entry:
  %product = call { i64, i1 } @llvm.umul.with.overflow.i64(i64 %rows, i64 %row)
  %bytes = extractvalue { i64, i1 } %product, 0
  %over = extractvalue { i64, i1 } %product, 1
  %large = icmp ugt i64 %bytes, 4611686018427387904
  %many = or i1 %over, %large
  br i1 %many, label %none, label %fit
fit:
  %size = add i64 %bytes, 8
  %mp = getelementptr i64, ptr %description, i64 4
  %old = load ptr, ptr %mp
  %new = call ptr @realloc(ptr %old, i64 %size)
  %null = icmp eq ptr %new, null
  br i1 %null, label %none, label %done
none:
  ret i1 false
done:
  store ptr %new, ptr %description
  %sp = getelementptr i64, ptr %description, i64 1
  store i64 %row, ptr %sp
  %cp = getelementptr i64, ptr %description, i64 3
  store i64 %rows, ptr %cp
  store ptr %new, ptr %mp
  ret i1 true
}
"""

COPY = """define internal i1 @copy_stack(ptr %from, ptr %to, ptr %into, ptr %named, i64 %depth, i64 %leaf) #0 {
entry:
  %slot = load i64, ptr %from
  %fp = getelementptr i64, ptr %from, i64 1
  %first = load i64, ptr %fp
  %np = getelementptr i64, ptr %from, i64 2
  %count = load i64, ptr %np
  %rp = getelementptr i64, ptr %into, i64 2
  %rows = load i64, ptr %rp
  %cp = getelementptr i64, ptr %into, i64 3
  %capacity = load i64, ptr %cp
  %last = icmp eq i64 %depth, 1
  %row = select i1 %last, i64 %leaf, i64 24
  %need = add i64 %rows, %count
  %full = icmp ugt i64 %need, %capacity
  br i1 %full, label %more, label %room
more:
  %double = shl i64 %capacity, 1
  %enough = icmp ugt i64 %double, %need
  %size = select i1 %enough, i64 %double, i64 %need
  %ok = call i1 @grow(ptr %into, i64 %size, i64 %row)
  br i1 %ok, label %room, label %none
none:
  ret i1 false
room:
  store i64 %need, ptr %rp
  %name = ptrtoint ptr %named to i64
  store i64 %name, ptr %to
  %tf = getelementptr i64, ptr %to, i64 1
  store i64 %rows, ptr %tf
  %tn = getelementptr i64, ptr %to, i64 2
  store i64 %count, ptr %tn
  %any = icmp ne i64 %count, 0
  br i1 %any, label %copy, label %done
copy:
  %source = inttoptr i64 %slot to ptr
  %data = load ptr, ptr %source
  %sp = getelementptr i64, ptr %source, i64 1
  %step = load i64, ptr %sp
  %before = mul i64 %first, %step
  %old = getelementptr i8, ptr %data, i64 %before
  %target = load ptr, ptr %into
  %behind = mul i64 %rows, %row
  %new = getelementptr i8, ptr %target, i64 %behind
  %dense = icmp eq i64 %step, %row
  %whole = and i1 %last, %dense
  %eight = icmp eq i64 %row, 8
  %word = and i1 %last, %eight
  %inner = getelementptr i64, ptr %into, i64 5
  %called = getelementptr i64, ptr %named, i64 5
  %less = sub i64 %depth, 1
  br i1 %whole, label %bytes, label %apart
bytes:
  %n = mul i64 %count, %row
  call void @llvm.memcpy.p0.p0.i64(ptr %new, ptr %old, i64 %n, i1 false)
  br label %done
apart:
  br i1 %word, label %numbers, label %one
numbers:
  %m = phi i64 [ 0, %apart ], [ %after, %numbers ]
  %ma = mul i64 %m, %step
  %mp = getelementptr i8, ptr %old, i64 %ma
  %x = load i64, ptr %mp, align 1
  %mt = getelementptr i64, ptr %new, i64 %m
  store i64 %x, ptr %mt, align 1
  %after = add i64 %m, 1
  %further = icmp ult i64 %after, %count
  br i1 %further, label %numbers, label %done
one:
  %k = phi i64 [ 0, %apart ], [ %next, %on ]
  %at = mul i64 %k, %step
  %op = getelementptr i8, ptr %old, i64 %at
  %put = mul i64 %k, %row
  %tp = getelementptr i8, ptr %new, i64 %put
  br i1 %last, label %array, label %stack
array:
  call void @llvm.memcpy.p0.p0.i64(ptr %tp, ptr %op, i64 %row, i1 false)
  br label %on
stack:
  %fine = call i1 @copy_stack(ptr %op, ptr %tp, ptr %inner, ptr %called, i64 %less, i64 %leaf)
  br i1 %fine, label %on, label %none
on:
  %next = add i64 %k, 1
  %others = icmp ult i64 %next, %count
  br i1 %others, label %one, label %done
done:
  ret i1 true
}
"""


def _need_grow(b: Builder) -> None:
    b.shared.declares["declare ptr @realloc(ptr, i64)"] = None
    b.need_function("grow", [I64] * 3, [BIT], lambda: GROW)


def need_copy(b: Builder) -> None:
    """Put the function that copies stacks into the module."""
    _need_grow(b)
    b.shared.declares["declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)"] = None
    b.need_function("copy_stack", [I64] * 6, [BIT], lambda: COPY)


def hand_over(place: str, aval: Stack, n: int) -> list[str]:
    """Copy the rows of a stack that is a result to where the caller wants them: its descriptions follow at `place`."""
    return [
        f"  %into{n} = getelementptr i64, ptr {place}, i64 {WORDS}",
        f"  %over{n} = call i1 @copy_stack(ptr {place}, ptr {place}, ptr %into{n}, ptr %into{n}, "
        f"i64 {depth_of(aval)}, i64 {_leaf(aval)})",
        f"  br i1 %over{n}, label %given{n}, label %short{n}",
        f"short{n}:",
        f"  ret i64 {OUT_OF_MEMORY}",
        f"given{n}:",
    ]


# -- one stack


def load_stack(b: Builder, pointer: str, aval: Stack) -> StackCell:
    """A stack from memory."""
    words = [b.emit(I64, f"load i64, ptr {_word(b, pointer, k)}") for k in range(WORDS)]
    return StackCell(*words, aval)


def store_stack(b: Builder, pointer: str, cell: StackCell) -> None:
    """Write a stack to memory."""
    for k, word in enumerate(cell.words):
        b.lines.append(f"  store i64 {word.text}, ptr {_word(b, pointer, k)}")


def _word(b: Builder, pointer: str, k: int) -> str:
    return b.emit(I64, f"getelementptr i64, ptr {pointer}, i64 {k}").text if k else pointer


class Reader:
    """The rows of a stack, to be read while a loop runs; made before the loop.

    Rows beyond the end are zeros.
    """

    def __init__(self, b: Builder, cell: StackCell) -> None:
        self.count = cell.count
        b.shared.zeros = max(b.shared.zeros, bytes_of(cell.aval.elem), 8 * DESCRIPTION)
        some = b.ne(cell.count, 0)
        named = b.emit(I64, f"inttoptr i64 {cell.slot.text} to ptr")
        place = b.emit(I64, f"select i1 {some.text}, ptr {named.text}, ptr @zeros").text
        start = b.emit(I64, f"load ptr, ptr {place}")
        self.stride = b.emit(I64, f"load i64, ptr {_word(b, place, STRIDE)}")
        before = b.imul(cell.first, self.stride)
        self.base = b.emit(I64, f"getelementptr i8, ptr {start.text}, i64 {before.text}").text

    def row(self, b: Builder, i: Value) -> str:
        """The address of row `i`."""
        inside = b.emit(BIT, f"icmp ult i64 {i.text}, {self.count.text}")
        p = b.emit(I64, f"getelementptr i8, ptr {self.base}, i64 {b.imul(i, self.stride).text}")
        return b.emit(I64, f"select i1 {inside.text}, ptr {p.text}, ptr @zeros").text


def must(b: Builder, ok: Value, fail: Callable[[], None]) -> None:
    """Go on if `ok`; `fail` emits the way out of the function."""
    b.count = n = b.count + 1
    b.lines += [f"  br i1 {ok.text}, label %fine{n}, label %short{n}", f"short{n}:"]
    fail()
    b.lines.append(f"fine{n}:")
    b.block = f"fine{n}"


# -- what a loop owns


class Owned:
    """Growing buffers for stacks of given types: of each one for every level.

    Parameters
    ----------
    pointer
        The address of the descriptions.
    fail
        Emits the way out of the function when there is no memory.
    sets
        How many such buffers there are for each stack.
    """

    def __init__(
        self, b: Builder, pointer: str, avals: Sequence[Stack], fail: Callable[[], None], sets: int = 1
    ) -> None:
        self.b, self.pointer, self.avals, self.fail, self.sets = b, pointer, avals, fail, sets
        self.at: list[int] = []
        total = 0
        for a in avals:
            self.at.append(total)
            total += sets * depth_of(a)

    @staticmethod
    def type_for(avals: Sequence[Stack], sets: int = 1) -> Growing:
        """The type of all descriptions."""
        return growing(sum([sets * depth_of(a) for a in avals]))

    def description(self, j: int, level: int = 0, part: int = 0) -> str:
        """The address of the description for a level of stack `j`, in one of its sets."""
        k = self.at[j] + part * depth_of(self.avals[j]) + level
        return _word(self.b, self.pointer, DESCRIPTION * k)

    def copy(self, j: int, source: str, target: str, level: int = 0, part: int = 0) -> None:
        """Append the rows of the stack at `source` to the buffers from a level on; what it is now goes to `target`.

        Of several sets, the rows go to `part`, and the stack names the first: they are to change places.
        """
        b, aval = self.b, self.avals[j]
        need_copy(b)
        into, named = self.description(j, level, part), self.description(j, level)
        operands = f"ptr {source}, ptr {target}, ptr {into}, ptr {named}, i64 {depth_of(aval) - level}"
        must(b, b.emit(BIT, f"call i1 @copy_stack({operands}, i64 {_leaf(aval)})"), self.fail)

    def empty(self, j: int, level: int, part: int = 0) -> None:
        """Forget the rows of a stack, from a level on."""
        for k in range(level, depth_of(self.avals[j])):
            self.b.lines.append(f"  store i64 0, ptr {_word(self.b, self.description(j, k, part), ROWS)}")


class Handed(Owned):
    """The stacks that a loop hands out, with a row for each trip: the rows of all lie in the buffer of the first.

    Those of a loop in another one may be `kept`: they are put behind those of its last run, until the outer one begins.
    """

    def begin(self, kept: bool = False) -> None:
        """Before the first trip."""
        rows = _word(self.b, self.description(0), ROWS)
        self.first = self.b.emit(I64, f"load i64, ptr {rows}") if kept else None
        for j in range(len(self.avals)):
            self.empty(j, 1)
        widths = [-(-bytes_of(a.elem) // 8) * 8 for a in self.avals]
        self.offsets = [sum(widths[:j]) for j in range(len(widths))]
        self.stride = sum(widths)

    def reserve(self, count: Value) -> None:
        """Room for `count` rows; `row` is good from here on."""
        b, stride = self.b, self.stride
        if self.first is not None:
            most = 1 << 61  # the sum does not wrap, and there is no memory for so many
            count = b.iadd(self.first, b.select(b.lt(count, most), count, most))
        _need_grow(b)
        capacity = b.emit(I64, f"load i64, ptr {_word(b, self.description(0), CAPACITY)}")
        full = b.gt(count, capacity)
        b.count = n = b.count + 1
        b.lines += [f"  br i1 {full.text}, label %grow{n}, label %room{n}", f"grow{n}:"]
        b.block = f"grow{n}"
        double = b.imul(capacity, 2)
        size = b.select(b.gt(double, count), double, count)
        least = max(LEAST // max(stride, 1), 1)
        size = b.select(b.gt(size, least), size, least)
        must(b, b.emit(BIT, f"call i1 @grow(ptr {self.description(0)}, i64 {size.text}, i64 {stride}) cold"), self.fail)
        self._spread()
        b.lines += [f"  br label %room{n}", f"room{n}:"]
        b.block = f"room{n}"
        self.data = b.emit(I64, f"load ptr, ptr {self.description(0)}").text

    def _spread(self) -> None:
        """Say where the rows of the other stacks are, after those of the first have moved."""
        b = self.b
        data = b.emit(I64, f"load ptr, ptr {self.description(0)}").text
        for j, offset in enumerate(self.offsets[1:], 1):
            place = self.description(j)
            start = b.emit(I64, f"getelementptr i8, ptr {data}, i64 {offset}")
            b.lines.append(f"  store ptr {start.text}, ptr {place}")
            b.lines.append(f"  store i64 {self.stride}, ptr {_word(b, place, STRIDE)}")

    def row(self, j: int, i: Value) -> str:
        """The address of the value of stack `j` in row `i`."""
        b = self.b
        at = b.iadd(b.imul(self._behind(i), self.stride), self.offsets[j])
        return b.emit(I64, f"getelementptr i8, ptr {self.data}, i64 {at.text}").text

    def _behind(self, i: Value) -> Value:
        return i if self.first is None else self.b.iadd(self.first, i)

    def end(self, count: Value) -> list[StackCell]:
        """The stacks when `count` trips were made."""
        b = self.b
        if self.first is not None:
            b.lines.append(f"  store i64 {self._behind(count).text}, ptr {_word(b, self.description(0), ROWS)}")
        slots = [b.emit(I64, f"ptrtoint ptr {self.description(j)} to i64") for j in range(len(self.avals))]
        first = self.first or Value("0", I64)
        return [StackCell(slot, first, count, a) for slot, a in zip(slots, self.avals, strict=True)]


class Carried(Owned):
    """The stacks that a loop carries: two sets of buffers, since the next values are made of the present ones."""

    def next(self, sources: Sequence[str], targets: Sequence[str]) -> None:
        """Take over the values of the next trip, from the addresses `sources`; what they are goes to `targets`."""
        b = self.b
        for j, (source, target) in enumerate(zip(sources, targets, strict=True)):
            self.empty(j, 0, 1)
            self.copy(j, source, target, part=1)
        for j, a in enumerate(self.avals):  # all are copied: nothing reads the old ones any more
            one, other = self.description(j), self.description(j, part=1)
            for k in range(DESCRIPTION * depth_of(a)):
                places = [_word(b, p, k) for p in (one, other)]
                words = [b.emit(I64, f"load i64, ptr {p}") for p in places]
                for p, w in zip(places, reversed(words), strict=True):
                    b.lines.append(f"  store i64 {w.text}, ptr {p}")


__all__ = ["Carried", "Growing", "Handed", "Reader", "in_memory", "load_stack", "store_stack"]
