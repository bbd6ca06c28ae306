"""Kernels as Python statements: loops over an iteration space, matrix products, and calls of whole-array helpers.

A `Writer` goes through a schedule and makes one `Block` of each kernel. Names are those of the whole module, so a block
can stand in the body of the driver, or be a function of the names that it uses.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from funcgrad.base.dtypes import INT, Dtype
from funcgrad.core.ir import Atom, Aval, Equation, Literal, Program, Shape, Stack, Var, make_aval
from funcgrad.lowering.kernels import Loop, Schedule, Write
from funcgrad.lowering.layout import View, contiguous
from funcgrad.lowering.numba_source.access import flat, position, summed
from funcgrad.lowering.numba_source.names import Names, identifier
from funcgrad.lowering.numba_source.spelling import (
    PLAIN,
    SPELLINGS,
    check_texts,
    constant,
    dtype_text,
    expression,
    literal,
    spelled,
)

REDUCTIONS = {
    "reduce_sum": ("add", lambda dtype: _number(dtype, 0)),
    "reduce_prod": ("mul", lambda dtype: _number(dtype, 1)),
    "reduce_max": ("maximum", lambda dtype: constant(dtype, _lowest(dtype))),
    "reduce_min": ("minimum", lambda dtype: constant(dtype, _highest(dtype))),
    "reduce_any": ("logical_or", lambda dtype: "False"),
    "reduce_all": ("logical_and", lambda dtype: "True"),
}
"""For each reduction the op that takes an element in, and what it starts from."""


def _number(dtype: Dtype, value: int) -> str:
    if dtype.kind == "f":
        return constant(dtype, value)
    return str(value) if dtype.kind == "i" else f"np.uint64({value})"


def _lowest(dtype: Dtype) -> Any:
    return -np.inf if dtype.kind == "f" else False if dtype.kind == "b" else np.iinfo(dtype).min


def _highest(dtype: Dtype) -> Any:
    return np.inf if dtype.kind == "f" else True if dtype.kind == "b" else np.iinfo(dtype).max


@dataclass(frozen=True, slots=True)
class Line:
    """One line of code: how far it is indented, and the user's line that it comes from."""

    indent: int
    text: str
    source: str = ""


@dataclass(slots=True)
class Block:
    """The statements of one kernel.

    Attributes
    ----------
    before
        Allocations and reshapes that it needs; they stand in the driver.
    lines
        What it does.
    results
        Names that it gives a value: numbers, and the results of loops and branches. Everything else it writes into
        arrays.
    function
        Whether it may be a function of its own.
    """

    before: list[Line] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    function: bool = False


class Writer:
    """Makes blocks of kernels.

    Parameters
    ----------
    coded
        Checks leave a number and the value in ``status`` instead of raising.
    outer
        Of the body of a loop or branch: the writer of the Program around it.
    trips
        How many loops are around its kernels.

    Attributes
    ----------
    loose
        Roots whose arrays need not be in C order.
    fresh
        Roots whose arrays are made where they are filled, not before all loops.
    carried
        Roots of the next carries of a loop: their arrays are made before each run of this loop, since they change
        places with those of the carries, and may be its results.
    allocated
        Roots whose arrays were made before they were filled.
    in_place
        Results of updates that change the array of their operand.
    """

    def __init__(
        self, program: Program, s: Schedule, names: Names, coded: bool, outer: Writer | None = None, trips: int = 0
    ) -> None:
        self.program = program
        self.kernels = s.kernels
        self.names = names
        self.coded = coded
        self.outer = outer
        self.trips = trips
        self.views: dict[Var, View] = dict(s.views)
        self.bound: dict[Any, View] = {}
        self.made: set[Any] = set(program.inputs)  # roots whose arrays (or numbers) exist
        self.loose: set[Any] = set(program.inputs) if outer is None else set(outer.loose)
        self.fresh: set[Any] = set()
        self.carried: set[Any] = set()
        self.allocated: set[Any] = set()
        self.in_place: set[Any] = set()
        self.reshaped: dict[tuple[Any, Shape], str] = {}
        self.defined = {v: e for e in program.equations for v in e.outputs}
        self.checks: list[Equation] = [] if outer is None else outer.checks
        self.starts: dict[Equation, list[str]] = {}  # for each window of the current loop where it begins
        self.block = Block()

    # -- bodies

    def inside(self, program: Program, s: Schedule, loop: bool) -> Writer:
        """A writer of the kernels of a body, of a loop or of a branch."""
        return Writer(program, s, self.names.inside(), self.coded, self, self.trips + loop)

    def bind(self, v: Var, view: View) -> None:
        """Let an input of a body be what lies at `view` of a buffer of the Program around it."""
        self.bound[v] = view
        self.views = {u: self.resolved(seen) if seen.root is v else seen for u, seen in self.views.items()}

    def resolved(self, view: View) -> View:
        """Where a view of an input of this body really lies."""
        where = self.bound.get(view.root)
        return view if where is None else View(where.root, view.shape, where.offset + view.offset, view.strides)

    def equation_of(self, v: Var) -> Equation | None:
        """The equation that defines a value, if it is one of the Program."""
        return self.defined.get(v)

    # -- arrays

    def shape_text(self, shape: Shape) -> str:
        """A shape as the argument of ``np.empty``."""
        return str(shape[0]) if len(shape) == 1 else str(shape)

    def new_array(self, how: str, shape: Shape, dtype: Dtype, *args: str) -> str:
        """A call of ``np.empty`` and its kin."""
        kind = [] if dtype.name == "float64" else [dtype_text(dtype)]
        return f"np.{how}({', '.join([self.shape_text(shape), *args, *kind])})"

    def allocate(self, root: Var) -> None:
        """Make the array of a root, unless it is there or is a number."""
        if root not in self.made:
            self.made.add(root)
            if root.aval.shape:
                self.allocated.add(root)
                text = self.new_array("empty", root.aval.shape, root.aval.dtype)
                line = Line(0, f"{self.names.of(root)} = {text}")
                if root in self.carried:
                    assert self.outer is not None
                    self.outer.block.lines.append(line)
                elif root in self.fresh:
                    self.block.before.append(line)
                else:
                    self._whole_block().before.append(line)

    def _whole_block(self) -> Block:
        """The block around all loops that the current one is in."""
        w = self
        while w.trips:
            assert w.outer is not None
            w = w.outer
        return w.block

    def reshape_text(self, root: Any, shape: Shape) -> str:
        """The array of a root in another shape, as an expression."""
        name, have = self.names.of(root), root.aval.shape
        if have == shape:
            return name
        if have == ():
            return self.new_array("full", shape, root.aval.dtype, name)
        if shape == ():
            return f"{name}[{', '.join('0' * len(have))}]"
        whole = f"np.ascontiguousarray({name})" if root in self.loose else name
        return f"{whole}.reshape({self.shape_text(shape)})"

    def alias(self, root: Any, shape: Shape, base: str) -> str:
        """The name of an array of a root in another shape."""
        if root.aval.shape == shape:
            return self.names.of(root)
        if self.outer is not None and any([where.root is root for where in self.bound.values()]):
            return self.outer.alias(root, shape, base)
        key = (root, shape)
        if key not in self.reshaped:
            self.reshaped[key] = name = self.names.fresh(base)
            self.block.before.append(Line(0, f"{name} = {self.reshape_text(root, shape)}"))
        return self.reshaped[key]

    def element(self, view: View, symbols: list[str]) -> str:
        """One element of a view."""
        root, name = view.root, self.names.of(view.root)
        if root.aval.shape == ():
            return name
        at = position(view, root.aval.shape, symbols)
        if at is not None:
            return f"{name}[{at}]"
        if view.is_contiguous and prod(view.shape) == root.aval.size:
            shape = "_".join([str(n) for n in view.shape])
            return f"{self.alias(root, view.shape, f'{name}_{shape}')}[{', '.join(symbols)}]"
        return f"{self.alias(root, (root.aval.size,), f'{name}_flat')}[{flat(view, symbols)}]"

    # -- loops

    def symbols(self, shape: Shape) -> list[str]:
        """For each axis the name of its index."""
        return ["0" if n == 1 else self.names.indices[a] for a, n in enumerate(shape)]

    def loop(self, loop: Loop) -> Block:
        """One pass over an iteration space."""
        block = self.block = Block(function=any([n != 1 for n in loop.shape]))
        symbols = self.symbols(loop.shape)
        for w in loop.writes:
            self.allocate(w.target.root)
        for e in loop.reductions:
            self.allocate(e.outputs[0])
        self.starts = {e: self._window(e) for e in loop.equations if e.primitive.traits.kind == "window"}
        kept = [a for a in range(len(loop.shape)) if a not in loop.axes]
        depth = self._open(kept if loop.reductions else [*kept, *loop.axes], loop, symbols, 0)
        accumulators = [self._start(e, depth) for e in loop.reductions]
        inner = self._open(list(loop.axes), loop, symbols, depth) if loop.reductions else depth
        env = self._body(loop, symbols, inner)
        for e, acc in zip(loop.reductions, accumulators, strict=True):
            self._take(e, acc, self.read(e.inputs[0], env, symbols), inner)
        if inner and len(block.lines) and block.lines[-1].text.endswith(":"):
            block.lines.append(Line(inner, "pass"))
        for e, acc in zip(loop.reductions, accumulators, strict=True):
            self._finish(e, acc, [symbols[a] for a in kept], depth)
        return block

    def _open(self, axes: list[int], loop: Loop, symbols: list[str], depth: int) -> int:
        for a in axes:
            if loop.shape[a] != 1:
                self.block.lines.append(Line(depth, f"for {symbols[a]} in range({loop.shape[a]}):"))
                depth += 1
        return depth

    def read(self, a: Atom, env: dict[Any, str], symbols: list[str]) -> str:
        """An operand at the current index."""
        if isinstance(a, Literal):
            return literal(a)
        return env[a] if a in env else self.element(self.views[a], symbols)

    def _body(self, loop: Loop, symbols: list[str], depth: int) -> dict[Any, str]:
        env: dict[Any, str] = {}
        own = {w.value: w.target for w in loop.writes if w.value is w.target.root}
        for e in loop.equations:
            (out,) = e.outputs
            target = self.element(own[out], symbols) if out in own else self.names.of(out)
            self._equation(e, target, env, symbols, depth)
            env[out] = target
        for w in loop.writes:
            target, value = self.element(w.target, symbols), self.read(w.value, env, symbols)
            if w.value is not w.target.root and target != value:
                self.say(depth, f"{target} = {value}")
            if w.target.root.aval.shape == () and (w.value is w.target.root or target != value):
                self.block.results.append(target)
        return env

    def say(self, depth: int, text: str, e: Equation | None = None) -> None:
        """Add a line."""
        self.block.lines.append(Line(depth, text, str(e.source or "") if e is not None else ""))

    def _equation(self, e: Equation, target: str, env: dict[Any, str], symbols: list[str], depth: int) -> None:
        kind = e.primitive.traits.kind
        if kind == "gather":
            self.say(depth, f"{target} = {self._gather(e, env, symbols)}", e)
        elif kind == "window":
            at = [
                summed([t for t in (start, s) if t != "0"], 0) for start, s in zip(self.starts[e], symbols, strict=True)
            ]
            self.say(depth, f"{target} = {self.element(self.views[e.inputs[0]], at)}", e)  # type: ignore[index]
        elif kind == "check":
            self._check(e, target, self.read(e.inputs[0], env, symbols), depth)
        elif e.primitive.name == "iota":
            dtype, at = e.params["dtype"], symbols[e.params["axis"]]
            self.say(depth, f"{target} = {at if dtype == INT else f'{dtype_text(dtype)}({at})'}", e)
        else:
            operands = [self.read(a, env, symbols) for a in e.inputs]
            self.say(depth, f"{target} = {expression(e, operands)}", e)

    def _window(self, e: Equation) -> list[str]:
        """Where a window begins, for each axis."""
        x, *starts = e.inputs
        return [self.start(a, n, k) for a, n, k in zip(starts, x.aval.shape, e.params["sizes"], strict=True)]

    def start(self, a: Atom, n: int, size: int) -> str:
        """Where a window of this size begins along an axis of length n: inside, wherever it was to begin."""
        if isinstance(a, Literal) or n == size:
            return str(min(max(int(a.value), 0), n - size)) if isinstance(a, Literal) else "0"
        if self.is_inside(a, n - size):
            return self.number(a)
        name = self.names.fresh("start")
        self.say(0, f"{name} = clip({self.number(a)}, {n - size + 1})")
        return name

    def is_inside(self, a: Atom, last: int) -> bool:
        """Whether a check has raised for all positions but 0 ... last."""
        e = self.equation_of(a) if isinstance(a, Var) else None
        if e is None or self.coded or e.primitive.traits.kind != "check" or "length" not in e.params:
            return False
        return e.params["length"] - e.params.get("window", 0) == last  # type: ignore[no-any-return]

    def _gather(self, e: Equation, env: dict[Any, str], symbols: list[str]) -> str:
        """An element at computed places, which are checked or moved inside: nothing else is ever read."""
        x, *indices = e.inputs
        view = self.views[x]  # type: ignore[index]
        rest = symbols[len(symbols) - (len(view.shape) - len(indices)) :]
        places = []
        for i, n in zip(indices, view.shape, strict=False):
            at = self.read(i, env, symbols)
            inside = isinstance(i, Literal) and 0 <= i.value < n
            places.append(at if inside or self.is_inside(i, n - 1) else f"clip({at}, {n})")
        return self.element(view, [*places, *rest])

    def _check(self, e: Equation, target: str, x: str, depth: int) -> None:
        counted, outside = check_texts(e, x, target)
        self.checks.append(e)
        self.say(depth, f"{target} = {counted}", e)
        if self.coded:
            self.say(depth, f"if {outside} and status[0] == 0:")
            self.say(depth + 1, f"status[0], status[1] = {len(self.checks)}, {x}")
        else:
            self.say(depth, f"if {outside}:")
            self.say(depth + 1, f"raise {_fault_text(e, x)}")

    # -- reductions

    def _start(self, e: Equation, depth: int) -> str:
        (out,), dtype = e.outputs, e.outputs[0].aval.dtype
        name, what = self.names.of(out), e.primitive.name.removeprefix("reduce_")
        stem = identifier(name.partition("[")[0])
        if what == "sum" and dtype.kind == "f":
            acc, low = self.names.fresh(f"{stem}_sum"), self.names.fresh(f"{stem}_low")
            self.say(depth, f"{acc}, {low} = 0.0, 0.0")
            return f"{acc}, {low}"
        acc = name if out.aval.shape == () and name.isidentifier() else self.names.fresh(f"{stem}_{what}")
        self.say(depth, f"{acc} = {REDUCTIONS[e.primitive.name][1](dtype)}")
        return acc

    def _take(self, e: Equation, acc: str, x: str, depth: int) -> None:
        dtype = e.outputs[0].aval.dtype
        if "," in acc:
            self.say(depth, f"{acc} = two_sum({acc}, {x})", e)
        else:
            op = REDUCTIONS[e.primitive.name][0]
            pair = [acc, x] if op in ("add", "mul", "logical_or", "logical_and") else [x, acc]
            self.say(depth, f"{acc} = {spelled(SPELLINGS[op], dtype, pair, {})}", e)

    def _finish(self, e: Equation, acc: str, symbols: list[str], depth: int) -> None:
        (out,) = e.outputs
        dtype = out.aval.dtype
        value = acc.replace(", ", " + ")
        if out.aval.shape == ():
            self.block.results.append(self.names.of(out))
            same = dtype.name in PLAIN or e.primitive.traits.exact
            value = value if same else f"{dtype_text(dtype)}({value})"
        target = self.element(contiguous(out, out.aval.shape), symbols)
        if target != value:
            self.say(depth, f"{target} = {value}")

    # -- arrays as operands of whole operations

    def array(self, a: Atom, shape: Shape) -> str:
        """An operand as a C-contiguous array of this shape (of as many elements), as an expression."""
        if isinstance(a, Literal):
            if not shape:
                return literal(a)
            zero = a.is_zero() and not np.signbit(a.value) if a.aval.dtype.kind == "f" else a.is_zero()
            return self.new_array("zeros", shape, a.aval.dtype) if zero else self.new_array(
                "full", shape, a.aval.dtype, literal(a)
            )  # fmt: skip
        return self.reshape_text(self.whole(self.views[a]), shape)

    def number(self, a: Atom) -> str:
        """A number, as an expression."""
        return self.read(a, {}, [])

    def zero(self, aval: Aval) -> str:
        """Zeros of this type, or a stack without values."""
        if isinstance(aval, Stack):
            return f"[{self.zero(aval.elem)} for _ in range(0)]"
        return self.new_array("zeros", aval.shape, aval.dtype) if aval.shape else constant(aval.dtype, 0)

    def whole(self, view: View) -> Any:
        """The root whose array is this view in C order: its own, or a copy that is made here."""
        if view.is_contiguous and prod(view.shape) == view.root.aval.size:
            return view.root
        moved, copy = Var(make_aval(view.shape, view.root.aval.dtype)), Var(make_aval(view.shape, view.root.aval.dtype))
        self.views[moved] = view
        current = self.block
        made = self.loop(Loop(view.shape, writes=[Write(moved, contiguous(copy, view.shape))]))
        self.block = current
        current.before += [*made.before, *made.lines]
        return copy


def _fault_text(e: Equation, x: str) -> str:
    """The error of a check as Python's own, with the value where it belongs."""
    mark = 1234567890123456789
    assert e.primitive.fault is not None
    error = e.primitive.fault(mark, **e.params)
    kind = next(c for c in type(error).__mro__ if c.__module__ == "builtins")
    message = str(error.args[0]).replace("{", "{{").replace("}", "}}").replace(str(mark), f"{{{x}}}")
    return f"{kind.__name__}(f{message!r})"
