"""Elements of buffers as Python indexes them: a view of a buffer, back from strides to one position per axis.

The element of the view ``[1; 1,6]`` of a buffer of shape (4, 6), at i and j, is ``x[j, 1 + i]``.
"""

from __future__ import annotations

from funcgrad.core.ir import Shape
from funcgrad.lowering.layout import View, row_major


def position(view: View, shape: Shape, symbols: list[str]) -> str | None:
    """Where the element of `view` at `symbols` lies in its buffer of this shape, or None if no such form is found.

    Parameters
    ----------
    symbols
        For each axis of the view what runs over its length, or "0" where that is 1.
    """
    if 0 in shape or 0 in view.shape:
        return ", ".join(["0"] * len(shape))  # never read
    steps = [_step(n, s) for n, s in zip(shape, row_major(shape), strict=True)]
    low, rest = [], view.offset
    for n, s in zip(shape, steps, strict=True):
        at = rest // s if n > 1 else 0
        low.append(at)
        rest -= at * s
    if rest:
        return None
    terms: list[list[str]] = [[] for _ in shape]
    least, most = list(low), list(low)
    for n, stride, symbol in zip(view.shape, view.strides, symbols, strict=True):
        if n == 1 or stride == 0:
            continue
        axis = next((a for a, s in enumerate(steps) if shape[a] > 1 and abs(stride) >= s and stride % s == 0), None)
        if axis is None:
            return None
        times = stride // steps[axis]
        terms[axis].append(_times(times, symbol))
        least[axis] += min(0, times * (n - 1))
        most[axis] += max(0, times * (n - 1))
    if not all([a >= 0 and b < n for a, b, n in zip(least, most, shape, strict=True)]):
        return None
    return ", ".join([summed(t, at) for t, at in zip(terms, low, strict=True)])


def _step(n: int, stride: int) -> int:
    return stride if n > 1 else 1


def _times(n: int, symbol: str) -> str:
    if n == 1:
        return symbol
    symbol = f"({symbol})" if " " in symbol else symbol
    return f"-{symbol}" if n == -1 else f"{n} * {symbol}"


def flat(view: View, symbols: list[str]) -> str:
    """The same as one number: the position in C order."""
    terms = [
        _times(stride, s) for n, stride, s in zip(view.shape, view.strides, symbols, strict=True) if n != 1 and stride
    ]
    return summed(terms, view.offset)


def summed(terms: list[str], start: int) -> str:
    """``start + a - b``: a sum of signed terms."""
    text = " + ".join([str(start), *terms] if start or not terms else terms)
    return text.replace("+ -", "- ")
