"""Arrays that are constant but for a few diagonals, computed along the diagonals alone.

The standard basis, on which Jacobians and Hessians run a linear Program, is 1 on a diagonal and 0 elsewhere, and
exact elementwise operations, transposes, slices and pads keep that form. In: a flat Program. Out: an equal one in which
what is done to such arrays is done to the vectors on their diagonals; where the whole is needed, `banded` writes it.

    a = iota[(n,n), 0]; b = iota[(n,n), 1]; c = eq a b; d = convert c; e = broadcast[(n,n)] x; f = mask_mul d e
    becomes                                                   g = mul 1.0 x; f = banded[0.0, diagonal] g
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any, Protocol

import numpy as np

from funcgrad.core.ir import Atom, Equation, Literal, Program, Shape, Var, make_aval
from funcgrad.core.primitive import registry
from funcgrad.lowering.layout import row_major

MAX_LINES = 16  # of one array
SPARSE = 1


class Recorder(Protocol):
    """What collects the equations of the new Program."""

    def emit(self, e: Equation, inputs: tuple[Atom, ...]) -> tuple[Atom, ...]:
        """The results of an equation with other inputs: found, folded or recorded."""


@dataclass(frozen=True, slots=True, eq=False)
class Ground:
    """An array of few constants: `values` of boxes, whose borders along each axis are `cuts` (from 0 to the length)."""

    cuts: tuple[tuple[int, ...], ...]
    values: Any

    def on(self, cuts: Sequence[tuple[int, ...]]) -> Any:
        """The values on a finer grid."""
        out = self.values
        for axis, (old, new) in enumerate(zip(self.cuts, cuts, strict=True)):
            out = np.take(out, np.searchsorted(old, new[:-1], "right") - 1, axis)
        return out

    def along(self, line: Line) -> Any:
        """The values at the places of a line."""
        t = np.arange(line.low, line.high)
        places = [a + t * m for a, m in zip(line.anchor, line.moving, strict=True)]
        return self.values[tuple([np.searchsorted(c, p, "right") - 1 for c, p in zip(self.cuts, places, strict=True)])]

    def coarse(self) -> Ground:
        """The same constants on as few boxes as can be."""
        cuts, values = list(self.cuts), self.values
        for axis, c in enumerate(cuts):
            kept = [0, *[i for i in range(1, len(c) - 1) if not _same(values.take(i - 1, axis), values.take(i, axis))]]
            values, cuts[axis] = values.take(kept, axis), (*[c[i] for i in kept], c[-1])
        return Ground(tuple(cuts), values)

    def boxes(self) -> tuple[tuple[Shape, Shape, Any], ...]:
        """Start, stop and value of every box."""
        return tuple(
            [
                (
                    tuple([c[i] for c, i in zip(self.cuts, index, strict=True)]),
                    tuple([c[i + 1] for c, i in zip(self.cuts, index, strict=True)]),
                    self.values[index],
                )
                for index in product(*[range(n) for n in self.values.shape])
            ]
        )


@dataclass(frozen=True, slots=True)
class Line:
    """The places ``anchor + t * moving`` for ``low <= t < high``; t is the index along the first axis that moves."""

    anchor: tuple[int, ...]
    moving: tuple[bool, ...]
    low: int
    high: int

    def moved(self, anchor: Sequence[int], moving: Sequence[bool]) -> Line:
        """The same places with other indices; t counts along the first moving axis again."""
        shift = anchor[moving.index(True)]
        fixed = tuple([a - shift if m else a for a, m in zip(anchor, moving, strict=True)])
        return Line(fixed, tuple(moving), self.low + shift, self.high + shift)

    @property
    def start(self) -> tuple[int, ...]:
        """The first place."""
        return tuple([a + self.low * m for a, m in zip(self.anchor, self.moving, strict=True)])


@dataclass(frozen=True, slots=True, eq=False)
class Band:
    """An array of constants and, painted over them, parallel lines with the vectors of their values."""

    shape: Shape
    ground: Ground
    lines: dict[Line, Atom]

    @property
    def constant(self) -> bool:
        """Whether nothing in it depends on an input."""
        return all([isinstance(a, Literal) for a in self.lines.values()])


def _same(x: Any, y: Any) -> bool:
    return bool(np.asarray(x).tobytes() == np.asarray(y).tobytes())


def along_diagonals(program: Program, recorder: Recorder) -> tuple[Atom, ...] | None:
    """The outputs of an equal Program, recorded, that keeps banded arrays as their lines; None if there are none."""
    if not any([e.primitive.name == "eq" for e in program.equations]):
        return None  # bands begin as diagonals
    work = _Pass(recorder)
    outputs = work.run(program)
    return outputs if work.found else None


class _Pass:
    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.env: dict[Any, Atom] = {}  # dense values in the new Program
        self.bands: dict[Any, Band] = {}
        self.index: dict[Any, tuple[int, int]] = {}  # values that are the index along an axis, plus a number
        self.pending: dict[Any, Equation] = {}  # equations of bands, for those that are wanted as a whole
        self.definitions: dict[Any, Equation] = {}  # of the new Program
        self.found = False
        self.source: Any = None

    def run(self, program: Program) -> tuple[Atom, ...]:
        """Visit every equation; the outputs."""
        self.env = {v: v for v in program.inputs}
        for e in program.equations:
            self.source = e.source
            band = self.band_of(e)
            if band is not None and _worthwhile(band):
                (out,) = e.outputs
                self.bands[out], self.pending[out] = band, e
                self.found |= not band.constant
            else:
                self._record(e)
        return tuple([self.whole(a) for a in program.outputs])

    # -- the new Program

    def _record(self, e: Equation) -> None:
        fused = e.primitive.traits.kind in ("elementwise", "reduce", "index")
        inputs = tuple([self.fused(a) if fused else self.whole(a) for a in e.inputs])
        outputs = self.recorder.emit(e, inputs)
        self.env.update(zip(e.outputs, outputs, strict=True))
        self.definitions.update(dict.fromkeys(outputs, e.replace(inputs=inputs)))

    def fused(self, a: Atom) -> Atom:
        """A value for a loop: constants are computed from the index there, other bands are read."""
        if isinstance(a, Var) and a not in self.env and self.bands[a].constant:
            self._record(self.pending[a])
        return self.whole(a)

    def whole(self, a: Atom) -> Atom:
        """A value with all its elements."""
        if isinstance(a, Literal):
            return a
        if a not in self.env:
            band = self.bands[a]
            steps = row_major(band.shape)
            places = tuple([(offset, max(step, 1)) for offset, step in [_flat(line, steps) for line in band.lines]])
            params = {"shape": band.shape, "boxes": band.ground.boxes(), "places": places}
            self.env[a] = self.new("banded", *band.lines.values(), dtype=a.aval.dtype, **params)
        return self.env[a]

    def new(self, name: str, *inputs: Atom, **params: Any) -> Atom:
        """The result of another equation."""
        primitive = registry[name]
        avals = primitive.abstract(*[a.aval for a in inputs], **params)
        e = Equation(primitive, inputs, params, tuple([Var(a) for a in avals]), self.source)
        (out,) = self.recorder.emit(e, inputs)
        self.definitions[out] = e
        return out

    # -- bands

    def band_of(self, e: Equation) -> Band | None:
        """The result of an equation as a band, if it is one."""
        if len(e.outputs) != 1 or 0 in e.outputs[0].aval.shape:
            return None
        self._index_of(e)
        if e.primitive.name == "eq":
            return self._coincidence(e)
        banded = [a for a in e.inputs if a in self.bands]
        if not banded:
            return None
        if e.primitive.name in MOVES:
            band = self.bands.get(e.inputs[0])
            return None if band is None else MOVES[e.primitive.name](self, band, e)
        traits = e.primitive.traits
        return self._elementwise(e, banded) if traits.exact and traits.kind == "elementwise" else None

    def _index_of(self, e: Equation) -> None:
        name, (out,) = e.primitive.name, e.outputs
        if name == "iota" and e.params["dtype"].kind == "i":
            self.index[out] = (e.params["axis"], 0)
        elif name == "add":
            for x, y in (e.inputs, e.inputs[::-1]):
                if x in self.index and isinstance(y, Literal) and abs(y.value) < 2**31:
                    axis, shift = self.index[x]
                    self.index[out] = (axis, shift + int(y.value))
        elif name == "broadcast" and e.inputs[0] in self.index:
            axis, shift = self.index[e.inputs[0]]
            self.index[out] = (e.params["axes"][axis], shift)

    def _coincidence(self, e: Equation) -> Band | None:
        """``index along one axis == index along another``: a diagonal of an array with two axes."""
        shape = e.outputs[0].aval.shape
        if not all([a in self.index for a in e.inputs]) or len(shape) != 2:
            return None
        (p, a), (q, b) = [self.index[x] for x in e.inputs]
        if p == q or any([np.iinfo(x.aval.dtype).max < 2**31 - 1 for x in e.inputs]):
            return None
        shift = a - b if p == 0 else b - a  # column = row + shift
        low, high = max(0, -shift), min(shape[0], shape[1] - shift)
        ground = Ground(tuple([(0, n) for n in shape]), np.zeros((1, 1), bool))
        if low >= high:
            return None
        line = Line((0, shift), (True, True), low, high)
        return Band(shape, ground, {line: Literal(np.bool_(True), make_aval((high - low,), np.dtype(bool)))})

    def _elementwise(self, e: Equation, banded: Sequence[Atom]) -> Band | None:
        bands = [self.bands[a] for a in banded]
        lines: dict[Any, Line] = {}
        for line in [line for band in bands for line in band.lines]:
            key = line.anchor, line.moving
            old = lines.get(key, line)
            lines[key] = replace(line, low=min(line.low, old.low), high=max(line.high, old.high))
        if len(lines) > MAX_LINES or len({line.moving for line in lines.values()}) > 1:
            return None
        ground = self._ground(e)
        if ground is None:
            return None
        found: dict[Line, Atom] = {}
        for line in lines.values():
            operands = [self._on_line(a, line) for a in e.inputs]
            if None in operands:
                return None
            out = make_aval((line.high - line.low,), e.outputs[0].aval.dtype)
            (found[line],) = self.recorder.emit(e.replace(outputs=(Var(out),)), tuple(operands))  # type: ignore[arg-type]
        return Band(bands[0].shape, ground.coarse(), found)

    def _ground(self, e: Equation) -> Ground | None:
        """The constants of an elementwise result; None if it is not constant between the lines."""
        grounds = [self.bands[a].ground if a in self.bands else None for a in e.inputs]
        known = [g for g in grounds if g is not None]
        cuts = tuple([tuple(sorted(set().union(*c))) for c in zip(*[g.cuts for g in known], strict=True)])
        shape = tuple([len(c) - 1 for c in cuts])
        values = [
            g.on(cuts) if g is not None else np.full(shape, a.value) if isinstance(a, Literal) else None
            for a, g in zip(e.inputs, grounds, strict=True)
        ]
        if e.primitive.traits.zero == "guard" and values[0] is not None and not np.any(values[0]):
            return Ground(cuts, values[0])  # a guarded product is its first factor where that is zero
        open_ = [i for i, v in enumerate(values) if v is None]
        if len(open_) > 1 or (open_ and e.inputs[open_[0]].aval.dtype.kind != "b"):
            return None
        results = []
        for guess in (False, True) if open_ else (False,):  # an unknown truth value: the same result either way?
            given = [np.full(shape, guess) if v is None else v for v in values]
            with np.errstate(all="ignore"):
                results.append(np.asarray(e.primitive.evaluate(*given, **e.params)[0]))
        return Ground(cuts, results[0]) if _same(results[0], results[-1]) else None

    def _on_line(self, a: Atom, line: Line) -> Atom | None:
        """The elements of an operand along a line."""
        band = self.bands.get(a)
        if band is None:
            return self.restricted(a if isinstance(a, Literal) else self.env[a], line)
        ground = band.ground.along(line)
        dtype = a.aval.dtype
        for own, value in band.lines.items():
            if (own.anchor, own.moving) == (line.anchor, line.moving):
                before, after = own.low - line.low, line.high - own.high
                for fill, widths in ((ground[:before], (before, 0)), (ground[len(ground) - after :], (0, after))):
                    if not len(fill):
                        continue
                    if not _same(fill, np.full_like(fill, fill[0])):
                        return None
                    literal = Literal(fill[0], make_aval((), dtype))
                    if isinstance(value, Literal) and _same(value.value, fill[0]):
                        value = Literal(fill[0], make_aval((value.aval.shape[0] + len(fill),), dtype))
                    else:
                        value = self.new("pad", value, literal, before=(widths[0],), after=(widths[1],), between=(0,))
                return value
        if not _same(ground, np.full_like(ground, ground[0])):
            return None
        return Literal(ground[0], make_aval(ground.shape, dtype))

    def restricted(self, a: Atom, line: Line) -> Atom:
        """The elements of a value of the new Program along a line."""
        count = line.high - line.low
        if isinstance(a, Literal):
            return Literal(a.value, make_aval((count,), a.aval.dtype))
        e = self.definitions.get(a)
        if e is not None and len(e.outputs) == 1:
            traits = e.primitive.traits
            if e.primitive.name == "broadcast":
                axes = e.params["axes"]
                part = replace(
                    line, anchor=tuple([line.anchor[i] for i in axes]), moving=tuple([line.moving[i] for i in axes])
                )
                return self.restricted(e.inputs[0], part)
            if traits.exact and traits.kind == "elementwise":
                inputs = tuple([self.restricted(x, line) for x in e.inputs])
                out = make_aval((count,), a.aval.dtype)
                (found,) = self.recorder.emit(e.replace(inputs=inputs, outputs=(Var(out),)), inputs)
                return found
        offset, step = _flat(line, row_major(a.aval.shape))
        flat = a if len(a.aval.shape) == 1 else self.new("reshape", a, shape=(a.aval.size,))
        stop = offset + (count - 1) * step + 1
        if step:
            whole = (offset, stop, step) == (0, a.aval.size, 1)
            return flat if whole else self.new("slice", flat, start=(offset,), stop=(stop,), step=(step,))
        one = self.new("slice", flat, start=(offset,), stop=(offset + 1,), step=(1,)) if a.aval.size > 1 else flat
        return self.new("broadcast", self.new("reshape", one, shape=()), shape=(count,), axes=())


def _flat(line: Line, steps: tuple[int, ...]) -> tuple[int, int]:
    """Offset and step of a line in a buffer with these strides."""
    return (
        sum([i * s for i, s in zip(line.start, steps, strict=True)]),
        sum([m * s for m, s in zip(line.moving, steps, strict=True)]),
    )


def _worthwhile(band: Band) -> bool:
    """Whether its lines have no more elements than all of it."""
    return sum([line.high - line.low for line in band.lines]) <= prod(band.shape)


# -- movement of bands


def _slice(p: _Pass, band: Band, e: Equation) -> Band | None:
    start, stop, shape = e.params["start"], e.params["stop"], e.outputs[0].aval.shape
    if any([s != 1 for s in e.params["step"]]):
        return None
    cuts, values = [], band.ground.values
    for axis, (c, low, high) in enumerate(zip(band.ground.cuts, start, stop, strict=True)):
        kept = [i for i in range(len(c) - 1) if c[i + 1] > low and c[i] < high]
        values = values.take(kept, axis)
        cuts.append((0, *[c[i + 1] - low for i in kept[:-1]], high - low))
    lines = {}
    for line, value in band.lines.items():
        ends = list(zip(line.anchor, line.moving, start, stop, strict=True))
        low = max([line.low, *[b - a for a, m, b, _ in ends if m]])
        high = min([line.high, *[n - a for a, m, _, n in ends if m]])
        if low < high and all([b <= a < n for a, m, b, n in ends if not m]):
            cut = replace(line, low=low, high=high).moved([a - b for a, _, b, _ in ends], line.moving)
            lines[cut] = p.restricted(value, Line((0,), (True,), low - line.low, high - line.low))
    return Band(shape, Ground(tuple(cuts), values), lines)


def _pad(p: _Pass, band: Band, e: Equation) -> Band | None:
    fill, before, after = e.inputs[1], e.params["before"], e.params["after"]
    if any(e.params["between"]) or not isinstance(fill, Literal):
        return None
    cuts = []
    for c, low, high in zip(band.ground.cuts, before, after, strict=True):
        inner = [n + low for n in c]
        cuts.append(((0,) if low else ()) + tuple(inner) + ((inner[-1] + high,) if high else ()))
    widths = [(int(low > 0), int(high > 0)) for low, high in zip(before, after, strict=True)]
    values = np.pad(band.ground.values, widths, constant_values=fill.value)
    lines = {
        line.moved([a + b for a, b in zip(line.anchor, before, strict=True)], line.moving): value
        for line, value in band.lines.items()
    }
    return Band(e.outputs[0].aval.shape, Ground(tuple(cuts), values).coarse(), lines)


def _arranged(band: Band, shape: Shape, axes: Sequence[int | None]) -> Band:
    """Axis i of the result is axis ``axes[i]``, or a new one of length 1."""
    kept = [a for a in axes if a is not None]
    dropped = tuple([i for i in range(len(band.shape)) if i not in kept])
    values = band.ground.values.transpose((*kept, *dropped)).reshape(
        [1 if a is None else band.ground.values.shape[a] for a in axes]
    )
    cuts = tuple([(0, 1) if a is None else band.ground.cuts[a] for a in axes])
    lines = {
        line.moved(
            [0 if a is None else line.anchor[a] for a in axes], [a is not None and line.moving[a] for a in axes]
        ): value
        for line, value in band.lines.items()
    }
    return Band(shape, Ground(cuts, values), lines)


def _transpose(p: _Pass, band: Band, e: Equation) -> Band | None:
    return _arranged(band, e.outputs[0].aval.shape, e.params["axes"])


def _reshape(p: _Pass, band: Band, e: Equation) -> Band | None:
    """Axes of length 1 come or go; others are no lines any more."""
    shape = e.outputs[0].aval.shape
    live = [i for i, n in enumerate(band.shape) if n != 1]
    if [band.shape[i] for i in live] != [n for n in shape if n != 1] or _stuck(band, live):
        return None
    rest = iter(live)
    return _arranged(band, shape, [next(rest) if n != 1 else None for n in shape])


def _stuck(band: Band, live: Sequence[int]) -> bool:
    """Whether a line moves along an axis that is not among `live`."""
    return any([m and i not in live for line in band.lines for i, m in enumerate(line.moving)])


def _broadcast(p: _Pass, band: Band, e: Equation) -> Band | None:
    shape, axes = e.outputs[0].aval.shape, e.params["axes"]
    sources = [axes.index(i) if i in axes else None for i in range(len(shape))]
    if any([a is None and n != 1 for a, n in zip(sources, shape, strict=True)]):
        return None
    return _arranged(band, shape, sources)


MOVES: dict[str, Callable[[_Pass, Band, Equation], Band | None]] = {
    "slice": _slice,
    "pad": _pad,
    "transpose": _transpose,
    "reshape": _reshape,
    "broadcast": _broadcast,
}
