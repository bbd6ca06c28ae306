"""Small matrix products as LLVM text: a tile of the result in registers, and one loop over the summed axis.

A call of BLAS costs more than a small product. There are two forms, for the two ways in which operands can lie:

- by columns, where the columns of y (and of the result) are neighbours in memory: some rows times some vectors of
  columns are summed together, ``acc[i, :] += x[i, k] * y[k, :]``;
- by dot products, where x and y are neighbours along k: ``acc[j][:] += x[k : k + lanes] * y[k : k + lanes, j]``, and
  the lanes of each are added at the end.

The transposed product ``out^T = y^T x^T`` gives either form to the other layouts. Nothing is masked: where a block does
not fit, the last one overlaps the one before it, and computes some elements twice.

As BLAS does, it multiplies and adds with one rounding where the processor can, and adds partial sums in an order of
its own; a dot product promises an error bound, not bits.
"""

from __future__ import annotations

from collections.abc import Callable

from funcgrad.lowering.builder import Builder
from funcgrad.lowering.kernels import Product
from funcgrad.lowering.layout import View
from funcgrad.lowering.loops import Carries, repeat
from funcgrad.lowering.values import Shared, Target, Type, Value, constant, make_type

SMALL = 4096  # m n k: above, BLAS is as fast
SKINNY = 60000  # m n k where the result is one row or column
ROWS = 8  # of a tile
VECTORS = {64: 3}  # of columns of a tile, by the bytes of a vector: its sums fill the registers; else 1
BLOCK = 128  # steps of a loop after which the sums of a long one are added to those of the blocks before
CHAINS = 4  # independent sums that hide the latency of an addition
I64 = make_type("i64")


def fits(p: Product) -> bool:
    """Whether a product is computed by a tile rather than by BLAS: it is small, or its result is a vector."""
    (_, m, k), n = p.x.shape, p.y.shape[2]
    return m * k * n <= (SKINNY if min(m, n) == 1 else SMALL) and has_form(p)


def has_form(p: Product) -> bool:
    """Whether a tile can read and write these layouts."""
    return 0 not in (*p.x.shape[1:], *p.y.shape[1:]) and _oriented(p) is not None


def transposed(p: Product) -> Product:
    """``out^T = y^T x^T``."""
    x, y, out = [v.permuted((0, 2, 1)) for v in (p.x, p.y, p.out)]
    return Product(p.dtype, y, x, out)


def _unit(v: View, axis: int) -> bool:
    return v.strides[axis] == 1 or v.shape[axis] == 1


def _oriented(p: Product) -> tuple[Product, bool] | None:
    """The product or its transpose in a form that can be emitted, and whether that is by columns."""
    both = [q for q in (p, transposed(p)) if _unit(q.out, 2)]
    for q in both:
        if q.out.shape[2] > 1 and _unit(q.y, 2):
            return q, True
    for q in both:
        if _unit(q.x, 2) and _unit(q.y, 1):
            return q, False
    return None


def tile_text(product: Product, target: Target, shared: Shared) -> str:
    """The function ``void @KERNEL(ptr %p0, ptr %p1, ptr %p2)``: x, y, out."""
    form = _oriented(product)
    assert form is not None
    p, by_columns = form
    full, (_, _, depth), columns = target.lanes(p.dtype.itemsize), p.x.shape, p.y.shape[2]
    lanes = _lanes(full, columns, p.dtype.itemsize) if by_columns else min(full, _floor(depth))
    t = _Tile(Builder(target, lanes, shared), p, ("%p0", "%p1") if p is product else ("%p1", "%p0"))
    emit = t.by_columns if by_columns else t.by_dots
    repeat(t.b, p.x.shape[0], [], lambda batch, _: emit(batch))
    lines = "\n".join(t.b.lines)
    return f"define internal void @KERNEL(ptr %p0, ptr %p1, ptr %p2) #0 {{\nentry:\n{lines}\n  ret void\n}}\n"


def _floor(n: int) -> int:
    """The largest power of two not above n."""
    return 1 << (n.bit_length() - 1)


def _lanes(full: int, columns: int, itemsize: int) -> int:
    """Of whole and half vectors, those that do the columns in less time: half ones are no faster below 32 bytes."""
    full = min(full, _floor(columns))
    return min((full, max(full // 2, 1)), key=lambda n: (-(-columns // n) * max(n * itemsize, 32), -n))


def _even(n: int, most: int) -> int:
    """Blocks of at most `most`, about equal: their length."""
    return -(-n // -(-n // most))


class _Tile:
    def __init__(self, b: Builder, product: Product, names: tuple[str, str]) -> None:
        self.b = b
        self.x, self.y, self.out = product.x, product.y, product.out
        self.pointers = {id(product.x): names[0], id(product.y): names[1], id(product.out): "%p2"}
        element = "double" if product.dtype.itemsize == 8 else "float"
        self.one, self.type = make_type(element), make_type(element, b.lanes)

    # -- memory

    def place(self, v: View, *index: Value | int) -> str:
        """The address of an element."""
        p = self.pointers[id(v)]
        fixed = v.offset
        for i, stride in zip(index, v.strides, strict=True):
            if isinstance(i, int):
                fixed += i * stride
            elif stride and i.text != "0":
                step = i if stride == 1 else self.b.imul(i, stride)
                p = self.b.emit(I64, f"getelementptr {self.one}, ptr {p}, i64 {step.text}").text
        return self.moved(p, fixed)

    def moved(self, p: str, count: int) -> str:
        """An address so many elements on."""
        return self.b.emit(I64, f"getelementptr {self.one}, ptr {p}, i64 {count}").text if count else p

    def load(self, p: str, type: Type) -> Value:
        """A vector or a scalar."""
        return self.b.emit(type, f"load {type}, ptr {p}, align {self.one.bits // 8}")

    def store(self, value: Value, p: str) -> None:
        """Write a vector or a scalar."""
        self.b.lines.append(f"  store {value.type} {value.text}, ptr {p}, align {self.one.bits // 8}")

    def splat(self, x: Value) -> Value:
        """A scalar in every lane."""
        if self.b.lanes == 1:
            return x
        t = self.type
        one = self.b.emit(t, f"insertelement {t} poison, {x.type} {x.text}, i64 0")
        return self.b.emit(t, f"shufflevector {t} {one.text}, {t} poison, <{t.lanes} x i32> zeroinitializer")

    # -- loops

    def blocks(self, n: int, size: int, body: Callable[[Value], None]) -> None:
        """Call `body` with the first index of each block of n; the last one overlaps if it must."""
        b, last = self.b, n - size

        def step(i: Value, _: Carries) -> Carries:
            start = i if i.text == "0" or size == 1 else b.imul(i, size)
            if n % size and start.text != "0":
                inside = b.emit(make_type("i1"), f"icmp ule i64 {start.text}, {last}")
                start = b.select(inside, start, constant(I64, last))
            body(start)
            return []

        repeat(b, -(-n // size), [], step)

    def summed(self, depth: int, chains: int, width: int, take: Callable[[Value | int, Carries], Carries]) -> Carries:
        """`take` for every index below `depth`: sums of `width` registers, in so many chains that are added up.

        Long ones are summed block by block, so that an error grows with the number of blocks.
        """
        whole, rest = divmod(depth, chains)
        blocks, more = divmod(whole, BLOCK) if whole >= 2 * BLOCK else (0, whole)
        zeros = [constant(self.type, 0)] * (width * chains)

        def run(start: Value | int, count: int) -> Carries:
            def step(i: Value, sums: Carries) -> Carries:
                first = i if isinstance(start, int) and start == 0 else self.b.iadd(i, start)
                first = first if chains == 1 else self.b.imul(first, chains)
                out: Carries = []
                for c in range(chains):
                    k = first if c == 0 else self.b.iadd(first, c)
                    out += take(k, sums[c * width : (c + 1) * width])
                return out

            return repeat(self.b, count, zeros, step)

        def added(sums: Carries, others: Carries) -> Carries:
            return [self.b.add(s, t) for s, t in zip(sums, others, strict=True)]

        if blocks:
            sums = repeat(self.b, blocks, zeros, lambda i, sums: added(sums, run(self.b.imul(i, BLOCK), BLOCK)))
            sums = added(sums, run(blocks * BLOCK, more)) if more else sums
        else:
            sums = run(0, more)
        for c in range(rest):
            sums[c * width : (c + 1) * width] = take(whole * chains + c, sums[c * width : (c + 1) * width])
        while len(sums) > width:
            half = len(sums) // 2
            sums = added(sums[:half], sums[half:])
        return sums

    # -- by columns

    def by_columns(self, batch: Value) -> Carries:
        """Tiles of some rows and some vectors of columns."""
        lanes, (_, rows, columns) = self.b.lanes, self.out.shape
        height = _even(rows, ROWS)
        vectors = -(-columns // lanes)
        width = _even(vectors, max(VECTORS.get(self.b.target.vector_bytes, 1), ROWS // height))
        span = min(width * lanes, columns)
        starts = [min(v * lanes, span - lanes) for v in range(width)]
        inside = lambda j: self.blocks(rows, height, lambda i: self.tile(batch, i, j, height, starts))
        self.blocks(columns, span, inside)
        return []

    def tile(self, batch: Value, i: Value, j: Value, height: int, starts: list[int]) -> None:
        """Rows from i on, vectors of columns that start at j + each of `starts`."""
        b, depth, width = self.b, self.x.shape[2], len(starts)

        def take(k: Value | int, sums: Carries) -> Carries:
            right, left = self.place(self.y, batch, k, j), self.place(self.x, batch, i, k)
            ys = [self.load(self.moved(right, s), self.type) for s in starts]
            xs = [self.splat(self.load(self.moved(left, r * self.x.strides[1]), self.one)) for r in range(height)]
            return [b.fma(x, y, sums[r * width + c]) for r, x in enumerate(xs) for c, y in enumerate(ys)]

        chains = _floor(max(min(CHAINS // (height * width), depth), 1))
        sums = self.summed(depth, chains, height * width, take)
        p = self.place(self.out, batch, i, j)
        for r in range(height):
            for c, s in enumerate(starts):
                self.store(sums[r * width + c], self.moved(p, r * self.out.strides[1] + s))

    # -- by dot products

    def by_dots(self, batch: Value) -> Carries:
        """Tiles of one or two rows and some columns, each element of which is summed lane by lane."""
        _, rows, columns = self.out.shape
        height = min(rows, 2)
        most = min(columns, self.b.lanes, self.b.target.vector_bytes // 8)
        sizes = [n for n in (8, 4, 2, 1) if n <= most][:2]
        size = min(sizes, key=lambda n: (-(-columns // n) * n, -n))
        inside = lambda i: self.blocks(columns, size, lambda j: self.dots(batch, i, j, height, size))
        self.blocks(rows, height, inside)
        return []

    def dots(self, batch: Value, i: Value, j: Value, height: int, size: int) -> None:
        """The products of some rows of x with some columns of y."""
        b, lanes, depth = self.b, self.b.lanes, self.x.shape[2]

        def terms(k: Value | int, sums: Carries, fresh: Value | None = None) -> Carries:
            left, right = self.place(self.x, batch, i, k), self.place(self.y, batch, k, j)
            xs = [self.load(self.moved(left, r * self.x.strides[1]), self.type) for r in range(height)]
            ys = [self.load(self.moved(right, c * self.y.strides[2]), self.type) for c in range(size)]
            if fresh is not None:
                xs, ys = [[b.select(fresh, v, constant(self.type, 0)) for v in vs] for vs in (xs, ys)]
            return [b.fma(x, y, sums[r * size + c]) for r, x in enumerate(xs) for c, y in enumerate(ys)]

        def vector(k: Value | int, sums: Carries) -> Carries:
            return terms(k * lanes if isinstance(k, int) else b.imul(k, lanes), sums)

        whole, rest = divmod(depth, lanes)
        chains = _floor(max(min(CHAINS // (height * size), whole), 1))
        sums = self.summed(whole, chains, height * size, vector)
        if rest:  # the last vector, without the lanes that are taken in already
            flags = ", ".join([f"i1 {str(n >= lanes - rest).lower()}" for n in range(lanes)])
            sums = terms(depth - lanes, sums, Value(f"<{flags}>", make_type("i1", lanes)))
        p = self.place(self.out, batch, i, j)
        for r in range(height):
            self.store(self.folded(sums[r * size : (r + 1) * size]), self.moved(p, r * self.out.strides[1]))

    def folded(self, sums: list[Value]) -> Value:
        """The lanes of each vector added up; the results side by side."""
        lanes, t, size = self.b.lanes, self.type, len(sums)
        pick = lambda x, y, ids: self.b.emit(
            make_type(self.one.element, len(ids)),
            f"shufflevector {t} {x.text}, {t} {y.text}, <{len(ids)} x i32> <{', '.join([f'i32 {n}' for n in ids])}>",
        )
        for _ in range(lanes.bit_length() - 1):
            pairs = zip(sums[::2], sums[1::2], strict=True) if len(sums) > 1 else [(sums[0], sums[0])]
            sums = [
                self.b.add(pick(x, y, range(0, 2 * lanes, 2)), pick(x, y, range(1, 2 * lanes, 2))) for x, y in pairs
            ]
        (total,) = sums
        if lanes == 1 or size == lanes:
            return total
        if size == 1:
            return self.b.emit(self.one, f"extractelement {t} {total.text}, i64 0")
        return pick(total, total, range(size))  # type: ignore[no-any-return]
