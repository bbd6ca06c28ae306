"""The worst errors of every elementary and special function, over as many arguments as one likes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

import funcgrad as fg
from funcgrad.core.primitive import registry
from funcgrad.core.trace import bind1, eagerly
from tests.numerics.arguments import chunks, every_float, random_arguments
from tests.numerics.compiled import WIDEST, Array, compiled, f32, f64
from tests.numerics.oracles import EVEN, ODD, exact_error, inside_one, reference, worst

CODES = ("fma", "plain", "eager")  # compiled with and without fused multiply-add, and evaluated
COMPARED = 10_000  # arguments at which exact operations are compared, at least
Record = dict[str, Any]


def functions() -> list[str]:
    """The elementary and special functions of the registry: elementwise on floats, and not exact."""
    return [
        name for name, op in registry.items()
        if op.traits.kind == "elementwise" and "f" in getattr(op, "dtypes", "") and not op.traits.exact
    ]  # fmt: skip


def exact_functions() -> list[str]:
    """The elementwise operations on floats that are equal bit for bit, compiled and evaluated."""
    return [
        name for name, op in registry.items()
        if op.traits.kind == "elementwise" and "f" in getattr(op, "dtypes", "") and op.traits.exact
    ]  # fmt: skip


def evaluated(name: str) -> Callable[..., Array]:
    """The op without jit, as a function of arrays."""

    def call(*args: Array) -> Array:
        with eagerly(), np.errstate(all="ignore"):
            return np.asarray(registry[name].evaluate(*args)[0])

    return (lambda x: inside_one(call, x)) if name == "erfinv" else call


@cache
def jitted(name: str) -> Callable[..., Array]:
    """The op under jit."""
    return fg.jit(lambda *args: bind1(registry[name], *args))


@cache
def codes(name: str, dtype: Any) -> dict[str, Callable[..., Array]]:
    """What is measured."""
    with_fma, without = (compiled(name, dtype, WIDEST, fma) for fma in (True, False))
    return {"fma": with_fma, "plain": without, "eager": evaluated(name)}


@dataclass
class Worst:
    """The largest error met so far, and where."""

    ulp: float = 0.5
    at: tuple[Any, ...] = ()
    value: Any = None

    def see(self, name: str, y: Array, expected: Array, args: Sequence[Array]) -> None:
        ulp, i = worst(name, y, expected, args, self.ulp)
        if ulp > self.ulp:
            self.ulp, self.at, self.value = ulp, tuple(a[i] for a in args), y[i]


@dataclass
class Sweep:
    """An op on one dtype, and what was found so far. Without the evaluated code, nothing is compared with it."""

    name: str
    dtype: Any
    codes: tuple[str, ...] = CODES
    inputs: int = 0
    equal: int = 0
    worst: dict[str, Worst] = field(default_factory=lambda: {c: Worst() for c in CODES})
    apart: Worst = field(default_factory=lambda: Worst(0.0))

    def take(self, args: tuple[Array, ...], expected: Array) -> dict[str, Array]:
        """Compare all codes with the exact results, and compiled with evaluated ones."""
        found = self.results(args)
        for code, y in found.items():
            self.worst[code].see(self.name, y, expected, args)
        self.compare(args, found)
        return found

    def results(self, args: tuple[Array, ...]) -> dict[str, Array]:
        functions = codes(self.name, self.dtype)
        self.inputs += len(args[0])
        return {code: functions[code](*args) for code in self.codes}

    def compare(self, args: tuple[Array, ...], found: dict[str, Array]) -> None:
        if "eager" not in found:
            return
        ours, evaluated = found["fma"], found["eager"]
        self.equal += len(ours) - int(np.count_nonzero(different(ours, evaluated)))
        with np.errstate(all="ignore"):
            wide = evaluated.astype(expected_type(self.dtype))
        self.apart.see(self.name, ours, wide, args)

    def take_negative(self, x: Array, expected: Array, found: dict[str, Array]) -> None:
        """The negatives of arguments of an odd or even function: looked at closely only where results differ."""
        mirror = np.negative if self.name in ODD else np.positive
        x = -x
        negative = self.results((x,))
        for code, y in negative.items():
            i = np.flatnonzero(different(y, mirror(found[code])))
            if len(i):
                self.worst[code].see(self.name, y[i], mirror(expected[i]), (x[i],))
        self.compare((x,), negative)

    def record(self) -> Record:
        out: Record = {"inputs": self.inputs}
        for code in self.codes:
            w = self.worst[code]
            out[code] = {"ulp": self.ulp_at(w), "at": [float(a).hex() for a in w.at]}
        if "eager" in self.codes:
            at = [float(a).hex() for a in self.apart.at]
            out["apart"] = {"ulp": round(self.apart.ulp, 4), "at": at, "equal": self.equal / self.inputs}
        return out

    def ulp_at(self, w: Worst) -> float:
        if not w.at or not np.isfinite(w.ulp):
            return w.ulp
        return round(exact_error(self.name, self.dtype, w.value, *[float(a) for a in w.at]), 4)


def expected_type(dtype: Any) -> Any:
    return np.longdouble if dtype is f64 else f64


def different(x: Array, y: Array) -> Array:
    """Where bits are different, and not both are NaN."""
    word = f"i{x.itemsize}"
    return (x.view(word) != y.view(word)) & ~(np.isnan(x) & np.isnan(y))


def sampled(name: str, dtype: Any, size: int) -> Record:
    """The worst errors at the hard points and at random ones, `size` in all."""
    sweep = Sweep(name, dtype)
    for args in chunks(name, dtype, size):
        sweep.take(args, reference(name, dtype, args))
    return sweep.record()


def exhaustive(name: str, portions: Iterable[Array] | None = None) -> Record:
    """The worst errors of compiled code at all float32 numbers; or at some, without a sign, and their negatives."""
    sweep = Sweep(name, f32, ("fma", "plain"))
    for x in every_float() if portions is None else portions:
        expected = reference(name, f32, (x,))
        found = sweep.take((x,), expected)
        if name in ODD or name in EVEN:
            sweep.take_negative(x, expected, found)
        else:
            sweep.take((-x,), reference(name, f32, (-x,)))
    return sweep.record()


def oracle_error(name: str, dtype: Any, size: int) -> float:
    """The largest difference of the oracle and mpmath, in ulps of `dtype`, at random arguments."""
    args = random_arguments(name, dtype, 20 * size, 0)
    expected = reference(name, dtype, args)
    with np.errstate(all="ignore"):
        regular = np.isfinite(expected) & (expected != 0) & np.isfinite(expected.astype(dtype))
        for a in args:
            regular &= np.isfinite(a) & (a != 0)  # mpmath has no signs of zeros
    where = np.random.default_rng(5).permutation(np.flatnonzero(regular))[:size]
    return max(exact_error(name, dtype, expected[i], *[float(a[i]) for a in args]) for i in where)


def again(name: str, dtype: Any, record: Record, code: str) -> float:
    """The error at a worst point, computed anew."""
    at = [np.array([float.fromhex(a)], dtype) for a in record[code]["at"]]
    return round(exact_error(name, dtype, codes(name, dtype)[code](*at)[0], *[float(a[0]) for a in at]), 4)
