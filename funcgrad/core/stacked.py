"""Values of type `Stack`: what a loop of unknown length handed out, one value a trip, as one array.

The values of all trips lie one after the other in `data`; for stacks of stacks the inner lengths stand in `counts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from funcgrad.core.ir import Stack


class Stacked:
    """A value of type `Stack`.

    Attributes
    ----------
    aval : Stack
        Its type.
    data : ndarray
        The innermost values in order, along axis 0.
    counts : tuple of ndarray
        For every level of stacks, outermost first, its lengths in order: the first array has one entry.
    """

    __slots__ = ("_starts", "aval", "counts", "data")

    def __init__(self, aval: Stack, data: Any, counts: tuple[Any, ...]) -> None:
        self.aval = aval
        self.data = data
        self.counts = counts
        self._starts: list[Any] | None = None

    def __len__(self) -> int:
        return int(self.counts[0][0])

    def at(self, i: int) -> Any:
        """The value of trip `i`; outside a zero: an empty stack stands for zeros of any length."""
        elem = self.aval.elem
        if not 0 <= i < len(self):
            return stacked([], elem.elem) if isinstance(elem, Stack) else _zero(elem)
        if not isinstance(elem, Stack):
            return self.data[i] if elem.shape else self.data[i][()]
        if self._starts is None:
            self._starts = [np.concatenate([[0], np.cumsum(c)]) for c in self.counts[1:]]
        first, last, counts = i, i + 1, []
        for c, starts in zip(self.counts[1:], self._starts, strict=True):
            counts.append(c[first:last])
            first, last = int(starts[first]), int(starts[last])
        return Stacked(elem, self.data[first:last], tuple(counts))


def _zero(elem: Any) -> Any:
    return np.zeros(elem.shape, elem.dtype) if elem.shape else elem.dtype.type(0)


def stacked(values: Sequence[Any], elem: Any) -> Stacked:
    """`values`, each of type `elem`, as one stack; they are copied."""
    from_one = Stack((-1, *elem.shape), elem.dtype, False, elem)
    count = np.array([len(values)], np.int64)
    if not isinstance(elem, Stack):
        data = np.empty((len(values), *elem.shape), elem.dtype)
        for i, v in enumerate(values):
            data[i] = v
        return Stacked(from_one, data, (count,))
    inner = elem
    depth = 1
    while isinstance(inner.elem, Stack):
        inner, depth = inner.elem, depth + 1
    parts = [v.data for v in values]
    data = np.concatenate(parts) if parts else np.empty((0, *inner.elem.shape), inner.elem.dtype)
    counts = [np.concatenate([v.counts[k] for v in values]) if values else np.empty(0, np.int64) for k in range(depth)]
    return Stacked(from_one, data, (count, *counts))
