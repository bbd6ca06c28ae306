"""What the threads of a GPU do, as LLVM text: who am I, one index per thread, a block that joins its partial results.

A kernel is launched as a grid of blocks of `BLOCK` threads. Indices are computed in 32 bits wherever a space has fewer
than 2^31 of them, so that no division of 64 bits is ever needed; sizes are constants, and LLVM turns the divisions by
them into products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

from funcgrad.lowering.builder import Builder
from funcgrad.lowering.nests import I64, Access, Carries, Nest, NestEmitter, Pointers
from funcgrad.lowering.values import Type, Value, constant, make_type

BLOCK = 256  # threads of a block
WARP = 32
I32 = make_type("i32")
I1 = make_type("i1")
FULL = "-1"  # the mask of all lanes of a warp


def register(b: Builder, name: str) -> Value:
    """A special register, such as ``tid.x``: i32."""
    full = f"@llvm.nvvm.read.ptx.sreg.{name}"
    b.shared.declares[f"declare i32 {full}()"] = None
    return b.once(name, Value(name, I32), lambda: b.emit(I32, f"call i32 {full}()"))


def widened(b: Builder, x: Value) -> Value:
    """A number of 32 bits, which is not negative, as one of 64."""
    return x if x.type is I64 else b.emit(I64, f"zext i32 {x.text} to i64")


def flat_thread(b: Builder, total: int) -> Value:
    """The number of this thread in the grid, of a type that holds `total` and a block more."""
    block, thread = register(b, "ctaid.x"), register(b, "tid.x")
    if total >= 2**31 - BLOCK:
        return b.iadd(b.imul(widened(b, block), BLOCK), widened(b, thread))
    return b.iadd(b.imul(block, BLOCK), thread)


def digits(b: Builder, flat: Value, sizes: Sequence[int]) -> list[Value]:
    """The indices of element `flat` of a space in C order, of 64 bits each."""
    out: list[Value] = []
    for n in reversed(sizes[1:]):
        if n == 1:
            out.append(constant(I64, 0))
            continue
        quotient = b.emit(flat.type, f"udiv {flat.type} {flat.text}, {n}")
        out.append(widened(b, b.isub(flat, b.imul(quotient, n))))
        flat = quotient
    out += [widened(b, flat)] if sizes else []
    return out[::-1]


def only_if(b: Builder, condition: Value, body: Callable[[], None]) -> None:
    """``if condition: body()``"""
    b.count = n = b.count + 1
    b.lines += [f"  br i1 {condition.text}, label %then{n}, label %after{n}", f"then{n}:"]
    b.block, memo = f"then{n}", dict(b.memo)
    body()
    b.memo = memo
    b.lines += [f"  br label %after{n}", f"after{n}:"]
    b.block = f"after{n}"


def from_to(
    b: Builder, first: Value, end: Value | int, step: int, carries: Carries, body: Callable[[Value, Carries], Carries]
) -> Carries:
    """``for index in range(first, end, step): carries = body(index, carries)``; the final carries. 32 bits."""
    b.count = n = b.count + 1
    before = b.block
    head, trip, done = f"from{n}", f"trip{n}", f"done{n}"
    b.lines += [f"  br label %{head}", f"{head}:"]
    at = len(b.lines)
    index = Value(f"%i{n}", first.type)
    inside = [Value(f"%c{n}.{k}", c.type) for k, c in enumerate(carries)]
    text = end.text if isinstance(end, Value) else str(end)
    b.block = head
    more = b.emit(I1, f"icmp ult {index.type} {index.text}, {text}")
    b.lines += [f"  br i1 {more.text}, label %{trip}, label %{done}", f"{trip}:"]
    b.block, memo = trip, dict(b.memo)
    after = body(index, inside)
    b.memo = memo
    following = b.iadd(index, step)
    b.lines.append(f"  br label %{head}")
    phis = [f"  {index.text} = phi {index.type} [ {first.text}, %{before} ], [ {following.text}, %{b.block} ]"]
    for c, start, end_ in zip(inside, carries, after, strict=True):
        assert start.type is end_.type, "a carry changed its type"
        phis.append(f"  {c.text} = phi {c.type} [ {start.text}, %{before} ], [ {end_.text}, %{b.block} ]")
    b.lines[at:at] = phis
    b.lines.append(f"{done}:")
    b.block = done
    return inside


def note_first(b: Builder, status: str, code: int, value: Value | None = None) -> None:
    """Write a code and a value to the status, unless another thread did before."""
    pair = b.emit(I64, f"cmpxchg ptr {status}, i64 0, i64 {code} monotonic monotonic")
    first = b.emit(I1, f"extractvalue {{ i64, i1 }} {pair.text}, 1")

    def note() -> None:
        if value is not None:
            slot = b.emit(I64, f"getelementptr i64, ptr {status}, i64 1")
            b.lines.append(f"  store i64 {value.text}, ptr {slot.text}")

    only_if(b, first, note)


def barrier(b: Builder) -> None:
    """All threads of the block wait for each other, and see what the others wrote."""
    b.shared.declares["declare void @llvm.nvvm.barrier0()"] = None
    b.lines.append("  call void @llvm.nvvm.barrier0()")


def shared_array(b: Builder, name: str, type: Type, length: int) -> str:
    """Memory of a block: `length` elements; its name as an operand of type ``ptr addrspace(3)``."""
    line = f"@{name} = internal addrspace(3) global [{length} x {type}] undef, align 16"
    b.shared.declares[line] = None
    return f"@{name}"


def shuffled(b: Builder, x: Value, distance: int, up: bool = False) -> Value:
    """The value that the lane `distance` further on in the warp has; before, if `up`. All lanes of the warp take part.

    Lanes for which there is no such lane get their own.
    """
    t = x.type
    how, last = ("up", 0) if up else ("down", WARP - 1)
    bits = b.bits(x) if t.is_float else x
    width = bits.type.bits
    b.shared.declares[f"declare i32 @llvm.nvvm.shfl.sync.{how}.i32(i32, i32, i32, i32)"] = None

    def one(word: Value) -> Value:
        return b.emit(
            I32, f"call i32 @llvm.nvvm.shfl.sync.{how}.i32(i32 {FULL}, i32 {word.text}, i32 {distance}, i32 {last})"
        )

    if width < 32:
        wide = b.emit(I32, f"zext {bits.type} {bits.text} to i32")
        got = b.emit(bits.type, f"trunc i32 {one(wide).text} to {bits.type}")
    elif width == 32:
        got = one(bits)
    else:
        low = b.emit(I32, f"trunc i64 {bits.text} to i32")
        high = b.emit(I32, f"trunc i64 {b.lshr(bits, 32).text} to i32")
        low, high = one(low), one(high)
        got = b.or_(b.shl(widened(b, high), constant(I64, 32)), widened(b, low))
    return b.from_bits(got) if t.is_float else got


def lane_of(b: Builder, x: Value, k: int) -> Value:
    """A number of a vector."""
    return x if x.type.lanes == 1 else b.emit(make_type(x.type.element), f"extractelement {x.type} {x.text}, i64 {k}")


def from_lanes(b: Builder, values: Sequence[Value]) -> Value:
    """Numbers as a vector."""
    if len(values) == 1:
        return values[0]
    t = make_type(values[0].type.element, len(values))
    out = Value("poison", t)
    for k, x in enumerate(values):
        out = b.emit(t, f"insertelement {t} {out.text}, {x.type} {x.text}, i64 {k}")
    return out


def join_block(
    b: Builder, carries: Carries, join: Callable[[Carries, Carries], Carries], threads: int = BLOCK
) -> Carries:
    """The carries of all threads of a block as one; those of thread 0 are right, the others' are not."""
    assert threads % WARP == 0

    def warp(carries: Carries, lanes: int) -> Carries:
        distance = lanes // 2
        while distance:
            carries = join(carries, [shuffled(b, c, distance) for c in carries])
            distance //= 2
        return carries

    carries = warp(carries, WARP)
    warps = threads // WARP
    if warps == 1:
        return carries
    thread = register(b, "tid.x")
    places = [
        (shared_array(b, f"joined.{k}.{_stored(c.type).suffix}.{warps}", _stored(c.type), warps), c.type)
        for k, c in enumerate(carries)
    ]
    first_lane = b.emit(I1, f"icmp eq i32 {b.and_(thread, WARP - 1).text}, 0")

    def put() -> None:
        number = b.lshr(thread, constant(I32, 5))
        for (place, t), c in zip(places, carries, strict=True):
            p = b.emit(I64, f"getelementptr {_stored(t)}, ptr addrspace(3) {place}, i32 {number.text}")
            value = b.emit(_stored(t), f"zext {t} {c.text} to {_stored(t)}") if t.bits == 1 else c
            b.lines.append(f"  store {value.type} {value.text}, ptr addrspace(3) {p.text}")

    only_if(b, first_lane, put)
    barrier(b)
    lane = b.emit(I32, f"urem i32 {thread.text}, {warps}")
    found: Carries = []
    for place, t in places:
        p = b.emit(I64, f"getelementptr {_stored(t)}, ptr addrspace(3) {place}, i32 {lane.text}")
        value = b.emit(_stored(t), f"load {_stored(t)}, ptr addrspace(3) {p.text}")
        found.append(b.ne(value, 0) if t.bits == 1 else value)
    return warp(found, warps)


def before_me(
    b: Builder, carries: Carries, start: Carries, combine: Callable[[Carries, Carries], Carries], threads: int = BLOCK
) -> Carries:
    """The carries of all threads of a block before this one, combined in their order; `start` for the first."""
    thread = register(b, "tid.x")
    lane, warp = b.and_(thread, WARP - 1), b.lshr(thread, constant(I32, 5))
    some = lambda c, x, y: [b.select(c, p, q) for p, q in zip(x, y, strict=True)]
    distance = 1
    while distance < WARP:
        others = [shuffled(b, c, distance, up=True) for c in carries]
        carries = some(b.ge(lane, distance), combine(others, carries), carries)
        distance *= 2
    mine = some(b.eq(lane, 0), start, [shuffled(b, c, 1, up=True) for c in carries])
    warps = threads // WARP
    places = [shared_array(b, f"before.{k}.{_stored(c.type).suffix}.{warps}", _stored(c.type), warps)
              for k, c in enumerate(carries)]  # fmt: skip

    def put() -> None:
        for place, c in zip(places, carries, strict=True):
            p = b.emit(I64, f"getelementptr {_stored(c.type)}, ptr addrspace(3) {place}, i32 {warp.text}")
            value = b.emit(_stored(c.type), f"zext i1 {c.text} to i8") if c.type.bits == 1 else c
            b.lines.append(f"  store {value.type} {value.text}, ptr addrspace(3) {p.text}")

    only_if(b, b.eq(lane, WARP - 1), put)
    barrier(b)
    total = start
    for w in range(warps - 1):
        found: Carries = []
        for place, c in zip(places, carries, strict=True):
            p = b.emit(I64, f"getelementptr {_stored(c.type)}, ptr addrspace(3) {place}, i32 {w}")
            value = b.emit(_stored(c.type), f"load {_stored(c.type)}, ptr addrspace(3) {p.text}")
            found.append(b.ne(value, 0) if c.type.bits == 1 else value)
        total = some(b.gt(warp, w), combine(total, found), total)
    return combine(total, mine)


def _stored(t: Type) -> Type:
    """The type in memory: conditions take a byte."""
    return make_type("i8", t.lanes) if t.bits == 1 else t


def below(b: Builder, flat: Value, total: int) -> Value:
    """Whether a number that is not negative is below a constant."""
    return b.emit(I1, f"icmp ult {flat.type} {flat.text}, {total}")


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel function without its name (``@KERNEL``), the buffers for its parameters, and its threads.

    Attributes
    ----------
    written
        Those of `roots` that it writes.
    blocks, threads
        Of the grid, and of each block.
    few
        Whether a thread is to take `FEW` registers at most, if nothing spills then.
    """

    text: str
    roots: tuple[Any, ...]
    written: frozenset[Any]
    blocks: int
    threads: int = BLOCK
    few: bool = False


class Moved(Sequence[Access]):
    """Accesses at an index, whose addresses are computed when they are asked for."""

    def __init__(self, emitter: NestEmitter, accesses: Pointers, moves: list[tuple[int, Value]]) -> None:
        self.emitter, self.accesses, self.moves = emitter, accesses, moves
        self.found: dict[int, Access] = {}

    def __len__(self) -> int:
        return len(self.accesses)

    def __getitem__(self, k: Any) -> Any:
        if k not in self.found:
            some = [self.accesses[k]]
            for depth, index in self.moves:
                some = self.emitter.advance(some, depth, index)
            self.found[k] = some[0]
        return self.found[k]


class Threads(NestEmitter):
    """A nest whose outer loops are spread over threads."""

    def fitting(self, n: Nest, widest: int) -> int:
        """16 bytes a thread, if the loop divides by that."""
        assert n.vector is not None
        lanes = super().fitting(n, widest)
        contiguous = any([a.strides[n.vector] == 1 for a in n.accesses if a.root is not None])
        return gcd(lanes, n.sizes[n.vector]) if contiguous else 1

    def at(self, pointers: Pointers, first: int, sizes: list[int], flat: Value) -> tuple[Pointers, Value]:
        """The accesses at element `flat` of the loops from `first` on, and the index of the vectorised one."""
        moves, start = self._moves(first, sizes, flat)
        for depth, index in moves:
            pointers = self.advance(pointers, depth, index)
        return pointers, start

    def _moves(self, first: int, sizes: list[int], flat: Value) -> tuple[list[tuple[int, Value]], Value]:
        """The loops from `first` on with their indices at element `flat`, and the index of the vectorised one."""
        start, moves = constant(I64, 0), list(enumerate(digits(self.b, flat, sizes), first))
        for k, (depth, index) in enumerate(moves):
            if depth == self.nest.vector:
                start = index if self.lanes == 1 else self.b.imul(index, self.lanes)
                moves[k] = depth, start
        return moves, start

    def sizes(self, first: int, end: int) -> list[int]:
        """How often the loops from `first` to `end` run."""
        n = self.nest
        return [size // self.lanes if first + k == n.vector else size for k, size in enumerate(n.sizes[first:end])]

    def each(self, first: int, end: int, body: Callable[[Pointers, Value], object]) -> int:
        """Call `body` in a thread for each index of the loops from `first` to `end`; how many blocks that takes.

        It is straight-line code outside of what it calls: addresses are computed where they are first used.
        """
        b, sizes = self.b, self.sizes(first, end)
        total = prod(sizes)
        flat = flat_thread(b, total)

        def run() -> None:
            moves, start = self._moves(first, sizes, flat)
            body(Moved(self, self.nest.accesses, moves), start)

        only_if(b, below(b, flat, total), run)
        return -(-total // BLOCK)
