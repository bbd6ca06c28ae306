"""Sorting along the last axis on the GPU: where each element goes, elements that are equal in their order.

Runs of `RUN` elements are sorted first: a thread counts those of its run that come before its element. Then pairs of
runs are merged, twice as long each time: a thread looks for the place of its element in the other run by bisection. So
every launch has a thread for each element, writes each place once, and knows nothing of powers of two.
"""

from __future__ import annotations

from collections.abc import Callable

from funcgrad.base.dtypes import INT
from funcgrad.core.ir import Atom, Literal, Var, make_aval
from funcgrad.core.primitive import registry
from funcgrad.lowering.cuda.threads import BLOCK, Launch, Threads, below, digits, flat_thread, from_to, only_if
from funcgrad.lowering.kernels import Library, Schedule
from funcgrad.lowering.layout import row_major
from funcgrad.lowering.nests import I64, Access, Carries, nest
from funcgrad.lowering.values import Shared, Target, Value, constant

RUN = 256  # elements that are sorted by counting


def sort_launches(kernel: Library, s: Schedule, target: Target, shared: Shared) -> list[Launch]:
    """The kernels that fill the one result of a sort with the positions of its operand in order."""
    (keys,), (out,) = kernel.equation.inputs, kernel.equation.outputs
    n = out.aval.shape[-1]
    if not out.aval.size:
        return []
    widths = [RUN << k for k in range(max(-(-n // RUN) - 1, 0).bit_length())]
    places = [out, Var(make_aval(out.aval.shape, INT))]  # what is sorted goes to and fro, and ends in the result
    to = lambda left: _Sort(keys, places[left % 2], s, target, shared)
    launches = [to(len(widths)).runs()]
    for left, width in zip(range(len(widths) - 1, -1, -1), widths, strict=True):
        launches.append(to(left).merged(width, places[(left + 1) % 2]))
    return launches


class _Sort(Threads):
    """One launch of a sort: a thread for each element."""

    def __init__(self, keys: Atom, out: Var, s: Schedule, target: Target, shared: Shared) -> None:
        super().__init__(s.views, target, shared)
        self.keys, self.out = keys, out
        self.begin(nest((), (), []), [keys.aval.dtype])

    def runs(self) -> Launch:
        """Each run in order."""
        b, n = self.b, self.out.aval.shape[-1]

        def element(i: Value) -> None:
            key, start = self.key(i), b.and_(i, -RUN)

            def count(k: Value, found: Carries) -> Carries:
                other = self.key(k)
                tie = b.and_(self.compared("eq", other, key), b.lt(k, i))
                first = b.or_(self.compared("lt", other, key), tie)
                return [b.select(first, b.iadd(found[0], 1), found[0])]

            (before,) = from_to(b, start, self.least(b.iadd(start, RUN), n), 1, [constant(I64, 0)], count)
            self.store_one(i, self.of_line(self.out, b.iadd(start, before)))

        return self._launch(element)

    def merged(self, width: int, source: Var) -> Launch:
        """Runs of that width in pairs."""
        b, n = self.b, self.out.aval.shape[-1]

        def element(i: Value) -> None:
            start = b.and_(i, -2 * width)
            middle, end = self.least(b.iadd(start, width), n), self.least(b.iadd(start, 2 * width), n)
            left = b.lt(i, middle)
            index = self.load_one(self.of_line(source, i))
            key = self.key(index)

            def halved(_: Value, bounds: Carries) -> Carries:
                low, high = bounds
                at = b.lshr(b.iadd(low, high), constant(I64, 1))
                other = self.key(self.load_one(self.of_line(source, self.least(at, n - 1))))
                before = b.select(left, self.compared("lt", other, key), self.compared("le", other, key))
                some = b.lt(low, high)
                low = b.select(b.and_(some, before), b.iadd(at, 1), low)
                return [low, b.select(b.and_(some, b.not_(before)), at, high)]

            bounds = [b.select(left, middle, start), b.select(left, end, middle)]
            found, _ = from_to(b, constant(I64, 0), width.bit_length(), 1, bounds, halved)
            self.store_one(index, self.of_line(self.out, b.isub(b.iadd(i, found), middle)))

        return self._launch(element)

    # -- elements of the line of this thread

    def key(self, i: Value) -> Value:
        """Element `i`."""
        if isinstance(self.keys, Literal):
            return self.literal(self.keys)
        view = self.views[self.keys]
        place = self.b.imul(i, view.strides[-1])
        for index, stride in zip(self.line, view.strides[:-1], strict=True):
            place = self.b.iadd(place, self.b.imul(index, stride))
        root = self.parameter(view.root)
        return self.load_one(self.moved(Access(view.root, self.keys.aval.dtype, view.offset, (), root), place))

    def of_line(self, root: Var, i: Value) -> Access:
        """Element `i` of what lies in C order."""
        place = i
        for index, stride in zip(self.line, row_major(root.aval.shape)[:-1], strict=True):
            place = self.b.iadd(place, self.b.imul(index, stride))
        return self.moved(Access(root, root.aval.dtype, 0, (), self.parameter(root)), place)

    def compared(self, name: str, x: Value, y: Value) -> Value:
        """A comparison of keys, of which NaN is the largest."""
        dtype = self.keys.aval.dtype
        emit = lambda name, x, y: registry[name].emit(self.b, dtype, x, y)  # type: ignore[misc]
        found = emit(name, x, y)
        if dtype.kind == "f":
            last = emit("ne", y, y)
            if name != "le":
                last = self.b.and_(last, emit("eq" if name == "lt" else "ne", x, x))
            found = self.b.or_(found, last)
        return found  # type: ignore[no-any-return]

    def least(self, x: Value, limit: int) -> Value:
        """`x`, or `limit` if that is less."""
        return self.b.select(self.b.lt(x, limit), x, constant(I64, limit))

    def _launch(self, element: Callable[[Value], None]) -> Launch:
        b, shape = self.b, self.out.aval.shape
        flat = flat_thread(b, self.out.aval.size)

        def run() -> None:
            *self.line, i = digits(b, flat, shape)
            element(i)

        only_if(b, below(b, flat, self.out.aval.size), run)
        text = self.finish()
        return Launch(text.text, text.roots, frozenset([self.out]), -(-self.out.aval.size // BLOCK))
