"""Where the elements of a value lie: a view of a buffer by an offset and one stride per axis.

Broadcast, transpose, reverse, slice and most reshapes move no data: they are other views of the same buffer, and
a kernel that reads them computes addresses instead.

    >>> a = contiguous(None, (2, 3))
    >>> a.strides, a.permuted((1, 0)).strides, a.broadcast((4, 2, 3), (1, 2)).strides
    ((3, 1), (1, 3), (0, 3, 1))
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

from funcgrad.core.ir import Shape


@dataclass(frozen=True, slots=True)
class View:
    """Element ``(i, j, ...)`` of a value is element ``offset + i * strides[0] + j * strides[1] + ...`` of `root`."""

    root: Any
    shape: Shape
    offset: int
    strides: tuple[int, ...]

    @property
    def is_contiguous(self) -> bool:
        """Whether it is the whole buffer in C order."""
        return self.offset == 0 and self.strides == row_major(self.shape)

    @property
    def size(self) -> int:
        """How many elements it has."""
        return prod(self.shape)

    def permuted(self, axes: tuple[int, ...]) -> View:
        """Axes in another order."""
        return replace(self, shape=tuple([self.shape[a] for a in axes]), strides=tuple([self.strides[a] for a in axes]))

    def broadcast(self, shape: Shape, axes: tuple[int, ...]) -> View:
        """Repeated along new axes: axis i becomes ``axes[i]``."""
        strides = [0] * len(shape)
        for i, a in enumerate(axes):
            strides[a] = self.strides[i]
        return replace(self, shape=shape, strides=tuple(strides))

    def sliced(self, start: Shape, stop: Shape, step: Shape) -> View:
        """Every step-th element along each axis."""
        return replace(
            self,
            shape=tuple([-(-(e - b) // s) for b, e, s in zip(start, stop, step, strict=True)]),
            offset=self.offset + sum([b * s for b, s in zip(start, self.strides, strict=True)]),
            strides=tuple([a * b for a, b in zip(self.strides, step, strict=True)]),
        )

    def reversed(self, axes: tuple[int, ...]) -> View:
        """The order along `axes` turned round."""
        offset = self.offset + sum([self.strides[a] * (self.shape[a] - 1) for a in axes if self.shape[a]])
        return replace(self, offset=offset, strides=tuple([-s if i in axes else s for i, s in enumerate(self.strides)]))

    def reshaped(self, shape: Shape) -> View | None:
        """The same elements in C order with another shape, or None if that needs a copy."""
        if 0 in shape:
            return replace(self, shape=shape, strides=row_major(shape))
        old = [(n, s) for n, s in zip(self.shape, self.strides, strict=True) if n != 1]
        strides: list[int] = []
        i, j = 0, 0
        wanted = [n for n in shape if n != 1]
        while i < len(old) or j < len(wanted):
            left, right, i_end, j_end = 1, 1, i, j
            while left != right or left == 1:
                if left <= right:
                    left, i_end = left * old[i_end][0], i_end + 1
                else:
                    right, j_end = right * wanted[j_end], j_end + 1
            for k in range(i, i_end - 1):
                if old[k][1] != old[k + 1][1] * old[k + 1][0]:
                    return None
            inner = old[i_end - 1][1]
            strides += [inner * prod(wanted[k + 1 : j_end]) for k in range(j, j_end)]
            i, j = i_end, j_end
        kept = iter(strides)
        return replace(self, shape=shape, strides=tuple([next(kept) if n != 1 else 0 for n in shape]))


def row_major(shape: Shape) -> tuple[int, ...]:
    """Strides of C order; 0 along axes of length 1, so that equal layouts are equal."""
    out, step = [], 1
    for n in reversed(shape):
        out.append(step if n != 1 else 0)
        step *= n
    return tuple(reversed(out))


def contiguous(root: Any, shape: Shape) -> View:
    """The whole of a buffer, in C order."""
    return View(root, shape, 0, row_major(shape))
