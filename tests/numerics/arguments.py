"""Where errors are measured: random numbers of every size, and the places where functions are hard to compute."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import count
from math import pi
from typing import Any

import numpy as np

from tests.numerics.compiled import Array, f32, f64
from tests.numerics.oracles import BINARY

TURNS = [6381956970095103 * 2.0**797, 5319372648326541 * 2.0**-54]  # closest to a multiple of π/2
ROUNDED_WITH_DIFFICULTY = [
    float.fromhex(x) for x in (
        "0x1.9e9cbbfd6080bp-31", "0x1.62a88613629b6p+678", "0x1.e0000000001c2p-20", "0x1.8000000000009p-23",
        "0x1.dfffffffff1fp-22", "0x1.53ea6c7255e88p-4", "0x1.6298b5896ed3cp+1", "0x1.dfffffffffe3ep-20",
        "0x1.e12d66744ff81p+429", "0x1.b4ebe40c95a01p+0",
    )
]  # fmt: skip
"""Doubles at which exp, log, sin, cos, tan, arccos, arctan, sinh, log10 and log2 lie closest to a double or to the
middle of two (Lefèvre and Muller, "Worst cases for correct rounding of the elementary functions in double precision",
2003)."""
HARD = TURNS + ROUNDED_WITH_DIFFICULTY
ENDS = [
    0.0, np.inf, np.nan, 5e-324, 2.0**-1022, 1.7976931348623157e308, 2.0**-149, 2.0**-126, 3.4028234663852886e38,
    709.782712893384, 710.4758600739439, 745.1332191019411, 88.72283905206835, 89.41598629223294, 103.97208,
    1024.0, 1074.0, 1075.0, 126.0, 128.0, 149.0, 150.0, 0.25, 0.5, 1.0, 1.25, 1.5, 2.0, 3.0, 10.0, 100.0,
    np.sqrt(0.5), np.sqrt(2.0), np.log(2.0) / 2, np.tan(np.pi / 8), np.tan(3 * np.pi / 8), 6.0, 4.0, 20.0, 22.0, 27.3,
    26.543, 10.05, 2.0**20, 2.0**30, 2.0**15, 6000.0, 2.0**28, 2.0**53, 2.0**24, 2.0**12, 1e22,
]  # fmt: skip


def around(points: Array, dtype: Any, steps: int) -> Array:
    """The points, their neighbours up to `steps` away, and the negatives of all."""
    x = np.abs(np.asarray(points, f64)).astype(dtype)
    found = [x]
    low = high = x
    for _ in range(steps):
        low, high = np.nextafter(low, dtype(-np.inf)), np.nextafter(high, dtype(np.inf))
        found += [low, high]
    x = np.concatenate(found)
    return np.concatenate([x, -x])


@cache
def points(dtype: Any, size: int = 0) -> Array:
    """Every exponent and both signs; neighbours of branch points, of multiples of π/2 and of powers of two."""
    rng = np.random.default_rng(7)
    with np.errstate(all="ignore"):
        if dtype is f32:
            spread = np.arange(0, 1 << 32, 4295, dtype=np.uint64).astype(np.uint32).view(f32)
        else:
            bits = rng.integers(0, 1 << 52, (2047, size or 40), dtype=np.uint64)
            spread = (bits | (np.arange(2047, dtype=np.uint64)[:, None] << np.uint64(52))).ravel().view(f64)
            spread = np.concatenate([spread, -spread])
        quarter_turns = np.concatenate([np.arange(1, 2000), 2.0 ** np.arange(11, 1023)]) * (np.pi / 2)
        n = (size or 40) * 500
        usual = np.concatenate([rng.uniform(-a, a, n) for a in (1, 2, 40, 750)] + [1 + rng.uniform(-0.01, 0.01, n)])
        usual = np.concatenate(
            [usual, 1 - 10 ** rng.uniform(-16, 0, n // 4), np.sqrt(-np.expm1(rng.uniform(-8, -1, n)))]
        )
        return np.concatenate([
            spread, around(ENDS + HARD, dtype, 3), around(quarter_turns, dtype, 1),
            around(2.0 ** np.arange(-1074, 1024), dtype, 1), usual.astype(dtype),
        ])  # fmt: skip


SPECIAL = [
    0.0, 1.0, 2.0, 3.0, 0.5, 1.5, np.inf, np.nan, 5e-324, 2.0**-149, 1e308, 3e38, 1e-300, 2.0**53, 2.0**53 - 1,
    2.0**52 + 1, 2.0**24, 2.0**24 - 1, 1e16, 1 - 2.0**-53, 1 + 2.0**-52, 1 - 2.0**-24, 1 + 2.0**-23,
]  # fmt: skip


@cache
def pairs(dtype: Any, size: int = 0, seed: int = 8) -> tuple[Array, Array]:
    """Special values with each other; random bits; and places where the functions are neither 0 nor inf."""
    rng = np.random.default_rng(seed)
    n = size or 30_000
    word = np.uint64 if dtype is f64 else np.uint32
    with np.errstate(all="ignore"):
        special = np.concatenate([np.array(SPECIAL), -np.array(SPECIAL)]).astype(dtype)
        bits = [rng.integers(0, np.iinfo(word).max, n, dtype=word).view(dtype) for _ in range(3)]
        base = np.concatenate([np.exp(rng.normal(0, 1, n)), 1 + rng.uniform(-1e-3, 1e-3, n)])
        reach = 745 if dtype is f64 else 104
        parts = [
            np.meshgrid(special, special),
            bits[:2],
            (bits[2], bits[2] * np.exp(rng.normal(0, 1, n)).astype(dtype)),
            (base, rng.uniform(-reach, reach, 2 * n) / np.log(base)),
            (-np.floor(rng.uniform(1, 50, n)), np.floor(rng.uniform(-180, 180, n))),
            (rng.uniform(-5, 5, n), rng.uniform(-5, 5, n)),
            # where an angle is the difference of two others, and where x log1p(y) is just below a power of two
            (base[:n] * rng.uniform(0.41, 0.5, n), base[:n]),
            (np.array([0.09021741896867752]), np.array([0.21702878177165985])),
            (np.linspace(1.71, 1.72, n), np.full(n, -0.2524119)),
        ]
        x, y = (np.concatenate([np.ravel(p[i]).astype(dtype) for p in parts]) for i in range(2))
    return x, y


# -- any number of them

INTERVALS: dict[str, tuple[tuple[float, float], ...]] = {
    "exp": ((-745.2, 709.8), (-2, 2)), "exp2": ((-1075, 1024), (-2, 2)), "expm1": ((-40, 709.8), (-2, 2)),
    "log": ((0, 4), (0.7, 1.5)), "log2": ((0, 4), (0.7, 1.5)), "log10": ((0, 4), (0.7, 1.5)),
    "log1p": ((-1, 3), (-0.4, 0.6)), "sigmoid": ((-745.2, 40), (-8, 8)), "cbrt": ((-8, 8), (1, 8)),
    "sinc": ((-3, 3), (-100, 100)), "erf": ((-6, 6), (-1, 1)), "erfc": ((-6, 27), (-1, 3)), "erfinv": ((-1, 1),),
    "sin": ((-2 * pi, 2 * pi), (-1e4, 1e4)), "cos": ((-2 * pi, 2 * pi), (-1e4, 1e4)),
    "tan": ((-2 * pi, 2 * pi), (-1e4, 1e4)), "arcsin": ((-1, 1),), "arccos": ((-1, 1),), "arctan": ((-8, 8), (-1, 1)),
    "sinh": ((-711, 711), (-3, 3)), "cosh": ((-711, 711), (-3, 3)), "tanh": ((-20, 20), (-1, 1)),
    "arcsinh": ((-100, 100), (-2, 2)), "arccosh": ((1, 100), (1, 2)), "arctanh": ((-1, 1), (-0.5, 0.5)),
    "deg2rad": ((-360, 360),), "rad2deg": ((-8, 8),),
}  # fmt: skip
"""Where the functions do something, in float64."""


def chunks(name: str, dtype: Any, size: int) -> Iterator[tuple[Array, ...]]:
    """At least `size` arguments of an op, the hard ones first, in portions that stay in a cache."""
    first = pairs(dtype) if name in BINARY else (points(dtype),)
    for start in range(0, len(first[0]), 1 << 17):
        yield tuple(a[start : start + (1 << 17)] for a in first)
    done = len(first[0])
    for seed in count(1):
        if done >= size:
            return
        args = random_arguments(name, dtype, 1 << 17, seed)
        done += len(args[0])
        yield args


def random_arguments(name: str, dtype: Any, size: int, seed: int) -> tuple[Array, ...]:
    """About `size` random arguments of an op."""
    return pairs.__wrapped__(dtype, size // 8, seed) if name in BINARY else (numbers(name, dtype, size, seed),)


def numbers(name: str, dtype: Any, size: int, seed: int) -> Array:
    """An eighth with random bits, an eighth of sizes about 1, an eighth close to 1, the rest in the intervals."""
    rng = np.random.default_rng([77, seed])
    eighth, word = size // 8, np.uint64 if dtype is f64 else np.uint32
    signs = rng.choice([-1.0, 1.0], eighth)
    parts = [
        signs * np.exp2(rng.uniform(-70, 13, eighth)),
        signs[::-1] * (1 + np.exp2(rng.uniform(-53, -1, eighth)) * signs),
    ]
    rest = size - 3 * eighth
    intervals = INTERVALS[name]
    for i, (low, high) in enumerate(intervals):
        share = rest * (i + 1) // len(intervals) - rest * i // len(intervals)
        parts.append(rng.uniform(low, high, share))
    with np.errstate(all="ignore"):
        bits = rng.integers(0, np.iinfo(word).max, eighth, dtype=word, endpoint=True).view(dtype)
        return np.concatenate([bits, *[p.astype(dtype) for p in parts]])


def every_float() -> Iterator[Array]:
    """All float32 numbers without a sign, in portions; with their negatives it is all there are."""
    for start in range(0, 1 << 31, 1 << 17):
        yield np.arange(start, start + (1 << 17), dtype=np.uint32).view(f32)
