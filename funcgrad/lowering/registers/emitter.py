"""Straight-line code for the equations of a body; loops and branches are in `control`.

`Straight` walks over a Program and keeps a `Cell` for each value. Movement runs the op's own evaluation on the numbers
of the elements, which says where each element of the result comes from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from funcgrad.base.dtypes import INT, Dtype
from funcgrad.core.ir import Atom, Aval, Equation, Literal, Program, Stack, make_aval
from funcgrad.lowering import sanitize
from funcgrad.lowering.builder import Builder
from funcgrad.lowering.foreign import call_lines, copies_of
from funcgrad.lowering.registers.cells import I64, Cell, Memory, StackCell, is_small, register_element
from funcgrad.lowering.registers.kinds import kind_of
from funcgrad.lowering.registers.stacks import Reader, load_stack
from funcgrad.lowering.values import Value, constant, make_type
from funcgrad.ops.reductions import Reduction

Env = dict[Any, Any]


class Straight:
    """Emits bodies into one function.

    Parameters
    ----------
    b
        Where the lines go; with more than one lane, the rows of a vmap run side by side.
    checks
        The equations that can fail so far: each gets the next number.
    """

    def __init__(self, b: Builder, checks: list[Equation]) -> None:
        self.b = b
        self.checks = checks
        self.scratch = 0  # bytes of scratch memory that the function needs
        self.growing: dict[Any, str] = {}  # descriptions of growing buffers, and the parameters with their addresses
        self.kept: dict[Equation, Any] = {}  # loops that keep the rows of their last run, and their descriptions
        self.mask: Value | None = None  # the lanes that are running, if not all are
        self.failed = False  # whether a check or a growing buffer can leave the function

    # -- values

    def read(self, env: Env, atom: Atom) -> Any:
        """Where the value of `atom` is; a large constant is the Literal itself."""
        if isinstance(atom, Literal):
            return self.constants(atom) if is_small(atom.aval) else atom
        return env[atom]

    def constants(self, atom: Literal) -> list[Value]:
        """A small constant."""
        t = make_type(register_element(atom.aval), self.b.lanes)
        return [constant(t, atom.value.item())] * atom.aval.size

    def registers(self, cell: Cell) -> list[Value]:
        """The elements of a small value."""
        if isinstance(cell, Memory):
            return [self.splat(cell.load(self.b, k)) for k in range(cell.aval.size)]
        assert isinstance(cell, list)
        return cell

    def splat(self, x: Value) -> Value:
        """The same value in every lane."""
        b = self.b
        if b.lanes == 1 or x.type.lanes == b.lanes:
            return x
        t = make_type(x.type.element, b.lanes)
        one = b.emit(t, f"insertelement {t.text} poison, {x.type.text} {x.text}, i64 0")
        return b.emit(t, f"shufflevector {t.text} {one.text}, {t.text} poison, <{b.lanes} x i32> zeroinitializer")

    def memory(self, cell: Cell, aval: Aval) -> Memory:
        """The value in memory, where elements at computed places can be read."""
        if isinstance(cell, Memory):
            return cell
        assert isinstance(cell, list)
        place = self.allocate(aval)
        for k, v in enumerate(cell):
            place.store(self.b, k, v)
        return place

    def allocate(self, aval: Aval) -> Memory:
        """Scratch memory of this function for a value."""
        at = -(-self.scratch // 16) * 16
        self.scratch = at + max(aval.size * aval.dtype.itemsize, 1)
        what = sanitize.buffer(self.scratch - at, f"scratch + {at}")
        p = self.b.emit(I64, f"getelementptr i8, ptr %scratch, i64 {at}{what}")
        return Memory(p.text, aval)

    # -- equations

    def run(self, program: Program, cells: Sequence[Any]) -> list[Any]:
        """The results of a body for its inputs."""
        env: Env = dict(zip(program.inputs, cells, strict=True))
        self.compute(program.equations, env)
        return [self.read(env, a) for a in program.outputs]

    def compute(self, equations: Iterable[Equation], env: Env) -> None:
        """Add the results of equations to the values that are there."""
        for e in equations:
            results = getattr(self, "_" + kind_of(e))(e, [self.read(env, a) for a in e.inputs])
            env.update(zip(e.outputs, results, strict=True))

    def _elementwise(self, e: Equation, cells: list[Any]) -> list[Cell]:
        assert e.primitive.emit is not None
        columns = [self.registers(c) for c in cells]
        dtype = e.inputs[-1].aval.dtype
        return [[e.primitive.emit(self.b, dtype, *row, **e.params) for row in zip(*columns, strict=True)]]

    def _check(self, e: Equation, cells: list[Any]) -> list[Cell]:
        b = self.b
        assert e.primitive.check is not None and b.lanes == 1
        self.checks.append(e)
        self.failed = True
        out = []
        for index in self.registers(cells[0]):
            counted, outside = e.primitive.check(b, INT, index, **e.params)
            b.count = n = b.count + 1
            b.lines += [f"  br i1 {outside.text}, label %wrong{n}, label %right{n}", f"wrong{n}:"]
            self.leave(len(self.checks), index)
            b.lines.append(f"right{n}:")
            b.block = f"right{n}"
            out.append(counted)
        return [out]

    def leave(self, code: int, value: Value | None = None) -> None:
        """Leave the function with a code, and the value at fault, in the status."""
        b = self.b
        b.lines.append(f"  store i64 {code}, ptr %status")
        if value is not None:
            slot = b.emit(I64, "getelementptr i64, ptr %status, i64 1")
            b.lines.append(f"  store i64 {value.text}, ptr {slot.text}")
        b.lines.append("  br label %exit")

    def _move(self, e: Equation, cells: list[Any]) -> list[Cell]:
        """Elements in other places: the op is evaluated on the numbers of its operands' elements."""
        numbers, pool, params = [], [], dict(e.params)
        t = make_type(register_element(e.outputs[0].aval), self.b.lanes)
        if "boxes" in params:  # a banded array has elements that are no operands
            boxes = params["boxes"]
            pool += [lambda value=value: constant(t, value.item()) for *_, value in boxes]
            numbered = tuple([(start, stop, k) for k, (start, stop, _) in enumerate(boxes)])
            params |= {"boxes": numbered, "dtype": np.dtype(np.int64)}
        for a, cell in zip(e.inputs, cells, strict=True):
            if isinstance(a, Literal):
                numbers.append(np.broadcast_to(np.int64(len(pool)), a.aval.shape))
                pool.append(lambda a=a: constant(t, a.value.item()))
                continue
            numbers.append(len(pool) + np.arange(a.aval.size).reshape(a.aval.shape))
            if isinstance(cell, Memory):
                pool += [lambda cell=cell, k=k: self.splat(cell.load(self.b, k)) for k in range(a.aval.size)]
            else:
                pool += [lambda v=v: v for v in cell]
        (places,) = e.primitive.evaluate(*numbers, **params)
        return [[pool[k]() for k in np.asarray(places).ravel().tolist()]]

    def _iota(self, e: Equation, cells: list[Any]) -> list[Cell]:
        (values,) = e.primitive.evaluate(**e.params)
        t = make_type(register_element(e.outputs[0].aval), self.b.lanes)
        return [[constant(t, v) for v in np.asarray(values).ravel().tolist()]]

    def _reduce(self, e: Equation, cells: list[Any]) -> list[Cell]:
        b, aval = self.b, e.inputs[0].aval
        assert e.primitive.reduction is not None
        kind = e.primitive.reduction(aval.dtype)
        start = [
            constant(make_type(register_element(make_aval((), d or aval.dtype)), b.lanes), x) for d, x in kind.start
        ]
        values = self.registers(cells[0])
        axes = e.params["axes"]
        order = np.moveaxis(np.arange(aval.size).reshape(aval.shape), axes, range(-len(axes), 0) if axes else ())
        count = int(np.prod([aval.shape[i] for i in axes], dtype=int))
        rows = order.reshape(e.outputs[0].aval.size, count).tolist()
        out = []
        for row in rows:
            if kind.settle is not None and row:
                out.append(self._tree(kind, aval.dtype, start, [values[k] for k in row]))
                continue
            acc = list(start)
            for k in row:
                acc = kind.take(b, aval.dtype, acc, values[k])
            out.append(kind.finish(b, aval.dtype, acc))
        return [out]

    def _tree(self, kind: Reduction, dtype: Dtype, start: list[Value], values: list[Value]) -> Value:
        """A sum in pairs: of a few values it has no more roundings than one in blocks, and they wait less."""
        while len(values) > 1:
            pairs = [
                kind.take(self.b, dtype, [x, *start[1:]], y)[0] for x, y in zip(values[::2], values[1::2], strict=False)
            ]
            values = pairs + values[len(pairs) * 2 :]
        return values[0]

    def _dot(self, e: Equation, cells: list[Any]) -> list[Cell]:
        x, y = (self.registers(c) for c in cells)
        contract, batch = e.params["contract"], e.params["batch"]
        left, right = (np.arange(a.aval.size).reshape(a.aval.shape) for a in e.inputs)
        sides = list(zip(e.inputs, contract, batch, strict=True))
        free = [[i for i in range(a.aval.ndim) if i not in c and i not in g] for a, c, g in sides]
        depth = int(np.prod([e.inputs[0].aval.shape[i] for i in contract[0]], dtype=int))
        count = int(np.prod([e.inputs[0].aval.shape[i] for i in batch[0]], dtype=int))
        rows, columns = (
            int(np.prod([a.aval.shape[i] for i in f], dtype=int)) for a, f in zip(e.inputs, free, strict=True)
        )
        left = np.transpose(left, (*batch[0], *free[0], *contract[0])).reshape(count, rows, depth)
        right = np.transpose(right, (*batch[1], *free[1], *contract[1])).reshape(count, columns, depth)
        dtype = e.outputs[0].aval.dtype
        out = []
        for g in range(count):
            for i in left[g].tolist():
                for j in right[g].tolist():
                    out.append(self._sum_of_products([(x[p], y[q]) for p, q in zip(i, j, strict=True)], dtype))
        return [out]

    def _sum_of_products(self, pairs: list[tuple[Value, Value]], dtype: Any) -> Value:
        b = self.b
        multiply, plus = (b.mul, b.add) if dtype.kind == "f" else (b.imul, b.iadd)
        total = None
        for x, y in pairs:
            total = multiply(x, y) if total is None else plus(total, multiply(x, y))
        return total if total is not None else constant(make_type(register_element(make_aval((), dtype)), b.lanes), 0)

    # -- at computed places

    def _inside(self, index: Value, last: int) -> Value:
        """An index moved into 0 ... last: nothing outside of an array is ever touched."""
        b = self.b
        index = b.select(b.lt(index, 0), constant(index.type, 0), index)
        return b.select(b.gt(index, last), constant(index.type, last), index)

    def _places(self, shape: Sequence[int], starts: list[Value], sizes: Sequence[int]) -> list[Value]:
        """The places of the elements of a window in an array in C order."""
        b = self.b
        base: Value | None = None
        strides = [int(np.prod(shape[i + 1 :], dtype=int)) for i in range(len(shape))]
        for s, n, k, stride in zip(starts, shape, sizes, strides, strict=True):
            if k < n:
                term = self._inside(s, n - k)
                term = term if stride == 1 else b.imul(term, stride)
                base = term if base is None else b.iadd(base, term)
        offsets = sum([np.arange(k).reshape([-1 if i == j else 1 for i in range(len(sizes))]) * strides[j]
                       for j, k in enumerate(sizes)], np.zeros((1,) * len(sizes), int))  # fmt: skip
        flat = np.asarray(offsets).ravel().tolist()
        if base is None:
            return [constant(I64, o) for o in flat]
        return [b.iadd(base, o) if o else base for o in flat]

    def _window(self, e: Equation, cells: list[Any]) -> list[Cell]:
        x, *starts = cells
        aval = e.inputs[0].aval
        if isinstance(x, Literal):
            return [self.constants(Literal(x.value, e.outputs[0].aval))]
        places = self._places(aval.shape, [self.registers(s)[0] for s in starts], e.params["sizes"])
        if isinstance(x, list) and all([p.text.isdigit() for p in places]):
            return [[x[int(p.text)] for p in places]]
        array = self.memory(x, aval)
        return [[array.load(self.b, p) for p in places]]

    def _update(self, e: Equation, cells: list[Any]) -> list[Cell]:
        x, update, *starts = cells
        aval, window = e.inputs[0].aval, e.inputs[1].aval
        places = self._places(aval.shape, [self.registers(s)[0] for s in starts], window.shape)
        return [self._written(x, aval, list(zip(places, self.registers(update), strict=True)))]

    def _written(self, x: Any, aval: Aval, pairs: list[tuple[Value, Value]]) -> Cell:
        """An array with some elements replaced: in place, if it is in memory."""
        if isinstance(x, list) and all([p.text.isdigit() for p, _ in pairs]):
            out = list(x)
            for p, v in pairs:
                out[int(p.text)] = v
            return out
        in_place = isinstance(x, Memory) and not is_small(aval)  # a small one may be read again
        array = self.memory(x if in_place else self.registers(x), aval)
        for p, v in pairs:
            array.store(self.b, p, v)
        return array if in_place else self.registers(array)

    def _gather(self, e: Equation, cells: list[Any]) -> list[Cell]:
        x, *indices = cells
        aval = e.inputs[0].aval
        if isinstance(x, Literal):
            return [self.constants(Literal(x.value, e.outputs[0].aval))]
        array = self.memory(x, aval)
        return [[array.load(self.b, p) for row in self._taken(aval, indices) for p in row]]

    def _taken(self, aval: Aval, indices: list[Any]) -> list[list[Value]]:
        """For each index the places of the elements that it takes."""
        columns = [self.registers(i) for i in indices]
        whole = aval.shape[len(columns) :]
        return [self._places(aval.shape, [*row, *[constant(I64, 0)] * len(whole)], (*[1] * len(row), *whole))
                for row in zip(*columns, strict=True)]  # fmt: skip

    def _scatter(self, e: Equation, cells: list[Any]) -> list[Cell]:
        b = self.b
        x, updates, *indices = cells
        aval = e.inputs[0].aval
        columns = [self.registers(i) for i in indices]
        values = iter(self.registers(updates))
        in_place = isinstance(x, Memory) and not is_small(aval)  # a small one may be read again
        array = self.memory(x if in_place else self.registers(x), aval)
        for k, places in enumerate(self._taken(aval, indices)):
            kept: Value | None = None
            if e.params["mode"] == "drop":
                for column, n in zip(columns, aval.shape, strict=False):
                    ok = b.and_(b.ge(column[k], 0), b.lt(column[k], n))
                    kept = ok if kept is None else b.and_(kept, ok)
            for p in places:
                new = next(values)
                if e.primitive.combine is not None or kept is not None:
                    old = array.load(b, p)
                    if e.primitive.combine is not None:
                        new = e.primitive.combine.emit(b, aval.dtype, old, new)
                    if kept is not None:
                        new = b.select(kept, new, old)
                array.store(b, p, new)
        return [array if in_place else self.registers(array)]

    def _foreign(self, e: Equation, cells: list[Any]) -> list[Cell]:
        b = self.b
        assert b.lanes == 1
        self.failed = True
        operands = [self.memory(self.registers(c), a.aval) for c, a in zip(cells, e.inputs, strict=True)]
        results = [self.allocate(v.aval) for v in e.outputs]
        places = [*operands, *results, *[self.allocate(a) for a in copies_of(e)]]
        table = self.allocate(make_aval((len(places),), INT))
        for k, place in enumerate(places):
            b.lines.append(f"  store ptr {place.pointer}, ptr {table.at(b, k)}")
        b.count = n = b.count + 1
        b.lines += call_lines(e, b.shared, table.pointer, [place.pointer for place in places], n)
        b.block = f"went{n}"
        return [self.registers(place) for place in results]

    def _stack_length(self, e: Equation, cells: list[Any]) -> list[Cell]:
        assert isinstance(cells[0], StackCell)
        return [[cells[0].count]]

    def _stack_element(self, e: Equation, cells: list[Any]) -> list[Cell]:
        return [self.element(Reader(self.b, cells[0]), self.registers(cells[1])[0], e.outputs[0].aval)]

    def element(self, x: Reader, i: Value, aval: Aval) -> Cell:
        """Value `i` of a stack: in memory, or a stack itself."""
        place = x.row(self.b, i)
        return load_stack(self.b, place, aval) if isinstance(aval, Stack) else Memory(place, aval)

    def _stack_empty(self, e: Equation, cells: list[Any]) -> list[Cell]:
        aval = e.outputs[0].aval
        assert isinstance(aval, Stack)
        return [StackCell(*[constant(I64, 0)] * 3, aval)]
