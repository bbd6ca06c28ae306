"""Indexing of tracers, ``x[...]``, with NumPy's rules: what an index means, and reading.

An index is parsed into an `Index`: a *window* (for every axis a start, a number of elements and a step), the index
arrays, and the layout of the result. Static starts read with `slice` and `reverse`; traced integers with
`dynamic_slice`, where they are the start of a window of length 1; arrays with `gather`, on an operand whose
indexed axes were brought to the front. `updates` writes with the same parts, in reverse.

    x[2, ::-1]        slice, reverse, reshape
    x[i, 2:5]         dynamic_slice, reshape
    x[:, [0, 2]]      transpose, gather, transpose
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index as as_integer
from typing import Any

import numpy as np

from funcgrad.base.dtypes import BOOL, INT
from funcgrad.base.errors import (
    IndexingError,
    NonConcreteBooleanIndexError,
    OutOfBoundsError,
    ParameterError,
    TracerIntegerConversionError,
    printed,
)
from funcgrad.core.device_array import DeviceArray
from funcgrad.core.ir import Shape
from funcgrad.core.trace import Tracer, bind1, describe, value_of
from funcgrad.numpy.elementwise import ufuncs
from funcgrad.numpy.operands import broadcast_to, common_shape, operand, strong
from funcgrad.ops.broadcasting import move_axis, reshape, transpose
from funcgrad.ops.indexing import gather, gather_p
from funcgrad.ops.movement import convert, reverse, slice_
from funcgrad.ops.positions import check_index, from_end
from funcgrad.ops.windows import dynamic_slice_p

MODES = {None: "raise", "raise": "raise", "clip": "clip", "wrap": "wrap", "fill": "fill", "drop": "fill"}


@dataclass(slots=True)
class Index:
    """A parsed index.

    Attributes
    ----------
    starts, counts, steps
        The window, by axis: its least position (an int, or a traced integer scalar), how many elements, and their
        distance. Axes with an index array are taken whole.
    flips
        Axes along which the elements are taken in reverse.
    dropped
        Axes indexed by an integer: length 1 in the window, absent from the result.
    axes, arrays
        Axes with an index array, and the arrays (int64), inside their axes in modes ``"raise"`` and ``"clip"``.
    block
        The shape that the arrays broadcast to: axes of the result; None without any.
    at
        How many axes taken by slices stand before the block.
    shape
        The shape of the result.
    """

    starts: list[Any]
    counts: list[int]
    steps: list[int]
    flips: list[int]
    dropped: list[int]
    axes: list[int]
    arrays: list[Any]
    block: Shape | None
    at: int
    shape: Shape

    def traced(self) -> bool:
        """Whether the window moves."""
        return any([type(s) is not int for s in self.starts])

    def spans(self) -> list[int]:
        """By axis the length of the window, gaps included."""
        return [(n - 1) * s + 1 if n else 0 for n, s in zip(self.counts, self.steps, strict=True)]

    def order(self) -> tuple[int, ...]:
        """The order that brings the axes with an index array to the front; of the window without `dropped`."""
        kept = [a for a in range(len(self.starts)) if a not in self.dropped]
        front = [kept.index(a) for a in self.axes]
        return (*front, *[i for i in range(len(kept)) if i not in front])


# -- parsing


def parse(x: Any, index: Any, mode: str = "raise") -> Index:
    """What ``x[index]`` takes."""
    tokens = _expand(x, _tokens(index if isinstance(index, tuple) else (index,)))
    rank = len(x.shape)
    starts: list[Any] = [0] * rank
    counts, steps = list(x.shape), [1] * rank
    flips: list[int] = []
    dropped: list[int] = []
    axes: list[int] = []
    arrays: list[Any] = []
    blocks: list[Shape] = []
    layout: list[tuple[str, int]] = []
    advanced = any([kind in ("array", "flag") for kind, _ in tokens])
    axis = 0
    for kind, value in tokens:
        if kind == "new" or kind == "gap":
            layout.append((kind, 1))
        elif kind == "flag":
            blocks.append((int(value),))
            layout.append(("block", 0))
        elif kind == "slice":
            starts[axis], counts[axis], steps[axis], flip = _slice(value, x.shape[axis])
            flips += [axis] * flip
            layout.append(("axis", counts[axis]))
            axis += 1
        elif kind == "int":
            place = _integer(x, axis, value, mode)
            if place is None:
                axes.append(axis)
                arrays.append(convert(operand(value), INT) if type(value) is Tracer else np.int64(value))
            else:
                starts[axis], counts[axis] = place, 1
                dropped.append(axis)
            if advanced:
                layout.append(("block", 0))
            axis += 1
        else:
            for array in _positions(x, axis, value):
                axes.append(axis)
                arrays.append(_checked(x, axis, array, mode))
                blocks.append(array.shape)
                axis += 1
            layout.append(("block", 0))
    if not advanced and not arrays:
        shape = tuple([n for kind, n in layout if kind != "gap"])
        return Index(starts, counts, steps, flips, dropped, axes, arrays, None, 0, shape)
    block = _block(blocks)
    arrays = [broadcast_to(strong(a), block) for a in arrays]
    at, shape = _arrange(layout, block)
    return Index(starts, counts, steps, flips, dropped, axes, arrays, block, at, shape)


def _tokens(items: Sequence[Any]) -> list[tuple[str, Any]]:
    """Each item of an index as (kind, value); kinds are new, ellipsis, slice, int, flag and array."""
    out: list[tuple[str, Any]] = []
    for item in items:
        kind = type(item)
        if kind is int:
            out.append(("int", item))
        elif item is None:
            out.append(("new", None))
        elif kind is slice:
            out.append(("slice", item))
        elif item is Ellipsis:
            out.append(("ellipsis", None))
        elif isinstance(item, bool | np.bool_):
            out.append(("flag", bool(item)))
        elif kind in (Tracer, DeviceArray) or isinstance(item, np.ndarray | np.generic | list | tuple):
            out.append(_array_token(item))
        elif hasattr(item, "__index__") and not isinstance(item, type):
            out.append(("int", as_integer(item)))
        elif hasattr(item, "__array__"):
            out.append(_array_token(np.asarray(item)))
        else:
            raise IndexingError(
                f"an index is made of integers, slices, None, ... and arrays of integers or bool, got {kind.__name__}"
            )
    return out


def _array_token(item: Any) -> tuple[str, Any]:
    value = np.zeros(np.shape(item), np.int64) if isinstance(item, list | tuple) and not _size(item) else operand(item)
    kind = value.dtype.kind
    if kind == "b":
        if type(value) is Tracer:
            why = "a boolean index decides the shape of the result"
            value = np.asarray(value_of(value, NonConcreteBooleanIndexError, why))
        return ("flag", bool(value)) if value.ndim == 0 else ("array", value)
    if kind not in "iu":
        raise IndexingError(f"index arrays are made of integers or bool, got {describe(value)}")
    if value.ndim == 0:
        return ("int", value) if type(value) is Tracer else ("int", int(value))
    return ("array", value)


def _size(item: Any) -> int:
    return sum([_size(i) if isinstance(i, list | tuple) else 1 for i in item])


def _expand(x: Any, tokens: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Tokens for all axes: the ellipsis, or the end, filled with whole slices."""
    used = 0
    for kind, value in tokens:
        if kind == "array":
            used += value.ndim if value.dtype == BOOL else 1
        elif kind in ("int", "slice"):
            used += 1
    missing = len(x.shape) - used
    if missing < 0:
        raise IndexingError(f"{used} indices are too many for {describe(x)}")
    whole = [("slice", slice(None))] * missing
    at = [i for i, (kind, _) in enumerate(tokens) if kind == "ellipsis"]
    if len(at) > 1:
        raise IndexingError("an index can have only one ellipsis (...)")
    if not at:
        return tokens + whole
    return [*tokens[: at[0]], ("gap", None), *whole, *tokens[at[0] + 1 :]]


def _slice(item: slice, n: int) -> tuple[int, int, int, bool]:
    """Least position, number of elements, distance, and whether they are taken in reverse."""
    try:
        start, stop, step = item.indices(n)
    except TracerIntegerConversionError as error:
        error.hint = "x[i + np.arange(n)] takes n elements from a traced position"
        raise
    except (TypeError, ValueError) as error:
        raise IndexingError(f"{item}: {error}") from None
    count = len(range(start, stop, step))
    if count == 0:
        return 0, 0, 1, False
    if step > 0:
        return start, count, step if count > 1 else 1, False
    return start + (count - 1) * step, count, -step if count > 1 else 1, count > 1


def _integer(x: Any, axis: int, value: Any, mode: str) -> Any:
    """The position of an integer index in the window; None where it has to be an index array."""
    n = x.shape[axis]
    if type(value) is Tracer:
        value = convert(value, INT)
        return _checked(x, axis, value, mode) if mode in ("raise", "clip") else None
    place = value + n if value < 0 else value
    if 0 <= place < n:
        return place
    if mode == "raise" or (n == 0 and mode in ("clip", "wrap")):
        raise OutOfBoundsError(f"index {value} is out of bounds for axis {axis} of length {n} ({describe(x)})")
    return min(max(place, 0), n - 1) if mode == "clip" else value % n if mode == "wrap" else None


def _positions(x: Any, axis: int, value: Any) -> Sequence[Any]:
    """The index arrays that an array stands for: itself, or the positions where a mask holds."""
    if value.dtype != BOOL:
        return [convert(value, INT)]
    lengths = x.shape[axis : axis + value.ndim]
    if value.shape != lengths:
        raise IndexingError(
            f"the boolean index has shape {value.shape}, the axes it indexes ({describe(x)}) have lengths {lengths}"
        )
    return np.nonzero(value)


def _checked(x: Any, axis: int, array: Any, mode: str) -> Any:
    """Positions that are in their axis; in modes ``"fill"`` and ``"wrap"`` as they are."""
    n = x.shape[axis]
    if mode in ("raise", "clip") and n == 0 and array.size:
        raise OutOfBoundsError(f"axis {axis} of {describe(x)} has no elements to index")
    if mode == "raise":
        return check_index(array, axis, n, of=describe(x))
    if mode == "clip":  # as in JAX, negative ones are counted from the end first
        if type(array) is not Tracer:
            return np.clip(np.where(array < 0, array + n, array), 0, max(n - 1, 0))
        return ufuncs.maximum(ufuncs.minimum(from_end(array, n), n - 1), 0)
    return array


def _block(blocks: list[Shape]) -> Shape:
    out: Shape = ()
    for b in blocks:
        common = common_shape(out, b)
        if common is None:
            raise IndexingError(f"the index arrays do not broadcast: shapes {' and '.join(map(str, blocks))}")
        out = common
    return out


def _arrange(layout: list[tuple[str, int]], block: Shape) -> tuple[int, Shape]:
    """Where the block stands, in slices before it, and the shape of the result.

    NumPy's rule: in place of the array indices where they stand side by side, else in front.
    """
    places = [i for i, (kind, _) in enumerate(layout) if kind == "block"]
    together = bool(places) and places[-1] - places[0] + 1 == len(places)
    first = places[0] if together else 0
    at = len([1 for kind, _ in layout[:first] if kind == "axis"])
    before = [n for kind, n in layout[:first] if kind in ("axis", "new")]
    after = [n for kind, n in layout[first:] if kind in ("axis", "new")]
    return at, (*before, *block, *after)


# -- reading


def take_window(x: Any, p: Index) -> Any:
    """The window of `x`: every axis is still there, and integers have length 1."""
    if p.traced():
        starts = [np.int64(s) if type(s) is int else s for s in p.starts]
        spans = tuple(p.spans())
        x = bind1(dynamic_slice_p, x, *starts, sizes=spans)
        x = slice_(x, (0,) * len(spans), spans, tuple(p.steps))
    else:
        stops = tuple([s + n for s, n in zip(p.starts, p.spans(), strict=True)])
        x = slice_(x, tuple(p.starts), stops, tuple(p.steps))
    return reverse(x, tuple(p.flips))


def take_index(x: Any, p: Index, mode: str = "raise", fill_value: Any = None) -> Any:
    """``x[index]`` for a parsed index."""
    taken = take_window(x, p)
    if p.block is None:
        return reshape(taken, p.shape)
    if p.dropped:
        taken = reshape(taken, tuple([n for a, n in enumerate(taken.shape) if a not in p.dropped]))
    if p.arrays and mode in ("raise", "clip"):
        taken = bind1(gather_p, transpose(taken, p.order()), *p.arrays)
    elif p.arrays:
        taken = gather(transpose(taken, p.order()), *p.arrays, mode=mode, fill_value=fill_value, axes=p.axes)
    else:  # scalar booleans only: a new axis of length 0 or 1
        rest = taken.shape
        taken = reshape(taken, (*(1,) * len(p.block), *rest))
        rank = len(taken.shape)
        taken = slice_(taken, (0,) * rank, (*p.block, *rest), (1,) * rank)
    return reshape(move_block(taken, len(p.block), 0, p.at), p.shape)


def move_block(x: Any, size: int, source: int, target: int) -> Any:
    """The axes ``source ... source + size - 1`` moved to begin at `target`."""
    if source == target or size == 0:
        return x
    if size == 1:
        return move_axis(x, source, target)
    rank = len(x.shape)
    rest = [i for i in range(rank) if not source <= i < source + size]
    return transpose(x, (*rest[:target], *range(source, source + size), *rest[target:]))


def given_mode(mode: str | None) -> str:
    """A `mode` argument."""
    if mode is not None and (not isinstance(mode, str) or mode not in MODES):
        raise ParameterError(f"mode is one of raise, clip, wrap, fill and drop, got {printed(mode)}")
    return MODES[mode]


def getitem(x: Any, index: Any) -> Any:
    """``x[index]``, as in NumPy: integers, slices, None, Ellipsis, and arrays or lists of integers or bool.

    Integers and index arrays may be traced; they are checked when the operation runs. A boolean mask must have a
    known value, since it decides the shape of the result: use ``where`` otherwise.

    Raises
    ------
    OutOfBoundsError
        A position outside its axis.
    IndexingError
        Too many indices, or something that is no index.
    NonConcreteBooleanIndexError
        A mask whose value is not known.
    """
    x = strong(x)
    if type(index) is int and x.shape:  # x[3], without ceremony
        n, rest = x.shape[0], x.shape[1:]
        if -n <= index < n:
            first = index % n
            zeros = (0,) * len(rest)
            return reshape(slice_(x, (first, *zeros), (first + 1, *rest), (1, *[1 for _ in rest])), rest)
    return take_index(x, parse(x, index))
