"""What Numba lacks, as functions in Numba: the preamble of a module holds those that it uses, and no others.

Every helper is text: it is compiled as part of the module, and printed with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from math import pi

import numpy as np

from funcgrad.ops.sinc import series, small

HELPERS: dict[str, str] = {}
"""Helper functions by name, each without its decorator."""


def define(text: str) -> None:
    """Add a helper."""
    HELPERS[re.match(r"def (\w+)", text.strip()).group(1)] = text.strip()  # type: ignore[union-attr]


# -- sums and positions

define('''
def two_sum(total, low, x):
    """total + x; and low plus what that addition lost, which is exactly known (Knuth)."""
    t = total + x
    z = t - total
    lost = (total - (t - z)) + (x - z)
    return t, low + lost if np.isfinite(lost) else low
''')

define('''
def clip(i, n):
    """The position in 0 ... n - 1 that is nearest to i."""
    return min(max(i, 0), n - 1)
''')

# -- integers

define('''
def integer_divide(x, y):
    """x // y, rounded down; 0 where y is 0. The lowest integer by -1 is itself."""
    if y == 0:
        return 0
    return -x if y == -1 else x // y
''')

define('''
def integer_remainder(x, y):
    """x % y, with the sign of y; 0 where y is 0."""
    return 0 if y == 0 or y == -1 else x % y
''')

define('''
def integer_fmod(x, y):
    """The remainder with the sign of x; 0 where y is 0."""
    if y == 0 or y == -1:
        return 0
    r = x % y
    return r - y if r != 0 and (r < 0) != (x < 0) else r
''')

define('''
def integer_power(x, y):
    """x ** y, wrapping; of a negative y, 1 / x ** -y rounded toward zero."""
    if y < 0:
        return x ** (y & 1) if x == 1 or x == -1 else 0
    result, base = np.int64(1), np.int64(x)
    while y > 0:
        if y & 1:
            result *= base
        base *= base
        y >>= 1
    return result
''')

define('''
def unsigned_power(x, y):
    """x ** y, wrapping, of uint64."""
    result = np.uint64(1)
    while y > 0:
        if y & np.uint64(1):
            result *= x
        x *= x
        y >>= np.uint64(1)
    return result
''')

define('''
def count_ones(n):
    """How many bits of a uint64 are set."""
    count = 0
    while n != 0:
        n &= n - np.uint64(1)
        count += 1
    return count
''')

define('''
def gcd(x, y):
    """The greatest common divisor of two uint64."""
    while y != 0:
        x, y = y, x % y
    return x
''')

define('''
def lcm(x, y):
    """The least common multiple of two uint64, wrapping; 0 where one is 0."""
    return x if x == 0 else x // gcd(x, y) * y
''')

# -- floats

define('''
def sign(x):
    """-1, 0 or 1; NaN stays."""
    return 1.0 if x > 0 else -1.0 if x < 0 else 0.0 if x == 0 else x
''')

define('''
def remainder(x, y):
    """x - floor(x / y) * y, with the sign of y."""
    r = np.fmod(x, y)
    if y == 0:
        return r
    if r == 0:
        return np.copysign(r, y)
    return r + y if (r < 0) != (y < 0) else r
''')

define('''
def floor_divide(x, y):
    """x / y rounded down, as if computed exactly."""
    if y == 0:
        return x / y
    one = type(x)(1)
    r = np.fmod(x, y)
    q = (x - r) / y
    if r != 0 and (r < 0) != (y < 0):
        q = q - one
    if q == 0:
        return np.copysign(q, x / y)
    down = np.floor(q)
    return down + one if q - down > 0.5 else down
''')

define('''
def sigmoid(x):
    """1 / (1 + exp(-x)), without overflow."""
    e = np.exp(-np.abs(x))
    return (e if x < 0 else 1.0) / (1.0 + e)
''')

define('''
def xlogy(x, y):
    """x * log(y), and 0 where x is 0 and y is a number."""
    return 0.0 if x == 0 and not np.isnan(y) else x * np.log(y)
''')

define('''
def xlog1py(x, y):
    """x * log(1 + y), and 0 where x is 0 and y is a number."""
    return 0.0 if x == 0 and not np.isnan(y) else x * np.log1p(y)
''')

define('''
def erfinv(x):
    """The inverse of the error function: Halley's method, from an estimate of Winitzki's form."""
    x = np.float64(x)
    if not -1.0 < x < 1.0:
        return x / 0.0 if np.abs(x) == 1.0 else np.nan
    if np.abs(x) < 1e-8:
        return x * 0.8862269254527580
    w = np.log((1.0 - x) * (1.0 + x))
    b = 4.3307467508 + 0.5 * w
    y = np.sqrt(np.sqrt(b * b - w / 0.147) - b)
    a = np.abs(x)
    for _ in range(3):
        miss = (1.0 - a) - math.erfc(y) if a > 0.5 else math.erf(y) - a
        step = miss / (1.1283791670955126 * np.exp(-y * y))
        y -= step / (1.0 + y * step)
    return np.copysign(y, x)
''')


def _conversion(name: str) -> None:
    info = np.iinfo(name)
    define(f'''
def to_{name}(x):
    """x as {name}, rounded toward zero; the nearest one where it is beyond the range, 0 for NaN."""
    if x >= {float(info.max)!r}:
        return np.{name}({info.max})
    if x <= {float(info.min)!r}:
        return np.{name}({info.min})
    return np.{name}(x) if x == x else np.{name}(0)
''')


for _name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
    _conversion(_name)


@cache
def sinc(order: int) -> str:
    """The helper for the derivative of this order of sin(pi x) / (pi x)."""
    first, *rest = reversed(series(order))
    turns = [f"    s, c, q = c, -s, (c - {k} * q) / t" for k in range(1, order + 1)]
    scale = f" * {pi**order!r}" if order else ""
    lines = [
        f"def {sinc_name(order)}(x):",
        f'    """{f"The derivative of order {order} of s" if order else "S"}in(pi x) / (pi x), by a series near 0."""',
        "    x = np.float64(x)",
        f"    t = x * {pi!r}",
        f"    if np.abs(t) < {small(order)!r}:",
        "        t2 = t * t",
        f"        s = {first!r}",
        *[f"        s = s * t2 + {c!r}" for c in rest],
        f"        return s{' * t' if order % 2 else ''}{scale}",
        "    n = np.rint(x)  # sin(pi x) = (-1)**n sin(pi (x - n))",
        "    way = 1.0 - 2.0 * np.fmod(np.abs(n), 2.0)",
        f"    s, c = way * np.sin((x - n) * {pi!r}), way * np.cos((x - n) * {pi!r})",
        "    q = s / t",
        *turns,
        f"    return q{scale}",
    ]
    return "\n".join(lines)


def sinc_name(order: int) -> str:
    """The name of that helper."""
    return f"sinc_{order}" if order else "sinc"


# -- whole arrays: running along the middle axis of three, or by rows


def _running(name: str, combine: str, doc: str) -> None:
    define(f'''
def {name}(x, reverse):
    """{doc} along the middle axis of three."""
    out = np.empty_like(x)
    n = x.shape[1]
    for i in range(x.shape[0]):
        for j in range(x.shape[2]):
            for at in range(n):
                k = n - 1 - at if reverse else at
                if at == 0:
                    out[i, k, j] = x[i, k, j]
                else:
                    a, b = out[i, k + 1 if reverse else k - 1, j], x[i, k, j]
                    out[i, k, j] = {combine}
    return out
''')


_running("cumsum", "a + b", "The sums so far")
_running("cumprod", "a * b", "The products so far")
_running("cummax", "a if a > b or a != a else b", "The largest so far, NaN from the first NaN on,")
_running("cummin", "a if a < b or a != a else b", "The smallest so far, NaN from the first NaN on,")

define('''
def linear_recurrence(a, b, keep, reverse):
    """h[k] = a[k] * h[k - 1] + b[k] along the middle axis of three; h[k] = b[k] where keep is False."""
    h = np.empty_like(b)
    n = b.shape[1]
    for i in range(b.shape[0]):
        for j in range(b.shape[2]):
            for at in range(n):
                k = n - 1 - at if reverse else at
                h[i, k, j] = b[i, k, j]
                if at > 0 and keep[i, k, j]:
                    h[i, k, j] += a[i, k, j] * h[i, k + 1 if reverse else k - 1, j]
    return h
''')


def _extreme(name: str, sign: str, doc: str) -> None:
    define(f'''
def {name}(x):
    """Where the {doc} element along the middle axis of three is; of several the first, and of NaNs the first."""
    out = np.empty((x.shape[0], x.shape[2]), np.int64)
    for i in range(x.shape[0]):
        for j in range(x.shape[2]):
            best = 0
            for k in range(1, x.shape[1]):
                old, new = x[i, best, j], x[i, k, j]
                if old == old and (new {sign} old or new != new):
                    best = k
            out[i, j] = best
    return out
''')


_extreme("argmax", ">", "largest")
_extreme("argmin", "<", "smallest")

define('''
def stable_order(keys):
    """For each row the positions that sort it, equal keys in order, NaN last: merges of longer and longer runs."""
    out = np.empty(keys.shape, np.int64)
    n = keys.shape[1]
    for row in range(keys.shape[0]):
        x, order, merged = keys[row], np.arange(n), np.empty(n, np.int64)
        width = 1
        while width < n:
            for start in range(0, n, 2 * width):
                i, middle, end = start, min(start + width, n), min(start + 2 * width, n)
                j = middle
                for k in range(start, end):
                    if i < middle and (j >= end or x[order[i]] <= x[order[j]] or x[order[j]] != x[order[j]]):
                        merged[k], i = order[i], i + 1
                    else:
                        merged[k], j = order[j], j + 1
            order, merged = merged, order
            width *= 2
        out[row] = order
    return out
''')

define('''
def places(before, index, n, drop):
    """Numbers of rows: before * n + index; outside 0 ... n - 1, the index is clipped or, if drop, the number is -1."""
    out = np.empty_like(before)
    for k in range(len(index)):
        outside = index[k] < 0 or index[k] >= n
        gone = before[k] < 0 or n == 0 or (drop and outside)
        out[k] = -1 if gone else before[k] * n + clip(index[k], n)
    return out
''')


def _scatter(name: str, combine: str) -> None:
    define(f'''
def {name}(x, updates, at):
    """Put row k of the updates in at row at[k] of x, one after the other; none at -1."""
    for k in range(len(at)):
        if at[k] >= 0:
            for j in range(x.shape[1]):
                old, new = x[at[k], j], updates[k, j]
                x[at[k], j] = {combine}
    return x
''')


_scatter("scatter", "new")
_scatter("scatter_add", "old + new")
_scatter("scatter_mul", "old * new")
_scatter("scatter_max", "old if old > new or old != old else new")
_scatter("scatter_min", "old if old < new or old != old else new")
_scatter("scatter_add_bool", "old or new")
_scatter("scatter_mul_bool", "old and new")


def _products(name: str, zero: str, add: str) -> None:
    define(f'''
def {name}(x, y):
    """The matrix products x[b] @ y[b], wrapping, without BLAS."""
    out = np.empty((x.shape[0], x.shape[1], y.shape[2]), x.dtype)
    for b in range(x.shape[0]):
        for i in range(x.shape[1]):
            for j in range(y.shape[2]):
                total = {zero}
                for k in range(x.shape[2]):
                    total = {add}
                out[b, i, j] = total
    return out
''')


_products("products", "x.dtype.type(0)", "total + x[b, i, k] * y[b, k, j]")
_products("products_bool", "False", "total or (x[b, i, k] and y[b, k, j])")


def helper(name: str) -> str | None:
    """The text of a helper, or None if there is none of that name."""
    if re.fullmatch(r"sinc(_[1-9]\d*)?", name):
        return sinc(int(name[5:] or 0))
    return HELPERS.get(name)


def called(text: str) -> list[str]:
    """The names of the functions that are called without a module before them."""
    return re.findall(r"(?<![.\w])([a-z]\w*)\(", text)


def used_helpers(text: str) -> list[str]:
    """The names of all helpers that `text` needs, those first that others need."""
    order: dict[str, None] = {}

    def visit(text: str, inside: str) -> None:
        for name in called(text):
            inner = helper(name)
            if inner is not None and name != inside and name not in order:
                visit(inner, name)
                order[name] = None

    visit(text, "")
    return list(order)


def helper_text(names: Iterable[str]) -> str:
    """The helpers, decorated."""
    return "\n\n\n".join([f"@njit\n{helper(name)}" for name in names])
