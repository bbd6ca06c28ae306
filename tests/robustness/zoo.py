"""Odd objects, made anew from a random number: what no function of the public face may stumble over."""

from __future__ import annotations

import collections
import dataclasses
import enum
import fractions
import functools
import operator
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import numpy as np

import funcgrad as fg


class Hostile(Exception):
    """What the hostile objects raise; whoever meets one may let it pass."""


class Raises:
    """An object on which almost everything raises."""

    def _fail(self, *args: Any, **kwargs: Any) -> Any:
        raise Hostile

    __eq__ = __lt__ = __hash__ = __len__ = __iter__ = __bool__ = __index__ = __float__ = __int__ = _fail  # type: ignore[assignment]
    __array__ = __array_function__ = __array_ufunc__ = __getattr__ = __repr__ = __str__ = __call__ = _fail  # type: ignore[assignment]
    __add__ = __radd__ = __mul__ = __rmul__ = __getitem__ = __enter__ = __contains__ = __format__ = _fail  # type: ignore[assignment]


class Unequal:
    """Hashes, but comparing raises."""

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        raise Hostile

    def __repr__(self) -> str:
        return "Unequal()"


class Lies:
    """Says that it is an array of a shape and dtype that `__array__` does not give."""

    shape: Any = (3,)
    dtype: Any = np.dtype(float)
    ndim: Any = 1
    size: Any = 3

    def __init__(self, given: Any) -> None:
        self.given = given

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self.given, Exception):
            raise self.given
        return self.given

    def __len__(self) -> int:
        return 3


class Dispatched(np.ndarray):
    """A subclass whose protocols raise or lie."""

    def __array_function__(self, *args: Any, **kwargs: Any) -> Any:
        raise Hostile

    def __array_ufunc__(self, *args: Any, **kwargs: Any) -> Any:
        return "no array"

    def __array_finalize__(self, obj: Any) -> None:
        pass


class Shapeless(np.ndarray):
    """A subclass that lies about its shape and dtype."""

    @property
    def shape(self) -> Any:  # type: ignore[override]
        return (2**40, "x")

    @property
    def dtype(self) -> Any:  # type: ignore[override]
        return None


class Interface:
    """An array interface that is wrong, but points nowhere."""

    def __init__(self, interface: Any) -> None:
        self.__array_interface__ = interface


class Number(float):
    """A float that does not convert."""

    def __float__(self) -> float:
        raise Hostile

    def __index__(self) -> int:
        raise Hostile


class Index:
    """Not an int, but an index."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __index__(self) -> Any:
        return self.value


class Text(str):
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        raise Hostile

    __hash__ = str.__hash__


class LongList(list):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 2**40

    def __iter__(self) -> Iterator[Any]:
        raise Hostile


class Color(enum.IntEnum):
    RED = 1


@dataclasses.dataclass
class Unregistered:
    x: Any = 1.0


@fg.tree.register_dataclass
@dataclasses.dataclass
class Layer:
    w: Any
    b: Any = None
    name: Any = dataclasses.field(default="layer", metadata={"static": True})


Point = collections.namedtuple("Point", "x y")


def _escaped() -> Any:
    """Tracers of traces that have ended."""
    kept: list[Any] = []
    fg.make_program(lambda x: (kept.append(x), kept.append(x * 2), x)[2])(np.ones(3))
    fg.grad(lambda x: (kept.append(x), x * x)[1])(2.0)
    return kept


ESCAPED = _escaped()
ESCAPED_TYPES = {type(x) for x in ESCAPED}
SHAPES: list[Any] = [(), (1,), (3,), (0,), (2, 3), (3, 2), (3, 3), (2, 0), (1, 3), (2, 1, 3), (1,) * 40, (1,) * 70]
HUGE: list[Any] = [(2**40,), (2**62, 2), (2**62, 2**62), (2**40, 0), (0, 2**62), (2**31, 1), (2**63,), (-1, 2**40)]
DTYPES: list[Any] = [
    *"?bBhHiIlLqQefdgFDGOSUVmM", "S3", "U2", "V8", ">f8", ">i4", "M8[s]", "f8,i4", float, int, bool, complex, object,
    str, np.float32, np.floating, np.number, None, "no dtype", "f9", "", 7, (float, 3), ("f8", (2,)), {"names": ["a"]},
    np.dtype("f8", metadata={"a": 1}), np.dtypes.StringDType(), [("x", "f8")], [("x", "f8", (2,))],
]  # fmt: skip


class Zoo:
    """Draws objects from a random number generator."""

    def __init__(self, source: random.Random) -> None:
        self.random = source

    def pick(self, *items: Any) -> Any:
        return self.random.choice(items)

    # -- arrays that are as they should be

    def good(self, shape: Any = None, dtype: Any = None) -> np.ndarray:
        """A native array of numbers."""
        shape = self.random.choice(SHAPES[:10]) if shape is None else shape
        dtype = np.dtype(self.random.choice("dddddffl?iFDbBe") if dtype is None else dtype)
        size = int(np.prod(shape))
        values = [self.random.choice([-2, -1, 0, 0.5, 1, 1.5, 2, 3]) for _ in range(size)]
        return np.array(values).reshape(shape).astype(dtype)

    def number(self) -> Any:
        return self.pick(
            0, 1, 2, 3, -1, 0.5, 1.5, -2.0, True, 1j, np.float64(2), np.float32(0.5), np.int32(1), np.True_
        )

    # -- arrays that are odd

    def array(self) -> Any:
        """An odd array."""
        x = self.good()
        pick = self.random.randrange(24)
        if pick == 0:
            return x.astype(x.dtype.newbyteorder())
        if pick == 1:
            y = np.frombuffer(bytearray(8 * 6 + 1), np.uint8)[1:].view(np.float64)
            return y if self.random.random() < 0.5 else y.reshape(2, 3)
        if pick == 2:
            return x[..., ::-1] if x.ndim else x
        if pick == 3:
            return np.broadcast_to(1.5, self.random.choice([(3,), (2, 3), (2**14, 3), (2**20, 0)]))
        if pick == 4:
            return np.empty(self.random.choice([(2**40, 0), (0, 2**58), (0,) * 64, (0, 1)]))
        if pick == 5:
            return np.array(["2020-01-01", "NaT"], self.pick("M8[s]", "M8[D]"))
        if pick == 6:
            return np.array(["a", "bc", ""], self.pick("U2", "S2", np.dtypes.StringDType(), object))
        if pick == 7:
            out = np.full(3, None, object)
            out[1] = Raises()
            return out
        if pick == 8:
            return np.zeros(3, self.pick("f8,i4", "V8", [("x", "f8", (2,))]))
        if pick == 9:
            return np.ma.masked_array([1.0, 2.0, 3.0], mask=[0, 1, 0])
        if pick == 10:
            return np.matrix([[1.0, 2.0], [3.0, 4.0]])
        if pick == 11:
            return self.memmap()
        if pick == 12:
            return x.view(self.pick(Dispatched, Shapeless, np.recarray, fg.Array))
        if pick == 13:
            x.flags.writeable = False
            return x
        if pick == 14:
            return np.full(3, self.pick(np.nan, np.inf, -np.inf, 1e308, 5e-324, -0.0))
        if pick == 15:
            return np.array([self.pick(2**63 - 1, -(2**63), 0, 255)])
        if pick == 16:
            return np.array(self.pick(2**64 - 1, 2**63), np.uint64)
        if pick == 17:
            return np.zeros(3, np.longdouble if self.random.random() < 0.5 else np.clongdouble)
        if pick == 18:
            return np.lib.stride_tricks.as_strided(np.arange(6.0), (3, 3), (8, 8))
        if pick == 19:
            return np.array(None, object) if self.random.random() < 0.5 else np.array([[1.0], [1.0, 2.0]], object)
        if pick == 20:
            return np.rec.array([(1.0, 2)], dtype=[("x", "f8"), ("y", "i4")])
        if pick == 21:
            return np.asfortranarray(self.good((2, 3)))
        if pick == 22:
            return fg.numpy.asarray(x)
        return np.zeros(3, np.dtype("f8", metadata={"a": 1}))

    def memmap(self) -> Any:
        handle, name = tempfile.mkstemp()
        try:
            os.write(handle, bytes(48))
            return np.memmap(name, np.float64, self.pick("r", "r+", "c"), shape=self.pick((6,), (2, 3)))
        finally:
            os.close(handle)
            os.unlink(name)

    # -- everything else

    def integer(self) -> Any:
        return self.pick(0, 1, 2, 3, -1, -2, 5, 7, 100, -(2**31), 2**31, 2**40, 2**62, 2**63 - 1, 2**63, -(2**63) - 1,
                         10**30, -(10**400), True, Color.RED, np.int8(1), np.uint64(2**63), Index(1), Index(2**70),
                         Index("x"), Index(None), np.array(1), np.array([1]))  # fmt: skip

    def shape(self) -> Any:
        if self.random.random() < 0.6:
            return self.random.choice(SHAPES)
        return self.pick(*HUGE, -1, 3, 2**40, 1.5, "3", None, (None,), [2, 3], (2.0,), ("a",), {2}, (True, 2),
                         np.array([2, 3]), np.array([[2]]), (Index(2),), ((2,), 3), np.array(2.5))  # fmt: skip

    def axis(self) -> Any:
        return self.pick(0, 0, 1, -1, None, 2, 5, -7, (0,), (0, 1), (0, 0), [0], [], (), 2**70, "0", 1.0, True,
                         (None,), np.int64(0), np.array(0), np.array([0]), Index(0), Raises(), ((0,),),
                         float("nan"))  # fmt: skip

    def dtype(self) -> Any:
        return self.random.choice(DTYPES)

    def index(self) -> Any:
        r = self.random
        one = lambda: self.pick(
            0, 1, -1, 2, 7, slice(None), slice(1, None), slice(None, None, -1), slice(None, None, 0), slice(2**70),
            None, slice("a", None), slice(1.5), ..., np.array([0, 1]), np.array([True, False, True]), [0, 1],
            [[0], [1]], np.array([], int), np.array([9]), np.array([0.5]), True, False, "x", 1.5, (), [], 2**70,
            Index(1), Raises(), np.int8(1), np.array(0), np.array(True), np.array([0], np.uint64), np.array(["a"]),
            {0: 1}, slice(0, 2, Index(1)),
        )  # fmt: skip
        return one() if r.random() < 0.5 else tuple([one() for _ in range(r.randrange(5))])

    def function(self) -> Any:
        """Functions of the user's: good ones, and odd ones."""
        calls = [0]

        def count(*args: Any) -> Any:
            calls[0] += 1
            return args[0] * calls[0] if args else calls[0]

        def fails(*args: Any, **kwargs: Any) -> Any:
            raise Hostile

        def whatever(*args: Any, **kwargs: Any) -> Any:
            return self.any()

        def nested(x: Any) -> Any:
            return fg.grad(lambda y: np.sum(y * y))(x)

        return self.pick(
            lambda x: x, lambda x: x * 2.0, lambda x: np.sum(x), np.sin, lambda x: x[0], lambda *a: a,
            lambda x, y: (x, y), lambda x, y: x + y, lambda i, x: x, lambda x: x > 0, lambda: 1.0, lambda x: None,
            lambda x: {"a": x}, lambda x: float(x), lambda x: x if x > 0 else -x, lambda c, x: (c + x, c), np.sum,
            functools.partial(np.sum, axis=0), fg.jit(lambda x: x + 1), fg.grad(lambda x: np.sum(x**2)), np.add.reduce,
            fails, whatever, count, nested, operator.mul, int, print, np.ndarray, Raises(), lambda x, /, *, y=1: x * y,
            fg.vmap(lambda x: x), "f", None, lambda x: ESCAPED[0], lambda x: x.at[0].set(1.0), lambda *a: sum(a), type,
            lambda x: np.asarray(x), lambda x: [x, x], lambda x: x.sum() < 5, lambda x, y: (x * y, None)
        )  # fmt: skip

    def tree(self, depth: int = 3) -> Any:
        leaf = self.any if depth == 0 else lambda: self.tree(depth - 1)
        if depth == 0 or self.random.random() < 0.3:
            return self.good() if self.random.random() < 0.7 else self.any()
        kind = self.random.randrange(12)
        if kind == 0:
            return {"a": leaf(), "b": leaf()}
        if kind == 1:
            return {self.pick(1, "x", None, float("nan"), (1,), b"k", Unequal(), True): leaf(), "b": leaf()}
        if kind == 2:
            return [leaf() for _ in range(self.random.randrange(3))]
        if kind == 3:
            return (leaf(), leaf())
        if kind == 4:
            return Point(leaf(), leaf())
        if kind == 5:
            return Layer(leaf(), leaf(), self.pick("layer", None, Raises(), [1], float("nan")))
        if kind == 6:
            return collections.OrderedDict(b=leaf(), a=leaf())
        if kind == 7:
            return collections.deque([leaf()], self.pick(None, 3))
        if kind == 8:
            return collections.defaultdict(list, a=leaf())
        if kind == 9:
            return self.cycle()
        if kind == 10:
            return object.__new__(Layer)
        return None

    def cycle(self) -> Any:
        a: list[Any] = [1.0]
        d: dict[str, Any] = {"a": a}
        a.append(self.pick(a, d, (a,)))
        return self.pick(a, d)

    def other(self) -> Any:
        make: list[Callable[[], Any]] = [
            lambda: self.pick(None, ..., NotImplemented, "", "abc", b"x", "axis", "f8", "same", "sum", "raise", "clip"),
            lambda: self.pick(float("nan"), float("inf"), -0.0, 1e400, 5e-324, complex("nan+1j"), 1e308),
            lambda: self.pick(Raises(), Unequal(), Number(1.0), Text("x"), LongList([1.0]), Color.RED, Unregistered()),
            lambda: Lies(self.pick(np.ones(2), None, "x", 3, np.array([object()]), ValueError("mine"), Hostile())),
            lambda: self.pick(range(3), range(2**70), iter([1.0]), (i for i in range(3)), {1, 2}, bytearray(8)),
            lambda: self.pick(memoryview(bytes(8)), slice(None), object(), type, int, np, np.float64, np.ndarray, len),
            lambda: self.pick(fractions.Fraction(1, 3), Decimal("1.5"), np.str_("a"), np.bytes_(b"a"), np.void(b"12")),
            lambda: self.pick(np.datetime64("2020"), np.timedelta64(1, "s"), np.longdouble(1), np.float16(1)),
            lambda: self.pick(*ESCAPED),
            lambda: fg.ShapeDtypeStruct(self.pick((), (3,), (2, 3)), self.pick(float, np.int32, bool)),
            lambda: Interface(self.pick(None, {}, {"shape": (3,), "typestr": "<f8", "version": 3}, 7)),
            lambda: self.pick(fg.make_program(lambda x: x)(1.0), fg.tree.structure((1, 2)), fg.optim.sgd(0.1)),
            lambda: self.pick([[1.0, 2.0], [3.0]], [[1, 2], [3, 4]], [None], [[]], ["a"], [1, "a", None], [1j]),
            lambda: self.pick((1.0, np.ones(3)), [np.ones(2), np.ones(3)], [np.ones(2)] * 2, (np.ones(3),) * 3),
            lambda: np.random.default_rng(0),
            lambda: self.cycle(),
        ]  # fmt: skip
        return self.random.choice(make)()

    def any(self) -> Any:
        """An object of any kind."""
        make = [self.good, self.number, self.array, self.array, self.integer, self.shape, self.axis, self.dtype,
                self.index, self.function, self.tree, self.other, self.other]  # fmt: skip
        return self.random.choice(make)()

    def named(self, name: str) -> Any:
        """What often stands for a parameter of that name, odd ones too."""
        for kind, words in _BY_NAME.items():
            if any([word == name or (len(word) > 2 and word in name) for word in words]):
                return getattr(self, kind)()
        return self.good() if self.random.random() < 0.7 else self.number()


_BY_NAME = {
    "axis": ("axis", "axes", "dim", "argnum"),
    "shape": ("shape", "newshape", "reps", "sizes"),
    "dtype": ("dtype",),
    "index": ("index", "indices", "idx"),
    "integer": ("n_", "num", "length", "ddof", "count", "order", "offset", "decimals", "repeats", "steps", "shift"),
    "tree": ("tree", "params", "init", "carry", "xs", "updates", "state", "operand", "primals", "tangents"),
    "function": ("f", "fun", "func", "body", "cond", "body_fun", "cond_fun", "true_fun", "branches", "fn"),
}  # fmt: skip
