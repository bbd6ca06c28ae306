"""Linear systems on the GPU: a block for each matrix; elimination with the largest pivot of each column, as in LAPACK.

The right sides are changed along with the matrix, so that only its upper triangle is needed in the end. Rows and
columns are shared out among 16 x 16 threads; between steps, which need each other's elements, the block waits. Products
are added with one rounding, as in matrix products.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from funcgrad.core.ir import Equation, Var, make_aval
from funcgrad.lowering.builder import Builder
from funcgrad.lowering.cuda.threads import (
    BLOCK,
    I32,
    Launch,
    barrier,
    from_to,
    join_block,
    note_first,
    only_if,
    register,
    shared_array,
    widened,
)
from funcgrad.lowering.kernels import Library, Loop, Write
from funcgrad.lowering.layout import contiguous
from funcgrad.lowering.nests import I64, STATUS, Carries, repeat
from funcgrad.lowering.values import Shared, Target, Value, constant, make_type
from funcgrad.ops.scalar import element_of

SIDE = 16  # threads along each side of a block


def solve_launches(
    kernel: Library, copy: Callable[[Loop], list[Launch]], target: Target, shared: Shared, checks: list[Equation]
) -> list[Launch]:
    """The kernels of a linear system; `copy` gives those of a loop that copies."""
    (a, right), (out,) = kernel.equation.inputs, kernel.equation.outputs
    if not out.aval.size:
        return []
    matrix = Var(make_aval(a.aval.shape, a.aval.dtype))
    checks.append(kernel.equation)
    copies = [Write(a, contiguous(matrix, a.aval.shape)), Write(right, contiguous(out, out.aval.shape))]
    launches = [launch for w in copies for launch in copy(Loop(w.target.shape, writes=[w]))]
    return [*launches, _Solve(matrix, out, target, shared).launch(len(checks))]


class _Solve:
    """The kernel that eliminates: both its operands are changed."""

    def __init__(self, matrix: Var, out: Var, target: Target, shared: Shared) -> None:
        self.b = Builder(target, 1, shared)
        self.matrix, self.out = matrix, out
        *batch, self.n, self.k = out.aval.shape
        self.batch = prod(batch)
        self.type = make_type(element_of(out.aval.dtype))
        self.bytes = out.aval.dtype.itemsize

    def launch(self, code: int) -> Launch:
        """The kernel, which leaves `code` where a matrix is singular."""
        b = self.b
        self.thread, block = register(b, "tid.x"), widened(b, register(b, "ctaid.x"))
        self.x, self.y = widened(b, b.and_(self.thread, SIDE - 1)), widened(b, b.lshr(self.thread, constant(I32, 4)))
        self.base = {p: b.imul(block, self.n * columns).text for p, columns in (("%a", self.n), ("%x", self.k))}
        self.pivot = shared_array(b, "pivot", I64, 1)
        repeat(b, self.n, [], lambda i, _: self._eliminate(i, code))
        repeat(b, self.n, [], lambda i, _: self._substitute(b.isub(constant(I64, self.n - 1), i)))
        lines = "\n".join(b.lines)
        text = f"define internal void @KERNEL(ptr %a, ptr %x, ptr %status) #0 {{\nentry:\n{lines}\n  ret void\n}}\n"
        roots = (self.matrix, self.out, STATUS)
        return Launch(text, roots, frozenset(roots), self.batch)

    # -- elements

    def _at(self, pointer: str, i: Value, j: Value) -> str:
        b, columns = self.b, self.n if pointer == "%a" else self.k
        flat = b.iadd(b.iadd(Value(self.base[pointer], I64), b.imul(i, columns)), j)
        return b.emit(I64, f"getelementptr {self.type}, ptr {pointer}, i64 {flat.text}").text

    def _load(self, pointer: str, i: Value, j: Value) -> Value:
        return self.b.emit(self.type, f"load {self.type}, ptr {self._at(pointer, i, j)}, align {self.bytes}")

    def _store(self, value: Value, pointer: str, i: Value, j: Value) -> None:
        self.b.lines.append(f"  store {self.type} {value.text}, ptr {self._at(pointer, i, j)}, align {self.bytes}")

    def _each(
        self, first: Value, start: Value | int, end: Value | int, step: int, body: Callable[[Value], None]
    ) -> None:
        """Call `body` for ``first + start, first + start + step, ...`` below `end`."""

        def trip(i: Value, carries: Carries) -> Carries:
            body(i)
            return carries

        from_to(self.b, self.b.iadd(first, start), end, step, [], trip)

    # -- steps

    def _eliminate(self, k: Value, code: int) -> Carries:
        """Bring the largest element of column `k` to the diagonal, and take multiples of its row from those below."""
        b = self.b
        row = self._largest(k, code)

        def swap(pointer: str) -> Callable[[Value], None]:
            def column(j: Value) -> None:
                above, below = self._load(pointer, k, j), self._load(pointer, row, j)
                self._store(below, pointer, k, j)
                self._store(above, pointer, row, j)

            return column

        flat = widened(b, self.thread)
        self._each(flat, k, self.n, BLOCK, swap("%a"))
        self._each(flat, 0, self.k, BLOCK, swap("%x"))
        barrier(b)
        pivot = self._load("%a", k, k)

        def below(i: Value) -> None:
            factor = b.neg(b.div(self._load("%a", i, k), pivot))
            for pointer, first, end in (("%a", b.iadd(k, 1), self.n), ("%x", 0, self.k)):
                change = lambda j, p=pointer: self._store(
                    b.fma(factor, self._load(p, k, j), self._load(p, i, j)), p, i, j
                )
                self._each(self.x, first, end, SIDE, change)

        self._each(self.y, b.iadd(k, 1), self.n, SIDE, below)
        barrier(b)
        return []

    def _largest(self, k: Value, code: int) -> Value:
        """The row of the largest element of column `k` on or below the diagonal, the first if there are several."""
        b = self.b

        def larger(mine: Carries, other: Carries) -> Carries:
            tie = b.and_(b.eq(other[0], mine[0]), b.lt(other[1], mine[1]))
            better = b.or_(b.gt(other[0], mine[0]), tie)
            return [b.select(better, y, x) for x, y in zip(mine, other, strict=True)]

        first = b.iadd(k, widened(b, self.thread))
        trip = lambda i, best: larger(best, [b.abs(self._load("%a", i, k)), i])
        best = join_block(b, from_to(b, first, self.n, BLOCK, [constant(self.type, -1), k], trip), larger)

        def tell() -> None:
            b.lines.append(f"  store i64 {best[1].text}, ptr addrspace(3) {self.pivot}")
            only_if(b, b.eq(best[0], 0), lambda: note_first(b, "%status", code, constant(I64, self.n)))

        only_if(b, b.eq(self.thread, 0), tell)
        barrier(b)
        return b.emit(I64, f"load i64, ptr addrspace(3) {self.pivot}")

    def _substitute(self, i: Value) -> Carries:
        """Row `i` of the solution, whose multiples are taken from the right sides above."""
        b = self.b
        diagonal = self._load("%a", i, i)
        self._each(widened(b, self.thread), 0, self.k, BLOCK, lambda j: self._store(
            b.div(self._load("%x", i, j), diagonal), "%x", i, j))  # fmt: skip
        barrier(b)

        def above(r: Value) -> None:
            factor = b.neg(self._load("%a", r, i))
            change = lambda j: self._store(b.fma(factor, self._load("%x", i, j), self._load("%x", r, j)), "%x", r, j)
            self._each(self.x, 0, self.k, SIDE, change)

        self._each(self.y, 0, i, SIDE, above)
        barrier(b)
        return []
