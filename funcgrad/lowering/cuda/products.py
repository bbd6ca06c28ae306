"""Matrix products on the GPU: a block makes a tile of the result, from tiles of the factors in its shared memory.

Each of 16 x 16 threads sums some elements of the tile, 16 or 32 or 64 wide, in the order of k, multiplying and adding
with one rounding as the CPU's tiles and every BLAS do. A product with a vector is no tile but a sum (see `as_loop`).
"""

from __future__ import annotations

from functools import partial

from funcgrad.core.ir import Equation, Var, make_aval
from funcgrad.core.primitive import registry
from funcgrad.lowering.builder import Builder
from funcgrad.lowering.cuda.threads import (
    BLOCK,
    I1,
    I32,
    Launch,
    barrier,
    digits,
    from_to,
    only_if,
    register,
    shared_array,
)
from funcgrad.lowering.kernels import Loop, Product, Schedule
from funcgrad.lowering.layout import View
from funcgrad.lowering.nests import I64, Carries, when
from funcgrad.lowering.values import Shared, Target, Value, constant, make_type

SIDE = 16  # threads along each side of a block, and the depth of a tile


def as_loop(p: Product, s: Schedule) -> Loop | None:
    """A product whose result is one row or column (or a batch of them) as products that are summed, or None."""
    (size, rows, depth), columns = p.x.shape, p.y.shape[2]
    if min(rows, columns) > 1 or not p.out.is_contiguous:
        return None
    shape = (size, rows, columns, depth)
    x, y, product = [Var(make_aval(shape, p.dtype)) for _ in range(3)]
    out = Var(make_aval(shape[:3], p.dtype))
    s.shared[out] = s.shared.get(p.out.root, p.out.root)
    s.views[x] = p.x.broadcast(shape, (0, 1, 3))
    s.views[y] = p.y.permuted((0, 2, 1)).broadcast(shape, (0, 2, 3))
    multiply = Equation(registry["mul"], (x, y), {}, (product,), None)
    total = Equation(registry["reduce_sum"], (product,), {"axes": (3,)}, (out,), None)
    return Loop(shape, [multiply], [total], (3,))


def product_launches(product: Product, target: Target, shared: Shared) -> list[Launch]:
    """The kernel of a product."""
    return [_Tiles(product, Builder(target, 1, shared)).launch()]


class _Tiles:
    def __init__(self, product: Product, b: Builder) -> None:
        self.b, self.p = b, product
        self.batch, self.rows, self.depth = product.x.shape
        self.columns = product.y.shape[2]
        self.high, self.wide = _threads_of(self.rows), _threads_of(self.columns)  # elements of a thread
        self.type = make_type("double" if product.dtype.itemsize == 8 else "float")
        roots = list(dict.fromkeys([product.x.root, product.y.root, product.out.root]))
        self.names = {r: f"%p{k}" for k, r in enumerate(roots)}
        self.roots = tuple(roots)

    def launch(self) -> Launch:
        """The kernel."""
        b, t = self.b, self.type
        down, right = SIDE * self.high, SIDE * self.wide
        tiles = -(-self.rows // down), -(-self.columns // right)
        thread, block = register(b, "tid.x"), register(b, "ctaid.x")
        batch, row, column = digits(b, block, (self.batch, *tiles))
        row, column = b.imul(row, down), b.imul(column, right)
        x = shared_array(b, f"left.{t.suffix}.{down}", t, SIDE * (down + 1))
        y = shared_array(b, f"right.{t.suffix}.{right}", t, SIDE * (right + 1))
        ty, tx = b.lshr(thread, constant(I32, 4)), b.and_(thread, SIDE - 1)

        def trip(k: Value, sums: Carries) -> Carries:
            deep = b.emit(I64, f"zext i32 {k.text} to i64")
            self._fill(x, self.p.x, batch, row, deep, down, thread, by_depth=self.p.x.strides[2] == 1)
            self._fill(y, self.p.y.permuted((0, 2, 1)), batch, column, deep, right, thread, self.p.y.strides[2] != 1)
            barrier(b)
            for step in range(SIDE):
                lefts = [self._shared(x, step * (down + 1) + SIDE * r, ty) for r in range(self.high)]
                rights = [self._shared(y, step * (right + 1) + SIDE * c, tx) for c in range(self.wide)]
                sums = [
                    b.fma(left, other, sums[r * self.wide + c])
                    for r, left in enumerate(lefts)
                    for c, other in enumerate(rights)
                ]
            barrier(b)
            return sums

        zero = constant(t, 0)
        sums = from_to(b, constant(I32, 0), self.depth, SIDE, [zero] * (self.high * self.wide), trip)
        for r in range(self.high):
            for c in range(self.wide):
                i = b.iadd(row, self._plus(ty, SIDE * r))
                j = b.iadd(column, self._plus(tx, SIDE * c))
                inside = b.and_(self._below(i, self.rows), self._below(j, self.columns))
                value = sums[r * self.wide + c]
                only_if(b, inside, partial(self._store, value, batch, i, j))
        lines = "\n".join(b.lines)
        parameters = ", ".join([f"ptr {p}" for p in self.names.values()])
        text = f"define internal void @KERNEL({parameters}) #0 {{\nentry:\n{lines}\n  ret void\n}}\n"
        return Launch(text, self.roots, frozenset([self.p.out.root]), self.batch * tiles[0] * tiles[1])

    def _fill(
        self, place: str, v: View, batch: Value, first: Value, deep: Value, side: int, thread: Value, by_depth: bool
    ) -> None:
        """Copy a tile of `v` (batch, side, depth) into shared memory, zeros where it ends.

        Neighbouring threads read along the depth if `by_depth`, else along the side.
        """
        b, t = self.b, self.type
        n, depth = v.shape[1], v.shape[2]
        for part in range(side // SIDE):
            flat = b.iadd(thread, part * BLOCK) if part else thread
            if by_depth:
                i, k = b.lshr(flat, constant(I32, 4)), b.and_(flat, SIDE - 1)
            else:
                shift = side.bit_length() - 1
                k, i = b.lshr(flat, constant(I32, shift)), b.and_(flat, side - 1)
            at, down = b.iadd(first, self._wide(i)), b.iadd(deep, self._wide(k))
            inside = b.and_(self._below(at, n), self._below(down, depth))
            load = lambda _, at=at, down=down: [b.emit(t, f"load {t}, ptr {self._place(v, batch, at, down)}")]
            (value,) = when(b, inside, [constant(t, 0)], load)
            slot = b.iadd(b.imul(k, side + 1), i)
            p = b.emit(I64, f"getelementptr {t}, ptr addrspace(3) {place}, i32 {slot.text}")
            b.lines.append(f"  store {t} {value.text}, ptr addrspace(3) {p.text}")

    def _shared(self, place: str, fixed: int, index: Value) -> Value:
        b, t = self.b, self.type
        at = b.iadd(index, fixed) if fixed else index
        p = b.emit(I64, f"getelementptr {t}, ptr addrspace(3) {place}, i32 {at.text}")
        return b.emit(t, f"load {t}, ptr addrspace(3) {p.text}")

    def _place(self, v: View, *index: Value) -> str:
        b = self.b
        flat = constant(I64, v.offset)
        for i, stride in zip(index, v.strides, strict=True):
            if stride:
                flat = b.iadd(flat, i if stride == 1 else b.imul(i, stride))
        return b.emit(I64, f"getelementptr {self.type}, ptr {self.names[v.root]}, i64 {flat.text}").text

    def _store(self, value: Value, *index: Value) -> None:
        self.b.lines.append(f"  store {self.type} {value.text}, ptr {self._place(self.p.out, *index)}")

    def _wide(self, x: Value) -> Value:
        return self.b.emit(I64, f"zext i32 {x.text} to i64")

    def _plus(self, x: Value, n: int) -> Value:
        return self._wide(self.b.iadd(x, n) if n else x)

    def _below(self, x: Value, n: int) -> Value:
        return self.b.emit(I1, f"icmp ult i64 {x.text}, {n}")


def _threads_of(n: int) -> int:
    """Elements of a side of the result for each thread."""
    return 4 if n > 32 else 2 if n > SIDE else 1
